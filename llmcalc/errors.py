"""The exception for user errors: its message names the field, the given value and the expected value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .characters import printable

LONGEST_MESSAGE = 1000
"""Maximum length of an error message in characters; longer messages, such as a file given as a name, are cut."""


def one_line(message_text: str) -> str:
    """Returns the text on one line, with control characters escaped so that it can be printed safely.

    Characters that are not printable are escaped. A text longer than `LONGEST_MESSAGE` is cut in its middle.
    """
    if len(message_text) > 2 * LONGEST_MESSAGE:  # escaping makes it no shorter, so only its ends are needed
        message_text = message_text[:LONGEST_MESSAGE] + message_text[-LONGEST_MESSAGE:]
    printable_line = printable(message_text)
    half_length = LONGEST_MESSAGE // 2
    if len(printable_line) <= LONGEST_MESSAGE:
        return printable_line
    return f"{printable_line[:half_length]} … {printable_line[-half_length:]}"


class InputError(ValueError):
    """Wrong input or usage. The message is one line, which the command line prints before it exits with status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class MissingExtra(InputError):
    """The error raised when a feature needs an optional package that is not installed."""

    def __init__(self, feature_name: str, package_name: str, extra_name: str) -> None:
        super().__init__(f"{feature_name} needs {package_name}: pip install {_pip_requirement(extra_name)}")


def _pip_requirement(optional_group: str) -> str:
    """Returns the requirement that pip needs to install an extra, from llmcalc's checkout, wheel or repository.

    For an installation from an index it is the package's name.
    """
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    pip_requirement = f"llmcalc-arch[{optional_group}]"
    try:
        install_origin = json.loads(distribution("llmcalc-arch").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        install_origin = {}
    source_url = str(install_origin.get("url", ""))
    if "dir_info" in install_origin:
        editable_option = "-e " if install_origin["dir_info"].get("editable") else ""
        return f"{editable_option}'{source_url.removeprefix('file://')}[{optional_group}]'"
    if "vcs_info" in install_origin:
        repository_info = install_origin["vcs_info"]
        return f"'{pip_requirement} @ {repository_info.get('vcs')}+{source_url}@{repository_info.get('commit_id')}'"
    return f"'{pip_requirement} @ {source_url}'" if source_url else f"'{pip_requirement}'"


MAX_SUGGESTIONS = 3
"""Largest number of names that a message suggests."""

SMALLEST_SIMILARITY = 0.67
"""Smallest `difflib` ratio of a suggested name to the typed name; `nope` and `gopher` have 0.6."""

SIMILARITY_OF_PREFIX = 0.75
"""Smallest `difflib` ratio of a name's prefix to a typed text of the same length: one letter of four may differ."""


def suggest(wrong_name: str, known_names: list[str] | dict[str, str]) -> str:
    """Returns ` Did you mean a, b?` with the nearest known names; empty if no name is near.

    Names that begin with the given text come first, then names that begin with its letters and digits, then names
    that contain these, then names with the fewest letters that differ, then names whose beginnings differ least. So
    `t5` finds t5-base, `layers` num_hidden_layers, and `falcom`, whose first letter is right, falcon-7b.
    known_names: the known names, or a mapping from other spellings to the names that the message prints.
    """
    import difflib

    names_by_spelling = (
        known_names if isinstance(known_names, dict) else {known_name: known_name for known_name in known_names}
    )
    lowercase_name, name_count = wrong_name.lower()[:100], 2 * MAX_SUGGESTIONS
    wrong_letters = _lowercase_letters_and_digits(lowercase_name)
    sorted_names = sorted(
        (known_name for known_name in set(names_by_spelling.values())),
        key=lambda known_name: (len(known_name), known_name),
    )
    matching_names = [
        known_name
        for known_name in sorted_names
        if len(wrong_letters) > 1 and _lowercase_letters_and_digits(known_name).startswith(wrong_letters)
    ]
    matching_names.sort(key=lambda known_name: not known_name.lower().startswith(lowercase_name))
    matching_names += [
        known_name
        for known_name in sorted_names
        if len(wrong_letters) > 2 and wrong_letters in _lowercase_letters_and_digits(known_name)
    ]
    names_by_lowercase = {spelling.lower().lstrip("-"): name for spelling, name in names_by_spelling.items()}
    similar_spellings = difflib.get_close_matches(
        lowercase_name.lstrip("-"), names_by_lowercase, name_count, cutoff=SMALLEST_SIMILARITY
    )
    matching_names += [names_by_lowercase[similar_spelling] for similar_spelling in similar_spellings]
    names_by_prefix: dict[str, list[str]] = {}
    wrong_prefix = wrong_letters[:2]
    for known_name in sorted_names:
        name_prefix = _lowercase_letters_and_digits(known_name)[: len(wrong_letters)]
        if wrong_letters and name_prefix[:1] == wrong_letters[0]:
            names_by_prefix.setdefault(name_prefix, []).append(known_name)
    similar_prefixes = difflib.get_close_matches(
        wrong_letters, names_by_prefix, name_count, cutoff=SIMILARITY_OF_PREFIX
    )
    similar_prefixes.sort(
        key=lambda name_prefix: (edit_distance(name_prefix, wrong_letters), name_prefix[:2] != wrong_prefix)
    )
    for name_prefix in similar_prefixes:
        matching_names += names_by_prefix[name_prefix]
    suggested_names = list(dict.fromkeys(matching_names))
    return f" Did you mean {', '.join(suggested_names[:MAX_SUGGESTIONS])}?" if suggested_names else ""


def _lowercase_letters_and_digits(compared_name: str) -> str:
    """Returns the letters and digits of a name, in lower case."""
    return "".join(character for character in compared_name.lower() if character.isalnum())


def similar_name(typed_name: str, known_names: Iterable[str]) -> str:
    """Returns the known name that differs by at most two typing errors; empty if there is none.

    A short name may have fewer errors: at most one for every three letters.
    """
    max_edits = min(2, len(typed_name) // 3)
    nearest_name = min(
        (
            (edit_distance(typed_name.lower(), known_name.lower()), known_name)
            for known_name in known_names
            if abs(len(known_name) - len(typed_name)) <= max_edits
        ),
        default=None,
    )
    return nearest_name[1] if nearest_name is not None and nearest_name[0] <= max_edits else ""


def edit_distance(first_name: str, second_name: str) -> int:
    """Returns the edit distance of two names (Levenshtein 1966)."""
    row_distances = list(range(len(second_name) + 1))
    for first_index, first_letter in enumerate(first_name, 1):
        diagonal_distance, row_distances[0] = row_distances[0], first_index
        for second_index, second_letter in enumerate(second_name, 1):
            diagonal_distance, row_distances[second_index] = (
                row_distances[second_index],
                min(
                    row_distances[second_index] + 1,
                    row_distances[second_index - 1] + 1,
                    diagonal_distance + (first_letter != second_letter),
                ),
            )
    return row_distances[-1]


def short_repr(wrong_value: Any) -> str:
    """Returns the `repr` of a wrong value for an error message, cut to 60 characters."""
    try:
        if isinstance(wrong_value, str | int | float | bool):
            value_text = repr(wrong_value)
        else:
            value_text = _TOML_NAMES.get(type(wrong_value), f"a {type(wrong_value).__name__}")
    except ValueError:  # Python refuses to print an int with so many digits
        return "a number of thousands of digits"
    return value_text if len(value_text) <= 60 else value_text[:57] + "…"


_TOML_NAMES: dict[type, str] = {type(None): "none", dict: "a table", list: "a list", tuple: "a list"}
"""Type → its name in TOML, for values that a message describes without printing them."""
