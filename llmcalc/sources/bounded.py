"""Opens and reads the user's files, with limits on the type of file, the bytes and the number of elements.

Every reader of a user's file goes through `open_regular_file`. A FIFO, a device or a socket could block or never end,
and files of `/proc` and `/sys` contain more than their size says; all of them are refused.
"""

from __future__ import annotations

import os
import re
import stat
from itertools import islice
from pathlib import Path
from typing import IO, Literal

from ..errors import InputError

MAX_JSON_ELEMENTS = 3_000_000
"""Largest number of values and fields in a JSON text. A published config with its label tables has under 20,000."""

MAX_TOML_ELEMENTS = 300_000
"""Largest number of values in lists and inline tables of a TOML text, which Python parses 20 times slower than JSON."""

_NONBLOCKING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


def decode_text(text_bytes: bytes, errors: Literal["strict", "ignore", "replace"] = "strict") -> str:
    """Decodes bytes as UTF-16 if they start with its byte-order mark, which PowerShell writes, otherwise as UTF-8.

    errors: what becomes of bytes that are no text. Raises `ValueError` by default, which says where they are.
    """
    is_utf_16 = text_bytes.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        return text_bytes.decode("utf-16" if is_utf_16 else "utf-8-sig", errors)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not {'UTF-16' if is_utf_16 else 'UTF-8'}") from None


def open_regular_file(path: Path, expected_text: str, allows_stdin: bool = False) -> tuple[IO[bytes], int]:
    """Opens a regular file for reading, and returns it with the size in bytes.

    expected_text: what a message says should be there, such as "a .toml file".
    allows_stdin: whether the option also reads standard input; a message advises it for a pipe.
    Raises `InputError` for a file that is missing or not readable, a folder, and anything that is no regular file.
    """
    try:
        _require_regular_file(path, os.stat(path), expected_text, allows_stdin)  # a device is not even opened
        file_descriptor = os.open(path, os.O_RDONLY | _NONBLOCKING)
    except (OSError, ValueError) as error:  # ValueError: a NUL or a lone surrogate in the path
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: {_error_reason(error)}; expected {expected_text} that can be read") from None
    try:
        file_status = os.fstat(file_descriptor)  # of the file that was opened, whatever its name has become since
        _require_regular_file(path, file_status, expected_text, allows_stdin)
        return os.fdopen(file_descriptor, "rb"), file_status.st_size
    except BaseException:
        os.close(file_descriptor)
        raise


def read_bytes(path: Path, byte_limit: int, expected_text: str, allows_stdin: bool = False) -> bytes:
    """Returns the content of a regular file of at most `byte_limit` bytes.

    expected_text, allows_stdin: as of `open_regular_file`. Raises `InputError` as `open_regular_file` does, for a file
    that is too large, and for a file that contains more or fewer bytes than its size says.
    """
    file, file_bytes = open_regular_file(path, expected_text, allows_stdin)
    with file:
        if file_bytes > byte_limit:
            raise InputError(
                f"{path}: {file_bytes:,} bytes is too large; expected {expected_text} of at most {byte_limit:,} bytes"
            )
        try:
            content = file.read(file_bytes + 1) or b""
        except OSError as error:
            raise InputError(f"{path}: {_error_reason(error)}; expected {expected_text} that can be read") from None
    if len(content) != file_bytes:
        raise InputError(
            f"{path}: is not a regular file: its size is {file_bytes:,} bytes and "
            f"{'more' if len(content) > file_bytes else f'{len(content):,}'} were read; expected {expected_text}"
        )
    return content


def _require_regular_file(path: Path, file_status: os.stat_result, expected_text: str, allows_stdin: bool) -> None:
    if stat.S_ISDIR(file_status.st_mode):
        raise InputError(f"{path}: is a folder; expected {expected_text}")
    if not stat.S_ISREG(file_status.st_mode):
        piped_hint = " (or `-` and its content piped in)" if allows_stdin else ""
        raise InputError(f"{path}: is not a regular file; expected {expected_text}{piped_hint}")


def _error_reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "has a character that no path can have"


_JSON_SIGN = r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?+|[\[{,]'
"""Matches a JSON string, or a sign that begins or separates values. An unterminated string matches to the end of the
text: otherwise the search would begin again at each of its quotes.
"""


def require_few_elements(file_text: str, error_location: str, element_limit: int) -> None:
    """Raises `InputError` for a text with more than `element_limit` brackets, braces and commas outside its strings.

    A JSON or TOML text has at most one value more than these, so what is built from it is bounded before it is parsed.
    The count ends where the limit is passed.
    """
    if file_text.count("[") + file_text.count("{") + file_text.count(",") <= element_limit:
        return
    # signs in strings build nothing
    sign_matches = (sign_match for sign_match in re.finditer(_JSON_SIGN, file_text) if sign_match[0][0] != '"')
    if next(islice(sign_matches, element_limit, None), None) is not None:
        raise InputError(
            f"{error_location}: more than {element_limit:,} values and fields; expected at most {element_limit:,}"
        )
