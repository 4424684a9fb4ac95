"""Errors against measured runs stay what was reached (`python -m tests.timing.measured` prints them)."""

from __future__ import annotations

from itertools import chain
from statistics import mean
from typing import Any, ClassVar

import pytest

from llmcalc import units
from llmcalc.frameworks.engines.registry import ENGINE_FOLDERS, engine
from llmcalc.reports.serve import AT_RISK_IF_SPREAD, AT_RISK_IN_BURST
from llmcalc.timing.device import accelerator_generation
from llmcalc.timing.timing_constants import accelerator_generations
from tests import certainty
from tests.builders import with_other_causes

from . import measured, measured_rows, ranges
from .measured import Score, Summary
from .measured_rows import Row

Limits = tuple[float, float, float]
"""The most median error and p90 error, and the least share of rows within the range of their estimates."""


@pytest.fixture(scope="module")
def scored() -> tuple[list[Score], dict[str, list[str]]]:
    return measured.score(row for rows in measured_rows.read_sets().values() for row in rows)


CLASSES: dict[str, Limits] = {
    measured_rows.DENSE: (0.08, 0.20, 0.78),
    measured_rows.NEW: (0.10, 0.30, 0.75),
    measured_rows.MOE: (0.16, 0.46, 0.80),
    measured_rows.DEBUGGED: (0.70, 0.98, 0.25),
    measured_rows.SERVERS: (0.14, 0.45, 0.75),
    measured_rows.FULL: (0.14, 0.38, 0.85),
    measured_rows.RATE: (0.51, 0.63, 0.60),
    measured_rows.LOADED: (0.55, 0.90, 0.72),  # of rows; four fifths where each source weighs the same
    measured_rows.CAPTURED: (0.11, 0.36, 0.75),
    measured_rows.EAGER: (0.38, 0.73, 0.70),
    measured_rows.PROMPTS: (0.28, 0.77, 0.70),
    measured_rows.OTHERS: (0.20, 0.68, 0.75),
}


def causes(row: Row) -> set[Any]:
    """What an estimate has rules for: the stack, the accelerator and the model in each class, the measure, how the run
    is divided, its formats, what it recomputes; the lengths that fill a server; and the row's source.
    """
    divided = tuple(row.whole(size) > 1 for size in ("tp", "pp", "dp", "ep", "cp"))
    of_class = {(row.kind, row.stack.name), (row.kind, row["hardware"]), (row.kind, row["model"])}
    formats = (row["precision"], row["recompute"], bool(row["lora"]), row["zero"])
    lengths = (row.kind, *((row["input"], row["output"]) if row.kind == measured_rows.FULL else ()))
    return {row.set, (row["measure"], row.is_loaded), (row.trains, divided), formats, lengths, *of_class}


SLACK = 1.4
"""How much larger the median error of a sample of a class may be than that of all its rows."""


def test_errors_of_a_sample_are_as_large_as_those_of_all_rows() -> None:
    """Every tenth row or so, one for each cause; the exhaustive tests below have all."""
    rows = [row for rows in measured_rows.read_sets().values() for row in rows]
    scores, without = measured.score(with_other_causes(rows, causes))
    assert len(scores) > 250
    assert not [reason for reason in without if reason.startswith("refused")]
    several = {kind: [score for score in scores if score.row.kind == kind] for kind in CLASSES}
    assert sum(len(of_kind) >= 20 for of_kind in several.values()) >= 5
    for kind, (worst_median, _, least_covered) in CLASSES.items():
        if len(several[kind]) >= 20:
            summary = Summary.of(several[kind])
            assert summary.median < SLACK * worst_median, kind
            assert summary.covered > least_covered - 0.15, kind
            assert summary.median < summary.naive, kind


def versions_of_software(stack_name: str) -> set[str]:
    """The stacks of all versions of a stack's software."""
    of_engines = [{name for _, name in engine(engine_name).stacks_by_version} for engine_name in ENGINE_FOLDERS]
    all_software = [*of_engines, {"llamacpp", "llamacpp-2024"}]
    return set().union(*(names for names in all_software if stack_name in names)) | {stack_name}


