"""The layouts that are tried: all that there are, each layout_search or refused for one reason."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.registry import framework as framework_named
from llmcalc.frameworks.registry import layout_of
from llmcalc.parallel.divisors import divisors
from llmcalc.parallel.layout import Layout, stages
from llmcalc.parallel.layout_request import LayoutRequest
from llmcalc.parallel.layout_search import (
    NO_REPLICAS,
    TOO_MANY_STAGES,
    UNDIVIDED_BATCH,
    UNDIVIDED_HEADS,
    UNDIVIDED_SEQUENCE,
    UNEVEN_ROUNDS,
    LayoutSearch,
    check_plannable_layout,
    divisible_batch,
    even_stage_sizes,
    search_layouts,
)
from llmcalc.parallel.nearest_layouts import nearest_layouts, suggest_nearest_layouts
from llmcalc.parallel.rank_model import rank_model
from tests.samples import in_one_test


@in_one_test
@pytest.mark.parametrize(("layers", "count"), [(126, 16), (61, 8), (7, 7), (5, 2), (80, 6)])
def test_layers_are_shared_out_with_the_fewest_at_the_ends(layers: int, count: int) -> None:
    sizes = even_stage_sizes(layers, count)
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)


@pytest.mark.parametrize("framework", ["megatron", "fsdp2", "torch", "deepspeed"])
def test_what_is_found_can_be(framework: str) -> None:
    spec = llmcalc.load("mixtral-8x7b").model
    layout_search = search_layouts(spec, 16, 64, 1, 4096, framework_named(framework).layout_rules)
    assert layout_search.possible_layouts
    assert layout_search.tried_count == len(layout_search.possible_layouts) + sum(layout_search.refusal_counts.values())
    for layout, batches in layout_search.possible_layouts:
        assert layout.world_size == 16
        assert layout.dp * batches == 64
        assert sum(len(stage.layers) for stage in stages(layout, 32)) == 32
    assert len({layout for layout, _ in layout_search.possible_layouts}) == len(layout_search.possible_layouts)


def test_refusals_say_why() -> None:
    spec = llmcalc.load("gpt2-xl").model  # 25 heads
    layout_search = search_layouts(spec, 16, 8, 1, 1024, framework_named("megatron").layout_rules)
    assert layout_search.refusal_counts[UNDIVIDED_HEADS]
    assert layout_search.refusal_counts[UNDIVIDED_BATCH]  # 16 replicas for 8 sequences
    assert all(layout.tp == 1 for layout, _ in layout_search.possible_layouts)


def test_sizes_that_are_asked_hold() -> None:
    spec = llmcalc.load("llama3-70b").model
    layout_search = search_layouts(
        spec, 64, 64, 1, 4096, framework_named("megatron").layout_rules, layout_request=LayoutRequest(tp=8, vpp=1)
    )
    assert {(layout.tp, layout.vpp) for layout, _ in layout_search.possible_layouts} == {(8, 1)}
    assert len({layout.pp for layout, _ in layout_search.possible_layouts}) > 1


def test_fsdp2_divides_products_and_tokens() -> None:
    layout_search = search_layouts(
        llmcalc.load("llama3-8b").model, 16, 64, 1, 4096, framework_named("fsdp2").layout_rules
    )
    assert {layout.tp: layout.zero for layout, _ in layout_search.possible_layouts} == {1: 3, 2: 3, 4: 3, 8: 3}
    assert all(layout.sequence_parallel == (layout.tp > 1) for layout, _ in layout_search.possible_layouts)


def test_fsdp2_divides_long_sequences() -> None:
    layout_search = search_layouts(
        llmcalc.load("llama3-8b").model, 16, 64, 1, 32768, framework_named("fsdp2").layout_rules
    )
    assert {layout.cp for layout, _ in layout_search.possible_layouts} == {1, 2, 4, 8, 16}


def test_sizes_that_are_given_are_tried() -> None:
    """Also where they would not be tried by themselves, such as parts of a short sequence; or they are refused."""
    spec = llmcalc.load("llama3-8b").model
    fsdp2, megatron = framework_named("fsdp2").layout_rules, framework_named("megatron").layout_rules
    assert {layout.cp for layout, _ in search_layouts(spec, 16, 64, 1, 4096, fsdp2).possible_layouts} == {1}
    assert {layout.cp for layout, _ in search_layouts(spec, 16, 64, 1, 8192, fsdp2).possible_layouts} == {1, 2, 4, 8}
    assert {
        layout.cp for layout, _ in search_layouts(spec, 16, 64, 1, 8192, fsdp2, LayoutRequest(cp=2)).possible_layouts
    } == {2}
    assert {
        layout.tp
        for layout, _ in search_layouts(
            spec, 16, 64, 1, 8192, megatron, LayoutRequest(tp=16), devices_per_node=8
        ).possible_layouts
    } == {16}
    odd = search_layouts(spec, 16, 64, 1, 8190, fsdp2, LayoutRequest(cp=2))
    assert (odd.possible_layouts, set(odd.refusal_counts)) == ([], {UNDIVIDED_SEQUENCE})
    deep = search_layouts(spec, 64, 64, 1, 8192, megatron, LayoutRequest(pp=64))
    assert (deep.possible_layouts, set(deep.refusal_counts)) == ([], {TOO_MANY_STAGES})


@in_one_test
@pytest.mark.parametrize("number", [1, 2, 97, 1024, 10**9, 10**9 + 7, 2**40, 360360, 999983**2])
@pytest.mark.parametrize("most", [None, 1, 8, 1000])
def test_divisors(number: int, most: int | None) -> None:
    layout_search = divisors(number, most)
    assert layout_search == sorted(set(layout_search))
    assert all(number % n == 0 and (most is None or n <= most) for n in layout_search)
    few = min(number, most or 4000)
    assert [n for n in layout_search if n <= few] == [n for n in range(1, few + 1) if number % n == 0]
    if most is None:
        assert {number // n for n in layout_search} == set(layout_search)


def test_a_pipeline_of_torch_takes_as_many_micro_batches_as_it_has_stages() -> None:
    layout_search = search_layouts(
        llmcalc.load("llama3-8b").model,
        8,
        4,
        1,
        4096,
        framework_named("torch").layout_rules,
        LayoutRequest(schedule="1f1b"),
    )
    assert layout_search.possible_layouts
    assert all(batches >= layout.pp for layout, batches in layout_search.possible_layouts)
    assert layout_search.refusal_counts[UNEVEN_ROUNDS]


@pytest.mark.parametrize(
    ("asked", "holds"),
    [
        (LayoutRequest(sequence_parallel=False), lambda layout: not layout.sequence_parallel),
        (LayoutRequest(zero=0), lambda layout: layout.zero == 0),
        (LayoutRequest(schedule="interleaved"), lambda layout: layout.vpp > 1),
        (LayoutRequest(schedule="1f1b"), lambda layout: layout.vpp == 1),
        (
            LayoutRequest(fsdp=4, hsdp_replicas=2),
            lambda layout: (layout.dp, layout.hsdp_replicas, layout.zero) == (8, 2, 3),
        ),
        (LayoutRequest(cp_comm="a2a"), lambda layout: layout.cp_comm == "a2a"),
    ],
)
def test_whatever_is_asked_holds(asked: LayoutRequest, holds: Callable[[Layout], bool]) -> None:
    framework = "megatron" if asked.fsdp is None else "fsdp2"
    layout_search = search_layouts(
        llmcalc.load("llama3-70b").model,
        64,
        64,
        1,
        32768,
        framework_named(framework).layout_rules,
        layout_request=asked,
    )
    assert layout_search.possible_layouts
    assert all(holds(layout) for layout, _ in layout_search.possible_layouts)


def test_layers_of_stages_are_those_that_are_asked_for() -> None:
    """As a change of `fit` names them; the stages are pp · vpp, and their layers add up to the model's."""

    def searched(*sizes: int) -> LayoutSearch:
        rules, request = framework_named("megatron").layout_rules, LayoutRequest(pp_layout=sizes)
        return search_layouts(llmcalc.load("llama3-70b").model, 64, 64, 1, 4096, rules, request)

    possible = searched(39, 41).possible_layouts
    assert {(layout.pp * layout.vpp, layout.pp_layout) for layout, _ in possible} == {(2, (39, 41))}
    refused = searched(40, 41)
    assert not refused.possible_layouts
    assert set(refused.refusal_counts) == {"--pp-layout: 81 layers in all"}


