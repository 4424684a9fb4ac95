"""Closed forms of low-rank adapters: the tensors that LoRA trains (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar, get_args

from ..algebra import Number, add, is_zero, times
from ..errors import InputError, suggest
from ..flow.tree import Node, Place
from ..frozen import frozen
from ..ops import ExpertLinear, Linear, ParamTensor
from ..workload.lora import (
    ALL_LINEAR,
    JOINED_PROJECTIONS,
    PARALLEL_LIBRARIES,
    PROJECTIONS,
    WITHOUT_ADAPTERS,
    Base,
    Library,
    stored_bytes,
)
from .trained_tensors import TrainedTensor, is_in_layer

BASES: tuple[Base, ...] = get_args(Base)


@frozen
class LowRank:
    """LoRA adapters for frozen weights.

    rank: inner width of every adapter.
    targets: names of the linear layers with an adapter.
    base: storage format of the frozen matrices.
    library: the library of the adapters.
    copies: names of modules of which a full copy is trained.
    quantized_head: whether a quantised base includes an output head of its own; false by default.
    fused_qkv: whether queries, keys and values are one linear layer; false by default.
    quantized_experts: whether a base in 4 bits includes routed experts; false by default.
    experts: whether routed experts have adapters, too, as PEFT has them beside fused weights; false by default.
    has_magnitudes: whether an adapter trains the magnitude of each output, too (DoRA); false by default.
    """

    rank: int
    targets: frozenset[str]
    base: Base = "none"
    library: Library = "peft"
    copies: frozenset[str] = frozenset()
    quantized_head: bool = False
    fused_qkv: bool = False
    quantized_experts: bool = False
    experts: bool = False
    has_magnitudes: bool = False

    def adapters(self, tree: Node, extra_parts: frozenset[str] = frozenset()) -> list[TrainedTensor]:
        """Returns the trained tensors of the adapters: A [rank, in] and B [out, rank] of every adapted layer.

        DoRA has a vector [out] beside them. LitGPT has one A [rank · parts, in] and one B [out, rank] for the adapted
        ones of queries, keys and values. What is one layer of Megatron-Core has one adapter. So has each expert with
        mcore-bridge; with Megatron-Bridge all experts of a rank share one, of which that of one rank is counted. PEFT's
        have one per expert and fused weight.
        """
        tensors = self._adapters_of_experts(tree, extra_parts) if self.is_parallel or self.experts else []
        for linear_group in self._layer_products(tree, extra_parts):
            adapted_products = [
                (node_position, op) for node_position, op in linear_group if node_position.node.name in self.targets
            ]
            if adapted_products:
                (node_position, op), out_width = adapted_products[0], 0
                for _, linear in adapted_products:
                    out_width = add(out_width, linear.n_out)
                rank = self.rank * (len(adapted_products) if self.library == "litgpt" else 1)
                matrices = [ParamTensor((rank, op.n_in), "matrix"), ParamTensor((out_width, self.rank), "matrix")]
                for tensor in [*matrices, *([ParamTensor((out_width,), "vector")] if self.has_magnitudes else [])]:
                    tensors.append(TrainedTensor(tensor, node_position.kind, node_position.times))
        return tensors

    def _adapters_of_experts(self, tree: Node, extra_parts: frozenset[str]) -> list[TrainedTensor]:
        """Returns the adapters of routed experts of Megatron-Core, or of the fused experts of transformers.

        PEFT gives a fused weight the rank of all matrices in it (peft/utils/transformers_weight_conversion.py).
        """
        tensors = []
        for linear_group in _joined_layers(_expert_layers(tree, extra_parts), JOINED_PROJECTIONS):
            node_position, experts = linear_group[0]
            if node_position.node.name in self.targets or self.experts:
                expert_count = experts.num_experts if self.experts or self.library == "mcore-bridge" else 1
                rank = self.rank * (1 if self.is_parallel else len(linear_group))
                for shape in ((rank, experts.n_in), (sum(op.n_out for _, op in linear_group), rank)):
                    copy_count = times(expert_count, node_position.times)
                    tensors.append(TrainedTensor(ParamTensor(shape, "matrix"), node_position.kind, copy_count))
        return tensors

    def trained_copies(self, tree: Node, extra_parts: frozenset[str] = frozenset()) -> list[TrainedTensor]:
        """Returns the tensors of fully trained modules besides the adapters, including tied weights."""
        tensors = []
        for node_position in tree.walk():
            op, op_use = node_position.node.op, node_position.use
            if (
                op_use is None
                or node_position.node.name not in self.copies
                or node_position.optional not in {"", *extra_parts}
            ):
                continue
            matrix = (ParamTensor((op.n_out, op.n_in), "matrix"),) if isinstance(op, Linear) else op_use.tensors()
            tensors += [TrainedTensor(tensor, node_position.kind, node_position.times) for tensor in matrix]
        return tensors

    def quantized_base(self, tree: Node, extra_parts: frozenset[str] = frozenset()) -> tuple[Number, Number]:
        """Returns (number of quantized weights, bytes with scales).

        These are the matrices of linear layers in the layers, an output head with `quantized_head`, and routed experts
        with `quantized_experts`. A shared matrix is counted at its owner. Routers are parameters of transformers'
        classes, not linear layers, which bitsandbytes leaves as they are.
        """
        weights: Number = 0
        total_bytes: Number = 0
        if self.base == "none":
            return weights, total_bytes
        heads = [[linear] for linear in _linear_layers(tree, extra_parts, layers=False) if linear[0].kind == "lm_head"]
        for linear_group in [*self._layer_products(tree, extra_parts), *(heads if self.quantized_head else [])]:
            rows, columns = 0, linear_group[0][1].n_in
            for node_position, op in linear_group:
                op_use = node_position.use
                if op_use is not None and op_use.has("params") and not op.tied and node_position.kind != "router":
                    rows = add(rows, op.n_out)
            if not is_zero(rows):
                copy_count = linear_group[0][0].times
                weights = add(weights, times(rows * columns, copy_count))
                total_bytes = add(total_bytes, times(stored_bytes(self.base, rows, columns), copy_count))
        for node_position, experts in _expert_layers(tree, extra_parts) if self.quantized_experts else ():
            rows = experts.num_experts * experts.n_out
            weights = add(weights, times(rows * experts.n_in, node_position.times))
            total_bytes = add(total_bytes, times(stored_bytes(self.base, rows, experts.n_in), node_position.times))
        return weights, total_bytes

    def uncounted_adapters(self, tree: Node, extra_parts: frozenset[str] = frozenset()) -> list[TrainedTensor]:
        """Returns the routed experts' adapters that PEFT may add if every linear layer is a target."""
        if self.experts or self.library != "peft" or not self.targets >= {*linear_layer_names(tree, extra_parts)}:
            return []
        return replace(self, experts=True)._adapters_of_experts(tree, extra_parts)

    def _layer_products(self, tree: Node, extra_parts: frozenset[str]) -> Iterator[list[tuple[Place, Linear]]]:
        """Yields groups of linear layers in transformer layers; the layers of a group run as one product."""
        fuses_qkv = self.fused_qkv or self.library == "litgpt"
        joined_names = JOINED_PROJECTIONS if self.is_parallel else frozenset(PROJECTIONS if fuses_qkv else ())
        yield from _joined_layers(_linear_layers(tree, extra_parts), joined_names)

    @property
    def is_parallel(self) -> bool:
        """Whether the adapters run in parallel to Megatron-Core's linear layers."""
        return self.library in PARALLEL_LIBRARIES


