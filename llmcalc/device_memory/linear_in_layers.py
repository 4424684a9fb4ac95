"""Extrapolates memory to many layers: each module's peak is linear in the number of equal layers.

A stack repeats a pattern of layer kinds (one kind, or five with a window and one without). A run with 3 repeats and a
run with 4 repeats give the bytes of any number of repeats: at a given distance from the first or the last layer, every
repeat adds the same number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..simulator.layer_stacks import SHORT_RUN_REPEATS, LayerStack
from ..simulator.meter import AllocationPlace, MemoryPeak
from ..simulator.replay_result import ReplayResult

MAX_LISTED_REPEATS = 1000
"""Approximate largest number of layer repeats in a timeline; of more repeats, evenly spaced ones and the last are
listed.
"""


def extrapolate_layers(
    replay_run: Callable[[Mapping[int, int]], ReplayResult], stacks: list[LayerStack]
) -> ReplayResult:
    """Returns the result for all layers from replays with few layers, without the allocator's overhead.

    The overhead is not linear in the number of layers. Nor is the maximum over several passes of a phase: the runs list
    the passes separately, and the result has the highest one (`keep_highest_pass_of_phase`).

    replay_run: stack → repeats of its pattern, to the result of that run.
    """
    short_run_repeats = {index: SHORT_RUN_REPEATS for index, stack in enumerate(stacks) if stack.is_extrapolated}
    short_run = replay_run(short_run_repeats)
    extrapolated_result = ReplayResult(
        short_run.set_up_bytes,
        short_run.final_bytes,
        peaks={allocation_place: peak.copy() for allocation_place, peak in short_run.peaks.items()},
    )
    bytes_per_repeat: dict[AllocationPlace, int] = {}
    last_peaks: dict[AllocationPlace, MemoryPeak] = {}
    longer_runs = {
        index: replay_run({**short_run_repeats, index: SHORT_RUN_REPEATS + 1}) for index in short_run_repeats
    }
    for stack_index, longer_run in longer_runs.items():
        added_repeats = stacks[stack_index].repeat_count - SHORT_RUN_REPEATS
        extrapolated_result.set_up_bytes += added_repeats * (longer_run.set_up_bytes - short_run.set_up_bytes)
        extrapolated_result.final_bytes += added_repeats * (longer_run.final_bytes - short_run.final_bytes)
        for allocation_place, peak in extrapolated_result.peaks.items():
            _extrapolate_peak(
                peak,
                short_run.peaks[allocation_place],
                longer_run.peaks[_module_in_longer_run(allocation_place, stacks[stack_index], 1)],
                added_repeats,
            )
    for stack_index, longer_run in longer_runs.items():
        for allocation_place in [
            peak_place
            for peak_place in extrapolated_result.peaks
            if stacks[stack_index].is_in_second_repeat(peak_place)
        ]:
            second_peak = longer_run.peaks[allocation_place]
            third_peak = longer_run.peaks[stacks[stack_index].place_in_later_repeat(allocation_place, 1)]
            bytes_per_repeat[allocation_place] = third_peak.bytes - second_peak.bytes
            last_layer_place = stacks[stack_index].place_in_later_repeat(
                allocation_place, stacks[stack_index].repeat_count - SHORT_RUN_REPEATS
            )
            last_peaks[last_layer_place] = peak = extrapolated_result.peaks[allocation_place].copy()
            _extrapolate_peak(peak, second_peak, third_peak, stacks[stack_index].repeat_count - SHORT_RUN_REPEATS)
    peaks = {_module_in_full_model(peak_place, stacks): peak for peak_place, peak in extrapolated_result.peaks.items()}
    return keep_highest_pass_of_phase(
        ReplayResult(
            extrapolated_result.set_up_bytes,
            extrapolated_result.final_bytes,
            peaks=peaks | last_peaks,
            bytes_per_repeat=bytes_per_repeat,
        )
    )


def keep_highest_pass_of_phase(replay_result: ReplayResult) -> ReplayResult:
    """Returns the replay result with only the highest of each phase's passes, under the name of the phase.

    The passes of a phase (the chunks of a prompt) are numbered: `prefill 0`, `prefill 1`, …. A module that the highest
    pass does not run, such as one of an encoder, has its peak of the first other pass.
    """
    highest_passes: dict[str, tuple[int, str]] = {}
    for allocation_place, peak in replay_result.peaks.items():
        phase_name = allocation_place.phase.partition(" ")[0]
        highest_passes[phase_name] = max(highest_passes.get(phase_name, (0, "")), (peak.bytes, allocation_place.phase))
    phase_by_name = {phase_name: phase for phase_name, (_, phase) in highest_passes.items()}
    if all(phase_name == phase for phase_name, phase in phase_by_name.items()):
        return replay_result

    def rename_to_phase(allocation_place: AllocationPlace) -> AllocationPlace | None:
        """Returns the module with its phase's name (`prefill 3` → `prefill`); None if the highest pass also runs it."""
        phase_name = allocation_place.phase.partition(" ")[0]
        place_of_phase = allocation_place._replace(phase=phase_by_name[phase_name])
        if place_of_phase == allocation_place or place_of_phase not in replay_result.peaks:
            return allocation_place._replace(phase=phase_name)
        return None

    peaks: dict[AllocationPlace, MemoryPeak] = {}
    bytes_per_repeat: dict[AllocationPlace, int] = {}
    for allocation_place, peak in replay_result.peaks.items():
        renamed_place = rename_to_phase(allocation_place)
        if renamed_place is not None and renamed_place not in peaks:
            peaks[renamed_place] = peak
            if allocation_place in replay_result.bytes_per_repeat:
                bytes_per_repeat[renamed_place] = replay_result.bytes_per_repeat[allocation_place]
    return replace(replay_result, peaks=peaks, bytes_per_repeat=bytes_per_repeat)


