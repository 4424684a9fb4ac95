"""Layouts: what they ask for, who stands where, and the stages of a pipeline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmcalc.errors import InputError
from llmcalc.parallel.layout import Layout, Stage, stages
from llmcalc.parallel.layout_request import LayoutRequest, parse_stage_layers
from tests.samples import in_one_test


def test_every_rank_stands_somewhere_else() -> None:
    layout = Layout(tp=2, cp=2, pp=3, dp=4, ep=4, etp=1)
    places = {layout.coordinates(rank) for rank in range(layout.world_size)}
    assert len(places) == layout.world_size == 48
    assert {(at.tp, at.cp, at.dp, at.pp) for at in places} == {
        (tp, cp, dp, pp) for tp in range(2) for cp in range(2) for dp in range(4) for pp in range(3)
    }
    for rank in range(layout.world_size):
        at = layout.coordinates(rank)
        assert layout.rank(at.tp, at.cp, at.dp, at.pp) == rank


def test_neighbours_are_of_one_tensor_group() -> None:
    """Order tp-cp-ep-dp-pp (Megatron-LM, parallel_state.py): ranks 0 and 1 share heads, 0 and 2 a sequence."""
    layout = Layout(tp=2, cp=2, dp=2, pp=2)
    assert [layout.coordinates(rank)[:4] for rank in (0, 1, 2, 4, 8)] == [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
        (0, 1, 0, 0),
        (0, 0, 1, 0),
        (0, 0, 0, 1),
    ]


def test_experts_have_groups_of_their_own() -> None:
    layout = Layout(tp=4, dp=4, ep=8, etp=1)
    assert (layout.expert_dp, layout.expert_shard_count, layout.shard_count) == (2, 2, 4)
    assert [layout.coordinates(rank).ep for rank in range(16)] == [*range(8), *range(8)]
    assert [layout.coordinates(rank).edp for rank in range(16)] == [0] * 8 + [1] * 8


def test_stages_are_even_or_as_asked() -> None:
    found = list(stages(Layout(pp=2, vpp=2, schedule="interleaved"), 8))
    assert found[0] == Stage(0, 0, range(2), True, False)
    assert found[2] == Stage(0, 1, range(4, 6), False, False)
    assert found[3] == Stage(1, 1, range(6, 8), False, True)
    assert [len(one.layers) for one in stages(Layout(pp=3, pp_layout=(5, 6, 4)), 15)] == [5, 6, 4]


@in_one_test
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tp": 0}, "--tp: 0; expected a positive whole number"),
        ({"ep": 3, "dp": 4}, "--ep 3 with --etp 1: 3 does not divide tp · cp · dp = 4; expected a divisor"),
        ({"dp": 4, "hsdp_replicas": 3}, "--hsdp-replicas: 3 does not divide --dp 4"),
        ({"vpp": 2}, "--vpp: 2 chunks a rank need a pipeline"),
        ({"pp": 3, "schedule": "dualpipe"}, "expected an even --pp, not 3"),
        ({"pp": 2, "pp_layout": (3,)}, "--pp-layout: 1 stages; expected pp · vpp = 2"),
        ({"zero": 4}, "--zero: 4; expected 1, 2 or 3"),
    ],
)
def test_an_impossible_layout_names_the_option_and_the_fix(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError) as error:
        Layout(**sizes)  # type: ignore[arg-type]
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("layout", "layers", "message"),
    [
        (Layout(pp=4), 30, "--pp 4: 4 stages do not divide 30 layers"),
        (Layout(pp=2, pp_layout=(10, 10)), 30, "--pp-layout: 20 layers in all; expected the model's 30"),
    ],
)
def test_stages_that_do_not_share_out_the_layers(layout: Layout, layers: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(stages(layout, layers))


def test_what_is_left_of_the_devices_are_replicas() -> None:
    assert LayoutRequest(devices=64, tp=8, pp=2).layout() == Layout(tp=8, pp=2, dp=4)
    assert LayoutRequest(fsdp=8, hsdp_replicas=2).layout() == Layout(dp=16, zero=3, hsdp_replicas=2)
    assert LayoutRequest(pp=4, vpp=2).layout().schedule == "interleaved"


@in_one_test
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            LayoutRequest(devices=10, tp=4),
            "--devices 10: is not the product tp · cp · pp · dp; expected a multiple of 4",
        ),
        (LayoutRequest(devices=16, tp=4, dp=2), "expected 8"),
        (LayoutRequest(fsdp=8, zero=1), "--zero 1: --fsdp divides the weights too"),
        (LayoutRequest(dp=8, prefetch=1), "--prefetch: layers are gathered where weights are divided"),
        (LayoutRequest(dp=8, zero=1, reshard=False), "--no-reshard: layers are gathered where weights are divided"),
        (LayoutRequest(fsdp=8, dp=4), "--dp 4: --fsdp and --hsdp-replicas make 8"),
    ],
)
def test_options_that_contradict_each_other(asked: LayoutRequest, message: str) -> None:
    with pytest.raises(InputError) as error:
        asked.layout()
    assert message in str(error.value)


def test_the_options_of_a_layout_ask_for_it() -> None:
    layout = Layout(tp=2, sequence_parallel=True, pp=2, pp_layout=(3, 5), reshard=False)
    assert layout.options() == "--tp 2 --pp 2 --sequence-parallel --pp-layout 3,5"  # there is nothing to gather
    assert replace(layout, dp=2, zero=3).options() == (
        "--tp 2 --pp 2 --dp 2 --sequence-parallel --zero 3 --no-reshard --pp-layout 3,5"
    )


def test_repeated_stage_sizes_are_written_once() -> None:
    layout = Layout(pp=4, vpp=2, schedule="interleaved", pp_layout=(2, 2, 2, 3, 3, 3, 3, 1))
    assert layout.options() == "--pp 4 --vpp 2 --pp-layout 2x3,3x4,1"
    assert parse_stage_layers("--pp-layout", ("2x3", "3x4", "1")) == layout.pp_layout
    for text in ("2x", "x2", "2x3x4", "-1", "2 3", "9" * 100):
        with pytest.raises(InputError, match="expected layers of each stage"):
            parse_stage_layers("--pp-layout", (text,))
    with pytest.raises(InputError, match="expected at most 1,048,576 stages"):
        parse_stage_layers("--pp-layout", ("1x999999999",))
