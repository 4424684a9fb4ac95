"""Routers that select a token's experts from some groups of experts: what states the groups, and how far tokens go."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import combinations, pairwise, product
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

import llmcalc
from llmcalc.components.evidence import nested_components
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import MoE
from llmcalc.components.networks.router import LinearRouter
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.launch_types import Launch
from llmcalc.frameworks.megatron.model_from_flags import model_of_arguments
from llmcalc.frameworks.megatron.time_stack import time_stack_name as stack_of_launch
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.placements import Collective
from llmcalc.sources.hardware import load_hardware
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.presets import load_preset
from llmcalc.sources.to_hf import to_config
from llmcalc.timing.device import device_of
from llmcalc.timing.inference import rank_pass
from llmcalc.timing.kernels import LayerMessage, RankPass
from llmcalc.timing.software_stacks import find_stack
from llmcalc.timing.time_estimator import NumberFormats, TimeEstimator, _copies_per_domain
from llmcalc.timing.time_ranges import MEASURED_EXPERT_RANKS, untested_layout_text
from llmcalc.timing.timing_constants import SoftwareStack, software_stacks
from llmcalc.timing.work_recorder import ROW_COPIES, rank_work
from llmcalc.workload.rows import ExpertGroups
from tests.builders import spec_of
from tests.families.deepseek.dsa import SMALL
from tests.families.remote_code.experts import LING2
from tests.frameworks.megatron.test_megatron_arguments import EXPERTS, settings
from tests.samples import in_one_test
from tests.timing.measured_rows import read_sets

OF_DEEPSEEK = ExpertGroups(8, 4)
V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    **{name: size for name, size in SMALL.items() if "index" not in name},
}
V2 = {**V3, "model_type": "deepseek_v2"}


def groups_of(spec: ModelSpec) -> set[ExpertGroups]:
    return {part.router.expert_groups for part in nested_components(spec) if isinstance(part, MoE)}


@in_one_test
@pytest.mark.parametrize(("domains", "groups"), [(2, (4, 2)), (4, (4, 2)), (2, (6, 3)), (3, (6, 2)), (8, (4, 2))])
def test_domains_that_a_token_reaches(domains: int, groups: tuple[int, int]) -> None:
    """Every selection of groups and every place of two and of three experts in them, one by one."""
    cells = max(domains, groups[0])  # a cell is a part of one group and of one domain
    for top_k in (2, 3):
        reached = []
        for chosen in combinations(range(groups[0]), groups[1]):
            of_token = [cell for cell in range(cells) if cell * groups[0] // cells in chosen]
            for places in product(of_token, repeat=top_k):
                reached.append(len({cell * domains // cells for cell in places}))
        mean = sum(reached) / len(reached)
        assert _copies_per_domain(domains, top_k, ExpertGroups(*groups)) == pytest.approx(mean / top_k)


def test_deepseek_v3_sends_a_token_to_less_than_four_of_eight_domains() -> None:
    """Eight experts in four groups, each in its own domain: 4 · (1 − (3/4)^8) domains. Of all: 8 · (1 − (7/8)^8)."""
    assert 8 * _copies_per_domain(8, 8, OF_DEEPSEEK) == pytest.approx(3.5996, abs=1e-4)
    assert 8 * _copies_per_domain(8, 8) == pytest.approx(5.2511, abs=1e-4)


@in_one_test
@pytest.mark.parametrize("domains", [1, 1.5, 2, 3, 4, 8, 16, 32])
def test_fewer_groups_and_fewer_domains_are_never_more_copies(domains: float) -> None:
    copies = [_copies_per_domain(domains, 8, ExpertGroups(8, selected)) for selected in range(1, 9)]
    assert all(less <= more for less, more in pairwise(copies))
    assert copies[-1] == pytest.approx(_copies_per_domain(domains, 8), rel=0.02 if domains in (1.5, 3) else 1e-12)
    assert _copies_per_domain(domains, 8, OF_DEEPSEEK) <= _copies_per_domain(domains + 1, 8, OF_DEEPSEEK)


def exchange_seconds(ranks: int, groups: ExpertGroups, stack: str = "megatron", etp: int = 1) -> float:
    estimator = TimeEstimator(
        device_of(load_hardware("h100-sxm")), software_stacks()[stack], NumberFormats(), RankPass(1, 1, etp=etp)
    )
    message = Collective("mlp", "all_to_all", "ep", ranks, False, 2**30, 1)
    return float(estimator._message_seconds(LayerMessage(0, message, 8, groups)))


@pytest.mark.parametrize("ranks", [8, 64])
def test_groups_make_exchanges_shorter_between_domains_and_between_ranks_of_one(ranks: int) -> None:
    """Eight domains, or eight ranks of one domain, get one copy of a token each (deep_ep, get_dispatch_layout)."""
    ratio = exchange_seconds(ranks, OF_DEEPSEEK) / exchange_seconds(ranks, ExpertGroups())
    assert ratio == pytest.approx(3.5996 / 5.2511, rel=0.03)


@pytest.mark.parametrize("ranks", [8, 64])
def test_all_to_all_of_nccl_sends_every_copy(ranks: int) -> None:
    """Eight copies in place of one to each of 5.25 domains, or ranks of one domain."""
    of_copies = exchange_seconds(ranks, ExpertGroups(), "megatron-alltoall")
    assert of_copies / exchange_seconds(ranks, ExpertGroups()) == pytest.approx(8 / 5.2511, rel=0.03)
    assert exchange_seconds(ranks, ExpertGroups(), "fsdp2") == of_copies
    assert exchange_seconds(ranks, ExpertGroups(), "fsdp2-liger") < of_copies


@pytest.mark.parametrize("stack", ["megatron-alltoall", "megatron-allgather", "megatron"])
def test_expert_ranks_lie_apart_by_the_ranks_that_divide_an_expert(stack: str) -> None:
    """Eight ranks of experts that two ranks divide each are on two nodes of eight H100, and not on one."""
    on_one_node, on_two_nodes = (exchange_seconds(8, ExpertGroups(), stack, etp) for etp in (1, 2))
    assert on_two_nodes > 1.5 * on_one_node
    assert exchange_seconds(4, ExpertGroups(), stack, 2) == pytest.approx(exchange_seconds(4, ExpertGroups(), stack))


def test_gathered_tokens_reach_every_rank() -> None:
    """Megatron-LM's default dispatcher: as many bytes as eight copies on 8 ranks, and more on more (in a domain)."""

    def seconds(ranks: int, stack: str) -> float:
        return exchange_seconds(ranks, ExpertGroups(), stack)

    assert seconds(8, "megatron-allgather") == pytest.approx(seconds(8, "megatron-alltoall"), rel=1e-6)
    assert seconds(4, "megatron-allgather") == pytest.approx(seconds(4, "megatron-alltoall") / 2, rel=0.1)
    assert seconds(64, "megatron-allgather") > seconds(64, "megatron")


