"""Estimates for each layout in a search: the ranks' bytes, the sent bytes and the seconds per step.

A run is a layout with its micro-batches per step and its recomputation. The estimates of runs with the same
recomputation share the measurements of their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..device_memory.estimate import Memory
from ..frameworks.framework import EstimateErrors, Framework
from ..frameworks.peak_estimate import PeakEstimate
from ..frameworks.ranks import Cluster
from .layout_candidates import CONFIGURED_RECOMPUTE, LayoutRun
from .run_time import TrainingTimes

FULL_RECOMPUTE = "full"
"""The value of `--recompute` that recomputes every layer."""


@dataclass
class LayoutEstimates:
    """Estimates of the peak bytes of a model's layouts, for several values of `--recompute`."""

    memory: Memory
    framework: Framework
    _estimates_by_recompute: dict[str, LayoutEstimates] = field(default_factory=dict)
    _without_recompute: LayoutEstimates | None = None

    @cached_property
    def estimates_as_configured(self) -> PeakEstimate:
        """The peak estimates with the recomputation of the run's own settings."""
        memory_estimate = self.framework.estimate(self.memory)
        if self._without_recompute is not None:
            memory_estimate.take_over_parameter_counts(self._without_recompute.estimates_as_configured)
        return memory_estimate

    @property
    def with_full_recompute(self) -> LayoutEstimates:
        """The peak estimates with every layer recomputed in the backward pass."""
        return self.with_recompute(FULL_RECOMPUTE)

    def with_recompute(self, recompute_mode: str) -> LayoutEstimates:
        """Returns the estimates under a value of `--recompute`; the same object for the same value."""
        if recompute_mode == CONFIGURED_RECOMPUTE:
            return self
        if recompute_mode not in self._estimates_by_recompute:
            recomputing_memory = self.memory.with_changes(recompute=recompute_mode)
            self._estimates_by_recompute[recompute_mode] = LayoutEstimates(
                recomputing_memory, self.framework, _without_recompute=self
            )
        return self._estimates_by_recompute[recompute_mode]


@dataclass(eq=False)
class RunEstimates:
    """Estimates of memory, communication and time for the layouts of one search.

    version: of the framework; empty for the newest.
    layout_times: seconds of a step with the configured recomputation; None without times.
    """

    layout_estimates: LayoutEstimates
    version: str
    layout_times: TrainingTimes | None
    _memories_by_run: dict[tuple[int, str], Memory] = field(default_factory=dict)
    _times_by_recompute: dict[str, TrainingTimes] = field(default_factory=dict)

    @property
    def framework(self) -> Framework:
        """The framework that runs the layouts."""
        return self.layout_estimates.framework

    @property
    def estimate_errors(self) -> EstimateErrors:
        """The bounds of the error of the estimate `tensor_bytes`."""
        return self.framework.estimate_errors

    @property
    def are_timed(self) -> bool:
        """Whether the seconds per step are estimated."""
        return self.layout_times is not None

    def memory_of_run(self, layout_run: LayoutRun) -> Memory:
        """Returns the model's memory with the settings of a layout run; the same object for equal settings."""
        micro_batches, recompute = memory_key = layout_run.micro_batches, layout_run.recompute
        if memory_key not in self._memories_by_run:
            run_memory = self.layout_estimates.with_recompute(recompute).memory
            self._memories_by_run[memory_key] = run_memory.with_changes(num_microbatches=micro_batches)
        return self._memories_by_run[memory_key]

    def cluster(self, layout_run: LayoutRun) -> Cluster:
        """Returns the cluster (all ranks) of a layout run."""
        return Cluster.with_framework(self.memory_of_run(layout_run), layout_run.layout, self.framework, self.version)

    def peak_estimate(self, recompute: str) -> PeakEstimate:
        """Returns the peak estimate for all layout runs with this value of `--recompute`."""
        return self.layout_estimates.with_recompute(recompute).estimates_as_configured

    def stage_peaks(self, layout_run: LayoutRun) -> Sequence[int]:
        """Returns the estimated tensor bytes of the first rank of each pipeline stage."""
        return self.peak_estimate(layout_run.recompute).peaks_by_stage(layout_run.layout, layout_run.micro_batches)

    def tensor_bytes(self, layout_run: LayoutRun) -> int:
        """Returns the estimated tensor bytes of the largest rank."""
        return max(self.stage_peaks(layout_run))

    def least_bytes(self, layout_run: LayoutRun) -> int:
        """Returns a lower bound of `tensor_bytes`, faster to compute. micro_batches 0: for any number of them."""
        return self.peak_estimate(layout_run.recompute).lower_bound_bytes(layout_run.layout, layout_run.micro_batches)

    def has_too_large_rank(self, layout_run: LayoutRun, is_too_large: Callable[[int], bool]) -> bool:
        """Whether `is_too_large` holds for the tensor bytes of some rank; faster to compute than `tensor_bytes`."""
        return self.peak_estimate(layout_run.recompute).exceeds(
            layout_run.layout, layout_run.micro_batches, is_too_large
        )

    def sent_bytes(self, layout_run: LayoutRun) -> int:
        """Returns the bytes that a rank of the first stage sends per step."""
        messages = self.cluster(layout_run).messages_of_rank(layout_run.layout.rank(pp=0))
        return sum(message.wire_bytes * message.count for message in messages)

    def step_seconds(self, layout_run: LayoutRun) -> float:
        """Returns the estimated seconds of a training step."""
        assert self.layout_times is not None
        if layout_run.recompute not in self._times_by_recompute:
            run_memory = self.layout_estimates.with_recompute(layout_run.recompute).memory
            self._times_by_recompute[layout_run.recompute] = self.layout_times.with_memory(run_memory)
        return float(
            self._times_by_recompute[layout_run.recompute]
            .step_time(layout_run.layout, layout_run.micro_batches)
            .seconds
        )
