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

from ..errors import InputError, short_repr, suggest
from ..sources.bounded import read_bytes
from ..timing.trace import TracedRequest
from ..workload.durations import parse_duration
from ..workload.setting import checked_length
from ..workload.validation import validate_whole

MAX_BYTES = 2**23
"""Largest size of a trace file, in bytes."""

MAX_REQUESTS = 20_000
"""Largest number of requests in a trace."""

MAX_TOKENS = 2**24
"""Most tokens of a prompt or an answer."""

MAX_INPUT_TOKENS = 200_000_000
"""Most tokens of all prompts of a trace together, because each step is simulated."""

MAX_SECONDS = 30 * 86400.0
"""Latest arrival of a request, in seconds: 30 days."""

TRACE_COLUMNS = ("arrival", "input", "output")

EXPECTED_FILE = "a .csv or .jsonl file"


def read_trace(path: str | Path) -> tuple[TracedRequest, ...]:
    """Reads the requests of a trace, sorted by arrival; the first request arrives at 0 seconds.

    Raises `InputError`, which names the file, the line and the column.
    """
    file_bytes = read_bytes(Path(path), MAX_BYTES, EXPECTED_FILE)
    try:
        file_text = file_bytes.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; expected {EXPECTED_FILE}") from None
    numbered_rows = _json_rows(path, file_text) if file_text.lstrip().startswith("{") else _csv_rows(path, file_text)
    traced_requests: list[TracedRequest] = []
    input_tokens = 0
    for line_number, row_cells in numbered_rows:
        if len(traced_requests) >= MAX_REQUESTS:
            raise InputError(f"{path}: more than {MAX_REQUESTS:,} requests; expected at most so many")
        traced_requests.append(_traced_request(f"{path}:{line_number}", row_cells))
        input_tokens += traced_requests[-1].input_tokens
        if input_tokens > MAX_INPUT_TOKENS:
            raise InputError(
                f"{path}:{line_number}: input: more than {MAX_INPUT_TOKENS:,} tokens of all prompts; expected a "
                "part of the trace"
            )
    if not traced_requests:
        raise InputError(f"{path}: has no request; expected lines of {', '.join(TRACE_COLUMNS)}")
    traced_requests.sort(key=lambda traced_request: traced_request.arrival_seconds)
    first_arrival_seconds = traced_requests[0].arrival_seconds
    return tuple(
        TracedRequest(
            traced_request.arrival_seconds - first_arrival_seconds,
            traced_request.input_tokens,
            traced_request.output_tokens,
        )
        for traced_request in traced_requests
    )


def _csv_rows(path: str | Path, file_text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        csv_reader = csv.DictReader(io.StringIO(file_text), strict=True)
        _check_columns(f"{path}", csv_reader.fieldnames or ())
        for row_cells in csv_reader:
            if None in row_cells or None in row_cells.values():
                raise InputError(f"{path}:{csv_reader.line_num}: has another number of cells than the heading")
            yield csv_reader.line_num, row_cells
    except csv.Error as error:
        raise InputError(f"{path}: {error}; expected {EXPECTED_FILE}") from None


def _json_rows(path: str | Path, file_text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line_number, line_text in enumerate(file_text.splitlines(), 1):
        if not line_text.strip():
            continue
        try:
            row_cells = json.loads(line_text)
        except (ValueError, RecursionError):
            raise InputError(f"{path}:{line_number}: is no JSON object; expected one on each line") from None
        if not isinstance(row_cells, dict):
            raise InputError(f"{path}:{line_number}: is no JSON object; expected one on each line")
        _check_columns(f"{path}:{line_number}", row_cells)
        yield line_number, row_cells


def _check_columns(place_in_error: str, column_names: Any) -> None:
    for column_name in column_names:
        if column_name not in TRACE_COLUMNS:
            raise InputError(
                f"{place_in_error}: column {short_repr(column_name)} is not known; expected {', '.join(TRACE_COLUMNS)}."
                f"{suggest(str(column_name), list(TRACE_COLUMNS))}"
            )
    for column_name in TRACE_COLUMNS:
        if column_name not in column_names:
            raise InputError(
                f"{place_in_error}: the column '{column_name}' is missing; expected {', '.join(TRACE_COLUMNS)}"
            )


def _traced_request(place_in_error: str, row_cells: Mapping[str, Any]) -> TracedRequest:
    token_counts = [
        validate_whole(
            f"{place_in_error}: {column_name}",
            checked_length(f"{place_in_error}: {column_name}", _cell_value(row_cells[column_name])),
            maximum=MAX_TOKENS,
        )
        for column_name in ("input", "output")
    ]
    return TracedRequest(
        _arrival_seconds(f"{place_in_error}: arrival", _cell_value(row_cells["arrival"])), *token_counts
    )


def _cell_value(cell_value: Any) -> Any:
    return cell_value.strip() if isinstance(cell_value, str) else cell_value


def _arrival_seconds(place_in_error: str, cell_value: Any) -> float:
    """Returns a request's arrival time in seconds, from a number or a text with a unit."""
    is_number = isinstance(cell_value, int | float) and not isinstance(cell_value, bool)
    is_plain_number = (
        isinstance(cell_value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,20})?", cell_value) is not None
    )
    seconds = float(cell_value) if is_number or is_plain_number else parse_duration(place_in_error, cell_value)
    if not 0 <= seconds <= MAX_SECONDS:
        raise InputError(f"{place_in_error}: {short_repr(cell_value)}; expected seconds from 0 up to 30 days")
    return seconds
