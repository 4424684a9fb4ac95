"""Runs a command of llmcalc in a process of its own, within bounds of time and memory.

`bounded("params", "model.gguf")` runs `llmcalc params model.gguf`. As a script, this file starts one command, measures
it and writes the measurement: the peak memory of a process includes that of the process that starts it, so a large
test process must not start the command itself.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

MOST_ADDRESSES = 12 * 2**30
"""Largest address space of a command, in bytes. It protects the machine; far more than any bound of a test."""


class Bounded(subprocess.CompletedProcess[str]):
    """A completed command with its measurement.

    seconds: CPU time, so that other work on the machine does not matter.
    peak_mb: largest resident memory, in MB (10^6 bytes).
    """

    seconds: float
    peak_mb: float


def bounded(
    *words: str,
    timeout: float = 60,
    limit_mb: float = 512,
    cwd: Path | str | None = None,
    stdin: str | bytes | IO[Any] | int | None = None,
    env: dict[str, str] | None = None,
) -> Bounded:
    """Runs `llmcalc` with arguments, and asserts that it ends in time, within memory and without a traceback.

    timeout: most seconds of wall time; generous, because other work may share the machine.
    limit_mb: most resident memory, in MB.
    stdin: text or bytes for standard input, or a file; by default it is empty.
    env: environment variables that are set in addition.
    """
    here = Path(__file__).resolve()
    paths = [str(here.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    feed: dict[str, Any] = {"stdin": subprocess.DEVNULL}
    if isinstance(stdin, str | bytes):
        feed = {"input": stdin.encode() if isinstance(stdin, str) else stdin}
    elif stdin is not None:
        feed = {"stdin": stdin}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "llmcalc", *words]
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(here), str(report), str(timeout), *command],
            capture_output=True,
            check=False,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(env or {})},
            **feed,
        )
        found = json.loads(report.read_text())
    out, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    result = Bounded(command, found["status"], out, errors)
    result.seconds, result.peak_mb = found["seconds"], found["peak_mb"]
    assert not found["late"], f"llmcalc {' '.join(words)[:200]}: did not end within {timeout} s"
    assert "Traceback" not in errors, errors[-2000:]
    assert result.peak_mb <= limit_mb, f"llmcalc {' '.join(words)[:200]}: {result.peak_mb:.0f} MB of {limit_mb} MB"
    return result


def _measure(report: str, timeout: float, command: list[str]) -> None:
    """Starts a command, waits for it at most `timeout` seconds, and writes its measurement as JSON."""
    start = time.monotonic()
    pid = os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
        os.execv(command[0], command)
    late, done = False, False
    while not done:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        done = ended == pid
        if not done:
            time.sleep(0.01)
            if not late and time.monotonic() - start > timeout:
                late = True
                os.kill(pid, signal.SIGKILL)
    unit = 1 if sys.platform == "darwin" else 1024
    found = {
        "status": os.waitstatus_to_exitcode(status),
        "late": late,
        "seconds": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss * unit / 1e6,
    }
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    _measure(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
