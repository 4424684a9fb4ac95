"""Finds an optimizer's record by name: a file's `OPTIMIZER`, or an entry in a library file's `OPTIMIZERS`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...errors import InputError, short_repr, suggest

if TYPE_CHECKING:
    from .record import Optimizer

OPTIMIZER_NAMES = (
    "adamw",
    "sgd",
    "adafactor",
    "adafactor-transformers",
    "muon",
    "lion",
    "adamw-8bit",
    "adamw-8bit-trainer",
    "lion-8bit",
    "lion-8bit-trainer",
    "adamw-8bit-torchao",
    "adamw-4bit-torchao",
    "paged-adamw",
    "paged-adamw-8bit",
    "paged-adamw-8bit-trainer",
    "paged-lion",
    "paged-lion-8bit",
    "paged-lion-8bit-trainer",
    "adam-mini",
    "galore",
    "apollo",
    "schedule-free-adamw",
    "schedule-free-sgd",
)
"""The optimizer names that `--optimizer` accepts; the file of `adam-mini` is `adam_mini.py`."""

BITSANDBYTES_NAMES = [
    name for name in OPTIMIZER_NAMES if "lion" in name or "paged" in name or name.startswith("adamw-8bit")
]

LIBRARY_BY_NAME = {
    **dict.fromkeys(BITSANDBYTES_NAMES, "bitsandbytes"),
    **dict.fromkeys(("adamw-8bit-torchao", "adamw-4bit-torchao"), "torchao"),
    **dict.fromkeys(("schedule-free-adamw", "schedule-free-sgd"), "schedule_free"),
}
"""Optimizer name → the file with its record, for libraries with several optimizers."""

NAME_WITH_RANK = re.compile(r"(galore|apollo)-r([1-9][0-9]{0,4})")
"""Names of optimizers with the rank of their projections, such as `galore-r64`."""

LARGEST_RANK = 99_999
"""The largest projection rank in an optimizer's name."""

DEFAULT_OPTIMIZER = "adamw"
"""The default optimizer of training."""


@cache
def _load_record(optimizer_name: str) -> Optimizer:
    matching_record = NAME_WITH_RANK.fullmatch(optimizer_name)
    if matching_record:
        optimizer_record: Optimizer = _load_file(matching_record[1]).optimizer_of_projection_rank(
            int(matching_record[2]), optimizer_name
        )
    elif optimizer_name in LIBRARY_BY_NAME:
        optimizer_record = _load_file(LIBRARY_BY_NAME[optimizer_name]).OPTIMIZERS[optimizer_name]
    else:
        optimizer_record = _load_file(optimizer_name.replace("-", "_")).OPTIMIZER
    return optimizer_record


def _load_file(file_name: str) -> Any:
    return import_module(f".{file_name}", __package__)


def optimizers() -> Iterator[Optimizer]:
    """Returns the records of all optimizers."""
    return map(_load_record, OPTIMIZER_NAMES)


def optimizer(optimizer_name: str, option_name: str = "--optimizer") -> Optimizer:
    """Returns the optimizer's record by name or alias, in which `_` and `-` are equivalent.

    `galore` and `apollo` may have the rank of their projections behind `-r`.

    Raises `InputError` for a name that is none's.
    """
    hyphenated_name = optimizer_name.lower().replace("_", "-")
    if hyphenated_name in OPTIMIZER_NAMES or NAME_WITH_RANK.fullmatch(hyphenated_name):
        return _load_record(hyphenated_name)
    matching_optimizer = next(
        (known_optimizer for known_optimizer in optimizers() if hyphenated_name in known_optimizer.aliases), None
    )
    if matching_optimizer is None:
        known_aliases = (alias for optimizer_record in optimizers() for alias in optimizer_record.aliases)
        suggestion_text = suggest(hyphenated_name, [*OPTIMIZER_NAMES, *known_aliases])
        suggestion_text = suggestion_text and f".{suggestion_text}"
        raise InputError(
            f"{option_name}: {short_repr(optimizer_name)} is not known; expected one of "
            f"{', '.join(OPTIMIZER_NAMES)}{suggestion_text}"
        )
    return matching_optimizer
