"""Positional vectors added to the embeddings: learned (Gehring 2017; GPT, BERT), sinusoidal (Vaswani 2017, §3.5)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from ..flow.axis import Axis, JoinedShapes
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import EmbeddingRows
from .base import TORCH_WITNESS, Component, InnerWidth, ModelProperties, PartWitness, Positions
from .rotation import rotary_angles

if TYPE_CHECKING:
    from torch import Tensor, nn


class LearnedPositions(Component):
    """A learned table of position embeddings.

    max_position_embeddings: the number of positions.
    offset: the number of rows before position 0, 0 by default (2 in OPT and BART).
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    noun: ClassVar[str] = "position"
    kind: ClassVar[str] = "embedding"

    type: Literal["learned"] = "learned"
    max_position_embeddings: Positions
    offset: int = Field(default=0, ge=0, le=64, strict=True)

    def describe(self, hidden_size: int) -> str:
        return f"learned {self.max_position_embeddings}"

    def flow(self, recorder: Flow, x: Value) -> Value:
        row_count = self.max_position_embeddings + self.offset if self.offset else self.max_position_embeddings
        position_vectors, recorder.position_table = recorder.table(
            "", Axis("positions", row_count), *x.axes, output_rows=x.rows, index_source="positions"
        )
        return position_vectors

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["learned"](self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(max_position_embeddings=64), cls(max_position_embeddings=64, offset=2)]


class AxialPositions(Component):
    """Learned position vectors on a grid: part of each vector depends on the row, the rest on the column (Reformer).

    rows, columns: the sides of the grid, in which positions follow one another row by row.
    row_size, column_size: the widths of the two parts.
    """

    formula_source: ClassVar[str] = "Kitaev et al. 2020"
    noun: ClassVar[str] = "position"
    kind: ClassVar[str] = "embedding"

    type: Literal["axial"] = "axial"
    rows: Positions
    columns: Positions
    row_size: InnerWidth
    column_size: InnerWidth

    def describe(self, hidden_size: int) -> str:
        return f"axial {self.rows} × {self.columns}"

    def flow(self, recorder: Flow, x: Value) -> Value:
        row_axes, column_axes = (Axis("row_part", self.row_size),), (Axis("column_part", self.column_size),)
        axis_position_vectors = []
        for table_name, table_length, axes in (
            ("by_row", self.rows, row_axes),
            ("by_column", self.columns, column_axes),
        ):
            position_table, _ = recorder.table(
                table_name,
                Axis(table_name, table_length),
                *axes,
                output_rows=EmbeddingRows(row_count=table_length),
                index_source="all",
            )
            axis_position_vectors.append(recorder.resampled(position_table, x.rows))
        return recorder.cat(*axis_position_vectors, axes=(JoinedShapes((row_axes, column_axes)),)).view(*x.axes)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["axial"](self)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(rows=8, columns=8, row_size=10, column_size=14)]


class SinusoidalPositions(Component):
    """Sinusoidal positions: sines and cosines of geometrically spaced frequencies, without parameters."""

    formula_source: ClassVar[str] = "Vaswani et al. 2017, §3.5"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    noun: ClassVar[str] = "position"
    kind: ClassVar[str] = "embedding"

    type: Literal["sinusoidal"] = "sinusoidal"

    def flow(self, recorder: Flow, x: Value) -> Value:
        return recorder.added_sinusoids(x.rows, *x.axes)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["sinusoidal"](model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls()]


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class LearnedPositionsReference(nn.Embedding):
        """Returns the learned vector of each position. positions: [tokens] → [tokens, hidden]."""

        def __init__(self, spec: LearnedPositions, hidden_size: int) -> None:
            super().__init__(spec.max_position_embeddings + spec.offset, hidden_size)
            self.offset = spec.offset

        def forward(self, positions: Tensor) -> Tensor:
            return super().forward(positions + self.offset)

    class AxialPositionsReference(nn.Module):
        """Concatenates the row part and the column part of position vectors. positions: [tokens] → [tokens, hidden]."""

        def __init__(self, spec: AxialPositions) -> None:
            super().__init__()
            self.columns = spec.columns
            self.by_row = nn.Embedding(spec.rows, spec.row_size)
            self.by_column = nn.Embedding(spec.columns, spec.column_size)

        def forward(self, positions: Tensor) -> Tensor:
            row, column = self.by_row(positions // self.columns), self.by_column(positions % self.columns)
            return torch.cat([row, column], -1)

    class SinusoidalPositionsReference(nn.Module):
        """Computes sinusoids of the positions. positions: [tokens] → [tokens, hidden]."""

        def __init__(self, hidden_size: int) -> None:
            super().__init__()
            self.hidden_size = hidden_size

        def forward(self, positions: Tensor) -> Tensor:
            angles = rotary_angles(positions, self.hidden_size, 10000.0)
            return torch.cat([angles.sin(), angles.cos()], -1)[:, : self.hidden_size]

    return {
        "learned": LearnedPositionsReference,
        "axial": AxialPositionsReference,
        "sinusoidal": SinusoidalPositionsReference,
    }
