"""Validates numbers and words for the command line and the Python API, with the same messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from pathlib import PurePath
from typing import Any, get_args

from ..errors import InputError, short_repr, suggest

LARGEST_COUNT = 2**40
"""The largest number of sequences or tokens."""


def validate_whole(option_name: str, option_value: Any, minimum: int = 1, maximum: int = LARGEST_COUNT) -> int:
    """Returns an integer from `minimum` to `maximum`; a float with a whole value, such as `8192.0`, is accepted.

    Raises `InputError`, naming the option, for other values.
    """
    if isinstance(option_value, float) and option_value.is_integer():  # numbers in JSON have no other type
        option_value = int(option_value)
    if isinstance(option_value, bool) or not hasattr(option_value, "__index__"):
        raise InputError(f"{option_name}: {short_repr(option_value)} is not a whole number; expected {minimum} or more")
    whole_number: int = index(option_value)  # an integer of NumPy too
    if whole_number < minimum:
        raise InputError(f"{option_name}: {short_repr(whole_number)} is too small; expected at least {minimum}")
    if whole_number > maximum:
        raise InputError(f"{option_name}: {short_repr(whole_number)} is too large; expected at most {maximum}")
    return whole_number


def validate_whole_or_none(
    option_name: str, option_value: Any, minimum: int = 1, maximum: int = LARGEST_COUNT
) -> int | None:
    """Returns an integer as `validate_whole` does; None is accepted too."""
    return None if option_value is None else validate_whole(option_name, option_value, minimum, maximum)


def validate_text(option_name: str, option_value: Any, example: str) -> str:
    """Returns a text. Raises `InputError`, which names the option and an example, for any other value."""
    if not isinstance(option_value, str):
        raise InputError(f"{option_name}: {short_repr(option_value)} is not text; expected a name such as {example!r}")
    return option_value


def validate_path(option_name: str, option_value: Any) -> str:
    """Returns a path as text, from a text or a `Path`. Raises `InputError` for any other value."""
    if not isinstance(option_value, str | PurePath):
        raise InputError(f"{option_name}: {short_repr(option_value)} is no path; expected the name of a file")
    return str(option_value)


def validate_texts(option_name: str, option_value: Any, example: str) -> tuple[str, ...]:
    """Returns one or several texts as a tuple; empty for None. Raises `InputError` for other values."""
    if option_value is None or isinstance(option_value, str):
        return () if option_value is None else (option_value,)
    texts = tuple(option_value) if isinstance(option_value, Iterable) else (option_value,)
    return tuple(validate_text(option_name, element_text, example) for element_text in texts)


def number_text(option_name: str, option_value: Any) -> str:
    """Returns the text of a number. Raises `InputError` for an integer with more digits than Python prints."""
    try:
        return str(option_value)
    except ValueError:
        raise InputError(f"{option_name}: {short_repr(option_value)} is too large; expected a shorter number") from None


WORD_BY_SPELLING = {"train": "training"}
"""Accepted spelling of an option's value → the usual word."""


def validate_choice(option_name: str, option_value: Any, literal_type: Any) -> Any:
    """Returns the word of a `Literal` type that a value spells.

    Raises `InputError`, naming the option, for any other value.
    """
    accepted_words: Sequence[str] = get_args(literal_type)
    canonical_word = option_value
    if isinstance(option_value, str):
        words_by_spelling = {accepted_word.lower(): accepted_word for accepted_word in accepted_words}
        lowercase_word = WORD_BY_SPELLING.get(option_value.lower(), option_value.lower())
        canonical_word = words_by_spelling.get(lowercase_word, option_value)
    if canonical_word not in accepted_words:
        suggestion = suggest(option_value, list(accepted_words)) if isinstance(option_value, str) else ""
        expected_text = f"expected one of {', '.join(accepted_words)}.{suggestion}".rstrip(".")
        raise InputError(f"{option_name}: {short_repr(option_value)} is not known; {expected_text}")
    return canonical_word
