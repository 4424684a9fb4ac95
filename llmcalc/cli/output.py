"""Where answers go: stdout, or a file that appears whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO

from ..errors import InputError


@contextmanager
def stdout() -> Iterator[IO[str]]:
    """stdout, flushed. A reader that has gone (`llmcalc … | head`) is no error.

    Raises `InputError` where the caller closed it.
    """
    if sys.stdout is None:
        raise InputError("standard output is closed; expected it open, or --output FILE")
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
    except SystemExit as stop:  # what rich makes of a reader that has gone; the command has its own exit code
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        discard(sys.stdout)


def discard(stream: IO[str]) -> None:
    """Sends whatever a stream still holds, and all that follows, nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def writable(path: Path, option: str) -> None:
    """Raises `InputError` naming the option where no file of that name can be written."""
    try:
        folder = path.resolve().parent
        if path.is_dir():
            raise InputError(f"{option}: {path} is a folder; expected a file")
        if not folder.is_dir():
            raise InputError(f"{option}: {path}: there is no folder {folder}; expected one that exists")
        if not os.access(path if special(path) else folder, os.W_OK):
            raise InputError(f"{option}: {path}: is not writable")
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise InputError(
            f"{option}: {path}: {getattr(error, 'strerror', None) or error}; expected a file that can be written"
        ) from None


def special(path: Path) -> bool:
    """Whether it is a device or a pipe: written to as it is, and never replaced by a file (`-o /dev/null`)."""
    return path.exists() and not path.is_file()


@contextmanager
def written(path: Path, option: str) -> Iterator[TextIOWrapper]:
    """A file that appears under its name only when all of it has been written. A link keeps pointing where it points.

    Raises `InputError` naming the option where it cannot be written.
    """
    writable(path, option)
    if special(path):
        try:
            with path.open("w", encoding="utf-8") as out:
                yield out
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _unwritten(path, option, error) from None
        return
    target = path.resolve()
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".llmcalc-")
    except OSError as error:
        raise _unwritten(path, option, error) from None
    part = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            yield out
        part.chmod(target.stat().st_mode if target.exists() else 0o666 & ~_umask())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _unwritten(path: Path, option: str, error: OSError) -> InputError:
    return InputError(f"{option}: {path}: {error.strerror}; expected a file that can be written")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
