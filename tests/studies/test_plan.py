"""`llmcalc plan` and `fit --devices`: layouts that fit are ranked, the others are counted by reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from llmcalc import load
from llmcalc.device_memory.estimate import Memory, memory
from llmcalc.device_memory.settings import Settings
from llmcalc.errors import InputError
from llmcalc.frameworks.framework import EstimateErrors
from llmcalc.frameworks.ranks import Cluster
from llmcalc.frameworks.registry import framework as framework_of
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.layout_request import LayoutRequest
from llmcalc.parallel.layout_search import LayoutSearch, search_layouts
from llmcalc.parallel.schedule_formulas import bubble_fraction
from llmcalc.questions.plans import _compared_layouts, longer_micro_batches, plan_settings
from llmcalc.questions.runs import RunQuestion
from llmcalc.simulator.simulated_work import SIMULATED_WORK, CountedWork, WorkBudget
from llmcalc.sources.hardware import load_hardware
from llmcalc.studies import fit_devices
from llmcalc.studies.layout_candidates import CONFIGURED_RECOMPUTE, Candidate, LayoutRun, sorted_by_memory
from llmcalc.studies.layout_estimates import LayoutEstimates, RunEstimates
from llmcalc.studies.layout_order import TOO_MUCH_MEMORY, UNTRIED_REASON, LayoutOrder, RankedLayouts, new_search_budget
from llmcalc.studies.layout_replays import LayoutReplays, RankReplay, ReplayedLayout, ReplayTask, StageTask
from llmcalc.studies.plan import IncompleteSearchError, plan_layouts
from llmcalc.studies.step_size import default_batch, usual_batch
from tests.in_process import shared_answer
from tests.samples import in_one_test, with_rest

SMALL = "qwen3-0.6b?num_hidden_layers=6"


class FixedEstimates(RunEstimates):
    """Estimates that a test states, of 50 bytes, a byte that is sent, no bounds and no times by default."""

    estimate_errors = EstimateErrors(0.1)

    def __init__(
        self,
        tensor_bytes: Callable[[LayoutRun], int] = lambda run: 50,
        sent_bytes: Callable[[LayoutRun], int] = lambda run: 1,
        step_seconds: Callable[[LayoutRun], float] | None = None,
        least_bytes: Callable[[LayoutRun], int] = lambda run: 0,
        has_too_large_rank: Callable[[LayoutRun, Callable[[int], bool]], bool] = lambda run, is_too_large: False,
    ) -> None:
        changes = {"tensor_bytes": tensor_bytes, "sent_bytes": sent_bytes, "step_seconds": step_seconds}
        self.__dict__ |= {**changes, "least_bytes": least_bytes, "has_too_large_rank": has_too_large_rank}
        self.layout_times: Any = step_seconds


class FixedReplays(LayoutReplays):
    """Replays that a test states, of 50 bytes by default, in no other process."""

    can_fork = False

    def __init__(
        self,
        replayed_bytes: Callable[[LayoutRun, int | None], int] = lambda run, _limit: 50,
        begin: Callable[[Sequence[LayoutRun], int | None], None] = lambda runs, _limit: None,
    ) -> None:
        self.__dict__ |= {"replayed_bytes": replayed_bytes, "start_replays": begin}


class EstimatesWithPeaks(RunEstimates):
    """The estimates of a model whose pipeline stages have peaks that a test states."""

    def __init__(self, model: Memory, framework: str, peaks: Sequence[int]) -> None:
        super().__init__(LayoutEstimates(model, framework_of(framework)), "", None)
        self.peaks = peaks

    def stage_peaks(self, run: LayoutRun) -> Sequence[int]:
        return self.peaks


def asked(run: Any, *words: str, code: int = 0) -> Any:
    return run(*words, "--format", "json").document_with(code)


@pytest.mark.parametrize("framework", ["megatron", "torch", "fsdp2"])
def test_the_first_are_replayed_and_all_are_counted(run: Any, framework: str) -> None:
    words = ("plan", SMALL, "--devices", "4", "--global-batch", "12", "--seq", "128", "--framework", framework)
    found = asked(run, *words, "--hardware", "h100", "--rows", "2")
    assert found["tried"] == len(found["feasible"]) + len(found["unreplayed"]) + sum(found["refused"].values())
    assert [one["replayed"] for one in found["feasible"]] == [True, True]
    assert all(one["tensor_bytes"] < one["upper_bound_bytes"] for one in found["unreplayed"])
    best = found["feasible"][0]
    assert best["layout"]["world"] == 4
    assert best["layout"]["dp"] * best["num_microbatches"] == 12
    memory = asked(
        run, "memory", SMALL, "--phase", "training", "--seq", "128", "--framework", framework, "--hardware", "h100",
        "--num-microbatches", str(best["num_microbatches"]), *best["options"].split(),
    )  # fmt: skip
    assert memory["memory"]["device_bytes"] == best["device_bytes"]
    assert memory["layout"] == best["layout"]


@pytest.mark.parametrize(
    ("model", "framework", "layout", "micro_batches"),
    [
        ("qwen3-0.6b?num_hidden_layers=8", "megatron", Layout(pp=8), 16),
        ("qwen3-0.6b?num_hidden_layers=12", "megatron", Layout(pp=6, vpp=2, schedule="interleaved"), 12),
        ("gemma3-1b?num_hidden_layers=12", "torch", Layout(pp=6), 8),
        ("deepseek-v2-lite?num_hidden_layers=8", "megatron", Layout(pp=8), 16),
        ("qwen3-0.6b?num_hidden_layers=8", "fsdp2", Layout(pp=8), 8),
        ("qwen3-0.6b?num_hidden_layers=15", "megatron", Layout(pp=6, pp_layout=(2, 3, 2, 3, 3, 2)), 12),
    ],
)
def test_stages_that_may_need_most(model: str, framework: str, layout: Layout, micro_batches: int) -> None:
    training = Settings(phase="training", seq=128, num_microbatches=micro_batches)
    cluster = Cluster.with_framework(memory(load(model).model, training), layout, framework)
    assert len(cluster.ranks_that_may_need_most) < len(cluster.ranks)
    assert cluster.device_rank.rank in cluster.ranks_that_may_need_most


@pytest.mark.parametrize("framework", ["megatron", "torch", "fsdp2", "deepspeed"])
@pytest.mark.parametrize("model", [SMALL, "olmoe-1b-7b?num_hidden_layers=4"])
def test_a_layout_needs_at_least_its_weights_gradients_and_optimizer(model: str, framework: str) -> None:
    spec = load(model).model
    estimates = LayoutEstimates(memory(spec, Settings(phase="training", seq=128)), framework_of(framework))
    layouts = search_layouts(spec, 4, 8, 1, 128, framework_of(framework).layout_rules).possible_layouts
    assert layouts
    for recompute in ("", "full"):
        estimate = estimates.with_recompute(recompute).estimates_as_configured
        for layout, number in layouts:
            if layout.tp == 1 or framework == "megatron":  # torch divides no experts
                assert 0 < estimate.lower_bound_bytes(layout) < estimate.largest_rank_bytes(layout, number)


@pytest.mark.parametrize("model", ["qwen3-0.6b?num_hidden_layers=16", "deepseek-v2-lite?num_hidden_layers=17"])
def test_a_run_needs_at_least_what_its_micro_batches_in_flight_save(model: str) -> None:
    """Layers that were measured in one stage save as much in others."""
    spec = load(model).model
    estimate = LayoutEstimates(
        memory(spec, Settings(phase="training", seq=128)), framework_of("megatron")
    ).estimates_as_configured
    layouts = search_layouts(spec, 16, 64, 1, 128, framework_of("megatron").layout_rules).possible_layouts
    larger = 0
    for layout, number in sorted(layouts, key=lambda run: -run[0].pp):
        least = estimate.lower_bound_bytes(layout, number)
        larger += least > estimate.lower_bound_bytes(layout)
        assert least <= estimate.largest_rank_bytes(layout, number)
    assert larger > len(layouts) // 4


def test_a_search_that_ends_early_says_what_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may fit and was not tried has a reason of its own, and what surely does not fit is still counted so."""

    def needed(run: LayoutRun) -> int:
        SIMULATED_WORK.units += 60
        return 50

    def planned(units: int) -> RankedLayouts:
        return LayoutOrder(
            LayoutSearch([(Layout(pp=pp), 4) for pp in (1, 2, 4, 8)]),
            60,
            FixedEstimates(needed, least_bytes=lambda run: 100 if run.layout.pp == 1 else 0),
            FixedReplays(),
            budget=WorkBudget(units),
        ).plan(9)

    whole, early = planned(10**6), planned(100)
    assert not whole.ended_early
    assert early.ended_early
    assert [candidate.layout.pp for candidate in early.fitting_candidates] == [8]
    assert len(whole.fitting_candidates) == 3
    assert (whole.refusal_counts, early.refusal_counts) == (
        {TOO_MUCH_MEMORY: 1},
        {UNTRIED_REASON: 2, TOO_MUCH_MEMORY: 1},
    )


