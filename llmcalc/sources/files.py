"""Reads the user's files: limited size, decoded text, and a clear message for each kind of error."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import islice, takewhile
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..components.part_choice import PartError
from ..errors import InputError, short_repr, suggest
from .bounded import MAX_JSON_ELEMENTS, MAX_TOML_ELEMENTS, decode_text, read_bytes, require_few_elements

if TYPE_CHECKING:
    from json import JSONDecodeError

LARGEST_TOML = 1_000_000
"""Largest TOML file in bytes. The largest preset is under 5 000."""

LARGEST_CONFIG = 5_000_000
"""Largest `config.json` in bytes. Published ones are under 200 000, label tables included."""

DEEPEST_NESTING = 40
"""Largest nesting of tables. The deepest preset has 6 levels."""

Model = TypeVar("Model", bound=BaseModel)


def largest_description_bytes(path: Path) -> int:
    """Returns the largest accepted size of a model description in bytes, by file suffix."""
    return LARGEST_CONFIG if path.suffix == ".json" else LARGEST_TOML


def read_text(path: Path, byte_limit: int | None = None, allows_stdin: bool = False) -> str:
    """Returns the text of a regular file of at most `byte_limit` bytes (default `largest_description_bytes`).

    allows_stdin: whether the option also reads standard input; a message advises it for a pipe.
    Raises `InputError` for a file that is missing, unreadable, too large, or not text in UTF-8 or UTF-16.
    """
    expected_file = f"a {path.suffix} file" if path.suffix in (".json", ".toml", ".yaml", ".yml", ".sh") else "a file"
    text_bytes = read_bytes(
        path, largest_description_bytes(path) if byte_limit is None else byte_limit, expected_file, allows_stdin
    )
    try:
        return decode_text(text_bytes)
    except ValueError as error:
        raise InputError(f"{path}: not a text file ({error}); expected {expected_file} in UTF-8 or UTF-16") from None


def read_stdin() -> str:
    """Reads a description from standard input, limited to the size of a description's file.

    Raises `InputError` if it is empty, too large or not text.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("-: standard input is a terminal; expected a config.json or a .toml piped into it")
    stream = getattr(sys.stdin, "buffer", None)
    read_limit = LARGEST_CONFIG + 1
    text_bytes = sys.stdin.read(read_limit).encode() if stream is None else stream.read(read_limit)
    byte_limit = LARGEST_CONFIG if is_json_object(decode_text(text_bytes, "ignore")) else LARGEST_TOML
    if len(text_bytes) > byte_limit:
        raise InputError(f"-: standard input is too large for a model description (at most {byte_limit:,} bytes)")
    try:
        model_text = decode_text(text_bytes)
    except ValueError as error:
        raise InputError(f"-: standard input is not text ({error})") from None
    if not model_text.strip():
        raise InputError("-: standard input is empty; expected a config.json or a .toml description")
    return str(model_text)


def is_json_object(model_text: str) -> bool:
    """Whether a text is a JSON object (a `config.json`) instead of TOML, by the first character."""
    return model_text.lstrip().startswith("{")


def parse_toml(toml_text: str, error_location: str) -> dict[str, Any]:
    """Parses TOML. Raises `InputError` with line and column for invalid TOML, and for tables nested too deeply."""
    require_few_elements(toml_text, error_location, MAX_TOML_ELEMENTS)
    _require_short_keys(toml_text, error_location)
    try:
        parsed_table = tomllib.loads(toml_text)
    except ValueError as error:  # TOMLDecodeError, and a number of more digits than Python converts
        raise InputError(f"{error_location}: not valid TOML: {str(error).partition(';')[0]}") from None
    except RecursionError:
        raise InputError(_too_deep_error(error_location)) from None
    require_shallow_nesting(parsed_table, error_location)
    return parsed_table


