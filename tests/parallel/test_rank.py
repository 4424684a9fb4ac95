"""Shards of 1,024 fake ranks: torch's tensor, expert and data parallelism of the reference, against rank programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.rank_program import rank_program
from llmcalc.parallel.weight_shards import WeightShard, shard_rows, weight_shards
from llmcalc.sources.presets import load_preset
from tests.parallel.fake_ranks import fake_rank

WORLD = 1024

COLUMNS = ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj")
ROWS = ("o_proj", "down_proj")


class Heads(ParallelStyle):
    """A projection to fewer key and value heads than ranks: each rank has one whole head, as some others do.

    torch has no style for it; serving frameworks copy heads in this way (vLLM, `QKVParallelLinear`).
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        mine = device_mesh.get_local_rank() * self.heads // device_mesh.size()
        for name, whole in list(module.named_parameters()):
            module.register_parameter(name, nn.Parameter(whole.detach().chunk(self.heads)[mine].clone()))
        return module


class Experts(ParallelStyle):
    """Experts over the ranks of a group: each has some of them whole, or, over two groups, a part of their width."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, one in module.named_children():
            inside = [Shard(2 if name == "down_proj" else 1)] if device_mesh.ndim > 1 else []
            divided = distribute_tensor(one.weight.detach(), device_mesh, [Shard(0), *inside])
            one.register_parameter("weight", nn.Parameter(divided))
        return module


def plan(spec: ModelSpec, tp: int) -> dict[str, ParallelStyle]:
    """torch's styles of the reference's modules. The embedding and the head are divided by the vocabulary."""
    heads = spec.main.block.attention.head_sizes(spec.hidden_size).kv_heads
    styles: dict[str, ParallelStyle] = {"embed_tokens": RowwiseParallel(), "norm": SequenceParallel()}
    if not spec.tie_word_embeddings:
        styles["lm_head"] = ColwiseParallel()
    for network in ("self_attn", "mlp", "mlp.shared_expert"):
        styles |= {f"layers.*.{network}.{name}": ColwiseParallel() for name in COLUMNS}
        styles |= {f"layers.*.{network}.{name}": RowwiseParallel() for name in ROWS}
    if heads is not None and tp > heads:  # latent attention has none
        styles |= {f"layers.*.self_attn.{name}": Heads(heads) for name in ("k_proj", "v_proj")}
    return {**styles, "layers.*.self_attn_pre_norm": SequenceParallel(), "layers.*.mlp_pre_norm": SequenceParallel()}


def sharded(spec: ModelSpec, layout: Layout) -> nn.Module:
    """The reference on this rank: FSDP2 over tensor parallelism, and over the ranks that hold the same experts."""
    mesh = grid(layout.hsdp_replicas, layout.shard_count, tp=layout.tp)
    with torch.device("meta"):
        model = spec.reference()
    names = [name for name, _ in model.named_modules()]
    styles = plan(spec, layout.tp)
    own = {name: re.sub(r"^layers\.\d+", "layers.*", name) for name in names}
    parallelize_module(model, mesh["tp"], {name: styles[own[name]] for name in names if own[name] in styles})
    if spec.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    if layout.ep > 1:
        copies = layout.expert_dp // layout.expert_shard_count
        experts = grid(copies, layout.expert_shard_count, ep=layout.ep, etp=layout.expert_tp)
        over = experts["ep", "etp"] if layout.expert_tp > 1 else experts["ep"]
        for name, module in model.named_modules():
            if name.endswith("mlp.experts"):
                fully_shard(parallelize_module(module, over, Experts()), mesh=data_of(experts))
    for layer in model.layers:
        fully_shard(layer, mesh=data_of(mesh))
    return fully_shard(model, mesh=data_of(mesh))


def grid(replicas: int, shards: int, **inside: int) -> DeviceMesh:
    """All ranks: groups of replicas, in each the ranks that divide parameters, and in each of those further groups."""
    outer = {"replicas": replicas, "shards": shards} if replicas > 1 else {"shards": shards}
    sizes = {**outer, **inside}
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def data_of(mesh: DeviceMesh) -> DeviceMesh:
    assert mesh.mesh_dim_names is not None
    return mesh["replicas", "shards"] if "replicas" in mesh.mesh_dim_names else mesh["shards"]


def measured(model: nn.Module) -> Counter[tuple[str, tuple[int, ...], int]]:
    """(module, shape of this rank's part, bytes of its storage) of every parameter."""
    found: Counter[tuple[str, tuple[int, ...], int]] = Counter()
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor), name
        part = parameter.to_local()
        found[name.rpartition(".")[0], tuple(part.shape), part.untyped_storage().nbytes()] += 1
    return found


