"""Selects the formulas of `llmcalc explain`: those of the requested nodes, or of all components and the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ..errors import InputError
from ..model import ModelSpec
from ..optional import WITHOUT_FLOPS
from .formulas import DEFAULT, Formula, Formulas, Found, Quantity, Setting, TrainingSetting, together

QuantityOrAll: TypeAlias = Literal["params", "flops", "kv", "all"]
ANSWERS: dict[QuantityOrAll, tuple[Quantity, ...]] = {
    "params": ("params", "active"),
    "flops": ("flops", "flops_absorbed"),
    "kv": ("kv", "state"),
    "all": ("params", "active", "flops", "flops_absorbed", "kv", "state"),
}


MOST_KINDS = 20
"""The most kinds of layers in one stack: a formula has a term for each."""


@dataclass(frozen=True, slots=True)
class Section:
    """The formulas of one repeat of a node.

    places: every place in the tree where they apply.
    formulas: the formulas.
    depth: the level of the node below the model.
    """

    places: tuple[Found, ...]
    formulas: tuple[Formula, ...]
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer of `llmcalc explain`.

    sections: for a node, its sections; for the whole model, one for each component and the last for the model.
    formulas: the formulas of the model.
    node: the requested node; None for the whole model.
    training: for the formulas of activations, how the model is trained; None otherwise.
    notes: what does not follow from the formulas themselves.
    """

    sections: Sequence[Section]
    formulas: Formulas
    node: str | None
    training: TrainingSetting | None = None
    notes: tuple[str, ...] = ()


def explain(
    spec: ModelSpec,
    node: str | None = None,
    asked: QuantityOrAll = "all",
    setting: Setting = DEFAULT,
    include: frozenset[str] = frozenset(),
) -> Explanation:
    """Formulas of `node` (any suffix of a path in the tree) or of the whole model, each with its value, the count.

    Raises `InputError` for a node that the model does not have or that has no cost of the requested kind, and
    `ArithmeticError` where a formula's value differs from the count.
    """
    formulas = Formulas(spec, setting, include)
    if spec.kind == "encoder" and asked == "kv":
        raise InputError("--quantity kv: an encoder-only model keeps no KV cache; expected params or flops")
    check_kinds(spec)
    if node is None or node.lower() == "model":
        sections = [_section(formulas, found, asked, depth) for depth, found in components(formulas)]
        sections = [replace(s, formulas=_shown(s.formulas)) for s in sections]
        sections.append(_section(formulas, formulas.root, asked))
        return Explanation([s for s in sections if s.formulas], formulas, None)
    merged: dict[tuple[object, ...], Section] = {}
    for found in formulas.find(node):
        one = _section(formulas, found, asked)
        one = replace(one, formulas=_apart(one.formulas))
        key = (found.steps[-1][0], *((f.quantity, f.expression) for f in one.formulas))
        known = merged.get(key)
        merged[key] = one if known is None else replace(known, places=(*known.places, found))
    sections = [s for s in merged.values() if s.formulas]
    if not sections and any(found.optional in WITHOUT_FLOPS for found in formulas.find(node)):
        raise InputError(f"--quantity {asked}: of towers, parameters alone are counted; expected params")
    if not sections:
        raise InputError(f"--quantity {asked}: {node} keeps nothing between tokens; expected params or flops")
    return Explanation(sections, formulas, node)


def check_kinds(spec: ModelSpec) -> None:
    """Raises `InputError` for a model with too many kinds of layers."""
    kinds = max(len({*stack.first_layers, *stack.pattern}) for _, stack in spec.stacks())
    if kinds > MOST_KINDS:
        raise InputError(f"{kinds} kinds of layers are too many for one formula; expected at most {MOST_KINDS}")


def _shown(formulas: tuple[Formula, ...]) -> tuple[Formula, ...]:
    """The formulas that are not 0, and that of active parameters, which may be 0."""
    return tuple(f for f in formulas if f.value or f.quantity == "active")


def _apart(formulas: tuple[Formula, ...]) -> tuple[Formula, ...]:
    """The formulas of a single node, without that of the absorbed form if it equals the expanded one."""
    expanded = [f.expression for f in formulas if f.quantity == "flops"]
    return tuple(f for f in formulas if f.quantity != "flops_absorbed" or f.expression not in expanded)


def _section(formulas: Formulas, found: Found, asked: QuantityOrAll, depth: int = 0) -> Section:
    answers = [
        q for q in ANSWERS[asked] if found.optional not in WITHOUT_FLOPS or q in ANSWERS["params"]
    ]  # their FLOPs are not counted
    made = {q: formula for q in answers if (formula := formulas.formula(found, q)) is not None}
    if "active" in made and made["active"].value == made["params"].value:
        del made["active"]
    return Section((found,), tuple(made.values()), depth)


def components(formulas: Formulas) -> list[tuple[int, Found]]:
    """The parts of the model, of its layers and of its mixtures of experts; a layer's norms are one component."""
    listed: list[tuple[int, Found]] = []

    def add(found: Found, depth: int) -> None:
        if found.optional and found.optional not in formulas.include:
            return
        listed.append((depth, found))
        node = found.numbers
        if node.kind == "layer" or node.is_stack or node.optional:
            norms = [child for child in found.children if child.numbers.kind == "norm"]
            for child in found.children:
                if child.numbers.kind != "norm" or len(norms) == 1:
                    add(child, depth + 1)
            if len(norms) > 1:
                listed.append((depth + 1, together(found, "norms", norms)))
        elif node.kind == "experts" and any(c.children for c in node.children) and node.children[0].op is not None:
            for child in found.children:
                add(child, depth + 1)

    for child in formulas.root.children:
        add(child, 0)
    return listed
