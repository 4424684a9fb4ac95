"""A model as one rank of a layout has it, so that whatever is counted from a model can be counted of a rank.

Its tree is that of the rank's program. Two kinds of products do not follow from sizes alone, as ranks share their
tokens: those of experts, whose rows come from all ranks of a group, and with sequence parallelism those that no rank
divides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import PrivateAttr

from ..algebra import Number, same, times
from ..errors import InputError
from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.tree import Node, Place
from ..model import ModelSpec
from ..ops import ExpertLinear, IdentityExperts, Linear
from ..ops.base import Op
from ..ops.shares import ExpertShare, IdentityShare, LinearShare
from ..workload.run_config import RunConfig
from .layout import ALONE, Chunks, Layout, chunks_of
from .rank_program import RankFlow, Shares, axes_of, rank_program


class RankModel(ModelSpec):
    """A model of which one rank's share is recorded. Its fields are those of the whole model."""

    _layout: Layout = PrivateAttr(default=ALONE)
    _rank: int = PrivateAttr(default=0)
    _letters: Layout | None = PrivateAttr(default=None)

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def rank(self) -> int:
        """The number of the rank."""
        return self._rank

    @cached_property
    def chunks(self) -> Chunks:
        """The layers of the rank."""
        layers = sum(stack.num_hidden_layers for _, stack in self.stacks())
        return chunks_of(self._layout, layers, self._layout.at(self._rank).pp)

    def in_letters(self, letters: Layout) -> RankModel:
        """The same rank, with these sizes of groups in the place of its own: the same numbers with their symbols."""
        copy = self.model_copy()
        copy._letters = letters
        return copy

    def program(self, flow: Flow | None = None) -> Flow:
        if flow is not None:
            return super().program(flow)
        if self._letters is None:
            return rank_program(self, self._layout, self._rank, self._stage)
        made = RankFlow(Shares(self._letters, self._layout.at(self._rank)), self._stage)
        super().program(made)
        made.cut()
        return made

    @property
    def whole(self) -> ModelSpec:
        """The whole model."""
        return ModelSpec.model_construct(**{name: getattr(self, name) for name in ModelSpec.model_fields})

    @property
    def _stage(self) -> Chunks | None:
        return None if self._layout.pp == 1 else self.chunks

    @property
    def alone(self) -> Node:
        """The tree of the rank's layers with nothing divided: node by node what the rank has a share of."""
        return rank_program(self, ALONE, 0, self._stage).node()

    @cached_property
    def recorded(self) -> Node:
        """The tree of the rank."""
        return _shared(self.program().node(), self.alone, self._letters or self._layout)

    @property
    def has_whole_products(self) -> bool:
        """Whether it runs a product that no rank of its tensor group divides."""
        return self._layout.tp > 1 and any(
            place.node.op is not None and whole.node.op is not None and _is_whole(place.node.op, whole.node.op)
            for place, whole in zip(self.program().node().walk(), self.alone.walk(), strict=True)
        )

    def copied(self, include: frozenset[str] = frozenset()) -> dict[str, Number]:
        """Component → parameters of this rank that other ranks of its tensor group have too."""
        sums: dict[str, Number] = {}
        for place, whole in zip(self.tree().walk(), self.alone.walk(), strict=True):
            if place.use is None or whole.use is None or (place.optional and place.optional not in include):
                continue
            for own, of in zip(place.use.tensors(), whole.use.tensors(), strict=True):
                if self._is_copied(place, own.size, of.size):
                    sums[place.kind] = sums.get(place.kind, 0) + times(own.size, place.times)
        return sums

    def _is_copied(self, place: Place, own: Number, whole: Number) -> bool:
        """Whether other ranks of the tensor group have the same tensor. own, whole: its elements here, and in all."""
        op, tp = place.node.op, self._layout.tp
        if isinstance(op, ExpertShare):
            return bool(op.ranks * op.parts < tp)
        if place.kind in ("embedding", "lm_head") and own != whole:  # the last part of a vocabulary may be shorter
            return False
        return tp > 1 and bool(own * tp > whole)


