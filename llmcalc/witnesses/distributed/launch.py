"""Starts the processes of a distributed run on this machine, and ends all of them if one dies or hangs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError
from .job import Job

LIMIT = 600.0
"""Seconds that all processes may take."""


def launched() -> bool:
    """Whether this process is one of several that torchrun has started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launched_rank() -> int:
    """Which of them this process is; 0 if it is alone."""
    return int(os.environ.get("RANK", "0"))


def started(jobs: Sequence[Job], limit: float = LIMIT, module: str = "llmcalc.witnesses.distributed.work") -> Any:
    """What rank 0 of the processes prints, which run jobs of equally many ranks one after the other.

    limit: seconds until all are ended. module: what each process runs.
    Raises `InputError` if a process fails, or if they take longer.
    """
    world = jobs[0].layout.world
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "jobs")
        path.write_text("\n".join(job.text() for job in jobs))
        processes: list[subprocess.Popen[bytes]] = []
        try:
            port = _free_port()
            for rank in range(world):
                processes.append(_start(rank, world, port, [module, str(path)], folder))
            _wait(processes, time.monotonic() + limit, folder, limit)
        finally:
            _end(processes)
        return json.loads(Path(folder, "out.0").read_text())


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _start(rank: int, world: int, port: int, arguments: list[str], folder: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    with Path(folder, f"out.{rank}").open("wb") as out, Path(folder, f"err.{rank}").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments], env=environment, stdin=subprocess.PIPE, stdout=out, stderr=err
        )


def _wait(processes: list[subprocess.Popen[bytes]], end: float, folder: str, limit: float) -> None:
    """Raises `InputError` for the first process that fails, or at the end of the time."""
    while True:
        codes = [one.poll() for one in processes]
        for rank, code in enumerate(codes):
            if code:
                raise InputError(_failure(rank, code, folder))
        waiting = [str(rank) for rank, code in enumerate(codes) if code is None]
        if not waiting:
            return
        if time.monotonic() > end:
            raise InputError(f"--distributed: rank {', '.join(waiting)} had not ended after {limit:g} seconds")
        time.sleep(0.02)


def _failure(rank: int, code: int, folder: str) -> str:
    """What a process has said last, or that it refuses the model."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    lines = Path(folder, f"err.{rank}").read_text(errors="replace").strip().splitlines()
    errors = [line for line in lines if "Error" in line] or lines
    for line in errors:
        if f"{InputError.__name__}: " in line:
            return line.partition(f"{InputError.__name__}: ")[2]
    return f"--distributed: rank {rank} {how}{f': {errors[-1].strip()}' if errors else ''}"


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for one in processes:
        if one.poll() is None:
            one.kill()
        if one.stdin is not None:
            one.stdin.close()
    for one in processes:
        one.wait()