def expected(spec: ModelSpec, layout: Layout, rank: int) -> Counter[tuple[str, tuple[int, ...], int]]:
    """The same from the rank's program. Every rank keeps as many rows as the first; the last ones do not fill them."""
    found: Counter[tuple[str, tuple[int, ...], int]] = Counter()
    for one in weight_shards(rank_program(spec, layout, rank)):
        at = layout.coordinates(rank)
        ranks = layout.expert_shard_count if one.is_expert else layout.shard_count
        index = (at.edp if one.is_expert else at.dp * layout.cp + at.cp) % ranks  # replicas of all parts are outermost
        rows, *rest = one.tensor.shape
        row = torch.Size(rest).numel() * 4
        for path in paths(one):
            shape = (shard_rows(rows, ranks, index), *rest)
            found[path, shape, shard_rows(rows, ranks, 0) * row] += 1
    return found


def paths(one: WeightShard) -> Iterator[str]:
    """The modules that have such a parameter each."""
    every = [""]
    for name, indices in one.path:
        names = [name] if indices is None else [f"{name}.{i}" for i in indices]
        every = [f"{path}.{name}" if path else name for path in every for name in names]
    assert len(every) == one.module_count
    return iter(every)


def preset(name: str, layers: int | None = None) -> ModelSpec:
    """A preset's text model, with fewer layers if a number is given."""
    spec = load_preset(name).model.model_copy(update={"mtp": None, "towers": {}})
    if layers is None:
        return spec
    assert spec.decoder is not None
    return spec.model_copy(update={"decoder": spec.decoder.model_copy(update={"num_hidden_layers": layers})})


TP8 = Layout(tp=8, dp=128)

CASES: list[Any] = [
    pytest.param("llama3-8b", 3, TP8, id="llama3-8b"),
    pytest.param("llama3-70b", 3, TP8, id="llama3-70b"),
    pytest.param("llama3.1-405b", 2, TP8, id="llama3.1-405b"),
    pytest.param("llama3.1-405b", 2, Layout(tp=16, dp=64), id="llama3.1-405b, 8 key heads on 16 ranks"),
    pytest.param("deepseek-v3", 4, Layout(tp=8, dp=128, ep=64, etp=1), id="deepseek-v3"),
    pytest.param("llama3-8b", 2, Layout(tp=8, cp=4, dp=32), id="llama3-8b, divided sequences"),
    pytest.param("llama3-8b", 2, Layout(tp=8, dp=128, hsdp_replicas=4), id="llama3-8b, 4 replicas"),
    pytest.param("deepseek-v3", 4, Layout(tp=8, dp=128, ep=16, etp=4), id="deepseek-v3, divided experts"),
    pytest.param("deepseek-v3", 4, Layout(tp=1, dp=1024, ep=256), id="deepseek-v3, an expert a rank"),
    pytest.param("qwen3-30b-a3b", 2, Layout(tp=4, dp=256, ep=128, etp=1), id="qwen3-30b-a3b, norms of heads"),
    pytest.param("qwen2.5-1.5b", 2, Layout(tp=4, dp=256), id="qwen2.5-1.5b, biases, tied, 2 key heads on 4 ranks"),
    pytest.param("gpt2", 2, Layout(tp=4, dp=256), id="gpt2, 50257 rows, tied, biases"),
    pytest.param("deepseek-v2-lite", 2, Layout(tp=16, dp=64, ep=64, etp=1), id="deepseek-v2-lite, latent attention"),
]


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("first", marks=pytest.mark.exhaustive),
        "last of its tensor group",
        "between",
        pytest.param("last", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize(("name", "layers", "layout"), CASES)
def test_shards_of_1024_ranks(name: str, layers: int | None, layout: Layout, at: str) -> None:
    """Every parameter of a rank, its elements and bytes, equals the shard that torch makes."""
    rank = {"first": 0, "last of its tensor group": layout.tp - 1, "between": 517, "last": WORLD - 1}[at]
    spec = preset(name, layers)
    with fake_rank(rank, WORLD):
        got = measured(sharded(spec, layout))
    want = expected(spec, layout, rank)
    assert got - want == want - got == Counter()


@pytest.mark.parametrize(("name", "layout"), [("llama3-8b", TP8), ("deepseek-v3", Layout(tp=8, dp=128, ep=64, etp=1))])
def test_shards_of_a_whole_model(name: str, layout: Layout) -> None:
    spec = preset(name)
    with fake_rank(WORLD - 1, WORLD):
        got = measured(sharded(spec, layout))
    assert got == expected(spec, layout, WORLD - 1)


def test_heads_that_no_rank_has_whole_are_refused() -> None:
    """llama3-8b has 8 key heads. 6 ranks divide neither them nor the 32 query heads."""
    with pytest.raises(InputError, match=r"--tp 6: does not divide .* 32; expected one of 1, 2, 4, 8"):
        rank_program(preset("llama3-8b"), Layout(tp=6))