class Share(NamedTuple):
    """A rank's share of a model. why: why this rank, in a few words; empty where it was asked for."""

    model: RankModel
    why: str

    @property
    def layout(self) -> Layout:
        return self.model.layout

    @property
    def rank(self) -> int:
        return self.model.rank

    def run_config(self, run: RunConfig) -> RunConfig:
        """The run as this rank computes it, whose sequences and tokens ranks may divide.

        Raises `InputError` for a length that they do not divide, and for phases without divided sequences.
        """
        layout, seq = self.layout, run.workload.seq
        shares_tokens = layout.sequence_parallel or (layout.ep > 1 and layout.expert_tp < layout.tp)
        if shares_tokens and run.batch * seq % layout.tp:
            raise InputError(
                f"--tp {layout.tp}: its ranks divide the {run.batch * seq:,} tokens; expected --batch times --seq in "
                f"multiples of {layout.tp}"
            )
        if layout.cp == 1:
            return run
        if run.phase in ("prefill", "decode"):
            raise InputError(
                f"--cp {layout.cp}: sequences are divided in training; expected --phase forward or training"
            )
        if seq % (2 * layout.cp):
            raise InputError(f"--cp {layout.cp}: expected --seq in multiples of {2 * layout.cp}, not {seq}")
        return replace(run, sequence_ranks=layout.cp)


def of_rank(spec: ModelSpec, layout: Layout, rank: int) -> RankModel:
    """The model as that rank of the layout has it. Sizes that the layout does not divide are refused when counted."""
    made = RankModel.model_construct(**{name: getattr(spec, name) for name in ModelSpec.model_fields})
    made._layout, made._rank = layout, rank
    return made


def heaviest(spec: ModelSpec, layout: Layout, cost: Callable[[RankModel], Number]) -> RankModel:
    """The model as the rank has it of which the cost is the highest; of equal ones the first.

    The first rank of every stage is asked: further ones of its tensor group have as much of everything, or less.
    """
    seen: dict[tuple[Any, ...], RankModel] = {}
    for stage in range(layout.pp):
        one = of_rank(spec, layout, layout.rank(pp=stage))
        kinds = tuple(sum(i in one.chunks.layers for i in which) for which in _layers(spec))
        seen.setdefault((one.chunks.first, one.chunks.last, kinds), one)
    return max(seen.values(), key=lambda one: (cost(one), -one.rank))


def axes_of_model(spec: ModelSpec) -> set[Axis]:
    """Every axis of the values that a model computes."""
    return {axis for step in spec.program().root.steps() for value in step.outs for axis in axes_of(value.axes)}


def _layers(spec: ModelSpec) -> Iterator[Any]:
    """The indices of the layers of each kind."""
    for _, stack in spec.stacks():
        for _, _, count, indices in stack.groups():
            yield range(count) if indices is None else indices


def _shared(node: Node, whole: Node, layout: Layout) -> Node:
    """The rank's tree, with products on shares of tokens in the place of those that run on some of them."""
    children = tuple(_shared(one, other, layout) for one, other in zip(node.children, whole.children, strict=True))
    op = None if node.op is None or whole.op is None else _share(node.op, whole.op, layout)
    forms = {name: _share(form, whole.forms[name], layout) for name, form in node.forms.items()}
    return replace(node, children=children, op=op, forms=forms)


def _share(op: Op, whole: Op, layout: Layout) -> Op:
    """One primitive on the rank. whole: what it is a share of."""
    if isinstance(op, ExpertLinear) and isinstance(whole, ExpertLinear) and same(op.top_k, whole.top_k):
        if layout.ep == layout.expert_tp == layout.tp == 1:
            return op
        return ExpertShare(**_fields(op), ranks=layout.ep, parts=layout.expert_tp, tensor=layout.tp)
    if isinstance(op, IdentityExperts) and isinstance(whole, IdentityExperts):
        return IdentityShare(whole.count, whole.maps, layout.ep * layout.expert_tp)
    if layout.sequence_parallel and layout.tp > 1 and _is_whole(op, whole):
        return LinearShare(**_fields(op), ranks=layout.tp)
    return op


def _is_whole(op: Op, whole: Op) -> bool:
    """Whether it is a product that ranks do not divide."""
    return type(op) is Linear and type(whole) is Linear and same(op.n_in, whole.n_in) and same(op.n_out, whole.n_out)


def _fields(op: Op) -> dict[str, Any]:
    return {one.name: getattr(op, one.name) for one in fields(op)}
