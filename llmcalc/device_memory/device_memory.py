"""The memory of one device in bytes: every peak with its time, module and bytes by kind of tensor."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..accelerator import Hardware, MemoryFit
from ..errors import InputError
from ..evidence import META_MEASUREMENT, Evidence, Status, evidence_names, weakest_status, witness_texts
from ..frozen import frozen
from ..model import ModelSpec
from ..simulator.caching_allocator import CachingAllocator
from ..simulator.event_log import RecordedEvents
from ..simulator.layer_pattern import RECORDED_REPEATS
from ..simulator.layer_stacks import SHORT_RUN_REPEATS, LayerStack, layer_stacks
from ..simulator.meter import AllocationPlace, MemoryPeak
from ..simulator.repeat_layers import AllocatorOverhead, NotRepeatingError, RepeatAnalysis
from ..simulator.replay_result import ReplayResult
from .cuda_runtime import CONTEXT_SOURCE, CudaRuntime
from .linear_in_layers import extrapolate_layers, keep_highest_pass_of_phase, list_module_peaks, node_path

if TYPE_CHECKING:
    from .encoders import EncoderPeak

MAX_REPLAYED_LAYERS = 1000
"""The largest number of layers with which a run is replayed completely on the caching allocator."""

MAX_LAYERS_IN_SEARCH = 250
"""The largest number of layers with which a search replays a run completely on the caching allocator."""

LAYERS_OF_SHORTER_RUNS = 125, 250
"""Numbers of layers of the two shorter runs from which the allocator's overhead of a longer run is extrapolated."""

MAX_IRREGULAR_LAYERS = 256
"""The largest number of layers that are not in a repeated pattern; each of them is recorded separately."""

MAX_RECORDED_LAYERS = 1000
"""The largest number of layers that are recorded one by one, if the repeats of a layer pattern do not do the same."""

REPLAY_PHASES = ("prefill", "decode", "forward", "backward", "step")
"""The parts of a pass or of a training step, in order."""

TORCH_VERSION = "torch 2.13"


class ModulePeak(NamedTuple):
    """The highest memory of the device while a module runs.

    phase: part of the step.
    module_path: path of the module, with the index of its layer; empty for the model itself.
    bytes: bytes of tensors at the peak.
    """

    phase: str
    module_path: str
    bytes: int


@frozen
class MemoryTerm:
    """A named term in the sum of a device's memory, in bytes, with the evidence for the number.

    name: name in the report.
    bytes: bytes.
    status: the weakest status (`evidence.Status`) of anything that the run uses.
    witness: the measurement that it was compared with, or the source that it was read from; with the status `untested`,
        the parts without a measurement.
    versions: library versions for which it holds; empty if it depends on none.
    belongs_to_runtime: whether the allocator, a library or the driver takes it, independent of the model; default
        false.
    """

    name: str
    bytes: int
    status: Status
    witness: str
    versions: str = ""
    belongs_to_runtime: bool = False


@frozen
class DeviceMemory:
    """The memory of one device, in bytes.

    exact_bytes: tensors alive at the peak.
    peak_bytes: the allocator's blocks at the peak, with workspaces (torch.cuda.max_memory_allocated).
    after_step_bytes: the allocator's blocks after a step (torch.cuda.memory_allocated).
    reserved_bytes: the allocator's segments (torch.cuda.max_memory_reserved).
    device_bytes: the segments and the CUDA context, which is what has to fit.
    peak_at: the phase and module of the peak.
    by_kind: `peak_bytes` by kind of tensor. `overhead` is workspaces, and the rounding to blocks.
    timeline: the peak of every module in bytes of tensors, in the order of the step.
    moments: phase → the bytes of tensors at its peak, by kind.
    terms: the parts of `device_bytes`, each with its evidence.
    host_terms: what the run keeps on the host for this device, beside `device_bytes`; default nothing.
    paged_bytes: bytes of `device_bytes` that the driver moves to the host where the device is full; default 0.
    """

    exact_bytes: int
    peak_bytes: int
    after_step_bytes: int
    reserved_bytes: int
    device_bytes: int
    peak_at: ModulePeak
    by_kind: Mapping[str, int]
    timeline: tuple[ModulePeak, ...]
    moments: Mapping[str, Mapping[str, int]]
    terms: tuple[MemoryTerm, ...]
    host_terms: tuple[MemoryTerm, ...] = ()
    paged_bytes: int = 0

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory that the run uses."""
        return sum(memory_term.bytes for memory_term in self.host_terms)

    @property
    def fragmentation(self) -> int:
        """Estimated bytes of free blocks inside the allocator's segments at the peak."""
        return self.reserved_bytes - self.peak_bytes

    def fit_on(self, hardware: Hardware) -> MemoryFit:
        """Returns whether the run fits in an accelerator's memory, as a `MemoryFit`."""
        bytes_moved_to_host = min(self.paged_bytes, max(0, self.device_bytes - hardware.capacity_bytes))
        return MemoryFit(hardware, self.device_bytes - bytes_moved_to_host, self.fragmentation)


