"""Divides llmcalc's PyTorch model over processes with torch's own tools.

A plan of tensor parallelism names the modules of a layer whose rows or columns are divided; it is made of the modules
themselves. A stage of a pipeline is the model with some of its layers. The model of each process computes on its part
of heads and widths, which its modules find from the shapes that they get.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_module
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


BELOW = ("embed_positions", "embed_norm", "input_proj", "embed_proj")
"""What stands between the embedding and the first layer."""


class Whole(ParallelStyle):
    """A module that every process has whole and runs on the same input, as in torchtitan (`NoParallel`)."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        entered: Any = self._entered
        left: Any = self._left
        return distribute_module(module, device_mesh, self._replicated, entered, left)

    @staticmethod
    def _replicated(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for own, one in [*module.named_parameters(recurse=False)]:
            whole = DTensor.from_local(one.detach(), mesh, (Replicate(),), run_check=False)
            module.register_parameter(own, nn.Parameter(whole))

    @staticmethod
    def _entered(module: nn.Module, given: tuple[torch.Tensor], mesh: DeviceMesh) -> DTensor:
        return DTensor.from_local(given[0], mesh, (Replicate(),), run_check=False)

    @staticmethod
    def _left(module: nn.Module, out: DTensor, mesh: DeviceMesh) -> torch.Tensor:
        return out.to_local()


def divide_products(module: Any, mesh: DeviceMesh) -> None:
    """Divides heads, widths and the vocabulary over a mesh.

    Raises `InputError` for a module with parameters that no rule is known for.
    """
    tied = hasattr(module, "lm_head") and module.lm_head.weight is getattr(module.embed_tokens, "weight", None)
    plan: dict[str, ParallelStyle] = {}
    for name, part in module.named_modules():
        heads = getattr(part, "kv_heads", mesh.size())
        if heads % mesh.size():
            raise InputError(f"--distributed: --tp {mesh.size()} does not divide {heads} key heads of {name}")
        plan |= _rules(name, part)
    for name, _ in module.named_parameters():
        if name.rpartition(".")[0] not in plan:
            raise InputError(f"--distributed: --tp {mesh.size()}: no rule to divide {name}; expected --tp 1")
    parallelize_module(module, mesh, plan, src_data_rank=None)  # every process has the same values
    if tied:
        module.lm_head.weight = module.embed_tokens.weight


def _rules(name: str, part: nn.Module) -> dict[str, ParallelStyle]:
    """How a module is divided: its path, or the paths of those in it → a style. Empty if another module says so."""
    above, _, own = name.rpartition(".")
    if own == "embed_tokens" and not above:
        if isinstance(part, Received):
            return {}
        return {name: RowwiseParallel(input_layouts=Replicate())}
    if own == "lm_head":
        return {name: ColwiseParallel(use_local_output=False)}
    in_layer = above.rpartition(".")[0] == "layers"
    if (in_layer or not above) and [*part.parameters(recurse=False)]:
        return {name: Whole()}
    linear = {own for own, one in part.named_children() if isinstance(one, nn.Linear)}
    if not in_layer or not linear:
        return {}
    given = Replicate(), None  # the gradient of what all of its products read is summed once
    styles: dict[str, ParallelStyle] = {name: PrepareModuleInput(input_layouts=given, desired_input_layouts=given)}
    for own in linear:
        if own in COLUMNS:
            styles[f"{name}.{own}"] = ColwiseParallel()
        elif own in ROWS:
            styles[f"{name}.{own}"] = RowwiseParallel()
    return styles


def shard(module: Any, mesh: DeviceMesh, reshard: bool, dtype: torch.dtype, prefetch: int = 0) -> None:
    """Wraps every layer and then the model by `fully_shard`.

    The last layer and the model around the layers stay gathered, as in torchtitan.
    prefetch: how many further layers each layer gathers ahead of them.
    """
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for i, layer in enumerate(module.layers):
        last = i == len(module.layers) - 1
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard and not last)
        layer.forward = partial(_opened, layer.forward)
        layer.register_forward_pre_hook(_closed, prepend=True)
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    layers = list(module.layers)
    for i, layer in enumerate(layers):
        if prefetch and i + prefetch < len(layers):
            layer.set_modules_to_forward_prefetch(layers[i + 1 : i + 1 + prefetch])
        if prefetch and i >= prefetch:
            layer.set_modules_to_backward_prefetch(layers[i - prefetch : i][::-1])


class Closed:
    """Holds what layers of the reference share, of which FSDP would make a copy for each layer."""

    def __init__(self, run: Any) -> None:
        self.run = run


def _closed(layer: nn.Module, given: tuple[Any, Any]) -> tuple[Any, Closed]:
    return given[0], Closed(given[1])


def _opened(forward: Callable[..., torch.Tensor], x: torch.Tensor, closed: Closed) -> torch.Tensor:
    return forward(x, closed.run)


class Received(nn.Module):
    """In the place of an embedding: what another stage has sent."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def keep_stage(module: Any, layers: range, first: bool, last: bool) -> None:
    """Leaves the layers of one stage of a pipeline, with the embedding before the first and the head after the last."""
    kept = nn.ModuleList(module.layers[i] for i in layers)
    for one in (module, module._only[0]):
        one.layers = kept
        gone = (() if first else BELOW) + (() if last else ("norm",))
        for name in gone:
            if hasattr(one, name):
                delattr(one, name)
    if not last:
        del module.lm_head
    if not first:
        module.embed_tokens = Received()
        module._only[0]._token_types = ()
    module.forward = partial(module.forward, grouped_experts=True)