@in_one_test
@pytest.mark.parametrize(
    ("dispatcher", "options", "expected"),
    [
        ("alltoall", "overlap", "megatron-alltoall"),
        ("flex", "overlap", "megatron"),
        ("allgather", "overlap", "megatron-allgather"),
        ("alltoall", "", "megatron-no-overlap"),
        ("flex", "", "megatron-no-overlap+megatron-flex"),
        ("allgather", "", "megatron-no-overlap+megatron-allgather"),
        ("flex", "overlap graphs", "megatron-layer-graphs"),
        ("alltoall", "overlap graphs", "megatron-layer-graphs+megatron-alltoall"),
        ("allgather", "graphs", "megatron-no-overlap+megatron-layer-graphs+megatron-allgather"),
    ],
)
def test_a_launch_file_states_how_tokens_are_sent(dispatcher: str, options: str, expected: str) -> None:
    """Dispatcher, graphs and overlaps are settings apart (megatron/training/arguments.py)."""
    own_settings = settings(
        **EXPERTS | {"moe_token_dispatcher_type": dispatcher, "enable_cuda_graph": "graphs" in options}
    )
    ignored = ("--overlap-grad-reduce",) if "overlap" in options else ()
    launch = Launch(
        "run.sh", "", "megatron", framework_settings=own_settings, ignored_arguments=ignored, layout=Layout(dp=8, ep=8)
    )
    assert stack_of_launch(launch, False, True) == expected
    time_stack = find_stack(expected)
    assert (time_stack.gathers_tokens, bool(time_stack.captured_modules)) == (
        dispatcher == "allgather",
        "graphs" in options,
    )
    assert dispatcher == "allgather" or time_stack.sends_each_copy is (dispatcher == "alltoall")
    assert (time_stack.bucket_parameters == inf) is ("overlap" not in options)
    other_stack = find_stack(time_stack.exchange_stack)
    assert (other_stack.captured_modules, other_stack.bucket_parameters) == (
        time_stack.captured_modules,
        time_stack.bucket_parameters,
    )
    assert other_stack.sends_each_copy is (dispatcher != "alltoall")
    without_exchanges = replace(launch, layout=Layout(dp=8))
    assert "alltoall" not in stack_of_launch(without_exchanges, False, True)


