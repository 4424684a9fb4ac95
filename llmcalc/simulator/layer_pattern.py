"""Layers of a stack that come again and again, so that a few of them stand for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..flow.program import Scope


def layer_kinds(kinds: list[Scope]) -> Iterator[Scope]:
    """The kind of each layer, from the bottom."""
    if len(kinds) == 1 and kinds[0].about.get("indices") is None:
        for _ in range(kinds[0].about["repeat"]):
            yield kinds[0]
        return
    at = {i: kind for kind in kinds for i in kind.about["indices"]}
    for i in sorted(at):
        yield at[i]


class Pattern(NamedTuple):
    """Kinds of layers that come again and again.

    first: layers before it begins. period: layers in it. repeats: how often it comes.
    """

    first: int
    period: int
    repeats: int


LONGEST = 100
"""The most layers that a pattern has."""

RECORDED_REPEATS = 4
"""Repeats of a pattern in a run from which all repeats are known: the first, two between, and the last."""


def find_pattern(order: Sequence[Scope]) -> Pattern:
    """The pattern that leaves the fewest layers to run, if it is run `RECORDED_REPEATS` times.

    If the layers follow none, all of them are one repeat of it.
    """
    size = len(order)
    found, layers = Pattern(0, size, 1), size
    for period in range(1, min(size // RECORDED_REPEATS, LONGEST) + 1):
        if RECORDED_REPEATS * period >= layers:
            break
        first = 0
        for i in range(period, size + 1):
            if i < size and order[i] is order[i - period]:
                continue
            repeats = (i - first) // period
            if repeats > RECORDED_REPEATS and size - (repeats - RECORDED_REPEATS) * period < layers:
                found, layers = Pattern(first, period, repeats), size - (repeats - RECORDED_REPEATS) * period
            first = i - period + 1
    return found


def shortened(order: list[Scope], turns: int | None) -> list[Scope]:
    """The layers with only that many repeats of their pattern; all of them by default."""
    if turns is None:
        return order
    first, period, repeats = find_pattern(order)
    return [*order[:first], *order[first : first + period] * turns, *order[first + period * repeats :]]
