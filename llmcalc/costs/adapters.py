"""Closed forms of low-rank adapters: the tensors that LoRA trains (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar, get_args

from ..algebra import Number, add, is_zero, times
from ..errors import InputError, suggest
from ..flow.module_names import ModuleNames
from ..flow.tree import Node, NodePosition
from ..frozen import frozen
from ..ops import ExpertLinear, Linear, ParamTensor
from ..optional import TOWERS
from ..workload.lora import (
    ALL_LINEAR,
    JOINED_PROJECTIONS,
    PARALLEL_LIBRARIES,
    PRODUCTS_WITHOUT_ADAPTERS,
    PROJECTIONS,
    FrozenWeightFormat,
    Library,
    stored_bytes,
)
from .adapter_targets import (
    ClassLayer,
    has_weight_read_by_scan,
    joined_layers,
    layers_of_projections,
    linear_layers,
    split_matched_targets,
)
from .trained_tensors import TrainedTensor, is_in_layer

FROZEN_WEIGHT_FORMATS: tuple[FrozenWeightFormat, ...] = get_args(FrozenWeightFormat)

DEFAULT_TARGETS = ("q_proj", "v_proj")
"""Linear layers that get adapters in most models if PEFT's `target_modules` is not set (peft/utils/constants.py)."""

ENCODER_INPUT_NAME = "patch_embedding"
"""Name of an encoder's first matrix product, on pixels or frames, which transformers classes run as a convolution."""


