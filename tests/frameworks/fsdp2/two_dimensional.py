"""Training steps of the reference with torchtitan's plan of tensor and sequence parallelism under `fully_shard`, on a
fake process group of two dimensions, and the same steps replayed.

Tensors have values, as the loss on divided logits looks up rows by a mask; collective operations move none.
Source of the plan: torchtitan/models/llama3/infra/parallelize.py, `apply_tp` (torchtitan/parallelisms at 9dec370).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch._dynamo  # a first optimizer step imports it, and would count what it allocates
import torch.distributed as dist
from torch import nn
from torch._subclasses import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from llmcalc.device_memory.training import TrainingConfig
from llmcalc.frameworks.fsdp2.training import TORCHTITAN_FSDP_SETTINGS, FsdpSettings
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.witnesses import kernel_variants
from llmcalc.witnesses.module_measurements import default_dtype
from tests.frameworks.fsdp2 import fully_sharded
from tests.frameworks.fsdp2.fully_sharded import Followed, Steps, Tracker, is_layer, shard_layers

KINDS = {
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "all_reduce",
}
"""torch's name of a collective operation, of FSDP and of distributed tensors → its kind."""


class Sent(TorchDispatchMode):
    """Counts collective operations, with the bytes of the larger of their two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, (DTensor, AsyncCollectiveTensor)) for one in types):
            return NotImplemented  # a distributed tensor first takes the operation apart
        out = func(*args, **(kwargs or {}))
        kind = KINDS.get(func._overloadpacket.__name__) if func.namespace in ("c10d", "_c10d_functional") else None
        if kind is not None:
            tensors = args[0] if isinstance(args[0], list) else [*args[:2], out]
            sizes = [one.untyped_storage().nbytes() for one in tensors if isinstance(one, torch.Tensor)]
            self.found[kind, max(sizes)] += 1
        return out


class Parts(Followed):
    """Follows the local parts of distributed tensors, without hooks on modules."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, (DTensor, AsyncCollectiveTensor)) for one in types):
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _track_tensor(self, tensor: torch.Tensor, func: Any) -> None:
        if not isinstance(tensor, (AsyncCollectiveTensor, FakeTensor)):  # shapes are found on fake tensors
            super()._track_tensor(tensor, func)


ROWS = ("o_proj", "down_proj")
"""Linear layers that each rank has some inputs of, whose outputs are sums over ranks."""

HEAD_NORMS = ("q_norm", "k_norm")
"""Norms of the heads of a rank, [batch, heads, tokens, size]."""


def divide(model: Any, mesh: Any, divides_loss: bool) -> None:
    """torchtitan's `apply_tp` in the names of the reference. divides_loss: whether it is computed on divided logits."""
    plan: dict[str, Any] = {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "lm_head": ColwiseParallel(
            input_layouts=Shard(1),
            output_layouts=Shard(-1) if divides_loss else Replicate(),
            use_local_output=not divides_loss,
        ),
    }
    for name, layer in model.named_modules():
        if not is_layer(name):
            continue
        for below, module in layer.named_children():
            path = f"{name}.{below}"
            if not [*module.children()]:  # a norm, before a module or of its output
                plan[path] = SequenceParallel(use_local_output="_pre_" not in below)
                continue
            plan[path] = PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None))
            for own, part in module.named_children():
                if isinstance(part, nn.Linear):
                    style = RowwiseParallel(output_layouts=Shard(1)) if own in ROWS else ColwiseParallel()
                    plan[f"{path}.{own}"] = style
                elif own in HEAD_NORMS:
                    plan[f"{path}.{own}"] = SequenceParallel(sequence_dim=1, use_local_output=True)
    tied = model.lm_head.weight is model.embed_tokens.weight
    parallelize_module(model, mesh, plan, src_data_rank=None)
    if tied:
        model.lm_head.weight = model.embed_tokens.weight


def sharded(spec: ModelSpec, training: TrainingConfig, layout: Layout, fsdp: FsdpSettings, mesh: Any) -> Any:
    """The reference, divided, and then sharded as torchtitan does it."""
    with default_dtype(getattr(torch, fsdp.dtype)):
        model: Any = spec.reference()
    divide(model, mesh["tp"], fsdp.uses_loss_parallel)
    kernel_variants.apply_kernel_choices(model, training.kernel_choices, training.recompute)
    if not layout.zero:
        model.set_requires_gradient_sync = lambda _: None  # which `fully_shard` would have given it
        return model
    shard_layers(
        model, training, layout, fsdp, mesh["replicas", "shards"] if layout.hsdp_replicas > 1 else mesh["shards"]
    )
    return model


@contextmanager
def process_group(layout: Layout, rank: int) -> Iterator[Any]:
    """The mesh of a fake process group, of which nothing is left in torch's caches of placements."""
    dist.init_process_group("fake", rank=rank, world_size=layout.world_size, store=FakeStore())
    sizes, names = (layout.shard_count, layout.tp), ("shards", "tp")
    if layout.hsdp_replicas > 1:
        sizes, names = (layout.hsdp_replicas, *sizes), ("replicas", *names)
    try:
        yield init_device_mesh("cpu", sizes, mesh_dim_names=names)
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()


def by_torch(
    spec: ModelSpec,
    training: TrainingConfig,
    layout: Layout,
    rank: int,
    fsdp: FsdpSettings = TORCHTITAN_FSDP_SETTINGS,
    watch: Any = Tracker,
    beside: Any = None,
) -> Steps:
    """Steps of the reference. beside: a further dispatch mode, around the steps."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")

        @contextmanager
        def around_steps() -> Iterator[None]:
            with loss_parallel() if fsdp.uses_loss_parallel else nullcontext(), beside or nullcontext():
                yield

        return fully_sharded.by_torch(
            spec, training, layout, rank, fsdp, watch, around_steps(), False, process_group, sharded
        )
