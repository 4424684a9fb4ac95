"""How many measured rows the ranges of estimates hold, and which ranges would: `python -m tests.timing.ranges`.

The ends of a class of `presets/timing/classes.toml` are quantiles of measured over estimated seconds in which every
source weighs the same, moved away from the median because a further source differs from those that are known. How far
is found by leaving out each source: the ends come from the others, and should hold 80 % of the rows of that source,
less half of one source's part. What they hold is `left_out` of the class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

from llmcalc.timing.time_ranges import TestedClass

from . import measured, measured_rows
from .measured import Score

TAILS = 0.1, 0.9
"""Shares of the rows below the ends of a range: it holds 80 %."""

SHORT_PROMPT = 0.1
"""Share of a request's time until its first token up to which its rows count as those of tokens."""

FEW = 5
"""Rows of a source up to which the share of them within a range says nothing."""

STEP = 0.05
"""Step in which wider ranges are tried, from 1 to 3 times as wide on a logarithmic scale."""


class Ratios(NamedTuple):
    """A row's measured seconds over those of which the lower and the upper end are multiples; equal but under load.

    error: of its estimate.
    """

    low: float
    high: float
    error: float


@dataclass(frozen=True)
class Calibration:
    """How a class's range fits its rows.

    tested: the class. rows, sources: number of measured rows, and of their sources.
    inside: share of the rows within the range, the mean of the sources.
    median_error, p90_error: of sources that no constant was found on, each of which weighs the same.
    best: the ends by the rule from all sources. left_out: share of the rows within those of the other sources, the mean
        of the sources; None for a class of one source.
    """

    tested: TestedClass
    rows: int
    sources: int
    inside: float
    median_error: float
    p90_error: float
    best: tuple[float, float]
    left_out: float | None

    def text(self) -> str:
        left_out = "       " if self.left_out is None else f"{self.left_out:7.0%}"
        low, high = self.best
        tested = self.tested
        return (
            f"{tested.words:58}{self.rows:5d} {self.sources:4d} {tested.low:6.2f} {tested.high:6.2f} "
            f"{self.inside:7.0%} {self.median_error:7.0%} {self.p90_error:6.0%} "
            f"{low:6.2f} {high:6.2f} {left_out}"
        )


HEADING = (
    f"{'':58}{'rows':>5} {'sets':>4} {'low':>6} {'high':>6} {'inside':>7} {'median':>7} {'p90':>6} "
    f"{'rule':>6} {'':>6} {'left out':>8}"
)


def quantile(sources: Iterable[Sequence[float]], share: float) -> float:
    """The value below which a share of the values lies, where each source weighs the same."""
    weighted = sorted((value, 1 / len(values)) for values in sources for value in values)
    total = sum(weight for _, weight in weighted)
    below = 0.0
    for value, weight in weighted:
        below += weight
        if below >= share * total:
            return value
    return weighted[-1][0]


def ends(sources: Iterable[Sequence[Ratios]], widening: float) -> tuple[float, float]:
    """The quantiles of measured over estimated seconds, `widening` times as far from the median in logarithms."""
    known, range_ends = list(sources), []
    for end, tail in enumerate(TAILS):
        ratios = [[row[end] for row in rows] for rows in known]
        middle = quantile(ratios, 0.5)
        range_ends.append(middle * (quantile(ratios, tail) / middle) ** widening)
    return range_ends[0], range_ends[1]


def left_out(sources: Mapping[str, Sequence[Ratios]], widening: float) -> float:
    """The share of a source's rows within the ends from all other sources, the mean of the sources."""
    return mean(
        share_within(rows, *ends([others for other, others in sources.items() if other != name], widening))
        for name, rows in sources.items()
    )


def least_widening(sources: Mapping[str, Sequence[Ratios]]) -> float:
    """The least widening of which ranges hold 80 % of the rows of sources that are left out; 1 for a single source.

    The share is a mean of the sources, so that it is known to half of one source's part.
    """
    widenings = (1 + STEP * step for step in range(41))
    if len(sources) == 1:
        return 1.0
    least_share = TAILS[1] - TAILS[0] - 0.5 / len(sources)
    return next(widening for widening in widenings if left_out(sources, widening) >= least_share)


def share_within(rows: Sequence[Ratios], low: float, high: float) -> float:
    """The share of rows whose ratios are from low to high."""
    return mean(low <= of_low and of_high <= high for of_low, of_high, _ in rows)


def calibration(tested: TestedClass, sources: Mapping[str, Sequence[Ratios]]) -> Calibration:
    """The calibration of a class. sources: name → ratios of its rows."""
    counted = {name: rows for name, rows in sources.items() if len(rows) > FEW} or sources
    widening = least_widening(counted)
    unseen = [rows for name, rows in counted.items() if name not in measured_rows.KNOWN_SETS]
    errors = [[row.error for row in rows] for rows in unseen]
    return Calibration(
        tested,
        sum(map(len, sources.values())),
        len(sources),
        mean(share_within(rows, tested.low, tested.high) for rows in counted.values()),
        quantile(errors, 0.5),
        quantile(errors, 0.9),
        ends(counted.values(), widening),
        left_out(counted, widening) if len(counted) > 1 else None,
    )


def calibrations(scores: Iterable[Score]) -> list[Calibration]:
    """Of each class with measured rows. Rows of whole requests with long prompts have ranges of two classes.

    The class of new stacks has the errors of stacks whose figures come from their code, whatever rows a new one has.
    """
    classes: dict[str, TestedClass] = {}
    ratios: dict[str, dict[str, list[Ratios]]] = defaultdict(lambda: defaultdict(list))
    for score in scores:
        row = score.row
        expected = measured.range_of(row, score.seconds)
        tested = expected.tested_class
        if tested is None or tested.stack == "new" or row.kind == measured_rows.DEBUGGED:
            continue
        if _has_two_classes(row):
            continue
        classes[tested.words] = tested
        low = row.seconds * tested.low / float(expected.low)
        high = row.seconds * tested.high / float(expected.high)
        ratios[tested.words][row.set].append(Ratios(low, high, score.error))
    return [calibration(classes[words], sources) for words, sources in ratios.items()]


def _has_two_classes(row: measured_rows.Row) -> bool:
    if row["measure"] != "end_to_end":
        return row["measure"] in measured.PARTS
    return measured.prompt_share(row) > SHORT_PROMPT


def main() -> None:
    scores, _ = measured.score(row for rows in measured_rows.read_sets().values() for row in rows)
    print(HEADING)
    for tested in calibrations(scores):
        print(tested.text())


if __name__ == "__main__":
    main()
