"""What the layouts of a plan share stands in its heading, and not in each of its rows."""

from __future__ import annotations

import shlex
from typing import Any

from llmcalc.parallel.layout import Layout
from llmcalc.reports.rank_texts import candidate_cell, shared_layout_words
from llmcalc.studies.layout_candidates import Candidate


def candidates(*layouts: Layout, recompute: str = "") -> list[Candidate]:
    return [Candidate(layout, 1, 50, 100, lambda: 1, 1.0, recompute=recompute) for layout in layouts]


def test_words_of_all_rows_stand_in_the_heading() -> None:
    tensor, replicas = Layout(tp=2, sequence_parallel=True, dp=4, zero=1), Layout(dp=8, zero=1)
    words = shared_layout_words(candidates(tensor, replicas, recompute="full"))
    assert words == ["sp", "ZeRO-1", "recompute full"]
    assert [candidate_cell(layout, "full", words) for layout in (tensor, replicas)] == ["tp2 dp4", "dp8"]


def test_words_that_differ_stay_in_the_rows() -> None:
    whole, shards = Layout(tp=2, dp=4), Layout(tp=2, sequence_parallel=True, dp=4, zero=3)
    assert shared_layout_words(candidates(whole, shards)) == []
    assert shared_layout_words(candidates(shards)) == []
    assert candidate_cell(shards, "full", []) == "tp2 sp dp4 ZeRO-3 recompute full"


def test_ranks_of_tensor_parallelism_that_divide_no_expert_are_named() -> None:
    """Without `--etp 1` they divide each expert: DeepSeek-V3's first layout took 29 s as it was shown, and 21 s."""
    whole, divided = Layout(tp=2, dp=8, ep=4, etp=1), Layout(tp=2, dp=8, ep=4)
    assert candidate_cell(whole, "none", []) == "tp2 dp8 ep4 etp1"
    assert candidate_cell(divided, "none", []) == "tp2 dp8 ep4"
    words = shared_layout_words(candidates(whole, Layout(dp=16, ep=4, etp=1)))
    assert words == ["etp 1"]
    assert candidate_cell(whole, "none", words) == "tp2 dp8 ep4"
    assert shared_layout_words(candidates(whole, divided)) == []
    assert shared_layout_words(candidates(Layout(dp=16, ep=4, etp=1), Layout(dp=8, pp=2, ep=4, etp=1))) == []


def test_a_layout_that_fits_with_expandable_segments_alone_is_said_to(run: Any) -> None:
    """`memory` calls the same run tight; with the option that the note names, the plan has it."""
    words = shlex.split("llama3-8b --devices 4 --hardware l40s --seq 4k --framework fsdp2 --fsdp 4")
    plan = run("plan", *words)
    assert plan.code == 1
    assert plan.out.startswith("Llama 3 8B: no layout fits under FSDP2, but one does with --allocator expandable\n")
    assert "it requires 41." in " ".join(plan.out.split())
    expandable = run("plan", *words, "--allocator", "expandable")
    assert expandable.code == 0
    assert expandable.out.startswith("Llama 3 8B: 1 of 1 layout fits under FSDP2; ")
    document = run("plan", *words, "--format", "json").document_with(1)
    assert 40 * 2**30 < document["nearest_expandable_bytes"] < document["nearest"]["device_bytes"]
    assert run("memory", *words, "--phase", "training", "--recompute", "full").err.startswith("warning: l40s: tight")
    assert run("plan", *words[:2], "2", *words[3:-1], "2").out.startswith("Llama 3 8B: no layout fits under FSDP2\n")


def test_fit_has_the_verdict_of_memory_on_a_layout(run: Any) -> None:
    """A layout whose tensors fit without the allocator's free blocks is tight in both, with changes that help."""
    words = shlex.split("llama3-8b --devices 4 --hardware l40s --fsdp 4 --phase training")
    fit, memory = (run(command, *words, "--format", "json").document_with(0) for command in ("fit", "memory"))
    (accelerator,) = memory["fits"]
    assert fit["verdict"] == accelerator["verdict"] == "tight"
    assert fit["device_bytes"] == memory["memory"]["device_bytes"]
    assert fit["largest"]["batch"] == fit["largest"]["seq"] == 0
    assert [change["verdict"] for change in fit["changes"]] == ["fits", "fits"]
    screen = run("fit", *words).out
    assert screen.startswith("Llama 3 8B: it is tight on 4 × L40S under FSDP2\n")
    assert "  tight: fits only without the estimated fragmentation\n" in screen


def test_an_order_is_explained_where_there_is_one(run: Any) -> None:
    """One row, or none, has no tie and no order; rows that do not tie have no sign `=`."""
    words = shlex.split("plan qwen3-0.6b?num_hidden_layers=6 --devices 2 --hardware h100 --seq 128 --notes")
    more_words = ((), ("--rows", "1"), ("--seq", "512k", "--hardware", "2GiB"))
    many, single, none = (" ".join(run(*words, *more).out.split()) for more in more_words)
    assert "measure the first three" in many
    assert "measure the first" not in single + none
    assert "=: within" not in single + none
