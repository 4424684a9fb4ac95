"""Token type embeddings: segments (BERT, Devlin 2019, §3) and tasks (ERNIE 2.0, Sun 2019, arXiv:1907.12412, §4.1).

Further tables: coordinates on a page (LayoutLM: Xu 2019, arXiv:1912.13318), columns and rows (TAPAS: Herzig 2020,
arXiv:2004.02349).

A row of each table is added to every token embedding; of LayoutLMv3's tables of a box the rows side by side.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field

from ..flow.axis import Axis, JoinedShapes
from ..flow.record import Flow
from ..flow.value import Value
from .base import TORCH_WITNESS, InnerWidth, ModelProperties, Part, PartWitness, Positions, StackPart, StackPosition

if TYPE_CHECKING:
    from torch import Tensor, nn


class Boxes(Part):
    """Embedding tables for a word's box on the page: left, top, right, bottom, height and width, concatenated.

    Huang et al. 2022 (arXiv:2204.08387), §2.1; transformers: `LayoutLMv3TextEmbeddings`. Left and right are rows of one
    table, and so are top and bottom.

    num_positions: the number of rows of each of the four tables.
    coordinate_size: the width of the tables of x and of y.
    shape_size: the width of the tables of height and of width.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    num_positions: Positions
    coordinate_size: InnerWidth
    shape_size: InnerWidth

    def flow(self, recorder: Flow, x: Value, kind: str) -> Value:
        """Records the operations of the six table look-ups and returns the box vectors. x: the token embeddings."""
        position_axis = Axis("positions", self.num_positions)
        coordinate, shape = Axis("coordinate", self.coordinate_size), Axis("shape", self.shape_size)
        (left, x_table), (top, y_table), (height, _), (width, _) = (
            recorder.table(f"box_{box_table_name}", position_axis, axis, output_rows=x.rows, kind=kind)
            for box_table_name, axis in (("x", coordinate), ("y", coordinate), ("height", shape), ("width", shape))
        )
        right, bottom = (recorder.look_up(table, x.rows) for table in (x_table, y_table))
        vectors = (left, top, right, bottom, height, width)
        return recorder.cat(*vectors, axes=(JoinedShapes(tuple(vector.axes for vector in vectors)),)).view(*x.axes)


class TokenTypes(StackPart):
    """Embedding tables of token types, added to the token embeddings before the embedding norm.

    type_vocab_size: the number of segments (BERT); none by default.
    task_type_vocab_size: the number of tasks (ERNIE); none by default.
    other_vocab_sizes: the numbers of rows of further tables (LayoutLM, TAPAS); none by default.
    boxes: the tables of a word's box on its page (LayoutLMv3); none by default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type_vocab_size: Positions | None = None
    task_type_vocab_size: Positions | None = None
    other_vocab_sizes: tuple[Positions, ...] = Field(default=(), max_length=64)
    boxes: Boxes | None = None

    def check_fields(self) -> None:
        if not (self.type_vocab_size or self.task_type_vocab_size or self.other_vocab_sizes or self.boxes):
            raise ValueError(
                "type_vocab_size: missing; token_types have a type_vocab_size or a task_type_vocab_size, or are left "
                "out"
            )

    def check_stack_position(self, stack_position: StackPosition) -> None:
        super().check_stack_position(stack_position)
        width, boxes = stack_position.width, self.boxes
        if boxes is not None and 4 * boxes.coordinate_size + 2 * boxes.shape_size != width:
            raise ValueError(
                f"{stack_position.error_path}.boxes: four coordinates of {boxes.coordinate_size} and two sides of "
                f"{boxes.shape_size} are not as wide as the embedding; expected {width} in all"
            )

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the computation of token embeddings plus a row of each token-type table. x: the token embeddings."""
        other_tables = (
            (f"embed_other_{table_index}", vocab_size) for table_index, vocab_size in enumerate(self.other_vocab_sizes)
        )
        for table_name, type_count in (
            ("embed_types", self.type_vocab_size),
            ("embed_tasks", self.task_type_vocab_size),
            *other_tables,
        ):
            if type_count is not None:
                type_vector, _ = recorder.table(
                    table_name,
                    Axis("types", type_count),
                    *x.axes,
                    output_rows=x.rows,
                    index_source="types",
                    kind=self.kind,
                )
                x = recorder.add(x, type_vector)
        return x if self.boxes is None else recorder.add(x, self.boxes.flow(recorder, x, self.kind))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        """Builds the token-type tables: forward(token embeddings [batch, tokens, width]) → the sum of embeddings."""
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(type_vocab_size=2),
            cls(task_type_vocab_size=3),
            cls(type_vocab_size=4, task_type_vocab_size=5),
            cls(other_vocab_sizes=(7, 3)),
            cls(type_vocab_size=2, boxes=Boxes(num_positions=9, coordinate_size=5, shape_size=2)),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class TokenTypesReference(nn.Module):
        """Adds the first row of each token-type table to every token's embedding."""

        def __init__(self, spec: TokenTypes, hidden_size: int) -> None:
            super().__init__()
            if spec.type_vocab_size is not None:
                self.embed_types = nn.Embedding(spec.type_vocab_size, hidden_size)
            if spec.task_type_vocab_size is not None:
                self.embed_tasks = nn.Embedding(spec.task_type_vocab_size, hidden_size)
            for table_index, vocab_size in enumerate(spec.other_vocab_sizes):
                self.add_module(f"embed_other_{table_index}", nn.Embedding(vocab_size, hidden_size))
            self._type_tables = tuple(self.children())
            if spec.boxes is not None:
                position_count, coordinate_size = spec.boxes.num_positions, spec.boxes.coordinate_size
                self.box_x, self.box_y = (nn.Embedding(position_count, coordinate_size) for _ in range(2))
                self.box_height, self.box_width = (
                    nn.Embedding(position_count, spec.boxes.shape_size) for _ in range(2)
                )

        def forward(self, x: Tensor) -> Tensor:
            zero_ids = torch.zeros(x.shape[1], dtype=torch.long, device=x.device)
            for type_table in self._type_tables:
                x = x + type_table(zero_ids)
            if not hasattr(self, "box_x"):
                return x
            word_ids = zero_ids.expand(x.shape[:2])
            left, top, right, bottom, height, width = (
                self.get_submodule(f"box_{box_table_name}")(word_ids)
                for box_table_name in ("x", "y", "x", "y", "height", "width")
            )
            return x + torch.cat([left, top, right, bottom, height, width], -1)

    return TokenTypesReference
