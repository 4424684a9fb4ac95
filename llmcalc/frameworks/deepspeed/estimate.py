"""The memory of ranks under DeepSpeed's ZeRO, without an allocator, for plans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...device_memory.estimate import Memory
from ...parallel.layout import Layout
from ...simulator.tensor import DTYPES
from ..peak_estimate import PeakEstimate, bytes_per_parameter, estimate_with_torch_kernels
from ..transient_bytes import Around, Elements, Step, step_of
from .rank_memory import cast
from .settings import DeepSpeedSettings


def estimate(memory: Memory) -> PeakEstimate:
    """The estimate of a model's ranks."""
    training = memory.training()
    transient = partial(transient_bytes, step_of(training, flat=True), DTYPES[training.dtype].bytes)
    return estimate_with_torch_kernels(memory, bytes_per_parameter(memory, flat=True), cast(training), transient)


def transient_bytes(step: Step, width: int, layout: Layout, own: Sequence[Elements]) -> Around:
    """Gradients are summed in a buffer; in stage 3, which always has it, parameters are gathered up to a number of
    elements. In stages 1 and 2 it is there from the first gradient to the last sum, which in stage 2 each micro-batch
    has; what is summed is put side by side, and a rank steps with its own part alone, in stage 3 with a group of it.
    """
    settings, whole = DeepSpeedSettings(stage=layout.zero), sum(one.dense + one.experts for one in own)
    taken, most = step.bytes(layout, own, divided=layout.zero >= 1), settings.elements("reduce_bucket_size")
    if layout.zero == 0:
        return Around(step=taken)
    part, buffer = whole // layout.shards, width * most
    if layout.zero == 3:
        at_once = min(1, settings.sub_group_size / max(1, part))
        live = width * min(settings.stage3_max_live_parameters, whole)
        taken = max(taken, (step.copied + step.kept) * part)  # gradients are put side by side, and copied, before it
        released = width * max(0, whole - sum(one.root for one in own))  # the layers' parameters, when they have run
        return Around(stays=buffer, passes=live, root=-min(live, released), step=round(at_once * taken))
    tensors = max(part, *(one.largest for one in own))  # whole ones, of which a rank may step with a part
    if layout.zero == 2:
        more = width * (tensors - part)
        end = buffer + width * min(most, whole) + more
        return Around(late=buffer + more, again=more, after=buffer + more, end=end, step=taken - step.kept * part)
    return Around(late=buffer, again=buffer, after=buffer, end=buffer + width * tensors, step=taken - step.kept * whole)
