"""Granite Speech's encoder: a conformer trained with CTC, with attention in blocks by content and distance.

Saon 2025 (arXiv:2505.08699, §2.1); Shaw 2018 (arXiv:1803.02155, §3.2) for the keys of distances. transformers:
models/granite_speech (`GraniteSpeechCTCEncoder`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import PATCHES, EmbeddingRows, PaddedRows
from ..base import HeadDim, Heads, InnerWidth, KernelSize, Layers, ModelProperties, Positions
from ..batch_norm import batch_norm_class, record_batch_norm
from ..inputs import AudioInput
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState
from .base import EncoderTower

if TYPE_CHECKING:
    from torch import Tensor, nn


class CtcConformer(EncoderTower):
    """A conformer trained with CTC: stacked spectrum frames → hidden_size → layers; labels are predicted halfway.

    input_size: the number of values per frame.
    hidden_size: the width of the layers.
    num_hidden_layers: the number of layers.
    num_attention_heads: the number of heads.
    head_dim: the size of a head.
    block: the number of frames that attend to one another; frames are padded to whole blocks.
    max_distance: the largest distance with a key of its own, in both directions.
    kernel_size: the kernel size of the convolution of a layer.
    expansion: the number of channels of that convolution, in multiples of hidden_size.
    feed_forward: each of the two networks of a layer.
    norm: the norm before each part of a layer and after the layer.
    labels: the number of labels whose probabilities are added to the output of the first half of the layers.
    audio: how the processor cuts audio into frames; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "Saon et al. 2025, §2.1"

    type: Literal["ctc_conformer"] = "ctc_conformer"
    input_size: InnerWidth
    hidden_size: InnerWidth
    num_hidden_layers: Layers
    num_attention_heads: Heads
    head_dim: HeadDim
    block: Positions
    max_distance: Positions
    kernel_size: KernelSize
    expansion: InnerWidth
    feed_forward: FeedForward
    norm: Norm
    labels: InnerWidth
    audio: AudioInput | None = None

    def check_fields(self) -> None:
        if self.block > self.max_distance:
            raise ValueError(f"block: {self.block} frames; expected at most max_distance ({self.max_distance})")

    def input_value(self) -> Value:
        return Value(PATCHES, (Axis("mel", self.input_size),), is_constant=True)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the encoder and returns its output for the projector."""
        hidden_axis = Axis("hidden", self.hidden_size)
        x = recorder.linear("input_proj", x, hidden_axis, bias=True)
        for layers_label, layer_indices in self._layers_before_and_after_labels():
            x = recorder.layers(
                x,
                lambda v: self._record_layer(recorder, v),
                len(layer_indices),
                layer_indices,
                kind="layer",
                label=layers_label,
            )
            if layer_indices[-1] == self.num_hidden_layers // 2 - 1:
                labels = recorder.linear("label_head", x, Axis("labels", self.labels), bias=True)
                x = recorder.add(
                    x, recorder.linear("label_proj", recorder.act(labels, "softmax"), hidden_axis, bias=True)
                )
        if self.num_hidden_layers == 1:  # whose class has the layers of labels and does not run them
            for projection_name, input_width, output_width in (
                ("label_head", self.hidden_size, self.labels),
                ("label_proj", self.labels, self.hidden_size),
            ):
                input_value = Value(x.rows, (Axis("width", input_width),), is_constant=True)
                recorder.linear(projection_name, input_value, Axis("hidden", output_width), bias=True, role="idle")
        return x

    def _layers_before_and_after_labels(self) -> Iterator[tuple[str, list[int]]]:
        """Yields name and layer indices of the first and second half of the layers; labels are predicted in between."""
        layers, middle_layer = [*range(self.num_hidden_layers)], self.num_hidden_layers // 2
        if middle_layer:
            yield "first half", layers[:middle_layer]
        yield "second half", layers[middle_layer:]

    def _record_layer(self, recorder: Flow, x: Value) -> Value:
        """Records a layer: a half-step network, attention in blocks, a convolution, a half-step network and a norm."""
        x = self._add_half_network_output(recorder, "mlp_1", x)
        residual_branch = recorder.part("self_attn_pre_norm", self.norm, x)
        with recorder.scope("self_attn", kind="attention"):
            residual_branch = self._record_attention(recorder, residual_branch)
        x = recorder.add(x, residual_branch)
        residual_branch = recorder.part("convolution_pre_norm", self.norm, x)
        with recorder.scope("convolution", kind="convolution"):
            residual_branch = self._record_convolution(recorder, residual_branch)
        x = self._add_half_network_output(recorder, "mlp_2", recorder.add(x, residual_branch))
        return recorder.part("norm", self.norm, x)

    def _add_half_network_output(self, recorder: Flow, network_name: str, x: Value) -> Value:
        """Records the computation of x plus half of the output of the named half-step network."""
        network_output = recorder.part(
            network_name, self.feed_forward, recorder.part(f"{network_name}_pre_norm", self.norm, x)
        )
        return recorder.add(x, recorder.scale(network_output, 0.5))

    def _record_attention(self, recorder: Flow, x: Value) -> Value:
        frame_rows, head_dim = x.rows, Axis("head_dim", self.head_dim)
        head_axes = Axis("heads", self.num_attention_heads), head_dim
        x = x.view(*x.axes, new_rows=PaddedRows(source_rows=frame_rows, block_rows=self.block))
        q, k, v = (recorder.linear(f"{projection_letter}_proj", x, *head_axes) for projection_letter in "qkv")
        distance_rows = EmbeddingRows(name="distances", row_count=self.block * self.block)
        recorder.table(
            "distance_keys",
            Axis("distances", 2 * self.max_distance + 1),
            head_dim,
            output_rows=distance_rows,
            index_source="positions",
        )
        key_limits: dict[str, Any] = {
            "core": ops.ConformerAttentionCore,
            "chunk": self.block,
            "distance_count": self.block,
        }
        attn_output = recorder.attention("", q, k, v, causal=False, masked=False, **key_limits)
        return recorder.linear("o_proj", attn_output.view(*attn_output.axes, new_rows=frame_rows), *x.axes, bias=True)

    def _record_convolution(self, recorder: Flow, x: Value) -> Value:
        """Records a gated linear unit, a depthwise convolution with a batch norm, and a projection."""
        channel_axes = (Axis("channels", self.expansion * self.hidden_size),)
        joined_halves = recorder.conv("in_proj", x, JoinedShapes((channel_axes, channel_axes)), kernel=1, bias=True)
        gated_half, gate = recorder.split(joined_halves, channel_axes, channel_axes)
        gated_x = recorder.mul(gated_half, recorder.act(gate, "sigmoid"))
        gated_x = recorder.conv("conv", gated_x, *channel_axes, kernel=self.kernel_size, groups=gated_x.width)
        gated_x = record_batch_norm(recorder, "norm", gated_x, channel_axes)
        return recorder.conv("out_proj", recorder.act(gated_x, "silu"), *x.axes, kernel=1, bias=True)

    def describe(self, hidden_size: int) -> str:
        return f"conformer {self.num_hidden_layers} × {self.hidden_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=20, hidden_act="silu", up_bias=True, down_bias=True)
        default_spec = cls(
            input_size=8,
            hidden_size=12,
            num_hidden_layers=3,
            num_attention_heads=3,
            head_dim=5,
            block=4,
            max_distance=6,
            kernel_size=5,
            expansion=2,
            feed_forward=network,
            norm=Norm(type="layernorm"),
            labels=7,
        )
        return [default_spec, default_spec.model_copy(update={"num_hidden_layers": 1, "kernel_size": 4})]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional

    BatchNorm = batch_norm_class()

    class CtcAttention(nn.Module):
        """Attends within blocks of frames. x: [clips, frames, hidden] → same shape."""

        def __init__(self, spec: CtcConformer) -> None:
            super().__init__()
            self.heads, self.block, self.furthest = spec.num_attention_heads, spec.block, spec.max_distance
            heads_width = spec.num_attention_heads * spec.head_dim
            for projection_letter in "qkv":
                self.add_module(f"{projection_letter}_proj", nn.Linear(spec.hidden_size, heads_width, bias=False))
            self.distance_keys = nn.Embedding(2 * spec.max_distance + 1, spec.head_dim)
            self.o_proj = nn.Linear(heads_width, spec.hidden_size)

        def forward(self, x: Tensor) -> Tensor:
            clip_count, frame_count = x.shape[:2]
            x = functional.pad(x, (0, 0, 0, -frame_count % self.block))
            q, k, v = (
                self.get_submodule(f"{projection_letter}_proj")(x)
                .unflatten(-1, (self.heads, -1))
                .unflatten(1, (-1, self.block))
                .flatten(0, 1)
                .transpose(1, 2)
                for projection_letter in "qkv"
            )
            positions = torch.arange(self.block, device=x.device)
            keys = self.distance_keys(positions[:, None] - positions + self.furthest)
            bias = torch.einsum("bhcd,crd->bhcr", q, keys) * q.shape[-1] ** -0.5
            is_padding = (torch.arange(x.shape[1], device=x.device) >= frame_count).unflatten(0, (-1, self.block))
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias
            mask = is_padding.repeat(clip_count, 1)[:, None, None]
            heads = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
            attn_output: Tensor = self.o_proj(
                heads.transpose(1, 2).flatten(2).unflatten(0, (clip_count, -1)).flatten(1, 2)[:, :frame_count]
            )
            return attn_output

    class CtcConvolution(nn.Module):
        """Applies a gated convolution over the frames. x: [clips, frames, hidden] → same shape."""

        def __init__(self, spec: CtcConformer) -> None:
            super().__init__()
            hidden_size, channels = spec.hidden_size, spec.expansion * spec.hidden_size
            self.in_proj, self.out_proj = nn.Conv1d(hidden_size, 2 * channels, 1), nn.Conv1d(channels, hidden_size, 1)
            self.conv = nn.Conv1d(channels, channels, spec.kernel_size, groups=channels, bias=False)
            earlier_frames = spec.kernel_size // 2
            self.padding = (earlier_frames, spec.kernel_size - 1 - earlier_frames)
            self.norm = BatchNorm(channels)

        def forward(self, x: Tensor) -> Tensor:
            gated_x = functional.glu(self.in_proj(x.transpose(1, 2)), dim=1)
            gated_x = functional.silu(self.norm(self.conv(functional.pad(gated_x, self.padding))))
            conv_output: Tensor = self.out_proj(gated_x).transpose(1, 2)
            return conv_output

    class CtcLayer(nn.Module):
        """Runs a conformer layer: half-step networks around attention and convolution. x: [clips, frames, hidden]."""

        def __init__(self, spec: CtcConformer) -> None:
            super().__init__()
            model_properties = ModelProperties(spec.hidden_size)
            for sublayer_name in ("mlp_1", "mlp_2"):
                self.add_module(sublayer_name, spec.feed_forward.reference(model_properties))
            self.self_attn, self.convolution = CtcAttention(spec), CtcConvolution(spec)
            for sublayer_name in (
                "mlp_1_pre_norm",
                "self_attn_pre_norm",
                "convolution_pre_norm",
                "mlp_2_pre_norm",
                "norm",
            ):
                self.add_module(sublayer_name, spec.norm.reference(model_properties))

        def _add_half_network_output(self, network_name: str, x: Tensor) -> Tensor:
            return x + 0.5 * self.get_submodule(network_name)(
                self.get_submodule(f"{network_name}_pre_norm")(x), PassState()
            )

        def forward(self, x: Tensor) -> Tensor:
            x = self._add_half_network_output("mlp_1", x)
            x = x + self.self_attn(self.get_submodule("self_attn_pre_norm")(x))
            x = x + self.convolution(self.get_submodule("convolution_pre_norm")(x))
            return self.get_submodule("norm")(self._add_half_network_output("mlp_2", x))

    class CtcConformerReference(nn.Module):
        """Encodes stacked audio frames. frames: [clips, frames, input_size] → [clips, frames, hidden]."""

        def __init__(self, spec: CtcConformer) -> None:
            super().__init__()
            self.input_proj = nn.Linear(spec.input_size, spec.hidden_size)
            self.layers = nn.ModuleList(CtcLayer(spec) for _ in range(spec.num_hidden_layers))
            self.label_head = nn.Linear(spec.hidden_size, spec.labels)
            self.label_proj = nn.Linear(spec.labels, spec.hidden_size)

        def forward(self, frames: Tensor) -> Tensor:
            x = self.input_proj(frames)
            for layer_index, layer in enumerate(self.layers, 1):
                x = layer(x)
                if layer_index == len(self.layers) // 2:
                    x = x + self.label_proj(self.label_head(x).softmax(-1))
            return x

    return CtcConformerReference