def _require_short_keys(toml_text: str, error_location: str) -> None:
    """Raises `InputError` for long dotted keys, for which tomllib would need too much memory.

    It keeps every prefix of a dotted key, so the memory for one key grows with the square of its parts.
    """
    dot_count = 0
    for line in toml_text.split("\n"):
        dot_count += line.partition("=")[0].count(".")
        if line.count(".") > DEEPEST_NESTING and re.search(_DEEP_KEY, re.sub(_TOML_STRING, '""', line)):
            raise InputError(_too_deep_error(error_location))
    if dot_count > MAX_DOTS:
        raise InputError(f"{error_location}: {dot_count:,} dots in keys are too many; expected at most {MAX_DOTS:,}")


_TOML_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+|\'[^\']*+\'?+'  # one that does not end has the rest
_KEY_PART = r'(?:(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++|"")'
_DEEP_KEY = rf"{_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART}){{{DEEPEST_NESTING},}}"
MAX_DOTS = 100_000
"""Largest number of dots in the dotted keys of a TOML text."""


def parse_json(json_text: str, error_location: str) -> Any:
    """Parses JSON. Raises `InputError` with line and column for invalid JSON, and for values nested too deeply."""
    import json

    require_few_elements(json_text, error_location, MAX_JSON_ELEMENTS)
    try:
        parsed_value = json.loads(json_text)
    except json.JSONDecodeError as error:
        raise InputError(f"{error_location}: not valid JSON: {_json_error_text(error)}") from None
    except (RecursionError, ValueError):
        raise InputError(
            f"{error_location}: not valid JSON: nested too deeply, or with a number of thousands of digits"
        ) from None
    require_shallow_nesting(parsed_value, error_location)
    return parsed_value


def _json_error_text(error: JSONDecodeError) -> str:
    """Returns the error of a JSON text with line and column, and a fix for common mistakes such as comments."""
    preceding_text, wrong_character = error.doc[: error.pos].rstrip(), error.doc[error.pos : error.pos + 1]
    if not error.doc.strip():
        return "it is empty"
    fix_text = ""
    if preceding_text.endswith(",") and wrong_character in "]}":
        fix_text = "; remove the comma before it"
    elif wrong_character == "'" and "quotes" not in error.msg:
        fix_text = "; expected double quotes"
    elif error.doc.startswith("/", error.pos):
        fix_text = "; JSON has no comments"
    elif error.doc.lstrip().startswith("<"):
        fix_text = "; it is a page of HTML or XML; expected the raw file"
    elif error.doc.startswith("version https://git-lfs"):
        fix_text = "; it is a pointer of Git LFS; expected the file itself, which git lfs pull fetches"
    return f"{error.msg} (line {error.lineno}, column {error.colno}){fix_text}"


def require_shallow_nesting(parsed_value: Any, error_location: str) -> None:
    """Raises `InputError` for a value nested deeper than `DEEPEST_NESTING`."""
    if not any(not values_at_depth for values_at_depth in islice(_values_by_depth(parsed_value), DEEPEST_NESTING + 1)):
        raise InputError(_too_deep_error(error_location))


def require_finite(parsed_value: Any, error_location: str) -> None:
    """Raises `InputError` for Infinity and NaN, which Python's reader of JSON accepts."""
    for values_at_depth in takewhile(bool, _values_by_depth(parsed_value)):
        non_finite_number = next(
            (value for value in values_at_depth if isinstance(value, float) and not isfinite(value)), None
        )
        if non_finite_number is not None:
            raise InputError(f"{error_location}: {non_finite_number} is no number of JSON; expected finite numbers")


def _values_by_depth(parsed_value: Any) -> Iterator[list[Any]]:
    """Yields all values at each depth of nested tables and lists, starting with the whole value."""
    values_at_depth = [parsed_value]
    while True:
        yield values_at_depth
        containers = (nested_value for nested_value in values_at_depth if isinstance(nested_value, dict | list | tuple))
        values_at_depth = [
            nested_value
            for container in containers
            for nested_value in (container.values() if isinstance(container, dict) else container)
        ]


