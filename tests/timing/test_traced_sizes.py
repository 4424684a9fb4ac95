"""The work of a pass that follows from a traced one is that of the pass itself, number for number."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from llmcalc.sources.target import load
from llmcalc.timing import work_recorder
from llmcalc.timing.kernels import RankPass
from llmcalc.timing.work_recorder import rank_work

PASSES = {
    "decode": RankPass(2, 1, 3000, "decode", fuses_gates=True),
    "prompt": RankPass(2, 3000, 0, "prefill", tp=2, ep=2, adds_experts_before_reduction=True, gathered_ranks=2),
    "training": RankPass(2, 3000, tp=2, sequence_parallel=True),
}


@pytest.mark.parametrize("model", ["gemma3-4b", "deepseek-v3", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("kind", list(PASSES))
def test_a_pass_of_other_sizes_has_the_work_that_it_records(model: str, kind: str) -> None:
    """Whole and mean batches; sizes for which the kernels differ, such as a window that is not full, are recorded."""
    spec = load(model).model
    for batch, tokens in ((2, 3000), (3, 4000), (7.5, 4001), (1, 500)):
        sizes = {"batch": batch, "context" if kind == "decode" else "seq": tokens}
        rank_pass = replace(PASSES[kind], **sizes)  # type: ignore[arg-type]
        assert repr(rank_work(spec, rank_pass)) == repr(work_recorder._record_work(spec, rank_pass))


def test_a_third_pass_is_not_recorded() -> None:
    """Only the sizes of the first two are walked through the program."""
    spec = load("llama3.2-1b").model
    with mock.patch.object(work_recorder, "_record_work", wraps=work_recorder._record_work) as record:
        for batch in (2, 3.5, 5, 8, 9.25):
            rank_work(spec, replace(PASSES["decode"], batch=batch))
    assert record.call_count == 2
