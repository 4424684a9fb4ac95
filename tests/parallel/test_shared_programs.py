"""Programs of ranks that are recorded once: those of layouts that divide a model's sizes alike, and of no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmcalc import load
from llmcalc.errors import InputError
from llmcalc.parallel.layout import Layout, stages
from llmcalc.parallel.rank_model import rank_model
from llmcalc.parallel.rank_program import RankFlow, cached_rank_program, rank_program, representative_stage
from llmcalc.parallel.weight_shards import weight_shards

MODEL = "olmoe-1b-7b?num_hidden_layers=4"


def test_replicas_share_a_program() -> None:
    spec = load(MODEL).model
    layout = Layout(tp=2, dp=4, ep=4, etp=1)
    program = cached_rank_program(spec, layout)
    assert cached_rank_program(spec, Layout(tp=2, dp=8, ep=4, etp=1, zero=1)) is program
    assert weight_shards(program) == weight_shards(rank_program(spec, layout))


@pytest.mark.parametrize(
    "other", [Layout(tp=4, dp=4, ep=4, etp=1), Layout(tp=2, dp=4, ep=2, etp=1), Layout(tp=2, dp=4, ep=4, etp=2)]
)
def test_other_sizes_are_other_programs(other: Layout) -> None:
    spec = load(MODEL).model
    assert cached_rank_program(spec, other) is not cached_rank_program(spec, Layout(tp=2, dp=4, ep=4, etp=1))
    assert weight_shards(cached_rank_program(spec, other)) == weight_shards(rank_program(spec, other))


def test_stages_and_parts_of_the_vocabulary_are_programs_of_their_own() -> None:
    spec, layout = load("qwen3-0.6b?num_hidden_layers=4&vocab_size=1001").model, Layout(tp=2, pp=2)
    for rank in range(layout.world_size):
        stage = list(stages(layout, 4))[layout.coordinates(rank).pp]
        shared, alone = (program(spec, layout, rank, stage) for program in (cached_rank_program, rank_program))
        assert weight_shards(shared) == weight_shards(alone)


def test_stages_with_the_same_kinds_of_layers_share_a_program() -> None:
    spec = load("deepseek-v2-lite?num_hidden_layers=9").model  # the first layer has no experts
    for layout in (Layout(pp=3), Layout(tp=2, pp=3, dp=4, ep=4, etp=1)):
        first, middle, last = stages(layout, 9)
        *_, other, _ = stages(Layout(pp=4, pp_layout=(1, 2, 3, 3)), 9)
        assert representative_stage(spec, other) is representative_stage(spec, middle)
        assert len({representative_stage(spec, stage) for stage in (first, middle, last)}) == 3
        shared = cached_rank_program(spec, layout, 0, representative_stage(spec, other))
        assert shared is cached_rank_program(spec, layout, 0, representative_stage(spec, middle))
        assert sizes(shared) == sizes(rank_program(spec, layout, 0, other))


def sizes(program: RankFlow) -> list[int]:
    return [shard.element_count for shard in weight_shards(program)]


def test_the_number_of_stages_is_in_errors_alone() -> None:
    spec = load(MODEL).model
    whole, stage = Layout(tp=2, dp=2, ep=2, etp=1), next(stages(Layout(pp=2), 4))
    programs = [cached_rank_program(spec, replace(whole, pp=pp), 0, stage) for pp in (2, 4)]
    assert programs[0] is programs[1]
    assert weight_shards(programs[0]) == weight_shards(rank_program(spec, replace(whole, pp=2), 0, stage))


def test_a_changed_copy_of_a_rank_has_its_own_program() -> None:
    rank = rank_model(load("qwen3-0.6b?num_hidden_layers=4").model, Layout(tp=2), 0)
    wider = rank.model_copy(update={"vocab_size": 2 * rank.vocab_size})
    assert weight_shards(wider.program()) != weight_shards(rank.program())  # type: ignore[arg-type]


def test_errors_are_those_of_a_new_recording() -> None:
    spec = load("t5-small").model
    layout = Layout(pp=2)
    with pytest.raises(InputError, match="--pp 2: a pipeline of an encoder-decoder is not modelled"):
        cached_rank_program(spec, layout, 0, next(stages(layout, 12)))
