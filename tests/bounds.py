"""Runs a command of llmcalc in a process of its own, within bounds of time and memory.

`bounded("params", "model.gguf")` runs `llmcalc params model.gguf`. As a script, this file is a small process that has
imported llmcalc and forks a process for each command, which it measures: the peak memory of a process includes that of
the process that starts it, so a large test process must not start the command itself, and importing llmcalc anew for
each of some hundred commands would take most of their time.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

MAX_ADDRESSES = 12 * 2**30
"""Largest address space of a command, in bytes. It protects the machine; far more than any bound of a test."""

PATIENCE = 4
"""Most seconds of wall time for each second of CPU time that a command may take."""


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
    stdin: str | bytes | Path | None = None,
    env: dict[str, str] | None = None,
) -> Bounded:
    """Runs `llmcalc` with arguments, and asserts that it ends in time, within memory and without a traceback.

    timeout: most seconds of CPU time; of wall time `PATIENCE` times as many, because other work may share the machine.
    limit_mb: most resident memory, in MB.
    stdin: text or bytes for standard input, or the path of a file; by default it is empty.
    env: environment variables that are set in addition.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        if isinstance(stdin, str | bytes):
            files[0].write_bytes(stdin.encode() if isinstance(stdin, str) else stdin)
        else:
            files[0] = stdin or Path(os.devnull)
        request = {
            "words": words,
            "timeout": timeout,
            "cwd": os.fspath(cwd or Path.cwd()),
            "environment": {**os.environ, **(env or {})},
            "files": [str(path) for path in files],
        }
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        measurement = json.loads(server.stdout.readline())
        out, errors = (path.read_bytes().decode(errors="replace") for path in files[1:])
    result = Bounded(words, measurement["status"], out, errors)
    result.seconds, result.peak_mb = measurement["seconds"], measurement["peak_mb"]
    assert not measurement["late"], f"llmcalc {' '.join(words)[:200]}: did not end within {timeout} s"
    assert "Traceback" not in errors, errors[-2000:]
    assert result.peak_mb <= limit_mb, f"llmcalc {' '.join(words)[:200]}: {result.peak_mb:.0f} MB of {limit_mb} MB"
    return result


@cache
def _server() -> subprocess.Popen[str]:
    """Starts the process that forks commands. It ends when its standard input is closed."""
    here = Path(__file__).resolve()
    paths = [str(here.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    server = subprocess.Popen(
        [sys.executable, str(here)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        text=True,
    )
    atexit.register(server.communicate)  # closes its standard input, and waits
    return server


def _serve() -> None:
    """Answers each request, a line of JSON on standard input, with a measurement on standard output."""
    sys.path.pop(0)  # the folder of this file, whose modules are named like those of libraries
    for module in ("cli.main", "cli.memory", "questions.runs", "sources.target", "frameworks.launch.read_launch_file"):
        import_module(f"llmcalc.{module}")
    with suppress(ImportError):
        import_module("httpx")  # what huggingface_hub imports, for the most part
    while line := sys.stdin.readline():
        request = json.loads(line)
        print(json.dumps(_measure(request)), flush=True)


def _measure(request: dict[str, Any]) -> dict[str, Any]:
    """Forks a command, waits for it as long as the request says, and returns its measurement."""
    start = time.monotonic()
    pid = os.fork()
    if not pid:
        _run_command(request)
    late, ended = False, False
    while not ended:
        ended_pid, status, used = os.wait4(pid, os.WNOHANG)
        ended = ended_pid == pid
        if not ended:
            time.sleep(0.01)
            if not late and time.monotonic() - start > PATIENCE * request["timeout"]:
                late = True
                os.kill(pid, signal.SIGKILL)
    late = late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL))
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "status": os.waitstatus_to_exitcode(status),
        "late": late,
        "seconds": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss * unit / 1e6,
    }


def _run_command(request: dict[str, Any]) -> None:
    """Runs a command in this process, as `python -m llmcalc` does, and ends the process."""
    code: Any = 1
    try:
        for number, (path, flags) in enumerate(
            zip(request["files"], (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT), strict=True)
        ):
            os.dup2(os.open(path, flags, 0o600), number)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["cwd"])
        resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESSES, MAX_ADDRESSES))
        seconds = math.ceil(request["timeout"])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        sys.argv = ["llmcalc", *request["words"]]
        import_module("llmcalc.cli").run()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve()
