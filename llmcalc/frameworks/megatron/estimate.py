"""Estimates the memory of Megatron-LM ranks without an allocator, for the search over layouts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...device_memory.estimate import Memory
from ...parallel.layout import Layout, Stage
from ...simulator.meter import Meter
from ...simulator.tensor import Tensor
from ..peak_estimate import BytesPerParameter, MicroBatchBytes, PeakByPath, PeakEstimate
from .rank_run import ForwardOutput, RankRun
from .settings_from_options import megatron_settings_of, optimizer_bytes


def estimate_peaks(memory_estimate: Memory) -> PeakEstimate:
    """Returns the estimate of the memory of every rank of a model.

    Weights are bf16; gradients, the master copy and states are fp32 by default, of adapters alone if those are trained.
    """
    static_states = memory_estimate.states
    trained_fraction = (
        1 if static_states.adapters is None else static_states.trained_parameters / static_states.count.total
    )
    gradients, optimizer = (trained_fraction * part_bytes for part_bytes in optimizer_bytes(memory_estimate.settings))
    parameter_bytes = BytesPerParameter(2, gradients, optimizer)
    included_parts, context_bytes = memory_estimate.states.count.include, memory_estimate.runtime.context
    return PeakEstimate(
        memory_estimate.spec, parameter_bytes, partial(measure_passes, memory_estimate), included_parts, context_bytes
    )


def measure_passes(
    memory_estimate: Memory, layout: Layout, pipeline_stage: Stage, repeat_counts: Sequence[int | None]
) -> list[MicroBatchBytes]:
    """Returns the measured bytes of a micro-batch on a stage. repeat_counts: as in `peak_estimate.MeasurePasses`."""
    memory_meter, buffer_meter = Meter(), Meter()
    rank = layout.rank(pp=pipeline_stage.rank)
    rank_run = RankRun(memory_estimate.spec, megatron_settings_of(memory_estimate, layout), rank, memory_meter)
    rank_run.persistent.meter = buffer_meter  # what the first pass makes and later passes use
    stage_chunk = next(
        model_chunk
        for model_chunk in rank_run.chunks
        if model_chunk.stage is None or model_chunk.stage.chunk == pipeline_stage.chunk
    )
    rank_run.set_up_rope_tables()
    rank_run.make_first_rope_tables()  # of all layers of the stage, not only of those that run
    set_up_bytes = memory_meter.now

    def run_forward() -> tuple[Tensor | None, ForwardOutput]:
        chunk_input = None if stage_chunk.is_first else rank_run.receive_hidden()
        return chunk_input, rank_run.forward(stage_chunk, chunk_input)

    if rank_run.settings.num_experts is not None:  # dispatchers keep tensors of the pass before
        stage_chunk.lowering.run_only = {} if repeat_counts[0] is None else {0: repeat_counts[0]}
        with rank_run.graph.no_grad():
            run_forward()
    if not stage_chunk.is_first:  # so does the chunk: its input, which has a gradient
        stage_chunk.input_tensor = rank_run.receive_hidden()
        stage_chunk.input_tensor.grad = rank_run.receive_gradient()
    pass_bytes: list[MicroBatchBytes] = []
    for layer_repeats in repeat_counts:
        stage_chunk.lowering.run_only = {} if layer_repeats is None else {0: layer_repeats}
        start_bytes = memory_meter.now
        memory_meter.restart()
        chunk_input, forward_output = run_forward()
        saved_bytes, forward_peaks = (
            memory_meter.now - start_bytes,
            PeakByPath.peaks_since_restart(memory_meter, start_bytes),
        )
        memory_meter.restart()
        rank_run.backward(chunk_input, forward_output, None if stage_chunk.is_last else rank_run.receive_gradient())
        backward_peaks = PeakByPath.peaks_since_restart(memory_meter, start_bytes)
        del chunk_input, forward_output
        remaining_bytes = memory_meter.now - set_up_bytes + buffer_meter.now
        pass_bytes.append(
            MicroBatchBytes(
                saved_bytes, forward_peaks.plus_bytes(remaining_bytes), backward_peaks.plus_bytes(remaining_bytes)
            )
        )
    return pass_bytes
