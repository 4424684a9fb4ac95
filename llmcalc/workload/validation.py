"""Checks of numbers and words for the command line and the Python API, with one message for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from ..errors import InputError, shown, suggest

LARGEST = 2**40
"""The largest number of sequences or tokens."""


def whole(option: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    """Validates an integer from `least` to `most` and returns it. Raises `InputError` for other values.

    Raises `InputError`, naming the option, if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{option}: {shown(value)} is not a whole number; expected {least} or more")
    if value < least:
        raise InputError(f"{option}: {shown(value)} is too small; expected at least {least}")
    if value > most:
        raise InputError(f"{option}: {shown(value)} is too large; expected at most {most}")
    return value


def maybe_whole(option: str, value: Any, least: int = 1, most: int = LARGEST) -> int | None:
    """Validates an integer as `whole` does, but accepts None."""
    return None if value is None else whole(option, value, least, most)


def text(option: str, value: Any, example: str) -> str:
    """Validates that a value is text and returns it. Raises `InputError`, with the option and an example, otherwise."""
    if not isinstance(value, str):
        raise InputError(f"{option}: {shown(value)} is not text; expected a name such as {example!r}")
    return value


SPELLED = {"train": "training"}
"""Other spellings of words that options take."""


def one_of(option: str, value: Any, words: Any) -> Any:
    """Returns the word of a `Literal` type that a value equals or is another spelling of.

    Raises `InputError`, naming the option, for any other value.
    """
    accepted_words: Sequence[str] = get_args(words)
    word = SPELLED.get(value, value) if isinstance(value, str) else value
    if word not in accepted_words:
        suggestion = suggest(value, list(accepted_words)) if isinstance(value, str) else ""
        raise InputError(
            f"{option}: {shown(value)} is not known; expected one of {', '.join(accepted_words)}.{suggestion}".rstrip(
                "."
            )
        )
    return word
