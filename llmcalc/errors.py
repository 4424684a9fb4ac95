"""The one exception a user sees: what was wrong, in which field, and what would have been right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LONGEST_MESSAGE = 1000
"""Characters. What is longer holds a whole file where a name was meant; its middle says nothing."""


def one_line(text: str) -> str:
    """`text` on one line that is safe to print:
    what is not printable escaped, and what is endless cut in its middle.
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    half = LONGEST_MESSAGE // 2
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:half]} … {line[-half:]}"


class InputError(ValueError):
    """Bad input or bad usage. The message stands alone on one line; the command line prints it and exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class MissingExtra(InputError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(f"{feature} needs {package}: pip install 'llmcalc-arch[{extra}]'")


def suggest(wrong: str, known: list[str] | dict[str, str], limit: int = 3) -> str:
    """` Did you mean a, b?` for the nearest known names, or an empty string where nothing is near.

    Names that begin with what was given come first, then those that contain it, then those with the fewest differences:
    `t5` is t5-base, `layers` is num_hidden_layers. known: may be other spellings, each with the name that is said for
    it.
    """
    import difflib

    said = known if isinstance(known, dict) else {name: name for name in known}
    key = _letters(wrong[:100])
    own = sorted((name for name in set(said.values())), key=lambda name: (len(name), name))
    found = [name for name in own if len(key) > 1 and _letters(name).startswith(key)]
    found += [name for name in own if len(key) > 2 and key in _letters(name)]
    close = difflib.get_close_matches(wrong.lower()[:100], said, n=2 * limit, cutoff=0.6)
    near = list(dict.fromkeys([*found, *(said[one] for one in close)]))
    return f" Did you mean {', '.join(near[:limit])}?" if near else ""


def _letters(name: str) -> str:
    """A name without case and punctuation."""
    return "".join(c for c in name.lower() if c.isalnum())


def near_to(name: str, known: Iterable[str]) -> str:
    """The known name that one typing error or two make of `name`; empty where there is none.

    A short name has to be nearer: one error in at least three letters.
    """
    most = min(2, len(name) // 3)
    found = min(
        ((edits(name.lower(), one.lower()), one) for one in known if abs(len(one) - len(name)) <= most), default=None
    )
    return found[1] if found is not None and found[0] <= most else ""


def edits(one: str, other: str) -> int:
    """Letters added, dropped or replaced to make one name of the other (Levenshtein 1966)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def shown(value: Any) -> str:
    """A wrong value as a message prints it, cut where it is long."""
    try:
        text = (
            repr(value)
            if isinstance(value, str | int | float | bool)
            else _TOML_NAMES.get(type(value), f"a {type(value).__name__}")
        )
    except ValueError:  # an int of more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "…"


_TOML_NAMES: dict[type, str] = {type(None): "none", dict: "a table", list: "a list", tuple: "a list"}
"""What TOML calls values that are not printed."""
