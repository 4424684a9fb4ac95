"""Estimates the memory of ranks in plain PyTorch training for `llmcalc plan`, without simulating the allocator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...device_memory.estimate import Memory
from ...parallel.layout import Layout
from ...simulator.tensor import DTYPES
from ..peak_estimate import PeakEstimate, bytes_per_parameter
from ..transient_bytes import OptimizerStepBytes, StageParameterCounts, TransientBytes, measure_optimizer_step
from .pass_measurement import estimate_with_torch_kernels


def estimate_peaks(memory_estimate: Memory) -> PeakEstimate:
    """Returns an estimate of every rank's memory."""
    training_config = memory_estimate.training()
    trained_share = memory_estimate.states.trained_parameters / memory_estimate.states.parameter_count.total
    bucket_bytes = DTYPES[training_config.dtype].bytes * trained_share
    transient_bytes_of = partial(transient_bytes, measure_optimizer_step(training_config), bucket_bytes)
    return estimate_with_torch_kernels(
        memory_estimate, bytes_per_parameter(memory_estimate), training_config, transient_bytes_of
    )


def transient_bytes(
    step_bytes: OptimizerStepBytes,
    bucket_bytes: float,
    layout: Layout,
    stage_parameters: Sequence[StageParameterCounts],
    micro_batch_count: int,
) -> TransientBytes:
    """Returns a rank's temporary bytes of all-reducing gradients in buckets (c10d `Reducer`).

    bucket_bytes: bytes of the buckets per parameter.
    """
    gradient_bucket_bytes = round(bucket_bytes * sum(stage.total for stage in stage_parameters)) if layout.dp > 1 else 0
    return TransientBytes(
        whole_step=gradient_bucket_bytes,
        optimizer_step=step_bytes.rank_bytes(layout, stage_parameters, is_sharded=False),
    )
