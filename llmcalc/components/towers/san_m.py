"""An audio encoder with a memory of neighbouring frames parallel to its attention (SAN-M): SenseVoice, Fun-ASR.

Gao 2020 (arXiv:2006.01713, §2). transformers: models/fun_asr_nano (`FunAsrNanoEncoder`).
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ...algebra import are_equal, exact_div
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import PATCHES
from ..base import Heads, InnerWidth, KernelSize, Layers, ModelProperties
from ..inputs import AudioInput
from ..mixers.grouped_query import record_queries_keys_values
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState
from .base import EncoderTower, check_head_width, layer_kinds_after_first

if TYPE_CHECKING:
    from torch import Tensor, nn


class SanMEncoder(EncoderTower):
    """A SAN-M encoder of stacked frames, whose first layer reads input_size values; some layers are followed by a norm.

    input_size: the number of values per stacked frame. Sinusoidal positions are added to it.
    hidden_size: the width of the layers.
    num_hidden_layers: the number of layers.
    num_attention_heads: the number of heads.
    kernel_size: the number of neighbouring frames whose values are convolved, channel by channel.
    feed_forward: the network of a layer.
    norm: the norm before each part of a layer, and after the layers that end in one.
    normed_layers: the indices of the layers that end in a norm.
    audio: how the processor cuts audio into frames; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "Gao et al. 2020, §2"

    type: Literal["san_m"] = "san_m"
    input_size: InnerWidth
    hidden_size: InnerWidth
    num_hidden_layers: Layers
    num_attention_heads: Heads
    kernel_size: KernelSize
    feed_forward: FeedForward
    norm: Norm
    normed_layers: tuple[int, ...] = Field(default=(), max_length=16)
    audio: AudioInput | None = None

    def check_fields(self) -> None:
        check_head_width(self.hidden_size, self.num_attention_heads)
        if not all(0 <= layer_index < self.num_hidden_layers for layer_index in self.normed_layers):
            raise ValueError(f"normed_layers: expected indices below num_hidden_layers ({self.num_hidden_layers})")

    def input_value(self) -> Value:
        return Value(PATCHES, (Axis("mel", self.input_size),), is_constant=True)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the encoder and returns its output for the projector."""
        x = recorder.add(x, Value(x.rows, x.axes, is_constant=True))
        with recorder.scope("layers", repeat=1, indices=[0], kind="layer", label="first"):
            x = self._record_layer(recorder, x, 0 in self.normed_layers)
        for has_norm, layer_indices in layer_kinds_after_first(self.num_hidden_layers, self.normed_layers):
            layer_label = "normed" if has_norm else ""
            record_layer = partial(self._record_layer, recorder, has_norm=has_norm)
            x = recorder.layers(x, record_layer, len(layer_indices), layer_indices, kind="layer", label=layer_label)
        return x

    def _record_layer(self, recorder: Flow, x: Value, has_norm: bool) -> Value:
        """Records the operations of a layer; attention has a residual connection only if the widths match."""
        residual_branch = recorder.part("self_attn_pre_norm", self.norm, x)
        with recorder.scope("self_attn", kind="attention"):
            residual_branch = self._record_attention(recorder, residual_branch)
        x = recorder.add(x, residual_branch) if are_equal(x.width, residual_branch.width) else residual_branch
        x = recorder.add(x, recorder.part("mlp", self.feed_forward, recorder.part("mlp_pre_norm", self.norm, x)))
        return recorder.part("norm", self.norm, x) if has_norm else x

    def _record_attention(self, recorder: Flow, x: Value) -> Value:
        """Records the sum of attention's output and of a convolution of the values over neighbouring frames."""
        heads = self.num_attention_heads
        head_axes = Axis("heads", heads), Axis("head_dim", exact_div(self.hidden_size, heads))
        q, k, v = record_queries_keys_values(recorder, x, *head_axes, bias=True)
        hidden_axis = Axis("hidden", self.hidden_size)
        attn_output = recorder.attention("", q, k, v, causal=False, masked=False)
        attn_output = recorder.linear("o_proj", attn_output, hidden_axis, bias=True)
        values = v.view(hidden_axis)
        memory_output = recorder.conv("memory", values, hidden_axis, kernel=self.kernel_size, groups=values.width)
        return recorder.add(attn_output, recorder.add(memory_output, values))

    def describe(self, hidden_size: int) -> str:
        return f"SAN-M {self.num_hidden_layers} × {self.hidden_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=20, hidden_act="relu", up_bias=True, down_bias=True)
        tower_fields: dict[str, Any] = {
            "num_attention_heads": 3,
            "feed_forward": network,
            "norm": Norm(type="layernorm"),
        }
        default_spec = cls(
            input_size=14, hidden_size=12, num_hidden_layers=4, kernel_size=5, normed_layers=(1, 3), **tower_fields
        )
        return [
            default_spec,
            default_spec.model_copy(update={"input_size": 12, "num_hidden_layers": 1, "normed_layers": (0,)}),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional

    class SanMAttention(nn.Module):
        """Adds attention and a convolution of the values. x: [clips, frames, width] → [clips, frames, hidden]."""

        def __init__(self, spec: SanMEncoder, input_width: int) -> None:
            super().__init__()
            self.heads, hidden_size = spec.num_attention_heads, spec.hidden_size
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(input_width, hidden_size) for _ in range(3))
            self.o_proj = nn.Linear(hidden_size, hidden_size)
            self.memory = nn.Conv1d(hidden_size, hidden_size, spec.kernel_size, groups=hidden_size, bias=False)
            earlier_frames = (spec.kernel_size - 1) // 2
            self.padding = (earlier_frames, spec.kernel_size - 1 - earlier_frames)

        def forward(self, x: Tensor) -> Tensor:
            values = self.v_proj(x)
            q, k, v = (
                head_vectors.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for head_vectors in (self.q_proj(x), self.k_proj(x), values)
            )
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            attn_output: Tensor = self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
            memory_output = self.memory(functional.pad(values.transpose(1, 2), self.padding)).transpose(1, 2)
            return attn_output + memory_output + values

    class SanMLayer(nn.Module):
        """Runs pre-norm attention and a network. x: [clips, frames, width] → [clips, frames, hidden]."""

        def __init__(self, spec: SanMEncoder, input_width: int, has_norm: bool) -> None:
            super().__init__()
            model_properties = ModelProperties(spec.hidden_size)
            self.self_attn_pre_norm = spec.norm.reference(ModelProperties(input_width))
            self.self_attn, self.mlp = SanMAttention(spec, input_width), spec.feed_forward.reference(model_properties)
            self.mlp_pre_norm = spec.norm.reference(model_properties)
            if has_norm:
                self.norm = spec.norm.reference(model_properties)

        def forward(self, x: Tensor) -> Tensor:
            attn_output = self.self_attn(self.self_attn_pre_norm(x))
            x = x + attn_output if x.shape == attn_output.shape else attn_output
            x = x + self.mlp(self.mlp_pre_norm(x), PassState())
            return self.norm(x) if hasattr(self, "norm") else x

    class SanMEncoderReference(nn.Module):
        """Encodes stacked audio frames. frames: [clips, frames, input_size] → [clips, frames, hidden]."""

        def __init__(self, spec: SanMEncoder) -> None:
            super().__init__()
            self.hidden_size = spec.hidden_size
            input_widths = [spec.input_size, *[spec.hidden_size] * (spec.num_hidden_layers - 1)]
            self.layers = nn.ModuleList(
                SanMLayer(spec, width, layer_index in spec.normed_layers)
                for layer_index, width in enumerate(input_widths)
            )

        def forward(self, frames: Tensor) -> Tensor:
            frequency_count = frames.shape[-1] // 2
            angular_frequencies = 10000.0 ** -(
                torch.arange(frequency_count, device=frames.device) / max(frequency_count - 1, 1)
            )
            angles = (torch.arange(frames.shape[1], device=frames.device) + 1)[:, None] * angular_frequencies
            x = frames * self.hidden_size**0.5 + torch.cat([angles.sin(), angles.cos()], -1)
            for layer in self.layers:
                x = layer(x)
            return x

    return SanMEncoderReference