@frozen
class LowRankAdapters:
    """Low-rank adapters (LoRA), which are trained on top of frozen base weights.

    rank: inner width of every adapter.
    target_names: names of the linear layers with an adapter.
    base_format: storage format of the frozen matrices.
    library: the library of the adapters.
    trained_modules: names of modules of which a full copy is trained.
    quantized_head: whether a quantised base includes an output head of its own; false by default.
    has_fused_qkv: whether queries, keys and values are one linear layer; false by default.
    quantized_experts: whether a base in 4 bits includes routed experts; false by default.
    adapts_experts: whether routed experts have adapters, too, as PEFT has them beside fused weights; false by default.
    has_dora_magnitudes: whether an adapter trains the magnitude of each output, too (DoRA); false by default.
    joined_layers: the projections that the model's class has in one layer, with one adapter; none by default.
    missing_targets: default targets of which the model has no layer; none by default.
    """

    rank: int
    target_names: frozenset[str]
    base_format: FrozenWeightFormat = "none"
    library: Library = "peft"
    trained_modules: frozenset[str] = frozenset()
    quantized_head: bool = False
    has_fused_qkv: bool = False
    quantized_experts: bool = False
    adapts_experts: bool = False
    has_dora_magnitudes: bool = False
    joined_layers: frozenset[ClassLayer] = frozenset()
    missing_targets: tuple[str, ...] = ()

    def notes(self) -> tuple[str, ...]:
        """Returns a note on default adapter targets that do not exist in the model."""
        if not self.missing_targets:
            return ()
        return (
            f"adapters of {' and '.join(sorted(self.target_names))} alone: the model has no "
            f"{' and no '.join(self.missing_targets)}, which has adapters by default too; --lora-targets {ALL_LINEAR} "
            "adapts every linear layer",
        )

    def adapters(self, node_tree: Node, included_parts: frozenset[str] = frozenset()) -> list[TrainedTensor]:
        """Returns the trained tensors of the adapters: A [rank, in] and B [out, rank] of every adapted layer.

        DoRA has a vector [out] beside them. LitGPT has one A [rank · parts, in] and one B [out, rank] for the adapted
        ones of queries, keys and values. What is one layer of Megatron-Core has one adapter. So has each expert with
        mcore-bridge; with Megatron-Bridge all experts of a rank share one, of which that of one rank is counted. PEFT's
        have one per expert and fused weight.
        """
        tensors = (
            self._adapters_of_experts(node_tree, included_parts) if self.is_parallel or self.adapts_experts else []
        )
        for joint_layers in self._jointly_computed_layers(node_tree, included_parts):
            adapted_products = [
                (linear_tree_node, op)
                for linear_tree_node, op in joint_layers
                if linear_tree_node.node.name in self.target_names
            ]
            if adapted_products:
                (tree_node, op), out_width = adapted_products[0], 0
                for _, linear_op in adapted_products:
                    out_width = add(out_width, linear_op.n_out)
                rank = self.rank * (len(adapted_products) if self.library == "litgpt" else 1)
                adapter_matrices = [
                    ParamTensor((rank, op.n_in), "matrix"),
                    ParamTensor((out_width, self.rank), "matrix"),
                ]
                for tensor in [
                    *adapter_matrices,
                    *([ParamTensor((out_width,), "vector")] if self.has_dora_magnitudes else []),
                ]:
                    tensors.append(TrainedTensor(tensor, tree_node.kind, tree_node.copies))
        return tensors

    def _adapters_of_experts(self, node_tree: Node, included_parts: frozenset[str]) -> list[TrainedTensor]:
        """Returns the adapters of routed experts of Megatron-Core, or of the fused experts of transformers.

        PEFT gives a fused weight the rank of all matrices in it (peft/utils/transformers_weight_conversion.py).
        """
        tensors = []
        for joint_layers in _groups_of_fused_layers(_expert_layers(node_tree, included_parts), _library_layer_name):
            tree_node, expert_op = joint_layers[0]
            if tree_node.node.name in self.target_names or self.adapts_experts:
                expert_count = expert_op.num_experts if self.adapts_experts or self.library == "mcore-bridge" else 1
                rank = self.rank * (1 if self.is_parallel else len(joint_layers))
                for shape in ((rank, expert_op.n_in), (sum(op.n_out for _, op in joint_layers), rank)):
                    copy_count = times(expert_count, tree_node.copies)
                    tensors.append(TrainedTensor(ParamTensor(shape, "matrix"), tree_node.kind, copy_count))
        return tensors

    def fully_trained_tensors(
        self, node_tree: Node, included_parts: frozenset[str] = frozenset()
    ) -> list[TrainedTensor]:
        """Returns the tensors that are trained in full besides the adapters, tied weights included."""
        tensors = []
        for tree_node in node_tree.walk():
            op, counted_op = tree_node.node.op, tree_node.counted_op
            if (
                counted_op is None
                or tree_node.node.name not in self.trained_modules
                or tree_node.optional_part not in {"", *included_parts}
            ):
                continue
            copied_tensors = (
                (ParamTensor((op.n_out, op.n_in), "matrix"),) if isinstance(op, Linear) else counted_op.tensors()
            )
            tensors += [TrainedTensor(tensor, tree_node.kind, tree_node.copies) for tensor in copied_tensors]
        return tensors

    def quantized_base_count_and_bytes(
        self, node_tree: Node, included_parts: frozenset[str] = frozenset()
    ) -> tuple[Number, Number]:
        """Returns (number of quantized base weights, their bytes including scales).

        These are the matrices of linear layers in the layers and in included encoders, an output head with
        `quantized_head`, and routed experts with `quantized_experts`. A shared matrix is counted at its owner. Routers
        are parameters of transformers' classes, not linear layers, which bitsandbytes leaves as they are. So are most
        encoders' convolutions over pixels. Mamba-2's output projection stays, too.
        """
        weight_count: Number = 0
        total_bytes: Number = 0
        if self.base_format == "none":
            return weight_count, total_bytes
        outer_layers = [
            [layer]
            for layer in linear_layers(node_tree, included_parts, is_in_layers=False)
            if (layer[0].kind == "lm_head" and self.quantized_head)
            or (layer[0].optional_part == TOWERS.name and layer[0].node.name != ENCODER_INPUT_NAME)
        ]
        for joint_layers in [*self._jointly_computed_layers(node_tree, included_parts), *outer_layers]:
            row_count, column_count = 0, joint_layers[0][1].n_in
            for tree_node, op in joint_layers:
                counted_op = tree_node.counted_op
                if (
                    counted_op is not None
                    and counted_op.has_effect("params")
                    and not op.is_tied
                    and tree_node.kind != "router"
                    and not has_weight_read_by_scan(tree_node)
                ):
                    row_count = add(row_count, op.n_out)
            if not is_zero(row_count):
                copy_count = joint_layers[0][0].copies
                weight_count = add(weight_count, times(row_count * column_count, copy_count))
                total_bytes = add(
                    total_bytes, times(stored_bytes(self.base_format, row_count, column_count), copy_count)
                )
        for tree_node, expert_op in _expert_layers(node_tree, included_parts) if self.quantized_experts else ():
            row_count = expert_op.num_experts * expert_op.n_out
            weight_count = add(weight_count, times(row_count * expert_op.n_in, tree_node.copies))
            total_bytes = add(
                total_bytes, times(stored_bytes(self.base_format, row_count, expert_op.n_in), tree_node.copies)
            )
        return weight_count, total_bytes

    def uncounted_expert_adapters(
        self, node_tree: Node, included_parts: frozenset[str] = frozenset()
    ) -> list[TrainedTensor]:
        """Returns adapters on routed experts that PEFT may add, uncounted, if all linear layers are targets."""
        if (
            self.adapts_experts
            or self.library != "peft"
            or not self.target_names >= {*linear_layer_names(node_tree, included_parts)}
        ):
            return []
        return replace(self, adapts_experts=True)._adapters_of_experts(node_tree, included_parts)

    def _jointly_computed_layers(
        self, node_tree: Node, included_parts: frozenset[str]
    ) -> Iterator[list[tuple[NodePosition, Linear]]]:
        """Yields groups of linear layers inside transformer layers; each group is computed as one matrix product."""
        yield from _groups_of_fused_layers(
            linear_layers(node_tree, included_parts),
            _library_layer_name if self.is_parallel else self._joined_layer_name,
        )

    def _joined_layer_name(self, tree_node: NodePosition) -> str:
        """Returns the fused layer's name for a projection that is computed with others; empty for a separate one."""
        projection_name, parent_tree_node = tree_node.node.name, tree_node.parent
        if self.has_fused_qkv or self.library == "litgpt":
            return "qkv_proj" if projection_name in PROJECTIONS else ""
        module_name = "" if parent_tree_node is None else parent_tree_node.node.name
        return next(
            (
                layer.layer
                for layer in self.joined_layers
                if (layer.module, layer.projection) == (module_name, projection_name)
            ),
            "",
        )

    @property
    def is_parallel(self) -> bool:
        """Whether the adapters run in parallel to Megatron-Core's linear layers."""
        return self.library in PARALLEL_LIBRARIES


