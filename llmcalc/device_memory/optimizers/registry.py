"""The optimizers by name. Each has a file in this folder with its record, `OPTIMIZER`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from ...errors import InputError, shown, suggest

if TYPE_CHECKING:
    from .record import Optimizer

NAMES = (
    "adamw",
    "sgd",
    "adafactor",
    "adamw-8bit",
    "muon",
)
"""The words of `--optimizer`; the file of `adamw-8bit` is `adamw_8bit.py`."""

DEFAULT = "adamw"
"""The optimizer of training that names none."""


@cache
def _record(name: str) -> Optimizer:
    record: Optimizer = import_module(f".{name.replace('-', '_')}", __package__).OPTIMIZER
    return record


def optimizers() -> Iterator[Optimizer]:
    """Every record."""
    return map(_record, NAMES)


def optimizer(name: str, where: str = "--optimizer") -> Optimizer:
    """The record of an optimizer, by its name or another one. Raises `InputError` for a name that is none's."""
    if name in NAMES:
        return _record(name)
    record = next((record for record in optimizers() if name in record.aliases), None)
    if record is None:
        known = [*NAMES, *(alias for record in optimizers() for alias in record.aliases)]
        near = suggest(name, known)
        raise InputError(
            f"{where}: {shown(name)} is not known; expected one of {', '.join(known)}{'.' * bool(near)}{near}"
        )
    return record