def test_tested_stacks_of_a_generation_are_those_of_its_measured_rows() -> None:
    """Of generations without kernel tables; `default` is none, and is tested under no stack."""
    stacks_of_rows: dict[str, set[str]] = {}
    for row in chain.from_iterable(measured_rows.read_sets().values()):
        if row["stack"] not in measured_rows.STAND_INS:
            generation = accelerator_generation(row.hardware)
            stacks_of_rows.setdefault(generation.name, set()).update(versions_of_software(row.stack.name))
    generations = accelerator_generations()
    assert not generations["default"].tested_stacks
    for name, generation in generations.items():
        if name not in ("default", "cdna3-1000w") and not generation.profiled:
            inherited = generations[generation.like].tested_stacks
            assert set(generation.tested_stacks) == stacks_of_rows.get(name, set(inherited)), name
    assert stacks_of_rows["cdna4"] >= {"vllm", "sglang", "atom", "vllm-atom", "megatron"}
    # cdna3 with more power, which runs the same software: its rows are of one stack
    assert generations["cdna3-1000w"].tested_stacks == generations["cdna3"].tested_stacks
    assert stacks_of_rows["cdna3-1000w"] <= set(generations["cdna3"].tested_stacks)


@pytest.mark.exhaustive
class TestErrors:
    @pytest.mark.parametrize("kind", measured_rows.CLASSES)
    def test_class(self, scored: tuple[list[Score], dict[str, list[str]]], kind: str) -> None:
        summary = Summary.of([run for run in scored[0] if run.row.kind == kind])
        worst_median, worst_p90, least_covered = CLASSES[kind]
        assert summary.median < worst_median
        assert summary.p90 < worst_p90
        assert summary.covered > least_covered
        assert summary.median < summary.naive

    SETS: ClassVar[dict[str, float]] = {
        "train_bloom_a100": 0.06,
        "train_llm_foundry": 0.08,
        "train_megatron_bridge": 0.06,
        "train_megatron_moe": 0.16,
        "train_bridge_cards": 0.17,
        "train_bridge_qwen3_h100": 0.17,
        "train_nemo": 0.13,
        "train_automodel": 0.15,
        "finetune_mlperf_lora": 0.08,
        "finetune_qwen_lora": 0.16,  # 256 tokens, where the host is the bound, 0.5 of the estimate
        "train_v100_layouts": 0.12,
        "train_tpu": 0.13,
        "train_internevo_a100": 0.17,
        "serve_aic_silicon": 0.16,  # tokens 6 %, first tokens 23 %
        "serve_sgl_pages": 0.28,  # tokens/s 25 %, tokens 21 %, first tokens 27 %
        "serve_vllm_rates": 0.25,  # tokens 18 %, first tokens 25 %
        "serve_trtllm_014": 0.10,
        "serve_trtllm_inflight": 0.13,
        "serve_gpustack": 0.24,  # tokens/s 20 %, tokens 14 %, first tokens 41 %
        "serve_rocm_vllm": 0.19,
        "serve_trtllm_static": 0.14,
        "decode_qwen25_a100": 0.12,  # vLLM 7 %, transformers 53 %
        "decode_qwen3_h20": 0.20,
        "llamacpp_apple": 0.14,
        "train_moe_modelzoo": 0.08,
        "train_olmo_core": 0.15,
        "llamacpp_gpus": 0.21,  # tokens 8 %, prompts 30 %
        "consumer_awq_mlc_exl2_mlx": 0.25,  # tokens 14 %, prompts 43 %
        "gptfast_tp": 0.16,
        "ft_stratified": 0.16,
        "train_dgxc": 0.08,
        "train_dgxc_maxtext": 0.08,
        "train_dgxc_grok": 0.18,
        "train_dgxc_2025": 0.15,
        "train_torchtitan_tp": 0.18,
        "serve_inferencebench": 0.06,
        "serve_iog_pcie": 0.12,
        "serve_sgl_qwen35": 0.12,
        "serve_lmdeploy": 0.10,
        "serve_azure_guide": 0.20,
        "serve_vllm_a100_bursts": 0.05,
        "train_mlperf_llama31": 0.10,
        "train_mlperf_v6": 0.19,  # routers without balance, and small shares of 1,024 devices
        "train_simumax_b200": 0.11,
        "train_kempnerforge": 0.15,
        "train_xtuner_qwen3": 0.28,
        "train_aleph_alpha_a100": 0.13,
        "train_flagperf_megatron": 0.08,
        "train_flagperf_paddle": 0.16,
        "train_dlperf_v100": 0.08,
        "train_megatron_releases": 0.10,
        "train_xtuner_a100": 0.10,
        "train_ms_swift": 0.08,  # two mixtures at 0.39
        "train_llmq": 0.27,  # kernels written by hand
        "train_gh200_alps": 0.06,
        "finetune_torchtune": 0.09,
        "finetune_unsloth_qwen3": 0.09,
        "finetune_vectorlm_a100": 0.08,
    }

    @pytest.mark.parametrize(("name", "worst_median"), SETS.items())
    def test_set(self, scored: tuple[list[Score], dict[str, list[str]]], name: str, worst_median: float) -> None:
        assert Summary.of([run for run in scored[0] if run.row.set == name]).median < worst_median

    def test_ranges_hold_sources_that_they_were_not_calibrated_on(
        self, scored: tuple[list[Score], dict[str, list[str]]]
    ) -> None:
        """`python -m tests.timing.ranges` prints them, and what classes.toml should say."""
        calibrations = ranges.calibrations(scored[0])
        assert len(calibrations) == 11
        for calibration in calibrations:
            tested = calibration.tested
            assert (tested.low, tested.high) == pytest.approx(calibration.best, rel=0.1), tested.words
            assert (tested.rows, tested.sets) == (calibration.rows, calibration.sources), tested.words
            errors = tested.median_error, tested.p90_error
            assert errors == pytest.approx((calibration.median_error, calibration.p90_error), rel=0.1), tested.words
            assert calibration.inside >= 0.80 - 0.5 / calibration.sources, tested.words
            assert calibration.left_out is not None, tested.words
            assert tested.left_out == pytest.approx(calibration.left_out, abs=0.02), tested.words
            assert calibration.left_out < 0.87, tested.words  # `least_widening` has the least share

    def test_which_of_two_servers(self, scored: tuple[list[Score], dict[str, list[str]]]) -> None:
        kinds = measured_rows.SERVERS, measured_rows.FULL, measured_rows.RATE
        served = [run for run in scored[0] if run.row.kind in kinds]
        for per_device, least in ((False, 0.90), (True, 0.93)):
            right, total = measured.right_pairs(served, per_device)
            assert total > 10_000
            assert right / total > least

    def test_limits_of_first_tokens_that_a_burst_keeps(self, scored: tuple[list[Score], dict[str, list[str]]]) -> None:
        """What `--ttft` is compared with: nine of ten servers that it says keep a limit do, and it finds most."""
        expected_count = kept_count = shared_count = 0
        for run in scored[0]:
            if run.row["measure"] == "ttft" and run.row.is_loaded:
                for limit in (0.2, 0.5, 1, 2, 5):
                    is_expected = measured_rows.load_of(run.row).ttft_of_burst <= limit
                    is_kept = run.row.seconds <= limit
                    expected_count, kept_count, shared_count = (
                        expected_count + is_expected,
                        kept_count + is_kept,
                        shared_count + (is_expected and is_kept),
                    )
        assert shared_count / expected_count > 0.9
        assert shared_count / kept_count > 0.83

    def test_servers_at_risk_keep_limits_as_often_as_the_note_says(
        self, scored: tuple[list[Score], dict[str, list[str]]]
    ) -> None:
        """The shares in the note of `serve` on a server whose range of the first token ends above the limit."""
        kept_by_rule: dict[bool, list[bool]] = {True: [], False: []}
        for run in scored[0]:
            if run.row["measure"] == "ttft" and run.row.is_loaded:
                load, high = measured_rows.load_of(run.row), measured.range_of(run.row, run.seconds).high
                for limit in (0.2, 0.5, 1, 2, 5):
                    for is_burst, ttft in ((True, load.ttft_of_burst), (False, load.ttft)):
                        if ttft <= limit < high:
                            kept_by_rule[is_burst].append(run.row.seconds <= limit)
        shares = {is_burst: units.percent(mean(kept), 0) for is_burst, kept in kept_by_rule.items()}
        assert shares == {True: AT_RISK_IN_BURST, False: AT_RISK_IF_SPREAD}

    @pytest.mark.parametrize("language", certainty.PAGES)
    def test_the_page_has_the_errors(self, scored: tuple[list[Score], dict[str, list[str]]], language: str) -> None:
        """If this fails: python -m tests.certainty."""
        assert certainty.shown("time", certainty.PAGES[language]) == certainty.time_table(language, scored[0]).strip()
        assert certainty.shown("worst", certainty.PAGES[language]) == certainty.worst_table(language, scored[0]).strip()

    def test_the_page_of_servers_has_the_errors(self, scored: tuple[list[Score], dict[str, list[str]]]) -> None:
        """If this fails: python -m tests.certainty."""
        assert certainty.shown("served", certainty.SERVE_PAGE) == certainty.served_table(scored[0]).strip()
        assert certainty.shown("pairs", certainty.SERVE_PAGE) == certainty.pairs_text(scored[0]).strip()

    def test_rows_without_an_estimate(self, scored: tuple[list[Score], dict[str, list[str]]]) -> None:
        scores, without = scored
        refused = [rows for reason, rows in without.items() if reason.startswith("refused")]
        assert len(scores) >= 4200
        assert sum(map(len, refused)) <= 12


