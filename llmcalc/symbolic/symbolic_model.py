"""A spec with symbols as sizes. Its recorded flow yields the formulas of `llmcalc explain`.

Fields have their letters in their types (`components.base.SizeSymbol`). A field with one value wherever it occurs is
one symbol. A field with several values gets subscripts from its places (f_dense, f_expert, d_sliding, L_enc). Fields
that are not given stay unset: without head_dim it is h/a, so multi-head attention has 4h² parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.util import find_spec
from typing import Annotated, Any, TypeAlias, get_args, get_origin

from pydantic.fields import FieldInfo

from ..algebra import Number, is_zero
from ..components.base import Network, Part, SizeSymbol, TokenMixer
from ..components.layers.block import Layer
from ..components.stack import BASE_LAYER_NAME, SHARED_LABEL_SUFFIX, Stack
from ..errors import MissingExtra
from ..flow.tree import Node
from ..identity_cache import IdentityCache
from ..model import ModelSpec
from ..parallel.rank_model import RankModel
from .symbolic_int import SymbolicInt

KEYS_LETTER = "S"
"""The letter for the number of keys that a token attends to: the number of tokens of a sequence."""
ELEMENT_BYTES_LETTER = "b"
"""The letter for the bytes per cached element."""
SEQUENCES_LETTER = "B"
"""The letter for the number of sequences of a pass."""
DEPTH_FIELD = "num_hidden_layers"

PART_NAMES = {"attention": "self", "cross_attention": "cross", "feed_forward": "dense", "shared_expert": "shared"}
"""Field of a component → the subscript of its symbols; other components use the field's name."""
SIDE_NAMES = {"encoder": "enc", "decoder": "dec"}


@dataclass(frozen=True, slots=True)
class SizeOccurrence:
    """A place in a spec where a size occurs: stack, kind of layer, component, field, letter and value."""

    side: str
    layer: str
    part: str
    field: str
    symbol_letter: str
    value: int


@dataclass(frozen=True, slots=True)
class SymbolMeaning:
    """The meaning of a symbol: a name for readers, the field of the spec, and the value."""

    name: str
    field: str
    value: Number


SizeReplacer: TypeAlias = Callable[[SizeOccurrence], Any]


@dataclass(frozen=True, slots=True)
class SymbolicModel:
    """The tree of a model with numbers as sizes, and the same tree with symbols as sizes.

    symbol_meanings: symbol → its meaning.
    depth_symbols: symbol of a stack's depth → symbols of the numbers of its kinds of layers.
    """

    spec: ModelSpec
    numeric_tree: Node
    symbolic_tree: Node
    symbol_meanings: dict[Any, SymbolMeaning]
    depth_symbols: dict[Any, frozenset[Any]]


def has_sympy() -> bool:
    """Whether sympy is installed, which only symbolic formulas need."""
    return find_spec("sympy") is not None


def missing_sympy_error(feature_text: str) -> MissingExtra:
    """Returns the error for a missing sympy, with installation advice."""
    return MissingExtra(feature_text, "sympy", "explain")


def numeric_tree(spec: ModelSpec) -> SymbolicModel:
    """Returns the tree for formulas with numbers instead of symbols, which needs no sympy."""
    model_tree = spec.tree()
    return SymbolicModel(spec, model_tree, model_tree, {}, {})


GROUP_MEANINGS = {
    "tp": "ranks of a tensor group",
    "ep": "ranks that divide the experts",
    "etp": "ranks that divide an expert",
}
"""Group size of a layout, as in the formulas of a rank → its meaning."""


_latest_model: IdentityCache[SymbolicModel] = IdentityCache(1)
"""Cache of the latest model's tree in symbols."""


def cached_symbolic(spec: ModelSpec) -> SymbolicModel:
    """Returns the result of `model_in_symbols`, cached for the last model.

    A caller that explains one component after another, such as the web page, builds the tree only once.
    """
    return _latest_model.result((spec,), (), lambda: model_in_symbols(spec))


