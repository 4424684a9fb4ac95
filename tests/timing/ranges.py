"""How many measured rows the ranges of estimates hold, and which ranges would: `python -m tests.timing.ranges`.

The ends of a class of `presets/timing/classes.toml` are quantiles of measured over estimated seconds in which every
source weighs the same. Whether such a rule holds for a source that nobody has seen is found by leaving out each one:
the ends come from the others, and the rows of the one left out are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from llmcalc.timing.spread import TestedClass

from . import measured, measured_rows
from .measured import Score

TAILS = 0.1, 0.9
"""Shares of the rows below the ends of a range: it holds 80 %."""

FEW = 5
"""Rows of a source up to which the share of them within a range says nothing."""


@dataclass(frozen=True)
class Calibration:
    """How a class's range fits its rows.

    words, low, high: of the class. rows, sources: number of measured rows, and of their sources.
    inside: share of the rows within the range, the mean of the sources.
    best: the quantiles of all sources. left_out: share of the rows within the quantiles of the other sources, the mean
        of the sources; None for a class of one source.
    """

    words: str
    low: float
    high: float
    rows: int
    sources: int
    inside: float
    best: tuple[float, float]
    left_out: float | None

    def text(self) -> str:
        left_out = "       " if self.left_out is None else f"{self.left_out:7.0%}"
        low, high = self.best
        return (
            f"{self.words:46}{self.rows:5d} {self.sources:4d} {self.low:6.2f} {self.high:6.2f} {self.inside:7.0%} "
            f"{low:6.2f} {high:6.2f} {left_out}"
        )


HEADING = f"{'':46}{'rows':>5} {'sets':>4} {'low':>6} {'high':>6} {'inside':>7} {'q10':>6} {'q90':>6} {'left out':>8}"


def quantiles(sources: Iterable[Sequence[float]]) -> tuple[float, float]:
    """The ends between which 80 % of the values lie, where each source weighs the same."""
    weighted = sorted((value, 1 / len(values)) for values in sources for value in values)
    total = sum(weight for _, weight in weighted)
    ends = []
    for tail in TAILS:
        below = 0.0
        for value, weight in weighted:
            below += weight
            if below >= tail * total:
                ends.append(value)
                break
    return ends[0], ends[1]


def share_within(values: Sequence[float], low: float, high: float) -> float:
    """The share of values from low to high."""
    return mean(low <= value <= high for value in values)


def calibration(tested: TestedClass, sources: Mapping[str, Sequence[float]]) -> Calibration:
    """The calibration of a class. sources: name → measured over estimated seconds of its rows."""
    counted = {name: values for name, values in sources.items() if len(values) > FEW} or sources
    left_out = [
        share_within(values, *quantiles(others for other, others in counted.items() if other != name))
        for name, values in counted.items()
        if len(counted) > 1
    ]
    return Calibration(
        tested.words,
        tested.low,
        tested.high,
        sum(map(len, sources.values())),
        len(sources),
        mean(share_within(values, tested.low, tested.high) for values in counted.values()),
        quantiles(counted.values()),
        mean(left_out) if left_out else None,
    )


def calibrations(scores: Iterable[Score]) -> list[Calibration]:
    """Of each class with measured rows. Rows of whole requests and of loaded servers have ranges of several classes."""
    classes: dict[str, TestedClass] = {}
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for score in scores:
        row = score.row
        tested = measured.range_of(row, score.seconds).tested
        if (
            tested is None
            or row["measure"] in measured.PARTS
            or row.kind in (measured_rows.LOADED, measured_rows.DEBUGGED)
        ):
            continue
        classes[tested.words] = tested
        ratios[tested.words][row.set].append(row.seconds / score.seconds)
    return [calibration(classes[words], sources) for words, sources in ratios.items()]


def main() -> None:
    scores, _ = measured.score(row for rows in measured_rows.read_sets().values() for row in rows)
    print(HEADING)
    for tested in calibrations(scores):
        print(tested.text())


if __name__ == "__main__":
    main()