@in_one_test
@pytest.mark.parametrize(
    "stack",
    [
        "torch+megatron-layer-graphs",
        "fsdp2+megatron-alltoall",
        "megatron-flex+megatron-alltoall",
        "megatron-2021+megatron-flex",
        "megatron+megatron-layer-graphs+megatron-layer-graphs",
    ],
)
def test_settings_of_other_software_and_two_exchanges_do_not_combine(stack: str) -> None:
    with pytest.raises(InputError, match="not a combination; expected a stack and up to 3 different settings"):
        find_stack(stack)


def test_a_combination_is_untested() -> None:
    """No row of a measured run has one, though each of its stacks has rows; without another exchange none is named."""
    assert find_stack("megatron-layer-graphs").rows
    assert find_stack("megatron-alltoall").rows
    assert find_stack("megatron-layer-graphs+megatron-alltoall").rows == 0
    assert find_stack("megatron-graphs+megatron-alltoall").exchange_stack == ""


def test_gathered_tokens_are_named_by_their_collectives(run: Any) -> None:
    """All-gathered before and reduce-scattered behind the experts (MoEAllGatherTokenDispatcher), and so backward."""
    words = ("qwen3-30b-a3b?num_hidden_layers=2", "--hardware", "h100", "--devices", "32", "--dp", "32", "--ep", "32")
    kinds = {}
    for stack in ("megatron-allgather", "megatron-alltoall"):
        document = run(
            "time", *words, "--phase", "training", "--stack", stack, "--by-node", "8", "--format", "json"
        ).document
        kinds[stack] = {node["kind"] for node in document["nodes"]}
    assert {"all_gather", "reduce_scatter"} <= kinds["megatron-allgather"] - kinds["megatron-alltoall"]
    assert "all_to_all" in kinds["megatron-alltoall"] - kinds["megatron-allgather"]
    screen = " ".join(
        run(
            "time", *words, "--phase", "training", "--stack", "megatron-allgather", "--seq", "8k", "--notes"
        ).out.split()
    )
    assert "are all-gathers of all tokens; by NCCL's all-to-all" in screen


DEEPEP = {16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369)}
"""Ranks of experts -> microseconds of a dispatch and of a combine on H800 with 50 GB/s of network a device.

128 tokens of 7,168 in 8 experts each, to the experts in 8 bits and back in 16 (github.com/deepseek-ai/DeepEP,
docs/legacy.md, low-latency kernels).
"""


@pytest.mark.parametrize("ranks", DEEPEP)
def test_exchanges_of_decoded_tokens_take_as_long_as_published(ranks: int) -> None:
    decoding = RankPass(128, 1, phase="decode", ep=ranks)
    estimator = TimeEstimator(
        device_of(load_hardware("h800")), software_stacks()["sglang"], NumberFormats("fp8"), decoding
    )
    message = Collective("mlp", "all_to_all", "ep", ranks, False, 128 * 8 * 7168 * 2, 1)
    for is_dispatch, microseconds in zip((True, False), DEEPEP[ranks], strict=True):
        seconds = estimator._message_seconds(LayerMessage(0, message, 8, OF_DEEPSEEK, is_dispatch))
        assert 0.95 < 1e6 * float(seconds) / microseconds < 1.45