def model_in_symbols(spec: ModelSpec) -> SymbolicModel:
    """Returns the tree of a model, or of one rank of a layout, in symbols. Imports sympy."""
    rank_model = spec if isinstance(spec, RankModel) else None
    used_occurrences = _size_occurrences_in_ops(spec if rank_model is None else rank_model.full_model)
    symbol_names = _symbol_names(used_occurrences + _depth_size_occurrences(spec))
    symbol_meanings: dict[Any, SymbolMeaning] = {}

    def symbol(symbol_name: str, field_name: str, size_value: Number) -> Any:
        symbol_name = _remove_hyphens(symbol_name)
        new_symbol = _symbol(symbol_name)
        symbol_meaning = symbol_meanings.setdefault(new_symbol, SymbolMeaning(symbol_name, field_name, size_value))
        if symbol_meaning.value != size_value:
            raise ArithmeticError(
                f"{symbol_name} stands for {symbol_meaning.field} = {symbol_meaning.value} and for "
                f"{field_name} = {size_value}"
            )
        return new_symbol

    def symbol_or_size(size_occurrence: SizeOccurrence) -> Any:
        return (
            symbol(symbol_names[size_occurrence], size_occurrence.field, size_occurrence.value)
            if size_occurrence in symbol_names
            else size_occurrence.value
        )

    symbolic_tree = (
        _replace_sizes_by_symbols(spec, symbol_or_size).tree()
        if rank_model is None
        else _rank_in_symbols(rank_model, symbol_or_size, symbol)
    )
    depth_symbols: dict[Any, frozenset[Any]] = {}
    layer_groups: dict[tuple[str, str], tuple[Any, str]] = {}
    has_several_stacks = len(spec.stacks()) > 1
    for size_occurrence in _depth_size_occurrences(spec):
        stack = getattr(spec, size_occurrence.side)
        layer_labels, layer_counts, label_suffix = (
            _layer_labels(stack),
            _layer_counts(stack, rank_model),
            _rank_suffix(rank_model),
        )
        labels_by_kind = {layer_name: layer_labels[layer_name] for layer_name in layer_counts}
        depth_symbol = symbol(
            symbol_names[size_occurrence], size_occurrence.field + label_suffix, sum(layer_counts.values())
        )
        if len(labels_by_kind) == 1:
            layer_groups[size_occurrence.side, next(iter(labels_by_kind))] = (
                depth_symbol,
                next(iter(labels_by_kind.values())),
            )
            continue
        base_name = (
            f"{size_occurrence.symbol_letter}_{SIDE_NAMES[size_occurrence.side]}"
            if has_several_stacks
            else symbol_names[size_occurrence]
        )
        for layer_name, layer_count in layer_counts.items():
            layer_groups[size_occurrence.side, layer_name] = (
                symbol(
                    f"{base_name}_{labels_by_kind[layer_name]}",
                    f"{DEPTH_FIELD} ({labels_by_kind[layer_name]}){label_suffix}",
                    layer_count,
                ),
                labels_by_kind[layer_name],
            )
        depth_symbols[depth_symbol] = frozenset(layer_groups[size_occurrence.side, name][0] for name in labels_by_kind)
    main_stack_name = "decoder" if spec.decoder is not None else "encoder"
    return SymbolicModel(
        spec,
        spec.tree(),
        _add_depth_symbols(symbolic_tree, main_stack_name, layer_groups),
        symbol_meanings,
        depth_symbols,
    )


def _layer_counts(stack: Stack, rank_model: RankModel | None) -> dict[str, Number]:
    """Returns the number of layers of each kind, in a stack or in the part of it on a pipeline rank."""
    if rank_model is None or rank_model.layout.pp == 1:
        return {name: layer_count for name, _, layer_count, _ in stack.layer_groups() if not is_zero(layer_count)}
    layer_counts = {
        layer_name: sum(layer_index in rank_model.chunks.layers for layer_index in layer_indices or ())
        for layer_name, _, _, layer_indices in stack.layer_groups()
    }
    return {layer_name: layer_count for layer_name, layer_count in layer_counts.items() if layer_count}


def _rank_suffix(rank_model: RankModel | None) -> str:
    return "" if rank_model is None or rank_model.layout.pp == 1 else " of this rank"


