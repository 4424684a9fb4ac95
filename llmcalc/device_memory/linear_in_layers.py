"""Extrapolates the memory of a run with many layers: the bytes at each place are linear in the equal layers.

A stack repeats a pattern of layer kinds (one kind, or five with a window and one without). A run with 3 repeats and a
run with 4 repeats give the bytes of any number of repeats: at a given distance from the first or the last layer, every
repeat adds the same number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..simulator.layer_loops import SHORT_RUN_REPEATS, LayerStack
from ..simulator.meter import Peak, Place
from ..simulator.replay_result import ReplayResult

LISTED = 1000
"""About the largest number of repeats in a timeline; of more repeats it lists some at equal distances, and the last."""


def extrapolate_layers(run: Callable[[Mapping[int, int]], ReplayResult], stacks: list[LayerStack]) -> ReplayResult:
    """Returns the result of a run of all layers from runs with few repeats, without the allocator's overhead.

    The overhead is not linear in the number of layers. Nor is the maximum over several passes of a phase: the runs list
    the passes separately, and the result has the highest one (`highest_pass`).

    run: stack → repeats of its pattern, to the result of that run.
    """
    short = {i: SHORT_RUN_REPEATS for i, loop in enumerate(stacks) if loop.can_extrapolate}
    base = run(short)
    result = ReplayResult(base.set_up, base.after, peaks={place: peak.copy() for place, peak in base.peaks.items()})
    slopes: dict[Place, int] = {}
    last_peaks: dict[Place, Peak] = {}
    runs = {i: run({**short, i: SHORT_RUN_REPEATS + 1}) for i in short}
    for i, longer_run in runs.items():
        times = stacks[i].repeats - SHORT_RUN_REPEATS
        result.set_up += times * (longer_run.set_up - base.set_up)
        result.after += times * (longer_run.after - base.after)
        for place, peak in result.peaks.items():
            _extrapolate(peak, base.peaks[place], longer_run.peaks[_place_in_longer_run(place, stacks[i], 1)], times)
    for i, longer_run in runs.items():
        for place in [place for place in result.peaks if stacks[i].is_second(place)]:
            second, third = longer_run.peaks[place], longer_run.peaks[stacks[i].in_later_repeat(place, 1)]
            slopes[place] = third.bytes - second.bytes
            last_place = stacks[i].in_later_repeat(place, stacks[i].repeats - SHORT_RUN_REPEATS)
            last_peaks[last_place] = peak = result.peaks[place].copy()
            _extrapolate(peak, second, third, stacks[i].repeats - SHORT_RUN_REPEATS)
    peaks = {_place_in_model(place, stacks): peak for place, peak in result.peaks.items()}
    return highest_pass(ReplayResult(result.set_up, result.after, peaks=peaks | last_peaks, slopes=slopes))


def highest_pass(result: ReplayResult) -> ReplayResult:
    """Returns the result with only the pass of each phase that has the highest peak, under the phase's name.

    The passes of a phase (the chunks of a prompt) are numbered: `prefill 0`, `prefill 1`, …. A module that the highest
    pass does not run, such as one of an encoder, has its peak of the first other pass.
    """
    highest: dict[str, tuple[int, str]] = {}
    for place, peak in result.peaks.items():
        name = place.phase.partition(" ")[0]
        highest[name] = max(highest.get(name, (0, "")), (peak.bytes, place.phase))
    phase_by_name = {name: phase for name, (_, phase) in highest.items()}
    if all(name == phase for name, phase in phase_by_name.items()):
        return result

    def under_phase_name(place: Place) -> Place | None:
        """Returns the place under the phase's name; None if the highest pass has a peak of the same module."""
        name = place.phase.partition(" ")[0]
        highest_place = place._replace(phase=phase_by_name[name])
        return place._replace(phase=name) if highest_place == place or highest_place not in result.peaks else None

    peaks: dict[Place, Peak] = {}
    slopes: dict[Place, int] = {}
    for place, peak in result.peaks.items():
        new_place = under_phase_name(place)
        if new_place is not None and new_place not in peaks:
            peaks[new_place] = peak
            if place in result.slopes:
                slopes[new_place] = result.slopes[place]
    return replace(result, peaks=peaks, slopes=slopes)


def _extrapolate(peak: Peak, before: Peak, after: Peak, times: int) -> None:
    """Returns `first` plus `times` times the difference of two peaks."""
    peak.bytes += times * (after.bytes - before.bytes)
    for kind in peak.by_kind:
        peak.by_kind[kind] += times * (after.by_kind[kind] - before.by_kind[kind])


def _place_in_longer_run(place: Place, stack: LayerStack, added: int) -> Place:
    """Returns the place at the same distance from the first or last layer in a run with `added` more repeats."""
    if not stack.contains(place) or place.layer_index < stack.before + (SHORT_RUN_REPEATS - 1) * stack.period:
        return place
    return stack.in_later_repeat(place, added)


def _place_in_model(place: Place, stacks: list[LayerStack]) -> Place:
    """Returns the place in the full model that corresponds to a place in a short run."""
    for stack in stacks:
        if stack.can_extrapolate:
            place = _place_in_longer_run(place, stack, stack.repeats - SHORT_RUN_REPEATS)
    return place


def node_path(place: Place, stacks: list[LayerStack]) -> str:
    """Returns the path of a module in the model's tree, with the index of its layer."""
    for stack in stacks:
        if place.layer_index >= 0 and stack.contains(place):
            return stack.node(place)
    return place.path


def list_places(result: ReplayResult, stacks: list[LayerStack]) -> list[tuple[str, str, int]]:
    """Returns phase, module and peak of every place of the model, in the order in which a pass runs them.

    Every layer of a stack is listed; of thousands of layers, about a thousand at equal distances.

    result: from `extrapolate_layers`, or of a run of all layers.
    """
    points: list[tuple[str, str, int]] = []
    block: list[tuple[Place, int]] = []
    block_stack: LayerStack | None = None

    def flush() -> None:
        if block_stack is None:
            return
        phase = block[0][0].phase
        prefix, prefix_length = f"{block_stack.path}.", len(block_stack.path)
        rows = [
            (place.layer_index, place.path[prefix_length:], bytes, result.slopes.get(place, 0))
            for place, bytes in block
        ]
        last = block_stack.repeats - SHORT_RUN_REPEATS
        turns = sorted({*range(0, last, last // LISTED + 1), last}, reverse=phase == "backward")
        for k in turns:
            added = k * block_stack.period
            points.extend(
                [
                    (phase, f"{prefix}{layer_index + added}{path}", bytes + k * slope)
                    for layer_index, path, bytes, slope in rows
                ]
            )
        block.clear()

    repeated = [loop for loop in stacks if loop.can_extrapolate] if result.slopes else []
    ends = {
        loop.in_later_repeat(place, loop.repeats - SHORT_RUN_REPEATS)
        for place in result.slopes
        for loop in stacks
        if loop.contains(place)
    }
    for place, peak in result.peaks.items():
        if place in ends:
            continue
        loop = next((loop for loop in repeated if loop.is_second(place)), None)
        if loop is not block_stack or (block and block[0][0].phase != place.phase):
            flush()
            block_stack = loop
        if loop is None:
            points.append((place.phase, node_path(place, stacks), peak.bytes))
        else:
            block.append((place, peak.bytes))
    flush()
    return points
