"""Relative positions in attention: terms added to the scores according to the distance between query and key.

ALiBi (Press 2021, arXiv:2108.12409) adds a penalty, T5 (Raffel 2020, §2.1) a learned bias. Transformer-XL (Dai 2019,
arXiv:1901.02860, §3.3) scores queries against projected encodings of the distance. T5's bias has a table; only
Transformer-XL's term has matrix multiplications.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from .base import (
    TORCH_WITNESS,
    AttentionPosition,
    AttentionProtocol,
    Flag,
    Heads,
    LayerProtocol,
    ModelProperties,
    Part,
    PartWitness,
    Positions,
    StackPart,
    TokenMixer,
)
from .rotation import rotary_angles
from .runtime import PassState, vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn


class AlibiBias(AttentionPosition):
    """ALiBi: a penalty on the scores that is linear in the distance, with a fixed slope per head."""

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    label: ClassVar[str] = "ALiBi"

    type: Literal["alibi"] = "alibi"

    def flow(
        self, recorder: Flow, x: Value, q: Value, keys: Value, have_biases: tuple[bool, bool]
    ) -> tuple[Value, Value | None]:
        return q, recorder.alibi(q, keys)


class TransformerXLScores(AttentionPosition):
    """Transformer-XL's relative positions: scores are (q + u)·k + (q + v)·r.

    r is a learned projection of the distance's sinusoid; u and v are one vector per head. Gopher and Chinchilla use it.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    allowed_stacks: ClassVar[tuple[str, ...]] = ("decoder",)
    label: ClassVar[str] = "Transformer-XL relative"

    type: Literal["transformer_xl"] = "transformer_xl"

    def check_attention(self, attention: AttentionProtocol) -> None:
        if attention.v_head_dim is not None:
            raise ValueError(
                "v_head_dim: position.type 'transformer_xl' requires values of the size of keys; expected none"
            )
        if attention.sliding_window is not None or attention.attention_chunk_size is not None:
            raise ValueError(
                "position.type: 'transformer_xl' is for full attention; expected no sliding_window and no "
                "attention_chunk_size"
            )

    def flow(
        self, recorder: Flow, x: Value, q: Value, keys: Value, have_biases: tuple[bool, bool]
    ) -> tuple[Value, Value | None]:
        """Records the scores that depend on positions: each query with the projected embedding of every distance."""
        from ..workload.derived_rows import DistanceRows

        heads, head_dim = q.axes
        assert isinstance(heads, Axis)
        with recorder.scope("relative", source="Dai et al. 2019, §3.3"):
            distance_encoding = recorder.sinusoids(q, DistanceRows(source_rows=x.rows), *x.axes)
            recorder.hold(q=q, encoded=distance_encoding)
            keys_by_distance = recorder.linear("r_proj", distance_encoding, heads, head_dim)
            content_bias = recorder.vector("content_bias", heads, head_dim, heads=heads)
            position_bias = recorder.vector("position_bias", heads, head_dim, heads=heads)
            distance_scores = recorder.scores("core", recorder.add(q, position_bias), keys_by_distance)
            distances = recorder.distances(q, keys, is_clamped=True, is_shifted=False)
            recorder.hold(by_distance=distance_scores, distance=distances)
            content_query = recorder.add(q, content_bias)
            return content_query, recorder.scale(recorder.at_distance(distance_scores, distances), head_dim.size**-0.5)

    def reference(self, model_properties: ModelProperties, heads: int, head_dim: int) -> nn.Module:
        return _reference_classes()["transformer_xl"](model_properties.hidden_size, heads, head_dim)


class DistanceBuckets(Part):
    """The buckets into which T5 sorts the distances between a query and a key.

    Half of the buckets are for each direction. Small distances have a bucket each; larger ones share the rest.

    relative_attention_num_buckets: the number of buckets, 32 by default.
    relative_attention_max_distance: the distance from which all share the last bucket, 128 by default.
    bias_in_sdpa: whether scaled_dot_product_attention takes the bias as its mask, as the classes of T5, mT5 and UMT5
        run by default; false by default, for classes that run eager attention.
    """

    relative_attention_num_buckets: Positions = 32
    relative_attention_max_distance: Positions = 128
    bias_in_sdpa: Flag = False

    def check_fields(self) -> None:
        bucket_count, max_distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if bucket_count < 4:
            raise ValueError(
                f"relative_attention_num_buckets: {bucket_count} are too few for near and far in both directions; "
                "expected at least 4"
            )
        if max_distance <= bucket_count // 2:
            range_text = (
                f"the {bucket_count // 2} near distances that have one each of "
                f"relative_attention_num_buckets {bucket_count}"
            )
            raise ValueError(f"relative_attention_max_distance: {max_distance} is among {range_text}; expected more")


