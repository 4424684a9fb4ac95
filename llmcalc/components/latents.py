"""Learned latent vectors that attend to all tokens and run through the layers in the tokens' place (Perceiver).

Jaegle et al. 2021 (Perceiver IO, arXiv:2107.14795). transformers: models/perceiver (`PerceiverForMaskedLM`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import MultipliedRows
from ..workload.rows import SEQUENCES
from .base import InnerWidth, ModelProperties, StackPosition
from .reading import Reading
from .residual_streams import ResidualStreams
from .runtime import PassState, vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_LATENTS = 2**20
"""The largest number of latents or of output queries."""


class LatentStreams(ResidualStreams):
    """Learned latent vectors that attend to the embeddings, and learned queries that attend to the processed latents.

    num_latents: the number of latents of a sequence.
    latent_size: the width of a latent and of the layers.
    reads: the cross-attention of the latents to the embeddings.
    num_queries: the number of output queries, and so of positions with an output, whatever the sequence's length.
    query_size: the width of a query and of the output, which is that of the embeddings.
    writes: the cross-attention of the queries to the latents.
    """

    formula_source: ClassVar[str] = "Jaegle et al. 2021, §3"

    type: Literal["latents"] = "latents"
    num_latents: int = Field(ge=1, le=MAX_LATENTS, strict=True)
    latent_size: InnerWidth
    reads: Reading
    num_queries: int = Field(ge=1, le=MAX_LATENTS, strict=True)
    query_size: InnerWidth
    writes: Reading

    def embedding_width(self) -> int:
        return self.query_size

    def check_stack_position(self, stack_position: StackPosition) -> None:
        if stack_position.stack_name != "encoder":
            raise ValueError(f"{stack_position.error_path}: latents read later tokens; expected an encoder")
        if self.latent_size != stack_position.width:
            raise ValueError(
                f"{stack_position.error_path}.latent_size: {self.latent_size}; expected the width of the layers, "
                f"{stack_position.width}"
            )
        self.reads.check_width(f"{stack_position.error_path}.reads", stack_position.width)
        self.writes.check_width(f"{stack_position.error_path}.writes", self.query_size)

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        latents = self._record_learned_vectors(recorder, "latents", self.num_latents, Axis("hidden", self.latent_size))
        return recorder.part("reads", self.reads, latents, memory=x)

    def record_stream_merge(self, recorder: Flow, x: Value) -> Value:
        queries = self._record_learned_vectors(
            recorder, "queries", self.num_queries, Axis("embedding", self.query_size)
        )
        return recorder.part("writes", self.writes, queries, memory=x)

    def _record_learned_vectors(self, recorder: Flow, param_name: str, row_count: int, vector_axis: Axis) -> Value:
        """Records a table of learned vectors, and returns these vectors repeated for every sequence."""
        learned_vectors = recorder.vector(
            param_name, Axis(param_name, row_count), vector_axis, row_count=row_count, kind=self.kind
        )
        return learned_vectors.view(
            vector_axis, new_rows=MultipliedRows(param_name, source_rows=SEQUENCES, rows_per_source=row_count)
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class LatentStreamsReference(nn.Module):
        """Attends from latents to the embeddings, and from output queries to the latents after the layers.

        [batch, tokens, query_size] → [batch, num_latents, latent_size] → [batch, num_queries, query_size].
        """

        def __init__(self, spec: LatentStreams) -> None:
            super().__init__()
            latent_size = spec.latent_size
            self.latents = vector_module(torch.randn(spec.num_latents, latent_size) * 0.02)
            self.reads = spec.reads.reference(latent_size, spec.query_size)
            self.queries = vector_module(torch.randn(spec.num_queries, spec.query_size) * 0.02)
            self.writes = spec.writes.reference(spec.query_size, latent_size)

        def split_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            latents: Tensor = self.reads(self.latents.weight.expand(len(x), -1, -1), x)
            return latents

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            latent_vectors: Tensor = self.writes(self.queries.weight.expand(len(x), -1, -1), x)
            return latent_vectors

    return LatentStreamsReference