@pytest.mark.exhaustive
class TestLayouts:
    @pytest.mark.parametrize(
        ("name", "devices", "worst", "worst_of_three"),
        [
            ("train_bloom_a100", (320, 384), 0.02, 0.003),
            ("train_v100_layouts", (8, 64), 0.02, 0.003),  # whole seconds of about 28
            ("train_simumax_b200", (8,), 0.02, 0.003),
            ("train_xtuner_qwen3", (256,), 0.02, 0.003),
            ("train_jupiter_qwen3_32b", (2048, 4096), 0.02, 0.003),
            ("train_aleph_alpha_a100", (32, 64, 128), 0.02, 0.003),  # 256: by the network, which is not stated
            ("train_flagperf_megatron", (8,), 0.02, 0.003),
            ("train_flagperf_paddle", (8,), 0.04, 0.003),
            ("train_dlperf_v100", (8, 32), 0.02, 0.003),
            ("train_nanotron_layouts", (32, 64, 128), 0.10, 0.08),  # under torch's checks of messages
        ],
    )
    def test_chosen_layout(
        self,
        scored: tuple[list[Score], dict[str, list[str]]],
        name: str,
        devices: tuple[int, ...],
        worst: float,
        worst_of_three: float,
    ) -> None:
        rows = (run for run in scored[0] if run.row.set == name and run.row.whole("devices") in devices)
        groups = measured.layout_groups(rows).values()
        assert groups
        naive = mean(measured.regret(group, order=lambda run: run.naive_seconds) for group in groups)
        assert mean(map(measured.regret, groups)) < naive
        assert mean(map(measured.regret, groups)) < worst
        assert mean(measured.regret(group, 3) for group in groups) < worst_of_three


