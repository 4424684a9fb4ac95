"""How many parameters, how many of them one token passes through, and where they are."""

from __future__ import annotations

from dataclasses import dataclass

from ..algebra import Number
from ..flow.tree import Node, Use, by_kind
from ..model import ModelSpec


def total_of(use: Use) -> Number:
    """Cost: parameters, a tied weight once."""
    return use.params()


def active_of(use: Use) -> Number:
    """Cost: parameters one token passes through."""
    return use.active_params()


def buffers_of(use: Use) -> Number:
    """Cost: elements of a checkpoint that no gradient reaches."""
    return use.buffers()


def spared_at_most_of(use: Use) -> Number:
    """Cost: parameters that a token passes fewer than the active ones where as many of its experts as can be
    are identity ones.
    """
    return use.spared_at_most()


def spared_evenly_of(use: Use) -> Number:
    """Cost: the same on average where every expert, real or not, is chosen as often as any other."""
    return use.spared_evenly()


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of one model. `include` holds the optional parts that were asked into the total."""

    spec: ModelSpec
    tree: Node
    include: frozenset[str] = frozenset()

    @property
    def total(self) -> Number:
        return self.tree.total(total_of, include=self.include)

    @property
    def active(self) -> Number:
        """All but the experts that a token is not sent through. Every expert that it is sent to is a real one here,
        which is the most it can pass.
        """
        return self.tree.total(active_of, include=self.include)

    @property
    def active_at_least(self) -> Number:
        """Parameters of a token whose experts are identity ones as far as can be; `active` in a model without any."""
        return self.active - self.tree.total(spared_at_most_of, include=self.include)

    @property
    def active_evenly(self) -> Number:
        """Parameters of the average token where every expert, real or not, is chosen as often as any other;
        rounded down in each layer.
        """
        return self.active - self.tree.total(spared_evenly_of, include=self.include)

    @property
    def buffers(self) -> Number:
        """Elements that checkpoints hold beside the parameters."""
        return self.tree.total(buffers_of, include=self.include)

    @property
    def embedding(self) -> Number:
        """Input tables: tokens, positions, segments. An untied output head is not among them."""
        return self.by_component.get("embedding", 0)

    @property
    def non_embedding(self) -> Number:
        """All but input tables and an untied output head: Kaplan's N (2020, §2.1)."""
        return self.total - self.embedding - self.by_component.get("lm_head", 0)

    @property
    def by_component(self) -> dict[str, Number]:
        """Disjoint, adding up to `total`."""
        return by_kind(self.tree, total_of, include=self.include)

    @property
    def left_out(self) -> dict[str, Number]:
        """Optional parts that the total does not hold, and their parameters."""
        found: dict[str, Number] = {}
        for place in self.tree.walk():
            option = place.node.optional
            if option and option not in self.include:
                found[option] = found.get(option, 0) + place.total(total_of)
        return found


def params(spec: ModelSpec, include: frozenset[str] = frozenset()) -> ParameterCount:
    """Parameters of a model.

    include: optional parts to count in (`mtp`, `towers`).
    """
    return ParameterCount(spec, spec.tree(), include)