LinearType = TypeVar("LinearType", Linear, ExpertLinear)


def _library_layer_name(tree_node: NodePosition) -> str:
    """Returns the name of Megatron-Core's fused layer that contains a projection; empty for a separate projection."""
    return "joined" if tree_node.node.name in JOINED_PROJECTIONS else ""


def _groups_of_fused_layers(
    layers: Iterable[tuple[NodePosition, LinearType]], layer_name_of: Callable[[NodePosition], str]
) -> Iterator[list[tuple[NodePosition, LinearType]]]:
    """Yields groups of adjacent linear layers of a module that one fused layer computes as one product."""
    all_layers = list(layers)  # their parents exist until the end: identity tells them apart
    for (_, layer_name), group in groupby(all_layers, lambda layer: (id(layer[0].parent), layer_name_of(layer[0]))):
        if layer_name:
            yield list(group)
        else:
            yield from ([layer] for layer in group)


def _expert_layers(node_tree: Node, included_parts: frozenset[str]) -> Iterator[tuple[NodePosition, ExpertLinear]]:
    """Yields the linear layers of experts whose parameters no other node shares, each with its operation."""
    for tree_node in node_tree.walk():
        op, counted_op = tree_node.node.op, tree_node.counted_op
        if (
            isinstance(op, ExpertLinear)
            and tree_node.optional_part in {"", *included_parts}
            and counted_op is not None
            and counted_op.has_effect("params")
        ):
            yield tree_node, op


