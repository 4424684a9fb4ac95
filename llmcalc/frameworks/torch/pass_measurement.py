"""Measures the passes of a micro-batch with torch's kernels, for estimates of frameworks that run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...device_memory.estimate import Memory
from ...device_memory.training import TrainingConfig
from ...model import ModelSpec
from ...parallel.layout import Layout, Stage
from ...simulator.event_log import EventRecorder
from ...simulator.layer_stacks import SHORT_RUN_REPEATS
from ...simulator.meter import Meter
from ...simulator.module_visits import PassVisits, VisitMeter, derive_passes_with_fewer_repeats
from ...simulator.profiles.context_parallel import RingAttentionKernels, context_parallel_ring, sequence_tokens_of_rank
from ...simulator.profiles.dtensor import DTensorKernels
from ...simulator.simulated_work import SIMULATED_WORK
from ..peak_estimate import BytesPerParameter, MeasurePasses, MicroBatchBytes, PeakByPath, PeakEstimate
from ..stage_layers import StageLayers
from ..transient_bytes import TransientBytesOfRank
from .pipeline import ModelChunk, RankSetup


class RingKernels(DTensorKernels, RingAttentionKernels):
    """Kernels with tensor-parallel products and ring attention."""


class RingChunk(ModelChunk):
    """The layers of one pipeline stage under ring attention, in which each rank has a fraction of the sequence."""

    profiles = RingAttentionKernels, RingKernels
    lowering: RingAttentionKernels

    def __init__(self, rank_setup: RankSetup, stage: Stage, memory_meter: Meter | EventRecorder) -> None:
        rank_training_config = replace(
            rank_setup.training_config, seq=sequence_tokens_of_rank(rank_setup.layout, rank_setup.training_config.seq)
        )
        super().__init__(replace(rank_setup, training_config=rank_training_config), stage, memory_meter)
        self.lowering.ring = context_parallel_ring(rank_setup.layout, rank_setup.rank)


def make_pass_measurement(spec: ModelSpec, training_config: TrainingConfig) -> MeasurePasses:
    """Returns a function that measures the memory of passes with torch's kernels. Raises `UnsupportedKernel`."""

    def measure_passes(layout: Layout, stage: Stage, repeat_counts: Sequence[int | None]) -> list[MicroBatchBytes]:
        stage_run = StageRun(RankSetup(spec, training_config, layout, 0), stage, repeat_counts[0])
        if stage_run.has_whole_layer_gradients and len(repeat_counts) > 1:  # each number of layers has others
            return [
                run_bytes
                for repeat_count in repeat_counts
                for run_bytes in measure_passes(layout, stage, [repeat_count])
            ]
        pass_bytes = [stage_run.measure_micro_batch(repeat_counts[0])]
        for repeat_count in repeat_counts[1:]:
            shorter_pass = stage_run.bytes_without_last_repeat() if repeat_count == SHORT_RUN_REPEATS else None
            if shorter_pass is not None:
                pass_bytes.append(shorter_pass)
            elif stage_run.stage_layers.has_one_layer_kind:
                pass_bytes.append(stage_run.measure_micro_batch(repeat_count))
            else:  # a shorter run numbers its layers anew, and has parameters of its own
                pass_bytes += measure_passes(layout, stage, [repeat_count])
        return pass_bytes

    return measure_passes