Layer = TypeVar("Layer", Linear, ExpertLinear)


def _joined_layers(
    layers: Iterable[tuple[Place, Layer]], joined_names: frozenset[str]
) -> Iterator[list[tuple[Place, Layer]]]:
    """Yields groups of neighbouring layers with the given names that run as one product."""
    pending_layers: list[tuple[Place, Layer]] = []
    for node_position, op in layers:
        is_joined = node_position.node.name in joined_names
        if pending_layers and not (is_joined and pending_layers[0][0].parent is node_position.parent):
            yield pending_layers
            pending_layers = []
        if is_joined:
            pending_layers.append((node_position, op))
        else:
            yield [(node_position, op)]
    if pending_layers:
        yield pending_layers


def _linear_layers(tree: Node, extra_parts: frozenset[str], layers: bool = True) -> Iterator[tuple[Place, Linear]]:
    """Yields every linear layer inside (`layers`) or outside of the transformer layers, with the operation."""
    for node_position in tree.walk():
        op = node_position.node.op
        if (
            isinstance(op, Linear)
            and node_position.optional in {"", *extra_parts}
            and is_in_layer(node_position) == layers
        ):
            yield node_position, op


def _expert_layers(tree: Node, extra_parts: frozenset[str]) -> Iterator[tuple[Place, ExpertLinear]]:
    """Yields the experts' linear layers with separate parameters, with the operation."""
    for node_position in tree.walk():
        op, op_use = node_position.node.op, node_position.use
        if (
            isinstance(op, ExpertLinear)
            and node_position.optional in {"", *extra_parts}
            and op_use is not None
            and op_use.has("params")
        ):
            yield node_position, op


