"""Selects the formulas that `llmcalc explain` prints, for one query or for the whole model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ..errors import InputError
from ..model import ModelSpec
from ..optional import PARTS_WITHOUT_FLOPS
from .formulas import (
    DEFAULT_SETTING,
    Formula,
    FormulaNode,
    Formulas,
    FormulaSetting,
    Quantity,
    TrainingSetting,
    merge_nodes,
)

QuantityOrAll: TypeAlias = Literal["params", "flops", "kv", "all"]
SHOWN_QUANTITIES: dict[QuantityOrAll, tuple[Quantity, ...]] = {
    "params": ("params", "active"),
    "flops": ("flops", "flops_absorbed"),
    "kv": ("kv", "state"),
    "all": ("params", "active", "flops", "flops_absorbed", "kv", "state"),
}


MAX_LAYER_KINDS = 40
"""Largest number of kinds of layers in one stack; a formula has a term for each."""


@dataclass(frozen=True, slots=True)
class FormulaSection:
    """The formulas of one node of the model (of a single repeat of it).

    formula_nodes: every place in the tree where they apply.
    formulas: the formulas.
    depth: the level of the node below the model.
    """

    formula_nodes: tuple[FormulaNode, ...]
    formulas: tuple[Formula, ...]
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer of `llmcalc explain`: the formulas of the requested nodes, with their values.

    sections: for a node, its sections; for the whole model, one for each component and the last for the model.
    formulas: the formulas of the model.
    node: the requested node; None for the whole model.
    training: for the formulas of activations, how the model is trained; None otherwise.
    notes: exceptions from the formulas.
    """

    sections: Sequence[FormulaSection]
    formulas: Formulas
    node: str | None
    training: TrainingSetting | None = None
    notes: tuple[str, ...] = ()


def explain(
    spec: ModelSpec,
    query: str | None = None,
    quantity: QuantityOrAll = "all",
    formula_setting: FormulaSetting = DEFAULT_SETTING,
    included_parts: frozenset[str] = frozenset(),
) -> Explanation:
    """Explains the nodes that `query` names, or the whole model, by formulas with values.

    Raises `InputError` for a node that the model does not have or that has no cost of the requested kind, and
    `ArithmeticError` where a formula's value differs from the count.
    """
    formulas = Formulas(spec, formula_setting, included_parts)
    if spec.one_pass_model_name and quantity == "kv":
        raise InputError(f"--quantity kv: {spec.one_pass_model_name} keeps no KV cache; expected params or flops")
    check_layer_kinds(spec)
    if query is None or query.lower() == "model":
        formula_sections = [_section_of_node(formulas, node, quantity, depth) for depth, node in components(formulas)]
        formula_sections = [
            replace(section, formulas=_nonzero_formulas(section.formulas)) for section in formula_sections
        ]
        formula_sections.append(_section_of_node(formulas, formulas.root, quantity))
        return Explanation(
            [unfiltered_section for unfiltered_section in formula_sections if unfiltered_section.formulas],
            formulas,
            None,
        )
    sections_of_nodes = (_section_of_node(formulas, node, quantity) for node in formulas.find_nodes(query))
    formula_sections = merge_sections(
        replace(section, formulas=_remove_equal_forms(section.formulas)) for section in sections_of_nodes
    )
    if not formula_sections and any(node.optional_part in PARTS_WITHOUT_FLOPS for node in formulas.find_nodes(query)):
        raise InputError(f"--quantity {quantity}: of towers, parameters alone are counted; expected params")
    if not formula_sections:
        raise InputError(f"--quantity {quantity}: {query} has no cache; expected params or flops")
    return Explanation(formula_sections, formulas, query)


def merge_sections(formula_sections: Iterable[FormulaSection]) -> list[FormulaSection]:
    """Returns the sections that have formulas; nodes of the same name with equal formulas share one section."""
    merged_sections: dict[tuple[object, ...], FormulaSection] = {}
    for section in formula_sections:
        formula_keys = ((formula.quantity, formula.expression) for formula in section.formulas)
        section_key = (section.formula_nodes[0].path_names[-1][0], *formula_keys)
        first_section = merged_sections.get(section_key)
        if first_section is not None:
            section = replace(first_section, formula_nodes=(*first_section.formula_nodes, *section.formula_nodes))
        merged_sections[section_key] = section
    return [section for section in merged_sections.values() if section.formulas]


def check_layer_kinds(spec: ModelSpec) -> None:
    """Raises `InputError` for a model with too many kinds of layers to explain."""
    kind_count = max(len({*stack.first_layers, *stack.pattern}) for _, stack in spec.stacks())
    if kind_count > MAX_LAYER_KINDS:
        raise InputError(
            f"{kind_count} kinds of layers are too many for one formula; expected at most {MAX_LAYER_KINDS}"
        )


def _nonzero_formulas(formulas: tuple[Formula, ...]) -> tuple[Formula, ...]:
    """Returns the formulas whose value is not 0; the formula of active parameters always stays."""
    return tuple(formula for formula in formulas if formula.value or formula.quantity == "active")


def _remove_equal_forms(formulas: tuple[Formula, ...]) -> tuple[Formula, ...]:
    """Leaves out the formula of attention in MLA's absorbed form if it equals that of the expanded form."""
    expanded_formulas = [formula.expression for formula in formulas if formula.quantity == "flops"]
    return tuple(
        formula
        for formula in formulas
        if formula.quantity != "flops_absorbed" or formula.expression not in expanded_formulas
    )


def _section_of_node(formulas: Formulas, node: FormulaNode, quantity: QuantityOrAll, depth: int = 0) -> FormulaSection:
    formulas_of_quantities = [
        shown_quantity
        for shown_quantity in SHOWN_QUANTITIES[quantity]
        if node.optional_part not in PARTS_WITHOUT_FLOPS or shown_quantity in SHOWN_QUANTITIES["params"]
    ]  # their FLOPs are not counted
    formulas_by_quantity = {
        shown_quantity: formula
        for shown_quantity in formulas_of_quantities
        if (formula := formulas.formula(node, shown_quantity)) is not None
    }
    if (
        "active" in formulas_by_quantity
        and formulas_by_quantity["active"].value == formulas_by_quantity["params"].value
    ):
        del formulas_by_quantity["active"]
    return FormulaSection((node,), tuple(formulas_by_quantity.values()), depth)


def components(formulas: Formulas) -> list[tuple[int, FormulaNode]]:
    """Returns (depth, node) of the model, its layers and their modules; a layer's norms are one node."""
    component_nodes: list[tuple[int, FormulaNode]] = []

    def add_component(formula_node: FormulaNode, depth: int) -> None:
        if formula_node.optional_part and formula_node.optional_part not in formulas.include:
            return
        component_nodes.append((depth, formula_node))
        numeric_node = formula_node.numeric_node
        if numeric_node.kind == "layer" or numeric_node.is_stack or numeric_node.optional:
            norms = [child_node for child_node in formula_node.children if child_node.numeric_node.kind == "norm"]
            for child_node in formula_node.children:
                if child_node.numeric_node.kind != "norm" or len(norms) == 1:
                    add_component(child_node, depth + 1)
            if len(norms) > 1:
                component_nodes.append((depth + 1, merge_nodes(formula_node, "norms", norms)))
        elif (
            numeric_node.kind == "experts"
            and any(inner_node.children for inner_node in numeric_node.children)
            and numeric_node.children[0].op is not None
        ):
            for child_node in formula_node.children:
                add_component(child_node, depth + 1)

    for child_node in formulas.root.children:
        add_component(child_node, 0)
    return component_nodes
