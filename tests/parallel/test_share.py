"""A model as one rank has it: the shares of all ranks are the model, and every command counts one of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.cache import kv
from llmcalc.costs.flops import flops, run_config_of
from llmcalc.costs.params import params
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.rank_model import RankModel, SelectedRank, heaviest_rank, rank_model
from llmcalc.parallel.rank_program import RankFlow
from llmcalc.parallel.weight_shards import weight_shards
from llmcalc.symbolic.explain import explain

MODELS = [
    "llama3-8b",
    "gpt2",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "qwen3-30b-a3b",
    "qwen3.5-9b",
    "t5-small",
    "bert-base",
]


def model(name: str) -> ModelSpec:
    return llmcalc.load(name).model


def ranks(spec: ModelSpec, layout: Layout) -> list[RankModel]:
    return [rank_model(spec, layout, rank) for rank in range(layout.world_size)]


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_a_tensor_group_are_the_models_and_copies(name: str) -> None:
    spec = model(name)
    shares = ranks(spec, Layout(tp=2))
    copies = {tuple(one.replicated_parameters().items()) for one in shares}
    assert len(copies) == 1
    copied = sum(size for _, size in copies.pop())
    assert copied > 0  # norms
    assert sum(params(one).total for one in shares) - copied == params(spec).total


def shapes_of(rank: RankModel, module: str) -> list[tuple[int, ...]]:
    """The weight's shape on that rank in every module whose path ends with `module`, one for each stack of layers."""
    program = rank.program()
    assert isinstance(program, RankFlow)
    shards = weight_shards(program)
    paths = [".".join(name for name, _ in shard.path) for shard in shards]
    shapes = [shard.tensor.shape for path, shard in zip(paths, shards, strict=True) if path.endswith(module)]
    assert shapes, paths
    return shapes


