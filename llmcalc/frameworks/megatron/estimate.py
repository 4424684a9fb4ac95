"""Estimates the memory of Megatron-LM ranks without an allocator, for the search over layouts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...device_memory.estimate import Memory
from ...parallel.layout import Layout, Stage
from ...simulator.meter import Meter
from ..peak_estimate import BytesPerParameter, MicroBatchBytes, PeakByPath, PeakEstimate
from .schedule import RankRun
from .settings_from_options import optimizer_bytes, settings_of


def estimate(memory: Memory) -> PeakEstimate:
    """Returns the estimate of the memory of every rank of a model.

    Weights are bf16; gradients, the master copy and states are fp32 by default.
    """
    per_parameter = BytesPerParameter(2, *optimizer_bytes(memory.settings))
    include, context = memory.states.count.include, memory.runtime.context
    return PeakEstimate(memory.spec, per_parameter, partial(measure_passes, memory), include, context)


def measure_passes(
    memory: Memory, layout: Layout, stage: Stage, repeats: Sequence[int | None]
) -> list[MicroBatchBytes]:
    """Returns the measured bytes of a micro-batch on a pipeline stage. repeats: as in `peak_estimate.MeasurePasses`."""
    meter = Meter()
    rank = layout.rank(pp=stage.rank)
    run = RankRun(memory.spec, settings_of(memory, layout), rank, meter)
    chunk = next(chunk for chunk in run.chunks if chunk.stage is None or chunk.stage.chunk == stage.chunk)
    run.set_up_tables()
    after_set_up = meter.now
    measured: list[MicroBatchBytes] = []
    for count in (repeats[0], *repeats):  # the first pass makes the buffers that stay
        chunk.lowering.run_only = {} if count is None else {0: count}
        start_bytes = meter.now
        meter.restart()
        x = None if chunk.first else run.receive_hidden()
        output = run.forward(chunk, x)
        saved_bytes, forward = meter.now - start_bytes, PeakByPath.since_restart(meter, start_bytes)
        meter.restart()
        run.backward(x, output, None if chunk.last else run.receive_gradient())
        backward = PeakByPath.since_restart(meter, start_bytes)
        del x, output
        if not measured:  # a dummy gradient of each shape, and tables
            remaining_bytes = meter.now - after_set_up
        measured.append(MicroBatchBytes(saved_bytes, forward.plus(remaining_bytes), backward.plus(remaining_bytes)))
    return measured[1:]