@in_one_test
@pytest.mark.parametrize(
    ("stack", "replicas"), [("sglang", 1), ("vllm", 1), ("sglang", 8), ("sglang", 16), ("vllm", 16)]
)
def test_wide_expert_parallelism_of_servers_exchanges_a_rank_s_share_of_the_rows(stack: str, replicas: int) -> None:
    """Up to 8 replicas gather tokens; of 16, a rank gets as many rows as it sends: 16 tokens to 8 experts each."""
    layout = Layout(dp=replicas, ep=replicas, etp=1)
    work = rank_work(
        load_preset("qwen3-30b-a3b").model, rank_pass(software_stacks()[stack], layout, 16, 1, 64, "decode")
    )
    kinds = {
        message.collective.collective_kind for message in work.messages if message.collective.process_group == "ep"
    }
    expected_kinds = {1: set(), 8: {"all_gather", "reduce_scatter"}, 16: {"all_to_all"}}
    assert kinds == expected_kinds[replicas]
    rows = 16 * 8 * (8 if replicas == 8 else 1)
    moved = {kernel.moved_elements[0] for kernel in work.kernels if kernel.kind == "permutation"}
    assert moved == {ROW_COPIES * rows * 2048}
    assert untested_layout_text(software_stacks()[stack], layout) == ("experts on 16 ranks" if replicas == 16 else "")


def test_experts_on_more_ranks_than_any_measured_server_are_untested() -> None:
    measured = [
        int(row["ep"]) for rows in read_sets().values() for row in rows if not row.trains and row.stack.is_server
    ]
    assert max(measured) == MEASURED_EXPERT_RANKS


def test_messages_of_a_model_have_its_router_s_groups() -> None:
    messages = rank_work(load_preset("deepseek-v3").model, RankPass(1, 256, ep=2, etp=1)).messages
    assert {message.expert_groups for message in messages if message.collective.process_group == "ep"} == {OF_DEEPSEEK}


def test_groups_cost_no_parameters_and_no_flops_and_no_memory() -> None:
    grouped = {**V3, "moe_intermediate_size": 16}
    plain = {**grouped, "n_group": 1}
    assert llmcalc.params(grouped).total == llmcalc.params(plain).total
    assert llmcalc.flops(grouped, seq=64).total == llmcalc.flops(plain, seq=64).total
    of_grouped, of_plain = (llmcalc.memory(config, phase="training", seq=64).document for config in (grouped, plain))
    assert of_grouped["memory"] == of_plain["memory"]


@pytest.mark.parametrize(
    ("config", "groups"),
    [
        (V3, (2, 1)),
        ({**V3, "n_group": 1}, (1, 1)),
        ({name: value for name, value in V3.items() if "group" not in name}, (8, 4)),  # the class's own
        ({**V3, "model_type": "kimi_k2"}, (2, 1)),
        (V2, (1, 1)),  # the class's own topk_method is greedy
        ({**V2, "topk_method": "group_limited_greedy"}, (2, 1)),
        ({**V2, "topk_method": "greedy"}, (1, 1)),
        ({**LING2, "n_group": 4, "topk_group": 2}, (4, 2)),
        (LING2, (1, 1)),
    ],
)
def test_configs_state_groups(config: dict[str, Any], groups: tuple[int, int]) -> None:
    spec = spec_of(config)
    assert groups_of(spec) == {ExpertGroups(*groups)}
    if config["model_type"] in ("deepseek_v2", "deepseek_v3"):
        assert groups_of(ModelSpec.model_validate(read_config(to_config(spec))[0])) == {ExpertGroups(*groups)}


def test_presets_have_the_groups_of_their_published_configs() -> None:
    cases = Path(__file__).parent.parent / "data" / "cases"
    for name in ("deepseek-v3", "deepseek-v2-lite", "glm-4.5-air", "kimi-linear-48b"):
        config = json.loads((cases / name / "config.json").read_text())
        stated = config.get("n_group", config.get("num_expert_group", 1)), config.get("topk_group", 1)
        preset = {"kimi-linear-48b": "kimi-linear-48b-a3b"}.get(name, name)
        assert groups_of(load_preset(preset).model) == {ExpertGroups(*stated)}