def linear_layer_names(tree: Node, extra_parts: frozenset[str] = frozenset(), is_parallel: bool = False) -> list[str]:
    """Returns the distinct names of the linear layers inside the model's layers.

    is_parallel: whether they are those of Megatron-Core, which include experts, but no router.
    """
    layer_names = dict.fromkeys(node_position.node.name for node_position, _ in _linear_layers(tree, extra_parts))
    if is_parallel:
        layer_names |= dict.fromkeys(node_position.node.name for node_position, _ in _expert_layers(tree, extra_parts))
    return [layer_name for layer_name in layer_names if not (is_parallel and layer_name in WITHOUT_ADAPTERS)]


def low_rank(
    tree: Node, adapters: LowRank, targets: Sequence[str], extra_parts: frozenset[str] = frozenset()
) -> LowRank:
    """Returns the adapters of the target layers: names of linear layers, or `all-linear`.

    Raises `InputError`, which names the option, for an unknown target, module or base.
    """
    if adapters.base not in BASES:
        raise InputError(f"--base {adapters.base}: not known; expected one of {', '.join(BASES)}")
    _check_expert_adapters(tree, adapters, extra_parts)
    _check_magnitudes(adapters)
    layer_names = linear_layer_names(tree, extra_parts, adapters.is_parallel)
    target_names = list(layer_names) if list(targets) == [ALL_LINEAR] else list(targets)
    for name in target_names:
        if name not in layer_names:
            raise InputError(
                f"--lora-targets {name}: no linear layer has that name; expected some of {', '.join(layer_names)}, or "
                f"{ALL_LINEAR}.{suggest(name, layer_names)}"
            )
    _check_joined_targets(tree, adapters, target_names, extra_parts)
    _check_copied_modules(tree, adapters)
    return replace(adapters, targets=frozenset(target_names))


def _check_expert_adapters(tree: Node, adapters: LowRank, extra_parts: frozenset[str]) -> None:
    """Raises `InputError` for experts' adapters that the library, the base format or the model does not support."""
    if not adapters.experts:
        return
    if adapters.library != "peft":
        raise InputError(f"--lora-experts: {adapters.library} has no such adapters; expected --lora-library peft")
    if adapters.quantized_experts:
        raise InputError("--lora-experts with --quantized-experts: not modelled together; expected one of them")
    if not any(_expert_layers(tree, extra_parts)):
        raise InputError("--lora-experts: the model has no routed experts; expected no such option")


def _check_magnitudes(adapters: LowRank) -> None:
    """Raises `InputError` for DoRA magnitudes with a library, expert adapters or a base that does not support them."""
    if not adapters.has_magnitudes:
        return
    if adapters.library not in ("peft", "torchtune"):
        raise InputError(f"--use-dora: {adapters.library} has no DoRA; expected --lora-library peft or torchtune")
    if adapters.experts:
        raise InputError("--use-dora with --lora-experts: PEFT has no DoRA of experts; expected one of them")
    if adapters.base == "int8":
        raise InputError("--use-dora with --base int8: not modelled together; expected --base nf4, nf4-dq or none")


def _check_joined_targets(
    tree: Node, adapters: LowRank, target_names: Sequence[str], extra_parts: frozenset[str]
) -> None:
    """Raises `InputError` if the targets name only a part of several projections that share one adapter."""
    joined_layers = (
        _joined_layers(_linear_layers(tree, extra_parts), JOINED_PROJECTIONS) if adapters.is_parallel else ()
    )
    for joined_layer in joined_layers:
        fused_names = [node_position.node.name for node_position, _ in joined_layer]
        if 0 < len(set(fused_names) & set(target_names)) < len(fused_names):
            raise InputError(
                f"--lora-targets {','.join(target_names)}: {', '.join(fused_names)} are one layer beside "
                f"which {adapters.library} has one adapter; expected all or none of them"
            )


def _check_copied_modules(tree: Node, adapters: LowRank) -> None:
    """Raises `InputError` for a copied module that the model does not have outside its layers."""
    outside_layers = [
        node_position.node.name
        for node_position in tree.walk()
        if node_position.node.op is not None and not is_in_layer(node_position)
    ]
    for module_name in sorted(adapters.copies):
        if module_name not in outside_layers:
            modules = ", ".join(dict.fromkeys(outside_layers))
            raise InputError(f"--modules-to-save {module_name}: no such module; expected some of {modules}")