def linear_layer_names(
    node_tree: Node, included_parts: frozenset[str] = frozenset(), is_parallel: bool = False
) -> list[str]:
    """Returns the distinct names of the linear layers inside the model's layers.

    is_parallel: whether they are those of Megatron-Core, which include experts, but no router.
    """
    layer_names = dict.fromkeys(tree_node.node.name for tree_node, _ in linear_layers(node_tree, included_parts))
    if is_parallel:
        layer_names |= dict.fromkeys(tree_node.node.name for tree_node, _ in _expert_layers(node_tree, included_parts))
    return [layer_name for layer_name in layer_names if not (is_parallel and layer_name in PRODUCTS_WITHOUT_ADAPTERS)]


def adapters_of_targets(
    node_tree: Node,
    adapters: LowRankAdapters,
    target_projections: Sequence[str] | None = None,
    included_parts: frozenset[str] = frozenset(),
    module_names_of: ModuleNames | None = None,
    joins_as_class: bool = False,
) -> LowRankAdapters:
    """Returns the low-rank adapters on the layers that `target_projections` names.

    target_projections: names of linear layers, here or in the model's class, or `all-linear`; default those of queries
        and values, of which the model may lack one: PEFT adapts the modules that match.
    module_names_of: names of the modules in the model's class; None if they are not known.
    joins_as_class: whether layers that the model's class computes as one have one adapter; false by default.
    Raises `InputError`, which names the option, for an unknown target, module or base.
    """
    if adapters.base_format not in FROZEN_WEIGHT_FORMATS:
        raise InputError(
            f"--base {adapters.base_format}: not known; expected one of {', '.join(FROZEN_WEIGHT_FORMATS)}"
        )
    _check_expert_adapters(node_tree, adapters, included_parts)
    _check_magnitudes(adapters)
    layer_names = linear_layer_names(node_tree, included_parts, adapters.is_parallel)
    layers_of_class = layers_of_projections(node_tree, included_parts, module_names_of)
    joined_projections = joined_layers(target_projections or (), layers_of_class) if joins_as_class else frozenset()
    requested_targets = _default_target_names(joined_projections) if target_projections is None else target_projections
    target_names, unknown_targets = split_matched_targets(requested_targets, layer_names, layers_of_class)
    missing_targets: list[str] = []
    if target_projections is None:
        missing_targets, unknown_targets = unknown_targets, []
        if not target_names:
            raise InputError(
                f"--lora-targets: missing; the model has no {' and no '.join(missing_targets)}, which would have "
                f"adapters by default; add --lora-targets {ALL_LINEAR}, or some of {', '.join(layer_names)}"
            )
    elif list(target_projections) == [ALL_LINEAR]:
        target_names, unknown_targets = list(layer_names), []
    for target_name in unknown_targets:
        names_in_class = {layer.projection: layer.layer for layer in joined_projections}
        known_names = list(dict.fromkeys(names_in_class.get(layer_name, layer_name) for layer_name in layer_names))
        raise InputError(
            f"--lora-targets {target_name}: no linear layer has that name; expected some of {', '.join(known_names)}, "
            f"or {ALL_LINEAR}.{suggest(target_name, known_names)}"
        )
    if not target_names:
        raise InputError(f"--lora-targets: names no layer; expected {ALL_LINEAR}, or some of {', '.join(layer_names)}")
    _check_scan_gradients(node_tree, target_names, included_parts)
    _check_joined_targets(node_tree, adapters, target_names, included_parts)
    _check_trained_modules(node_tree, adapters)
    return replace(
        adapters,
        target_names=frozenset(target_names),
        joined_layers=joined_projections,
        missing_targets=tuple(missing_targets),
    )


