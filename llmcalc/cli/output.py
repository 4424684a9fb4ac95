"""Where answers go: stdout, or a file that appears whole or not at all. Remarks beside them go to stderr."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import IO

from ..errors import InputError, one_line

_remarks: list[str] = []
"""Remarks of the command that runs. They wait until it has answered."""


def remark(text: str) -> None:
    """Keeps a note or a warning for stderr. It is printed after the answer; a command that refuses prints its error
    alone.
    """
    _remarks.append(text)


def drop_remarks() -> None:
    """Forgets the remarks: a command begins, or it has refused."""
    _remarks.clear()


def print_remarks() -> None:
    """Prints the remarks on stderr, each on one line, and forgets them."""
    for text in _remarks:
        print_line(text)
    drop_remarks()


def print_line(text: str) -> None:
    """Prints one line on stderr, if that is open."""
    if sys.stderr is not None:  # None: the caller closed it
        with suppress(OSError):
            print(one_line(text), file=sys.stderr, flush=True)


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
    with _unwound_by_signals():
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


ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that end a process without running its `finally` clauses; Ctrl-C (SIGINT) runs them."""


class _Signalled(BaseException):
    """One of `ENDING` has arrived. number: which one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _unwound_by_signals() -> Iterator[None]:
    """Runs the `finally` clauses inside it when a signal ends the process, and then lets the signal end it, so that the
    exit status is that of the signal. Does nothing outside the main thread, where Python handles no signals.
    """

    def unwind(number: int, _: FrameType | None) -> None:
        raise _Signalled(number)

    before = {}
    try:
        for number in ENDING:
            if signal.getsignal(number) == signal.SIG_DFL:  # an ignored signal (nohup) stays ignored
                with suppress(ValueError):  # not the main thread
                    before[number] = signal.signal(number, unwind)
        yield
    except _Signalled as stop:
        signal.signal(stop.number, signal.SIG_DFL)
        os.kill(os.getpid(), stop.number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _unwritten(path: Path, option: str, error: OSError) -> InputError:
    return InputError(f"{option}: {path}: {error.strerror}; expected a file that can be written")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
