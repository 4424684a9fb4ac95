"""The report of `llmcalc diff`: the changes between two models as tables, as data, and as Markdown for a comment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import Any

from .. import units
from ..studies.diff import Difference, Quantity
from ..workload.workload import Workload
from .document import Column, DisplayedValue, Report, Row, Table, text_of_cell
from .notes import flops_per_token_note, plural, too_long_notes, warnings_of_notes
from .summary import model_data

WRITE: dict[str, Callable[[Any], str]] = {"parameters": units.count, "FLOPs": units.flops, "bytes": units.memory}

SCALE: dict[str, Callable[[float], units.Scale]] = {
    "parameters": units.count_scale,
    "FLOPs": partial(units.decimal_scale, unit="FLOPs"),
    "bytes": units.memory_scale,
}

SHOWN = 12
"""Largest number of nodes in a table; the JSON document has all."""

QUANTITY_COLUMNS = (
    Column("quantity", "quantity", justify="left", wrap=True),
    Column("before", "before", text_of_cell),
    Column("after", "after", text_of_cell),
    Column("change", "change", text_of_cell),
    Column("relative", "relative", units.signed_percent),
)

NODE_COLUMNS = (
    Column("node", "node", justify="left", wrap=True),
    Column("before", "before", text_of_cell),
    Column("after", "after", text_of_cell),
    Column("change", "change", text_of_cell),
)

FIELD_COLUMNS = (
    Column("field", "field", justify="left", wrap=True),
    Column("before", "before", wrap=True),
    Column("after", "after", wrap=True),
)


SKIPPED_COLUMNS = (
    Column("file", "file", justify="left", wrap=True),
    Column("reason", "reason", justify="left", wrap=True),
)


def skipped_files_report(reasons: Mapping[Path, str]) -> Report:
    """Returns a table of the files that were not compared. The JSON document does not list them.

    reasons: file → why it is not compared.
    """
    rows = [Row([str(path), reason]) for path, reason in reasons.items()]
    return Report(
        [], [Table("Skipped: no config of a model that llmcalc counts", SKIPPED_COLUMNS, rows, name="skipped")]
    )


def report(difference: Difference, title: str = "", unread_files: str = "") -> Report:
    """Returns the report: the quantities, fields of the descriptions, and nodes that differ.

    title: title of the comparison; default the names of the models.
    unread_files: why the first model could not be read; empty if it was.
    """
    model_before, model_after = difference.before, difference.after
    model = model_after or model_before
    assert model is not None
    title = title or " → ".join(preset.display for preset in (model_before, model_after) if preset is not None)
    warnings = [*([unread_files] if unread_files else []), *_length_warnings(difference)]
    added_text = "could not be read before" if unread_files else "added"
    headline_text = (
        added_text if model_before is None else "removed" if model_after is None else _answer_text(difference)
    )
    notes = [
        *warnings,
        f"at {difference.seq:,} tokens of one sequence, cache in {units.short_dtype(difference.dtype)}",
        flops_per_token_note(difference.seq),
    ]
    tables = [
        Table(
            title,
            QUANTITY_COLUMNS,
            [_quantity_row(model) for model in difference.quantities],
            "",
            notes,
            headline_text,
            name="quantities",
        )
    ]
    if difference.fields:
        rows = [Row([model.name, _field_text(model.before), _field_text(model.after)]) for model in difference.fields]
        tables.append(Table("Fields that differ", FIELD_COLUMNS, rows, name="fields"))
    if model_before is not None and model_after is not None:
        tables += [_nodes_table(name, nodes) for name, nodes in difference.components.items() if nodes]
    target = " → ".join(preset.target for preset in (model_before, model_after) if preset is not None)
    return Report(_difference_data(difference), tables, warnings=warnings).for_target(target)


def _length_warnings(difference: Difference) -> list[str]:
    """Returns a warning for each model with a context length below the sequence length."""
    models = [preset for preset in (difference.before, difference.after) if preset is not None]
    return [
        text
        for preset in models
        for text in warnings_of_notes(preset, too_long_notes(preset.model, Workload(seq=difference.seq)))
    ]


def _answer_text(difference: Difference) -> str:
    """Writes the change in the number of parameters: `+160.47 M parameters (+2.0 %)`."""
    total_change = next(quantity for quantity in difference.quantities if quantity.name == "parameters")
    if not difference.changed:
        return "no count differs"
    if not total_change.changed:
        return "as many parameters"
    relative_change = _relative_change(total_change)
    relative_text = "" if relative_change is None else f" ({units.signed_percent(relative_change)})"
    return f"{_change_text(total_change)} parameters{relative_text}"


def _quantity_row(quantity: Quantity) -> Row:
    text_before, text_after = _both_values_text(quantity)
    change_text = DisplayedValue(quantity.change, _change_text(quantity) if quantity.changed else "equal")
    return Row(
        [
            quantity.name,
            DisplayedValue(quantity.before, text_before),
            DisplayedValue(quantity.after, text_after),
            change_text,
            _relative_change(quantity),
        ]
    )


def _both_values_text(quantity: Quantity) -> list[str]:
    """Writes two values in the larger value's unit, unless one is less than a tenth of the other."""
    values = [value for value in (quantity.before, quantity.after) if value]
    if not values:
        return ["–" if value is None else WRITE[quantity.unit](value) for value in (quantity.before, quantity.after)]
    scale = SCALE[quantity.unit](max(values))
    if min(values) < scale.factor / 10:
        scale = SCALE[quantity.unit](min(values))
    return [
        "–" if value is None else _scaled_text(scale, quantity, value) for value in (quantity.before, quantity.after)
    ]


