"""Estimates the memory of Megatron-LM ranks without an allocator, for the search over layouts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...device_memory.estimate import Memory
from ...parallel.layout import Layout, Stage
from ...simulator.layer_stacks import SHORT_RUN_REPEATS
from ...simulator.meter import Meter
from ...simulator.module_visits import PassVisits, VisitMeter, derive_passes_with_more_repeats, forward_with_repeat
from ...simulator.simulated_work import SIMULATED_WORK
from ...simulator.tensor import Tensor
from ..peak_estimate import BytesPerParameter, MicroBatchBytes, PeakByPath, PeakEstimate
from ..stage_layers import StageLayers
from .rank_run import ForwardOutput, RankRun
from .settings_from_options import main_gradient_and_state_bytes, megatron_settings_of


def estimate_peaks(memory_estimate: Memory) -> PeakEstimate:
    """Returns an estimate of every rank's memory.

    Weights are bf16; gradients, the master copy and states are fp32 by default, of adapters alone if those are trained.
    """
    memory_use = memory_estimate.states
    trained_fraction = (
        1 if memory_use.adapters is None else memory_use.trained_parameters / memory_use.parameter_count.total
    )
    gradient_bytes, state_bytes = (
        trained_fraction * bytes_per_parameter
        for bytes_per_parameter in main_gradient_and_state_bytes(memory_estimate.settings)
    )
    parameter_bytes = BytesPerParameter(2, gradient_bytes, state_bytes)
    included_parts = memory_estimate.states.parameter_count.include
    context_bytes = memory_estimate.cuda_runtime.context_bytes
    return PeakEstimate(
        memory_estimate.spec, parameter_bytes, partial(measure_passes, memory_estimate), included_parts, context_bytes
    )


def measure_passes(
    memory_estimate: Memory, layout: Layout, pipeline_stage: Stage, repeat_counts: Sequence[int | None]
) -> list[MicroBatchBytes]:
    """Returns the measured bytes of a micro-batch on a stage. repeat_counts: as in `peak_estimate.MeasurePasses`.

    The bytes of four repeats are those of three with one more, if that follows from the three.
    """
    short_run_counts, units_before = [SHORT_RUN_REPEATS + 1, SHORT_RUN_REPEATS], SIMULATED_WORK.units
    first_repeats = SHORT_RUN_REPEATS if list(repeat_counts) == short_run_counts else repeat_counts[0]
    stage_run = StageRun(memory_estimate, layout, pipeline_stage, first_repeats)
    if list(repeat_counts) != short_run_counts:
        return list(map(stage_run.measure_micro_batch, repeat_counts))
    shorter_pass = stage_run.measure_micro_batch(SHORT_RUN_REPEATS)
    derived_passes = stage_run.bytes_with_added_repeat()
    if derived_passes is not None:
        return derived_passes
    longer_run = StageRun(memory_estimate, layout, pipeline_stage, SHORT_RUN_REPEATS + 1)
    if not stage_run.stage_layers.has_one_layer_kind:  # a shorter run has parameters of its own
        return [longer_run.measure_micro_batch(SHORT_RUN_REPEATS + 1), shorter_pass]
    SIMULATED_WORK.subtract_work_since(units_before)
    return list(map(longer_run.measure_micro_batch, short_run_counts))


class StageRun:
    """Runs the passes of a micro-batch on a stage, without other stages.

    first_layer_repeats: repeats of its pattern of layers in the first run; None for all layers.
    """

    def __init__(
        self, memory_estimate: Memory, layout: Layout, pipeline_stage: Stage, first_layer_repeats: int | None
    ) -> None:
        self.meter = VisitMeter()
        self.buffer_meter = Meter()
        rank = layout.rank(pp=pipeline_stage.pipeline_rank)
        settings = megatron_settings_of(memory_estimate, layout)
        self.rank_run = rank_run = RankRun(memory_estimate.spec, settings, rank, self.meter)
        rank_run.persistent.meter = self.buffer_meter  # what the first pass makes and later passes use
        self.model_chunk = stage_chunk = next(
            model_chunk
            for model_chunk in rank_run.chunks
            if model_chunk.stage is None or model_chunk.stage.chunk_index == pipeline_stage.chunk_index
        )
        self.stage_layers: StageLayers = StageLayers(stage_chunk.program, stage_chunk.lowering)
        rank_run.set_up_rope_tables()
        rank_run.make_first_rope_tables()  # of all layers of the stage, not only of those that run
        self._set_up_bytes = self.meter.live_bytes
        self._latest_passes: tuple[int, int, PassVisits, PassVisits] | None = None
        self._first_pass = PassVisits([], 0)
        if any(step.verb == "experts" for step in stage_chunk.program.root.steps()):
            # dispatchers keep tensors of the pass before
            self.stage_layers.set_repeats(first_layer_repeats)
            self.meter.restart()
            with rank_run.graph.no_grad():
                self._run_forward()
            self._first_pass = self.meter.pass_visits(0)
        if not stage_chunk.is_first:  # so does the chunk: its input, which has a gradient
            stage_chunk.input_tensor = rank_run.receive_hidden_states()
            stage_chunk.input_tensor.grad = rank_run.receive_gradient()

    def _run_forward(self) -> tuple[Tensor | None, ForwardOutput]:
        chunk_input = None if self.model_chunk.is_first else self.rank_run.receive_hidden_states()
        return chunk_input, self.rank_run.forward(self.model_chunk, chunk_input)

    def measure_micro_batch(self, layer_repeats: int | None) -> MicroBatchBytes:
        """Runs a micro-batch's passes, and returns their saved and peak bytes. layer_repeats: as in `set_repeats`."""
        meter, rank_run, stage_chunk = self.meter, self.rank_run, self.model_chunk
        self.stage_layers.set_repeats(layer_repeats)
        start_bytes = meter.live_bytes
        meter.restart()
        chunk_input, forward_output = self._run_forward()
        saved_bytes, forward_visits = meter.live_bytes - start_bytes, meter.pass_visits(start_bytes)
        meter.restart()
        rank_run.backward(chunk_input, forward_output, None if stage_chunk.is_last else rank_run.receive_gradient())
        backward_visits = meter.pass_visits(start_bytes)
        del chunk_input, forward_output
        remaining_bytes = meter.live_bytes - self._set_up_bytes + self.buffer_meter.live_bytes
        pass_bytes = _bytes_of_passes(saved_bytes, forward_visits, backward_visits, remaining_bytes)
        self._latest_passes = (
            (saved_bytes, remaining_bytes, forward_visits, backward_visits) if meter.live_bytes == start_bytes else None
        )
        return pass_bytes

    def bytes_with_added_repeat(self) -> list[MicroBatchBytes] | None:
        """Extrapolates a micro-batch's bytes from the last measured run, with three layer repeats, to four.

        Returns them, and those of three. The passes count as work as if they had run, so that a search ends at the same
        layout. None if the repeats do not do the same, or the passes leave other bytes than were there before.
        """
        if self._latest_passes is None or self.stage_layers.stack is None:
            return None
        saved_bytes, remaining_bytes, forward_visits, backward_visits = self._latest_passes
        longer_passes = derive_passes_with_more_repeats(forward_visits, backward_visits, self.stage_layers.stack)
        if longer_passes is None:
            return None
        longer_forward, longer_backward, repeat_bytes = longer_passes
        work_units = longer_forward.work_units + longer_backward.work_units
        longer_remaining_bytes = remaining_bytes
        if self._first_pass.visits:
            longer_first_pass = forward_with_repeat(self._first_pass, self.stage_layers.stack)
            if longer_first_pass is None:
                return None
            first_pass, dispatcher_bytes = longer_first_pass
            work_units += first_pass.work_units
            longer_remaining_bytes += dispatcher_bytes
            if self.stage_layers.has_one_layer_kind:  # one run has both numbers of repeats
                work_units -= self._first_pass.work_units
                remaining_bytes = longer_remaining_bytes
        SIMULATED_WORK.units += work_units
        return [
            _bytes_of_passes(saved_bytes + repeat_bytes, longer_forward, longer_backward, longer_remaining_bytes),
            _bytes_of_passes(saved_bytes, forward_visits, backward_visits, remaining_bytes),
        ]


def _bytes_of_passes(
    saved_bytes: int, forward_visits: PassVisits, backward_visits: PassVisits, remaining_bytes: int
) -> MicroBatchBytes:
    """Returns the saved and peak bytes of a micro-batch. remaining_bytes: bytes allocated after its passes."""
    forward_peaks, backward_peaks = (PeakByPath(visits.peak_by_path()) for visits in (forward_visits, backward_visits))
    return MicroBatchBytes(
        saved_bytes, forward_peaks.plus_bytes(remaining_bytes), backward_peaks.plus_bytes(remaining_bytes)
    )