def test_ranks_copy_a_single_group_of_a_state_space_mixer() -> None:
    """vLLM, mamba_mixer2.py: the gate, x and Δ are divided, B and C of one group are on every rank."""
    inner, state, heads, spec = 8192, 128, 128, model("bamba-9b")
    for rank in range(4):
        share = rank_model(spec, Layout(tp=4), rank)
        assert {*shapes_of(share, "mamba.in_proj")} == {(2 * inner // 4 + 2 * state + heads // 4, spec.hidden_size)}
        assert {*shapes_of(share, "mamba.conv1d")} >= {(inner // 4 + 2 * state, 1, 4)}


@pytest.mark.parametrize(("tp", "heads"), [(2, 2), (4, 1), (8, 1)])
def test_ranks_divide_the_heads_that_select_blocks(tp: int, heads: int) -> None:
    """vLLM, `MinimaxM3QKVParallelLinearWithIndexer`: like key heads, with copies if there are more ranks."""
    spec = model("minimax-m3")
    shapes = shapes_of(rank_model(spec, Layout(tp=tp), tp - 1), "indexer.q_proj")
    assert {*shapes} == {(128 * heads, spec.hidden_size)}


@pytest.mark.parametrize("name", ["llama3-8b", "gpt2", "mixtral-8x7b", "deepseek-v2-lite"])
@pytest.mark.parametrize("vpp", [1, 3])
def test_stages_of_a_pipeline_are_the_model(name: str, vpp: int) -> None:
    """Parameters, FLOPs and cache; a table that the head uses too is on both ends."""
    spec = model(name)
    count = spec.main.num_hidden_layers
    split = (count // (2 * vpp),) * (2 * vpp - 1)
    layout = Layout(
        pp=2, vpp=vpp, schedule="interleaved" if vpp > 1 else "1f1b", pp_layout=(*split, count - sum(split))
    )
    shares = ranks(spec, layout)
    tied = spec.vocab_size * spec.hidden_size if spec.tie_word_embeddings else 0
    assert sum(params(one).total for one in shares) == params(spec).total + tied
    run = run_config_of(spec, phase="training")
    assert sum(flops(one, run).total for one in shares) == flops(spec, run).total
    assert sum(kv(one).bytes for one in shares) == kv(spec).bytes


def test_products_of_a_tensor_group_are_the_models() -> None:
    """Those that no rank divides are run by each, or with sequence parallelism on its own tokens."""
    for name, alike in (("llama3-8b", 0), ("deepseek-v2-lite", 1)):
        spec = model(name)
        run = run_config_of(spec, phase="training")
        whole = flops(spec, run).total
        each = flops(rank_model(spec, Layout(tp=4), 1), run).total
        assert (4 * each > whole) == bool(alike)
        assert 4 * flops(rank_model(spec, Layout(tp=4, sequence_parallel=True), 1), run).total == whole


def test_sequences_are_divided_evenly() -> None:
    spec = model("llama3-8b")
    run = run_config_of(spec, seq=4096, phase="training")
    share = SelectedRank(rank_model(spec, Layout(cp=4), 2), "")
    assert 4 * flops(share.model, share.run_config(run)).total == flops(spec, run).total


@pytest.mark.parametrize(
    "layout", [Layout(dp=8, ep=8), Layout(tp=4, dp=2, ep=8, etp=1), Layout(tp=2, dp=4, ep=4, etp=2)]
)
def test_experts_of_all_ranks_are_the_models(layout: Layout) -> None:
    """Parameters of experts, those that a token uses, and their products; each replica has a batch of its own."""
    spec = model("mixtral-8x7b")
    run = run_config_of(spec)
    shares = ranks(spec, layout)

    def experts(count: Any) -> int:
        return count.by_component["experts"]

    copies = layout.world_size // (layout.ep * layout.expert_tp)
    assert sum(experts(params(one)) for one in shares) == copies * experts(params(spec))
    assert sum(experts(flops(one, run)) for one in shares) == layout.dp * experts(flops(spec, run))
    inactive = params(spec).total - params(spec).active
    here = sum(params(one).total - params(one).active for one in shares)
    assert here == copies * inactive


def test_key_heads_fewer_than_ranks_are_copied() -> None:
    spec = model("llama3-8b")  # 8 key heads
    assert [kv(rank_model(spec, Layout(tp=tp), 0)).bytes * tp // kv(spec).bytes for tp in (4, 8, 16, 32)] == [
        1,
        1,
        2,
        4,
    ]
    copied = rank_model(spec, Layout(tp=16), 0).replicated_parameters()
    assert copied["attention"] == 32 * 2 * 4096 * 128  # one key and one value head in each layer


def test_the_rank_that_has_most_is_found() -> None:
    spec = model("llama3-8b")
    layout = Layout(tp=2, pp=4)
    assert heaviest_rank(spec, layout, lambda one: params(one).total).rank == 6  # the head and a norm
    assert (
        heaviest_rank(spec, layout, lambda one: flops(one, run_config_of(one)).total).rank == 6
    )  # the head's products
    assert heaviest_rank(spec, layout, lambda one: kv(one).bytes).rank == 0


def test_formulas_of_a_rank_give_its_counts() -> None:
    """`explain` raises `ArithmeticError` for a formula whose value is not the count."""
    for name, layout, rank in (
        ("llama3-8b", Layout(tp=16, pp=2), 17),
        ("gpt2", Layout(tp=3), 2),  # 50,257 rows: the last rank has fewer
        ("deepseek-v2-lite", Layout(tp=2, dp=4, ep=8, etp=1, sequence_parallel=True), 3),
        ("mixtral-8x7b", Layout(tp=4, pp=2, vpp=2, schedule="interleaved"), 5),
        ("gemma2-2b", Layout(tp=2, pp=2), 3),
        ("t5-small", Layout(tp=4), 1),
        ("qwen3.5-9b", Layout(tp=2), 1),
    ):
        one = rank_model(model(name), layout, rank)
        found = explain(one)
        by_quantity = {formula.quantity: formula for formula in found.sections[-1].formulas}
        assert by_quantity["params"].value == params(one).total, name
        assert "tp" in {str(letter) for letter in by_quantity["params"].expression.free_symbols}, name


def test_every_command_says_which_rank(run: Any) -> None:
    for words in (("params",), ("flops",), ("kv",), ("explain", "-q", "params")):
        command, *more = words
        code, out, _ = run(command, "llama3-8b", *more, "--tp", "4", "--pp", "2", "--rank", "5", "--format", "json")
        data = json.loads(out)
        assert (code, data["rank"], data["layout"]["world"], data["layout"]["tp"]) == (0, 5, 8, 4)
        _, whole, _ = run(command, "llama3-8b", *more, "--format", "json")
        assert json.loads(whole).keys() <= data.keys()
        _, out, _ = run(command, "llama3-8b", *more, "--tp", "4", "--pp", "2", "--rank", "5")
        assert "rank 5 of 8 devices (tp 4 · pp 2), layers 16-31" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("params", "llama3-8b", "--rank", "0"), "--rank: is of a layout; expected its sizes too"),
        (("params", "llama3-8b", "--tp", "2", "--rank", "2"), "--rank 2: expected a number below 2"),
        (("params", "llama3-8b", "--tp", "3"), "--tp 3: does not divide num_attention_heads 32; expected one of"),
        (("params", "llama3-8b", "--tp", "3"), "; nearest layouts: --tp 4; --tp 2; --tp 4 --pp 2"),
        (("kv", "llama3-8b", "--cp", "2"), "--cp 2: splits the sequences of training; expected no --cp"),
        (("flops", "llama3-8b", "--cp", "2", "--phase", "prefill"), "--cp 2: sequences are divided in training"),
        (("flops", "llama3-8b", "--cp", "2", "--seq", "6"), "--cp 2: expected --seq in multiples of 4, not 6"),
        (
            ("flops", "llama3-8b", "--tp", "4", "--sequence-parallel", "--seq", "6"),
            "--tp 4: its ranks divide the 6 tokens",
        ),
        (("flops", "llama3-8b", "--tp", "2", "--conventions"), "--conventions: rules of thumb count whole models"),
        (("explain", "llama3-8b", "-q", "activations", "--tp", "2"), "--quantity activations: counts one device"),
    ],
)
def test_what_is_wrong_is_said_with_the_fix(run: Any, words: tuple[str, ...], message: str) -> None:
    assert message in run(*words).error
