"""The memory of ranks under DeepSpeed's ZeRO, without an allocator, for plans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...device_memory.estimate import Memory
from ...parallel.layout import Layout
from ...simulator.tensor import DTYPES
from ..peak_estimate import PeakEstimate, bytes_per_parameter, estimate_with_torch_kernels
from ..transient_bytes import Around, Elements, Step, step_of
from .rank_memory import cast_adapters
from .settings import DeepSpeedSettings


def estimate(memory: Memory) -> PeakEstimate:
    """The peak estimate of a model's ranks."""
    training = memory.training()
    transient = partial(transient_bytes, step_of(training, flat=True), DTYPES[training.dtype].bytes)
    return estimate_with_torch_kernels(
        memory, bytes_per_parameter(memory, flat=True), cast_adapters(training), transient
    )


def transient_bytes(step: Step, width: int, layout: Layout, stages: Sequence[Elements]) -> Around:
    """The bytes of a rank in addition to partitions and activations.

    step: the optimizer's step.
    width: bytes per element of the parameters.
    stages: the parameters of the rank's stages.

    Gradients are reduced in a bucket. Stages 1 and 2 allocate it at the first gradient and free it after the last
    reduction, in stage 2 per micro-batch; stage 3 always has it. The rank steps with a flat copy of its own partition,
    in stage 3 with one sub-group after the other. Stage 3 gathers parameters up to a number of elements.
    """
    settings, whole = DeepSpeedSettings(stage=layout.zero), sum(stage.dense + stage.experts for stage in stages)
    step_bytes, bucket_elements = (
        step.bytes(layout, stages, divided=layout.zero >= 1),
        settings.elements("reduce_bucket_size"),
    )
    if layout.zero == 0:
        return Around(step=step_bytes)
    partition, bucket = whole // layout.shards, width * bucket_elements
    if layout.zero == 3:
        sub_group = min(1, settings.sub_group_size / max(1, partition))
        live = width * min(settings.stage3_max_live_parameters, whole)
        flat_gradients = (step.copied + step.kept) * partition  # they are concatenated and cast before the step
        released = width * max(
            0, whole - sum(stage.root for stage in stages)
        )  # parameters of layers after their passes
        return Around(
            stays=bucket,
            passes=live,
            root=-min(live, released),
            step=round(sub_group * max(step_bytes, flat_gradients)),
        )
    tensors = max(partition, *(stage.largest for stage in stages))  # whole tensors, of which a rank may step a part
    if layout.zero == 2:
        excess = width * (tensors - partition)
        end = bucket + width * min(bucket_elements, whole) + excess
        step_bytes -= step.kept * partition
        return Around(late=bucket + excess, again=excess, after=bucket + excess, end=end, step=step_bytes)
    step_bytes -= step.kept * whole
    return Around(late=bucket, again=bucket, after=bucket, end=bucket + width * tensors, step=step_bytes)
