"""Embeddings of additional token features, concatenated with the token's embedding and projected.

RoCBERT (Su et al. 2022, ACL, §3.1): the shape and the pronunciation of a Chinese character. transformers:
models/roc_bert (`RoCBertEmbeddings`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field

from ..flow.axis import Axis, JoinedShapes
from ..flow.record import Flow
from ..flow.value import Value
from .base import ModelProperties, Size, StackPart

if TYPE_CHECKING:
    from torch import Tensor, nn


class InputFeatures(StackPart):
    """Embedding tables of additional features, and the projection of all embeddings of a token together.

    vocab_sizes: the number of rows of each table.
    embedding_sizes: the width of each table.
    """

    formula_source: ClassVar[str] = "Su et al. 2022, §3.1"

    vocab_sizes: tuple[Size, ...] = Field(max_length=16)
    embedding_sizes: tuple[Size, ...] = Field(max_length=16)

    def check_fields(self) -> None:
        if len(self.embedding_sizes) != len(self.vocab_sizes):
            raise ValueError(f"embedding_sizes: expected {len(self.vocab_sizes)}, one for each table")

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the projection of the concatenated embeddings. x: the token embeddings."""
        embeddings = [x]
        for table_index, (vocab_size, table_width) in enumerate(
            zip(self.vocab_sizes, self.embedding_sizes, strict=True)
        ):
            feature_name = f"feature{table_index}"
            feature_vector, _ = recorder.table(
                f"embed_{table_index}",
                Axis("types", vocab_size),
                Axis(feature_name, table_width),
                output_rows=x.rows,
                kind=self.kind,
            )
            embeddings.append(feature_vector)
        joined_embeddings = (
            x
            if len(embeddings) == 1
            else recorder.cat(*embeddings, axes=(JoinedShapes(tuple(vector.axes for vector in embeddings)),))
        )
        recorder.hold(x=joined_embeddings)
        return recorder.linear("proj", joined_embeddings, *x.axes, bias=True, kind=self.kind)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        """Builds a module of the feature tables and the projection.

        It maps token embeddings [batch, tokens, width] to a tensor of the same shape.
        """
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(vocab_sizes=(7, 3), embedding_sizes=(5, 6)), cls(vocab_sizes=(), embedding_sizes=())]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class InputFeaturesReference(nn.Module):
        """Appends the first row of each feature table to every token's embedding, and projects the concatenation."""

        def __init__(self, spec: InputFeatures, hidden_size: int) -> None:
            super().__init__()
            self.tables = len(spec.embedding_sizes)
            for table_index, (vocab_size, table_width) in enumerate(
                zip(spec.vocab_sizes, spec.embedding_sizes, strict=True)
            ):
                self.add_module(f"embed_{table_index}", nn.Embedding(vocab_size, table_width))
            self.proj = nn.Linear(hidden_size + sum(spec.embedding_sizes), hidden_size)

        def forward(self, x: Tensor) -> Tensor:
            token_ids = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
            feature_rows = [self.get_submodule(f"embed_{table_index}")(token_ids) for table_index in range(self.tables)]
            return self.proj(torch.cat([x, *feature_rows], -1))

    return InputFeaturesReference
