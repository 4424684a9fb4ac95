"""Assertions for test suites that a module has a spec's parameters and FLOPs.

import llmcalc, llmcalc.testing

def test_counts():
    llmcalc.testing.assert_counts(MyModel(), llmcalc.load("my-model.toml"))
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import units
from .arguments import Model, spec_of
from .characters import printable
from .costs.flops import forward_flops_of
from .costs.params import total_params_of
from .errors import InputError, short_repr
from .flow.tree import Node
from .ops.attention import AttentionCore
from .witnesses.module_measurements import count_flops, parameter_counts_by_path
from .witnesses.reference import require_torch
from .workload.run_config import RunConfig
from .workload.workload import Workload

if TYPE_CHECKING:
    from torch import nn


def assert_counts(
    module: nn.Module, spec: Model, *, inputs: tuple[Any, ...] | None = None, batch: int = 1, seq: int | None = None
) -> None:
    """Raises `AssertionError` unless the module has the spec's parameters and, with `inputs`, forward FLOPs.

    The message says how large the difference is and, if the module's layers are in a list, which layers differ.

    module: any `nn.Module`, on any device, `meta` included; a weight that several modules share counts once.
    spec: what to compare with, in any form that `llmcalc.params` takes: a name, a path, a config, a `Preset`.
    inputs: the arguments to call it with, such as token ids [batch, seq]. FLOPs are then compared too, counted as in
        eager attention (every query against every key): `F.scaled_dot_product_attention` is run under
        `SDPBackend.MATH`, because torch's counter has no formula for its fused kernel on a CPU. By default only
        parameters are compared. The module stays on its device, and its buffers and torch's random state are restored.
    batch, seq: the sizes of these inputs, needed if the first is not a tensor of token ids.
    """
    require_torch("assert_counts")
    if not hasattr(module, "named_parameters"):
        raise InputError(f"module: {short_repr(module)} is not an nn.Module; expected the model to compare")
    if inputs is not None and not isinstance(inputs, tuple | list):
        raise InputError("inputs: not a tuple; expected the arguments of the module in one, such as (token_ids,)")
    node_tree = spec_of(spec).tree()
    problem_lines = _parameter_problems(module, node_tree)
    if inputs is not None:
        problem_lines += _flop_problems(module, node_tree, inputs, batch, seq)
    if problem_lines:
        raise AssertionError("\n".join(map(printable, problem_lines)))


@contextmanager
def _restore_buffers(module: nn.Module) -> Iterator[None]:
    """Returns a context manager that restores a module's buffers and torch's random state."""
    import torch

    buffer_copies = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    with torch.random.fork_rng(
        devices=sorted({parameter.get_device() for parameter in module.parameters() if parameter.is_cuda})
    ):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, saved_copy in buffer_copies:
                    buffer.copy_(saved_copy)


def _parameter_problems(module: nn.Module, node_tree: Node) -> list[str]:
    spec_total, counted_params = node_tree.total(total_params_of), parameter_counts_by_path(module)
    module_total = counted_params.get("", 0)
    if module_total == spec_total:
        return []
    difference_text = units.difference(module_total - spec_total)
    problem_lines = [f"parameters: the module has {module_total:,}, the spec {spec_total:,} ({difference_text})"]
    layer_nodes = [layer_node for layer_node in node_tree.children if layer_node.kind == "layer"]
    layer_count = sum(layer_node.repeat for layer_node in layer_nodes)
    module_lists = sorted(
        {
            parameter_path.rpartition(".")[0]
            for parameter_path in counted_params
            if parameter_path.endswith(f".{layer_count - 1}")
        },
        key=len,
    )
    for list_name in module_lists[:1]:
        for layer_node in layer_nodes:
            expected_params = layer_node.cost_per_repeat(total_params_of)
            wrong_layers = {
                layer_index: counted_params.get(f"{list_name}.{layer_index}", 0)
                for layer_index in layer_node.indices or ()
                if counted_params.get(f"{list_name}.{layer_index}", 0) != expected_params
            }
            if wrong_layers:
                layer_index, param_count = next(iter(wrong_layers.items()))
                difference = (
                    f"{units.difference(param_count - expected_params)}; {len(wrong_layers)} of "
                    f"{layer_node.repeat} such "
                    "layers differ"
                )
                problem_lines.append(
                    f"  {list_name}.{layer_index}: {param_count:,}, "
                    f"the spec's {layer_node.path_segment} {expected_params:,} "
                    f"({difference})"
                )
    if len(problem_lines) == 1:
        problem_lines.append(
            "  by the spec: "
            + ", ".join(
                f"{child_node.path_segment} {child_node.total(total_params_of):,}"
                for child_node in node_tree.children
                if child_node.total(total_params_of)
            )
        )
        problem_lines.append(
            "  by the module: "
            + ", ".join(
                f"{module_name} {counted_params[module_name]:,}"
                for module_name, _ in module.named_children()
                if counted_params.get(module_name)
            )
        )
    return problem_lines


def _flop_problems(
    module: nn.Module, node_tree: Node, inputs: tuple[Any, ...], batch: int, seq: int | None
) -> list[str]:
    input_shape: tuple[int, ...] = tuple(getattr(inputs[0], "shape", ()))
    if len(input_shape) == 2:
        batch, seq = input_shape
    if seq is None:
        raise TypeError("assert_counts: seq is required if the first input is not a tensor of token ids [batch, seq]")
    with _restore_buffers(module):
        flops_by_path, _ = count_flops(module, lambda: module(*inputs))
    run_config = RunConfig(Workload(batch=batch, seq=seq))
    spec_flops, measured_flops = node_tree.total(forward_flops_of, run_config), flops_by_path.get("", 0)
    if measured_flops == spec_flops:
        return []
    counts_attention_scores = node_tree.total(
        lambda counted_op: forward_flops_of(counted_op) if isinstance(counted_op.op, AttentionCore) else 0, run_config
    )
    hint_text = ""
    if measured_flops == 0:
        hint_text = (
            " (nothing was counted: the attention kernel or the experts' product is none that torch's FlopCounterMode "
            "knows)"
        )
    elif spec_flops - measured_flops == counts_attention_scores:
        hint_text = (
            " (the difference is attention's products with scores: the module runs a kernel that torch's "
            "FlopCounterMode does not know; F.scaled_dot_product_attention without a backend of its own is counted)"
        )
    return [
        f"forward FLOPs at batch {batch}, seq {seq}: torch counted {measured_flops:,}, the spec gives {spec_flops:,} "
        f"({units.difference(measured_flops - spec_flops)}){hint_text}"
    ]