def test_groups_that_are_not_tried_are_refused() -> None:
    with pytest.raises(InputError, match="--ep 2: the memory of such ranks is not modelled for --framework fsdp2"):
        search_layouts(
            llmcalc.load("mixtral-8x7b").model,
            64,
            64,
            1,
            4096,
            framework_named("fsdp2").layout_rules,
            LayoutRequest(ep=2),
        )


@in_one_test
@pytest.mark.parametrize(
    ("framework", "asked", "error"),
    [
        ("megatron", LayoutRequest(schedule="zb-h1"), "--schedule zb-h1: no replay runs it with --framework megatron"),
        (
            "torch",
            LayoutRequest(schedule="dualpipe", pp=2),
            "no replay runs it with --framework torch; expected 1f1b or",
        ),
        (
            "deepspeed",
            LayoutRequest(schedule="interleaved"),
            "--schedule interleaved: is not tried for --framework deepspeed",
        ),
        (
            "megatron",
            LayoutRequest(vpp=2, pp=1),
            "--vpp 2: chunks of a rank need a pipeline; expected --pp of at least 2",
        ),
        (
            "fsdp2",
            LayoutRequest(schedule="interleaved", pp=1),
            "--schedule interleaved: chunks of a rank need a pipeline",
        ),
        ("megatron", LayoutRequest(schedule="interleaved", vpp=1), "expected --vpp of at least 2"),
        ("megatron", LayoutRequest(schedule="1f1b", vpp=2), "--schedule 1f1b: has another number .*; expected --vpp 1"),
    ],
)
def test_chunks_that_contradict_the_rest_are_refused(framework: Any, asked: LayoutRequest, error: str) -> None:
    """Nothing would be tried, and the nearest layout would not tell why."""
    with pytest.raises(InputError, match=error):
        search_layouts(llmcalc.load("llama3-8b").model, 16, 64, 1, 4096, framework_named(framework).layout_rules, asked)


