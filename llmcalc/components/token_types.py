"""Token type embeddings: segments (BERT, Devlin 2019, §3) and tasks (ERNIE 2.0, Sun 2019, arXiv:1907.12412, §4.1).

Further tables: coordinates on a page (LayoutLM: Xu 2019, arXiv:1912.13318), columns and rows (TAPAS: Herzig 2020,
arXiv:2004.02349).

A row of each table is added to every token embedding.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from .base import TORCH_WITNESS, ModelProperties, PartWitness, Positions, StackPart

if TYPE_CHECKING:
    from torch import Tensor, nn


class TokenTypes(StackPart):
    """Embedding tables whose rows are added to the token embeddings, before the norm on the sum.

    type_vocab_size: the number of segments (BERT); none by default.
    task_type_vocab_size: the number of tasks (ERNIE); none by default.
    other_vocab_sizes: the numbers of rows of further tables (LayoutLM, TAPAS); none by default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type_vocab_size: Positions | None = None
    task_type_vocab_size: Positions | None = None
    other_vocab_sizes: tuple[Positions, ...] = Field(default=(), max_length=64)

    def check_fields(self) -> None:
        if self.type_vocab_size is None and self.task_type_vocab_size is None and not self.other_vocab_sizes:
            raise ValueError(
                "type_vocab_size: missing; token_types have a type_vocab_size or a task_type_vocab_size, or are left "
                "out"
            )

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the sum of token embeddings and a row of each type table. x: the token embeddings."""
        other_tables = ((f"embed_other_{i}", vocab_size) for i, vocab_size in enumerate(self.other_vocab_sizes))
        for table_name, type_count in (
            ("embed_types", self.type_vocab_size),
            ("embed_tasks", self.task_type_vocab_size),
            *other_tables,
        ):
            if type_count is not None:
                type_vector, _ = recorder.table(
                    table_name, Axis("types", type_count), *x.axes, of=x.rows, by="types", kind=self.kind
                )
                x = recorder.add(x, type_vector)
        return x

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        """Builds the tables: forward(token embeddings [batch, tokens, width]) → the sum of embeddings."""
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(type_vocab_size=2),
            cls(task_type_vocab_size=3),
            cls(type_vocab_size=4, task_type_vocab_size=5),
            cls(other_vocab_sizes=(7, 3)),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class TokenTypesReference(nn.Module):
        """Adds the first row of each token type table to every token's embedding."""

        def __init__(self, spec: TokenTypes, hidden_size: int) -> None:
            super().__init__()
            if spec.type_vocab_size is not None:
                self.embed_types = nn.Embedding(spec.type_vocab_size, hidden_size)
            if spec.task_type_vocab_size is not None:
                self.embed_tasks = nn.Embedding(spec.task_type_vocab_size, hidden_size)
            for table_index, vocab_size in enumerate(spec.other_vocab_sizes):
                self.add_module(f"embed_other_{table_index}", nn.Embedding(vocab_size, hidden_size))

        def forward(self, x: Tensor) -> Tensor:
            zero_ids = torch.zeros(x.shape[1], dtype=torch.long, device=x.device)
            for type_table in self.children():
                x = x + type_table(zero_ids)
            return x

    return TokenTypesReference