def _rank_in_symbols(
    rank_model: RankModel, size_replacer: SizeReplacer, create_symbol: Callable[[str, str, Number], Any]
) -> Node:
    """Returns the tree of one rank in symbols, recorded with integers that remember their formulas."""

    def traced_size(size_occurrence: SizeOccurrence) -> Any:
        symbol = size_replacer(size_occurrence)
        return size_occurrence.value if symbol is size_occurrence.value else SymbolicInt(size_occurrence.value, symbol)

    layout = rank_model.layout
    layout_sizes = {"tp": layout.tp, "ep": layout.ep, "etp": layout.expert_tp}
    if layout.expert_tp == layout.tp:
        del layout_sizes["etp"]
    degrees: dict[str, Any] = {
        size_name: SymbolicInt(group_size, create_symbol(size_name, GROUP_MEANINGS[size_name], group_size))
        for size_name, group_size in layout_sizes.items()
        if group_size > 1
    }
    if "etp" not in layout_sizes:
        degrees["etp"] = degrees.get("tp", layout.expert_tp)
    symbolic_spec = _replace_sizes_by_symbols(rank_model, traced_size)
    assert isinstance(symbolic_spec, RankModel)
    symbolic_tree: Node = _replace_by_formulas(symbolic_spec.layer_with_symbols(replace(layout, **degrees)).tree())
    return symbolic_tree


def _replace_by_formulas(symbolic_value: Any) -> Any:
    """Returns a tree, operation or size with the formula of every `SymbolicInt` in its place."""
    if isinstance(symbolic_value, SymbolicInt):
        return symbolic_value.formula
    if isinstance(symbolic_value, tuple):
        return tuple(map(_replace_by_formulas, symbolic_value))
    if isinstance(symbolic_value, dict):
        return {field_key: _replace_by_formulas(symbolic_field) for field_key, symbolic_field in symbolic_value.items()}
    if is_dataclass(symbolic_value) and not isinstance(symbolic_value, type):
        changed_fields = {
            field.name: _replace_by_formulas(getattr(symbolic_value, field.name)) for field in fields(symbolic_value)
        }
        return replace(symbolic_value, **changed_fields)
    return symbolic_value


def spec_with_formulas(spec: ModelSpec) -> ModelSpec:
    """Returns a copy of `spec` with symbolic integers as sizes. Imports sympy."""
    symbol_names = _symbol_names(_size_occurrences_in_ops(spec) + _depth_size_occurrences(spec))

    def symbol_or_size(size_occurrence: SizeOccurrence) -> int:
        if size_occurrence in symbol_names:
            return SymbolicInt(size_occurrence.value, _symbol(_remove_hyphens(symbol_names[size_occurrence])))
        return size_occurrence.value

    return _replace_sizes_by_symbols(spec, symbol_or_size)


def _remove_hyphens(symbol_name: str) -> str:
    """Removes the hyphens of a name, which would look like minus signs in a formula."""
    return symbol_name.replace("-", "_")


def _symbol(symbol_name: str) -> Any:
    import sympy

    return sympy.Symbol(symbol_name, integer=True, positive=True)


def bytes_symbol() -> Any:
    """Returns the symbol of the bytes per cached element, which may be a fraction (4 bits)."""
    import sympy

    return sympy.Symbol(ELEMENT_BYTES_LETTER, positive=True)


def keys_symbol() -> Any:
    """Returns the symbol of the number of keys that a query attends to."""
    return _symbol(KEYS_LETTER)


def sequences_symbol() -> Any:
    """Returns the symbol of the number of sequences."""
    return _symbol(SEQUENCES_LETTER)


# --- where the sizes stand --------------------------------------------------------------------------------------------


def letter_of_field(field_info: FieldInfo) -> str | None:
    """Returns the letter of a field's type, or of the type inside `| None`."""
    return _letter_in_metadata(field_info.metadata) or _letter_in_annotation(field_info.annotation)


def _letter_in_metadata(metadata: Iterable[Any]) -> str | None:
    return next((annotation.letter for annotation in metadata if isinstance(annotation, SizeSymbol)), None)


def _letter_in_annotation(field_annotation: Any) -> str | None:
    if get_origin(field_annotation) is Annotated:
        return _letter_in_metadata(field_annotation.__metadata__)
    return next(
        (letter for argument in get_args(field_annotation) if (letter := _letter_in_annotation(argument))), None
    )


def _replace_sizes_by_symbols(spec: ModelSpec, size_replacer: SizeReplacer) -> ModelSpec:
    """Returns a copy of `spec` with a symbol for every size that has a letter; depths stay numbers."""
    changed_fields: dict[str, Any] = {
        stack_name: _stack_in_symbols(stack, stack_name, size_replacer) for stack_name, stack in spec.stacks()
    }
    model_changes = _symbol_changes(spec, "", "", "", size_replacer, unchanged_fields=frozenset(changed_fields))
    return spec.model_copy(update={**model_changes, **changed_fields})


