"""`llmcalc depth`: a toy view that prints the number of layers of a model."""

from __future__ import annotations

from .. import units
from ..sources.preset import Preset
from .document import Column, Report, Row, Table
from .summary import model_data


def report(preset: Preset) -> Report:
    """Returns the answer as data and as a table."""
    layers = sum(stack.num_hidden_layers for _, stack in preset.model.stacks())
    columns = (Column("model", "model", justify="left"), Column("layers", "layers", units.exact_text))
    return Report(
        {"model": model_data(preset), "layers": layers}, [Table(preset.display, columns, [Row([preset.name, layers])])]
    )
