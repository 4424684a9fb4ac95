"""Embeddings of the n-grams that end at a token, averaged with the token's embedding (LongCat-Flash-Lite).

An n-gram of tokens is hashed to a row of a table. Each table has its own number of rows and a projection to the model's
width (Meituan 2026, arXiv:2601.21204). mlx-lm: models/longcat_flash_ngram (`NgramEmbedding`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from .base import ModelProperties, Size, StackPart

if TYPE_CHECKING:
    from torch import Tensor, nn


class NgramEmbedding(StackPart):
    """N-gram embedding tables, each with a projection to the width of token embeddings.

    vocab_sizes: the number of rows of each table.
    embedding_size: the width of each table.
    """

    formula_source: ClassVar[str] = "Meituan 2026 (arXiv:2601.21204)"

    vocab_sizes: tuple[Size, ...] = Field(min_length=1, max_length=64)
    embedding_size: Size

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the mean of token embeddings and projected n-gram embeddings. x: the token embeddings."""
        embedding_sum = x
        for table_index, row_count in enumerate(self.vocab_sizes):
            ngram_axis = Axis(f"ngram{table_index}", self.embedding_size)
            ngram_vector, _ = recorder.table(
                f"embedders_{table_index}",
                Axis("ngrams", row_count),
                ngram_axis,
                output_rows=x.rows,
                rows_read=1,
                kind=self.kind,
            )
            embedding_sum = recorder.add(
                embedding_sum, recorder.linear(f"post_projs_{table_index}", ngram_vector, *x.axes, kind=self.kind)
            )
        return embedding_sum

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        """Builds the n-gram tables and projections: token embeddings [batch, tokens, width] → same shape."""
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(vocab_sizes=(7, 9, 11), embedding_size=5), cls(vocab_sizes=(13,), embedding_size=6)]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class NgramEmbeddingReference(nn.Module):
        """Averages tokens' embeddings with a projected row of each n-gram table.

        Row 0 stands for every n-gram's row, since the hash changes neither shapes nor costs.
        """

        def __init__(self, spec: NgramEmbedding, hidden_size: int) -> None:
            super().__init__()
            self.tables = len(spec.vocab_sizes)
            for table_index, row_count in enumerate(spec.vocab_sizes):
                self.add_module(f"embedders_{table_index}", nn.Embedding(row_count, spec.embedding_size))
                self.add_module(f"post_projs_{table_index}", nn.Linear(spec.embedding_size, hidden_size, bias=False))

        def forward(self, x: Tensor) -> Tensor:
            ngram_ids = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
            projected_ngrams = [
                self.get_submodule(f"post_projs_{table_index}")(
                    self.get_submodule(f"embedders_{table_index}")(ngram_ids)
                )
                for table_index in range(self.tables)
            ]
            return torch.stack([x, *projected_ngrams]).mean(0)

    return NgramEmbeddingReference
