"""The report of `llmcalc diff`: the changes between two models as tables, as data, and as Markdown for a comment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import Any

from .. import units
from ..studies.diff import ModelDifference, QuantityChange
from ..workload.workload import Workload
from .document import Column, DisplayedValue, Report, Row, Table, displayed_text, row
from .notes import counted_noun, flops_per_token_note, too_long_notes, warnings_of_notes
from .summary import model_data

WRITER_BY_UNIT: dict[str, Callable[[Any], str]] = {
    "parameters": units.count,
    "FLOPs": units.flops,
    "bytes": units.memory,
}

SCALE_BY_UNIT: dict[str, Callable[[float], units.UnitScale]] = {
    "parameters": units.count_scale,
    "FLOPs": partial(units.decimal_scale, unit_name="FLOPs"),
    "bytes": units.memory_scale,
}

MAX_SHOWN_NODES = 12
"""Largest number of nodes in a table; the JSON document has all."""

QUANTITY_COLUMNS = (
    Column("quantity", "quantity", justify="left", may_wrap=True),
    Column("before", "before", displayed_text),
    Column("after", "after", displayed_text),
    Column("change", "change", displayed_text),
    Column("relative", "relative", units.signed_percent),
)

NODE_COLUMNS = (
    Column("node", "node", justify="left", may_wrap=True),
    Column("before", "before", displayed_text),
    Column("after", "after", displayed_text),
    Column("change", "change", displayed_text),
)

FIELD_COLUMNS = (
    Column("field", "field", justify="left", may_wrap=True),
    Column("before", "before", may_wrap=True),
    Column("after", "after", may_wrap=True),
)


SKIPPED_COLUMNS = (
    Column("file", "file", justify="left", may_wrap=True),
    Column("reason", "reason", justify="left", may_wrap=True),
)


def skipped_files_report(reason_by_file: Mapping[Path, str]) -> Report:
    """Returns a table of the files that were not compared. The JSON document does not list them.

    reason_by_file: file → why it is not compared.
    """
    table_rows = [row(str(path), skip_reason) for path, skip_reason in reason_by_file.items()]
    tables = [Table("Skipped: no config of a model that llmcalc counts", SKIPPED_COLUMNS, table_rows, name="skipped")]
    return Report([], tables)


def report(model_difference: ModelDifference, title: str = "", unread_files: str = "") -> Report:
    """Returns the report: the quantities, fields of the descriptions, and nodes that differ.

    title: title of the comparison; default the names of the models.
    unread_files: why the first model could not be read; empty if it was.
    """
    model_before, model_after = model_difference.before, model_difference.after
    shown_model = model_after or model_before
    assert shown_model is not None
    title = title or " → ".join(preset.display for preset in (model_before, model_after) if preset is not None)
    warnings = [*([unread_files] if unread_files else []), *_length_warnings(model_difference)]
    added_model_text = "could not be read before" if unread_files else "added"
    if model_before is None:
        headline_text = added_model_text
    elif model_after is None:
        headline_text = "removed"
    else:
        headline_text = _answer_text(model_difference)
    notes = [
        *warnings,
        f"at {model_difference.seq:,} tokens of one sequence, cache in "
        f"{units.short_dtype(model_difference.cache_dtype)}",
        flops_per_token_note(model_difference.seq),
    ]
    quantity_rows = [_quantity_row(quantity_change) for quantity_change in model_difference.quantities]
    tables = [Table(title, QUANTITY_COLUMNS, quantity_rows, "", notes, headline_text, name="quantities")]
    if model_difference.fields:
        table_rows = [
            row(field_change.name, _field_text(field_change.before), _field_text(field_change.after))
            for field_change in model_difference.fields
        ]
        tables.append(Table("Fields that differ", FIELD_COLUMNS, table_rows, name="fields"))
    if model_before is not None and model_after is not None:
        tables += [
            _nodes_table(quantity_name, changed_nodes)
            for quantity_name, changed_nodes in model_difference.components.items()
            if changed_nodes
        ]
    compared_models_text = " → ".join(preset.target for preset in (model_before, model_after) if preset is not None)
    return Report(_difference_data(model_difference), tables, warnings=warnings).with_target(compared_models_text)


def _length_warnings(model_difference: ModelDifference) -> list[str]:
    """Returns a warning for each model with a context length below the sequence length."""
    presets = [preset for preset in (model_difference.before, model_difference.after) if preset is not None]
    return [
        warning_text
        for preset in presets
        for warning_text in warnings_of_notes(preset, too_long_notes(preset.model, Workload(seq=model_difference.seq)))
    ]


def _answer_text(model_difference: ModelDifference) -> str:
    """Returns the change in the number of parameters as text: `+160.47 M parameters (+2.0 %)`."""
    total_change = next(
        quantity_change for quantity_change in model_difference.quantities if quantity_change.name == "parameters"
    )
    if not model_difference.has_changed:
        return "no count differs"
    if not total_change.has_changed:
        return "as many parameters"
    relative_change = _relative_change(total_change)
    relative_text = "" if relative_change is None else f" ({units.signed_percent(relative_change)})"
    return f"{_change_text(total_change)} parameters{relative_text}"


def _quantity_row(quantity_change: QuantityChange) -> Row:
    text_before, text_after = _both_values_text(quantity_change)
    change_text = DisplayedValue(
        quantity_change.change, _change_text(quantity_change) if quantity_change.has_changed else "equal"
    )
    return row(
        quantity_change.name,
        DisplayedValue(quantity_change.before, text_before),
        DisplayedValue(quantity_change.after, text_after),
        change_text,
        _relative_change(quantity_change),
    )


def _both_values_text(quantity_change: QuantityChange) -> list[str]:
    """Returns the old and new value as texts in the unit of the larger; in separate units if they differ tenfold."""
    nonzero_values = [node_value for node_value in (quantity_change.before, quantity_change.after) if node_value]
    if not nonzero_values:
        return [
            "–" if node_value is None else WRITER_BY_UNIT[quantity_change.unit](node_value)
            for node_value in (quantity_change.before, quantity_change.after)
        ]
    unit_scale = SCALE_BY_UNIT[quantity_change.unit](max(nonzero_values))
    if min(nonzero_values) < unit_scale.factor / 10:
        unit_scale = SCALE_BY_UNIT[quantity_change.unit](min(nonzero_values))
    return [
        "–" if node_value is None else _scaled_text(unit_scale, quantity_change, node_value)
        for node_value in (quantity_change.before, quantity_change.after)
    ]


def _scaled_text(unit_scale: units.UnitScale, quantity_change: QuantityChange, amount: float) -> str:
    """Returns a value with its unit as text, such as `0.50 GiB`. Zero and units without a prefix are not scaled."""
    if amount and unit_scale.factor > 1:
        return f"{unit_scale.write(amount)} {unit_scale.name}"
    return WRITER_BY_UNIT[quantity_change.unit](amount)


def _change_text(quantity_change: QuantityChange) -> str:
    sign_text = "+" if quantity_change.change > 0 else "−"
    return f"{sign_text}{WRITER_BY_UNIT[quantity_change.unit](abs(quantity_change.change))}"


def _relative_change(quantity_change: QuantityChange) -> float | None:
    """Returns the relative change; None if the value is unchanged, or the old value is 0 or missing."""
    value_before, value_after = quantity_change.before, quantity_change.after
    return (
        value_after / value_before - 1
        if quantity_change.has_changed and value_before and value_after is not None
        else None
    )


def _nodes_table(quantity_name: str, changed_nodes: Sequence[QuantityChange]) -> Table:
    """Returns a table of the nodes that differ most, in the unit of the median change."""
    shown_nodes = changed_nodes[:MAX_SHOWN_NODES]
    scale_function = SCALE_BY_UNIT[shown_nodes[0].unit]
    unit_scale = scale_function(
        median_low(
            abs(changed_value)
            for changed_node in shown_nodes
            for changed_value in (changed_node.before, changed_node.after, changed_node.change)
            if changed_value
        )
    )
    if (largest_change := max(abs(changed_node.change) for changed_node in shown_nodes)) < unit_scale.factor / 10:
        unit_scale = scale_function(largest_change)

    def write_value(node_value: float | None) -> DisplayedValue:
        return DisplayedValue(node_value, "–" if node_value is None else unit_scale.write(node_value))

    def write_change(node_change: float) -> DisplayedValue:
        return DisplayedValue(node_change, ("+" if node_change > 0 else "−") + unit_scale.write(abs(node_change)))

    table_rows = [
        row(
            changed_node.name,
            write_value(changed_node.before),
            write_value(changed_node.after),
            write_change(changed_node.change),
        )
        for changed_node in shown_nodes
    ]
    hidden_count = len(changed_nodes) - len(table_rows)
    if hidden_count:
        notes = [
            f"{counted_noun(hidden_count, 'further node')} differ{'s' * (hidden_count == 1)}: --format json has all"
        ]
    else:
        notes = []
    unit_text = f", in {unit_scale.name}" if unit_scale.name else ""
    title = f"{quantity_name[0].upper()}{quantity_name[1:]} by node{unit_text}"
    return Table(title, NODE_COLUMNS, table_rows, "", notes, name=quantity_name)


def _field_text(field_value: Any) -> str:
    """Returns the value of a description's field as text; a dash if the field is not set."""
    if field_value is None:
        return "–"
    if isinstance(field_value, bool):
        return str(field_value).lower()
    return ", ".join(map(_field_text, field_value)) if isinstance(field_value, list | tuple) else str(field_value)


def _difference_data(model_difference: ModelDifference) -> dict[str, Any]:
    field_entries = [
        {"field": field_change.name, "before": field_change.before, "after": field_change.after}
        for field_change in model_difference.fields
    ]
    return {
        "before": model_difference.before and model_data(model_difference.before),
        "after": model_difference.after and model_data(model_difference.after),
        "changed": model_difference.has_changed,
        "workload": {"batch": 1, "seq": model_difference.seq, "dtype": model_difference.cache_dtype, "pairs": "full"},
        "spec": field_entries,
        "quantities": [_quantity_data(quantity_change) for quantity_change in model_difference.quantities],
        "components": {
            quantity_name: [_quantity_data(quantity_change) for quantity_change in changed_nodes]
            for quantity_name, changed_nodes in model_difference.components.items()
        },
    }


def _quantity_data(quantity_change: QuantityChange) -> dict[str, Any]:
    field_names = ("name", "unit", "before", "after", "change")
    return {field_name: getattr(quantity_change, field_name) for field_name in field_names}
