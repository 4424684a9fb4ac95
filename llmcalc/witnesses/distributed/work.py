"""What every process of a distributed run does: its part of each job, and its replay.

`python -m llmcalc.witnesses.distributed.work FILE` is such a process; FILE has the jobs, a line each. The processes find
one another as those of torchrun do (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and rank 0 prints what all found.

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

from .job import Job, job_of, replayed
from .rank import losses_of_one, run

TIMEOUT = 300
"""Seconds in which a process has to answer another one."""


def results(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Runs jobs one after the other in a process group over all processes. Returns, for each, what all ranks found:

    ranks: the bytes that each counted and measured.
    scratch: kernel → the largest block that it took and freed.
    losses: of all processes.
    losses_of_one: of one that runs everything, in rank 0's answer alone.
    """
    torch.set_num_threads(1)
    gc.freeze()  # what the imports made lives on: each step collects the garbage of its own
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    try:
        return [_result(job) for job in jobs]
    finally:
        dist.destroy_process_group()


def _result(job: Job) -> dict[str, Any]:
    found = run(job)
    ours = replayed(job, dist.get_rank())
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, (ours, found.bytes, found.scratch))
    alone = losses_of_one(job) if dist.get_rank() == 0 else found.losses
    scratch = {
        name: max(one[2].get(name, 0) for one in every) for name in sorted({key for one in every for key in one[2]})
    }
    return {"ranks": [one[:2] for one in every], "scratch": scratch, "losses": found.losses, "losses_of_one": alone}


def _end_with_parent() -> None:
    """Ends this process when its standard input is closed, so that none is left when the one that started it dies."""
    while os.read(0, 1):
        pass
    os._exit(1)


def main(path: str) -> None:
    """Runs the jobs of a file."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    found = results([job_of(line) for line in Path(path).read_text().splitlines()])
    if os.environ["RANK"] == "0":
        print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
