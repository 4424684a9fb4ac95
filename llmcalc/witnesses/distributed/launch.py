"""Starts the processes of a distributed run on this machine; ends all of them if one dies or hangs."""

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
from .job import TrainingJob

TIME_LIMIT_SECONDS = 600.0
"""Timeout of all processes, in seconds."""


def is_started_by_torchrun() -> bool:
    """Whether torchrun started this process, as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def rank_of_process() -> int:
    """Returns the rank of this process; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def run_processes(
    training_jobs: Sequence[TrainingJob],
    time_limit: float = TIME_LIMIT_SECONDS,
    worker_module: str = "llmcalc.witnesses.distributed.worker",
) -> Any:
    """Runs jobs with the same number of ranks in new processes, and returns the output of rank 0.

    time_limit: timeout in seconds.
    worker_module: the module that each process runs.
    Raises `InputError` if a process fails or at the timeout.
    """
    process_count = training_jobs[0].layout.world_size
    with tempfile.TemporaryDirectory() as job_folder:
        jobs_path = Path(job_folder, "jobs")
        jobs_path.write_text("\n".join(training_job.to_json() for training_job in training_jobs))
        processes: list[subprocess.Popen[bytes]] = []
        try:
            master_port = _free_port()
            for rank in range(process_count):
                processes.append(
                    _start_processes(rank, process_count, master_port, [worker_module, str(jobs_path)], job_folder)
                )
            _wait_until_processes_end(processes, time.monotonic() + time_limit, job_folder, time_limit)
        finally:
            _end_processes(processes)
        return json.loads(Path(job_folder, "out.0").read_text())


def _free_port() -> int:
    with socket.socket() as listening_socket:
        listening_socket.bind(("127.0.0.1", 0))
        port: int = listening_socket.getsockname()[1]
        return port


def _start_processes(
    rank: int, process_count: int, master_port: int, arguments: list[str], job_folder: str
) -> subprocess.Popen[bytes]:
    process_environment = {
        **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(process_count),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master_port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with (
        Path(job_folder, f"out.{rank}").open("wb") as output_file,
        Path(job_folder, f"err.{rank}").open("wb") as error_file,
    ):
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env=process_environment,
            stdin=subprocess.PIPE,
            stdout=output_file,
            stderr=error_file,
        )


def _wait_until_processes_end(
    processes: list[subprocess.Popen[bytes]], deadline: float, job_folder: str, time_limit: float
) -> None:
    """Waits for the end of all processes. Raises `InputError` for a failed process or a timeout."""
    while True:
        exit_codes = [process.poll() for process in processes]
        for rank, exit_code in enumerate(exit_codes):
            if exit_code:
                raise InputError(_process_error(rank, exit_code, job_folder))
        running_ranks = [str(rank) for rank, exit_code in enumerate(exit_codes) if exit_code is None]
        if not running_ranks:
            return
        if time.monotonic() > deadline:
            raise InputError(
                f"--distributed: rank {', '.join(running_ranks)} had not ended after {time_limit:g} seconds"
            )
        time.sleep(0.02)


def _process_error(rank: int, exit_code: int, job_folder: str) -> str:
    """Returns a failed process's error: the last line of stderr, or the message of its `InputError`."""
    end_reason = (
        f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
    )
    error_lines = Path(job_folder, f"err.{rank}").read_text(errors="replace").strip().splitlines()
    message_lines = [error_line for error_line in error_lines if "Error" in error_line] or error_lines
    for error_line in message_lines:
        if f"{InputError.__name__}: " in error_line:
            return error_line.partition(f"{InputError.__name__}: ")[2]
    return f"--distributed: rank {rank} {end_reason}{f': {message_lines[-1].strip()}' if message_lines else ''}"


def _end_processes(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
    for process in processes:
        process.wait()
