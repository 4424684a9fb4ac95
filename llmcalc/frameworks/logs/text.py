"""The lines of a log that a user gives: bounded in bytes and in length, decoded, without colours of a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from ...errors import InputError
from ...sources.bounded import read_bytes

LARGEST_LOG = 20_000_000
"""Largest log in bytes."""

LONGEST_LINE = 20_000
"""Characters of a line that are read: the arguments of a server are one line of a few thousand."""

_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")


def read_log_lines(file: str) -> list[str]:
    """Returns the lines of a log. file: its path, or `-` for standard input.

    Raises `InputError` for a file that is missing, unreadable, too large or empty.
    """
    data = _standard_input() if file == "-" else read_bytes(Path(file), LARGEST_LOG, "a log")
    text = data.decode("utf-8", "replace")
    if not text.strip():
        raise InputError(f"{file}: is empty; expected a log")
    return lines_of(text)


def lines_of(text: str) -> list[str]:
    """Returns the lines of a text, without colours and cut to `LONGEST_LINE`."""
    return [_COLOUR.sub("", line[:LONGEST_LINE]) for line in text.splitlines()]


def _standard_input() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("-: standard input is a terminal; expected a log piped into it")
    stream = getattr(sys.stdin, "buffer", None)
    data = sys.stdin.read(LARGEST_LOG + 1).encode() if stream is None else stream.read(LARGEST_LOG + 1)
    if len(data) > LARGEST_LOG:
        raise InputError(f"-: standard input is too large for a log (at most {LARGEST_LOG:,} bytes)")
    return bytes(data)


def with_any(lines: Iterable[str], hints: Iterable[str]) -> list[str]:
    """Returns the lines that contain one of the hints."""
    hints = tuple(hints)
    return [line for line in lines if any(hint in line for hint in hints)]
