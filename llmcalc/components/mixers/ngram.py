"""Streams that predict several next tokens in parallel, and the decoder attention over these streams (ProphetNet).

ProphetNet (Qi et al. 2020, arXiv:2001.04063, §3): beside the main stream, which reads the text, n predict streams start
from a learned vector each. Stream i attends to the main stream's tokens up to i before its own and to itself. Scores
have a bias by distance, which a projection of the hidden state gives. transformers: models/prophetnet
(`ProphetNetNgramSelfAttention`, `ProphetNetDecoder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ... import ops
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import MultipliedRows
from ..base import Heads, HeadSizes, LayerProtocol, ModelProperties, Positions, StackPosition, UnscalableError
from ..residual_streams import ResidualStreams
from ..runtime import PassState, softmax_core_class, tensor_cache_class
from .grouped_query import EqualHeadsMixer, record_queries_keys_values

if TYPE_CHECKING:
    from torch import Tensor, nn

SOURCE = "Qi et al. 2020, §3"

MAX_STREAMS = 64
"""The largest number of predict streams."""


def _ngram_field() -> Any:
    return Field(ge=1, le=MAX_STREAMS, strict=True)


class PredictStreams(ResidualStreams):
    """Streams that predict future tokens beside the main token stream; the output head reads only these streams.

    ngram: the number of predict streams.
    """

    formula_source: ClassVar[str] = SOURCE

    type: Literal["predict_streams"] = "predict_streams"
    ngram: int = _ngram_field()

    def check_layers(self, layers: Mapping[str, LayerProtocol]) -> None:
        if any(
            layer.required_stack_fields().get("streams") != {"type": self.type, "ngram": self.ngram}
            for layer in layers.values()
        ):
            raise ValueError(
                "streams: those of type 'predict_streams' stand where every layer has attention of type 'ngram' with "
                "their ngram, and nowhere else"
            )

    def check_stack_position(self, stack_position: StackPosition) -> None:
        if stack_position.stack_name != "decoder":
            raise ValueError(f"{stack_position.error_path}: predict streams are those of a decoder; expected none")

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        return recorder.part("predict_streams", self, x)

    def record_stream_merge(self, recorder: Flow, x: Value) -> Value:
        assert isinstance(x.rows, MultipliedRows)
        return recorder.resized(x, MultipliedRows(source_rows=x.rows.source_rows, rows_per_source=self.ngram))

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the initial rows of the main stream and of the predict streams. x: the token embeddings."""
        stream_rows = MultipliedRows(source_rows=x.rows, rows_per_source=self.ngram)
        stream_vectors, _ = recorder.table(
            "", Axis("streams", self.ngram), *x.axes, output_rows=stream_rows, index_source="types"
        )
        return recorder.cat(
            x, stream_vectors, axes=x.axes, rows=MultipliedRows(source_rows=x.rows, rows_per_source=self.ngram + 1)
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["streams"](self, model_properties.hidden_size)


class NgramAttention(EqualHeadsMixer):
    """Multi-head attention of a main stream and predict streams. All projections have biases.

    num_attention_heads: the number of heads.
    ngram: the number of predict streams.
    num_buckets: the number of buckets of distances.
    relative_max_distance: the distance from which all share the last bucket.
    """

    formula_source: ClassVar[str] = SOURCE

    type: Literal["ngram"] = "ngram"
    num_attention_heads: Heads
    ngram: int = _ngram_field()
    num_buckets: Positions = 32
    relative_max_distance: Positions = 128

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        raise UnscalableError("attention of predict streams has a table of distances; expected plain attention")

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {"streams": {"type": "predict_streams", "ngram": self.ngram}}

    def flow(self, recorder: Flow, x: Value) -> Value:
        head_sizes = self.head_sizes(x.width)
        heads, head_dim = Axis("heads", head_sizes.heads), Axis("head_dim", head_sizes.head_dim)
        assert isinstance(x.rows, MultipliedRows)
        token_rows, stream_rows = (
            x.rows.source_rows,
            MultipliedRows(source_rows=x.rows.source_rows, rows_per_source=self.ngram),
        )
        q, k, v = record_queries_keys_values(recorder, x, heads, head_dim, bias=True)
        bucket_scores = recorder.linear(
            "relative_proj", x, JoinedShapes(((Axis("buckets", self.num_buckets), heads),)), bias=True
        )
        num_heads = q.axes[0].size  # those of the rank
        recorder.hold(q=q, k=k, v=v, buckets=bucket_scores)
        keys, values = recorder.cache(
            "cache", "full_attention", recorder.resized(k, token_rows), recorder.resized(v, token_rows)
        )
        main_core = ops.AttentionCore(num_heads, head_sizes.head_dim, head_sizes.head_dim, rows=token_rows)
        attn_output = recorder.core(
            "core",
            main_core,
            recorder.resized(q, token_rows),
            keys,
            values,
            bucket_scores,
            axes=(heads, head_dim),
            rows=token_rows,
        )
        predict_core = ops.PredictStreamAttentionCore(
            num_heads, head_sizes.head_dim, head_sizes.head_dim, rows=token_rows, streams=self.ngram
        )
        predict_output = recorder.core(
            "predict_core", predict_core, q, keys, values, k, v, bucket_scores, axes=(heads, head_dim), rows=stream_rows
        )
        joined_streams = recorder.cat(attn_output, predict_output, axes=(heads, head_dim), rows=x.rows)
        recorder.hold(out=joined_streams)
        return recorder.linear("o_proj", joined_streams, *x.axes, bias=True)

    def describe(self, hidden_size: int) -> str:
        return f"MHA {self.num_attention_heads}, {self.ngram} predict streams"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["attention"](self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, ngram=1, num_buckets=8, relative_max_distance=16),
            cls(num_attention_heads=3, ngram=2, num_buckets=6, relative_max_distance=10),
        ]


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class PredictStreamsReference(nn.Module):
        """Adds rows for predict streams: [batch, tokens, hidden] → [batch, (1 + ngram) · tokens, hidden].

        After the layers: [batch, tokens, ngram, hidden], without the axis of a single stream.
        """

        def __init__(self, spec: PredictStreams, hidden_size: int) -> None:
            super().__init__()
            self.ngram = spec.ngram
            self.predict_streams = nn.Embedding(spec.ngram, hidden_size)

        def split_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            stream_vectors = self.predict_streams(torch.arange(self.ngram, device=x.device))
            streams = stream_vectors[:, None].expand(-1, x.shape[1], -1).flatten(0, 1)
            return torch.cat([x, streams.expand(x.shape[0], -1, -1)], 1)

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            streams = x[:, x.shape[1] // (self.ngram + 1) :].unflatten(1, (self.ngram, -1)).transpose(1, 2)
            return streams[:, :, 0] if self.ngram == 1 else streams

    class NgramAttentionReference(nn.Module):
        """Attends within the main stream and predict streams. x: [batch, (1 + ngram) · tokens, hidden] → same shape."""

        def __init__(self, spec: NgramAttention, hidden_size: int) -> None:
            super().__init__()
            self.spec, self.heads = spec, spec.num_attention_heads
            for projection_name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                self.add_module(projection_name, nn.Linear(hidden_size, hidden_size))
            self.relative_proj = nn.Linear(hidden_size, spec.num_buckets * self.heads)
            self.cache = tensor_cache_class()()
            self.core, self.predict_core = softmax_core_class()(), softmax_core_class()()

        def _project_streams(self, projection_name: str, x: Tensor) -> tuple[Tensor, ...]:
            """Returns the projection of each stream as heads, [batch, heads, tokens, size]."""
            projected_x = self.get_submodule(projection_name)(x).unflatten(
                -1, (-1, self.heads) if projection_name[0] == "r" else (self.heads, -1)
            )
            projected_x = projected_x.transpose(-1, -2) if projection_name[0] == "r" else projected_x
            return projected_x.transpose(1, 2).chunk(1 + self.spec.ngram, 2)

        def _distance_bucket(self, distances: Tensor) -> Tensor:
            """Returns the bucket of each distance from a query to an earlier key; larger distances share buckets."""
            exact_distance_count = max(1, self.spec.num_buckets // 2)
            log_bucket = exact_distance_count + (distances.clamp(min=1) / exact_distance_count).log2().long()
            return torch.where(distances < exact_distance_count, distances, log_bucket).clamp(
                0, self.spec.num_buckets - 1
            )

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            (q, *predict_q), (k, *predict_k), (v, *predict_v), (main_scores, *predict_scores) = (
                self._project_streams(projection_name, x)
                for projection_name in ("q_proj", "k_proj", "v_proj", "relative_proj")
            )
            keys, values = self.cache(pass_state, k, v)
            query_count, end_position = q.shape[2], keys.shape[2]
            query_positions = pass_state.positions(end_position - query_count, end_position, x.device)
            key_positions = pass_state.positions(0, end_position, x.device)
            distances = query_positions[:, None] - key_positions
            distance_index = self._distance_bucket(distances.clamp(min=0)).expand(*q.shape[:2], -1, -1)
            stream_outputs = [self.core(q, keys, values, distances >= 0, main_scores.gather(-1, distance_index))]
            is_same_token = torch.eye(query_count, dtype=torch.bool, device=x.device)
            zero_distance_index = torch.zeros(*q.shape[:2], query_count, query_count, dtype=torch.long, device=x.device)
            for stream_index, stream_tensors in enumerate(
                zip(predict_q, predict_k, predict_v, predict_scores, strict=True)
            ):
                stream_q, stream_k, stream_v, stream_scores = stream_tensors
                mask = torch.cat([(distances >= stream_index) | (key_positions == 0), is_same_token], -1)
                bias = stream_scores.gather(-1, torch.cat([distance_index, zero_distance_index], -1))
                joined_keys, joined_values = torch.cat([keys, stream_k], 2), torch.cat([values, stream_v], 2)
                stream_outputs.append(self.predict_core(stream_q, joined_keys, joined_values, mask, bias))
            return self.get_submodule("o_proj")(torch.cat(stream_outputs, 2).transpose(1, 2).flatten(2))

    return {"streams": PredictStreamsReference, "attention": NgramAttentionReference}
