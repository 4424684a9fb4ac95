"""A run of many layers from runs of a few: bytes at a place are linear in the number of equal layers.

A stack repeats a pattern of kinds of layers (one kind, or five with a window and one without). A run with 3 repeats
and one with 4 give the bytes of any number: what stands at a given distance from the first or the last layer grows by
the same amount with every repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..simulator.layer_loops import SHORT_RUN_REPEATS, LayerStack
from ..simulator.meter import Peak, Place
from ..simulator.replay_result import ReplayResult

LISTED = 1000
"""How many repeats of a pattern a timeline lists, at most (about): of more, some at equal distances, and the last."""


def extrapolate_layers(run: Callable[[Mapping[int, int]], ReplayResult], stacks: list[LayerStack]) -> ReplayResult:
    """What a run of all layers finds, from runs of a few, but for what an allocator counts: that is not linear.

    run: repeats of each stack's pattern → what it finds. Of several passes of a phase, which it keeps apart, the result
    has one (`highest_pass`): the higher of two linear functions is none.
    """
    few = {i: SHORT_RUN_REPEATS for i, loop in enumerate(stacks) if loop.can_extrapolate}
    base = run(few)
    found = ReplayResult(base.set_up, base.after, peaks={place: _copy(peak) for place, peak in base.peaks.items()})
    slopes: dict[Place, int] = {}
    last: dict[Place, Peak] = {}
    runs = {i: run({**few, i: SHORT_RUN_REPEATS + 1}) for i in few}
    for i, more in runs.items():
        times = stacks[i].repeats - SHORT_RUN_REPEATS
        found.set_up += times * (more.set_up - base.set_up)
        found.after += times * (more.after - base.after)
        for place, peak in found.peaks.items():
            _grow(peak, base.peaks[place], more.peaks[_moved(place, stacks[i], 1)], times)
    for i, more in runs.items():
        for place in [place for place in found.peaks if stacks[i].is_second(place)]:
            here, above = more.peaks[place], more.peaks[stacks[i].further(place, 1)]
            slopes[place] = above.bytes - here.bytes
            last[stacks[i].further(place, stacks[i].repeats - SHORT_RUN_REPEATS)] = peak = _copy(found.peaks[place])
            _grow(peak, here, above, stacks[i].repeats - SHORT_RUN_REPEATS)
    peaks = {_placed(place, stacks): peak for place, peak in found.peaks.items()}
    return highest_pass(ReplayResult(found.set_up, found.after, peaks=peaks | last, slopes=slopes))


def highest_pass(found: ReplayResult) -> ReplayResult:
    """The same with one pass of each phase, the one with the highest peak, under the phase's own name.

    Several passes of a phase, the chunks of a prompt, have numbers: `prefill 0`, `prefill 1`, …. Of a module that this
    pass does not run, such as one of an encoder, the first other pass counts.
    """
    highest: dict[str, tuple[int, str]] = {}
    for place, peak in found.peaks.items():
        name = place.phase.partition(" ")[0]
        highest[name] = max(highest.get(name, (0, "")), (peak.bytes, place.phase))
    chosen = {name: phase for name, (_, phase) in highest.items()}
    if all(name == phase for name, phase in chosen.items()):
        return found

    def renamed(place: Place) -> Place | None:
        """The place in the result; None if another pass stands for it."""
        name = place.phase.partition(" ")[0]
        here = place._replace(phase=chosen[name])
        return place._replace(phase=name) if here == place or here not in found.peaks else None

    peaks: dict[Place, Peak] = {}
    slopes: dict[Place, int] = {}
    for place, peak in found.peaks.items():
        known = renamed(place)
        if known is not None and known not in peaks:
            peaks[known] = peak
            if place in found.slopes:
                slopes[known] = found.slopes[place]
    return replace(found, peaks=peaks, slopes=slopes)


def _copy(peak: Peak) -> Peak:
    made = Peak()
    made.bytes, made.by_kind = peak.bytes, dict(peak.by_kind)
    return made


def _grow(peak: Peak, before: Peak, after: Peak, times: int) -> None:
    peak.bytes += times * (after.bytes - before.bytes)
    for kind in peak.by_kind:
        peak.by_kind[kind] += times * (after.by_kind[kind] - before.by_kind[kind])


def _moved(place: Place, loop: LayerStack, by: int) -> Place:
    """The same distance from the first layers, or from the last, with `by` more repeats between."""
    if not loop.holds(place) or place.turn < loop.before + (SHORT_RUN_REPEATS - 1) * loop.period:
        return place
    return loop.further(place, by)


def _placed(place: Place, stacks: list[LayerStack]) -> Place:
    """The place in the whole model."""
    for loop in stacks:
        if loop.can_extrapolate:
            place = _moved(place, loop, loop.repeats - SHORT_RUN_REPEATS)
    return place


def node_path(place: Place, stacks: list[LayerStack]) -> str:
    """The path of a module with the index of its layer, as it is in the tree."""
    for loop in stacks:
        if place.turn >= 0 and loop.holds(place):
            return loop.node(place)
    return place.path


def list_places(found: ReplayResult, stacks: list[LayerStack]) -> list[tuple[str, str, int]]:
    """The places of the whole model in the order in which a pass runs: phase, node, the most bytes there.

    Every layer of a stack is there; of a stack of thousands, about a thousand at equal distances.

    found: of `extrapolate_layers`, or of a run of all layers.
    """
    points: list[tuple[str, str, int]] = []
    block: list[tuple[Place, int]] = []
    inside: LayerStack | None = None

    def flush() -> None:
        if inside is None:
            return
        phase = block[0][0].phase
        before, rest = f"{inside.path}.", len(inside.path)
        lines = [(place.turn, place.path[rest:], bytes, found.slopes.get(place, 0)) for place, bytes in block]
        last = inside.repeats - SHORT_RUN_REPEATS
        turns = sorted({*range(0, last, last // LISTED + 1), last}, reverse=phase == "backward")
        for k in turns:
            further = k * inside.period
            points.extend(
                [(phase, f"{before}{turn + further}{path}", bytes + k * slope) for turn, path, bytes, slope in lines]
            )
        block.clear()

    repeated = [loop for loop in stacks if loop.can_extrapolate] if found.slopes else []
    ends = {
        loop.further(place, loop.repeats - SHORT_RUN_REPEATS)
        for place in found.slopes
        for loop in stacks
        if loop.holds(place)
    }
    for place, peak in found.peaks.items():
        if place in ends:
            continue
        loop = next((loop for loop in repeated if loop.is_second(place)), None)
        if loop is not inside or (block and block[0][0].phase != place.phase):
            flush()
            inside = loop
        if loop is None:
            points.append((place.phase, node_path(place, stacks), peak.bytes))
        else:
            block.append((place, peak.bytes))
    flush()
    return points
