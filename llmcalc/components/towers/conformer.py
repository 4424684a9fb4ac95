"""Conformers: audio encoders with attention and a convolution between two half-weighted networks per layer.

Gulati 2020 (arXiv:2005.08100).

Gemma's is the Universal Speech Model's (Zhang 2023, arXiv:2303.01037): attention windows, and scores against projected
sinusoids of the distances. Phi-4-multimodal's has a table of distances shared by all layers, biases everywhere and a
gated network. transformers: models/gemma3n, models/gemma4, models/phi4_multimodal.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...algebra import exact_div
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import QueryKeyPairs
from ...workload.rows import ONCE
from ..base import Flag, Heads, Layers, ModelProperties, Part, Positions, Width
from ..conformer_convolution import ConformerConvolution
from ..inputs import AudioInput
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import ForwardPass, vector
from .base import TowerPart
from .subsampling import Subsampling

if TYPE_CHECKING:
    from torch import Tensor, nn


class ConformerAttention(Part):
    """Conformer attention within a window, or over all positions without context_left.

    num_attention_heads: the number of heads.
    bias: whether the four projections have a bias, false by default.
    relative_keys: whether the sinusoid of each distance is projected to a key and each query dimension has a learned
        scale; false by default.
    context_left: the number of positions up to the query's own, included; by default there is no window.
    context_right: the number of positions after it, 0 by default.
    """

    num_attention_heads: Heads
    bias: Flag = False
    relative_keys: Flag = False
    context_left: Positions | None = None
    context_right: int = Field(default=0, ge=0, le=2**40, strict=True)

    def flow(self, recorder: Flow, x: Value, bias: Value | None) -> Value:
        """Records the attention. bias: a value per head and distance that is added to the scores."""
        dim = Axis("head_dim", exact_div(x.width, self.num_attention_heads))
        head_axes = (Axis("heads", self.num_attention_heads), dim)
        q, k, v = (recorder.linear(f"{letter}_proj", x, *head_axes, bias=self.bias) for letter in "qkv")
        score_terms = () if bias is None else (bias,)
        if self.relative_keys:
            q = recorder.mul(q, recorder.act(recorder.vector("q_scale", dim), "softplus"))
            distances = Value(QueryKeyPairs(of=x.rows), x.axes, fixed=True)
            score_terms = (recorder.linear("r_proj", distances, *head_axes), *score_terms)
        window = {"context_left": self.context_left, "context_right": self.context_right}
        y = recorder.step("attention", "", (q, k, v, *score_terms), Value(q.rows, q.axes), causal=False, **window)
        return recorder.linear("o_proj", y, *x.axes, bias=self.bias)


class Conformer(TowerPart):
    """A conformer: frames of a spectrum → fewer frames of hidden_size → layers → output_size.

    hidden_size: the width.
    subsampling: the convolutions that reduce the number of frames.
    num_hidden_layers: the number of layers.
    attention, convolution, feed_forward: the parts of a layer.
    norm: the norm before each part of a layer and after the layer.
    norm_placement: `pre` by default; `sandwich` adds a norm after attention and after the feed-forward networks.
    relative_buckets: the number of rows of a table of distances, with a value per head, that every layer adds to its
        scores; none by default.
    output_size: the output width of a final projection; none by default.
    clamps: the number of clipping bounds per layer, stored as buffers (Gemma 4); 0 by default.
    audio: how the processor cuts audio into frames; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "Gulati et al. 2020, §2"

    type: Literal["conformer"] = "conformer"
    hidden_size: Width
    subsampling: Subsampling
    num_hidden_layers: Layers
    attention: ConformerAttention
    convolution: ConformerConvolution
    feed_forward: FeedForward
    norm: Norm
    norm_placement: Literal["pre", "sandwich"] = "pre"
    relative_buckets: Positions | None = None
    output_size: Width | None = None
    clamps: int = Field(default=0, ge=0, le=1000, strict=True)
    audio: AudioInput | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        heads = self.attention.num_attention_heads
        if self.hidden_size % heads:
            raise ValueError(
                f"num_attention_heads: {heads} does not divide hidden_size {self.hidden_size}; expected a divisor"
            )
        if self.attention.relative_keys and self.hidden_size % 2:
            raise ValueError(
                f"hidden_size: {self.hidden_size} has no two halves for sines and cosines; expected an even number"
            )
        return self

    @property
    def output_width(self) -> int:
        return self.hidden_size if self.output_size is None else self.output_size

    def input_value(self) -> Value:
        return self.subsampling.input_value()

    def flow(self, recorder: Flow, x: Value) -> Value:
        x = recorder.part("subsampling", self.subsampling, x, width=(Axis("hidden", self.hidden_size),))
        n, heads, bias = self.num_hidden_layers, Axis("heads", self.attention.num_attention_heads), None
        if self.relative_buckets is not None:
            bias, _ = recorder.table("relative_bias", Axis("buckets", self.relative_buckets), heads, of=ONCE)
        indices = range(n) if isinstance(n, int) else None
        x = recorder.layers(x, lambda v: self._record_layer(recorder, v, bias), n, indices, kind="layer")
        if self.clamps:
            recorder.buffer("clamps", Axis("layers", n), Axis("bounds", self.clamps))
        if self.output_size is not None:
            x = recorder.linear("output_proj", x, Axis("hidden", self.output_size), bias=True)
        return x

    def _record_layer(self, recorder: Flow, x: Value, bias: Value | None) -> Value:
        """Records a layer: half a feed-forward network, attention, a convolution, half a network, a norm."""
        x = self._half_network(recorder, "mlp_1", x)
        y = recorder.part("self_attn_pre_norm", self.norm, x)
        with recorder.scope("self_attn", kind="attention"):
            y = self.attention.flow(recorder, y, bias)
        x = recorder.add(x, self._normalize_output(recorder, "self_attn", y))
        y = recorder.part("convolution_pre_norm", self.norm, x)
        with recorder.scope("convolution", kind="convolution"):
            y = self.convolution.flow(recorder, y)
        x = self._half_network(recorder, "mlp_2", recorder.add(x, y))
        return recorder.part("norm", self.norm, x)

    def _half_network(self, recorder: Flow, name: str, x: Value) -> Value:
        """Records the sum of x and half of a named feed-forward network's output."""
        y = recorder.part(name, self.feed_forward, recorder.part(f"{name}_pre_norm", self.norm, x))
        return recorder.add(x, recorder.scale(self._normalize_output(recorder, name, y), 0.5))

    def _normalize_output(self, recorder: Flow, name: str, y: Value) -> Value:
        return recorder.part(f"{name}_post_norm", self.norm, y) if self.norm_placement == "sandwich" else y

    def describe(self, hidden_size: int) -> str:
        return f"conformer {self.num_hidden_layers} × {self.hidden_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        from .subsampling import SpectrumConv

        rms, layernorm, scale = Norm(type="rmsnorm"), Norm(type="layernorm"), Norm(type="layernorm", bias=False)
        two_convolutions = Subsampling(
            num_mel_bins=12, convolutions=(SpectrumConv(channels=6), SpectrumConv(channels=4)), norm=scale
        )
        separable_convolution = SpectrumConv(channels=4, separable=True, bias=True)
        nemo = Subsampling(
            num_mel_bins=9,
            convolutions=(SpectrumConv(channels=4, bias=True), separable_convolution, separable_convolution),
            bias=True,
            standardize=True,
        )
        ungated_network = FeedForward(intermediate_size=40, hidden_act="silu")
        gated = FeedForward(
            intermediate_size=14, hidden_act="silu", gated=True, gate_bias=True, up_bias=True, down_bias=True
        )
        windowed_attention = ConformerAttention(
            num_attention_heads=2, relative_keys=True, context_left=4, context_right=1
        )
        unlimited_attention = ConformerAttention(num_attention_heads=3, bias=True)
        light_convolution = ConformerConvolution(kernel_size=3, norm=rms)
        biased_convolution = ConformerConvolution(
            kernel_size=3, gate_act="silu", gate_bias=True, bias=True, multiplier=2, separable=True
        )
        return [
            cls(
                hidden_size=10,
                subsampling=two_convolutions,
                num_hidden_layers=2,
                attention=windowed_attention,
                convolution=light_convolution,
                feed_forward=ungated_network,
                norm=rms,
                norm_placement="sandwich",
                output_size=14,
                clamps=40,
            ),
            cls(
                hidden_size=12,
                subsampling=nemo,
                num_hidden_layers=3,
                attention=unlimited_attention,
                convolution=biased_convolution,
                feed_forward=gated,
                norm=layernorm,
                relative_buckets=8,
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class SelfAttention(nn.Module):
        """The conformer's self-attention. x: [clips, frames, hidden] → same shape. bias: [heads, frames, frames]."""

        def __init__(self, spec: Conformer) -> None:
            super().__init__()
            attention, width = spec.attention, spec.hidden_size
            self.heads = attention.num_attention_heads
            self.left = attention.context_left
            self.right = attention.context_right
            for letter in "qkvo":
                self.add_module(f"{letter}_proj", nn.Linear(width, width, bias=attention.bias))
            if attention.relative_keys:
                self.r_proj = nn.Linear(width, width, bias=False)
                self.q_scale = vector(torch.zeros(width // attention.num_attention_heads))

        def _distance_sinusoids(self, frames: int, width: int, reference_tensor: Tensor) -> Tensor:
            """Computes sinusoids of the distance between each query and key, [frames, frames, hidden]."""
            positions = torch.arange(frames, device=reference_tensor.device)
            scales = torch.exp(
                torch.arange(width // 2, device=reference_tensor.device) * (-math.log(1e4) / max(width // 2 - 1, 1))
            )
            angles = (positions[:, None] - positions[None, :])[..., None] * scales
            return torch.cat([angles.sin(), angles.cos()], -1).to(reference_tensor.dtype)

        def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
            q, k, v = (
                self.get_submodule(f"{letter}_proj")(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for letter in "qkv"
            )
            frames, width = x.shape[1:]
            if hasattr(self, "r_proj"):
                q = q * nn.functional.softplus(self.q_scale.weight) / math.log(2)
                distance_keys = self.r_proj(self._distance_sinusoids(frames, width, x)).unflatten(-1, (self.heads, -1))
                scores = q @ k.transpose(-1, -2) + torch.einsum("bhqd,qkhd->bhqk", q, distance_keys)
            else:
                scores = q @ k.transpose(-1, -2)
            scores = scores * q.shape[-1] ** -0.5
            scores = scores if bias is None else scores + bias
            if self.left is not None:
                positions = torch.arange(frames, device=x.device)
                distance = positions[:, None] - positions[None, :]
                scores = scores.masked_fill((distance >= self.left) | (distance < -self.right), float("-inf"))
            attention_output = torch.softmax(scores.float(), -1).to(v.dtype) @ v
            return self.get_submodule("o_proj")(attention_output.transpose(1, 2).flatten(2))

    class Layer(nn.Module):
        def __init__(self, spec: Conformer) -> None:
            super().__init__()
            context = ModelProperties(spec.hidden_size, causal=False)
            self.mlp_1, self.mlp_2 = spec.feed_forward.reference(context), spec.feed_forward.reference(context)
            self.self_attn, self.convolution = SelfAttention(spec), spec.convolution.reference(context)
            for name in ("mlp_1", "self_attn", "convolution", "mlp_2"):
                self.add_module(f"{name}_pre_norm", spec.norm.reference(context))
                if spec.norm_placement == "sandwich" and name != "convolution":
                    self.add_module(f"{name}_post_norm", spec.norm.reference(context))
            self.norm = spec.norm.reference(context)

        def _normalize_output(self, name: str, y: Tensor) -> Tensor:
            return getattr(self, f"{name}_post_norm")(y) if hasattr(self, f"{name}_post_norm") else y

        def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
            x = x + 0.5 * self._normalize_output(
                "mlp_1", self.mlp_1(self.get_submodule("mlp_1_pre_norm")(x), ForwardPass())
            )
            x = x + self._normalize_output(
                "self_attn", self.self_attn(self.get_submodule("self_attn_pre_norm")(x), bias)
            )
            x = x + self.convolution(self.get_submodule("convolution_pre_norm")(x))
            x = x + 0.5 * self._normalize_output(
                "mlp_2", self.mlp_2(self.get_submodule("mlp_2_pre_norm")(x), ForwardPass())
            )
            return self.norm(x)

    class Buffers(nn.Module):
        def __init__(self, layer_count: int) -> None:
            super().__init__()
            self.register_buffer("bounds", torch.full((layer_count,), float("inf")))

    class ConformerReference(nn.Module):
        """The conformer. frames: [clips, frames, num_mel_bins] → [clips, fewer frames, output_size].

        Clipping bounds are infinite here. Gemma's classes also cap the scores.
        """

        def __init__(self, spec: Conformer) -> None:
            super().__init__()
            self.subsampling = spec.subsampling.reference(ModelProperties(spec.hidden_size, causal=False))
            self.buckets = spec.relative_buckets
            if spec.relative_buckets is not None:
                self.relative_bias = nn.Embedding(spec.relative_buckets, spec.attention.num_attention_heads)
            self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.num_hidden_layers))
            if spec.clamps:
                self.clamps = Buffers(spec.clamps * spec.num_hidden_layers)
            if spec.output_size is not None:
                self.output_proj = nn.Linear(spec.hidden_size, spec.output_size)

        def _distance_bias(self, frames: int, reference_tensor: Tensor) -> Tensor | None:
            """Computes the bias per distance, [heads, frames, frames], with half of the table for earlier keys."""
            if self.buckets is None:
                return None
            positions, half_table = torch.arange(frames, device=reference_tensor.device), self.buckets // 2
            offset = (positions[None, :] - positions[:, None]).clamp(-half_table, max(self.buckets - half_table - 1, 0))
            table: Tensor = self.relative_bias(offset + half_table)
            return table.permute(2, 0, 1)

        def forward(self, frames: Tensor) -> Tensor:
            x: Tensor = self.subsampling(frames)
            bias = self._distance_bias(x.shape[1], x)
            for layer in self.layers:
                x = layer(x, bias)
            return self.output_proj(x) if hasattr(self, "output_proj") else x

    return ConformerReference
