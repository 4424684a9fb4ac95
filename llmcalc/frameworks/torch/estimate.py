"""The memory of ranks of torch's own training, without an allocator, for plans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...device_memory.estimate import Memory
from ...parallel.layout import Layout
from ...simulator.tensor import DTYPES
from ..peak_estimate import PeakEstimate, bytes_per_parameter, estimate_with_torch_kernels
from ..transient_bytes import Around, Elements, Step, step_of


def estimate(memory: Memory) -> PeakEstimate:
    """The estimate of a model's ranks."""
    training = memory.training()
    trained = memory.states.trained / memory.states.count.total
    transient = partial(transient_bytes, step_of(training), DTYPES[training.dtype].bytes * trained)
    return estimate_with_torch_kernels(memory, bytes_per_parameter(memory), training, transient)


def transient_bytes(step: Step, each: float, layout: Layout, own: Sequence[Elements]) -> Around:
    """Replicas sum gradients in buckets of their own (c10d `Reducer`). each: bytes of them for each parameter."""
    buckets = round(each * sum(one.dense + one.experts for one in own)) if layout.dp > 1 else 0
    return Around(stays=buckets, step=step.bytes(layout, own, divided=False))
