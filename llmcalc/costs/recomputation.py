"""FLOPs of what runs a second time in training: activation checkpointing (Chen et al. 2016, arXiv:1604.06174)."""

from __future__ import annotations

from collections.abc import Iterator

from ..algebra import Number, exact_div, times
from ..errors import InputError
from ..flow.program import Scope
from ..flow.tree import Place, Use
from ..model import ModelSpec
from ..ops import AttentionCore, Linear
from ..ops.products import Conv1d
from ..workload.recompute import NONE, Recompute, check_nodes
from ..workload.run_config import RunConfig

SAVES_NOTHING = ("add", "dropout", "hold", "keep", "enter", "leave")
"""Verbs that save no input for the backward pass. Dropout is one of them because published models run without it."""


def _cores_of(use: Use) -> Number:
    """Cost: forward FLOPs of attention scores and of their products with values."""
    attends = isinstance(use.op, AttentionCore) and "no_grad" not in use.roles
    return use.forward_flops() if attends else 0


def _not_kept_of(use: Use) -> Number:
    """Cost: forward FLOPs of what selective checkpointing does not keep: convolutions, whose FLOPs are counted too."""
    return use.forward_flops() if isinstance(use.op, Conv1d) else 0


def recomputed(spec: ModelSpec, run_config: RunConfig, include: frozenset[str] = frozenset()) -> Number:
    """FLOPs of the second forward pass, of everything that runs again to its end, as reentrant checkpointing does.

    Raises `InputError` for a module that no layer has, and for operations of which every other one runs again.
    """
    how, total = run_config.execution.recompute, 0
    if run_config.phase != "training" or how == NONE:
        return total
    if how.alternate:
        raise InputError(
            "--recompute: the FLOPs of every other product are not counted; expected attention+matmuls or full"
        )
    if how.nodes:
        check_nodes(how.nodes, (path for layer, _ in _layers(spec, run_config) for path, _ in _below(layer)))
    for layer, _ in _layers(spec, run_config):
        if how.core:
            total += layer.in_all(_cores_of, include)
        elif how.layers:
            cost = _not_kept_of if how.kept else Use.forward_flops
            total += times(layer.each(cost, include), _again(layer, how))
        else:
            total += sum(place.in_all(Use.forward_flops, include) for path, place in _below(layer) if path in how.nodes)
    return total


def skipped_by_early_stop(spec: ModelSpec, run_config: RunConfig, include: frozenset[str] = frozenset()) -> Number:
    """FLOPs by which non-reentrant checkpointing recomputes less than `recomputed`.

    It stops when the last tensor that the backward pass needs has been recomputed. If a layer or module ends in a
    matrix product, followed at most by additions, that product is not recomputed. If it ends in a norm, in dropout, in
    a gate or in the weighted sum of experts, every product is recomputed. Attention scores end in their product with
    the values.
    """
    how, total = run_config.execution.recompute, 0
    if run_config.phase != "training" or how == NONE or how.kept:
        return total
    for layer, scope in _layers(spec, run_config):
        if how.core:
            total += layer.in_all(_values_of, include)
        elif how.layers:
            total += times(_last_of(scope, layer), _again(layer, how))
        else:
            modules = {path: module for path, module in _scopes_below(scope) if path in how.nodes}
            below = [(place, modules[path]) for path, place in _below(layer) if path in modules]
            total += sum(times(_last_of(module, place), place.times) for place, module in below)
    return total


def _values_of(use: Use) -> Number:
    """Cost: forward FLOPs of the products of attention scores with values."""
    if not isinstance(use.op, AttentionCore) or "no_grad" in use.roles:
        return 0
    return exact_div(use.forward_flops() * use.op.v_dim, use.op.qk_dim + use.op.v_dim)


def _last_of(scope: Scope, place: Place) -> Number:
    """FLOPs of the product that a module ends in; 0 if it ends in something else."""
    op = _last_product(scope)
    return 0 if op is None else Use(op, place.roles, place.run_config).forward_flops()


def _layers(spec: ModelSpec, run_config: RunConfig) -> Iterator[tuple[Place, Scope]]:
    """Every kind of layer: its place, and its steps."""
    places = [place for place in spec.tree().walk(run_config) if place.node.kind == "layer"]
    scopes = [scope for scope in spec.program().root.scopes() if scope.about.get("kind") == "layer"]
    return zip(places, scopes, strict=True)


def _again(layer: Place, how: Recompute) -> Number:
    """How many layers of this kind run again: those with every `how.every`-th index."""
    if how.every == 1:
        return layer.times
    indices = range(layer.times) if layer.node.indices is None else layer.node.indices
    return sum(i % how.every == 0 for i in indices)


def _below(layer: Place, above: str = "") -> Iterator[tuple[str, Place]]:
    """Every module of a layer, by its path below the layer."""
    for child in layer.children():
        path = f"{above}{child.node.name}"
        yield path, child
        yield from _below(child, f"{path}.")


def _scopes_below(scope: Scope, above: str = "") -> Iterator[tuple[str, Scope]]:
    """Every module of a layer with its steps, by its path below the layer."""
    for item in scope.items:
        if isinstance(item, Scope):
            path = f"{above}{item.name}"
            yield path, item
            yield from _scopes_below(item, f"{path}.")


def _last_product(layer: Scope) -> Linear | None:
    """The last matrix product of a layer, if only additions and dropout follow it; else None."""
    last = None
    for step in layer.steps(idle=False):
        if step.verb not in SAVES_NOTHING:
            last = step
    return last.op if last is not None and isinstance(last.op, Linear) else None
