"""`llmcalc diff`: what changes between two models, as tables, as data, and as Markdown for a comment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import units
from ..sources.preset import Preset
from ..studies.diff import Change, Difference, Quantity, Unit
from .document import Column, Report, Row, Table
from .notes import flops_a_token
from .summary import model_data

WRITE: dict[str, Callable[[Any], str]] = {"parameters": units.count, "FLOPs": units.flops, "bytes": units.memory}

SHOWN = 12
"""Nodes of a quantity in a table; the document has all."""

QUANTITY_COLUMNS = (
    Column("quantity", "quantity", justify="left"),
    Column("before", "before"),
    Column("after", "after"),
    Column("change", "change"),
    Column("relative", "relative"),
)

NODE_COLUMNS = (
    Column("node", "node", justify="left"),
    Column("before", "before"),
    Column("after", "after"),
    Column("change", "change"),
)

FIELD_COLUMNS = (
    Column("field", "field", justify="left"),
    Column("before", "before", wrap=True),
    Column("after", "after", wrap=True),
)


def report(found: Difference) -> Report:
    """The answer as data and as tables: quantities, fields of the descriptions, and the nodes that differ."""
    before, after = found.before, found.after
    one = after or before
    assert one is not None
    title = one.display if before is None or after is None else f"{before.display} → {after.display}"
    answer = "added" if before is None else "removed" if after is None else _answer(found)
    notes = [
        f"at {found.seq:,} tokens of one sequence, cache in {units.short_dtype(found.dtype)}",
        flops_a_token(found.seq),
    ]
    tables = [
        Table(title, QUANTITY_COLUMNS, [_row(one) for one in found.quantities], "", notes, answer, name="quantities")
    ]
    if found.fields:
        rows = [Row([one.name, _value(one.before), _value(one.after)]) for one in found.fields]
        tables.append(Table("Fields that differ", FIELD_COLUMNS, rows, name="fields"))
    if before is not None and after is not None:
        tables += [_nodes(name, nodes) for name, nodes in found.components.items() if nodes]
    return Report(_data(found), tables)


def _answer(found: Difference) -> str:
    """`+160.47 M parameters (+2.0 %)`."""
    total = next(one for one in found.quantities if one.name == "parameters")
    if not found.changed:
        return "no count differs"
    if not total.changed:
        return "as many parameters"
    return f"{_change(total)} parameters ({_relative(total)})"


def _row(one: Quantity) -> Row:
    write = WRITE[one.unit]
    cells = ["–" if value is None else write(value) for value in (one.before, one.after)]
    return Row([one.name, *cells, _change(one) if one.changed else "equal", _relative(one) if one.changed else None])


def _change(one: Quantity) -> str:
    return f"{'+' if one.change > 0 else '−'}{WRITE[one.unit](abs(one.change))}"


def _relative(one: Quantity) -> str:
    return units.signed_percent(one.after / one.before - 1) if one.before and one.after is not None else ""


def _nodes(name: str, nodes: Sequence[Quantity]) -> Table:
    write = WRITE[nodes[0].unit]
    rows = [
        Row([one.name, *("–" if value is None else write(value) for value in (one.before, one.after)), _change(one)])
        for one in nodes[:SHOWN]
    ]
    more = len(nodes) - len(rows)
    notes = [f"{more} more nodes differ (--format json has all)"] if more else []
    return Table(
        f"{name.capitalize() if name.islower() else name[0].upper() + name[1:]} by node",
        NODE_COLUMNS,
        rows,
        "",
        notes,
        name=name,
    )


def _value(value: Any) -> str:
    """A field of a description; of one that is left out, a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(_value, value)) if isinstance(value, list | tuple) else str(value)


def _data(found: Difference) -> dict[str, Any]:
    return {
        "before": _model(found.before),
        "after": _model(found.after),
        "changed": found.changed,
        "workload": {"batch": 1, "seq": found.seq, "dtype": found.dtype, "pairs": "full"},
        "spec": [_changed(one) for one in found.fields],
        "quantities": [_quantity(one) for one in found.quantities],
        "components": {name: [_quantity(one) for one in nodes] for name, nodes in found.components.items()},
    }


def _model(preset: Preset | None) -> dict[str, Any] | None:
    return None if preset is None else model_data(preset)


def _changed(one: Change) -> dict[str, Any]:
    return {"field": one.name, "before": one.before, "after": one.after}


def _quantity(one: Quantity) -> dict[str, Any]:
    unit: Unit = one.unit
    return {"name": one.name, "unit": unit, "before": one.before, "after": one.after, "change": one.change}
