"""Conformers: audio encoders with attention and a convolution between two half-weighted networks per layer.

Gulati 2020 (arXiv:2005.08100).

Gemma's is the Universal Speech Model's (Zhang 2023, arXiv:2303.01037): attention windows in chunks, and scores against
projected sinusoids of the distances. Phi-4-multimodal's has a table of distances shared by all layers, biases
everywhere and a gated network, and cuts long audio into segments. transformers:
models/gemma3n, models/gemma4, models/phi4_multimodal.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ... import ops
from ...algebra import Number, exact_div
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import EmbeddingRows, RowsPaddedAboveMinimum, StridedConvolutionRows
from ...workload.rows import NO_ROWS
from ..base import Flag, Heads, InnerWidth, Layers, ModelProperties, Part, Positions
from ..conformer_convolution import ConformerConvolution
from ..inputs import AudioInput
from ..mixers.grouped_query import record_queries_keys_values
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState, project_to_heads, vector_module
from .base import TowerPart, check_head_width
from .subsampling import Subsampling

if TYPE_CHECKING:
    from torch import Tensor, nn


class ConformerAttention(Part):
    """Conformer attention within a window of frames, or over all frames if `context_left` is not set.

    num_attention_heads: the number of heads.
    bias: whether the four projections have a bias, false by default.
    chunk_size: the number of queries that are computed at once with the keys of their windows; none without a window.
    context_left: the number of positions up to the query's own, included; by default there is no window.
    context_right: the number of positions after it, 0 by default.
    relative_keys: whether the sinusoid of each distance in the window is projected to a key and each query dimension
        has a learned scale; false by default.
    """

    num_attention_heads: Heads
    bias: Flag = False
    chunk_size: Positions | None = None
    context_left: Positions | None = None
    context_right: int = Field(default=0, ge=0, le=2**40, strict=True)
    relative_keys: Flag = False

    def check_fields(self) -> None:
        if (self.chunk_size is None) != (self.context_left is None):
            missing_field = "chunk_size" if self.chunk_size is None else "context_left"
            raise ValueError(f"{missing_field}: missing; a window has both chunk_size and context_left")
        if self.context_left is None and (self.relative_keys or self.context_right):
            raise ValueError("context_left: missing; relative_keys and context_right require a window")

    def flow(self, recorder: Flow, x: Value, bias: Value | None, segment: Number = None) -> Value:
        """Records the projections, scores and weighted sums of attention.

        bias: a value per head and distance that is added to the scores. segment: the positions that are read at once.
        """
        head_dim = Axis("head_dim", exact_div(x.width, self.num_attention_heads))
        head_axes = (Axis("heads", self.num_attention_heads), head_dim)
        q, k, v = record_queries_keys_values(recorder, x, *head_axes, bias=self.bias)
        window_options: dict[str, Any] = (
            {} if segment is None else {"core": ops.ConformerAttentionCore, "chunk": segment}
        )
        if self.context_left is not None:
            context_tokens = self.context_left - 1 + self.context_right
            window_options = {
                "core": ops.ConformerAttentionCore,
                "chunk": self.chunk_size,
                "context_keys": context_tokens,
            }
        if self.relative_keys:
            q = recorder.mul(q, recorder.act(recorder.vector("q_scale", head_dim), "softplus"))
            distances = Value(EmbeddingRows(name="distances", row_count=context_tokens + 1), x.axes, is_constant=True)
            bias, window_options["distance_count"] = (
                recorder.linear("r_proj", distances, *head_axes),
                context_tokens + 1,
            )
        attn_output = recorder.attention("", q, k, v, causal=False, masked=False, bias=bias, **window_options)
        return recorder.linear("o_proj", attn_output, *x.axes, bias=self.bias)


class Conformer(TowerPart):
    """A conformer encoder: spectrum frames are subsampled to hidden_size, pass the layers, and leave as output_size.

    hidden_size: the width.
    subsampling: the convolutions that reduce the number of frames.
    num_hidden_layers: the number of layers.
    attention, convolution, feed_forward: the parts of a layer.
    norm: the norm before each part of a layer and after the layer.
    norm_placement: `pre` by default; `sandwich` adds a norm after attention and after the feed-forward networks.
    relative_buckets: the number of rows of a table of distances, with a value per head, that every layer adds to its
        scores; none by default.
    segment: the most frames that the layers read at once: more are cut into segments, the last of which is padded; by
        default there is no limit.
    reduction: the number of frames of which one is left after the layers, 1 by default.
    output_size: the output width of a final projection; none by default.
    clamps: the number of clipping bounds per layer, stored as buffers (Gemma 4); 0 by default.
    audio: how the processor cuts audio into frames; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "Gulati et al. 2020, §2"

    type: Literal["conformer"] = "conformer"
    hidden_size: InnerWidth
    subsampling: Subsampling
    num_hidden_layers: Layers
    attention: ConformerAttention
    convolution: ConformerConvolution
    feed_forward: FeedForward
    norm: Norm
    norm_placement: Literal["pre", "sandwich"] = "pre"
    relative_buckets: Positions | None = None
    segment: Positions | None = None
    reduction: InnerWidth = 1
    output_size: InnerWidth | None = None
    clamps: int = Field(default=0, ge=0, le=1000, strict=True)
    audio: AudioInput | None = None

    def check_fields(self) -> None:
        check_head_width(self.hidden_size, self.attention.num_attention_heads)
        if self.segment is not None and self.attention.context_left is not None:
            raise ValueError("segment: requires attention to all positions; expected no context_left")
        if self.relative_buckets is not None and self.attention.relative_keys:
            raise ValueError("relative_buckets: another form of relative_keys; expected one of them")
        if self.attention.relative_keys and self.hidden_size % 2:
            raise ValueError(
                f"hidden_size: {self.hidden_size} has no two halves for sines and cosines; expected an even number"
            )

    @property
    def output_width(self) -> int:
        return self.hidden_size if self.output_size is None else self.output_size

    def input_value(self) -> Value:
        return self.subsampling.input_value()

    def flow(self, recorder: Flow, x: Value) -> Value:
        x = recorder.part("subsampling", self.subsampling, x, output_shape=(Axis("hidden", self.hidden_size),))
        layer_count = self.num_hidden_layers
        heads = Axis("heads", self.attention.num_attention_heads)
        bias = None
        frame_rows = x.rows
        if self.segment is not None:
            x = x.view(
                *x.axes,
                new_rows=RowsPaddedAboveMinimum(
                    source_rows=frame_rows, block_rows=self.segment, minimum_rows=self.segment
                ),
            )
        if self.relative_buckets is not None:
            bias, _ = recorder.table(
                "relative_bias", Axis("buckets", self.relative_buckets), heads, output_rows=NO_ROWS
            )
        indices = range(layer_count) if isinstance(layer_count, int) else None
        x = recorder.layers(x, lambda v: self._record_layer(recorder, v, bias), layer_count, indices, kind="layer")
        if self.segment is not None:
            x = x.view(*x.axes, new_rows=frame_rows)
        x = x.view(*x.axes, new_rows=StridedConvolutionRows(source_rows=frame_rows, stride=self.reduction))
        if self.clamps:
            recorder.buffer("clamps", Axis("layers", layer_count), Axis("bounds", self.clamps))
        if self.output_size is not None:
            x = recorder.linear("output_proj", x, Axis("hidden", self.output_size), bias=True)
        return x

    def _record_layer(self, recorder: Flow, x: Value, bias: Value | None) -> Value:
        """Records a conformer layer: half-step network, attention, convolution, half-step network, norm."""
        x = self._add_half_network_output(recorder, "mlp_1", x)
        residual_branch = recorder.part("self_attn_pre_norm", self.norm, x)
        with recorder.scope("self_attn", kind="attention"):
            residual_branch = self.attention.flow(recorder, residual_branch, bias, self.segment)
        x = recorder.add(x, self._normalize_output(recorder, "self_attn", residual_branch))
        residual_branch = recorder.part("convolution_pre_norm", self.norm, x)
        with recorder.scope("convolution", kind="convolution"):
            residual_branch = self.convolution.flow(recorder, residual_branch)
        x = self._add_half_network_output(recorder, "mlp_2", recorder.add(x, residual_branch))
        return recorder.part("norm", self.norm, x)

    def _add_half_network_output(self, recorder: Flow, network_name: str, x: Value) -> Value:
        """Records the computation of x plus half of the output of the named feed-forward network."""
        network_output = recorder.part(
            network_name, self.feed_forward, recorder.part(f"{network_name}_pre_norm", self.norm, x)
        )
        return recorder.add(x, recorder.scale(self._normalize_output(recorder, network_name, network_output), 0.5))

    def _normalize_output(self, recorder: Flow, sublayer_name: str, sublayer_output: Value) -> Value:
        if self.norm_placement == "sandwich":
            return recorder.part(f"{sublayer_name}_post_norm", self.norm, sublayer_output)
        return sublayer_output

    def describe(self, hidden_size: int) -> str:
        return f"conformer {self.num_hidden_layers} × {self.hidden_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        from .subsampling import SpectrumConv

        rmsnorm = Norm(type="rmsnorm")
        layernorm = Norm(type="layernorm")
        unbiased_layernorm = Norm(type="layernorm", bias=False)
        two_layer_subsampling = Subsampling(
            num_mel_bins=12, convolutions=(SpectrumConv(channels=6), SpectrumConv(channels=4)), norm=unbiased_layernorm
        )
        separable_conv = SpectrumConv(channels=4, separable=True, bias=True)
        convolutions = (SpectrumConv(channels=4, bias=True), separable_conv, separable_conv)
        nemo_subsampling = Subsampling(num_mel_bins=9, convolutions=convolutions, bias=True, standardize=True)
        ungated_network = FeedForward(intermediate_size=40, hidden_act="silu")
        gated_network = FeedForward(
            intermediate_size=14, hidden_act="silu", gated=True, gate_bias=True, up_bias=True, down_bias=True
        )
        windowed_attention = ConformerAttention(
            num_attention_heads=2, relative_keys=True, chunk_size=3, context_left=4, context_right=1
        )
        unlimited_attention = ConformerAttention(num_attention_heads=3, bias=True)
        light_convolution = ConformerConvolution(kernel_size=3, norm=rmsnorm)
        biased_convolution = ConformerConvolution(
            kernel_size=3, gate_act="silu", gate_bias=True, bias=True, multiplier=2, separable=True
        )
        return [
            cls(
                hidden_size=10,
                subsampling=two_layer_subsampling,
                num_hidden_layers=2,
                attention=windowed_attention,
                convolution=light_convolution,
                feed_forward=ungated_network,
                norm=rmsnorm,
                norm_placement="sandwich",
                output_size=14,
                clamps=40,
            ),
            cls(
                hidden_size=12,
                subsampling=nemo_subsampling,
                num_hidden_layers=3,
                attention=unlimited_attention,
                convolution=biased_convolution,
                feed_forward=gated_network,
                norm=layernorm,
                relative_buckets=8,
                segment=5,
                reduction=2,
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class ConformerSelfAttention(nn.Module):
        """Computes self-attention. x: [clips, frames, hidden] → same shape. bias: [heads, frames, frames]."""

        def __init__(self, spec: Conformer) -> None:
            super().__init__()
            attention, hidden_size = spec.attention, spec.hidden_size
            self.heads = attention.num_attention_heads
            self.chunk_size = attention.chunk_size or 0
            self.left, self.right = attention.context_left or 0, attention.context_right
            for projection_letter in "qkvo":
                self.add_module(f"{projection_letter}_proj", nn.Linear(hidden_size, hidden_size, bias=attention.bias))
            if attention.relative_keys:
                self.r_proj = nn.Linear(hidden_size, hidden_size, bias=False)
                self.q_scale = vector_module(torch.zeros(hidden_size // attention.num_attention_heads))

        def _distance_keys(self, x: Tensor) -> Tensor:
            """Projects the sinusoids of the distances in a window, the largest first: [heads, head_dim, distances]."""
            half_width = x.shape[-1] // 2
            distances = torch.arange(self.left - 1, -self.right - 1, -1, device=x.device)
            frequencies = torch.exp(
                torch.arange(half_width, device=x.device) * (-math.log(1e4) / max(half_width - 1, 1))
            )
            angles = distances[:, None] * frequencies
            sinusoids = torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype)
            return self.r_proj(sinusoids).unflatten(-1, (self.heads, -1)).permute(1, 2, 0)

        def _attention_in_chunks(self, q: Tensor, k: Tensor, v: Tensor, distance_keys: Tensor | None) -> Tensor:
            """Computes attention of chunks of queries to windows of keys. q, k, v: [clips, heads, frames, head_dim]."""
            frame_count, chunk_size = q.shape[2], self.chunk_size
            key_count = chunk_size + self.left - 1 + self.right
            padded_queries = nn.functional.pad(q, (0, 0, 0, -frame_count % chunk_size))
            q = padded_queries.unflatten(2, (-1, chunk_size))
            padding_widths = (0, 0, self.left - 1, self.right + chunk_size - 1)
            k, v = (nn.functional.pad(x, padding_widths).unfold(2, key_count, chunk_size) for x in (k, v))
            scores = q @ k
            query_indices = torch.arange(chunk_size, device=q.device)
            key_indices = torch.arange(key_count, device=q.device)
            key_distances = key_indices - query_indices[:, None]
            if distance_keys is not None:
                distance_scores = (padded_queries @ distance_keys).unflatten(2, (-1, chunk_size))
                distance_indices = key_distances.clamp(0, distance_keys.shape[-1] - 1).expand(*scores.shape)
                scores = scores + distance_scores.gather(-1, distance_indices)
            scores = scores * q.shape[-1] ** -0.5
            key_positions = (
                torch.arange(q.shape[2], device=q.device)[:, None] * chunk_size + key_indices - self.left + 1
            )
            is_outside_window = (key_distances < 0) | (key_distances >= self.left + self.right)
            is_padding = (key_positions < 0) | (key_positions >= frame_count)
            scores = scores.masked_fill(is_outside_window | is_padding[:, None], torch.finfo(scores.dtype).min)
            chunk_outputs = torch.softmax(scores.float(), -1).to(v.dtype) @ v.transpose(-1, -2)
            return chunk_outputs.flatten(2, 3)[:, :, :frame_count]

        def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
            q, k, v = (project_to_heads(self, f"{projection_letter}_proj", x) for projection_letter in "qkv")
            distance_keys = None
            if hasattr(self, "r_proj"):
                q = q * nn.functional.softplus(self.q_scale.weight) / math.log(2)
                distance_keys = self._distance_keys(x)
            if self.chunk_size:
                attn_output = self._attention_in_chunks(q, k, v, distance_keys)
            else:
                scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
                scores = scores if bias is None else scores + bias
                attn_output = torch.softmax(scores.float(), -1).to(v.dtype) @ v
            return self.get_submodule("o_proj")(attn_output.transpose(1, 2).flatten(2))

    class ConformerTowerLayer(nn.Module):
        def __init__(self, spec: Conformer) -> None:
            super().__init__()
            model_properties = ModelProperties(spec.hidden_size, is_causal=False)
            self.mlp_1 = spec.feed_forward.reference(model_properties)
            self.mlp_2 = spec.feed_forward.reference(model_properties)
            self.self_attn, self.convolution = (
                ConformerSelfAttention(spec),
                spec.convolution.reference(model_properties),
            )
            for sublayer_name in ("mlp_1", "self_attn", "convolution", "mlp_2"):
                self.add_module(f"{sublayer_name}_pre_norm", spec.norm.reference(model_properties))
                if spec.norm_placement == "sandwich" and sublayer_name != "convolution":
                    self.add_module(f"{sublayer_name}_post_norm", spec.norm.reference(model_properties))
            self.norm = spec.norm.reference(model_properties)

        def _normalize_output(self, sublayer_name: str, sublayer_output: Tensor) -> Tensor:
            if hasattr(self, f"{sublayer_name}_post_norm"):
                return getattr(self, f"{sublayer_name}_post_norm")(sublayer_output)
            return sublayer_output

        def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
            x = x + 0.5 * self._normalize_output(
                "mlp_1", self.mlp_1(self.get_submodule("mlp_1_pre_norm")(x), PassState())
            )
            x = x + self._normalize_output(
                "self_attn", self.self_attn(self.get_submodule("self_attn_pre_norm")(x), bias)
            )
            x = x + self.convolution(self.get_submodule("convolution_pre_norm")(x))
            x = x + 0.5 * self._normalize_output(
                "mlp_2", self.mlp_2(self.get_submodule("mlp_2_pre_norm")(x), PassState())
            )
            return self.norm(x)

    class LayerBuffers(nn.Module):
        def __init__(self, layer_count: int) -> None:
            super().__init__()
            self.register_buffer("bounds", torch.full((layer_count,), float("inf")))

    class ConformerReference(nn.Module):
        """Encodes audio frames. frames: [clips, frames, num_mel_bins] → [clips, fewer frames, output_size].

        Clipping bounds are infinite here. Gemma's classes also cap the scores.
        """

        def __init__(self, spec: Conformer) -> None:
            super().__init__()
            self.subsampling = spec.subsampling.reference(ModelProperties(spec.hidden_size, is_causal=False))
            self.buckets, self.segment, self.reduction = spec.relative_buckets, spec.segment, spec.reduction
            if spec.relative_buckets is not None:
                self.relative_bias = nn.Embedding(spec.relative_buckets, spec.attention.num_attention_heads)
            self.layers = nn.ModuleList(ConformerTowerLayer(spec) for _ in range(spec.num_hidden_layers))
            if spec.clamps:
                self.clamps = LayerBuffers(spec.clamps * spec.num_hidden_layers)
            if spec.output_size is not None:
                self.output_proj = nn.Linear(spec.hidden_size, spec.output_size)

        def _distance_bias(self, frame_count: int, reference_tensor: Tensor) -> Tensor | None:
            """Computes the distance bias [heads, frames, frames]; half of the table is for earlier keys."""
            if self.buckets is None:
                return None
            frame_indices, half_bucket_count = (
                torch.arange(frame_count, device=reference_tensor.device),
                self.buckets // 2,
            )
            clamped_distance = (frame_indices[None, :] - frame_indices[:, None]).clamp(
                -half_bucket_count, max(self.buckets - half_bucket_count - 1, 0)
            )
            pair_bias: Tensor = self.relative_bias(clamped_distance + half_bucket_count)
            return pair_bias.permute(2, 0, 1)

        def forward(self, frames: Tensor) -> Tensor:
            x: Tensor = self.subsampling(frames)
            clip_count, frame_count = x.shape[:2]
            has_segments = self.segment is not None and frame_count > self.segment
            if self.segment is not None and has_segments:
                x = nn.functional.pad(x, (0, 0, 0, -frame_count % self.segment)).unflatten(1, (-1, self.segment))
                x = x.flatten(0, 1)
            bias = self._distance_bias(x.shape[1], x)
            for layer in self.layers:
                x = layer(x, bias)
            x = x.unflatten(0, (clip_count, -1)).flatten(1, 2)[:, :frame_count] if has_segments else x
            x = x[:, :: self.reduction]
            return self.output_proj(x) if hasattr(self, "output_proj") else x

    return ConformerReference