def test_pipelines_of_fsdp2_are_tried_where_they_are_asked_for() -> None:
    """They keep whole weights from one micro-batch to the next, as torchtitan has it, unless they are asked not to."""
    spec = llmcalc.load("llama3-8b").model
    assert all(
        layout.pp == 1
        for layout, _ in search_layouts(spec, 16, 64, 1, 4096, framework_named("fsdp2").layout_rules).possible_layouts
    )
    layout_search = search_layouts(spec, 16, 64, 1, 4096, framework_named("fsdp2").layout_rules, LayoutRequest(pp=4))
    assert {(layout.pp, layout.vpp) for layout, _ in layout_search.possible_layouts} == {(4, 1), (4, 2), (4, 4)}
    assert not any(layout.reshard for layout, _ in layout_search.possible_layouts if layout.zero == 3)
    resharded_search = search_layouts(
        spec, 16, 64, 1, 4096, framework_named("fsdp2").layout_rules, LayoutRequest(pp=4, reshard=True)
    )
    assert all(layout.reshard for layout, _ in resharded_search.possible_layouts)
    for asked in (LayoutRequest(vpp=2), LayoutRequest(schedule="interleaved")):  # what only a pipeline has asks for one
        assert all(
            layout.pp > 1 < layout.vpp
            for layout, _ in search_layouts(
                spec, 16, 64, 1, 4096, framework_named("fsdp2").layout_rules, asked
            ).possible_layouts
        )
        assert search_layouts(spec, 16, 64, 1, 4096, framework_named("fsdp2").layout_rules, asked).possible_layouts
    few = search_layouts(
        spec, 16, 8, 1, 4096, framework_named("fsdp2").layout_rules, LayoutRequest(pp=8, tp=1, vpp=1)
    )  # four micro-batches for eight stages
    assert not few.possible_layouts
    assert few.refusal_counts[UNEVEN_ROUNDS] == 1


