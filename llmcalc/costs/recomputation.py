"""FLOPs of recomputation in training: activation checkpointing (Chen et al. 2016, arXiv:1604.06174)."""

from __future__ import annotations

from collections.abc import Iterator

from ..algebra import Number, exact_div, times
from ..errors import InputError
from ..flow.program import ModuleScope
from ..flow.tree import CountedOp, NodePosition
from ..model import ModelSpec
from ..ops import AttentionCore, Linear
from ..ops.products import Conv1d
from ..workload.recompute import NO_RECOMPUTATION, Recompute, check_node_names
from ..workload.run_config import RunConfig

VERBS_THAT_SAVE_NO_INPUT = ("add", "dropout", "hold", "keep", "state", "enter", "leave")
"""Recorder verbs that save no input for the backward pass; dropout is included, as published models run without it."""


def _attention_flops(counted_op: CountedOp) -> Number:
    """Returns an operation's forward FLOPs of attention scores and weighted values."""
    is_attention = isinstance(counted_op.op, AttentionCore) and "no_grad" not in counted_op.roles
    return counted_op.forward_flops() if is_attention else 0


def _convolution_flops(counted_op: CountedOp) -> Number:
    """Returns a convolution's forward FLOPs, which selective checkpointing recomputes; 0 for other operations."""
    return counted_op.forward_flops() if isinstance(counted_op.op, Conv1d) else 0


def recomputed_flops(spec: ModelSpec, run_config: RunConfig, included_parts: frozenset[str] = frozenset()) -> Number:
    """Counts the FLOPs that recomputation adds if it runs every layer in full, as reentrant checkpointing does.

    Raises `InputError` for a module that no layer has, and if every other operation is recomputed.
    """
    recompute, flops_sum = run_config.execution.recompute, 0
    if run_config.phase != "training" or recompute == NO_RECOMPUTATION:
        return flops_sum
    if recompute.modules:
        raise InputError("--recompute: the FLOPs of Megatron-Core's modules are not counted; expected nodes:A,B")
    if recompute.alternate:
        raise InputError(
            "--recompute: the FLOPs of every other product are not counted; expected attention+matmuls or full"
        )
    if recompute.nodes:
        check_node_names(
            recompute.nodes,
            (
                module_path_in_layer
                for layer_node, _ in _distinct_layers_and_scopes(spec, run_config)
                for module_path_in_layer, _ in _modules_inside_layer(layer_node)
            ),
        )
    for layer_node, _ in _distinct_layers_and_scopes(spec, run_config):
        if recompute.core:
            flops_sum += layer_node.cost_in_model(_attention_flops, included_parts)
        elif recompute.layers:
            flops_of_op = _convolution_flops if recompute.saved_operations else CountedOp.forward_flops
            flops_sum += times(
                layer_node.cost_per_repeat(flops_of_op, included_parts), _recomputed_layer_count(layer_node, recompute)
            )
        else:
            flops_sum += sum(
                tree_node.cost_in_model(CountedOp.forward_flops, included_parts)
                for module_path, tree_node in _modules_inside_layer(layer_node)
                if module_path in recompute.nodes
            )
    return flops_sum


