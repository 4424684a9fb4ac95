"""The report of `llmcalc params --measure`: the measured parameters of a class of transformers."""

from __future__ import annotations

from dataclasses import dataclass

from .. import units
from ..witnesses.measured import ModuleSize, module_data
from .answer import Answer
from .document import Column, Report, Row, Table

COLUMNS = (
    Column("module", "module", justify="left"),
    Column("parameters_each", "each", units.exact),
    Column("repeat", "×", str),
    Column("parameters", "parameters", units.exact),
    Column("share", "share", units.percent),
)


def report(name: str, class_name: str, tree: ModuleSize) -> Report:
    """Returns the report of a class's measured parameters as data and as a table."""
    total_params = tree.params
    document = {
        "model": {"name": name, "kind": "measured", "class": class_name},
        "params": {
            "total": total_params,
            "by_component": {component.name: component.params * component.repeat for component in tree.children},
        },
        "measured": True,
        "tree": module_data(tree),
    }
    rows: list[Row] = []
    for submodule in tree.children:
        _add_rows(rows, submodule, 1, total_params, 0)
    rows.append(Row(["total", None, None, total_params, 1.0], strong=True, is_sum=True))
    notes = [
        f"measured on {class_name} of the installed transformers, on meta: no closed form, and nothing else is known "
        "of this architecture"
    ]
    return Report(
        document, [Table(f"{name}: {units.count(total_params)} parameters, measured", COLUMNS, rows, notes=notes)]
    ).for_target(name)


def _short_name(name: str) -> str:
    """Shortens a long list of module names to the first two and the last. JSON has all of them."""
    names = name.split(",")
    return name if len(names) <= 4 else ",".join((*names[:2], "…", names[-1]))


def _add_rows(rows: list[Row], node: ModuleSize, repeat_count: int, total_params: int, depth: int) -> None:
    repeat_count *= node.repeat
    rows.append(
        Row(
            [
                _short_name(node.name),
                node.params,
                repeat_count if repeat_count > 1 else None,
                node.params * repeat_count,
                node.params * repeat_count / total_params,
            ],
            depth,
        )
    )
    for submodule in node.children:
        _add_rows(rows, submodule, repeat_count, total_params, depth + 1)


@dataclass(frozen=True, repr=False)
class MeasuredParams(Answer):
    """The parameters of a `transformers` class. name: the config's name. cls: the class's name. tree: its modules."""

    name: str
    cls: str
    tree: ModuleSize

    @property
    def total(self) -> int:
        return self.tree.params

    def report(self) -> Report:
        return report(self.name, self.cls, self.tree)
