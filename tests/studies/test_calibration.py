"""`--calibrate`: factors that were put into rows are found again, and fits that do not help are refused."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import astuple
from itertools import chain
from pathlib import Path
from statistics import geometric_mean, mean, median, stdev
from typing import Any

import pytest

from llmcalc.errors import InputError
from llmcalc.reports.time_estimate import duration_text
from llmcalc.sources.hardware import find_hardware
from llmcalc.sources.presets import load_preset
from llmcalc.timing import calibration
from llmcalc.timing.calibration import (
    UNIT_FACTORS,
    Calibration,
    CalibrationFactors,
    CalibrationRun,
    ErrorStatistics,
    calibrate,
)
from llmcalc.timing.device import device_of
from llmcalc.timing.inference import decode, prefill
from llmcalc.timing.software_stacks import find_stack
from llmcalc.workload.durations import parse_duration
from tests.timing import measured_rows

SPEC, DEVICE, STACK = load_preset("llama3-8b").model, device_of(find_hardware("h100")), find_stack("vllm")


def pricer(batch: int, tokens: int, is_prompt: bool = False) -> Callable[[CalibrationFactors], float]:
    def seconds(factors: CalibrationFactors) -> float:
        run = prefill if is_prompt else decode
        return float(run(SPEC, factors.scale_device(DEVICE), factors.scale_stack(STACK), batch, tokens).seconds)

    return seconds


PRICERS = [pricer(batch, tokens) for batch in (1, 8, 64) for tokens in (1024, 8192)]
PRICERS += [pricer(batch, 4096, is_prompt=True) for batch in (1, 2, 4)]


def measured_with(truth: CalibrationFactors, noise: Sequence[float] = ()) -> Calibration:
    errors = noise or [1.0] * len(PRICERS)
    return calibrate([CalibrationRun(str(i), seconds(truth) * errors[i], seconds) for i, seconds in enumerate(PRICERS)])


NOISE = (1.02, 0.98, 1.0, 1.01, 0.99, 1.03, 0.97, 1.0, 1.02)


def test_a_common_factor_is_found_again() -> None:
    fit = measured_with(CalibrationFactors(1.5, 1.5, 1.5, 1.5))
    assert fit.refusal_reason == ""
    assert fit.errors_without_fit.median_error == pytest.approx(1 / 3, rel=0.01)
    assert fit.left_out_errors.median_error < 0.02
    assert fit.errors_with_fit.median_error < 0.02
    assert fit.factors == fit.fitted_factors


def test_a_factor_of_memory_is_told_from_one_of_compute() -> None:
    fit = measured_with(CalibrationFactors(compute=1.0, memory=1.6))
    assert fit.refusal_reason == ""
    assert fit.fitted_factors.memory == pytest.approx(1.6, rel=0.1)
    assert fit.fitted_factors.compute == pytest.approx(1.0, rel=0.15)
    assert fit.errors_with_fit.median_error < 0.05 < fit.errors_without_fit.median_error


def test_rows_that_differ_at_random_change_next_to_nothing() -> None:
    noise = [1.3, 1 / 1.3, 1.3, 1 / 1.3, 1.25, 1 / 1.25, 1.0, 1.2, 1 / 1.2]
    fit = measured_with(UNIT_FACTORS, noise)
    assert not fit.is_proved
    assert 0 < largest_change(fit.factors) < 1.01 * calibration.UNPROVED_CHANGE_SHARE * math.log(1.25)


def largest_change(factors: CalibrationFactors) -> float:
    return max(abs(math.log(seconds(factors) / seconds(UNIT_FACTORS))) for seconds in PRICERS)


def test_estimates_as_near_as_equal_runs_are_left_alone() -> None:
    fit = measured_with(CalibrationFactors(1.02, 1.02, 1.02, 1.02))
    assert "within 3 % already" in fit.refusal_reason
    assert fit.factors == UNIT_FACTORS


def test_a_fit_goes_as_far_as_it_explains_runs_that_are_left_out() -> None:
    """Runs that take 20 % longer on average and differ little go further than those that differ by 9 %."""
    noise = (0.09, -0.09, 0.08, -0.08, 0.1, -0.1, 0.09, -0.09, 0.0)
    steps = []
    for spread in (0.0, 0.5, 1.0):
        fit = measured_with(UNIT_FACTORS, [math.exp(0.2 + spread * error) for error in noise])
        assert fit.refusal_reason == ""
        assert fit.is_proved
        steps.append(math.log(fit.factors.memory) / 0.2)
    assert steps[0] > 0.98 > steps[1] > steps[2] + 0.1 > 0.5


def test_three_runs_that_agree_prove_a_factor_and_three_that_do_not_hardly_change_anything() -> None:
    def of_three(errors: Sequence[float]) -> Calibration:
        pricers = zip(PRICERS[:3], errors, strict=True)
        return calibrate([CalibrationRun("", error * seconds(UNIT_FACTORS), seconds) for seconds, error in pricers])

    alike, unlike = of_three((1.5, 1.52, 1.48)), of_three((1.5, 1.05, 1.2))
    assert alike.is_proved
    assert alike.errors_without_fit.median_error > 0.3
    assert alike.errors_with_fit.median_error < 0.02
    assert not unlike.is_proved
    assert unlike.errors_with_fit.median_error == pytest.approx(
        unlike.errors_without_fit.median_error, rel=calibration.UNPROVED_CHANGE_SHARE
    )


def test_the_score_of_gains_is_student_s() -> None:
    """t = 3.182 with three degrees of freedom and 2.042 with 30 are exceeded by chance once in forty times."""
    for runs, t in ((4, 3.182), (31, 2.042)):
        deviations = [1.0, -1.0] * (runs // 2) + [0.0] * (runs % 2)
        average = t * stdev(deviations) / math.sqrt(runs)
        score = calibration._z_score_of_mean([average + deviation for deviation in deviations])
        assert score == pytest.approx(calibration.LEAST_Z_SCORE, rel=0.02)


def test_far_runs_do_not_decide_a_fit() -> None:
    """The mean error of nine runs falls by a factor that two of them want; that of the seven others would rise."""
    fit = measured_with(UNIT_FACTORS, [1.06, 1 / 1.06, 1.06, 1 / 1.06, 1.06, 1 / 1.06, 1 / 1.06, 1.7, 1.7])
    assert not fit.is_proved
    assert largest_change(fit.factors) < 1.01 * calibration.UNPROVED_CHANGE_SHARE * math.log(1.06)


def test_factors_change_what_they_name() -> None:
    token, prompt = PRICERS[0], PRICERS[-1]
    assert token(CalibrationFactors(memory=2)) > 1.6 * token(UNIT_FACTORS)
    assert token(CalibrationFactors(compute=2)) < 1.05 * token(UNIT_FACTORS)
    assert prompt(CalibrationFactors(compute=2)) > 1.6 * prompt(UNIT_FACTORS)
    assert token(CalibrationFactors(wait=2)) > token(UNIT_FACTORS)
    everything = token(CalibrationFactors(2, 2, 2, 2))
    assert everything == pytest.approx(2 * token(UNIT_FACTORS), rel=1e-9)


def test_regret_is_of_layouts_that_differ_alone() -> None:
    runs = [
        CalibrationRun(str(i), seconds, lambda factors: 1.0, ("a",)) for i, seconds in enumerate((2.0, 1.0, 1.2, 5.0))
    ]
    errors = ErrorStatistics.from_runs(runs, [1.0, 1.1, 1.2, 1.3])
    assert errors.regret == 1.0  # the first one takes 2 s, the best one 1 s
    assert errors.best_of_three == 0.0
    assert ErrorStatistics.from_runs(runs[:2], [1.0, 1.1]).regret is None


def test_a_fit_that_raises_regret_is_refused() -> None:
    """Memory explains the errors, but orders the layouts of one run wrongly."""
    runs = [CalibrationRun(str(i), 1.5 * seconds(UNIT_FACTORS), seconds) for i, seconds in enumerate(PRICERS)]

    def layout(base: float, better: float) -> Callable[[CalibrationFactors], float]:
        return lambda factors: base if factors == UNIT_FACTORS else better

    choices = [CalibrationRun(name, seconds, layout(base, fitted), ("run",)) for name, seconds, base, fitted in (
        ("fast", 1.0, 1.0, 9.0), ("slow", 2.0, 2.0, 1.0), ("slower", 3.0, 3.0, 3.0)
    )]  # fmt: skip
    fit = calibrate([*runs, *choices])
    assert fit.errors_without_fit.regret == 0
    assert fit.refusal_reason == "it would raise the regret of the chosen layout"


def test_of_many_runs_several_are_left_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = measured_with(CalibrationFactors(1.5, 1.5, 1.5, 1.5), NOISE)
    fits: list[int] = []
    fit_factors = calibration.fit_factors

    def counted_fit(linear_fit: calibration.LinearizedRuns) -> CalibrationFactors:
        fits.append(len(linear_fit.seconds_by_factor))
        return fit_factors(linear_fit)

    monkeypatch.setattr(calibration, "MAX_ESTIMATES", 3 * len(PRICERS))
    monkeypatch.setattr(calibration, "fit_factors", counted_fit)
    together = measured_with(CalibrationFactors(1.5, 1.5, 1.5, 1.5), NOISE)
    assert fits == [6] * 3 + [len(PRICERS)]
    assert astuple(together.fitted_factors) == pytest.approx(astuple(alone.fitted_factors), rel=0.1)
    assert together.left_out_errors.median_error == pytest.approx(alone.left_out_errors.median_error, abs=0.03)
    assert together.refusal_reason == alone.refusal_reason == ""


def test_few_rows_are_refused() -> None:
    with pytest.raises(InputError, match="--calibrate: 2 measured runs; expected at least 3"):
        calibrate([CalibrationRun("a", 1.0, PRICERS[0])] * 2)


ROWS = """phase,users,seq,tp,seconds
decode,1,2048,1,9.1ms
decode,8,2048,,10.2ms
decode,64,2048,1,21ms
decode,64,8192,1,0.044
prefill,1,4096,1,170ms
decode,16,2048,2,8ms
"""
TIME = ("time", "llama3-8b", "--hardware", "h100", "--users", "32", "--seq", "4k")


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "rows.csv").write_text(text)
        return str(tmp_path / "rows.csv")

    return write


def answer(run: Any, *words: str) -> Any:
    return run(*words, "--format", "json").document


def test_time_plan_and_serve_answer_as_it_runs_here(run: Any, rows: Any) -> None:
    file = rows(ROWS)
    plain, calibrated = answer(run, *TIME), answer(run, *TIME, "--calibrate", file)
    fit = calibrated["calibration"]
    assert set(fit) == {"runs", "before", "after", "left_out", "fitted", "refused"}
    assert fit["runs"] == 6
    assert fit["refused"] is None
    assert fit["left_out"]["median_error"] < fit["before"]["median_error"]
    assert calibrated["seconds"]["estimate"] > 1.1 * plain["seconds"]["estimate"]
    assert sum(calibrated["bounds"].values()) == pytest.approx(calibrated["seconds"]["estimate"])
    words = ("serve", "llama3-8b", "--hardware", "h100", "--input", "1k", "--output", "256", "--tp", "1")
    slower = answer(run, *words, "--calibrate", file)
    assert slower["calibration"]["fitted"] == fit["fitted"]
    assert slower["chosen"]["output_tokens_per_second"] < answer(run, *words)["chosen"]["output_tokens_per_second"]
    words = ("plan", "gpt2", "--hardware", "h100", "--devices", "2", "--seq", "512", "--rows", "1")
    steps = "phase,batch,seq,seconds\ntraining,1,512,30ms\ntraining,4,512,110ms\ntraining,8,512,210ms\n"
    plan = answer(run, *words, "--calibrate", rows(steps))
    assert plan["calibration"]["refused"] is None
    assert plan["feasible"][0]["seconds"]["estimate"] > answer(run, *words)["feasible"][0]["seconds"]["estimate"]


def test_columns_and_numbers_as_programs_write_them(run: Any, rows: Any) -> None:
    """A column has its option's name with hyphens too, and a time is what Python prints."""
    lines = [line.split(",") for line in ROWS.splitlines()[1:]]
    seconds = [parse_duration("", cells[-1]) for cells in lines]
    heading = "phase, users,seq,tp,kv-dtype,seconds\n"
    written = heading + "".join(
        f"{','.join(cells[:-1])},,{number!r}\n" for cells, number in zip(lines, seconds, strict=True)
    )
    assert answer(run, *TIME, "--calibrate", rows(written)) == answer(run, *TIME, "--calibrate", rows(ROWS))
    assert duration_text(707e-6) == "710 µs"
    assert parse_duration("", duration_text(707e-6)) == parse_duration("", "710us") == 710e-6