TENSORS_TERM = MemoryTerm("tensors", 0, "exact", META_MEASUREMENT, TORCH_VERSION)
"""The memory term of tensors in a run whose parts are all compared with torch."""


class RecordReplay(Protocol):
    """The type of functions that record the allocations of a model's replays, each on a separate allocator."""

    def __call__(self, repeats_by_stack: Mapping[int, int], workspace_bytes: int, /) -> Sequence[RecordedEvents]:
        """Records the allocations of replays in which each stack's layer pattern has the given number of repeats.

        repeats_by_stack: stack → repeats of its pattern; stacks that are not there run whole.
        workspace_bytes: bytes of one cuBLAS workspace.
        """


@frozen
class UnreplayedBytes:
    """Bytes that a run needs but the replay does not allocate, such as those of image encoders.

    kind: the kind that they are counted under.
    bytes: number of bytes.
    phases: phases in which they are allocated; default all.
    stays_after_run: whether they are still allocated after the run; default true.
    """

    kind: str
    bytes: int
    phases: Sequence[str] = REPLAY_PHASES
    stays_after_run: bool = True


def with_evidence(memory_term: MemoryTerm, evidence: Sequence[Evidence]) -> MemoryTerm:
    """Returns the memory term with the weakest status among its own and those of the run's evidence."""
    status = weakest_status([memory_term.status, *(evidence_entry.status for evidence_entry in evidence)])
    if memory_term.belongs_to_runtime or status == memory_term.status:
        return memory_term
    if status == "untested":
        return replace(memory_term, status=status, witness=f"no measurement of {evidence_names(evidence, status)}")
    checks_text = witness_texts(evidence, status)
    if memory_term.witness == META_MEASUREMENT:
        checks_text = f"torch on meta, and {checks_text}" if status == "source" else checks_text
    else:
        checks_text = f"{memory_term.witness}; {checks_text}"
    return replace(memory_term, status=status, witness=checks_text)


def memory_with_evidence(device: DeviceMemory, evidence: Sequence[Evidence]) -> DeviceMemory:
    """Returns the device's memory, in which every term has the weakest status of the run's evidence."""
    return replace(device, terms=tuple(with_evidence(memory_term, evidence) for memory_term in device.terms))


def device_memory(
    spec: ModelSpec,
    record_replay: RecordReplay,
    cuda_runtime: CudaRuntime,
    unreplayed_allocations: Sequence[UnreplayedBytes],
    tensor_term: MemoryTerm,
    recompute_period: int = 1,
    encoder_peaks: Sequence[EncoderPeak] = (),
) -> DeviceMemory:
    """Replays a run and returns the memory of the device.

    unreplayed_allocations: bytes that the replay does not see.
    tensor_term: the term of its tensors, with their evidence.
    recompute_period: recompute treats one layer in `recompute_period` differently; 1 (default) if all layers run alike.
    encoder_peaks: the peaks of encoders that run before a prompt; default none.
    """
    counted_run = CountedRun(spec, record_replay, cuda_runtime, recompute_period)
    return counted_run.memory(cuda_runtime.context_bytes, unreplayed_allocations, tensor_term, encoder_peaks)


