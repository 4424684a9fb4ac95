"""The memory of ranks of Megatron-LM, without an allocator, for plans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...device_memory.estimate import Memory
from ...parallel.layout import Layout, Stage
from ...simulator.meter import Meter
from ..peak_estimate import BytesPerParameter, Most, Passes, PeakEstimate
from .schedule import RankRun
from .settings_from_options import bytes_of_each, settings_of


def estimate(memory: Memory) -> PeakEstimate:
    """The estimate of a model's ranks. Weights are bf16; gradients, the master copy and states are fp32 by default."""
    each = BytesPerParameter(2, *bytes_of_each(memory.settings))
    include, context = memory.states.count.include, memory.runtime.context
    return PeakEstimate(memory.spec, each, partial(measured, memory), include, context)


def measured(one: Memory, layout: Layout, stage: Stage, repeats: Sequence[int | None]) -> list[Passes]:
    """Passes of one micro-batch through a stage. repeats: as of `walk.Measure`."""
    meter = Meter()
    rank = layout.rank(pp=stage.rank)
    run = RankRun(one.spec, settings_of(one, layout), rank, meter)
    chunk = next(each for each in run.chunks if each.stage is None or each.stage.chunk == stage.chunk)
    run.set_up_tables()
    base = meter.now
    found: list[Passes] = []
    for count in (repeats[0], *repeats):  # the second time the buffers that stay are there already
        chunk.lowering.run_only = {} if count is None else {0: count}
        before = meter.now
        meter.restart()
        x = None if chunk.first else run.received()
        output = run.forward(chunk, x)
        saved, forward = meter.now - before, Most.of(meter, before)
        meter.restart()
        run.backward(x, output, None if chunk.last else run.sent_back())
        backward = Most.of(meter, before)
        del x, output
        if not found:  # what stays: a dummy gradient of each shape, tables
            left = meter.now - base
        found.append(Passes(saved, forward.over(left), backward.over(left)))
    return found[1:]
