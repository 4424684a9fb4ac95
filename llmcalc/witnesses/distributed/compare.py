"""Compares what real processes hold with the replay of each rank, and their loss with that of one process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from ...costs.params import total_of
from ...errors import InputError
from ...model import ModelSpec
from ...parallel.layout import Layout
from ...units import DTYPE_BITS
from ..checks import LOSS, MEMORY, Check, Verdict
from ..difference import sizes_of
from ..reference import LARGEST_REAL, default_seq, longest_pass, require_torch
from ..untested import untested
from .job import DTYPE, Job, replayed
from .launch import launched, started

WITHIN = 1e-5
"""How far losses may be apart, as a share: sums over ranks are rounded in another order."""

NOT_COUNTED = (
    "gloo's own buffers, which no tensor has",
    "the numbers of ranks that a device mesh keeps",
    "the pass with which a pipeline finds shapes before the first step",
)
"""What the processes take beside the tensors that are compared, and beside scratch of kernels."""


def job_for(
    spec: ModelSpec, layout: Layout, batch: int = 1, seq: int | None = None, microbatches: int | None = None
) -> Job:
    """The run of a model in a layout. microbatches: 2 by default, twice as many as stages in a pipeline.

    Raises `InputError` for a layout that is not run, and for a model that is too large for the CPU.
    """
    require_torch("verify --distributed")
    count = 2 * layout.pp if microbatches is None else microbatches
    job = Job(spec, layout, batch, default_seq(spec) if seq is None else seq, count)
    longest = longest_pass(spec)
    if longest is not None and job.seq > longest:
        raise InputError(f"--seq: {job.seq} tokens do not fit the learned positions; expected at most {longest}")
    job.check()
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", layout.world))
    whole = DTYPE_BITS[DTYPE] // 8 * spec.tree().total(total_of) * processes  # every process begins with all weights
    if whole <= LARGEST_REAL:
        whole = max(whole, processes * max(replayed(job, 0).values()))
    if whole > LARGEST_REAL:
        raise InputError(
            f"--distributed: {processes} processes take at least {whole:,} bytes, which are too many for a CPU; "
            "expected fewer layers (--set num_hidden_layers=2), or a smaller --batch or --seq"
        )
    return job


def verify_distributed(job: Job, target: str = "model") -> Verdict:
    """Runs a job on processes of this machine, or on those that torchrun has started, and compares.

    Raises `InputError` if a process fails or does not answer.
    """
    return verify_all([job], target)[0]


def verify_all(jobs: Sequence[Job], target: str = "model") -> list[Verdict]:
    """Runs jobs of equally many processes one after the other."""
    start = time.perf_counter()
    if launched():
        from .work import results

        world = int(os.environ["WORLD_SIZE"])
        if any(job.layout.world != world for job in jobs):
            raise InputError(f"--distributed: torchrun has started {world} processes; expected --devices {world}")
        found = results(jobs)
    else:
        found = started(jobs)
    seconds = (time.perf_counter() - start) / len(jobs)
    return [verdict_of(job, one, target, seconds) for job, one in zip(jobs, found, strict=True)]


def verdict_of(job: Job, found: dict[str, Any], target: str = "model", seconds: float = 0.0) -> Verdict:
    """The checks of what processes found."""
    witness = f"gloo, {job.layout.world} processes"
    checks = [
        Check(f"rank {rank}", MEMORY + quantity, ours[quantity], bytes, witness)
        for rank, (ours, theirs) in enumerate(found["ranks"])
        for quantity, bytes in theirs.items()
    ]
    pairs = zip(found["losses_of_one"], found["losses"], strict=True)
    checks += [
        Check(f"step {i}", LOSS, one, many, witness, within=WITHIN) for i, (one, many) in enumerate(pairs, start=1)
    ]
    info = {
        "layout": job.layout.data(), "batch": job.batch, "seq": job.seq, "microbatches": job.microbatches,
        "dtype": DTYPE, "scratch_bytes": found["scratch"], "not_counted": list(NOT_COUNTED),
    }  # fmt: skip
    return Verdict(target, "distributed", checks, seconds, info, sizes_of(job.spec), untested=untested(job.spec))