def summarize_memory(
    replay_result: ReplayResult,
    context_bytes: int,
    stacks: list[LayerStack],
    tensor_term: MemoryTerm,
    is_complete: bool = True,
) -> DeviceMemory:
    """Returns the memory of a device, computed from the result of a replay.

    context_bytes: bytes of the CUDA context.
    stacks: the stacks of the model.
    tensor_term: the term of the tensors, with their evidence.
    is_complete: whether all layers were replayed on the allocator; default true.
    """
    allocation_place, peak = replay_result.peak
    workspace_bytes = peak.bytes_of_all_kinds["overhead"]
    bytes_by_kind = peak.bytes_of_all_kinds | {"overhead": workspace_bytes + replay_result.rounding_bytes}
    allocated_bytes = peak.bytes + replay_result.rounding_bytes
    reserved_bytes = max(replay_result.reserved_bytes, allocated_bytes)
    allocator_evidence = _allocator_evidence(is_complete, replay_result.micro_batches)
    return DeviceMemory(
        exact_bytes=peak.bytes - workspace_bytes,
        peak_bytes=allocated_bytes,
        after_step_bytes=replay_result.final_bytes + replay_result.rounding_bytes_after,
        reserved_bytes=reserved_bytes,
        device_bytes=reserved_bytes + context_bytes,
        peak_at=ModulePeak(allocation_place.phase, node_path(allocation_place, stacks), peak.bytes),
        by_kind=bytes_by_kind,
        timeline=tuple(module_peaks(replay_result, stacks)),
        moments=bytes_by_phase_and_kind(replay_result.peaks),
        terms=(
            replace(tensor_term, bytes=peak.bytes - workspace_bytes),
            MemoryTerm(
                "cuBLAS workspaces",
                workspace_bytes,
                "source",
                "aten/src/ATen/cuda/CublasHandlePool.cpp",
                TORCH_VERSION,
                True,
            ),
            MemoryTerm("rounding to blocks", replay_result.rounding_bytes, *allocator_evidence, TORCH_VERSION, True),
            MemoryTerm(
                "free blocks", reserved_bytes - allocated_bytes, "estimate", allocator_evidence[1], TORCH_VERSION, True
            ),
            MemoryTerm("CUDA context", context_bytes, "estimate", CONTEXT_SOURCE, belongs_to_runtime=True),
        ),
    )


