"""The report of `llmcalc params --measure`: the measured parameters of a class of transformers."""

from __future__ import annotations

from dataclasses import dataclass

from .. import units
from ..witnesses.measured_modules import ModuleTree, module_data
from .answer import Answer
from .document import Column, Report, Row, Table, row

COLUMNS = (
    Column("module", "module", justify="left"),
    Column("parameters_each", "each", units.exact_text),
    Column("repeat", "×", str),
    Column("parameters", "parameters", units.exact_text),
    Column("share", "share", units.percent),
)


def report(config_name: str, class_name: str, module_tree: ModuleTree) -> Report:
    """Returns the report of a class's measured parameters as data and as a table."""
    total_params = module_tree.params
    by_component = {module_size.name: module_size.params * module_size.repeat for module_size in module_tree.children}
    json_document = {
        "model": {"name": config_name, "kind": "measured", "class": class_name},
        "params": {"total": total_params, "by_component": by_component},
        "measured": True,
        "tree": module_data(module_tree),
    }
    table_rows: list[Row] = []
    for submodule in module_tree.children:
        _add_rows(table_rows, submodule, 1, total_params, 0)
    table_rows.append(row("total", None, None, total_params, 1.0, is_bold=True, is_sum=True))
    notes = [
        f"measured on {class_name} of the installed transformers, on meta: no closed form, and nothing else is known "
        "of this architecture"
    ]
    title = f"{config_name}: {units.count(total_params)} parameters, measured"
    return Report(json_document, [Table(title, COLUMNS, table_rows, notes=notes)]).with_target(config_name)


def _short_module_list(module_names: str) -> str:
    """Shortens a long list of module names to the first two and the last. JSON has all of them."""
    name_list = module_names.split(",")
    return module_names if len(name_list) <= 4 else ",".join((*name_list[:2], "…", name_list[-1]))


def _add_rows(table_rows: list[Row], module_size: ModuleTree, repeat_count: int, total_params: int, depth: int) -> None:
    repeat_count *= module_size.repeat
    table_rows.append(
        row(
            _short_module_list(module_size.name),
            module_size.params,
            repeat_count if repeat_count > 1 else None,
            module_size.params * repeat_count,
            module_size.params * repeat_count / total_params,
            depth=depth,
        )
    )
    for child_size in module_size.children:
        _add_rows(table_rows, child_size, repeat_count, total_params, depth + 1)


@dataclass(frozen=True, repr=False)
class MeasuredParams(Answer):
    """The parameters of a `transformers` class. name: the config's name. cls: the class's name. tree: its modules."""

    name: str
    cls: str
    tree: ModuleTree

    @property
    def total(self) -> int:
        return self.tree.params

    def report(self) -> Report:
        return report(self.name, self.cls, self.tree)
