"""Finds an optimizer's record by name. Each optimizer has a file in this folder with its record, `OPTIMIZER`."""

from __future__ import annotations

import re
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
    "muon",
    "lion",
    "adamw-8bit",
    "lion-8bit",
    "adamw-8bit-torchao",
    "adamw-4bit-torchao",
    "paged-adamw",
    "paged-adamw-8bit",
    "paged-lion",
    "paged-lion-8bit",
    "adam-mini",
    "galore",
    "apollo",
    "schedule-free-adamw",
    "schedule-free-sgd",
)
"""The words of `--optimizer`; the file of `adamw-8bit` is `adamw_8bit.py`."""

WITH_RANK = re.compile(r"(galore|apollo)-r([1-9][0-9]{0,4})")
"""Names of optimizers with the rank of their projections, such as `galore-r64`."""

LARGEST_RANK = 99_999
"""The largest rank of such a name."""

DEFAULT = "adamw"
"""The optimizer of training that names none."""


@cache
def _load_record(optimizer_name: str) -> Optimizer:
    rank_match = WITH_RANK.fullmatch(optimizer_name)
    module = rank_match[1] if rank_match else optimizer_name.replace("-", "_")
    contents = import_module(f".{module}", __package__)
    record: Optimizer = contents.of_rank(int(rank_match[2]), optimizer_name) if rank_match else contents.OPTIMIZER
    return record


def optimizers() -> Iterator[Optimizer]:
    """Returns the records of all optimizers."""
    return map(_load_record, NAMES)


def optimizer(optimizer_name: str, option_name: str = "--optimizer") -> Optimizer:
    """Returns the optimizer's record by its name or an alias, in which `_` and `-` are equivalent.

    `galore` and `apollo` may have the rank of their projections behind `-r`.

    Raises `InputError` for a name that is none's.
    """
    hyphenated_name = optimizer_name.replace("_", "-")
    if hyphenated_name in NAMES or WITH_RANK.fullmatch(hyphenated_name):
        return _load_record(hyphenated_name)
    record = next(
        (optimizer_record for optimizer_record in optimizers() if hyphenated_name in optimizer_record.aliases), None
    )
    if record is None:
        suggestion = suggest(
            hyphenated_name,
            [*NAMES, *(alias for optimizer_record in optimizers() for alias in optimizer_record.aliases)],
        )
        suggestion = suggestion and f".{suggestion}"
        raise InputError(
            f"{option_name}: {shown(optimizer_name)} is not known; expected one of {', '.join(NAMES)}{suggestion}"
        )
    return record
