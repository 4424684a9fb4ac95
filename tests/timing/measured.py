"""How far estimates of time are from measured runs: `python -m tests.timing.measured [SET …]`.

Errors are |estimate / measured − 1|.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from llmcalc.errors import InputError
from llmcalc.timing.time_ranges import TimeRange, expected_range

from .measured_rows import (
    CLASSES,
    DEBUGGED,
    FULL,
    RATE,
    SERVERS,
    NotAsked,
    Row,
    device_of_row,
    estimate,
    fast_host_seconds,
    full_server,
    load_of,
    naive,
    read_sets,
    spec_of,
)

PARTS = ("end_to_end", "output_rate", "throughput")
"""Measures of whole requests, whose range is that of their prompts and of their further tokens."""


def prompt_share(row: Row) -> float:
    """The share of a whole request's time until its first token."""
    if row["measure"] == "throughput":
        replica, requests = full_server(row)
        served = replica.latencies(requests)
    else:
        served = load_of(row)
    return float(served.ttft / served.end_to_end_seconds)


def range_of(row: Row, seconds: float) -> TimeRange:
    """The range of an estimate, which 80 % of measured runs should lie in."""
    phase = "training" if row.trains else "prefill" if row["measure"] in ("prompt", "ttft") else "decode"
    device = device_of_row(row["hardware"], row["nic_gb_s"])

    def expected(phase: str, burst_seconds: float | None = None) -> TimeRange:
        return expected_range(seconds, phase, device, row.stack, spec_of(row["model"]), burst_seconds=burst_seconds,
                              fast_host_seconds=fast_host_seconds(row) if row.trains else None)  # fmt: skip

    if row["measure"] in PARTS:
        load = load_of(row) if row.is_loaded and row["measure"] != "throughput" else None
        burst_seconds = None if load is None else seconds * load.ttft_of_burst / load.ttft
        prompts, tokens, share = expected("prefill", burst_seconds), expected("decode"), prompt_share(row)
        low, high = (
            share * of_prompts + (1 - share) * of_tokens
            for of_prompts, of_tokens in ((prompts.low, tokens.low), (prompts.high, tokens.high))
        )
        return replace(tokens, low=low, high=high)
    if row["measure"] == "ttft" and row.is_loaded:
        load = load_of(row)
        seconds = load.ttft if row.arrives_in_bursts else seconds
        return expected(phase, load.ttft_of_burst)
    return expected(phase)


def is_in_range(row: Row, seconds: float) -> bool:
    """Whether the range of an estimate holds what was measured."""
    expected = range_of(row, seconds)
    return bool(expected.low <= row.seconds <= expected.high)


@dataclass(frozen=True)
class Score:
    """A row with its estimate. in_range: whether the range of the estimate holds what was measured."""

    row: Row
    seconds: float
    naive_seconds: float
    in_range: bool

    @property
    def ratio(self) -> float:
        return self.seconds / self.row.seconds

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)

    @property
    def naive_error(self) -> float:
        return abs(self.naive_seconds / self.row.seconds - 1)


def score(rows: Iterable[Row]) -> tuple[list[Score], dict[str, list[str]]]:
    """The estimates of rows, and the rows without one by reason."""
    scores, without = [], defaultdict(list)
    for row in rows:
        try:
            seconds = estimate(row)
            scores.append(Score(row, seconds, naive(row), is_in_range(row, seconds)))
        except NotAsked as reason:
            without[str(reason)].append(row.id)
        except InputError as error:
            without[f"refused: {error}"].append(row.id)
    return scores, dict(without)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's correlation."""
    if len(pairs) < 3:
        return float("nan")

    def ranks(values: Sequence[float]) -> list[float]:
        order = sorted(range(len(values)), key=values.__getitem__)
        places = [0.0] * len(values)
        for place, index in enumerate(order):
            places[index] = place
        return places

    left, right = (ranks(column) for column in zip(*pairs, strict=True))
    middle = (len(pairs) - 1) / 2
    spread = sum((place - middle) ** 2 for place in left)
    return sum((a - middle) * (b - middle) for a, b in zip(left, right, strict=True)) / spread


@dataclass(frozen=True)
class Summary:
    """Errors of some rows.

    bias: median of estimate / measured − 1; below 0 the estimates are too fast.
    correlation: of ranks, the mean of those of the sets and measures.
    covered: share of the rows that the range of their estimate holds.
    naive: median error of the rules of thumb.
    """

    rows: int
    median: float
    p90: float
    bias: float
    correlation: float
    covered: float
    naive: float

    @classmethod
    def of(cls, scores: Sequence[Score]) -> Summary:
        """Summarizes scores."""
        errors = [one.error for one in scores]
        groups = defaultdict(list)
        for one in scores:
            groups[one.row.set, one.row["measure"]].append((one.seconds, one.row.seconds))
        correlations = [rank_correlation(pairs) for pairs in groups.values() if len(pairs) >= 5]
        return cls(
            len(scores),
            median(errors),
            percentile(errors, 0.9),
            median(one.ratio for one in scores) - 1,
            mean(correlations) if correlations else float("nan"),
            mean(one.in_range for one in scores),
            median(one.naive_error for one in scores),
        )

    def text(self) -> str:
        return (
            f"{self.rows:5d} {self.median:7.1%} {self.p90:7.1%} {self.bias:+7.1%} {self.correlation:6.2f} "
            f"{self.covered:7.0%} {self.naive:8.1%}"
        )


HEADING = f"{'':46}{'rows':>5} {'median':>7} {'p90':>7} {'bias':>7} {'rho':>6} {'covered':>7} {'naive':>8}"

MIN_LAYOUTS = 3
"""Layouts of one model, cluster and batch from which a group is a choice."""


