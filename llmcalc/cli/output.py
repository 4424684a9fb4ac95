"""Writes answers to stdout or to a file, completely or not at all; notes on the command go to stderr."""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper, UnsupportedOperation
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import IO

from ..errors import InputError, one_line

_remarks: list[str] = []
"""Remarks of the running command, printed after its answer."""


def store_remark(remark: str) -> None:
    """Stores a note or warning, which is printed to stderr after a successful answer."""
    _remarks.append(remark)


def drop_remarks() -> None:
    """Discards the stored notes for stderr, at the start of a command and after an error."""
    _remarks.clear()


def print_remarks() -> None:
    """Prints the stored notes on stderr, one per line, and removes them from the list."""
    for remark in _remarks:
        print_line(remark)
    drop_remarks()


def print_line(line_text: str) -> None:
    """Prints one line to stderr; prints nothing if stderr is closed."""
    if sys.stderr is not None:  # None: the caller closed it
        with suppress(OSError):
            print(one_line(line_text), file=sys.stderr, flush=True)


@contextmanager
def open_stdout() -> Iterator[IO[str]]:
    """Yields stdout and flushes it. A closed pipe (`llmcalc … | head`) is no error.

    Raises `InputError` if stdout is closed.
    """
    if sys.stdout is None:
        raise InputError("standard output is closed; expected it open, or --output FILE")
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stream(sys.stdout)
    except SystemExit as stop:  # rich raises it for a closed pipe; the command has its own exit code
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        discard_stream(sys.stdout)


def discard_stream(output_stream: IO[str]) -> None:
    """Redirects a stream and its buffered text to the null device. A stream in memory is left unchanged."""
    with suppress(UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output_stream.fileno())


def check_writable(output_path: Path, flag: str) -> None:
    """Raises `InputError`, which names the option, if the file cannot be written."""
    try:
        output_folder = output_path.resolve().parent
        if output_path.is_dir():
            raise InputError(f"{flag}: {output_path} is a folder; expected a file")
        if not output_folder.is_dir():
            raise InputError(f"{flag}: {output_path}: there is no folder {output_folder}; expected one that exists")
        if not os.access(output_path if is_device_file(output_path) else output_folder, os.W_OK):
            raise InputError(f"{flag}: {output_path}: is not writable")
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise InputError(
            f"{flag}: {output_path}: {getattr(error, 'strerror', None) or error}; expected a file that can be written"
        ) from None


def is_device_file(output_path: Path) -> bool:
    """Whether the path is a device or a pipe, which is never replaced by a file (`-o /dev/null`)."""
    return output_path.exists() and not output_path.is_file()


@contextmanager
def open_atomic_output(output_path: Path, option_name: str) -> Iterator[TextIOWrapper]:
    """Opens a temporary file, which is renamed to the output path once all text is written.

    Raises `InputError`, which names the option, if it cannot be written.
    """
    check_writable(output_path, option_name)
    if is_device_file(output_path):
        try:
            with os.fdopen(_open_device(output_path, option_name), "w", encoding="utf-8") as output_stream:
                yield output_stream
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _unwritable_file_error(output_path, option_name, error) from None
        return
    resolved_path = output_path.resolve()
    with _run_finally_on_signals():
        try:
            file_descriptor, temporary_name = tempfile.mkstemp(dir=resolved_path.parent, prefix=".llmcalc-")
        except OSError as error:
            raise _unwritable_file_error(output_path, option_name, error) from None
        partial_file = Path(temporary_name)
        try:
            with os.fdopen(file_descriptor, "w", encoding="utf-8") as output_stream:
                yield output_stream
            partial_file.chmod(resolved_path.stat().st_mode if resolved_path.exists() else 0o666 & ~_current_umask())
            partial_file.replace(resolved_path)
        finally:
            partial_file.unlink(missing_ok=True)


PIPE_SECONDS = 2.0
"""Seconds that a program has to open a pipe for reading, into which an answer is written."""


def _open_device(output_path: Path, option_name: str) -> int:
    """Opens a device or a pipe for writing. Raises `InputError` for a pipe that no program reads, which would block."""
    if not output_path.is_fifo():
        return os.open(output_path, os.O_WRONLY)
    deadline = monotonic() + PIPE_SECONDS
    while True:
        try:
            file_descriptor = os.open(output_path, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if monotonic() > deadline:
            raise InputError(
                f"{option_name}: {output_path}: is a pipe that no program reads; expected one that is read, or a file"
            )
        sleep(PIPE_SECONDS / 40)
    os.set_blocking(file_descriptor, True)
    return file_descriptor


ENDING_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that end a process without running its `finally` clauses; Ctrl-C (SIGINT) runs them."""


class _SignalReceived(BaseException):
    """The exception raised when a signal of `ENDING_SIGNALS` arrives. number: the signal's number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.number = signal_number


@contextmanager
def _run_finally_on_signals() -> Iterator[None]:
    """Returns a context manager in which `finally` clauses run when a signal ends the process.

    The signal then ends the process, so that the exit status is that of the signal. It does nothing outside the main
    thread, where Python handles no signals.
    """

    def raise_signal_received(signal_number: int, _: FrameType | None) -> None:
        raise _SignalReceived(signal_number)

    previous_handlers = {}
    try:
        for signal_number in ENDING_SIGNALS:
            if signal.getsignal(signal_number) == signal.SIG_DFL:  # an ignored signal (nohup) stays ignored
                with suppress(ValueError):  # not the main thread
                    previous_handlers[signal_number] = signal.signal(signal_number, raise_signal_received)
        yield
    except _SignalReceived as stop:
        signal.signal(stop.number, signal.SIG_DFL)
        os.kill(os.getpid(), stop.number)
    finally:
        for signal_number, signal_handler in previous_handlers.items():
            signal.signal(signal_number, signal_handler)


def _unwritable_file_error(output_path: Path, option_name: str, os_error: OSError) -> InputError:
    return InputError(f"{option_name}: {output_path}: {os_error.strerror}; expected a file that can be written")


def _current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