def test_a_search_that_ends_early_is_no_no(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fits so far: it is an error, and not the answer that nothing fits."""
    monkeypatch.setattr("llmcalc.studies.layout_order.WORK_OF_SEARCH", 1)
    monkeypatch.setattr("llmcalc.studies.fit_serving.WORK_OF_SEARCH", 1)
    sizes = ("llama3-8b", "--hardware", "h100", "--devices", "8")
    for words in (("plan", *sizes), ("fit", *sizes, "--phase", "training")):
        code, _, error = run(*words, "--batch", "64", "--seq", "8k")
        assert code == 2
        assert "the search ended before all" in error
    code, _, error = run("fit", "llama3-405b", *sizes[1:])
    assert (code, "search ended before" in error) == (2, True)


def test_a_layout_that_is_too_large_is_counted_without_an_estimate() -> None:
    """Where no layout fits, all are estimated, and the one that requires least is found."""
    sizes = {1: 90, 2: 60, 4: 20}
    estimated: list[int] = []

    def needed(run: LayoutRun) -> int:
        estimated.append(run.layout.pp)
        return sizes[run.layout.pp]

    def planned(capacity: int) -> RankedLayouts:
        estimated.clear()
        return LayoutOrder(
            LayoutSearch([(Layout(pp=pp), 4) for pp in sizes]),
            capacity,
            FixedEstimates(needed, least_bytes=lambda run: sizes[run.layout.pp] - 5),
            FixedReplays(lambda run, _limit: sizes[run.layout.pp]),
        ).plan(2, "if none fits")

    plan_of_layouts = planned(65)
    assert (
        sorted(candidate.layout.pp for candidate in plan_of_layouts.fitting_candidates) == sorted(estimated) == [2, 4]
    )
    assert plan_of_layouts.refusal_counts == {TOO_MUCH_MEMORY: 1}
    nearest = planned(15).nearest_candidate
    assert nearest is not None
    assert (nearest.layout.pp, estimated) == (4, [4, 2, 1])


def test_a_recomputation_that_a_rank_refuses_is_not_estimated_in_full() -> None:
    """The first layout shows that the kernels run; of the second, a rank shows that it needs recomputation."""
    sizes = {CONFIGURED_RECOMPUTE: 90, "full": 50}
    estimated: list[tuple[int, str]] = []

    def tensor_bytes(run: LayoutRun) -> int:
        estimated.append((run.layout.pp, run.recompute))
        return sizes[run.recompute]

    layout_order = LayoutOrder(
        LayoutSearch([(Layout(pp=pp), 4) for pp in (1, 2)]),
        60,
        FixedEstimates(tensor_bytes, has_too_large_rank=lambda run, is_too_large: is_too_large(sizes[run.recompute])),
        FixedReplays(),
        tuple(sizes),
    )
    assert [candidate.recompute for candidate in layout_order.plan(2).fitting_candidates] == ["full", "full"]
    assert estimated == [(2, CONFIGURED_RECOMPUTE), (2, "full"), (1, "full")]


def test_a_stage_with_more_layers_than_an_earlier_one_may_need_most() -> None:
    """Stages 2 and 4 have no layer that stage 1 has not; stage 3 has one more than each before it."""
    training = Settings(phase="training", seq=128, num_microbatches=12)
    layout = Layout(pp=6, pp_layout=(2, 3, 2, 4, 3, 2))
    cluster = Cluster.with_framework(
        memory(load("qwen3-0.6b?num_hidden_layers=16").model, training), layout, "megatron"
    )
    assert cluster.ranks_that_may_need_most == (0, 1, 3, 5)


SHORT = ("--seq", "128", "--hardware", "h100")

ROWS: dict[str, tuple[str, ...]] = {
    "megatron": (SMALL, "--devices", "8", "--global-batch", "24", "--framework", "megatron", *SHORT),
    "experts under megatron": (
        "olmoe-1b-7b?num_hidden_layers=4", "--devices", "8", "--framework", "megatron", *SHORT,
    ),
    "torch": (SMALL, "--devices", "4", "--global-batch", "12", "--framework", "torch", *SHORT),
    "uneven stages of torch": (
        *("llama3.2-1b?num_hidden_layers=7", "--devices", "4", "--pp", "4", "--global-batch", "12"),
        *("--framework", "torch", *SHORT),
    ),
    "fsdp2": (SMALL, "--devices", "4", "--framework", "fsdp2", *SHORT),
    "a pipeline of fsdp2": (
        SMALL, "--devices", "4", "--pp", "2", "--global-batch", "12", "--framework", "fsdp2", *SHORT,
    ),
    "experts that are no multiple of the shards": (
        "olmoe-1b-7b?num_hidden_layers=3", "--devices", "96", "--tp", "1", "--framework", "fsdp2", *SHORT,
    ),
    "deepspeed": (SMALL, "--devices", "4", "--framework", "deepspeed", *SHORT),
    "a sequence in two parts": (SMALL, "--devices", "4", "--cp", "2", "--framework", "megatron", *SHORT),
}  # fmt: skip


@pytest.mark.parametrize("words", with_rest(ROWS, ROWS.keys() - {"a pipeline of fsdp2"}))  # test_fsdp2_pipeline.py
def test_a_row_needs_what_memory_says_of_it(run: Any, words: tuple[str, ...]) -> None:
    """To the byte, on the rank that needs most, which may not be the one whose tensors take most."""
    found = asked(run, "plan", *words, "--rows", "3")
    asked_again = [
        word for option, word in zip(words[1::2], words[2::2], strict=True) if option in ("--framework", "--seq")
    ]
    for row in found["feasible"]:
        memory = asked(
            run, "memory", words[0], "--phase", "training", "--framework", asked_again[0], *SHORT,
            "--num-microbatches", str(row["num_microbatches"]), *row["options"].split(),
        )  # fmt: skip
        assert memory["memory"]["device_bytes"] == row["device_bytes"]
        assert row["device_bytes"] == max(rank["device_bytes"] for rank in memory["memory"]["by_rank"])


def test_a_layout_whose_tensors_alone_fit_does_not_count(run: Any) -> None:
    """405B over 16 stages: the tensors need 0.6 GiB less than an H100 has, and the allocator's blocks 3.9 GiB more."""
    words = (
        "llama3.1-405b",
        "--devices",
        "16384",
        "--global-batch",
        "16384",
        "--hardware",
        "h100-sxm",
        "--seq",
        "8192",
        "--tp",
        "8",
        "--pp",
        "16",
        "--cp",
        "1",
    )
    fitting = asked(run, "plan", *words, "--vpp", "1")["feasible"]
    assert [row["options"].rpartition(" --recompute ")[2] for row in fitting] == ["full"]
    found = asked(run, "plan", *words, "--vpp", "1", "--recompute", "none", code=1)
    assert (found["feasible"], found["unreplayed"]) == ([], [])
    nearest = found["nearest"]
    assert nearest["replayed"]
    memory = asked(
        run, "memory", "llama3.1-405b", "--phase", "training", "--framework", "megatron", "--seq", "8192",
        "--hardware", "h100-sxm", "--num-microbatches", str(nearest["num_microbatches"]), *nearest["options"].split(),
        code=1,
    )  # fmt: skip
    assert (
        memory["memory"]["device_bytes"]
        == nearest["device_bytes"]
        > nearest["device_bytes"] + nearest["headroom_bytes"]
    )


def test_layouts_that_were_not_replayed_are_apart(run: Any) -> None:
    words = ("plan", SMALL, "--devices", "4", "--global-batch", "12", "--seq", "128", "--hardware", "h100")
    one_row = shared_answer(" ".join((*words, "--rows 1")))
    few, all_ = one_row.document, asked(run, *words, "--rows", "100")
    assert len(few["feasible"]) == 1
    assert all_["unreplayed"] == []
    replayed = {row["options"]: row["device_bytes"] for row in all_["feasible"]}
    assert len(replayed) == len(few["unreplayed"]) + 1
    for candidate in few["unreplayed"]:
        assert candidate["tensor_bytes"] < replayed[candidate["options"]] <= candidate["upper_bound_bytes"]
    assert "the first of " in one_row.screen
    assert " layouts, counted in full, fits under" in one_row.screen
    assert f"--rows {len(replayed)} counts more" in one_row.screen


def test_a_screen_counts_the_first_choice_and_its_rivals_in_full(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen shows five rows, and counts no others; documents, all rows and the place of a layout have ten."""
    plans: dict[tuple[Any, ...], Any] = {}

    def plan_once(*arguments: Any, **options: Any) -> Any:
        _, _, layout_request, _, row_limit = arguments
        key = row_limit, options.get("replay_limit"), repr(layout_request)
        if key not in plans:
            plans[key] = plan_layouts(*arguments, **options)
        return plans[key]

    monkeypatch.setattr("llmcalc.studies.plan.plan_layouts", plan_once)
    words = (
        "plan",
        "qwen3-0.6b?num_hidden_layers=4",
        "--devices",
        "8",
        "--global-batch",
        "24",
        "--seq",
        "128",
        "--hardware",
        "h100",
    )
    document = asked(run, *words)
    assert len(document["feasible"]) == 10
    screen = " ".join(run(*words).out.split())
    layout_count = 10 + len(document["unreplayed"])
    assert f"the first 5 of {layout_count} layouts, counted in full, fit under Megatron-Core" in screen
    assert f"(--rows {layout_count} counts more)" in screen
    for ten_rows in (("--notes",), ("--where", "tp=2"), ("--rows", "10"), ("--format", "markdown")):
        assert f"the first 10 of {layout_count} layouts, counted in full" in " ".join(
            run(*words, *ten_rows).out.split()
        ), ten_rows
    assert sorted(rows for rows, replay_limit, _ in plans if replay_limit is not None) == [5, 10]


def test_a_screen_goes_as_far_beyond_what_does_not_fit_as_a_document() -> None:
    sizes = [Layout(dp=2**i) for i in range(18)]
    search = LayoutSearch([(layout, 1) for layout in sizes])
    order = LayoutOrder(
        search,
        100,
        FixedEstimates(step_seconds=lambda run: float(run.layout.dp)),
        FixedReplays(lambda run, _limit: 50 if run.layout.dp >= 2**16 else 200),
    )
    assert [candidate.layout.dp for candidate in order.plan(5, "never", replay_limit=20).fitting_candidates] == [
        2**16,
        2**17,
    ]


def test_no_more_replays_are_begun_than_a_plan_may_make() -> None:
    """Layouts whose estimates exceed the capacity a little were all begun, since none of them counts as a row."""
    begun: set[LayoutRun] = set()
    order = LayoutOrder(
        LayoutSearch([(Layout(dp=number), 1) for number in range(1, 301)]),
        100,
        FixedEstimates(lambda run: 105, step_seconds=lambda run: float(run.layout.dp)),
        FixedReplays(lambda run, _limit: 200, lambda runs, _limit: begun.update(runs)),
    )
    plan = order.plan(5, "never", replay_limit=20)
    assert (plan.replay_count, len(plan.unreplayed_candidates)) == (20, 280)
    assert len(begun) == 20


def test_without_a_layout_that_fits_the_nearest_is_told(run: Any) -> None:
    found = asked(run, "plan", SMALL, "--devices", "2", "--seq", "128", "--hardware", "800MiB", code=1)
    assert found["feasible"] == []
    assert found["refused"][TOO_MUCH_MEMORY] > 0
    assert found["nearest"]["headroom_bytes"] < 0


def test_where_few_fit_it_says_how_many_would_with_recomputation(run: Any) -> None:
    words = ("plan", SMALL, "--devices", "2", "--seq", "4096", "--hardware", "9GiB", "--by", "memory")
    found = asked(run, *words)
    again = asked(run, *words, "--recompute", "full")
    assert found["feasible_with_recompute"] >= len(again["feasible"]) > len(found["feasible"])
    assert again["feasible_with_recompute"] is None  # it says itself what runs again
    assert f"with --recompute full {found['feasible_with_recompute']} of" in run(*words, "--notes")[1]


def test_without_a_layout_that_is_possible_the_nearest_are_told(run: Any) -> None:
    code, _, error = run("plan", SMALL, "--hardware", "h100", "--devices", "8", "--tp", "3")
    assert code == 2
    assert "no layout is possible: --tp 3 does not divide 8 devices; nearest layouts: --tp 4 --dp 2; --tp 2 -" in error
    code, _, error = run("plan", "llama3-8b", "--hardware", "h100", "--devices", "64", "--pp", "64")
    assert code == 2
    assert "more stages than layers; nearest layouts: --pp 32 --dp 2" in error


def test_sizes_that_are_given_hold(run: Any) -> None:
    words = ("plan", SMALL, "--devices", "4", "--seq", "128", "--hardware", "h100", "--tp", "2", "--rows", "1")
    found = asked(run, *words)
    assert {one["layout"]["tp"] for one in found["feasible"]} == {2}


def test_a_step_that_nobody_states_has_at_most_4m_tokens(run: Any) -> None:
    """As `cost` assumes; `time` of a run without a layout is the first one of `plan`."""
    assert [default_batch(seq, 2048, 1) for seq in (1024, 2048, 8192, 131072)] == [2048, 2048, 512, 32]
    assert default_batch(131072, 2048, 1) == usual_batch(131072, 2048)
    assert default_batch(8192, 3000, 2) == 500  # sequences in micro-batches of 2, a number that divides the devices
    words = (SMALL, "--devices", "4096", "--seq", "4096", "--hardware", "h100", "--tp", "4", "--rows", "1")
    document = asked(run, "plan", *words)
    assert document["global_batch"] == 1024
    assert "assumed: --global-batch 1024, 4,194,304 tokens a step" in document["notes"]


def test_a_step_smaller_than_that_of_cost_is_said_to_be(run: Any) -> None:
    """The step of `cost` is the one that the note names; adapters have no usual step."""
    words = (SMALL, "--devices", "2", "--seq", "128", "--hardware", "h100", "--rows", "1")
    (note,) = [note for note in asked(run, "plan", *words)["notes"] if note.startswith("assumed")]
    stated = note.split()[-1]
    assert "assumed: a micro-batch of each device, 256 tokens a step" in note
    cost = run("cost", *words[:-2], "--tokens", "1B", "--framework", "megatron").out
    assert f"--global-batch {stated}" in " ".join(cost.split())
    words_of_published_step = ("olmo2-13b", "--devices", "64", "--seq", "4096", "--hardware", "h100", "--rows", "1")
    notes = " ".join(asked(run, "plan", *words_of_published_step)["notes"])
    assert "cost, take about 8.39 M, as published: --global-batch 2048" in notes  # as the preset states
    for more in (("--global-batch", "2"), ("--lora-rank", "4")):
        assert not [note for note in asked(run, "plan", *words, *more)["notes"] if note.startswith("assumed")]


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_each_device_has_a_micro_batch_if_no_step_is_given(run: Any, command: str) -> None:
    words = (command, SMALL, "--devices", "4", "--seq", "128", "--hardware", "h100", "--dp", "4", "--batch", "3")
    words += ("--phase", "training")
    assert "12 sequences a step" in run(*words)[1]


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_micro_batches_follow_from_the_step(run: Any, command: str) -> None:
    words = (command, SMALL, "--devices", "4", "--seq", "128", "--hardware", "h100", "--phase", "training")
    err = run(*words, "--num-microbatches", "4").error
    assert "--num-microbatches 4: in a plan it follows from the layout and --global-batch" in err


def test_layouts_are_ranked_by_the_sum_of_their_places() -> None:
    def candidate(tp: int, needed: int, sent: int, micro_batches: int) -> Candidate:
        return Candidate(Layout(tp=tp, pp=2), micro_batches, needed, 100, lambda: sent)

    most_headroom, least_sent, middle = candidate(1, 91, 9, 2), candidate(2, 93, 1, 2), candidate(4, 92, 5, 9)
    assert most_headroom.bubble == pytest.approx(1 / 3)
    assert sorted_by_memory([most_headroom, least_sent, middle]) == [middle, most_headroom, least_sent]


def test_bytes_sent_and_bubbles_are_computed_where_they_are_read(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen of a plan by time has those of its rows; JSON has those of every layout."""
    layouts: list[Layout] = []
    counted = Cluster.messages_of_rank

    def messages_of_rank(cluster: Cluster, rank: int) -> Any:
        layouts.append(cluster.layout)
        return counted(cluster, rank)

    monkeypatch.setattr(Cluster, "messages_of_rank", messages_of_rank)
    words = (
        "plan",
        SMALL,
        "--devices",
        "8",
        "--seq",
        "128",
        "--hardware",
        "h100",
        "--rows",
        "1",
        "--framework",
        "megatron",
    )
    assert run(*words)[0] == 0
    assert len(layouts) == 1
    layouts.clear()
    document = asked(run, *words)
    listed = [*document["feasible"], *document["unreplayed"]]
    assert len(listed) > 2
    assert len(layouts) == len(listed)
    assert all(layout["communication_bytes"] > 0 <= layout["bubble"] < 1 for layout in listed)


@in_one_test
@pytest.mark.parametrize("layout", [Layout(pp=4), Layout(pp=4, vpp=2, schedule="interleaved")], ids=Layout.options)
@pytest.mark.parametrize("batches", [8, 12, 40])
def test_a_bubble_of_many_micro_batches_is_that_of_the_schedule(layout: Layout, batches: int) -> None:
    """(p − 1)/(m·v) of the time without it (Narayanan 2021, §2.2)."""
    over = (layout.pp - 1) / (batches * layout.vpp)
    assert bubble_fraction(layout, batches) == pytest.approx(over / (1 + over))


def test_a_run_that_fits_is_told_the_fewest_devices(run: Any) -> None:
    words = ("fit", SMALL, "--devices", "2", "--seq", "128", "--hardware", "8GiB", "--phase", "training")
    found = asked(run, *words)
    assert found["verdict"] != "no"
    assert found["needed_devices"] <= 2
    assert found["largest"]["batch"] >= 1
    assert found["largest"]["users"] is None
    assert found["changes"] == []


def test_fit_has_the_first_layout_of_plan(run: Any) -> None:
    words = (SMALL, "--devices", "4", "--seq", "128", "--hardware", "h100", "--zero", "3")
    planned, fitted = asked(run, "plan", *words, "--rows", "1"), asked(run, "fit", *words)
    assert planned["by"] == "time"
    assert fitted["layout"] == planned["feasible"][0]["layout"]
    assert (fitted["layout"]["dp"], fitted["layout"]["zero"]) == (4, 3)


def test_fit_recomputes_only_what_the_run_does(run: Any) -> None:
    sizes = ("--devices", "2", "--seq", "96k", "--hardware", "h100", "--phase", "training")
    found = asked(run, "fit", "llama3-8b?num_hidden_layers=8", *sizes, code=1)
    assert found["execution"]["recompute"] == "none"
    assert any(change["option"].startswith("--recompute full") for change in found["changes"])


@pytest.mark.parametrize("beside", [0, 500, 2_900])
def test_what_the_allocator_needs_may_jump(monkeypatch: pytest.MonkeyPatch, beside: int) -> None:
    """A number that fits is named even where a line between two replays says too little of each between them."""
    capacity, each = 10_000, 10

    def replays(one: Any, *_: Any) -> int:
        n: int = one.states.workload.batch
        return each * n + (beside if n > 20 else 0)

    def estimates(one: Any) -> Any:
        return SimpleNamespace(largest_rank_bytes=lambda *_: each * one.states.workload.batch)

    monkeypatch.setattr(fit_devices, "replayed_bytes", replays)
    record = SimpleNamespace(estimate=estimates)
    one = memory(load(SMALL).model, Settings("training", seq=128))
    ask = fit_devices.DevicesSearch(
        LayoutEstimates(one, record),
        SimpleNamespace(capacity_bytes=capacity),
        LayoutRequest(devices=1),
        None,
        new_search_budget(),
    )  # type: ignore[arg-type]
    found = fit_devices._largest_number(ask, Candidate(Layout(), 1, each, capacity, lambda: 0), "batch", 1, 1, 10**6)
    right = (capacity - beside) // each
    assert 0.95 * right <= found <= right


@pytest.mark.parametrize("framework", ["fsdp2", "megatron"])
def test_tokens_that_ranks_of_tensors_divide(run: Any, framework: str) -> None:
    """No rest of a sequence is divided: the longest one is a multiple of the ranks."""
    sizes = ("--devices", "4", "--tp", "4", "--sequence-parallel", "--seq", "128", "--hardware", "8GiB")
    found = asked(run, "fit", SMALL, *sizes, "--framework", framework)
    assert found["layout"]["sequence_parallel"]
    assert found["largest"]["seq"] > 128
    assert found["largest"]["seq"] % 4 == 0


@pytest.mark.parametrize(
    ("framework", "layout"),
    [
        ("megatron", ("--tp", "4", "--devices", "4")),
        ("megatron", ("--dp", "2", "--devices", "2")),
        ("megatron", ("--tp", "2", "--pp", "2", "--devices", "4")),
        ("fsdp2", ("--tp", "2", "--fsdp", "2", "--devices", "4")),
    ],
)
def test_a_layout_of_typed_sizes_fits_as_memory_counts_it(run: Any, framework: str, layout: tuple[str, ...]) -> None:
    """Sequence parallelism, chunks, a ZeRO stage or micro-batches that nobody typed are added by no command."""
    words = (SMALL, "--phase", "training", "--seq", "128", "--hardware", "h100", "--framework", framework, *layout)
    fit, memory = asked(run, "fit", *words), asked(run, "memory", *words)
    assert fit["layout"] == memory["layout"]
    assert fit["device_bytes"] == memory["memory"]["device_bytes"]


def test_a_plan_without_a_framework_names_the_other_one(run: Any) -> None:
    """The row of the other framework is the first row of its own plan; a plan of a named framework compares none."""
    words = ("plan", SMALL, "--seq", "128", "--devices", "4", "--hardware", "h100")
    (compared,) = asked(run, *words, "--rows", "1")["other_frameworks"]
    first_row = asked(run, *words, "--framework", "fsdp2", "--rows", "1")["feasible"][0]
    assert compared == {"framework": "fsdp2", "fits": True, **first_row}
    for named in ("--framework", "--stack"):
        assert asked(run, *words, "--rows", "1", named, "megatron")["other_frameworks"] == []
    screen = " ".join(run(*words).out.split())
    assert "under Megatron-Core (--rows " in screen
    assert "not listed: layouts of FSDP2 (--framework fsdp2); their fastest takes" in screen


@pytest.mark.parametrize(
    ("searched", "expected"),
    [
        ({}, "not listed: FSDP2, of which no layout fits"),
        ({"ended_early": True}, "not listed: FSDP2, of which no layout was found to fit"),
        (IncompleteSearchError("no layout so far"), "not listed: FSDP2, of which no layout was found to fit"),
        (InputError("a reason of the framework"), ""),
    ],
)
def test_a_plan_says_that_no_layout_of_the_other_framework_fits(
    run: Any, monkeypatch: pytest.MonkeyPatch, searched: Any, expected: str
) -> None:
    """A finished plan stays, whatever its comparison meets."""

    def plan_of_other(*arguments: Any, **options: Any) -> Any:
        if arguments[2].framework != "fsdp2":
            return plan_layouts(*arguments, **options)
        if isinstance(searched, InputError):
            raise searched
        return SimpleNamespace(ranked_layouts=RankedLayouts(3, **searched))

    monkeypatch.setattr("llmcalc.studies.plan.plan_layouts", plan_of_other)
    words = ("plan", SMALL, "--seq", "128", "--devices", "4", "--hardware", "h100", "--rows", "1")
    document = asked(run, *words)
    assert document["other_frameworks"] == ([{"framework": "fsdp2", "fits": False}] if expected else [])
    assert document["feasible"]
    assert ("not listed" in (screen := " ".join(run(*words, "--notes").out.split()))) == bool(expected)
    assert expected in screen


@pytest.mark.parametrize(
    ("options", "is_expected"),
    [((), True), (("--stack", "megatron"), True), (("--global-batch", "8"), True), (("--optimizer", "sgd"), False)],
)
def test_the_comparison_of_another_process_is_that_of_the_plan(
    run: Any, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], is_expected: bool
) -> None:
    """It starts before the framework of the plan is known, and is found anew for another one."""
    compared: list[int] = []

    def compare(*arguments: Any) -> Any:
        compared.append(1)
        return _compared_layouts(*arguments)

    words = ("plan", SMALL, "--seq", "128", "--devices", "4", "--hardware", "h100", "--rows", "1", *options)
    alone = asked(run, *words)
    monkeypatch.setattr("llmcalc.questions.plans.usable_processes", partial(int, 2))
    monkeypatch.setattr("llmcalc.questions.plans._compared_layouts", compare)
    assert asked(run, *words) == alone
    assert not compared if is_expected else compared


def test_a_plan_whose_layouts_wait_for_the_host_names_longer_micro_batches(run: Any) -> None:
    """Of a small model, kernels of one short sequence take less time than their launches by the host."""
    words = ("plan", SMALL, "--seq", "512", "--devices", "4", "--hardware", "h100", "--framework", "megatron")
    batch = "--global-batch", "64"
    longer = asked(run, *words, *batch)["longer_micro_batches"]
    (first_row,) = asked(run, *words, *batch, "--batch", str(longer["batch"]), "--rows", "1")["feasible"]
    assert longer == {"batch": longer["batch"], **first_row}
    assert longer["batch"] > 1
    note = f"micro-batches of {longer['batch']} sequences (--batch {longer['batch']}) wait less for the host"
    screen = " ".join(run(*words, *batch).out.split())
    assert note in screen
    assert f" a step; with --batch {longer['batch']} " in screen.partition("training of")[0]  # the first line
    timed = run("time", *words[1:], *batch)  # takes them
    assert f", micro-batches of {longer['batch']} sequences" in " ".join(timed.out.split())
    stated = asked(run, "time", *words[1:], *batch, "--batch", str(longer["batch"]))
    assert asked(run, "time", *words[1:], *batch)["seconds"] == stated["seconds"]
    for without in ((*batch, "--batch", "1"), (*batch, "--by", "memory"), ()):
        assert asked(run, *words, *without)["longer_micro_batches"] is None


@dataclass
class _TimedLayout:
    seconds: float
    layout: Layout
    communication_bytes: int = 0
    count_sent_bytes: Any = None


@pytest.mark.parametrize(
    ("global_batch", "seconds_by_micro_batch", "tried_micro_batches", "fastest"),
    [
        (96, {None: 1.0, 2: 0.8, 3: 0.9, 4: 0.5}, [2, 3], 2),
        (24, {None: 1.0, 2: 1.1, 3: 0.4, 4: 0.5, 6: 0.5, 8: 0.5}, [2, 3, 4, 6, 8], 3),  # 8 replicas of 3 sequences
    ],
)
def test_longer_micro_batches_end_with_the_first_one_that_is_slower(
    monkeypatch: pytest.MonkeyPatch,
    global_batch: int,
    seconds_by_micro_batch: dict[int | None, float],
    tried_micro_batches: list[int],
    fastest: int,
) -> None:
    """Each takes a search of layouts. One that replicas of the fastest layout cannot have says nothing of others."""
    tried = []

    def planned(micro_batch: int | None) -> Any:
        plan = SimpleNamespace(
            memory=SimpleNamespace(with_changes=lambda batch: batch),
            framework=SimpleNamespace(name="megatron"),
            host_wait_share=lambda _: 0.5,
            step_time_range=lambda _: None,
            hardware=None,
            global_batch=global_batch,
        )
        plan.first_candidate = plan, _TimedLayout(seconds_by_micro_batch[micro_batch], Layout(dp=8))
        return plan

    def plan_layouts(micro_batch: int, *_: Any, **__: Any) -> Any:
        tried.append(micro_batch)
        return planned(micro_batch)

    monkeypatch.setattr("llmcalc.studies.plan.plan_layouts", plan_layouts)
    run_question: Any = SimpleNamespace(settings=Settings(), layout=LayoutRequest())
    longer = longer_micro_batches(run_question, planned(None), None)
    assert longer is not None
    assert (longer.micro_batch, tried) == (fastest, tried_micro_batches)


def test_an_error_in_the_settings_of_a_comparison_compares_nothing() -> None:
    settings = plan_settings(Settings(seq=128), lambda _: False)
    layout = LayoutRequest(devices=4)
    run_question = RunQuestion(
        preset=load(SMALL), settings=settings, layout=layout, accelerators=(load_hardware("h100-sxm"),)
    )

    def refuse(_: Any) -> Any:
        raise InputError("no stack; expected another")

    assert _compared_layouts(run_question, refuse, "megatron", "megatron", 4) == ()


def test_replicas_that_do_not_fit_whole_fit_with_a_zero_stage(run: Any) -> None:
    words = ("--phase", "training", "--seq", "128", "--hardware", "4GiB", "--framework", "megatron", "--dp", "8")
    document = asked(run, "fit", SMALL, *words, "--devices", "8", code=1)
    first_change = document["changes"][0]
    assert first_change["option"] == "--dp 8 --zero 1"
    assert first_change["verdict"] == "fits"


def test_a_run_that_does_not_fit_is_told_what_would(run: Any) -> None:
    words = ("--devices", "2", "--seq", "128", "--hardware", "2GiB", "--phase", "training")
    found = asked(run, "fit", SMALL, *words, code=1)
    assert found["verdict"] == "no"
    assert found["needed_devices"] > 2
    assert any(f"--devices {found['needed_devices']}" in change["option"] for change in found["changes"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", SMALL, "--hardware", "h100"), "--devices: missing; expected the number of accelerators"),
        (("fit", SMALL, "--hardware", "h100", "--sequence-parallel"), "--devices: missing"),
        (("fit", SMALL, "--hardware", "h100", "--global-batch", "2"), "--global-batch: only applies to many devices"),
        (("plan", SMALL, "--hardware", "h100", "--devices", "2", "--phase", "decode"), "plan is for training"),
        (("memory", SMALL, "--phase", "decode", "--tp", "2", "--zero", "1"), "--zero 1: is of training; expected --tp"),
        (("memory", SMALL, "--phase", "decode", "--tp", "2", "--framework", "megatron"), "--framework megatron: is of"),
        (("memory", SMALL, "--phase", "decode", "--tp", "2", "--sequence-parallel"), "--sequence-parallel: is of"),
        (
            ("memory", SMALL, "--phase", "training", "--tp", "3"),
            "--tp 3: does not divide num_attention_heads 16; expected one of 1, 2, 4, 8",
        ),
        (
            ("memory", SMALL, "--phase", "training", "--framework", "megatron", "--framework-version", "new"),
            "--framework-version: 'new'; expected the date of a commit",
        ),
        (
            ("memory", SMALL, "--phase", "training", "--framework", "megatron", "--recompute", "every:2"),
            "--recompute every:2: not Megatron's; expected one of none, full, attention",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_fix(run: Any, words: tuple[str, ...], message: str) -> None:
    assert message in run(*words).error


@pytest.mark.parametrize("framework", ["torch", "fsdp2", "deepspeed"])
def test_an_encoder_decoder_has_layouts_without_a_pipeline(run: Any, framework: str) -> None:
    words = ("--seq", "64", "--hardware", "h100", "--framework", framework, "--rows", "1")
    found = asked(run, "plan", "t5-small", "--devices", "2", *words)
    assert found["feasible"][0]["replayed"]
    assert {one["layout"]["pp"] for one in found["feasible"]} == {1}
    assert found["refused"].get("a pipeline of an encoder-decoder is not modelled", 0) == (framework == "torch") * 3


MEGATRON = ("--framework", "megatron")


@pytest.mark.parametrize(
    "words", [["t5-small"], ["bert-base"], [SMALL, "--optimizer", "sgd"], ["lfm2-350m?num_hidden_layers=4"]]
)
def test_a_plan_without_a_framework_is_under_one_that_trains_the_model(run: Any, words: list[str]) -> None:
    found = asked(run, "plan", *words, "--devices", "2", "--seq", "64", "--hardware", "h100", "--rows", "1")
    assert found["framework"] == "fsdp2"
    assert found["feasible"]


def test_a_framework_that_counts_no_layout_of_a_model_leaves_it_to_the_next_one(run: Any) -> None:
    """FSDP2 has no shared layers; the error named sequence parallelism."""
    words = "plan", "albert-base-v2", "--hardware", "h100", "--devices", "8", "--rows", "1"
    assert "under torch; the fastest" in " ".join(run(*words).out.split())
    assert run(*words, "--framework", "fsdp2").code == 2


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["bert-base", *MEGATRON],
            "--framework megatron: Megatron's encoder models are counted only from a launch file; expected --launch",
        ),
        (
            ["bart-base", *MEGATRON],
            "--framework megatron: Megatron's encoder-decoder models are counted only from a launch file; "
            "expected --launch",
        ),
        (
            [SMALL, "--optimizer", "sgd", *MEGATRON],
            "--optimizer sgd: not modelled with --framework megatron; expected adamw",
        ),
        ([SMALL, "--zero", "2", "--no-reshard"], "--no-reshard: layers are gathered where weights are divided"),
    ],
)
def test_what_no_layout_mends_is_an_error(run: Any, words: list[str], error: str) -> None:
    """No nearest layout is told, which would be refused too."""
    for command in ("plan", "fit"):
        code, _, err = run(command, *words, "--devices", "4", "--seq", "64", "--hardware", "h100")
        assert code == 2
        assert error in err
        assert "nearest" not in err


def test_a_plan_of_a_model_that_megatron_does_not_have_is_of_fsdp2(run: Any) -> None:
    """Attention with windows (Gemma 3), sinks (gpt-oss) or biases of scores (BLOOM) has no kernels there."""
    windows = ("plan", "gemma3-1b?num_hidden_layers=6", "--hardware", "h100", "--devices", "2", "--seq", "1024")
    document = asked(run, *windows, "--rows", "1")
    assert document["framework"] == "fsdp2"
    assert asked(run, "plan", SMALL, *windows[2:], "--rows", "1")["framework"] == "megatron"
    code, _, err = run(*windows, "--framework", "megatron")
    assert code == 2
    assert "sliding windows are not modelled with --framework megatron" in err


def test_a_plan_with_an_optimizer_that_no_shards_have_is_of_whole_replicas(run: Any) -> None:
    words = ("plan", SMALL, "--hardware", "h100", "--devices", "2", "--seq", "64", "--optimizer", "adafactor")
    document = asked(run, *words, "--rows", "1")
    assert document["framework"] == "torch"
    assert [row for row in run(*words)[1].split() if row.startswith(("dp", "tp", "pp"))] == ["dp2"]
    assert "or whole replicas with --framework torch" in run(*words[:3], "1GiB", *words[4:])[2]
    code, _, err = run(*words, "--framework", "fsdp2")
    assert code == 2
    assert "--optimizer adafactor: on shards it is not modelled" in err
    assert "or whole replicas with --framework torch" in err


def test_a_plan_of_adapters_ranks_whole_replicas_beside_shards(run: Any) -> None:
    """Where the weights have room on one device: DDP, ZeRO-2 of DeepSpeed and FSDP2, else FSDP2 alone."""
    words = ("qwen3-0.6b?num_hidden_layers=2", "--lora-rank", "4", "--devices", "2", "--seq", "64", "--hardware")
    document = asked(run, "plan", *words, "h100")
    seconds = [row["seconds"]["estimate"] for row in document["feasible"]]
    assert seconds == sorted(seconds)
    stages = {row["framework"]: row["layout"]["zero"] for row in document["feasible"]}
    assert stages == {"torch": 0, "deepspeed": 2, "fsdp2": 3}
    row = next(row for row in document["feasible"] if row["framework"] == "deepspeed")
    memory = asked(run, "memory", *words[:-1], *row["options"].split(), "--framework", "deepspeed")["memory"]
    assert row["device_bytes"] == memory["device_bytes"]
    assert asked(run, "fit", *words, "h100")["framework"] == "torch"
    assert asked(run, "plan", *words, "300MiB", code=1)["framework"] == "fsdp2"


def test_fsdp2_keeps_gathered_weights_with_stage_2_and_has_no_stage_1(run: Any) -> None:
    words = ("memory", SMALL, "--devices", "4", "--seq", "64", "--framework", "fsdp2")
    unnamed_stage, stage_3, stage_2 = (
        asked(run, *words, *options)["memory"] for options in ((), ("--zero", "3"), ("--zero", "2"))
    )
    assert unnamed_stage == stage_3
    assert stage_2["peak_bytes"] == asked(run, *words, "--zero", "3", "--no-reshard")["memory"]["peak_bytes"]
    assert stage_2["peak_bytes"] != stage_3["peak_bytes"]
    for command in ("memory", "plan"):
        code, _, err = run(command, *words[1:], "--zero", "1", "--hardware", "h100")
        assert code == 2
        assert "--zero 1: fsdp2 divides gradients and weights too; expected --zero 3" in err
    assert asked(run, *words[:-2], "--zero", "2")["framework"]["name"] == "deepspeed"


def test_pipelines_of_fsdp2_keep_gathered_weights_with_any_option_of_shards(run: Any) -> None:
    # torchtitan, distributed/fsdp.py: by default `reshard_after_forward` is false in a pipeline
    words = ("memory", SMALL, "--seq", "64", "--framework", "fsdp2", "--num-microbatches", "4", "--pp", "2")
    sharded = asked(run, *words, "--fsdp", "2")
    assert not sharded["layout"]["reshard"]
    for sizes in ("--dp 2", "--devices 4", "--zero 3 --dp 2"):
        assert asked(run, *words, *sizes.split())["memory"] == sharded["memory"], sizes


def test_a_row_without_replicas_has_the_options_of_memory(run: Any) -> None:
    words = (SMALL, "--seq", "64", "--framework", "fsdp2", "--tp", "2", "--pp", "2")
    planned = asked(run, "plan", *words, "--devices", "4", "--hardware", "h100", "--global-batch", "4", "--rows", "1")
    options = planned["feasible"][0]["options"].split()
    answer = asked(run, "memory", *words[:5], *options, "--num-microbatches", "4", "--hardware", "h100")
    assert answer["memory"]["device_bytes"] == planned["feasible"][0]["device_bytes"]


def test_a_plan_has_the_other_exchange_of_experts_over_nodes(run: Any) -> None:
    """NCCL's all-to-all sends every copy of a token to its rank, DeepEP one to each node (token_dispatcher.py)."""
    words = ("plan", "qwen3-30b-a3b?num_hidden_layers=4", "--devices", "16", "--hardware", "h100", "--seq", "4k")
    for ep, is_said in ((16, True), (1, False)):
        output = " ".join(run(*words, "--rows", "1", "--pp", "1", "--tp", "1", "--ep", str(ep))[1].split())
        assert ("are NCCL's all-to-all; by DeepEP the first layout takes" in output) == is_said


def test_a_first_layout_without_room_for_nccl_says_so(run: Any) -> None:
    words = ("plan", SMALL, "--devices", "2", "--seq", "128", "--rows", "1")
    row = asked(run, *words, "--hardware", "h100", "--pp", "2")["feasible"][0]
    for more_bytes, is_said in ((2**20, True), (2**30, False)):
        hardware = f"{-(-(row['device_bytes'] + more_bytes) // 2**20)}MiB"
        output = " ".join(run(*words, "--hardware", hardware, "--by", "memory", "--pp", "2")[1].split())
        assert ("and NCCL's buffers, which are not counted, come on top" in output) == is_said


@pytest.mark.parametrize(
    ("words", "reason", "batch"),
    [
        ("--devices 16 --tp 2 --pp 8 --seq 1m", "the schedule does not take the micro-batches", 16),
        ("--devices 8 --dp 8 --seq 64 --global-batch 5", "--dp does not divide the global batch", 8),
    ],
)
def test_a_step_that_suits_no_layout_is_what_is_changed(run: Any, words: str, reason: str, batch: int) -> None:
    command = ("plan", "qwen3-0.6b", *words.split(), "--framework", "fsdp2", "--hardware", "h100")
    code, _, error = run(*command)
    assert code == 2
    assert f"{reason}; expected such as --global-batch {batch}" in error
    assert "nearest layouts" not in error


def test_the_nearest_layout_of_a_spent_search_is_counted_by_its_largest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    model, replayed = memory(load(SMALL).model, Settings("training", seq=128)), list[int]()
    rank_memory = Cluster.rank_memory

    def count_rank(cluster: Cluster, rank: int, runtime: Any) -> Any:
        replayed.append(rank)
        return rank_memory(cluster, rank, runtime)

    monkeypatch.setattr(Cluster, "rank_memory", count_rank)
    layout = Layout(pp=3, zero=0)
    run_of_layout = LayoutRun(layout, 3)

    def replays(units: int, other_stages: int = 10**12) -> LayoutReplays:
        peaks = other_stages, 10**12 + 1, other_stages
        return LayoutReplays(EstimatesWithPeaks(model, "megatron", peaks), WorkBudget(units))

    with replays(10**9) as unlimited:
        all_bytes = unlimited.replayed_bytes(run_of_layout, None)
    assert set(replayed) == {0, 1, 2}
    replayed.clear()
    with replays(1) as limited:
        assert 0 < limited.replayed_bytes(run_of_layout, None) <= all_bytes
    assert replayed == [1]
    replayed.clear()
    with replays(10**9, other_stages=1) as bounded:  # the other ranks need no more than twice their estimate
        bounded.replayed_bytes(run_of_layout, None)
    assert set(replayed) == {1}


def test_a_plan_in_whole_replicas_without_room_says_what_has_shards(run: Any) -> None:
    words = (SMALL, "--optimizer", "adamw-8bit", "--hardware", "h100", "--devices", "2", "--seq", "128k")
    for command in ("plan", "fit"):
        _, output, _ = run(command, *words, "--notes")
        assert "replicas are whole: FSDP2 is not tried. --optimizer adamw-8bit: on shards" in output
        assert output.count("adamw-8bit: on shards") == 1  # it stood there twice
        assert "adamw-8bit-torchao" in output


def test_an_optimizer_on_the_host_names_the_frameworks_that_have_one(run: Any) -> None:
    code, _, err = run("memory", SMALL, "--devices", "2", "--optimizer-offload", "--seq", "64")
    assert code == 2
    assert "expected --framework megatron --zero 1 with --devices (llmcalc memory counts that of --framework" in err


def test_a_layout_without_messages_or_replay_is_tried_with_more_recomputation() -> None:
    """Its row needs both; a layout that has neither with any recomputation is refused once."""

    def sent(run: LayoutRun) -> int:
        if run.recompute != "full" or run.layout.pp == 2:
            raise InputError(f"what --recompute {run.recompute or 'none'} sends; expected full")
        return 1

    plan_of_layouts = LayoutOrder(
        LayoutSearch([(Layout(pp=pp), 4) for pp in (1, 2)]),
        100,
        FixedEstimates(sent_bytes=sent, step_seconds=lambda run: 1.0),
        FixedReplays(),
        ("", "full"),
    ).plan(3, "if none fits")
    assert [(candidate.layout.pp, candidate.recompute) for candidate in plan_of_layouts.fitting_candidates] == [
        (1, "full")
    ]
    assert plan_of_layouts.refusal_counts == {"what --recompute full sends": 1}
    assert plan_of_layouts.replay_count == 1


@pytest.mark.parametrize(
    ("tensor_bytes", "fastest", "estimated"),
    [
        ({"": 50, "full": 20}, 1, [1]),  # the others are slower, and their bytes are not estimated
        ({"": 150, "full": 50}, 1, [1]),
        ({"": 150, "full": 150}, None, []),  # none fits with the most recomputation, so less of it is not tried
    ],
)
def test_the_fastest_layout_alone_is_found_by_its_seconds_first(
    tensor_bytes: dict[str, int], fastest: int | None, estimated: list[int]
) -> None:
    estimated_layouts: list[int] = []

    def bytes_of(run: LayoutRun) -> int:
        estimated_layouts.append(run.layout.pp)
        return tensor_bytes[run.recompute]

    plan = LayoutOrder(
        LayoutSearch([(Layout(pp=pp), 4) for pp in (4, 2, 1)]),
        100,
        FixedEstimates(
            bytes_of,
            step_seconds=lambda run: run.layout.pp + 0.5 * (run.recompute == "full"),
            has_too_large_rank=lambda run, is_too_large: is_too_large(tensor_bytes[run.recompute]),
        ),
        FixedReplays(),
        ("", "full"),
    ).plan_of_fastest()
    assert [candidate.layout.pp for candidate in plan.fitting_candidates] == ([] if fastest is None else [fastest])
    assert sorted(set(estimated_layouts)) == estimated
    assert plan.refusal_counts == ({TOO_MUCH_MEMORY: 3} if fastest is None else {})
    assert plan.tried_count == 3


def fastest_plan_of_layouts(
    replayed_bytes: dict[tuple[int, str], int],
    work_units: int = 10**6,
    units_per_estimate: int = 0,
    too_large_stages: tuple[int, ...] = (),
) -> tuple[RankedLayouts, list[tuple[int, str]]]:
    """Returns a plan of the fastest layout and the replays that it made, of layouts of 1, 2 and 4 stages.

    Their seconds are 1.0, 1.5 and 2.0 and with full recomputation 1.8 times as many. Tensors of the stages that are not
    too large have 50 bytes of 100. replayed_bytes: (stages, recomputation) → bytes; default 50. work_units: the budget.
    """
    replays: list[tuple[int, str]] = []

    def is_too_large(run: LayoutRun, exceeds_capacity: Callable[[int], bool]) -> bool:
        SIMULATED_WORK.units += units_per_estimate
        return exceeds_capacity(200 if run.layout.pp in too_large_stages else 50)

    def bytes_of_replay(run: LayoutRun, _limit: int | None) -> int:
        replays.append((run.layout.pp, run.recompute))
        return replayed_bytes.get(replays[-1], 50)

    layout_search = LayoutSearch([(Layout(pp=pp), 4) for pp in (4, 2, 1)])
    layout_search.count_refusal(InputError("a reason of the search; expected others"))
    plan = LayoutOrder(
        layout_search,
        100,
        FixedEstimates(
            lambda run: 200 if run.layout.pp in too_large_stages else 50,
            step_seconds=lambda run: {1: 1.0, 2: 1.5, 4: 2.0}[run.layout.pp] * (1.8 if run.recompute else 1),
            has_too_large_rank=is_too_large,
        ),
        FixedReplays(bytes_of_replay),
        ("", "full"),
        WorkBudget(work_units),
    ).plan_of_fastest()
    return plan, replays


def test_a_fastest_layout_whose_replay_does_not_fit_gives_way_to_the_next() -> None:
    """Not to the same with full recomputation, which is slower than the next layout without."""
    plan, replays = fastest_plan_of_layouts({(1, ""): 150})
    assert replays == [(1, ""), (2, "")]
    assert [(candidate.layout.pp, candidate.recompute) for candidate in plan.fitting_candidates] == [(2, "")]
    plan, replays = fastest_plan_of_layouts({(1, ""): 150, (2, ""): 150})
    assert [(candidate.layout.pp, candidate.recompute) for candidate in plan.fitting_candidates] == [(1, "full")]
    plan, _ = fastest_plan_of_layouts({(pp, recompute): 150 for pp in (1, 2, 4) for recompute in ("", "full")})
    assert (plan.fitting_candidates, plan.unreplayed_candidates, plan.ended_early) == ([], [], False)
    assert plan.refusal_counts == {TOO_MUCH_MEMORY: 3, "a reason of the search": 1}
    assert plan.tried_count == 4


def test_a_search_for_the_fastest_layout_keeps_what_it_has_when_its_budget_is_spent() -> None:
    plan, replays = fastest_plan_of_layouts({}, work_units=100, units_per_estimate=60)
    assert replays == [(1, "")]
    assert [candidate.layout.pp for candidate in plan.fitting_candidates] == [1]


def test_a_search_for_the_fastest_layout_that_found_none_in_its_budget_is_that_of_all_layouts() -> None:
    """With a budget of its own, and each refusal counted once."""
    plan, replays = fastest_plan_of_layouts({}, 100, units_per_estimate=60, too_large_stages=(1,))
    assert replays == [(2, "")]
    assert [candidate.layout.pp for candidate in plan.fitting_candidates] == [2]
    assert plan.refusal_counts == {UNTRIED_REASON: 1, "a reason of the search": 1}
    assert plan.tried_count == 4


def test_a_search_for_the_fastest_layout_asks_for_weights_before_it_measures_ranks() -> None:
    """The first layout shows that the kernels run; weights alone of the others are too large."""
    measured_layouts: list[int] = []

    def is_too_large(run: LayoutRun, exceeds_capacity: Callable[[int], bool]) -> bool:
        measured_layouts.append(run.layout.pp)
        return exceeds_capacity(200)

    plan = LayoutOrder(
        LayoutSearch([(Layout(pp=pp), 4) for pp in (1, 2, 4)]),
        100,
        FixedEstimates(
            lambda run: 200,
            step_seconds=lambda run: 1.0,
            least_bytes=lambda run: 150,
            has_too_large_rank=is_too_large,
        ),
        FixedReplays(lambda run, _limit: 200),
    ).plan_of_fastest()
    assert measured_layouts == [1]
    assert plan.refusal_counts == {TOO_MUCH_MEMORY: 3}


def test_a_search_for_the_fastest_layout_names_why_all_are_refused() -> None:
    def refused_bytes(run: LayoutRun) -> int:
        raise InputError("--recompute: no kernels; expected others")

    search = LayoutSearch([(Layout(pp=pp), 4) for pp in (1, 2)])
    estimates = FixedEstimates(refused_bytes, step_seconds=lambda run: 1.0)
    layout_order = LayoutOrder(search, 100, estimates, FixedReplays())
    with pytest.raises(InputError, match="no kernels"):
        layout_order.plan_of_fastest()
    assert search.refusal_counts == {"--recompute: no kernels": 2}


def test_what_holds_for_all_group_sizes_is_the_error_of_a_search() -> None:
    """Not a size that nobody typed, of which there are more."""

    def refused_bytes(run: LayoutRun) -> int:
        if run.layout.tp > 1:
            raise InputError(f"--tp {run.layout.tp}: experts are not divided; expected 1")
        raise InputError("norm: not modelled; expected others")

    layout_search = LayoutSearch([(Layout(tp=2), 4), (Layout(tp=2), 8), (Layout(), 4)])
    estimates = FixedEstimates(refused_bytes, step_seconds=lambda run: 1.0)
    layout_order = LayoutOrder(layout_search, 100, estimates, FixedReplays())
    with pytest.raises(InputError, match="norm: not modelled"):
        layout_order.plan(1)


class BegunCalls:
    """Calls in other processes, whose replays have a first rank of 50 bytes and a largest one of 70."""

    can_fork = True

    def begin(self, tasks: Any) -> None:
        list(tasks)

    def result(self, task: ReplayTask) -> ReplayedLayout:
        ends_early = task.byte_limit is not None and task.byte_limit < 50
        work = CountedWork(1)
        return ReplayedLayout(50, work, 50 if ends_early else 70, work)


@in_one_test
@pytest.mark.parametrize(
    ("begun_limit", "limit", "largest"), [(40, 60, 70), (80, 60, 70), (80, 45, 50), (None, 60, 70), (40, None, 70)]
)
def test_a_begun_replay_that_may_end_too_early_is_not_used(
    begun_limit: int | None, limit: int | None, largest: int
) -> None:
    model = memory(load(SMALL).model, Settings("training", seq=128))
    replays = LayoutReplays(EstimatesWithPeaks(model, "torch", (1, 2)), new_search_budget())
    replays._calls = BegunCalls()
    run = LayoutRun(Layout(pp=2), 2, CONFIGURED_RECOMPUTE)
    replays.start_replays([run], begun_limit)
    assert replays.replayed_bytes(run, byte_limit=limit) == largest


class BegunStages:
    """Calls in other processes, whose ranks have some bytes each. asked: the ranks whose replays were asked for."""

    can_fork = True

    def __init__(self, bytes_by_rank: dict[int, int]) -> None:
        self.bytes_by_rank = bytes_by_rank
        self.begun: list[StageTask] = []
        self.asked: list[int] = []
        self.forgotten: list[StageTask] = []

    def begin(self, tasks: Any) -> None:
        self.begun += [task for task, _ in tasks]

    def result(self, task: StageTask) -> dict[int, RankReplay]:
        self.asked += task.ranks
        return {rank: RankReplay(self.bytes_by_rank[rank], CountedWork(10**rank)) for rank in task.ranks}

    def forget(self, tasks: Any) -> None:
        self.forgotten += tasks


@pytest.mark.parametrize(
    ("peaks", "bytes_of_ranks", "begun", "asked", "largest", "units"),
    [
        ((100, 60, 90), (110, 60, 115), [(0,), (2,)], [0, 2], 115, 101),  # the second stage surely needs less
        ((90, 100, 90), (95, 185, 95), [(1,), (0,), (2,)], [1], 185, 10),  # and here the others, by its replay
        ((100, 90, 90), (210, 90, 90), [(0,), (1,), (2,)], [0], 210, 1),  # which exceeds the limit
    ],
)
def test_stages_of_a_layout_are_replayed_apart(
    peaks: tuple[int, ...],
    bytes_of_ranks: tuple[int, ...],
    begun: list[tuple[int, ...]],
    asked: list[int],
    largest: int,
    units: int,
) -> None:
    """Three processes have a stage each, and the work of ranks counts as if one process had replayed the layout."""
    model = memory(load(SMALL).model, Settings("training", seq=128))
    run = LayoutRun(Layout(pp=3, pp_layout=(2, 1, 3)), 3, CONFIGURED_RECOMPUTE)
    replays = LayoutReplays(EstimatesWithPeaks(model, "megatron", peaks), new_search_budget())
    replays._calls = calls = BegunStages(dict(enumerate(bytes_of_ranks)))
    replays.start_replays([run], 200)
    assert [task.ranks for task in calls.begun] == begun
    units_before = SIMULATED_WORK.units
    assert replays.replayed_bytes(run, byte_limit=200) == largest
    assert (calls.asked, SIMULATED_WORK.units - units_before) == (asked, units)
    assert {task.ranks for task in calls.forgotten} == set(begun)


def test_a_framework_that_a_plan_does_not_try_is_named_where_nothing_fits(run: Any) -> None:
    """GPT-3 in float16 was planned under FSDP2 alone, without a word on Megatron-Core."""
    target = "gpt2?hidden_size=4096&num_hidden_layers=48&num_attention_heads=32"
    model = (target, "--hardware", "v100", "--devices", "2")
    reason = "Megatron-Core is not tried: --precision fp16-master: not modelled with --framework megatron"
    plan = run("plan", *model, "--format", "json").document_with(1)
    assert reason in plan["notes"]
    assert reason in run("cost", *model, "--tokens", "1bn").error


def test_memory_of_a_layout_names_the_framework_of_plans(run: Any) -> None:
    """Without --framework, `memory` counts torch and `fit`, `plan` and `time` Megatron-Core."""
    words = ("memory", SMALL, "--phase", "training", "--seq", "64", "--devices", "2")
    remark = "fit, plan and time choose among layouts of Megatron-Core; --framework megatron"
    assert remark in " ".join(run(*words).out.split())
    assert remark not in run(*words, "--framework", "torch").out


def test_memory_of_adapters_names_the_framework_of_plans(run: Any) -> None:
    """Plans take whole replicas of torch for adapters beside weights that fit, and FSDP2 where they do not."""
    for model, hardware, framework in ((SMALL, "h100", ""), ("llama3-70b?num_hidden_layers=60", "h100", "FSDP2")):
        words = (model, "--lora-rank", "8", "--devices", "2", "--hardware", hardware, "--seq", "64")
        output = " ".join(run("memory", *words).out.split())
        assert ("fit, plan and time choose among layouts of" in output) is bool(framework)
        assert framework in output
