"""Divides llmcalc's PyTorch model over processes with torch's own tools.

A plan of tensor parallelism names the modules of a layer whose rows or columns are divided; it is made of the modules
themselves. A stage of a pipeline is the model with some of its layers. The model of each process computes on its part
of heads and widths, which its modules find from the shapes that they get.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from ...errors import InputError

COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Linear layers that each process has some outputs of."""

ROWS = ("o_proj", "down_proj")
"""Linear layers that each process has some inputs of, whose outputs are sums over processes."""


def divide_products(module: Any, mesh: DeviceMesh) -> None:
    """Divides heads, widths and the vocabulary over a mesh.

    Raises `InputError` for a module with parameters that no rule is known for.
    """
    ranks = mesh.size()
    plan: dict[str, ParallelStyle] = dict(_plan(module))
    undivided = {name: one for name, one in module.named_parameters() if name.rpartition(".")[0] not in plan}
    for name, one in undivided.items():
        if one.dim() > 1:
            raise InputError(f"--distributed: --tp {ranks}: no rule to divide {name}; expected --tp 1")
    tied = module.lm_head.weight is module.embed_tokens.weight
    for part in module.modules():
        if "AttentionReference" in type(part).__name__:
            part.heads, part.kv_heads = part.heads // ranks, part.kv_heads // ranks
    parallelize_module(module, mesh, plan)
    if tied:
        module.lm_head.weight = module.embed_tokens.weight


def _plan(module: Any) -> Iterator[tuple[str, ParallelStyle]]:
    if hasattr(module, "embed_tokens"):
        yield "embed_tokens", RowwiseParallel(input_layouts=Replicate())
    for name, part in module.named_modules():
        names = {own for own, one in part.named_children() if isinstance(one, nn.Linear)}
        if not names or not names <= {*COLUMNS, *ROWS}:
            continue
        whole = (Replicate(),)
        yield name, PrepareModuleInput(input_layouts=(*whole, None), desired_input_layouts=(*whole, None))
        for own in names:
            yield f"{name}.{own}", ColwiseParallel() if own in COLUMNS else RowwiseParallel()
    if hasattr(module, "lm_head"):
        yield "lm_head", ColwiseParallel(use_local_output=False)


def shard(module: Any, mesh: DeviceMesh, reshard: bool, dtype: torch.dtype) -> None:
    """Wraps every layer and then the model by `fully_shard`; the last layer stays gathered, as in torchtitan."""
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for i, layer in enumerate(module.layers):
        last = i == len(module.layers) - 1
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard and not last)
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)


class Received(nn.Module):
    """In the place of an embedding: what another stage has sent."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def keep_stage(module: Any, layers: range, first: bool, last: bool) -> None:
    """Leaves the layers of one stage of a pipeline, with the embedding before the first and the head after the last."""
    kept = nn.ModuleList(module.layers[i] for i in layers)
    for one in (module, module._only[0]):
        one.layers = kept
        if not last and hasattr(one, "norm"):
            del one.norm
    if not last:
        del module.lm_head
    if not first:
        module.embed_tokens = Received()
