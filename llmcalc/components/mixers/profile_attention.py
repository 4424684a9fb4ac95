"""Attention with a distance bias that each token mixes from learned profiles.

A profile has a bias for each of the last relative_extent distances; a projection of the layer's input gives each head's
weights of the profiles. Keys and values pass a short convolution. transformers: models/inkling (`InklingAttention`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import (
    HeadDim,
    Heads,
    KernelSize,
    KVHeads,
    ModelProperties,
    Positions,
    QueryRank,
    TokenMixer,
    Window,
)
from ..norm import Norm, norm_reference
from ..residual_convolution import record_residual_convolution, residual_convolution_class
from ..runtime import PassState, attention_mask, softmax_core_class, tensor_cache_class, vector_module
from .grouped_query import WindowedMixer, grouped_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class ProfileAttention(WindowedMixer):
    """Grouped-query attention with profile biases as its only positions; projections have no biases.

    num_attention_heads: the number of query heads.
    num_key_value_heads: the number of key and value heads.
    head_dim: the size of a head.
    relative_rank: the number of profiles.
    relative_extent: the number of distances with a bias; farther keys have none.
    conv_kernel_size: the width in tokens of the convolutions of keys and values.
    sliding_window: the number of tokens that each token attends to, itself included; all by default.
    norm: the norm on each query and key head; null for none.
    """

    formula_source: ClassVar[str] = "Inkling 2026"
    position: ClassVar[None] = None

    type: Literal["profile"] = "profile"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    relative_rank: QueryRank
    relative_extent: Positions
    conv_kernel_size: KernelSize
    sliding_window: Window | None = None
    norm: Norm | None = Norm(type="rmsnorm", eps=1e-6)

    def report_label(self) -> str:
        return "full" if self.sliding_window is None else "sliding"

    with_heads = TokenMixer.with_heads  # the numbers of profiles and distances have no rule for another width

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, kv_heads = Axis("heads", self.num_attention_heads), Axis("kv_heads", self.num_key_value_heads)
        head_dim, window = Axis("head_dim", self.head_dim), self.sliding_window
        q = self._record_norm(recorder, "q_norm", recorder.linear("q_proj", x, heads, head_dim))
        keys, values = (
            record_residual_convolution(
                recorder,
                f"{projection_letter}_conv",
                recorder.linear(f"{projection_letter}_proj", x, kv_heads, head_dim),
                self.conv_kernel_size,
            )
            for projection_letter in ("k", "v")
        )
        keys = self._record_norm(recorder, "k_norm", keys)
        keys, values = recorder.cache("cache", self.cache_kind, keys, values, token_limit=window)
        recorder.mask(q, keys, causal=True, window=window)
        bias = self.record_distance_bias(
            recorder, recorder.linear("r_proj", x, heads, Axis("profiles", self.relative_rank)), q, keys
        )
        recorder.hold(q=q, k=keys, v=values, bias=bias)
        keys, values = recorder.repeat(keys, heads), recorder.repeat(values, heads)
        recorder.hold(k=keys, v=values)
        attn_output = recorder.attention("core", q, keys, values, causal=recorder.causal, bias=bias, window=window)
        recorder.hold(out=attn_output)
        return recorder.linear("o_proj", attn_output, *x.axes)

    def _record_norm(self, recorder: Flow, norm_name: str, x: Value) -> Value:
        return x if self.norm is None else recorder.norm(norm_name, x, self.norm, x.axes[1:])

    def record_distance_bias(self, recorder: Flow, profile_weights: Value, q: Value, keys: Value) -> Value:
        """Records the score bias per head, query and key. profile_weights: the weight of each profile per head."""
        from ...workload.derived_rows import EmbeddingRows

        rank_axis, distance_axis = profile_weights.axes[-1], Axis("distances", self.relative_extent)
        distance_profiles, _ = recorder.table(
            "profiles",
            distance_axis,
            rank_axis,
            output_rows=EmbeddingRows(row_count=distance_axis.size),
            index_source="all",
        )
        distance_bias = recorder.scores("profile_core", profile_weights, distance_profiles, is_cross_attention=True)
        return recorder.at_distance(distance_bias, recorder.distances(q, keys, is_clamped=True, is_shifted=False))

    def describe(self, hidden_size: int) -> str:
        return self._attention_heading("GQA", f", {self.relative_rank} profiles")

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return profile_attention_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        default_spec = cls(
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            relative_rank=3,
            relative_extent=7,
            conv_kernel_size=3,
        )
        return [
            default_spec,
            default_spec.model_copy(update={"sliding_window": 5, "relative_extent": 5, "conv_kernel_size": 4}),
            default_spec.model_copy(update={"norm": None}),
        ]


@cache
def profile_attention_class() -> type[nn.Module]:
    """Returns the PyTorch reference class of profile attention."""
    import torch
    from torch import nn

    class DistanceProfileBias(nn.Module):
        """Mixes the shared distance profiles with each token's weights into a bias for every distance.

        profile_weights: [batch, heads, tokens, rank]; profiles: [distances, rank] → [batch, heads, tokens, distances].
        """

        def forward(self, profile_weights: Tensor, distance_profiles: Tensor) -> Tensor:
            return profile_weights @ distance_profiles.t()

    class ProfileAttentionReference(grouped_reference_class()):  # type: ignore[misc]
        """Attention with profile biases and normalized queries and keys. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ProfileAttention, model_properties: ModelProperties) -> None:
            hidden_size, head_dim = model_properties.hidden_size, spec.head_dim
            super().__init__(spec, hidden_size)
            kv_width = spec.num_key_value_heads * head_dim
            self.k_conv, self.v_conv = (residual_convolution_class()(kv_width, spec.conv_kernel_size) for _ in "kv")
            self.q_norm, self.k_norm = (
                nn.Identity() if spec.norm is None else norm_reference(spec.norm, head_dim) for _ in "qk"
            )
            self.r_proj = nn.Linear(hidden_size, spec.num_attention_heads * spec.relative_rank, bias=False)
            self.profiles = vector_module(torch.randn(spec.relative_extent, spec.relative_rank) * 0.02)
            self.profile_core = DistanceProfileBias()
            self.core, self.cache = softmax_core_class()(), tensor_cache_class()(spec.sliding_window)

        def distance_score_bias(
            self, profile_weights: Tensor, pass_state: PassState, end_position: int, key_count: int
        ) -> Tensor:
            """Returns the score bias for the last `key_count` tokens up to `end_position` [batch, heads, tokens, keys].

            profile_weights: each head's weights of the profiles, [batch, heads, tokens, rank].
            """
            spec, device = self.spec, profile_weights.device
            weights_by_distance = self.profile_core(profile_weights, self.profiles.weight)
            query_positions = pass_state.positions(pass_state.past_tokens, end_position, device)
            key_positions = pass_state.positions(end_position - key_count, end_position, device)
            distances = query_positions[:, None] - key_positions
            distance_index = distances.clamp(0, spec.relative_extent - 1).expand(*weights_by_distance.shape[:-1], -1)
            bias: Tensor = weights_by_distance.gather(-1, distance_index)
            return bias.masked_fill(distances >= spec.relative_extent, 0.0)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec = self.spec
            k, v = self.k_conv(self.k_proj(x), pass_state), self.v_conv(self.v_proj(x), pass_state)
            q, k, v = (tensor.unflatten(-1, (-1, spec.head_dim)).transpose(1, 2) for tensor in (self.q_proj(x), k, v))
            q, (k, v) = self.q_norm(q), self.cache(pass_state, self.k_norm(k), v)
            end_position = pass_state.past_tokens + x.shape[1]
            mask = attention_mask(pass_state, x, k, causal=True, window=spec.sliding_window)
            profile_weights = self.r_proj(x).unflatten(-1, (spec.num_attention_heads, -1)).transpose(1, 2)
            bias = self.distance_score_bias(profile_weights, pass_state, end_position, k.shape[2])
            k, v = self._repeat_for_query_heads(k, v)
            return self.o_proj(self.core(q, k, v, mask, bias).transpose(1, 2).flatten(2))

    return ProfileAttentionReference