class StageRun:
    """Runs the passes of a micro-batch on a stage, without other stages.

    first_repeats: repeats of its pattern of layers in the first run, which makes the gradients; None for all layers.
    """

    def __init__(self, rank_setup: RankSetup, stage: Stage, first_repeats: int | None) -> None:
        self.meter = VisitMeter()
        self.chunk = RingChunk(rank_setup, stage, self.meter)
        if self.chunk.lowering.ring is not None:
            self.chunk.lowering.ring = replace(self.chunk.lowering.ring, runs_only_peak_rounds=True)
        self.stage_layers: StageLayers = StageLayers(self.chunk.program, self.chunk.lowering)
        self.stage_layers.set_repeats(first_repeats)
        self.chunk.set_up()
        set_up_bytes = self.meter.live_bytes
        self._run_micro_batch()
        gradients = [
            (path, weight.grad, weight) for path, weight in self.chunk.lowering.parameters if weight.grad is not None
        ]
        gradient_bytes = sum(gradient.bytes for _, gradient, _ in gradients)
        whole_gradients = [
            (parameter_path, gradient.bytes - weight.bytes)
            for parameter_path, gradient, weight in gradients
            if gradient.bytes != weight.bytes
        ]
        # tables, and tensors that live until the next micro-batch
        remaining_bytes = self.meter.live_bytes - set_up_bytes - gradient_bytes
        self.has_whole_layer_gradients: bool = any("layers" in parameter_path for parameter_path, _ in whole_gradients)
        self._constant_bytes = remaining_bytes + sum(excess_bytes for _, excess_bytes in whole_gradients)
        self._has_whole_gradients = bool(whole_gradients)
        self._extra_elements = sum(gradient.numel - weight.numel for _, gradient, weight in gradients)
        self._latest_passes: tuple[int, PassVisits, PassVisits] | None = None

    def _run_micro_batch(self) -> tuple[int, PassVisits, PassVisits]:
        """Runs a micro-batch; returns the bytes saved between its passes, and the memory records of both."""
        start_bytes = self.meter.live_bytes
        self.meter.restart()
        in_flight = self.chunk.forward_micro_batch()
        saved_bytes, forward_visits = self.meter.live_bytes - start_bytes, self.meter.pass_visits(start_bytes)
        self.meter.restart()
        self.chunk.backward_micro_batch(in_flight)
        return saved_bytes, forward_visits, self.meter.pass_visits(start_bytes)

    def measure_micro_batch(self, layer_repeats: int | None) -> MicroBatchBytes:
        """Runs a micro-batch's passes, and returns their saved and peak bytes. layer_repeats: as in `set_repeats`."""
        self.stage_layers.set_repeats(layer_repeats)
        start_bytes = self.meter.live_bytes
        measured_passes = self._run_micro_batch()
        self._latest_passes = measured_passes if self.meter.live_bytes == start_bytes else None
        return self._bytes_of_passes(*measured_passes)

    def bytes_without_last_repeat(self) -> MicroBatchBytes | None:
        """Derives the bytes of a micro-batch with three layer repeats from the last measured run, which has four.

        The passes count as work as if a run of their own had first made its gradients, so that a search over layouts
        does not go on to more replays than a user waits for.
        None if the repeats do not do the same, or the passes leave other bytes than were there before.
        """
        if self._latest_passes is None or self.stage_layers.stack is None:
            return None
        saved_bytes, forward_visits, backward_visits = self._latest_passes
        work_units = forward_visits.work_units + backward_visits.work_units
        shorter_passes = derive_passes_with_fewer_repeats(forward_visits, backward_visits, self.stage_layers.stack)
        if shorter_passes is None:
            return None
        forward_visits, backward_visits, repeat_bytes = shorter_passes
        SIMULATED_WORK.units += 2 * (forward_visits.work_units + backward_visits.work_units) + (
            work_units if self._has_whole_gradients else 0
        )
        return self._bytes_of_passes(saved_bytes - repeat_bytes, forward_visits, backward_visits)

    def _bytes_of_passes(
        self, saved_bytes: int, forward_visits: PassVisits, backward_visits: PassVisits
    ) -> MicroBatchBytes:
        forward_peaks, backward_peaks = (
            PeakByPath(pass_visits.peak_by_path()).plus_bytes(self._constant_bytes)
            for pass_visits in (forward_visits, backward_visits)
        )
        return MicroBatchBytes(saved_bytes, forward_peaks, backward_peaks, extra_gradient_elements=self._extra_elements)


WORKSPACE_THREADS = 2
"""Number of threads with a cuBLAS workspace each: the forward thread and the thread of the backward pass."""


def estimate_with_torch_kernels(
    memory_estimate: Memory,
    parameter_bytes: BytesPerParameter,
    training_config: TrainingConfig,
    transient_bytes_of: TransientBytesOfRank,
    pads_rows: bool = False,
) -> PeakEstimate:
    """Returns the memory estimate for a framework whose modules run with torch's own kernels.

    parameter_bytes: bytes per parameter.
    training_config: the training that its modules compute.
    transient_bytes_of: counts the transient bytes of a rank.
    pads_rows: whether shards are equally many rows of every tensor, rounded up.
    """
    fixed_bytes = (
        memory_estimate.cuda_runtime.context_bytes + WORKSPACE_THREADS * memory_estimate.cuda_runtime.workspace_bytes
    )
    measure_passes = make_pass_measurement(memory_estimate.spec, training_config)
    frees_gradients = not memory_estimate.training().keeps_gradients
    return PeakEstimate(
        memory_estimate.spec,
        parameter_bytes,
        measure_passes,
        memory_estimate.states.parameter_count.include,
        fixed_bytes,
        transient_bytes_of,
        frees_gradients,
        pads_rows,
    )
