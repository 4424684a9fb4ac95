"""A model with the shard sizes of one rank; counts of this model are the counts of the rank.

Its tree is that of the rank's program. For two kinds of products the ranks divide the tokens, which sizes alone do not
show: products of experts, whose rows come from all ranks of a group; and products that sequence parallelism leaves
undivided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from pydantic import PrivateAttr

from ..algebra import Number, are_equal, times
from ..errors import InputError
from ..flow.record import Flow
from ..flow.tree import Node, NodePosition
from ..model import ModelSpec
from ..ops import ExpertLinear, IdentityExperts, Linear
from ..ops.base import Op
from ..ops.rank_shares import ExpertLinearOnRank, IdentityExpertsOnRank, LinearOnRank
from ..workload.run_config import RunConfig
from .layout import ONE_DEVICE, Layout, RankChunks, rank_chunks
from .rank_program import RankAxes, RankFlow, cached_rank_program, has_whole_towers


class RankModel(ModelSpec):
    """A model spec whose program has the shard sizes of one rank, and whose fields are those of the full model."""

    _layout: Layout = PrivateAttr(default=ONE_DEVICE)
    _rank: int = PrivateAttr(default=0)
    _symbolic_layout: Layout | None = PrivateAttr(default=None)
    _divided_model: ModelSpec | None = PrivateAttr(default=None)

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def rank(self) -> int:
        """The number of the rank whose costs are counted."""
        return self._rank

    @cached_property
    def chunks(self) -> RankChunks:
        """The layers of the rank's pipeline stages."""
        return rank_chunks(self._layout, self.layer_count, self._layout.coordinates(self._rank).pp)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied_model = super().model_copy(update=update, deep=deep)
        copied_model._divided_model = None
        return copied_model

    def layer_with_symbols(self, symbolic_layout: Layout) -> RankModel:
        """Returns the model of the same rank with symbols as group sizes, for formulas."""
        symbolic_model = self.model_copy()
        symbolic_model._symbolic_layout = symbolic_layout
        return symbolic_model

    def program(self, flow: Flow | None = None) -> Flow:
        if flow is not None:
            return super().program(flow)
        if self._symbolic_layout is None:
            return cached_rank_program(self._divided_model or self, self._layout, self._rank, self._stage_of_rank)
        coordinates = self._layout.coordinates(self._rank)
        keeps_whole_towers = has_whole_towers(self.full_model, RankAxes(self._layout, coordinates))
        rank_flow = RankFlow(RankAxes(self._symbolic_layout, coordinates), self._stage_of_rank, keeps_whole_towers)
        super().program(rank_flow)
        rank_flow.remove_other_stages()
        return rank_flow

    @property
    def full_model(self) -> ModelSpec:
        """The spec of the full model, before ranks divide it."""
        return ModelSpec.model_construct(
            **{field_name: getattr(self, field_name) for field_name in ModelSpec.model_fields}
        )

    @property
    def _stage_of_rank(self) -> RankChunks | None:
        return None if self._layout.pp == 1 else self.chunks

    @property
    def undivided_tree(self) -> Node:
        """The tree of the rank's layers with unsharded sizes; it has the same nodes as the rank's own tree."""
        return cached_rank_program(self._divided_model or self, ONE_DEVICE, 0, self._stage_of_rank).node()

    @cached_property
    def recorded_tree(self) -> Node:
        """The tree of modules and operations with the sizes of the rank."""
        return _divide_tokens(self.program().node(), self.undivided_tree, self._symbolic_layout or self._layout)

    @property
    def has_undivided_products(self) -> bool:
        """Whether the rank runs a matrix product that tensor parallelism does not divide."""
        return self._layout.tp > 1 and any(
            node_position.node.op is not None
            and undivided_position.node.op is not None
            and _is_undivided(node_position.node.op, undivided_position.node.op)
            for node_position, undivided_position in zip(
                self.program().node().walk(), self.undivided_tree.walk(), strict=True
            )
        )

    def replicated_parameters(self, extra_part_names: frozenset[str] = frozenset()) -> dict[str, Number]:
        """Returns the number of the rank's parameters that tensor parallelism replicates, by component."""
        parameters_by_component: dict[str, Number] = {}
        for node_position, undivided_position in zip(self.tree().walk(), self.undivided_tree.walk(), strict=True):
            if (
                node_position.counted_op is None
                or undivided_position.counted_op is None
                or (node_position.optional_part and node_position.optional_part not in extra_part_names)
            ):
                continue
            for tensor, undivided_tensor in zip(
                node_position.counted_op.tensors(), undivided_position.counted_op.tensors(), strict=True
            ):
                if self._is_copied_on_tp_ranks(node_position, tensor.size, undivided_tensor.size):
                    parameters_by_component[node_position.kind] = parameters_by_component.get(
                        node_position.kind, 0
                    ) + times(tensor.size, node_position.copies)
        return parameters_by_component

    def _is_copied_on_tp_ranks(
        self, node_position: NodePosition, element_count: Number, undivided_count: Number
    ) -> bool:
        """Whether tensor-parallel ranks have equal tensors. Both counts: elements on the rank, and in total."""
        op, tp = node_position.node.op, self._layout.tp
        if isinstance(op, ExpertLinearOnRank):
            return bool(op.rank_count * op.ranks_per_expert < tp)
        # the last part of a vocabulary may be shorter
        if node_position.kind in ("embedding", "lm_head") and element_count != undivided_count:
            return False
        return tp > 1 and bool(element_count * tp > undivided_count)