def layout_groups(scores: Iterable[Score]) -> dict[tuple[str, ...], list[Score]]:
    """Layouts of one model, batch, length, format, number of devices and software.

    A layout that was measured several times is one choice, which takes the median of its runs.
    """
    groups: dict[tuple[str, ...], dict[tuple[str, ...], list[Score]]] = defaultdict(lambda: defaultdict(list))
    for one in scores:
        row = one.row
        if row.trains:
            batch = float(row["micro_batch"]) * row.whole("micro_batches") * row.whole("dp")
            alike = [row[name] for name in ("model", "hardware", "devices", "stack", "recompute", "seq", "precision")]
            groups[row.set, *alike, f"{batch:g}"][_layout(row)].append(one)
    return {
        name: [_median_run(runs) for runs in layouts.values()]
        for name, layouts in groups.items()
        if len(layouts) >= MIN_LAYOUTS
    }


def _median_run(runs: Sequence[Score]) -> Score:
    """A run of a layout with the median of the seconds of all its runs."""
    seconds = median(run.row.seconds for run in runs)
    row = runs[0].row
    return replace(runs[0], row=replace(row, values=row.values | {"seconds": str(seconds)}))


def _layout(row: Row) -> tuple[str, ...]:
    return tuple(
        row[name]
        for name in ("tp", "pp", "dp", "cp", "ep", "vpp", "zero", "micro_batch", "sequence_parallel", "schedule")
    )


def regret(group: Sequence[Score], first: int = 1, order: Callable[[Score], float] = lambda one: one.seconds) -> float:
    """How much longer the best of the first choices takes than the best of all.

    Choices that the order cannot tell apart from the last of the first ones are as good: their mean counts.
    """
    ordered = sorted(group, key=order)
    last = order(ordered[min(first, len(ordered)) - 1])
    certain = [run.row.seconds for run in ordered if order(run) < last]
    tied = [min([run.row.seconds, *certain]) for run in ordered if order(run) == last]
    return mean(tied) / min(run.row.seconds for run in group) - 1


DIFFERENT = 0.1
"""Difference of two measured servers, as a share, from which the order of their estimates is held against them."""


def right_pairs(scores: Iterable[Score], per_device: bool = False) -> tuple[int, int]:
    """Pairs of servers of one source whose order is right, and all pairs.

    Servers of a pair have the same measure and the same requests; they differ by more than `DIFFERENT`.
    per_device: whether seconds are those of a device, so that the cheaper server is asked for; default the faster one.
    """
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for one in scores:
        row = one.row
        devices = row.whole("devices") if per_device else 1
        key = (row.set, row["measure"], row["input"], row["output"])
        groups[key].append((one.seconds * devices, row.seconds * devices))
    right = total = 0
    for group in groups.values():
        for i, (estimate_of_one, measured_of_one) in enumerate(group):
            for estimate_of_other, measured_of_other in group[:i]:
                ratio = measured_of_one / measured_of_other
                if max(ratio, 1 / ratio) > 1 + DIFFERENT:
                    total += 1
                    right += (estimate_of_one > estimate_of_other) == (ratio > 1)
    return right, total


def report(scores: Sequence[Score], without: dict[str, list[str]]) -> Iterator[str]:
    """The lines of the report: by class, by set, by groups of layouts, and rows without an estimate."""
    yield HEADING
    for kind in CLASSES:
        some = [one for one in scores if one.row.kind == kind]
        if some:
            yield f"{kind:46}" + Summary.of(some).text()
    yield ""
    by_set = defaultdict(list)
    for one in scores:
        by_set[one.row.set, one.row["measure"] or "step"].append(one)
    for (name, measure), some in sorted(by_set.items()):
        yield f"{f'{name}, {measure}':46}" + Summary.of(some).text()
    served = [one for one in scores if one.row.kind in (SERVERS, FULL, RATE)]
    if served:
        yield ""
        for name, per_device in (("faster", False), ("cheaper", True)):
            right, total = right_pairs(served, per_device)
            yield f"which of two servers is {name}: {right / total:.1%} of {total:,} pairs"
    for heading, is_debugged in (("groups of layouts", False), ("groups with torch's checks of messages", True)):
        yield from _group_lines(
            heading, layout_groups(one for one in scores if (one.row.kind == DEBUGGED) is is_debugged)
        )
    if without:
        yield ""
        for reason, rows in sorted(without.items(), key=lambda item: -len(item[1])):
            yield f"no estimate of {len(rows)}: {reason[:110]} ({rows[0]})"


def _group_lines(heading: str, groups: dict[tuple[str, ...], list[Score]]) -> Iterator[str]:
    """The lines of groups of layouts: of each set, and of each number of devices in it."""
    if not groups:
        return
    yield ""
    yield f"{heading:46}{'groups':>6} {'regret':>8} {'of 3':>8} {'naive':>8} {'random':>8}"
    sizes = defaultdict(list)
    for group in groups.values():
        sizes[group[0].row.set, 0].append(group)
        sizes[group[0].row.set, int(group[0].row["devices"])].append(group)
    for (name, devices), alike in sorted(sizes.items()):
        yield f"{f'  {devices} devices' if devices else name:46}{len(alike):6d} " + " ".join(
            f"{mean(value(group) for group in alike):8.2%}"
            for value in (
                regret,
                lambda group: regret(group, 3),
                lambda group: regret(group, order=lambda one: one.naive_seconds),
                lambda group: mean(one.row.seconds for one in group) / min(one.row.seconds for one in group) - 1,
            )
        )


def main(names: Sequence[str]) -> None:
    scores, without = score(row for rows in read_sets(names).values() for row in rows)
    print("\n".join(report(scores, without)))


if __name__ == "__main__":
    main(sys.argv[1:])
