"""Reads requests of a trace (`--trace FILE`): a CSV file, or a JSON object per line.

Its columns are `arrival` (seconds, or a duration such as 35ms), `input` and `output` (tokens). Example:

    arrival,input,output
    0.0,1200,300
    0.35,4100,120
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError, shown, suggest
from ..sources.bounded import read_bytes
from ..timing.trace import TracedRequest
from ..workload.setting import length_of
from ..workload.validation import whole
from .durations import parse_duration

MOST_BYTES = 2**23
"""Largest size of the file."""

MOST_REQUESTS = 20_000
"""Largest number of requests."""

MOST_TOKENS = 2**24
"""Most tokens of a prompt or an answer."""

MOST_INPUT = 200_000_000
"""Most tokens of all prompts together, which are computed step by step."""

MOST_SECONDS = 30 * 86400.0
"""Latest arrival."""

COLUMNS = ("arrival", "input", "output")

EXPECTED = "a .csv or .jsonl file"


def read_trace(path: str | Path) -> tuple[TracedRequest, ...]:
    """Reads the requests of a trace, sorted by arrival; the first request arrives at 0 seconds.

    Raises `InputError`, which names the file, the line and the column.
    """
    file_bytes = read_bytes(Path(path), MOST_BYTES, EXPECTED)
    try:
        text = file_bytes.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; expected {EXPECTED}") from None
    rows = _json_rows(path, text) if text.lstrip().startswith("{") else _csv_rows(path, text)
    requests: list[TracedRequest] = []
    input_tokens = 0
    for line_number, row in rows:
        if len(requests) >= MOST_REQUESTS:
            raise InputError(f"{path}: more than {MOST_REQUESTS:,} requests; expected at most so many")
        requests.append(_traced_request(f"{path}:{line_number}", row))
        input_tokens += requests[-1].input
        if input_tokens > MOST_INPUT:
            raise InputError(
                f"{path}:{line_number}: input: more than {MOST_INPUT:,} tokens of all prompts; expected a "
                "part of the trace"
            )
    if not requests:
        raise InputError(f"{path}: has no request; expected lines of {', '.join(COLUMNS)}")
    requests.sort(key=lambda request: request.arrival)
    first_arrival = requests[0].arrival
    return tuple(TracedRequest(request.arrival - first_arrival, request.input, request.output) for request in requests)


def _csv_rows(path: str | Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        _check_columns(f"{path}", reader.fieldnames or ())
        for row in reader:
            if None in row or None in row.values():
                raise InputError(f"{path}:{reader.line_num}: has another number of cells than the heading")
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{path}: {error}; expected {EXPECTED}") from None


def _json_rows(path: str | Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line_number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError(f"{path}:{line_number}: is no JSON object; expected one on each line") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}:{line_number}: is no JSON object; expected one on each line")
        _check_columns(f"{path}:{line_number}", row)
        yield line_number, row


def _check_columns(place_in_error: str, names: Any) -> None:
    for name in names:
        if name not in COLUMNS:
            raise InputError(
                f"{place_in_error}: column {shown(name)} is not known; expected {', '.join(COLUMNS)}."
                f"{suggest(str(name), list(COLUMNS))}"
            )
    for name in COLUMNS:
        if name not in names:
            raise InputError(f"{place_in_error}: the column '{name}' is missing; expected {', '.join(COLUMNS)}")


def _traced_request(place_in_error: str, row: Mapping[str, Any]) -> TracedRequest:
    tokens = [
        whole(
            f"{place_in_error}: {name}",
            length_of(f"{place_in_error}: {name}", _cell_value(row[name])),
            most=MOST_TOKENS,
        )
        for name in ("input", "output")
    ]
    return TracedRequest(_arrival_seconds(f"{place_in_error}: arrival", _cell_value(row["arrival"])), *tokens)


def _cell_value(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _arrival_seconds(place_in_error: str, value: Any) -> float:
    """Returns a request's arrival time in seconds, from a number or a text with a unit."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_plain = isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,20})?", value) is not None
    seconds = float(value) if is_number or is_plain else parse_duration(place_in_error, value)
    if not 0 <= seconds <= MOST_SECONDS:
        raise InputError(f"{place_in_error}: {shown(value)}; expected seconds from 0 up to 30 days")
    return seconds