@pytest.mark.exhaustive
def test_choices_that_an_order_cannot_tell_apart_are_averaged(scored: tuple[list[Score], dict[str, list[str]]]) -> None:
    """By the rule 6ND all layouts of a group are equal, so that its choice is as good as a random one."""
    group = next(
        group for group in measured.layout_groups(scored[0]).values() if len({run.naive_seconds for run in group}) == 1
    )
    seconds = [run.row.seconds for run in group]
    naive = measured.regret(group, order=lambda run: run.naive_seconds)
    assert naive == pytest.approx(mean(seconds) / min(seconds) - 1)
    assert measured.regret(group, order=lambda run: run.row.seconds) == 0


def test_first_tokens_of_equal_requests_are_those_of_a_burst() -> None:
    """They end together, so that the next ones arrive at once, and their prompts fill steps."""
    rows = {row.id: row for row in measured_rows.read_sets(["serve_vllm_others"])["serve_vllm_others"]}
    first, token = (rows[f"mi300x/qwen3guard-gen-8b/c32#{measure}"] for measure in ("ttft", "tpot"))
    load = measured_rows.load_of(first)
    assert first.arrives_in_bursts
    assert measured_rows.estimate(first) == load.ttft_of_burst > 5 * load.ttft
    assert measured_rows.estimate(first) + 1023 * measured_rows.estimate(token) == pytest.approx(
        load.latencies_in_waves.end_to_end_seconds
    )
    assert load.tpot_of_burst < load.tpot
    assert measured.range_of(first, load.ttft_of_burst).low < load.ttft
    spread = rows[
        "tpu-v6e/llama3.3-70b/c64#ttft"
    ]  # steps of 512 tokens, less than a prompt: the requests end one by one
    assert measured_rows.estimate(spread) == measured_rows.load_of(spread).ttft
