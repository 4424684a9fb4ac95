"""Counts of parameters: in total, active per token, and by component."""

from __future__ import annotations

from ..algebra import Number
from ..flow.tree import CountedOp, Node, cost_by_kind
from ..frozen import frozen
from ..model import ModelSpec


def total_params_of(counted_op: CountedOp) -> Number:
    """Returns the parameters of an operation; a tied weight counts once."""
    return counted_op.params()


def active_params_of(counted_op: CountedOp) -> Number:
    """Returns the parameters of an operation that process a given token."""
    return counted_op.active_params()


def buffer_elements_of(counted_op: CountedOp) -> Number:
    """Returns the number of elements in an operation's buffers, which are in the checkpoint but not trained."""
    return counted_op.buffers()


@frozen
class ParameterCount:
    """The parameters of one model. include: optional parts that the total includes (`mtp`, `towers`)."""

    spec: ModelSpec
    tree: Node
    include: frozenset[str] = frozenset()

    @property
    def total(self) -> Number:
        return self.tree.total(total_params_of, include=self.include)

    @property
    def active(self) -> Number:
        """Active parameters per token: all parameters except experts that are not selected for the token.

        This is the maximum: no expert of the token is an identity expert.
        """
        return self.tree.total(active_params_of, include=self.include)

    @property
    def active_at_least(self) -> Number:
        """Active parameters of a token routed to as many identity experts as possible; else equal to `active`."""
        return self.active - self.tree.total(CountedOp.max_skipped_params, include=self.include)

    @property
    def active_evenly(self) -> Number:
        """Average active parameters if all experts, including identity experts, are selected equally often.

        The average is rounded down in each layer.
        """
        return self.active - self.tree.total(CountedOp.mean_skipped_params, include=self.include)

    @property
    def buffers(self) -> Number:
        """Buffer elements that checkpoints store in addition to the parameters."""
        return self.tree.total(buffer_elements_of, include=self.include)

    @property
    def embedding(self) -> Number:
        """Parameters of the input embeddings (tokens, positions, segments), which include a tied output head."""
        return self.by_component.get("embedding", 0)

    @property
    def non_embedding(self) -> Number:
        """Parameters without input embeddings and without an untied output head: Kaplan's N (2020, §2.1)."""
        return self.total - self.embedding - self.by_component.get("lm_head", 0)

    @property
    def by_component(self) -> dict[str, Number]:
        """Parameters by component; the components are disjoint and add up to `total`."""
        return cost_by_kind(self.tree, total_params_of, included_parts=self.include)

    @property
    def left_out(self) -> dict[str, Number]:
        """Returns the parameters of each optional part that the total excludes, by the part's name."""
        left_out_params: dict[str, Number] = {}
        for tree_node in self.tree.walk():
            option_name = tree_node.node.optional
            if option_name and option_name not in self.include:
                left_out_params[option_name] = left_out_params.get(option_name, 0) + tree_node.total(total_params_of)
        return left_out_params


def params(spec: ModelSpec, included_parts: frozenset[str] = frozenset()) -> ParameterCount:
    """Counts the parameters of a model.

    included_parts: optional parts to include (`mtp`, `towers`).
    """
    return ParameterCount(spec, spec.tree(), included_parts)
