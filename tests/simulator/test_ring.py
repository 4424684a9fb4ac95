"""Attention in a ring holds what torch's own functions of context parallelism do, in a fake process group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo  # a first collective imports it, and would count what it allocates
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.testing._internal.distributed.fake_pg import FakeStore

import llmcalc
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.training import TrainingConfig
from llmcalc.errors import InputError
from llmcalc.frameworks.fsdp2.rank_memory import fsdp_memory
from llmcalc.frameworks.fsdp2.training import sharding_of_rank
from llmcalc.frameworks.ranks import Cluster
from llmcalc.frameworks.registry import framework as framework_named
from llmcalc.parallel.layout import Layout
from llmcalc.simulator.aten import Aten
from llmcalc.simulator.autograd import AutogradGraph
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.lowering import UnsupportedKernel
from llmcalc.simulator.meter import Meter
from llmcalc.simulator.profiles.context_parallel import (
    ContextParallelRing,
    RingKernels,
    context_parallel_ring,
    sequence_tokens_of_rank,
)
from llmcalc.simulator.tensor import BFLOAT16, empty
from tests.rank_replays import replay_sharded_rank
from tests.simulator.witness import Alive

SHAPE = BATCH, HEADS, ROWS, SIZE = 2, 4, 24, 16


class Followed(Alive):
    """Follows storages, and not the tensors around what is under way."""

    def _track_tensor(self, tensor: torch.Tensor, func: Any) -> None:
        if not isinstance(tensor, AsyncCollectiveTensor):
            super()._track_tensor(tensor, func)


def flash(query: torch.Tensor, *_: Any, **__: Any) -> Any:
    """The results of the flash kernel, which a CPU does not have."""
    random = torch.empty(2, dtype=torch.int64), torch.empty((), dtype=torch.int64)
    return torch.empty_like(query), torch.empty(query.shape[:-1], dtype=torch.float32), *random


def flash_backward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> Any:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def by_torch(ring: ContextParallelRing, heads_first: bool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most of the forward pass, after it, the most of the backward pass, and after it; beside q, k and v."""
    monkeypatch.setattr(torch.nn.functional, "logsigmoid", torch.sigmoid)  # on a GPU it takes nothing beside its result
    dist.init_process_group("fake", rank=ring.rank, world_size=ring.ranks, store=FakeStore())
    try:
        group: Any = dist.group.WORLD
        _attention.set_rotate_method("allgather" if ring.uses_all_gather else "alltoall")
        watch = Followed(device="cpu")
        with watch:
            q, k, v = (_made(heads_first, torch.zeros, torch.bfloat16) for _ in range(3))
            before = watch.peak = watch.now
            out, sums, seed, offset = _attention._templated_ring_attention(group, 2, flash, q, k, v, is_causal=True)
            found = [watch.peak, watch.now]
            gradient = torch.empty_like(q)
            watch.peak = watch.now
            kept = _attention._templated_ring_attention_backward(
                group, 2, flash_backward, gradient, "grad_out", q, k, v, out, sums, is_causal=True
            )
            found += [watch.peak, watch.now]
            del kept, seed, offset
        return [one - before for one in found]
    finally:
        dist.destroy_process_group()