def _stack_in_symbols(stack: Stack, stack_name: str, size_replacer: SizeReplacer) -> Stack:
    layer_labels = _layer_labels(stack)
    changed_fields = _symbol_changes(
        stack, stack_name, "", "", size_replacer, unchanged_fields=frozenset({"block", "variants", DEPTH_FIELD})
    )

    def layer_with_symbols(layer_name: str, layer: Layer) -> Part:
        return (
            _part_in_symbols(layer, stack_name, layer_labels[layer_name], "", size_replacer)
            if layer_name in layer_labels
            else layer
        )

    changed_fields["block"] = layer_with_symbols(BASE_LAYER_NAME, stack.block)
    changed_fields["variants"] = {name: layer_with_symbols(name, layer) for name, layer in stack.variants.items()}
    return stack.model_copy(update=changed_fields)


def _part_in_symbols(
    spec_part: Part, stack_name: str, layer_name: str, part_name: str, size_replacer: SizeReplacer
) -> Part:
    return spec_part.model_copy(update=_symbol_changes(spec_part, stack_name, layer_name, part_name, size_replacer))


def _symbol_changes(
    spec_part: Part,
    stack_name: str,
    layer_name: str,
    part_name: str,
    size_replacer: SizeReplacer,
    unchanged_fields: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Returns the fields of a component that get a symbol as value."""
    new_values: dict[str, Any] = {}
    for field_name, field_info in type(spec_part).model_fields.items():
        field_value, symbol_letter = getattr(spec_part, field_name), letter_of_field(field_info)
        if field_name in unchanged_fields:
            continue
        if isinstance(field_value, Part):
            new_values[field_name] = _part_in_symbols(field_value, stack_name, layer_name, field_name, size_replacer)
        elif symbol_letter is not None and isinstance(field_value, int):
            new_values[field_name] = size_replacer(
                SizeOccurrence(stack_name, layer_name, part_name, field_name, symbol_letter, field_value)
            )
    return new_values


def _depth_size_occurrences(spec: ModelSpec) -> list[SizeOccurrence]:
    letter = letter_of_field(Stack.model_fields[DEPTH_FIELD]) or "L"
    return [SizeOccurrence(name, "", "", DEPTH_FIELD, letter, stack.num_hidden_layers) for name, stack in spec.stacks()]


def _size_occurrences_in_ops(spec: ModelSpec) -> list[SizeOccurrence]:
    """Returns the sizes that occur in some operation of the model, in the order of the spec's fields, stacks first."""
    placeholder_symbols: dict[SizeOccurrence, Any] = {}

    def symbol_or_size(size_occurrence: SizeOccurrence) -> Any:
        return placeholder_symbols.setdefault(size_occurrence, _symbol(f"x{len(placeholder_symbols)}"))

    free_symbols = {
        free_symbol
        for tree_node in _replace_sizes_by_symbols(spec, symbol_or_size).tree().walk()
        for free_symbol in _free_symbols(tree_node.node.op)
    }
    return [occurrence for occurrence, symbol in placeholder_symbols.items() if symbol in free_symbols]


def _free_symbols(op: Any) -> set[Any]:
    symbols: set[Any] = set()
    for field in fields(op) if op is not None else ():
        op_field = getattr(op, field.name)
        for field_value in op_field if isinstance(op_field, tuple) else (op_field,):
            symbols |= getattr(field_value, "free_symbols", set())
    return symbols


def _layer_labels(stack: Stack) -> dict[str, str]:
    """Returns a label per kind of layer: its variant's name, or for `block` a property that no variant has."""
    blocks = {name: layer for name, layer, layer_count, _ in stack.layer_groups() if not is_zero(layer_count)}
    if len(blocks) == 1:
        return dict.fromkeys(blocks, "")
    traits_of_other_layers = {
        trait for name, layer in blocks.items() if name != BASE_LAYER_NAME for trait in (name, *_layer_traits(layer))
    }
    trait_of_base = next((trait for trait in _layer_traits(stack.block) if trait not in traits_of_other_layers), "base")
    return {layer_name: trait_of_base if layer_name == BASE_LAYER_NAME else layer_name for layer_name in blocks}


def _layer_traits(layer: Layer) -> tuple[str, str]:
    token_mixer, network = layer.attention, layer.feed_forward
    mixer_kind = token_mixer.report_label() if isinstance(token_mixer, TokenMixer) else token_mixer.type
    return mixer_kind, "moe" if isinstance(network, Network) and network.is_mixture_of_experts else "dense"


def _add_depth_symbols(
    node: Node,
    stack_name: str,
    layer_groups: dict[tuple[str, str], tuple[Any, str]],
    shared_kinds: frozenset[str] = frozenset(),
) -> Node:
    """Adds labels of layer kinds, and symbols for the number of layers of each kind.

    shared_kinds: the kinds in which one layer has the parameters; the other layers share them and are a separate node.
    """
    stack_name = node.name if node.name in SIDE_NAMES and node.is_stack else stack_name
    shared_labels = frozenset(
        child.label.removesuffix(SHARED_LABEL_SUFFIX)
        for child in node.children
        if child.label.endswith(SHARED_LABEL_SUFFIX)
    )
    child_nodes = tuple(_add_depth_symbols(child, stack_name, layer_groups, shared_labels) for child in node.children)
    if node.kind != "layer":
        return replace(node, children=child_nodes)
    layer_kind = node.label.removesuffix(SHARED_LABEL_SUFFIX) or BASE_LAYER_NAME
    layer_count, layer_label = layer_groups[stack_name, layer_kind]
    repeat = (
        layer_count - 1
        if node.label.endswith(SHARED_LABEL_SUFFIX)
        else 1
        if layer_kind in shared_kinds
        else layer_count
    )
    return replace(node, repeat=repeat, label=node.label or layer_label, children=child_nodes)


# --- what they are called ---------------------------------------------------------------------------------------------


def _symbol_names(size_occurrences: list[SizeOccurrence]) -> dict[SizeOccurrence, str]:
    """Returns the name of each size's symbol: a letter, with subscripts where several sizes have it."""
    symbol_names: dict[SizeOccurrence, str] = {}
    for symbol_letter in dict.fromkeys(size_occurrence.symbol_letter for size_occurrence in size_occurrences):
        letter_occurrences = [
            occurrence for occurrence in size_occurrences if occurrence.symbol_letter == symbol_letter
        ]
        for subscript_index, field_name in enumerate(
            dict.fromkeys(size_occurrence.field for size_occurrence in letter_occurrences)
        ):
            base_name = (
                symbol_letter
                if subscript_index == 0 and symbol_letter not in (KEYS_LETTER, ELEMENT_BYTES_LETTER)
                else f"{symbol_letter}_{_short_name(field_name)}"
            )
            occurrences_of_field = [occurrence for occurrence in letter_occurrences if occurrence.field == field_name]
            subscripts = _subscripts(occurrences_of_field)
            symbol_names |= {
                occurrence: f"{base_name}_{subscripts[occurrence]}" if subscripts[occurrence] else base_name
                for occurrence in occurrences_of_field
            }
    return symbol_names


def _short_name(field_name: str) -> str:
    short_name = field_name.removeprefix("num_")
    for suffix in ("_size", "_dim", "_embeddings"):
        short_name = short_name.removesuffix(suffix)
    return short_name


def _subscripts(size_occurrences: list[SizeOccurrence]) -> dict[SizeOccurrence, str]:
    """Returns the shortest subscripts that tell sizes of different values apart; empty if all are equal."""
    if len({size_occurrence.value for size_occurrence in size_occurrences}) == 1:
        return dict.fromkeys(size_occurrences, "")
    for trait_names in (("part",), ("layer",), ("side",), ("layer", "part"), ("side", "part"), ("side", "layer")):
        traits = {
            size_occurrence: {
                "part": PART_NAMES.get(size_occurrence.part, size_occurrence.part),
                "layer": size_occurrence.layer,
                "side": SIDE_NAMES.get(size_occurrence.side, size_occurrence.side),
            }
            for size_occurrence in size_occurrences
        }
        descriptions = {
            size_occurrence: "_".join(
                traits[size_occurrence][trait_name] for trait_name in trait_names if traits[size_occurrence][trait_name]
            )
            for size_occurrence in size_occurrences
        }
        if all(descriptions.values()) and len(
            {(description, occurrence.value) for occurrence, description in descriptions.items()}
        ) == len(set(descriptions.values())):
            return descriptions
    size_values = list(dict.fromkeys(size_occurrence.value for size_occurrence in size_occurrences))
    return {size_occurrence: str(size_values.index(size_occurrence.value) + 1) for size_occurrence in size_occurrences}