def test_the_class_selects_experts_of_neighbours() -> None:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    config = DeepseekV3Config(**{**V3, "n_routed_experts": 16, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4})
    torch.manual_seed(0)
    router = DeepseekV3TopkRouter(config)
    torch.nn.init.normal_(router.weight)
    experts = router(torch.randn(200, SMALL["hidden_size"]))[2]
    assert max(len(set((chosen // 4).tolist())) for chosen in experts) == 2


@in_one_test
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"n_group": 2}, "router.topk_group: missing; expected both n_group and topk_group, or neither"),
        ({"topk_group": 2}, "router.n_group: missing; expected both"),
        ({"n_group": 3, "topk_group": 1}, "router.n_group: 3 does not divide num_experts 8; expected a divisor of 8"),
        ({"n_group": 4, "topk_group": 5}, "router.topk_group: 5; expected 2 to 4, because a token selects 4 experts"),
        ({"n_group": 4, "topk_group": 1}, "router.topk_group: 1; expected 2 to 4, because a token selects 4 experts"),
        ({"n_group": 1, "topk_group": 1}, "greater than or equal to 2"),
        ({"n_group": 257, "topk_group": 1}, "less than or equal to 256"),
    ],
)
def test_groups_that_cannot_be(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        MoE(
            num_experts=8,
            num_experts_per_tok=4,
            expert=FeedForward(intermediate_size=8, hidden_act="silu"),
            router=LinearRouter(**fields),
        )


def test_megatron_states_groups() -> None:
    grouped = settings(**EXPERTS, moe_router_num_groups=4, moe_router_group_topk=2)
    assert groups_of(model_of_arguments(grouped, "")) == {ExpertGroups(4, 2)}
    with pytest.raises(InputError, match="--moe-router-num-groups: 3; expected a divisor of --num-experts 8"):
        settings(**EXPERTS, moe_router_num_groups=3).check()
    with pytest.raises(InputError, match="--moe-router-group-topk: 5; expected 1 to 4 of --moe-router-num-groups 4"):
        settings(**EXPERTS, moe_router_num_groups=4, moe_router_group_topk=5).check()


@pytest.mark.parametrize(("ranks", "tokens"), [(2, 1), (4, 1), (8, 1), (8, 4), (8, 64)])
def test_ranks_wait_for_the_rank_that_reads_most_experts(ranks: int, tokens: int) -> None:
    """The same as the mean of drawn tokens, which select experts at random, within a fifth."""
    spec = load_preset("qwen3-30b-a3b").model
    stack = software_stacks()["vllm"].model_copy(update={"repeated_expert_share": 0.0})
    device = device_of(load_hardware("h100-sxm"))

    def selected_expert_count(layout: Layout) -> float:
        sizes = rank_pass(stack, layout, tokens, 1, 1024, "decode")
        estimator = TimeEstimator(device, stack, NumberFormats(), sizes)
        kernel = next(kernel for kernel in rank_work(spec, sizes).kernels if kernel.kind == "experts")
        return float(estimator.selected_expert_count(kernel))

    generator, experts, top_k = random.Random(1), 128, 8
    drawn = []
    for _ in range(500):
        selected = {expert for _ in range(tokens) for expert in generator.sample(range(experts), top_k)}
        drawn.append(max(sum(expert % ranks == rank for expert in selected) for rank in range(ranks)))
    busiest, shared_evenly = (
        selected_expert_count(Layout(tp=ranks, ep=ranks, etp=1)),
        selected_expert_count(Layout(tp=ranks)) / ranks,
    )
    assert busiest == pytest.approx(mean(drawn), rel=0.2)
    assert busiest > shared_evenly


def test_launches_of_experts_have_seconds_in_16_bits_for_formats_without_their_own() -> None:
    fields = software_stacks()["megatron"].model_dump()
    with pytest.raises(ValueError, match="host_seconds_per_expert has no bf16"):
        SoftwareStack(**fields | {"host_seconds_per_expert": {"fp8": 1e-5}})
    assert SoftwareStack(**fields | {"host_seconds_per_expert": {}}).host_seconds_per_expert == {}
