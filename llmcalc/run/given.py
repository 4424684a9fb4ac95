"""What the command line and the Python API take for a number or a word: one check and one message for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from ..errors import InputError, shown, suggest

LARGEST = 2**40
"""Of any number of sequences or tokens."""


def whole(option: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    """The value, where it is a whole number from `least` to `most`.

    Raises `InputError` naming the option.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{option}: {shown(value)} is not a whole number; expected one of at least {least}")
    if value < least:
        raise InputError(f"{option}: {shown(value)} is too small; expected at least {least}")
    if value > most:
        raise InputError(f"{option}: {shown(value)} is too large; expected at most {most}")
    return value


def maybe_whole(option: str, value: Any, least: int = 1) -> int | None:
    """The same, or none where none is given."""
    return None if value is None else whole(option, value, least)


def one_of(option: str, value: Any, words: Any) -> None:
    """Raises `InputError` where the value is none of the words of a `Literal`."""
    known: Sequence[str] = get_args(words)
    if value not in known:
        near = suggest(value, list(known)) if isinstance(value, str) else ""
        raise InputError(
            f"{option}: {shown(value)} is not known; expected one of {', '.join(known)}.{near}".rstrip(".")
        )