def _scaled_text(scale: units.Scale, quantity: Quantity, amount: float) -> str:
    """Writes a value with its unit, such as `0.50 GiB`. Units without a prefix, and 0, are not scaled."""
    return f"{scale.write(amount)} {scale.name}" if amount and scale.factor > 1 else WRITE[quantity.unit](amount)


def _change_text(quantity: Quantity) -> str:
    return f"{'+' if quantity.change > 0 else '−'}{WRITE[quantity.unit](abs(quantity.change))}"


def _relative_change(quantity: Quantity) -> float | None:
    """Returns the relative change; None without a change, or without an old value other than 0."""
    return (
        quantity.after / quantity.before - 1
        if quantity.changed and quantity.before and quantity.after is not None
        else None
    )


def _nodes_table(name: str, nodes: Sequence[Quantity]) -> Table:
    """Returns a table of the nodes that differ most, in the unit of the median change."""
    shown_nodes = nodes[:SHOWN]
    scale_function = SCALE[shown_nodes[0].unit]
    scale = scale_function(
        median_low(abs(value) for node in shown_nodes for value in (node.before, node.after, node.change) if value)
    )
    if (largest_change := max(abs(node.change) for node in shown_nodes)) < scale.factor / 10:
        scale = scale_function(largest_change)

    def write_value(value: float | None) -> DisplayedValue:
        return DisplayedValue(value, "–" if value is None else scale.write(value))

    def write_change(value: float) -> DisplayedValue:
        return DisplayedValue(value, ("+" if value > 0 else "−") + scale.write(abs(value)))

    rows = [
        Row([node.name, write_value(node.before), write_value(node.after), write_change(node.change)])
        for node in shown_nodes
    ]
    hidden_count = len(nodes) - len(rows)
    notes = (
        [f"{plural(hidden_count, 'further node')} differ{'s' * (hidden_count == 1)}: --format json has all"]
        if hidden_count
        else []
    )
    unit_text = f", in {scale.name}" if scale.name else ""
    return Table(f"{name[0].upper()}{name[1:]} by node{unit_text}", NODE_COLUMNS, rows, "", notes, name=name)


def _field_text(value: Any) -> str:
    """Writes the value of a description's field, or a dash if not set."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(_field_text, value)) if isinstance(value, list | tuple) else str(value)


def _difference_data(difference: Difference) -> dict[str, Any]:
    return {
        "before": difference.before and model_data(difference.before),
        "after": difference.after and model_data(difference.after),
        "changed": difference.changed,
        "workload": {"batch": 1, "seq": difference.seq, "dtype": difference.dtype, "pairs": "full"},
        "spec": [{"field": field.name, "before": field.before, "after": field.after} for field in difference.fields],
        "quantities": [_quantity_data(quantity) for quantity in difference.quantities],
        "components": {
            name: [_quantity_data(quantity) for quantity in nodes] for name, nodes in difference.components.items()
        },
    }


def _quantity_data(quantity: Quantity) -> dict[str, Any]:
    return {name: getattr(quantity, name) for name in ("name", "unit", "before", "after", "change")}