def test_options_that_exclude_each_other_are_a_reason() -> None:
    layout_search = search_layouts(
        llmcalc.load("llama3-70b").model,
        64,
        64,
        1,
        4096,
        framework_named("megatron").layout_rules,
        layout_request=LayoutRequest(prefetch=2),
    )
    assert set(layout_search.refusal_counts) == {
        TOO_MANY_STAGES,
        "--prefetch: layers are gathered where weights are divided",
    }
    assert not layout_search.possible_layouts


def test_the_nearest_layouts_divide_the_tokens() -> None:
    """Nine heads are divided by 3, and 2,048 tokens are not."""
    spec, asked = llmcalc.load("smollm-135m").model, LayoutRequest(tp=2, sequence_parallel=True)
    assert {layout.tp for layout in islice(nearest_layouts(spec, asked), 5)} >= {3}
    assert {layout.tp for layout in islice(nearest_layouts(spec, asked, 2048), 5)} == {1}


@pytest.mark.parametrize(
    ("name", "asked", "first"),
    [
        ("llama3-8b", LayoutRequest(devices=10, tp=4), "--devices 12 --tp 4 --dp 3"),  # no multiple
        ("llama3-8b", LayoutRequest(tp=3), "--tp 4"),  # no divisor of 32 heads
        ("llama3.1-405b", LayoutRequest(tp=8, pp=16, dp=2), "--tp 8 --pp 18 --dp 2"),  # no divisor of 126 layers
        ("llama3-8b", LayoutRequest(pp=40), "--pp 32"),  # more stages than layers
        ("mixtral-8x7b", LayoutRequest(ep=3, dp=3), "--dp 4 --ep 4"),  # no divisor of 8 experts
        ("mixtral-8x7b", LayoutRequest(ep=8), "--dp 8 --ep 8"),  # no ranks for them
        ("llama3-8b", LayoutRequest(pp=4, vpp=5), "--pp 4 --vpp 4"),  # no divisor of 8 layers a rank
        ("llama3-8b", LayoutRequest(vpp=2), "--pp 2 --vpp 2"),  # chunks without a pipeline
    ],
)
def test_an_impossible_layout_is_told_the_nearest(name: str, asked: LayoutRequest, first: str) -> None:
    spec = llmcalc.load(name).model
    with pytest.raises(InputError) as error, suggest_nearest_layouts(spec, asked):
        rank_model(spec, asked.layout(), 0).program()
    layout_search = str(error.value).partition("; nearest layouts: ")[2].split("; ")
    assert len(layout_search) == 3
    assert first in layout_search[:2]
    for layout in islice(nearest_layouts(spec, asked), 3):
        for stage in range(layout.pp):
            rank_model(spec, layout, layout.rank(pp=stage)).program()


def test_no_layout_that_the_framework_refuses_is_suggested() -> None:
    """Megatron's adapters of experts are not divided; the refused layout was the first of the suggestions."""
    adapters = {"lora_rank": 8, "lora_library": "megatron-bridge", "lora_targets": "all-linear"}
    sizes = {"tp": 4, "etp": 2, "ep": 4, "dp": 8}
    question = {"phase": "training", "framework": "megatron", "seq": 4096}
    with pytest.raises(InputError, match="expected --etp 1") as error:
        llmcalc.memory("mixtral-8x7b", **question, **sizes, **adapters)
    suggestions = str(error.value).partition("; nearest layouts: ")[2].split("; ")
    assert suggestions[0] == "--tp 4 --dp 8 --ep 4 --etp 1"
    assert not any("--etp 2" in layout for layout in suggestions)


def test_other_errors_are_left_as_they_are() -> None:
    spec = llmcalc.load("t5-small").model
    with (
        pytest.raises(InputError, match=r"not modelled; expected --pp 1$"),
        suggest_nearest_layouts(spec, LayoutRequest(pp=2)),
    ):
        rank_model(spec, Layout(pp=2), 1).program()