class SelectedRank(NamedTuple):
    """The model of one rank, and the reason for counting this rank.

    selection_reason: the reason in words; empty if the user named the rank.
    """

    model: RankModel
    selection_reason: str

    @property
    def layout(self) -> Layout:
        return self.model.layout

    @property
    def rank(self) -> int:
        return self.model.rank

    def run_config(self, run_config: RunConfig) -> RunConfig:
        """Returns the run configuration with this rank's part of each sequence.

        Raises `InputError` for a length that the ranks do not divide, and for phases without context parallelism.
        """
        layout, seq = self.layout, run_config.workload.seq
        divides_tokens = layout.sequence_parallel or (layout.ep > 1 and layout.expert_tp < layout.tp)
        if divides_tokens and run_config.batch * seq % layout.tp:
            raise InputError(
                f"--tp {layout.tp}: its ranks divide the {run_config.batch * seq:,} tokens; expected --batch times "
                f"--seq in multiples of {layout.tp}"
            )
        if layout.cp == 1:
            return run_config
        if run_config.phase in ("prefill", "decode"):
            raise InputError(
                f"--cp {layout.cp}: sequences are divided in training; expected --phase forward or training"
            )
        if seq % (2 * layout.cp):
            raise InputError(f"--cp {layout.cp}: expected --seq in multiples of {2 * layout.cp}, not {seq}")
        return replace(run_config, ranks_per_sequence=layout.cp)


def rank_model(spec: ModelSpec, layout: Layout, rank: int) -> RankModel:
    """Returns the model of one rank. Raises `InputError` on access to sizes that the layout does not divide."""
    model = RankModel.model_construct(
        **{field_name: getattr(spec, field_name) for field_name in ModelSpec.model_fields}
    )
    model._layout, model._rank, model._divided_model = layout, rank, spec
    return model


def heaviest_rank(spec: ModelSpec, layout: Layout, rank_cost: Callable[[RankModel], Number]) -> RankModel:
    """Returns the model of the rank with the highest cost; the first rank in a tie.

    Compared are the first ranks of all stages: no other rank of a stage has a higher cost.
    """
    models_by_counts: dict[tuple[Any, ...], RankModel] = {}
    for stage_index in range(layout.pp):
        stage_model = rank_model(spec, layout, layout.rank(pp=stage_index))
        layer_counts = tuple(
            sum(layer_index in stage_model.chunks.layers for layer_index in group_layer_indices)
            for group_layer_indices in _layer_indices(spec)
        )
        models_by_counts.setdefault(
            (stage_model.chunks.has_embedding, stage_model.chunks.has_head, layer_counts), stage_model
        )
    return max(models_by_counts.values(), key=lambda stage_model: (rank_cost(stage_model), -stage_model.rank))


def _layer_indices(spec: ModelSpec) -> Iterator[Any]:
    """Yields the layer indices of each group of equal layers."""
    for _, stack in spec.stacks():
        for _, _, layer_count, layer_indices in stack.layer_groups():
            yield range(layer_count) if layer_indices is None else layer_indices


def _divide_tokens(node: Node, undivided_node: Node, layout: Layout) -> Node:
    """Returns the rank's tree with its operations on the rank's tokens. undivided_node: the same node, unsharded."""
    node_pairs = zip(node.children, undivided_node.children, strict=True)
    children = tuple(_divide_tokens(child, undivided_child, layout) for child, undivided_child in node_pairs)
    op = None if node.op is None or undivided_node.op is None else _divide_op_tokens(node.op, undivided_node.op, layout)
    op_forms = {
        form_name: _divide_op_tokens(op_form, undivided_node.ops_by_form[form_name], layout)
        for form_name, op_form in node.ops_by_form.items()
    }
    return replace(node, children=children, op=op, ops_by_form=op_forms)


def _divide_op_tokens(op: Op, undivided_op: Op, layout: Layout) -> Op:
    """Returns the operation as it runs on this rank's tokens. undivided_op: the operation of the full model."""
    if (
        isinstance(op, ExpertLinear)
        and isinstance(undivided_op, ExpertLinear)
        and are_equal(op.top_k, undivided_op.top_k)
    ):
        if layout.ep == layout.expert_tp == layout.tp == 1:
            return op
        return ExpertLinearOnRank(
            **_op_fields(op), rank_count=layout.ep, ranks_per_expert=layout.expert_tp, tensor_ranks=layout.tp
        )
    if isinstance(op, IdentityExperts) and isinstance(undivided_op, IdentityExperts):
        return IdentityExpertsOnRank(
            undivided_op.identity_count, undivided_op.expert_layers, layout.ep * layout.expert_tp
        )
    if layout.sequence_parallel and layout.tp > 1 and _is_undivided(op, undivided_op):
        return LinearOnRank(**_op_fields(op), rank_count=layout.tp)
    return op


def _is_undivided(op: Op, undivided_op: Op) -> bool:
    """Whether the operation is a matrix product with undivided sizes."""
    return (
        type(op) is Linear
        and type(undivided_op) is Linear
        and are_equal(op.n_in, undivided_op.n_in)
        and are_equal(op.n_out, undivided_op.n_out)
    )


def _op_fields(op: Op) -> dict[str, Any]:
    return {op_field.name: getattr(op, op_field.name) for op_field in fields(op)}
