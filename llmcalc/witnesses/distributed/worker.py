"""The main program of each process in a distributed run: trains its part in every job, and simulates its rank.

`python -m llmcalc.witnesses.distributed.worker FILE` starts a process; FILE has one job per line. The processes connect
as with torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and rank 0 prints the results of all.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .job import TrainingJob, job_from_json, simulate_rank
from .rank import run_rank, single_process_losses

TIMEOUT_SECONDS = 300
"""Timeout of communication between processes, in seconds."""


def run_jobs(training_jobs: Sequence[TrainingJob]) -> list[dict[str, Any]]:
    """Runs jobs one after another in a process group of all processes, and returns each job's results.

    ranks: (simulated, measured) bytes of each rank.
    scratch: kernel → bytes of its largest scratch block.
    losses: mean loss of each step, over all processes.
    losses_of_one: mean loss of each step in a single process; only correct in rank 0's result.
    """
    torch.set_num_threads(1)
    gc.freeze()  # imported objects stay: each step collects only its own garbage
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_SECONDS))
    try:
        return [_result_of_job(training_job) for training_job in training_jobs]
    finally:
        dist.destroy_process_group()


def _result_of_job(training_job: TrainingJob) -> dict[str, Any]:
    job_result = run_rank(training_job)
    simulated_bytes = simulate_rank(training_job, dist.get_rank())
    rank_results: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(rank_results, (simulated_bytes, job_result.bytes, job_result.scratch_bytes))
    single_losses = single_process_losses(training_job) if dist.get_rank() == 0 else job_result.losses
    scratch_bytes = {
        kernel_name: max(rank_result[2].get(kernel_name, 0) for rank_result in rank_results)
        for kernel_name in sorted({scratch_kernel for rank_result in rank_results for scratch_kernel in rank_result[2]})
    }
    return {
        "ranks": [rank_result[:2] for rank_result in rank_results],
        "scratch": scratch_bytes,
        "losses": job_result.losses,
        "losses_of_one": single_losses,
    }


def _end_with_parent() -> None:
    """Ends this process when its standard input is closed, which happens when the parent process ends."""
    while os.read(0, 1):
        pass
    os._exit(1)


def main(job_path: str) -> None:
    """Runs the training jobs in a file of JSON lines; rank 0 prints the results."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job_results = run_jobs([job_from_json(job_line) for job_line in Path(job_path).read_text().splitlines()])
    if os.environ["RANK"] == "0":
        print(json.dumps(job_results))


if __name__ == "__main__":
    main(sys.argv[1])