def test_zero_that_divides_nothing_is_refused() -> None:
    spec, rules = llmcalc.load("llama3-8b").model, framework_named("fsdp2").layout_rules
    layout_search = search_layouts(spec, 8, 8, 1, 2048, rules, LayoutRequest(zero=3))
    assert {layout.dp for layout, _ in layout_search.possible_layouts} == {2, 4, 8}
    assert layout_search.refusal_counts[NO_REPLICAS]
    assert search_layouts(spec, 1, 1, 1, 2048, rules, LayoutRequest(zero=3)).possible_layouts


def test_pipelines_are_tried_where_nothing_else_is_possible() -> None:
    """384 devices as tp · dp leave a factor of 3 to replicas, which 2,048 sequences do not have; 12 stages take it."""
    spec, fsdp2 = llmcalc.load("bloom-176b").model, framework_named("fsdp2").layout_rules
    possible_degrees = {
        (layout.tp, layout.pp, layout.dp)
        for layout, _ in search_layouts(spec, 384, 2048, 1, 2048, fsdp2).possible_layouts
    }
    assert (4, 12, 8) in possible_degrees
    assert {layout.pp for layout, _ in search_layouts(spec, 256, 2048, 1, 2048, fsdp2).possible_layouts} == {1}
    assert search_layouts(spec, 384, 2048, 1, 2048, framework_named("deepspeed").layout_rules).possible_layouts == []


def test_nearest_layouts_of_a_search_are_those_that_it_tries() -> None:
    deepspeed = framework_named("deepspeed").layout_rules
    check_plannable_layout(Layout(dp=384), deepspeed, 2304, 1)
    for layout, batch in ((Layout(dp=384), 2048), (Layout(tp=2, dp=128), 2048)):
        with pytest.raises(InputError):
            check_plannable_layout(layout, deepspeed, batch, 1)
    assert (divisible_batch(384, 2048, 1), divisible_batch(384, 100, 2)) == (2304, 768)


def test_deepspeed_has_three_stages_unless_an_option_is_of_a_stage() -> None:
    """A plan of ZeRO-3 alone left out the faster stages of small models."""
    spec, deepspeed = llmcalc.load("llama3-8b").model, framework_named("deepspeed").layout_rules

    def stages(request: LayoutRequest, devices: int = 8) -> list[int]:
        return [
            layout.zero for layout, _ in search_layouts(spec, devices, 8, 1, 2048, deepspeed, request).possible_layouts
        ]

    assert stages(LayoutRequest()) == [3, 1, 2]
    assert stages(LayoutRequest(), 1) == [0]
    assert [stages(LayoutRequest(zero=stage)) for stage in (1, 2, 3)] == [[1], [2], [3]]
    assert stages(LayoutRequest(fsdp=8)) == [3]
    assert stages(LayoutRequest(reshard=False)) == [3]


@pytest.mark.parametrize(
    ("request_options", "trained_model", "divides_tokens"),
    [
        ({"framework": "megatron", "tp": 4, "ep": 2}, None, True),
        ({"framework": "megatron", "tp": 4}, "qwen3-30b-a3b", True),
        ({"framework": "megatron", "tp": 4, "sequence_parallel": False}, "qwen3-30b-a3b", False),
        ({"framework": "megatron", "tp": 4}, "llama3-8b", False),
        ({"framework": "megatron"}, "qwen3-30b-a3b", False),
        ({"framework": "torch", "tp": 4}, "qwen3-30b-a3b", False),
    ],
)
def test_experts_beside_tensor_parallelism_divide_tokens_under_megatron(
    request_options: dict[str, Any], trained_model: str | None, divides_tokens: bool
) -> None:
    """megatron/core/transformer/moe/moe_layer.py raises `ValueError` in training without sequence parallelism."""
    trained_spec = None if trained_model is None else llmcalc.load(trained_model).model
    layout = layout_of(LayoutRequest(devices=8, **request_options), trained_spec)
    assert layout.sequence_parallel is divides_tokens