def _too_deep_error(error_location: str) -> str:
    return f"{error_location}: nested too deeply; expected at most {DEEPEST_NESTING} tables and lists in each other"


def validate(model_class: type[Model], description: Any, error_location: str) -> Model:
    """Validates data as a pydantic model.

    Raises `InputError`, which names the first wrong field, its value, the expected value, and the number of other
    errors.
    """
    require_shallow_nesting(description, error_location)
    try:
        return model_class.model_validate(description)
    except ValidationError as error:
        raise InputError(f"{error_location}: {explain_errors(model_class, error)}") from None


def explain_errors(model: type[BaseModel], error: ValidationError) -> str:
    """Formats pydantic's errors as one line."""
    from .description_fields import all_field_names, field_path

    errors = error.errors(include_url=False)
    error_paths = [
        ".".join(field_path(model, error_detail["loc"], has_unknown_field=error_detail["type"] == "extra_forbidden"))
        for error_detail in errors
    ]
    first_error, path = errors[0], error_paths[0]
    match first_error["type"]:
        case "missing":
            error_text = f"{path}: required field is missing"
        case "extra_forbidden":
            error_text = (
                f"{path}: unknown field; remove it or correct its "
                f"name.{suggest(str(first_error['loc'][-1]), all_field_names(model))}"
            )
        case "value_error":
            first_cause = first_error["ctx"]["error"]
            is_part_error = isinstance(first_cause, PartError)
            error_text = (
                explain_errors(first_cause.cls, first_cause.error) if is_part_error else explain_value(first_error)
            )
            error_text = f"{path}.{error_text}" if path else error_text
        case "union_tag_invalid" | "union_tag_not_found":
            error_text = f"{path}.type: {explain_value(first_error)}"
        case _:
            alternatives = [
                str(error_detail["ctx"]["expected"])
                for error_path, error_detail in zip(error_paths, errors, strict=True)
                if error_path == path and error_detail["type"] == "literal_error"
            ]
            error_text = f"{path}: {explain_value(first_error)}" + "".join(
                f" or {alternative}" for alternative in alternatives[1:]
            )
    other_error_count = len(set(error_paths)) - 1  # a union reports the errors of each member
    return error_text + (f" (and {other_error_count} more)" if other_error_count else "")


EXPECTED_BY_ERROR_TYPE = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "model_type": "a table",
    "dict_type": "a table",
    "tuple_type": "a list",
    "list_type": "a list",
}
"""Type of a pydantic validation error → the expected value, in words."""


def explain_value(error: Mapping[str, Any]) -> str:
    """Describes a wrong value and the expected value. error: a validation error of pydantic."""
    value_text, error_type = short_repr(error.get("input")), error["type"]
    error_context: dict[str, Any] = error.get("ctx") or {}
    if error_type in EXPECTED_BY_ERROR_TYPE:
        return f"{value_text} is not {EXPECTED_BY_ERROR_TYPE[error_type]}"
    match error_type:
        case "value_error":
            return str(error_context["error"])
        case "literal_error" | "enum":
            return f"{value_text} is not known; expected {error_context['expected']}"
        case "union_tag_invalid":
            return f"{short_repr(error_context['tag'])} is not known; expected {error_context['expected_tags']}"
        case "union_tag_not_found":
            return "none is no type; expected its name as text"
        case "greater_than_equal":
            return f"{value_text} is too small; expected at least {error_context['ge']}"
        case "greater_than":
            return f"{value_text} is too small; expected more than {error_context['gt']}"
        case "less_than_equal":
            return f"{value_text} is too large; expected at most {error_context['le']}"
        case "less_than":
            return f"{value_text} is too large; expected less than {error_context['lt']}"
        case "too_long":
            return f"{value_text} is too long; expected at most {error_context['max_length']:,} entries"
    return f"{value_text}: {error['msg'][:1].lower()}{error['msg'][1:]}"