def _default_target_names(joined_projections: frozenset[ClassLayer]) -> tuple[str, ...]:
    """Returns PEFT's default targets: query and value projections, or the fused layer that contains both."""
    layer_names = [layer.layer for layer in joined_projections if layer.projection in DEFAULT_TARGETS]
    return tuple(dict.fromkeys(layer_names)) or DEFAULT_TARGETS


def _check_expert_adapters(node_tree: Node, adapters: LowRankAdapters, included_parts: frozenset[str]) -> None:
    """Raises `InputError` for expert adapters without PEFT, on quantized experts, or in a model without experts."""
    if not adapters.adapts_experts:
        return
    if adapters.library != "peft":
        raise InputError(f"--lora-experts: {adapters.library} has no such adapters; expected --lora-library peft")
    if adapters.quantized_experts:
        raise InputError("--lora-experts with --quantized-experts: not modelled together; expected one of them")
    if not any(_expert_layers(node_tree, included_parts)):
        raise InputError("--lora-experts: the model has no routed experts; expected no such option")


def _check_magnitudes(adapters: LowRankAdapters) -> None:
    """Raises `InputError` for DoRA's magnitude vectors on adapters or base weights for which DoRA is not modelled."""
    if not adapters.has_dora_magnitudes:
        return
    if adapters.library not in ("peft", "torchtune"):
        raise InputError(f"--use-dora: {adapters.library} has no DoRA; expected --lora-library peft or torchtune")
    if adapters.adapts_experts:
        raise InputError("--use-dora with --lora-experts: PEFT has no DoRA of experts; expected one of them")
    if adapters.base_format == "int8":
        raise InputError("--use-dora with --base int8: not modelled together; expected --base nf4, nf4-dq or none")


def _check_scan_gradients(node_tree: Node, target_names: Collection[str], included_parts: frozenset[str]) -> None:
    """Raises `InputError` if a fused scan kernel reads all adapted weights directly, so that none has gradients."""
    linear_positions = (tree_node for tree_node, _ in linear_layers(node_tree, included_parts))
    adapted_layers = [tree_node for tree_node in linear_positions if tree_node.node.name in target_names]
    if adapted_layers and all(map(has_weight_read_by_scan, adapted_layers)):
        raise InputError(
            f"--lora-targets {', '.join(target_names)}: the kernel of the scan reads that weight itself, so that no "
            "adapter has a gradient; expected further layers, such as in_proj"
        )


def _check_joined_targets(
    node_tree: Node, adapters: LowRankAdapters, target_names: Sequence[str], included_parts: frozenset[str]
) -> None:
    """Raises `InputError` if the targets name only some of the projections that one fused layer computes."""
    layers = (
        _groups_of_fused_layers(linear_layers(node_tree, included_parts), _library_layer_name)
        if adapters.is_parallel
        else ()
    )
    for joined_layer in layers:
        fused_names = [tree_node.node.name for tree_node, _ in joined_layer]
        if 0 < len(set(fused_names) & set(target_names)) < len(fused_names):
            raise InputError(
                f"--lora-targets {','.join(target_names)}: {', '.join(fused_names)} are one layer beside "
                f"which {adapters.library} has one adapter; expected all or none of them"
            )


def _check_trained_modules(node_tree: Node, adapters: LowRankAdapters) -> None:
    """Raises `InputError` for a fully trained module that the model does not have outside its layers."""
    outer_modules = [
        tree_node.node.name
        for tree_node in node_tree.walk()
        if tree_node.node.op is not None and not is_in_layer(tree_node)
    ]
    for copied_module in sorted(adapters.trained_modules):
        if copied_module not in outer_modules:
            module_names_text = ", ".join(dict.fromkeys(outer_modules))
            raise InputError(f"--modules-to-save {copied_module}: no such module; expected some of {module_names_text}")