def test_a_refused_fit_changes_nothing(run: Any, rows: Any) -> None:
    """Runs that took exactly what is estimated leave nothing to fit."""
    estimate = answer(run, *TIME)["seconds"]
    exact = "users,seq,seconds\n" + f",,{estimate['estimate']!r}\n" * 4
    document = answer(run, *TIME, "--calibrate", rows(exact))
    assert "within 3 % already" in document["calibration"]["refused"]
    assert document["seconds"] == estimate
    assert any(note.startswith("not calibrated: ") for note in document["notes"])


FILES: dict[str, tuple[str, str]] = {
    "an unknown column": ("usres,seconds\n1,1s\n", "column 'usres' is no option of time"),
    "no seconds": ("users,seq\n1,2\n", "the column 'seconds' is missing"),
    "an empty time": ("users,seconds\n1,\n", ":2: seconds: missing"),
    "a bad time": ("users,seconds\n1,soon\n", ":2: seconds: 'soon'; expected a duration"),
    "a bad size": ("users,seconds\nmany,1s\n", ":2: --users: 'many'"),
    "a layout that divides nothing": ("tp,seconds\n3,1s\n", ":2: --tp 3: does not divide"),
    "too many cells": ("users,seconds\n1,1s,2\n", ":2: has another number of cells than the heading"),
    "too few rows": ("users,seconds\n1,1s\n2,1s\n", "2 measured runs; expected at least 3"),
    "nothing": ("", "the column 'seconds' is missing"),
    "too many rows": ("seconds\n" + "1s\n" * 301, "more than 300 rows"),
    "too many rows before a bad one is timed": ("tp,seconds\n" + "3,1s\n" * 301, "more than 300 rows"),
    "a training step": ("phase,seq,seconds\ntraining,512,1s\n", ":2: phase: training; expected prefill or decode"),
    "no sequences": ("phase,global_batch,seconds\ntraining,0,1s\n", "--global-batch: 0 is too small"),
    "a column twice": ("zero_group,zero-group,seconds\n1,1,1s\n", "column 'zero_group' is there twice"),
}


