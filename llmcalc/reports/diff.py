"""`llmcalc diff`: what changes between two models, as tables, as data, and as Markdown for a comment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import Any

from .. import units
from ..sources.preset import Preset
from ..studies.diff import Change, Difference, Quantity, Unit
from ..workload.workload import Workload
from .document import Column, Report, Row, Shown, Table, text_of
from .notes import flops_a_token, plural, too_long, warned
from .summary import model_data

WRITE: dict[str, Callable[[Any], str]] = {"parameters": units.count, "FLOPs": units.flops, "bytes": units.memory}

SCALE: dict[str, Callable[[float], units.Scale]] = {
    "parameters": units.count_scale,
    "FLOPs": partial(units.decimal_scale, unit="FLOPs"),
    "bytes": units.memory_scale,
}

SHOWN = 12
"""Nodes of a quantity in a table; the document has all."""

QUANTITY_COLUMNS = (
    Column("quantity", "quantity", justify="left", wrap=True),
    Column("before", "before", text_of),
    Column("after", "after", text_of),
    Column("change", "change", text_of),
    Column("relative", "relative", units.signed_percent),
)

NODE_COLUMNS = (
    Column("node", "node", justify="left", wrap=True),
    Column("before", "before", text_of),
    Column("after", "after", text_of),
    Column("change", "change", text_of),
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


def skipped_files(reasons: Mapping[Path, str]) -> Report:
    """Files that are not compared, as a table; the document has nothing of them. reasons: file → why it is not."""
    rows = [Row([str(path), reason]) for path, reason in reasons.items()]
    return Report(
        [], [Table("Skipped: no config of a model that llmcalc counts", SKIPPED_COLUMNS, rows, name="skipped")]
    )


def report(found: Difference, title: str = "", unread: str = "") -> Report:
    """The answer as data and as tables: quantities, fields of the descriptions, and the nodes that differ.

    title: what is compared; by default the names of the models. unread: why the first could not be read, if so.
    """
    before, after = found.before, found.after
    one = after or before
    assert one is not None
    title = title or " → ".join(each.display for each in (before, after) if each is not None)
    warnings = [*([unread] if unread else []), *_too_long(found)]
    new = "could not be read before" if unread else "added"
    answer = new if before is None else "removed" if after is None else _answer(found)
    notes = [
        *warnings,
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
    target = " → ".join(each.target for each in (before, after) if each is not None)
    return Report(_data(found), tables, warnings=warnings).of(target)


def _too_long(found: Difference) -> list[str]:
    """That a sequence has more tokens than a model was made for, with the model's name."""
    models = [one for one in (found.before, found.after) if one is not None]
    return [text for one in models for text in warned(one, too_long(one.model, Workload(seq=found.seq)))]


def _answer(found: Difference) -> str:
    """`+160.47 M parameters (+2.0 %)`."""
    total = next(one for one in found.quantities if one.name == "parameters")
    if not found.changed:
        return "no count differs"
    if not total.changed:
        return "as many parameters"
    relative = _relative(total)
    aside = "" if relative is None else f" ({units.signed_percent(relative)})"
    return f"{_change(total)} parameters{aside}"


def _row(one: Quantity) -> Row:
    before, after = _pair(one)
    change = Shown(one.change, _change(one) if one.changed else "equal")
    return Row([one.name, Shown(one.before, before), Shown(one.after, after), change, _relative(one)])


def _pair(one: Quantity) -> list[str]:
    """Both values in one unit: that of the larger one, if the smaller is at least a tenth of it."""
    values = [value for value in (one.before, one.after) if value]
    if not values:
        return ["–" if value is None else WRITE[one.unit](value) for value in (one.before, one.after)]
    scale = SCALE[one.unit](max(values))
    if min(values) < scale.factor / 10:
        scale = SCALE[one.unit](min(values))
    return ["–" if value is None else _in(scale, one, value) for value in (one.before, one.after)]


def _in(scale: units.Scale, one: Quantity, value: float) -> str:
    """`0.50 GiB`; as it is where the unit has no prefix, and where there is nothing to scale."""
    return f"{scale.write(value)} {scale.name}" if value and scale.factor > 1 else WRITE[one.unit](value)


def _change(one: Quantity) -> str:
    return f"{'+' if one.change > 0 else '−'}{WRITE[one.unit](abs(one.change))}"


def _relative(one: Quantity) -> float | None:
    """The share by which a value changes; None if it does not, or has nothing to be a share of."""
    return one.after / one.before - 1 if one.changed and one.before and one.after is not None else None


def _nodes(name: str, nodes: Sequence[Quantity]) -> Table:
    """The nodes that differ most, in one unit: that of the middle of all values, or of small changes."""
    shown = nodes[:SHOWN]
    scale_of = SCALE[shown[0].unit]
    scale = scale_of(median_low(abs(value) for one in shown for value in (one.before, one.after, one.change) if value))
    if (most := max(abs(one.change) for one in shown)) < scale.factor / 10:
        scale = scale_of(most)

    def cell(value: float | None) -> Shown:
        return Shown(value, "–" if value is None else scale.write(value))

    def change(value: float) -> Shown:
        return Shown(value, ("+" if value > 0 else "−") + scale.write(abs(value)))

    rows = [Row([one.name, cell(one.before), cell(one.after), change(one.change)]) for one in shown]
    more = len(nodes) - len(rows)
    notes = [f"{plural(more, 'further node')} differ{'s' * (more == 1)}: --format json has all"] if more else []
    unit = f", in {scale.name}" if scale.name else ""
    return Table(
        f"{name[0].upper()}{name[1:]} by node{unit}",
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