def skipped_by_early_stop(
    spec: ModelSpec, run_config: RunConfig, included_parts: frozenset[str] = frozenset()
) -> Number:
    """Counts the FLOPs that non-reentrant checkpointing saves over reentrant checkpointing by an early stop.

    It stops when the last tensor that the backward pass needs has been recomputed. If a layer or module ends in a
    matrix product or a convolution, followed at most by additions, that product is not recomputed. If it ends in a
    norm, in dropout, in a gate or in the weighted sum of experts, every product is recomputed. Attention scores end in
    their product with the values.
    """
    recompute, flops_sum = run_config.execution.recompute, 0
    if run_config.phase != "training" or recompute == NO_RECOMPUTATION or recompute.saved_operations:
        return flops_sum
    for layer_node, module_scope in _distinct_layers_and_scopes(spec, run_config):
        if recompute.core:
            flops_sum += layer_node.cost_in_model(_value_product_flops, included_parts)
        elif recompute.layers:
            flops_sum += times(
                _last_product_flops(module_scope, layer_node), _recomputed_layer_count(layer_node, recompute)
            )
        else:
            modules = {
                module_path: layer_module
                for module_path, layer_module in _scopes_inside_layer(module_scope)
                if module_path in recompute.nodes
            }
            modules_of_layer = [
                (tree_node, modules[module_path])
                for module_path, tree_node in _modules_inside_layer(layer_node)
                if module_path in modules
            ]
            flops_sum += sum(
                times(_last_product_flops(layer_module, tree_node), tree_node.copies)
                for tree_node, layer_module in modules_of_layer
            )
    return flops_sum


def _value_product_flops(counted_op: CountedOp) -> Number:
    """Returns the forward FLOPs of attention's product of weights and values; 0 for other operations."""
    if not isinstance(counted_op.op, AttentionCore) or "no_grad" in counted_op.roles:
        return 0
    return exact_div(counted_op.forward_flops() * counted_op.op.v_dim, counted_op.op.qk_dim + counted_op.op.v_dim)


def _last_product_flops(module_scope: ModuleScope, tree_node: NodePosition) -> Number:
    """Counts the FLOPs of a module's last matrix product; 0 if another operation is last."""
    op = _last_matrix_product(module_scope)
    return 0 if op is None else CountedOp(op, tree_node.roles, tree_node.run_config).forward_flops()


def _distinct_layers_and_scopes(spec: ModelSpec, run_config: RunConfig) -> Iterator[tuple[NodePosition, ModuleScope]]:
    """Returns, for each distinct layer of the model, the node and the operations of its forward pass."""
    node_positions = [tree_node for tree_node in spec.tree().walk(run_config) if tree_node.node.kind == "layer"]
    layer_scopes = [
        module_scope
        for module_scope in spec.shared_program.root.scopes()
        if module_scope.node_fields.get("kind") == "layer"
    ]
    return zip(node_positions, layer_scopes, strict=True)


def _recomputed_layer_count(layer_node: NodePosition, recompute: Recompute) -> Number:
    """Returns how many of the equal layers of a node are recomputed."""
    if recompute.every == 1:
        return layer_node.copies
    layer_indices = range(layer_node.copies) if layer_node.node.indices is None else layer_node.node.indices
    return sum(recompute.includes_layer(layer_index) for layer_index in layer_indices)


def _modules_inside_layer(layer_node: NodePosition, parent_path: str = "") -> Iterator[tuple[str, NodePosition]]:
    """Yields (path relative to the layer, module) for all modules inside a layer."""
    for child_scope in layer_node.children():
        module_path = f"{parent_path}{child_scope.node.name}"
        yield module_path, child_scope
        yield from _modules_inside_layer(child_scope, f"{module_path}.")


def _scopes_inside_layer(module_scope: ModuleScope, parent_path: str = "") -> Iterator[tuple[str, ModuleScope]]:
    """Yields (path relative to the layer, operations) for all modules inside a layer."""
    for program_item in module_scope.items:
        if isinstance(program_item, ModuleScope):
            module_path = f"{parent_path}{program_item.name}"
            yield module_path, program_item
            yield from _scopes_inside_layer(program_item, f"{module_path}.")


def _last_matrix_product(module_scope: ModuleScope) -> Linear | Conv1d | None:
    """Returns a layer's last matrix product or convolution if only additions and dropout follow; otherwise None."""
    last_product = None
    for operation in module_scope.steps(includes_idle=False):
        if operation.verb not in VERBS_THAT_SAVE_NO_INPUT:
            last_product = operation
    return last_product.op if last_product is not None and isinstance(last_product.op, (Linear, Conv1d)) else None