def _made(heads_first: bool, make: Callable[..., torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    made = make((BATCH, HEADS, ROWS, SIZE) if heads_first else (BATCH, ROWS, HEADS, SIZE), dtype=dtype)
    return made if heads_first else made.transpose(1, 2)


def replayed(ring: ContextParallelRing, heads_first: bool) -> list[int]:
    meter = Meter()
    graph = AutogradGraph(meter)
    if heads_first:
        q, k, v = (empty(meter, SHAPE, BFLOAT16) for _ in range(3))
    else:
        q, k, v = (Aten(graph).transpose(empty(meter, (BATCH, ROWS, HEADS, SIZE), BFLOAT16), 1, 2) for _ in range(3))
    before, kernels = meter.live_bytes, RingKernels(graph, ring, allocates_workspace=False)
    with graph.no_grad():
        meter.restart()
        out, sums, *others = kernels.forward(q, k, v)
        bytes_by_moment = [meter.peak_bytes, meter.live_bytes]
        gradient = graph.new_tensor(q.shape, q.dtype, q.strides)
        meter.restart()
        input_gradients = kernels.backward(gradient, q, k, v, out, sums)
        bytes_by_moment += [meter.peak_bytes, meter.live_bytes]
        del input_gradients, others
    return [one - before for one in bytes_by_moment]


@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("heads_first", [True, False])
def test_a_ring_holds_what_torch_does(gathers: bool, heads_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for ranks in (2, 3, 4):
        for rank in range(ranks):
            ring = ContextParallelRing(ranks, rank, gathers)
            assert replayed(ring, heads_first) == by_torch(ring, heads_first, monkeypatch)


# --- in a model -------------------------------------------------------------------------------------------------------

SPEC = llmcalc.load("llama3-8b", num_hidden_layers=4, hidden_size=512, num_attention_heads=8, head_dim=64).model

HOW = TrainingConfig(seq=512, kernel_choices=KernelChoices(attention="flash"))


def test_ranks_of_a_sequence_share_parameters_and_tokens() -> None:
    """Of 2 replicas with 4 ranks each: 8 shards, and a quarter of the tokens, whose attention sees all."""
    layout = Layout(dp=2, cp=4, zero=3)
    assert [sharding_of_rank(HOW, layout, rank).shard_index for rank in range(8)] == list(range(8))
    assert sharding_of_rank(HOW, layout, 0).shard_count == 8
    ring, alone = fsdp_memory(SPEC, HOW, layout), fsdp_memory(SPEC, replace(HOW, seq=128), Layout(dp=8, zero=3))
    assert ring.after_step_bytes == alone.after_step_bytes
    assert alone.exact_bytes <= ring.exact_bytes < fsdp_memory(SPEC, HOW, Layout(dp=8, zero=3)).exact_bytes


def test_ranks_of_a_sequence_in_a_pipeline() -> None:
    training = replace(HOW, microbatches=4)
    layouts = (Layout(dp=4, pp=2, zero=3, reshard=False), Layout(dp=2, cp=2, pp=2, zero=3, reshard=False))
    alone, ring = (replay_sharded_rank(SPEC, training, layout, 0) for layout in layouts)
    assert ring.set_up_bytes == alone.set_up_bytes
    assert ring.peak[1].bytes < alone.peak[1].bytes


def test_rings() -> None:
    layout = Layout(dp=2, cp=4, zero=3, cp_comm="allgather")
    assert context_parallel_ring(layout, 6) == ContextParallelRing(4, 2, uses_all_gather=True)
    assert context_parallel_ring(replace(layout, cp_comm="p2p"), 5) == ContextParallelRing(4, 1, uses_all_gather=False)
    assert context_parallel_ring(Layout(dp=8, zero=3), 3) is None
    assert sequence_tokens_of_rank(layout, 1024) == 256


@pytest.mark.parametrize(
    ("layout", "seq", "message"),
    [
        (Layout(dp=2, cp=4, zero=3), 1020, "each rank of --cp 4 has 2 parts of it; expected 1016"),
        (Layout(dp=2, cp=4, zero=3, cp_comm="a2a"), 1024, "--cp-comm a2a: torch exchanges keys and values in a ring"),
    ],
)
def test_what_does_not_divide_is_refused(layout: Layout, seq: int, message: str) -> None:
    with pytest.raises(InputError) as error:
        sequence_tokens_of_rank(layout, seq)
    assert message in str(error.value)


@pytest.mark.parametrize(("name", "attention"), [("llama3-8b", "eager"), ("mistral-7b", "flash")])
def test_other_attention_is_refused(name: str, attention: Any) -> None:
    spec = llmcalc.load(name, num_hidden_layers=2).model
    with pytest.raises(UnsupportedKernel, match="--cp 2 takes causal attention without a window in flash kernels"):
        fsdp_memory(
            spec, TrainingConfig(seq=64, kernel_choices=KernelChoices(attention=attention)), Layout(dp=2, cp=2, zero=3)
        )


@pytest.mark.parametrize("layout", [Layout(dp=2, cp=2, zero=3), Layout(cp=2, tp=2, zero=3, sequence_parallel=True)])
def test_a_walk_of_a_ring_is_close_to_its_replay(layout: Layout) -> None:
    """What a walk leaves out is a layer's gathered weights, and the step of the optimizer."""
    settings = Settings(phase="training", seq=4096, attn_implementation="flash")
    one = memory(llmcalc.load("qwen3-0.6b").model, settings)
    device = Cluster.with_framework(one, layout, "fsdp2").device_rank.device
    bytes = device.exact_bytes + one.cuda_runtime.context_bytes
    assert framework_named("fsdp2").estimate(one).largest_rank_bytes(layout, 1) == pytest.approx(bytes, rel=0.06)


@pytest.mark.parametrize("comm", ["allgather", "p2p"])
def test_rounds_that_do_the_same_change_no_peak(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate leaves them out."""
    settings = Settings(phase="training", seq=32768, attn_implementation="flash")
    one_rank_memory = memory(llmcalc.load("qwen3-0.6b").model, settings)
    layout = Layout(cp=16, zero=3, cp_comm=comm)
    assert len(ContextParallelRing(16, 0, runs_only_peak_rounds=True).rounds()) < 16
    short = framework_named("fsdp2").estimate(one_rank_memory).largest_rank_bytes(layout, 1)
    monkeypatch.setattr(ContextParallelRing, "rounds", lambda self: list(range(self.ranks)))
    assert framework_named("fsdp2").estimate(one_rank_memory).largest_rank_bytes(layout, 1) == short