@pytest.mark.parametrize(("text", "message"), FILES.values(), ids=FILES)
def test_files_that_are_refused(run: Any, rows: Any, text: str, message: str) -> None:
    assert message in run(*TIME, "--calibrate", rows(text)).error


def test_a_plan_is_not_calibrated_on_tokens(run: Any, rows: Any) -> None:
    words = ("plan", "gpt2", "--hardware", "h100", "--devices", "2", "--rows", "1", "--calibrate", rows(ROWS))
    assert ":2: phase: decode; expected training" in run(*words).error


def test_a_plan_by_memory_takes_no_calibration(run: Any, rows: Any) -> None:
    words = ("plan", "gpt2", "--hardware", "h100", "--devices", "2", "--by", "memory", "--calibrate", rows(ROWS))
    code, _, err = run(*words)
    assert code == 2
    assert "--calibrate: is of the order by time" in err


MAX_OF_A_SOURCE, DRAWS = 100, 3
"""Rows of a source of which one half is fitted, and how often halves are drawn, for the time of the test."""


def test_half_of_a_source_s_rows_and_the_error_of_the_other_half() -> None:
    """What was reached, over all sources: most fits lower the median error of the other half, and next to none raises
    it by more than a tenth. A refused fit counts as one that lowers nothing. `pytest -s` prints every source.
    """
    ratios: dict[str, list[float]] = {}
    refused = 0
    for name, rows in sorted(measured_rows.read_sets().items()):
        timed = [row for row in rows if row["measure"] != "throughput" and not row["drafts"]]
        if len(timed) < 8:
            continue
        chosen = random.Random(name).sample(timed, min(MAX_OF_A_SOURCE, len(timed)))
        runs = [CalibrationRun(row.id, row.seconds, linear_pricer(measured_rows.pricer_of(row))) for row in chosen]
        ratios[name] = []
        for draw in range(DRAWS):
            sample = random.Random(f"{draw} {name}").sample(runs, len(runs))
            fit, others = calibrate(sample[: len(runs) // 2]), sample[len(runs) // 2 :]
            before, after = (
                ErrorStatistics.from_runs(others, [run.estimate_seconds(factors) for run in others]).median_error
                for factors in (UNIT_FACTORS, fit.factors)
            )
            ratios[name].append(after / before)
            refused += bool(fit.refusal_reason)
            words = fit.refusal_reason or ("fitted" if fit.is_proved else "hardly fitted")
            print(f"{name:28} {before:6.1%} -> {after:6.1%}  {words}")
    draws = list(chain.from_iterable(ratios.values()))
    sources = [median(of_source) for of_source in ratios.values()]
    lower, higher = (sum(map(test, draws)) for test in ((1.0).__gt__, (1.1).__lt__))
    print(f"{len(draws)} draws: {lower} lower, {refused} refused, {higher} higher by more than a tenth")
    print(f"{len(sources)} sources by their median draw: {sum(ratio < 1 for ratio in sources)} lower")
    assert len(sources) >= 40
    assert refused <= 0.05 * len(draws)
    assert lower >= 0.75 * len(draws)
    assert higher <= 0.04 * len(draws)
    assert mean(ratio < 1 for ratio in sources) >= 0.75
    assert max(sources) < 1.1
    assert geometric_mean(draws) < 0.87


def linear_pricer(pricer: Callable[[CalibrationFactors], float]) -> Callable[[CalibrationFactors], float]:
    """The same estimate, as the sum of the shares that a fit sees: many fits cost one estimate of each share."""
    parts = tuple(calibration._seconds_by_factor(pricer, UNIT_FACTORS))
    return lambda factors: sum(factor * part for factor, part in zip(astuple(factors), parts, strict=True))
