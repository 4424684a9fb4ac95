"""Medians of interleaved runs: a temporary disturbance of the machine affects both sides of a ratio."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """The measurements of one process: seconds of wall-clock time and of user CPU time, peak resident bytes."""

    wall: float
    user: float
    peak: int


def process(command: Sequence[str], bytecode: str) -> Run:
    """Runs a command to its end and discards its output. bytecode: folder for compiled modules, as after an
    installation.

    Raises `RuntimeError` if the command fails.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {child.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in KiB, on macOS in bytes
    return Run(wall, usage.ru_utime, usage.ru_maxrss * unit)


def processes(commands: Sequence[Sequence[str]], times: int) -> list[Run]:
    """Returns the median of each command, run in turn; the first round compiles modules and is not counted."""
    runs: list[list[Run]] = [[] for _ in commands]
    with tempfile.TemporaryDirectory() as bytecode:
        for i in range(times + 1):
            for command, kept in zip(commands, runs, strict=True):
                run = process(command, bytecode)
                if i:
                    kept.append(run)
    median = statistics.median
    return [
        Run(median(r.wall for r in kept), median(r.user for r in kept), int(median(r.peak for r in kept)))
        for kept in runs
    ]


def calls(
    functions: Sequence[Callable[[], object]], times: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Returns the median seconds of each function, called in turn; the first round is not counted.

    clock: what counts the seconds, by default of wall-clock time.
    """
    taken: list[list[float]] = [[] for _ in functions]
    for i in range(times + 1):
        for function, kept in zip(functions, taken, strict=True):
            start = clock()
            function()
            if i:
                kept.append(clock() - start)
    return [statistics.median(kept) for kept in taken]


def line(what: str, value: str, target: str = "") -> None:
    """Prints one figure."""
    print(f"  {what:<58} {value:>12}" + (f"   target {target}" if target else ""))
