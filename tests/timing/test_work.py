"""The work of a rank's pass has no constant: it equals the counts of FLOPs, parameters, cache and messages exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from llmcalc.costs.flops import backward_flops_of, forward_flops_of
from llmcalc.costs.params import total_params_of
from llmcalc.errors import InputError
from llmcalc.frameworks.registry import framework
from llmcalc.model import ModelSpec
from llmcalc.ops import ChunkedScan
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.messages import rank_messages
from llmcalc.parallel.rank_model import rank_model
from llmcalc.sources.hardware import load_hardware
from llmcalc.sources.presets import load_preset, model_names
from llmcalc.timing.device import device_of
from llmcalc.timing.kernels import Adapters, RankPass
from llmcalc.timing.work_recorder import rank_work
from llmcalc.workload.run_config import RunConfig
from llmcalc.workload.workload import Workload
from tests.builders import SOME_PRESETS, parts_of, with_other_causes
from tests.samples import in_one_test

PASSES = (
    RankPass(2, 256, phase="training"),
    RankPass(2, 256, phase="prefill"),
    RankPass(2, 128, 128, phase="prefill"),
    RankPass(2, 1, 255, phase="decode"),
)

LAYOUTS = (
    ("llama3-8b", Layout(tp=4, sequence_parallel=True)),
    ("llama3-8b", Layout(tp=8)),
    ("llama3-8b", Layout(tp=2, cp=4, sequence_parallel=True)),
    ("llama3-8b", Layout(cp=2, cp_comm="allgather")),
    ("llama3-8b", Layout(cp=4, cp_comm="a2a")),
    ("mixtral-8x7b", Layout(tp=2)),
    ("mixtral-8x7b", Layout(dp=4, ep=4)),
    ("deepseek-v3", Layout(tp=2, dp=4, ep=8, etp=1, sequence_parallel=True)),
    ("qwen3-30b-a3b", Layout(tp=4, dp=2, ep=8, etp=1, sequence_parallel=True)),
    ("gpt-oss-120b", Layout(tp=8)),
)


def model(name: str) -> ModelSpec:
    return load_preset(name).model


def check_counts(spec: ModelSpec, rank_pass: RankPass) -> None:
    tree, run, work = spec.tree(), rank_pass.run_config(), rank_work(spec, rank_pass)
    assert work.forward_flops == tree.total(forward_flops_of, run)
    assert work.parameters == tree.total(total_params_of)
    assert work.cache_elements == tree.total(lambda counted_op: counted_op.cache_bits(1), run)
    if rank_pass.phase == "training":
        assert work.backward_flops == tree.total(backward_flops_of, run)


@in_one_test
@pytest.mark.parametrize("name", SOME_PRESETS)
def test_work_equals_the_counts_in_every_phase(name: str) -> None:
    for rank_pass in PASSES:
        check_counts(model(name), rank_pass)


def with_other_parts() -> list[str]:
    """Presets that have every part in each of its places between them."""
    return with_other_causes(model_names(), lambda name: parts_of(model(name)))


@pytest.mark.parametrize(
    "names",
    [with_other_parts, pytest.param(model_names, marks=pytest.mark.exhaustive)],
    ids=["with other parts", "all"],
)
def test_work_of_every_preset_equals_the_counts(names: Callable[[], list[str]]) -> None:
    """Each preset in one phase, in turns: all of them in all phases take four times as long."""
    unequal: list[str] = []
    for i, name in enumerate(names()):
        try:
            check_counts(model(name), PASSES[i % len(PASSES)])
        except AssertionError:
            unequal.append(name)
    assert not unequal


@pytest.mark.parametrize(("name", "layout"), LAYOUTS, ids=lambda value: getattr(value, "options", lambda: value)())
def test_work_of_a_rank_equals_that_rank_s_counts(name: str, layout: Layout) -> None:
    spec, rank_pass = model(name), of_layout(layout)
    work, tree = rank_work(spec, rank_pass), rank_model(spec, layout, 0).tree()
    run = rank_pass.run_config()
    assert work.forward_flops * layout.cp == tree.total(forward_flops_of, run)
    assert work.backward_flops * layout.cp == tree.total(backward_flops_of, run)
    assert work.parameters == tree.total(total_params_of)


@pytest.mark.parametrize(("name", "layout"), LAYOUTS, ids=lambda value: getattr(value, "options", lambda: value)())
def test_messages_equal_those_of_parallel_messages(name: str, layout: Layout) -> None:
    spec, rank_pass, groups = model(name), of_layout(layout), ("tp", "ep", "etp", "cp")
    expected = per_micro_batch(spec, layout, rank_pass)
    work = rank_work(spec, rank_pass)
    messages: Counter[Any] = Counter()
    for layer, message, *_ in work.messages:
        key = message.process_group, message.ranks, message.collective_kind, message.bytes
        messages[key] += message.repetitions * work.layer_count(layer)
    assert {key: n for key, n in messages.items() if key[0] in groups and key[1] > 1 and n} == expected


def of_layout(layout: Layout) -> RankPass:
    """A micro-batch of 1,024 tokens of a layout."""
    names = ("tp", "etp", "ep", "cp", "cp_comm", "sequence_parallel")
    return RankPass(1, 1024, **{name: getattr(layout, name) for name in names})


def per_micro_batch(spec: ModelSpec, layout: Layout, rank_pass: RankPass) -> dict[Any, Any]:
    """Messages that a further micro-batch adds to a step: those of gradients are not among them."""
    workload, gradients = Workload(rank_pass.batch, rank_pass.seq, phase="training"), framework("megatron")
    counts: Counter[Any] = Counter()
    for batches, sign in ((2, 1), (1, -1)):
        for message in rank_messages(spec, layout, workload, gradients.gradient_rules(), batches):
            if message.process_group in ("tp", "ep", "etp", "cp"):
                counts[message.process_group, message.ranks, message.collective_kind, message.bytes] += (
                    sign * message.count
                )
    return {key: n for key, n in counts.items() if n}


def test_arrays_equal_scalars() -> None:
    numpy = pytest.importorskip("numpy")
    spec = model("deepseek-v3")
    columns = list(product((1, 2, 4), (1, 8, 64), (1, 2)))
    batch, ep, cp = (numpy.array(column, float) for column in zip(*columns, strict=True))
    work = rank_work(spec, RankPass(batch, 4096, ep=ep, cp=cp, etp=1))
    forward, parameters = work.forward_flops, work.parameters
    for i, (batch_i, ep_i, cp_i) in enumerate(columns):
        alone = rank_work(spec, RankPass(batch_i, 4096, ep=ep_i, cp=cp_i, etp=1))
        assert forward[i] == pytest.approx(alone.forward_flops, rel=1e-12)
        assert parameters[i] == alone.parameters


def test_a_size_that_ranks_do_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="--tp 3: does not divide"):
        rank_work(model("llama3-8b"), RankPass(tp=3))


def test_frozen_weights_have_no_gradient_and_adapters_have() -> None:
    """Llama 3 8B, adapters of rank 16 on queries and values: 32 · 16 · ((4096 + 4096) + (4096 + 1024)) parameters."""
    spec, tokens = model("llama3-8b"), 2 * 256
    weights = rank_work(spec, RankPass(2, 256, phase="training"))
    adapted = rank_work(
        spec, RankPass(2, 256, phase="training", adapters=Adapters(16, frozenset({"q_proj", "v_proj"})))
    )
    trained = sum(number * adapted.layer_count(layer) for layer, number in adapted.adapter_params_by_layer.items())
    assert trained == 32 * 16 * ((4096 + 4096) + (4096 + 1024)) == 6_815_744
    assert adapted.parameters == weights.parameters
    assert adapted.forward_flops == weights.forward_flops + 2 * tokens * trained
    in_products = weights.parameters - 128256 * 4096 - 65 * 4096  # all but the table of inputs and the norms
    assert adapted.backward_flops == weights.backward_flops - 2 * tokens * in_products + 4 * tokens * trained


def test_ranks_that_gather_tokens_send_them_to_no_expert() -> None:
    """With several replicas of attention, tokens are gathered and sums reduced; with one, the sums of a rank's experts
    go through the all-reduce that tensor parallelism has anyway. qwen3-30b-a3b: hidden size 2,048, 48 layers.
    """
    spec, tokens = model("qwen3-30b-a3b"), 16

    def messages(rank_pass: RankPass) -> Counter[tuple[str, str, Any, Any]]:
        sent: Counter[tuple[str, str, Any, Any]] = Counter()
        for layer, message, *_ in rank_work(spec, rank_pass).messages:
            if layer >= 0:
                sent[message.collective_kind, message.process_group, message.ranks, message.bytes] += (
                    message.repetitions
                )
        return sent

    of_tokens = 2 * tokens * 2048
    replicas = RankPass(tokens, 1, 64, "decode", ep=4, adds_experts_before_reduction=True, gathered_ranks=4)
    assert messages(replicas) == {
        ("all_gather", "ep", 4, 4 * of_tokens): 1,
        ("reduce_scatter", "ep", 4, 4 * of_tokens): 1,
    }
    divided = RankPass(tokens, 1, 64, "decode", tp=4, etp=1, ep=4, adds_experts_before_reduction=True, gathered_ranks=1)
    assert messages(divided) == {("all_reduce", "tp", 4, of_tokens): 2}
    dense_experts = RankPass(tokens, 1, 64, "decode", tp=4, adds_experts_before_reduction=True, gathered_ranks=1)
    assert messages(dense_experts) == messages(divided)


@pytest.mark.parametrize("name", ["gemma4-e2b", "gemma3n-e2b"])
def test_layers_that_share_keys_read_the_cache_of_their_own_window(name: str) -> None:
    """A layer with the keys of a lower layer reads that layer's cache: of a window's tokens, or of all."""
    work = rank_work(model(name), RankPass(1, 1, 99_999, "decode"))
    reads = {
        work.layer_kinds[kernel.layer_kind_index].label: kernel.cache_elements
        for kernel in work.kernels
        if kernel.kind == "attention"
    }
    assert reads["sliding_shared"] == reads["sliding"] < reads["full"] / 100
    assert reads["full_shared"] == reads["full"]


def test_a_gated_shared_expert_is_summed_with_the_routed_ones() -> None:
    """The gate multiplies a partial sum, so a layer of Qwen3.5 reduces once after attention and once after experts."""
    work = rank_work(model("qwen3.5-35b-a3b"), RankPass(1, 1, 64, "decode", tp=2, adds_experts_before_reduction=True))
    sums = Counter(
        layer for layer, message, *_ in work.messages if message.collective_kind == "all_reduce" and layer >= 0
    )
    assert set(sums.values()) == {2}


def test_a_fused_gate_is_one_kernel_that_reads_both_halves() -> None:
    spec, rank_pass = model("llama3-8b"), RankPass(1, 1, 64, "decode")
    kernels = [
        [kernel for kernel in rank_work(spec, sizes).kernels if kernel.path == "layers.mlp"]
        for sizes in (rank_pass, replace(rank_pass, fuses_gates=True))
    ]
    assert [sum(kernel.launches[0] for kernel in group) for group in kernels] == [2, 1]
    assert [sum(kernel.moved_elements[0] for kernel in group) for group in kernels] == [5 * 14336, 3 * 14336]


def test_rows_of_other_ranks_are_moved_but_not_computed() -> None:
    rank_pass = RankPass(16, 1, 64, "decode", tp=4, etp=1, ep=4, adds_experts_before_reduction=True, gathered_ranks=1)
    all_rows = replace(rank_pass, moves_all_rows=True)
    spec = model("qwen3-30b-a3b")
    work, work_on_all = rank_work(spec, rank_pass), rank_work(spec, all_rows)
    assert work.forward_flops == work_on_all.forward_flops
    moved = [
        (kernel.moved_elements[0], wider.moved_elements[0])
        for kernel, wider in zip(work.kernels, work_on_all.kernels, strict=True)
    ]
    assert {wider / elements for elements, wider in moved if elements and wider != elements} == {4}
    assert any(wider == elements for elements, wider in moved if elements)


def test_passes_of_equal_numbers_share_their_work() -> None:
    """An integer and an equal float are different sizes: counts of integers are exact."""
    spec, rank_pass = load_preset("gpt2").model, PASSES[0]
    assert rank_work(spec, rank_pass) is rank_work(spec, replace(rank_pass))
    assert isinstance(rank_work(spec, replace(rank_pass, batch=2.0)).tokens, float)
    assert isinstance(rank_work(spec, rank_pass).tokens, int)


@pytest.mark.parametrize("tokens", [4096, 16384])
def test_mamba_2_takes_the_seconds_of_its_published_kernels(tokens: int) -> None:
    """12.06 and 12.92 million tokens/s of a layer's scan in Granite 4.0 H Small on an H100 (vllm-project/vllm#27299).

    The reference in PyTorch has products over all pairs of chunks, which kernels do not run.
    """
    scan = ChunkedScan(heads=128, head_dim=64, state=128, chunk=256)
    flops = scan.kernel_flops(RunConfig(Workload(batch=1, seq=tokens)))
    assert device_of(load_hardware("h100-sxm")).scan_seconds(flops) == pytest.approx(tokens / 12.5e6, rel=0.1)