class LayerBias(DistanceBuckets, AttentionPosition):
    """T5's relative bias with a separate table in each layer (UMT5)."""

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    label: ClassVar[str] = "relative bias"

    type: Literal["relative_bias"] = "relative_bias"

    def flow(
        self, recorder: Flow, x: Value, q: Value, keys: Value, have_biases: tuple[bool, bool]
    ) -> tuple[Value, Value | None]:
        from ..workload.derived_rows import EmbeddingRows

        bucket_axis = Axis("buckets", self.relative_attention_num_buckets)
        formula_source = "Chung et al. 2023 (UniMax), §4"
        table_rows = EmbeddingRows(row_count=bucket_axis.size)
        bias_table, _ = recorder.table(
            "relative_bias", bucket_axis, q.axes[0], output_rows=table_rows, index_source="all", source=formula_source
        )
        recorder.layer_memo["bias_in_sdpa"] = self.bias_in_sdpa
        return q, recorder.distance_bias(bias_table, q)

    def reference(self, model_properties: ModelProperties, heads: int) -> nn.Module:
        bucket_count, max_distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        return _reference_classes()["relative"](bucket_count, max_distance, heads, model_properties.is_causal)


class RelativeBias(DistanceBuckets, StackPart):
    """T5's relative bias: one learned scalar per bucket and head, shared by all layers of a stack.

    num_attention_heads: the number of heads.
    of_blocks: whether there is a second table, for the distance in blocks to block sums (LongT5); false by default.
    other_buckets: the numbers of buckets of further tables, which plain text does not use: of distances on a page
        (UDOP), of pairs of segments (CPM-Ant); none by default.
    """

    formula_source: ClassVar[str] = "Raffel et al. 2020, §2.1"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "attention"

    num_attention_heads: Heads
    of_blocks: Flag = False
    other_buckets: tuple[Positions, ...] = Field(default=(), max_length=16)

    def check_layers(self, layers: Mapping[str, LayerProtocol]) -> None:
        for layer in layers.values():
            mixer = layer.attention
            supported_score_bias = mixer.supported_score_bias() if isinstance(mixer, TokenMixer) else None
            heads = None if supported_score_bias is None else supported_score_bias.heads
            if heads != self.num_attention_heads:
                raise ValueError(
                    f"relative_bias.num_attention_heads: {self.num_attention_heads} is not the layers' {heads}"
                )
            if supported_score_bias is not None and supported_score_bias.has_block_bias != self.of_blocks:
                raise ValueError(
                    "relative_bias.of_blocks: stands where every layer has a global_block_size, and nowhere else"
                )

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the table of bias scalars, which each layer's attention indexes by the bucket of a distance."""
        from ..workload.derived_rows import EmbeddingRows

        bucket_axis = Axis("buckets", self.relative_attention_num_buckets)
        heads, bucket_rows = Axis("heads", self.num_attention_heads), EmbeddingRows(row_count=bucket_axis.size)
        bias_table, _ = recorder.table("", bucket_axis, heads, output_rows=bucket_rows, index_source="all")
        recorder.layer_memo["bias_in_sdpa"] = self.bias_in_sdpa
        if self.of_blocks:
            recorder.layer_memo["relative_bias_of_blocks"], _ = recorder.table(
                "blocks", bucket_axis, heads, output_rows=bucket_rows, index_source="all"
            )
        for table_index, bucket_count in enumerate(self.other_buckets):
            table_rows = EmbeddingRows(row_count=bucket_count)
            recorder.table(
                f"other_{table_index}",
                Axis("buckets", bucket_count),
                heads,
                output_rows=table_rows,
                index_source="all",
                role="idle",
            )
        return bias_table

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        bucket_count, max_distance = self.relative_attention_num_buckets, self.relative_attention_max_distance

        def bias_table(buckets: int) -> nn.Module:
            heads, is_causal = self.num_attention_heads, model_properties.is_causal
            return _reference_classes()["relative"](buckets, max_distance, heads, is_causal)

        bias = bias_table(bucket_count)
        if self.of_blocks:
            bias.add_module("blocks", bias_table(bucket_count))
        for table_index, table_bucket_count in enumerate(self.other_buckets):
            bias.add_module(f"other_{table_index}", bias_table(table_bucket_count))
        return bias

    @classmethod
    def examples(cls) -> list[Self]:
        small_bias = cls(num_attention_heads=4, relative_attention_num_buckets=8, relative_attention_max_distance=16)
        return [
            small_bias,
            small_bias.model_copy(update={"of_blocks": True}),
            small_bias.model_copy(update={"other_buckets": (8, 6)}),
        ]


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class DistanceBucketsReference(nn.Module):
        """Computes T5's bias on the scores. Query and key positions → [heads, queries, keys]."""

        def __init__(self, bucket_count: int, max_distance: int, heads: int, causal: bool) -> None:
            super().__init__()
            self.causal, self.furthest, self.buckets = causal, max_distance, bucket_count
            self.weight = nn.Parameter(torch.randn(bucket_count, heads) * 0.02)

        def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
            distances, bucket_count = key_positions[None, :] - query_positions[:, None], self.buckets
            bucket_offset: Tensor | int = 0
            if self.causal:
                distances = (-distances).clamp(min=0)
            else:
                bucket_count //= 2
                bucket_offset, distances = (distances > 0).long() * bucket_count, distances.abs()
            exact_bucket_count = bucket_count // 2
            log_scale = (bucket_count - exact_bucket_count) / math.log(self.furthest / exact_bucket_count)
            log_bucket = exact_bucket_count + ((distances.clamp(min=1) / exact_bucket_count).log() * log_scale).long()
            bucket_index = (
                torch.where(distances < exact_bucket_count, distances, log_bucket.clamp(max=bucket_count - 1))
                + bucket_offset
            )
            return torch.nn.functional.embedding(bucket_index, self.weight).permute(2, 0, 1)

    class DistanceScores(nn.Module):
        """Computes scores per distance. q: [batch, heads, queries, d] → [batch, heads, queries, distances]."""

        def forward(self, r: Tensor, q: Tensor) -> Tensor:
            return q @ r.unflatten(-1, (q.shape[1], -1)).permute(1, 2, 0)

    class TransformerXLReference(nn.Module):
        """Computes Transformer-XL's scores. Queries → (queries for the product with the keys, position scores).

        The position scores, [batch, heads, queries, keys], are added to the scaled scores.
        """

        def __init__(self, hidden_size: int, heads: int, head_dim: int) -> None:
            super().__init__()
            self.hidden_size = hidden_size
            self.r_proj = nn.Linear(hidden_size, heads * head_dim, bias=False)
            self.content_bias, self.position_bias = (
                vector_module(torch.randn(heads, 1, head_dim) * 0.02) for _ in range(2)
            )
            self.core = DistanceScores()

        def forward(self, q: Tensor, pass_state: PassState, total_token_count: int) -> tuple[Tensor, Tensor]:
            angles = pass_state.compute_once(
                ("distances", total_token_count),
                lambda: rotary_angles(pass_state.positions(0, total_token_count, q.device), self.hidden_size, 10000.0),
            )
            distance_encoding = torch.cat([angles.sin(), angles.cos()], -1)[:, : self.hidden_size].to(q.dtype)
            distance_scores = self.core(self.r_proj(distance_encoding), q + self.position_bias.weight)
            query_positions = pass_state.positions(total_token_count - q.shape[-2], total_token_count, q.device)
            key_positions = pass_state.positions(0, total_token_count, q.device)
            distances = (
                (query_positions[:, None] - key_positions[None, :])
                .clamp(min=0)
                .expand(*q.shape[:-1], total_token_count)
            )
            return q + self.content_bias.weight, distance_scores.gather(-1, distances) * q.shape[-1] ** -0.5

    return {"relative": DistanceBucketsReference, "transformer_xl": TransformerXLReference}


def alibi_bias(heads: int, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """ALiBi's bias, −slope · distance, [heads, queries, keys]; the slopes are 2^(−8i/heads)."""
    import torch

    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=key_positions.device) / heads)
    return -slopes[:, None, None] * (query_positions[:, None] - key_positions[None, :]).abs()
