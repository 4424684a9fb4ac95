"""Divides llmcalc's PyTorch model over processes with torch's tensor parallelism and `fully_shard`.

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

COLUMN_PARALLEL_LAYERS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Linear layers whose outputs are divided over processes."""

ROW_PARALLEL_LAYERS = ("o_proj", "down_proj")
"""Linear layers whose inputs are divided over processes, and whose outputs are summed."""


BEFORE_LAYERS = ("embed_positions", "embed_norm", "input_proj", "embed_proj")
"""Modules between the embedding and the first layer."""


class ReplicatedModule(ParallelStyle):
    """A module that is replicated on every process and runs on the same input, like torchtitan's `NoParallel`."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        convert_input: Any = self._to_distributed
        convert_output: Any = self._to_local
        return distribute_module(module, device_mesh, self._replicate, convert_input, convert_output)

    @staticmethod
    def _replicate(module_name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        for param_name, parameter in [*module.named_parameters(recurse=False)]:
            replicated_parameter = DTensor.from_local(parameter.detach(), device_mesh, (Replicate(),), run_check=False)
            module.register_parameter(param_name, nn.Parameter(replicated_parameter))

    @staticmethod
    def _to_distributed(module: nn.Module, inputs: tuple[torch.Tensor], device_mesh: DeviceMesh) -> DTensor:
        return DTensor.from_local(inputs[0], device_mesh, (Replicate(),), run_check=False)

    @staticmethod
    def _to_local(module: nn.Module, output: DTensor, device_mesh: DeviceMesh) -> torch.Tensor:
        return output.to_local()


def apply_tensor_parallelism(module: Any, mesh: DeviceMesh) -> None:
    """Shards heads, FFN widths and the vocabulary over a mesh of tensor-parallel ranks.

    Raises `InputError` for a module with parameters that has no rule.
    """
    is_tied = hasattr(module, "lm_head") and module.lm_head.weight is getattr(module.embed_tokens, "weight", None)
    styles_by_path: dict[str, ParallelStyle] = {}
    for module_name, submodule in module.named_modules():
        heads = getattr(submodule, "kv_heads", mesh.size())
        if heads % mesh.size():
            raise InputError(f"--distributed: --tp {mesh.size()} does not divide {heads} key heads of {module_name}")
        styles_by_path |= _parallel_styles(module_name, submodule)
    for module_name, _ in module.named_parameters():
        if module_name.rpartition(".")[0] not in styles_by_path:
            raise InputError(f"--distributed: --tp {mesh.size()}: no rule to divide {module_name}; expected --tp 1")
    parallelize_module(module, mesh, styles_by_path, src_data_rank=None)  # every process has the same values
    if is_tied:
        module.lm_head.weight = module.embed_tokens.weight


def _parallel_styles(module_name: str, submodule: nn.Module) -> dict[str, ParallelStyle]:
    """Returns module path → tensor-parallel style; empty for modules that are not sharded here, such as containers."""
    parent_path, _, linear_name = module_name.rpartition(".")
    if linear_name == "embed_tokens" and not parent_path:
        if isinstance(submodule, StageInputModule):
            return {}
        return {module_name: RowwiseParallel(input_layouts=Replicate())}
    if linear_name == "lm_head":
        return {module_name: ColwiseParallel(use_local_output=False)}
    is_in_layer = parent_path.rpartition(".")[0] == "layers"
    if (is_in_layer or not parent_path) and [*submodule.parameters(recurse=False)]:
        return {module_name: ReplicatedModule()}
    linear_names = {linear_name for linear_name, child in submodule.named_children() if isinstance(child, nn.Linear)}
    if not is_in_layer or not linear_names:
        return {}
    layouts = Replicate(), None  # the gradient of the common input of its linear layers is summed once
    styles_by_path: dict[str, ParallelStyle] = {
        module_name: PrepareModuleInput(input_layouts=layouts, desired_input_layouts=layouts)
    }
    for linear_name in linear_names:
        if linear_name in COLUMN_PARALLEL_LAYERS:
            styles_by_path[f"{module_name}.{linear_name}"] = ColwiseParallel()
        elif linear_name in ROW_PARALLEL_LAYERS:
            styles_by_path[f"{module_name}.{linear_name}"] = RowwiseParallel()
    return styles_by_path


def shard_layers(module: Any, mesh: DeviceMesh, reshards: bool, dtype: torch.dtype, prefetch: int = 0) -> None:
    """Applies `fully_shard` to every layer and then to the whole model.

    The last layer and the model around the layers are not resharded after the forward pass, as in torchtitan.
    prefetch: number of following layers whose parameters each layer all-gathers ahead; default 0.
    """
    precision_policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer_index, layer in enumerate(module.layers):
        is_last_layer = layer_index == len(module.layers) - 1
        fully_shard(layer, mesh=mesh, mp_policy=precision_policy, reshard_after_forward=reshards and not is_last_layer)
        layer.forward = partial(_unwrap_shared_state, layer.forward)
        layer.register_forward_pre_hook(_wrap_shared_state, prepend=True)
    fully_shard(module, mesh=mesh, mp_policy=precision_policy, reshard_after_forward=False)
    outer_layers = list(module.layers)
    for layer_index, layer in enumerate(outer_layers):
        if prefetch and layer_index + prefetch < len(outer_layers):
            layer.set_modules_to_forward_prefetch(outer_layers[layer_index + 1 : layer_index + 1 + prefetch])
        if prefetch and layer_index >= prefetch:
            layer.set_modules_to_backward_prefetch(outer_layers[layer_index - prefetch : layer_index][::-1])


class SharedLayerState:
    """A wrapper of values that layers pass on besides their output; it keeps FSDP from copying them for each layer."""

    def __init__(self, layer_state: Any) -> None:
        self.layer_state = layer_state


def _wrap_shared_state(layer: nn.Module, inputs: tuple[Any, Any]) -> tuple[Any, SharedLayerState]:
    return inputs[0], SharedLayerState(inputs[1])


def _unwrap_shared_state(
    forward: Callable[..., torch.Tensor], x: torch.Tensor, shared_state: SharedLayerState
) -> torch.Tensor:
    return forward(x, shared_state.layer_state)


class StageInputModule(nn.Module):
    """The input module of a later pipeline stage: returns the hidden states of the previous stage."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def remove_other_stages(module: Any, layers: range, is_first_stage: bool, is_last_stage: bool) -> None:
    """Removes the layers of other pipeline stages, and an embedding or head that belongs to another stage."""
    stage_layers = nn.ModuleList(module.layers[layer_index] for layer_index in layers)
    for model_part in (module, module._only[0]):
        model_part.layers = stage_layers
        removed_modules = (() if is_first_stage else BEFORE_LAYERS) + (() if is_last_stage else ("norm",))
        for module_name in removed_modules:
            if hasattr(model_part, module_name):
                delattr(model_part, module_name)
    if not is_last_stage:
        del module.lm_head
    if not is_first_stage:
        module.embed_tokens = StageInputModule()
        module._only[0]._token_types = ()
    module.forward = partial(module.forward, grouped_experts=True)