def _extrapolate_peak(peak: MemoryPeak, peak_before: MemoryPeak, peak_after: MemoryPeak, added_repeats: int) -> None:
    """Adds `added_repeats` times the difference of `peak_after` and `peak_before` to `peak`, in total and by kind."""
    peak.bytes += added_repeats * (peak_after.bytes - peak_before.bytes)
    for memory_kind in peak.by_kind:
        peak.by_kind[memory_kind] += added_repeats * (
            peak_after.by_kind[memory_kind] - peak_before.by_kind[memory_kind]
        )


def _module_in_longer_run(
    allocation_place: AllocationPlace, layer_stack: LayerStack, added_repeats: int
) -> AllocationPlace:
    """Returns the corresponding module in a run whose layer pattern repeats `added_repeats` times more."""
    if (
        not layer_stack.contains(allocation_place)
        or allocation_place.layer_index < layer_stack.layers_before + (SHORT_RUN_REPEATS - 1) * layer_stack.layer_period
    ):
        return allocation_place
    return layer_stack.place_in_later_repeat(allocation_place, added_repeats)


def _module_in_full_model(allocation_place: AllocationPlace, stacks: list[LayerStack]) -> AllocationPlace:
    """Returns the full model's module that corresponds to a module of a run with fewer layers."""
    for stack in stacks:
        if stack.is_extrapolated:
            allocation_place = _module_in_longer_run(allocation_place, stack, stack.repeat_count - SHORT_RUN_REPEATS)
    return allocation_place


def node_path(allocation_place: AllocationPlace, stacks: list[LayerStack]) -> str:
    """Returns a module's path in the model's tree, including the index of its layer."""
    for layer_stack in stacks:
        if allocation_place.layer_index >= 0 and layer_stack.contains(allocation_place):
            return layer_stack.node_path(allocation_place)
    return allocation_place.path


def list_module_peaks(replay_result: ReplayResult, stacks: list[LayerStack]) -> list[tuple[str, str, int]]:
    """Returns phase, module and peak of every module of the model, in execution order.

    Every layer of a stack is listed; of thousands of layers, about a thousand at equal distances.

    replay_result: from `extrapolate_layers`, or of a run of all layers.
    """
    module_peaks: list[tuple[str, str, int]] = []
    stack_peaks: list[tuple[AllocationPlace, int]] = []
    collected_stack: LayerStack | None = None

    def add_stack_peaks() -> None:
        """Appends the peaks of the collected stack's modules to `module_peaks`, for every listed layer."""
        if collected_stack is None:
            return
        phase = stack_peaks[0][0].phase
        stack_prefix, prefix_length = f"{collected_stack.path}.", len(collected_stack.path)
        peaks_by_place = [
            (
                allocation_place.layer_index,
                allocation_place.path[prefix_length:],
                peak_bytes,
                replay_result.bytes_per_repeat.get(allocation_place, 0),
            )
            for allocation_place, peak_bytes in stack_peaks
        ]
        last_repeat = collected_stack.repeat_count - SHORT_RUN_REPEATS
        listed_repeats = sorted(
            {*range(0, last_repeat, last_repeat // MAX_LISTED_REPEATS + 1), last_repeat}, reverse=phase == "backward"
        )
        for repeat_index in listed_repeats:
            added_layers = repeat_index * collected_stack.layer_period
            module_peaks.extend(
                [
                    (
                        phase,
                        f"{stack_prefix}{layer_index + added_layers}{path}",
                        peak_bytes + repeat_index * bytes_per_repeat,
                    )
                    for layer_index, path, peak_bytes, bytes_per_repeat in peaks_by_place
                ]
            )
        stack_peaks.clear()

    repeated_stacks = [stack for stack in stacks if stack.is_extrapolated] if replay_result.bytes_per_repeat else []
    repeat_ends = {
        stack.place_in_later_repeat(allocation_place, stack.repeat_count - SHORT_RUN_REPEATS)
        for allocation_place in replay_result.bytes_per_repeat
        for stack in stacks
        if stack.contains(allocation_place)
    }
    for allocation_place, peak in replay_result.peaks.items():
        if allocation_place in repeat_ends:
            continue
        layer_stack = next((stack for stack in repeated_stacks if stack.is_in_second_repeat(allocation_place)), None)
        if layer_stack is not collected_stack or (stack_peaks and stack_peaks[0][0].phase != allocation_place.phase):
            add_stack_peaks()
            collected_stack = layer_stack
        if layer_stack is None:
            module_peaks.append((allocation_place.phase, node_path(allocation_place, stacks), peak.bytes))
        else:
            stack_peaks.append((allocation_place, peak.bytes))
    add_stack_peaks()
    return module_peaks
