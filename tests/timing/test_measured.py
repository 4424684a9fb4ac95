"""Errors against measured runs stay what was reached (`python -m tests.timing.measured` prints them)."""

from __future__ import annotations

from statistics import mean
from typing import ClassVar

import pytest

from . import measured
from .measured import Score, Summary

Limits = tuple[float, float, float]
"""The most median error and p90 error, and the least share of rows within the range of their estimates."""


@pytest.fixture(scope="module")
def scored() -> tuple[list[Score], dict[str, list[str]]]:
    return measured.score(row for rows in measured.read_sets().values() for row in rows)


class TestErrors:
    CLASSES: ClassVar[dict[str, Limits]] = {
        measured.DENSE: (0.08, 0.30, 0.80),
        measured.NEW: (0.30, 0.97, 0.50),
        measured.MOE: (0.45, 0.75, 0.55),
        measured.SERVERS: (0.18, 0.65, 0.70),
        measured.FULL: (0.22, 0.65, 0.70),
        measured.RATE: (0.42, 0.60, 0.30),
        measured.LOADED: (0.55, 0.90, 0.78),
        measured.CAPTURED: (0.16, 0.50, 0.60),
        measured.PROMPTS: (0.35, 0.90, 0.65),
        measured.OTHERS: (0.20, 0.68, 0.75),
    }

    @pytest.mark.parametrize("kind", measured.CLASSES)
    def test_class(self, scored: tuple[list[Score], dict[str, list[str]]], kind: str) -> None:
        summary = Summary.of([run for run in scored[0] if run.row.kind == kind])
        worst_median, worst_p90, least_covered = self.CLASSES[kind]
        assert summary.median < worst_median
        assert summary.p90 < worst_p90
        assert summary.covered > least_covered
        assert summary.median < summary.naive

    SETS: ClassVar[dict[str, float]] = {
        "train_bloom_a100": 0.07,
        "train_llm_foundry": 0.08,
        "train_megatron_bridge": 0.07,
        "train_v100_layouts": 0.12,
        "train_tpu": 0.13,
        "train_internevo_a100": 0.16,
        "serve_aic_silicon": 0.11,
        "serve_rocm_vllm": 0.19,
        "gptfast_tp": 0.16,
        "ft_stratified": 0.16,
    }

    @pytest.mark.parametrize(("name", "worst_median"), SETS.items())
    def test_set(self, scored: tuple[list[Score], dict[str, list[str]]], name: str, worst_median: float) -> None:
        assert Summary.of([run for run in scored[0] if run.row.set == name]).median < worst_median

    def test_which_of_two_servers(self, scored: tuple[list[Score], dict[str, list[str]]]) -> None:
        kinds = measured.SERVERS, measured.FULL, measured.RATE
        served = [run for run in scored[0] if run.row.kind in kinds]
        for per_device, least in ((False, 0.85), (True, 0.92)):
            right, total = measured.right_pairs(served, per_device)
            assert total > 10_000
            assert right / total > least

    def test_rows_without_an_estimate(self, scored: tuple[list[Score], dict[str, list[str]]]) -> None:
        scores, without = scored
        refused = [rows for reason, rows in without.items() if reason.startswith("refused")]
        assert len(scores) >= 3150
        assert sum(map(len, refused)) <= 9


class TestLayouts:
    @pytest.mark.parametrize(
        ("name", "worst", "worst_of_three"),
        [("train_bloom_a100", 0.04, 0.01), ("train_v100_layouts", 0.06, 0.06), ("train_simumax_b200", 0.02, 0.01)],
    )
    def test_chosen_layout(
        self, scored: tuple[list[Score], dict[str, list[str]]], name: str, worst: float, worst_of_three: float
    ) -> None:
        groups = measured.layout_groups(run for run in scored[0] if run.row.set == name).values()
        assert groups
        assert mean(map(measured.regret, groups)) < worst
        assert mean(measured.regret(group, 3) for group in groups) < worst_of_three
