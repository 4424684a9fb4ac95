"""Programs of ranks that are recorded once: those of layouts that divide a model's sizes alike, and of no others."""

from __future__ import annotations

import pytest

from llmcalc import load
from llmcalc.errors import InputError
from llmcalc.parallel.layout import Layout, stages
from llmcalc.parallel.rank_model import rank_model
from llmcalc.parallel.rank_program import rank_program, shared_rank_program
from llmcalc.parallel.weight_shards import weight_shards

MODEL = "olmoe-1b-7b?num_hidden_layers=4"


def test_replicas_share_a_program() -> None:
    spec = load(MODEL).model
    layout = Layout(tp=2, dp=4, ep=4, etp=1)
    program = shared_rank_program(spec, layout)
    assert shared_rank_program(spec, Layout(tp=2, dp=8, ep=4, etp=1, zero=1)) is program
    assert weight_shards(program) == weight_shards(rank_program(spec, layout))


@pytest.mark.parametrize(
    "other", [Layout(tp=4, dp=4, ep=4, etp=1), Layout(tp=2, dp=4, ep=2, etp=1), Layout(tp=2, dp=4, ep=4, etp=2)]
)
def test_other_sizes_are_other_programs(other: Layout) -> None:
    spec = load(MODEL).model
    assert shared_rank_program(spec, other) is not shared_rank_program(spec, Layout(tp=2, dp=4, ep=4, etp=1))
    assert weight_shards(shared_rank_program(spec, other)) == weight_shards(rank_program(spec, other))


def test_stages_and_parts_of_the_vocabulary_are_programs_of_their_own() -> None:
    spec, layout = load("qwen3-0.6b?num_hidden_layers=4&vocab_size=1001").model, Layout(tp=2, pp=2)
    for rank in range(layout.world):
        stage = list(stages(layout, 4))[layout.coordinates(rank).pp]
        shared, alone = (program(spec, layout, rank, stage) for program in (shared_rank_program, rank_program))
        assert weight_shards(shared) == weight_shards(alone)


def test_a_changed_copy_of_a_rank_has_its_own_program() -> None:
    rank = rank_model(load("qwen3-0.6b?num_hidden_layers=4").model, Layout(tp=2), 0)
    wider = rank.model_copy(update={"vocab_size": 2 * rank.vocab_size})
    assert weight_shards(wider.program()) != weight_shards(rank.program())  # type: ignore[arg-type]


def test_errors_are_those_of_a_new_recording() -> None:
    spec = load("t5-small").model
    layout = Layout(pp=2)
    with pytest.raises(InputError, match="--pp 2: a pipeline of an encoder-decoder is not modelled"):
        shared_rank_program(spec, layout, 0, next(stages(layout, 12)))
