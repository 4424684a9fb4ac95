"""Reads a user's log as lines, bounded in bytes and line length, decoded, without terminal colours."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ...errors import InputError
from ...sources.bounded import decode_text, read_bytes

LARGEST_LOG = 20_000_000
"""Largest log in bytes."""

LONGEST_LINE = 20_000
"""Largest number of characters read per line; the arguments of a server are one line of a few thousand characters."""

MAX_LINES = 10_000
"""Largest number of lines that are read for one search text."""

_CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
"""Pattern of terminal control sequences, which move the cursor, delete text or change colours."""


class LogText:
    """The text of a log: lines without terminal colours, cut to `LONGEST_LINE`, that can be searched."""

    def __init__(self, log_text: str) -> None:
        log_lines = _CONTROL_SEQUENCE.sub("", log_text).splitlines()
        self.text: str = "\n".join(log_line[:LONGEST_LINE] for log_line in log_lines)

    def line_spans(self, line_hint: str) -> Iterator[tuple[int, int, int]]:
        """Yields the offsets (line start, hint, line end) of the lines that contain a text, at most `MAX_LINES`."""
        line_end = -1
        for _ in range(MAX_LINES):
            hint_start = self.text.find(line_hint, line_end + 1)
            if hint_start < 0:
                return
            line_start, line_end = self.text.rfind("\n", 0, hint_start) + 1, self.text.find("\n", hint_start)
            line_end = len(self.text) if line_end < 0 else line_end
            yield line_start, hint_start, line_end

    def lines_with(self, *line_hints: str) -> list[str]:
        """Returns the lines that contain any of the given texts, in order."""
        line_offsets = {
            (offset, line_end_offset) for hint in line_hints for offset, _, line_end_offset in self.line_spans(hint)
        }
        return [self.text[line_start:line_end] for line_start, line_end in sorted(line_offsets)]


FEWEST_MESSAGE_WORDS = 4
"""Number of words from which on a text that is no file name is a pasted message."""

OUT_OF_MEMORY = re.compile(r"out of memory|(?:unable|failed) to allocate|OutOfMemoryError|MemoryError", re.IGNORECASE)
"""Pattern of the words with which programs report a lack of memory."""

_MESSAGE_MARK = re.compile(r"\w: |://")
"""Pattern of a colon after an error's kind, or of a link, neither of which file names contain."""


def is_pasted_message(text: str) -> bool:
    """Whether a text given as a file name is a message that a program printed.

    It is a file's name if there is such a file. Otherwise text of several words is a message if it has several lines,
    says that memory ran out, or has a colon or a link as sentences have; the rest is one without a separator of folders
    and without the end of a log's name.
    """
    text_start = text[:LONGEST_LINE]
    try:
        if len(text_start.split()) < FEWEST_MESSAGE_WORDS or Path(text).exists():
            return False
    except (OSError, ValueError):  # too long for a path, or with a null byte
        return True
    if "\n" in text_start.strip() or OUT_OF_MEMORY.search(text_start) or _MESSAGE_MARK.search(text_start):
        return True
    return not (text.endswith((".log", ".txt")) or "/" in text_start or "\\" in text_start)


def read_log_text(log_file: str) -> LogText:
    """Returns the text of a log. log_file: its path, `-` for standard input, or the text of a printed message itself.

    Raises `InputError` for a file that is missing, unreadable, too large or empty.
    """
    if is_pasted_message(log_file):
        return LogText(log_file[:LARGEST_LOG])
    log_bytes = _standard_input() if log_file == "-" else read_bytes(Path(log_file), LARGEST_LOG, "a log", True)
    decoded_text = decode_text(log_bytes, "replace")
    if not decoded_text.strip():
        raise InputError(f"{log_file}: is empty; expected a log")
    return LogText(decoded_text)


def _standard_input() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("-: standard input is a terminal; expected a log piped into it")
    byte_stream = getattr(sys.stdin, "buffer", None)
    log_bytes = sys.stdin.read(LARGEST_LOG + 1).encode() if byte_stream is None else byte_stream.read(LARGEST_LOG + 1)
    if len(log_bytes) > LARGEST_LOG:
        raise InputError(f"-: standard input is too large for a log (at most {LARGEST_LOG:,} bytes)")
    return bytes(log_bytes)
