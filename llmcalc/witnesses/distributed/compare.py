"""Compares real processes with the simulation by each rank's memory, and with a single process by the loss."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from ...costs.params import total_params_of
from ...errors import InputError
from ...model import ModelSpec
from ...parallel.layout import Layout
from ...units import DTYPE_BITS
from ..checks import LOSS_QUANTITY, MEMORY_PREFIX, Check, Verdict
from ..difference_explanation import list_named_sizes
from ..reference import MAX_CPU_BYTES, default_seq, max_prompt_length, require_torch
from ..untested import untested_parts
from .job import JOB_DTYPE, TrainingJob, simulate_rank
from .launch import is_started_by_torchrun, run_processes

LOSS_TOLERANCE = 1e-5
"""Allowed relative difference of losses, because sums over ranks are rounded in another order."""

UNCOUNTED_MEMORY = (
    "gloo's own buffers, which no tensor has",
    "the numbers of ranks that a device mesh keeps",
    "the pass with which a pipeline finds shapes before the first step",
)
"""Memory of distributed processes that is not compared, in words, in addition to kernels' scratch memory."""


def build_job(
    spec: ModelSpec, layout: Layout, batch: int = 1, seq: int | None = None, microbatches: int | None = None
) -> TrainingJob:
    """Returns the job of training a model in a layout on processes. microbatches: default 2 per pipeline stage.

    Raises `InputError` for an unsupported layout, and for a model that is too large for the CPU.
    """
    require_torch("verify --distributed")
    microbatch_count = 2 * layout.pp if microbatches is None else microbatches
    spec = spec if spec.dropout is None else spec.with_dropout(0)  # the reference has no dropout
    training_job = TrainingJob(spec, layout, batch, default_seq(spec) if seq is None else seq, microbatch_count)
    max_tokens = max_prompt_length(spec)
    if max_tokens is not None and training_job.seq > max_tokens:
        raise InputError(
            f"--seq: {training_job.seq} tokens do not fit the learned positions; expected at most {max_tokens}"
        )
    training_job.require_supported()
    process_count = int(os.environ.get("LOCAL_WORLD_SIZE", layout.world_size))
    # every process starts with all weights
    total_bytes = DTYPE_BITS[JOB_DTYPE] // 8 * spec.tree().total(total_params_of) * process_count
    if total_bytes <= MAX_CPU_BYTES:
        total_bytes = max(total_bytes, process_count * max(simulate_rank(training_job, 0).values()))
    if total_bytes > MAX_CPU_BYTES:
        raise InputError(
            f"--distributed: {process_count} processes take at least {total_bytes:,} bytes, which are too many for a "
            "CPU; expected fewer layers (--set num_hidden_layers=2), or a smaller --batch or --seq"
        )
    return training_job


def verify_distributed(training_job: TrainingJob, model_name: str = "model") -> Verdict:
    """Runs a job on local processes, or on those that torchrun started, and compares memory and losses.

    Raises `InputError` if a process fails or does not answer.
    """
    return verify_jobs([training_job], model_name)[0]


def verify_jobs(training_jobs: Sequence[TrainingJob], model_name: str = "model") -> list[Verdict]:
    """Runs jobs with equal numbers of processes in sequence, and compares memory and losses of each."""
    start_time = time.perf_counter()
    if is_started_by_torchrun():
        from .worker import run_jobs

        process_count = int(os.environ["WORLD_SIZE"])
        if any(training_job.layout.world_size != process_count for training_job in training_jobs):
            raise InputError(
                f"--distributed: torchrun has started {process_count} processes; expected --devices {process_count}"
            )
        results_of_jobs = run_jobs(training_jobs)
    else:
        results_of_jobs = run_processes(training_jobs)
    seconds = (time.perf_counter() - start_time) / len(training_jobs)
    return [
        compare_job_results(training_job, job_results, model_name, seconds)
        for training_job, job_results in zip(training_jobs, results_of_jobs, strict=True)
    ]


def compare_job_results(
    training_job: TrainingJob, job_results: dict[str, Any], model_name: str = "model", seconds: float = 0.0
) -> Verdict:
    """Returns the checks of a job: each rank's memory, and the loss."""
    witness_label = f"gloo, {training_job.layout.world_size} processes"
    checks = [
        Check(f"rank {rank}", MEMORY_PREFIX + quantity_name, simulated_bytes[quantity_name], byte_count, witness_label)
        for rank, (simulated_bytes, measured_bytes) in enumerate(job_results["ranks"])
        for quantity_name, byte_count in measured_bytes.items()
    ]
    loss_pairs = zip(job_results["losses_of_one"], job_results["losses"], strict=True)
    checks += [
        Check(f"step {step_number}", LOSS_QUANTITY, single_process_loss, loss, witness_label, tolerance=LOSS_TOLERANCE)
        for step_number, (single_process_loss, loss) in enumerate(loss_pairs, start=1)
    ]
    verdict_info = {
        "layout": training_job.layout.data(), "batch": training_job.batch, "seq": training_job.seq,
        "microbatches": training_job.microbatches, "dtype": JOB_DTYPE,
        "scratch_bytes": job_results["scratch"], "not_counted": list(UNCOUNTED_MEMORY),
    }  # fmt: skip
    return Verdict(
        model_name,
        "distributed",
        checks,
        seconds,
        verdict_info,
        list_named_sizes(training_job.spec),
        untested=untested_parts(training_job.spec),
    )