def _allocator_evidence(is_complete: bool, micro_batches: int) -> tuple[Status, str]:
    """Returns status and source of the allocator's overhead. micro_batches: as in `ReplayResult`."""
    allocator_source = "c10/cuda/CUDACachingAllocator.cpp, replayed"
    if micro_batches:
        return "estimate", f"{allocator_source} for {micro_batches} micro-batches of a step, extrapolated to all"
    if is_complete:
        return ("source", allocator_source)
    return ("estimate", f"{allocator_source} for some layers, extrapolated to all")


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disables garbage collection in a `with` block, as a replay's many objects are freed by reference counts."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CountedRun:
    """A run whose tensors are counted first; the first use of `memory` also replays the caching allocator.

    The run is recorded with a few repeats of each pattern, from which all layers are replayed. Of a run with more than
    `MAX_REPLAYED_LAYERS` layers (`MAX_LAYERS_IN_SEARCH` in a search), two shorter runs are replayed on the allocator,
    and its overhead is extrapolated.

    spec, cuda_runtime, recompute_period: as in `device_memory`.
    stacks: the stacks of the model.
    replays_all_layers: whether all layers are replayed on the allocator.
    replay_result: the bytes of tensors, without the allocator's overhead.
    """

    @without_garbage_collection()
    def __init__(
        self, spec: ModelSpec, record_replay: RecordReplay, cuda_runtime: CudaRuntime, recompute_period: int = 1
    ) -> None:
        self.cuda_runtime: CudaRuntime = cuda_runtime
        self.stacks: list[LayerStack] = layer_stacks(spec, recompute_period)
        self.repeating_stacks: list[int] = [
            stack_index for stack_index, stack in enumerate(self.stacks) if stack.is_extrapolated
        ]
        self.repeat_analyses: list[RepeatAnalysis] = self._record_events(record_replay)
        layer_limit = MAX_LAYERS_IN_SEARCH if cuda_runtime.belongs_to_search else MAX_REPLAYED_LAYERS
        self.replays_all_layers: bool = (
            not self.repeating_stacks or sum(layer_stack.layer_count for layer_stack in self.stacks) <= layer_limit
        )
        self.replay_result: ReplayResult = (
            extrapolate_layers(self._count_bytes, self.stacks)
            if self.repeating_stacks
            else keep_highest_pass_of_phase(self._count_bytes({}))
        )

    @property
    def recordings(self) -> list[RecordedEvents]:
        """The recorded allocations and frees; empty once they have been replayed on the caching allocator."""
        return [repeat_analysis.recorded_events for repeat_analysis in self.repeat_analyses]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of tensors at the run's peak, without cuBLAS workspaces."""
        peak = self.replay_result.peak[1]
        return peak.bytes - peak.bytes_of_all_kinds["overhead"]

    def least_bytes(self, context_bytes: int, unreplayed_allocations: Sequence[UnreplayedBytes] = ()) -> int:
        """Returns a lower bound of the device's memory in bytes: tensors at the peak plus the CUDA context.

        The allocator's blocks have at least the bytes of their tensors. context_bytes: bytes of the CUDA context.
        unreplayed_allocations: bytes that the replay does not see.
        """
        whole_run_bytes = sum(
            unreplayed.bytes for unreplayed in unreplayed_allocations if unreplayed.phases == REPLAY_PHASES
        )
        return self.replay_result.peak[1].bytes + whole_run_bytes + context_bytes

    def memory(
        self,
        context_bytes: int,
        unreplayed_allocations: Sequence[UnreplayedBytes],
        tensor_term: MemoryTerm,
        encoder_peaks: Sequence[EncoderPeak] = (),
    ) -> DeviceMemory:
        """Returns the memory of the device. context_bytes: bytes of the CUDA context; others as in `device_memory`."""
        replay_result, overhead = self.replay_result.copy(), self._allocator_overhead
        replay_result.rounding_bytes = overhead.rounding_bytes
        replay_result.rounding_bytes_after = overhead.rounding_bytes_after
        replay_result.reserved_bytes = replay_result.peak[1].bytes + overhead.rounding_bytes + overhead.free_bytes
        _add_unreplayed_bytes(replay_result, unreplayed_allocations)
        _add_encoders(replay_result, unreplayed_allocations, encoder_peaks)
        return summarize_memory(replay_result, context_bytes, self.stacks, tensor_term, self.replays_all_layers)

    def _record_events(self, record_replay: RecordReplay) -> list[RepeatAnalysis]:
        """Records the run with few repeats of each layer pattern, or with all layers if repeats differ."""
        short_run_repeats = {
            stack_index: self.stacks[stack_index].repeats_of_layer_types(RECORDED_REPEATS)
            for stack_index in self.repeating_stacks
        }
        try:
            return [
                RepeatAnalysis(recorded_events, self.stacks, self.repeating_stacks)
                for recorded_events in record_replay(short_run_repeats, self.cuda_runtime.workspace_bytes)
            ]
        except NotRepeatingError:
            self.repeating_stacks = []
        layer_count = sum(layer_stack.layer_count for layer_stack in self.stacks)
        if layer_count > MAX_RECORDED_LAYERS:
            raise InputError(
                f"{layer_count:,} layers that differ are too many for memory; expected at most {MAX_RECORDED_LAYERS:,}"
            )
        return [
            RepeatAnalysis(recorded_events, self.stacks, [])
            for recorded_events in record_replay({}, self.cuda_runtime.workspace_bytes)
        ]

    def _count_bytes(self, repeats_by_stack: Mapping[int, int]) -> ReplayResult:
        """Counts tensor bytes. repeats_by_stack: stack index → pattern repeats; other stacks run whole."""
        return _join_consecutive_replays(
            [repeat_analysis.count_bytes(repeats_by_stack) for repeat_analysis in self.repeat_analyses]
        )

    @cached_property
    def _allocator_overhead(self) -> AllocatorOverhead:
        """The bytes that the caching allocator reserves beyond the tensors, for all layers."""
        with without_garbage_collection():
            overhead = self._overhead_with_layers({}) if self.replays_all_layers else self._extrapolated_overhead()
        self.repeat_analyses = []  # their events are no longer needed
        return overhead

    def _extrapolated_overhead(self) -> AllocatorOverhead:
        """Extrapolates the caching allocator's overhead for all layers from replays with fewer layers."""
        stacks, repeating_stacks = self.stacks, self.repeating_stacks
        shorter_repeats, longer_repeats = (
            {
                repeating_stack_index: max(SHORT_RUN_REPEATS, layer_count // stacks[repeating_stack_index].layer_period)
                for repeating_stack_index in repeating_stacks
            }
            for layer_count in LAYERS_OF_SHORTER_RUNS
        )
        longer_repeats = {
            repeating_stack_index: min(
                stacks[repeating_stack_index].repeat_count,
                max(longer_repeats[repeating_stack_index], shorter_repeats[repeating_stack_index] + 1),
            )
            for repeating_stack_index in repeating_stacks
        }
        added_layers = sum(
            (longer_repeats[repeating_stack_index] - shorter_repeats[repeating_stack_index])
            * stacks[repeating_stack_index].layer_period
            for repeating_stack_index in repeating_stacks
        )
        missing_layers = sum(
            (stacks[stack_index].repeat_count - longer_repeats[stack_index]) * stacks[stack_index].layer_period
            for stack_index in repeating_stacks
        )
        return self._overhead_with_layers(shorter_repeats).extrapolate(
            self._overhead_with_layers(longer_repeats), missing_layers, added_layers
        )

    def _overhead_with_layers(self, repeats_by_stack: Mapping[int, int]) -> AllocatorOverhead:
        """Returns the allocator's overhead. repeats_by_stack: stack index → pattern repeats; other stacks run whole."""
        return AllocatorOverhead.combine(
            [
                repeat_analysis.allocator_overhead(
                    CachingAllocator(self.cuda_runtime.has_expandable_segments), repeats_by_stack
                )
                for repeat_analysis in self.repeat_analyses
            ]
        )


def refuse_too_many_layers(spec: ModelSpec) -> None:
    """Raises `InputError` for a model whose layers have no repeating pattern and are too many to replay."""
    nonrepeating_layer_count = sum(
        layer_stack.nonrepeating_layer_count if layer_stack.repeat_count > RECORDED_REPEATS else layer_stack.layer_count
        for layer_stack in layer_stacks(spec)
    )
    if nonrepeating_layer_count > MAX_IRREGULAR_LAYERS:
        raise InputError(
            f"{nonrepeating_layer_count:,} layers that repeat no pattern are too many for memory; "
            f"expected at most {MAX_IRREGULAR_LAYERS:,}"
        )


def _join_consecutive_replays(replay_results: Sequence[ReplayResult]) -> ReplayResult:
    """Joins the results of consecutive replays into one result with the peaks of all of them."""
    peaks = {peak_place: peak for replay_result in replay_results for peak_place, peak in replay_result.peaks.items()}
    return ReplayResult(
        set_up_bytes=replay_results[0].set_up_bytes, final_bytes=replay_results[-1].final_bytes, peaks=peaks
    )


def _add_unreplayed_bytes(replay_result: ReplayResult, unreplayed_allocations: Sequence[UnreplayedBytes]) -> None:
    """Adds the bytes that are not replayed to the result of a replay."""
    for unreplayed in unreplayed_allocations:
        replay_result.set_up_bytes += unreplayed.bytes
        replay_result.reserved_bytes += unreplayed.bytes
        replay_result.final_bytes += unreplayed.bytes if unreplayed.stays_after_run else 0
        for allocation_place, peak in replay_result.peaks.items():
            if allocation_place.phase in unreplayed.phases:
                peak.bytes += unreplayed.bytes
                peak.by_kind[unreplayed.kind] = peak.by_kind.get(unreplayed.kind, 0) + unreplayed.bytes


def _add_encoders(
    replay_result: ReplayResult,
    unreplayed_allocations: Sequence[UnreplayedBytes],
    encoder_peaks: Sequence[EncoderPeak],
) -> None:
    """Adds the peaks of image and audio encoders, which run before the prompt while weights and cache exist."""
    if not any(allocation_place.phase == "prefill" for allocation_place in replay_result.peaks):
        return
    cache_bytes = sum(unreplayed.bytes for unreplayed in unreplayed_allocations if unreplayed.kind == "cache")
    for encoder_peak in encoder_peaks:
        peak = MemoryPeak()
        peak.bytes = replay_result.set_up_bytes + encoder_peak.bytes
        peak.by_kind = {
            "weights": replay_result.set_up_bytes - cache_bytes,
            "cache": cache_bytes,
            "temporary": encoder_peak.bytes,
        }
        replay_result.peaks = {
            AllocationPlace("prefill", path=f"towers.{encoder_peak.name}"): peak,
            **replay_result.peaks,
        }
        replay_result.reserved_bytes = max(replay_result.reserved_bytes, peak.bytes + replay_result.rounding_bytes)


def module_peaks(replay_result: ReplayResult, stacks: list[LayerStack]) -> list[ModulePeak]:
    """Returns the peak of every module that allocates a tensor, in each phase and layer."""
    peaks_by_phase: dict[str, list[ModulePeak]] = {phase: [] for phase in REPLAY_PHASES}
    for phase, module_path, peak_bytes in list_module_peaks(replay_result, stacks):
        if peak_bytes:
            peaks_by_phase[phase].append(ModulePeak(phase, module_path, peak_bytes))
    return [module_peak for phase_peaks in peaks_by_phase.values() for module_peak in phase_peaks]


def bytes_by_phase_and_kind(peaks: Mapping[AllocationPlace, MemoryPeak]) -> dict[str, Mapping[str, int]]:
    """Returns, for each phase, the bytes by kind of tensor at the phase's peak."""
    bytes_by_phase: dict[str, Mapping[str, int]] = {}
    for phase in REPLAY_PHASES:
        phase_peaks = [peak for allocation_place, peak in peaks.items() if allocation_place.phase == phase]
        if phase_peaks:
            bytes_by_phase[phase] = max(phase_peaks, key=lambda peak: peak.bytes).bytes_of_all_kinds
    return bytes_by_phase
