"""The formulas of `llmcalc explain --quantity activations`: bytes saved for the backward pass, per node.

The pass runs twice, with integers and with symbolic integers. A storage counts once, at the node that first saves it,
with all of its bytes; weights and inputs do not count. Equal layers have one formula. Storages that several layers save
together (tables of angles, an encoder's output) have a separate line, and so has the loss.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from ..errors import InputError
from ..flow.tree import Node
from ..model import ModelSpec
from ..optional import OPTIONAL_PARTS
from ..simulator.kernel_choices import KernelChoices
from ..simulator.layer_stacks import SHORT_RUN_REPEATS, layer_stacks
from ..simulator.strides import clear_caches
from ..simulator.tensor import DTYPES
from ..workload.recompute import RECOMPUTE_MODES
from .explain import Explanation, FormulaSection, check_layer_kinds, components, merge_sections
from .formulas import DEFAULT_SETTING, DEFAULT_TRAINING_SETTING, FormulaNode, Formulas, FormulaSetting, TrainingSetting
from .saved_bytes import LOSS_PATH, LabelledPath, NodeTrackingEager, PathNames, RecordedPass, SavedBlock, saved_blocks
from .symbolic_int import SymbolicInt, formula_of
from .symbolic_model import SEQUENCES_LETTER, SymbolMeaning, keys_symbol, sequences_symbol, spec_with_formulas

LOSS_NAMES: PathNames = tuple(name for name, _ in LOSS_PATH)

SizeNotation: TypeAlias = Literal["numbers", "letters"]


def explain_activations(
    spec: ModelSpec,
    query: str | None = None,
    formula_setting: FormulaSetting = DEFAULT_SETTING,
    training: TrainingSetting = DEFAULT_TRAINING_SETTING,
    included_parts: frozenset[str] = frozenset(),
) -> Explanation:
    """Explains the saved activations of the nodes that `query` names, or of every component of the model.

    Raises `InputError` for a node that the model does not have and for kernels that cannot run it, and
    `ArithmeticError` where a formula's value differs from the bytes of a run with integers.
    """
    check_layer_kinds(spec)
    formulas = Formulas(spec, formula_setting, included_parts)
    activations = ActivationFormulas(formulas, training)
    if query is None or query.lower() == "model":
        formula_sections = [activations.section(node, depth) for depth, node in activations.components()]
        formula_sections = [section for section in formula_sections if section.formulas[0].value]
        return Explanation(
            [*formula_sections, activations.section(formulas.root)], formulas, None, training, activations.notes()
        )
    formula_sections = merge_sections(map(activations.section, activations.find_nodes(query)))
    return Explanation(formula_sections, formulas, query, training, activations.notes())


class ActivationFormulas:
    """The saved activations of one model's training pass in bytes, as numbers and as formulas.

    formulas: the formulas of the model.
    training: settings of training.
    kernel_profile: class of the kernels; default eager.
    """

    def __init__(
        self, formulas: Formulas, training: TrainingSetting, kernel_profile: type[NodeTrackingEager] = NodeTrackingEager
    ) -> None:
        self.formulas: Formulas = formulas
        self.training: TrainingSetting = training
        self.kernels: type[NodeTrackingEager] = kernel_profile
        self.numeric_sums: SavedByteSums = self.saved_sums("numbers", training.batch)
        self.symbolic_sums: SavedByteSums = self.numeric_sums
        if formulas.has_symbols:
            meanings = formulas.meanings
            meanings[keys_symbol()] = replace(meanings[keys_symbol()], field="tokens of a sequence")
            meanings[sequences_symbol()] = SymbolMeaning(SEQUENCES_LETTER, "sequences at once", training.batch)
            self.symbolic_sums = self.saved_sums("letters", training.batch)

    def saved_sums(self, notation: SizeNotation, batch: int) -> SavedByteSums:
        """Returns the saved bytes of every node for a batch size, as numbers or as formulas."""
        spec, seq = self.formulas.symbolic.spec, self.formulas.setting.seq
        repeats_by_stack = {
            stack_index: SHORT_RUN_REPEATS
            for stack_index, stack in enumerate(layer_stacks(spec))
            if stack.is_extrapolated
        }
        if notation == "letters":
            spec, batch, seq = (
                spec_with_formulas(spec),
                SymbolicInt(batch, sequences_symbol()),
                SymbolicInt(seq, keys_symbol()),
            )
        training_pass = RecordedPass(
            batch,
            seq,
            DTYPES[self.training.dtype],
            KernelChoices(attention=self.training.attention, norm=self.training.norm),
            recompute=RECOMPUTE_MODES[self.training.recompute],
            included_parts=self.formulas.include,
            layer_repeats=repeats_by_stack,
        )
        try:
            return SavedByteSums(self.formulas.root, saved_blocks(spec, training_pass, self.kernels), notation)
        finally:
            if notation == "letters":
                clear_caches()

    def section(self, node: FormulaNode, depth: int = 0) -> FormulaSection:
        """Returns the formula of a layer, or of a module in a layer including all its repeats there."""
        byte_count, symbolic_sum = self.numeric_sums.saved_bytes_of(node), self.symbolic_sums.saved_bytes_of(node)
        formula = self.formulas.formula_of_activations(symbolic_sum, int(byte_count), node, group_by_token)
        repeat_count = self.numeric_sums.repeat_counts.get(node.walk_indices[0]) if node.walk_indices else None
        node_in_symbols = (
            node.symbolic_node
            if self.numeric_sums.layer_indices.issuperset(node.walk_indices)
            else replace(node.symbolic_node, repeat=1)
        )
        return FormulaSection(
            (replace(node, symbolic_node=node_in_symbols, copies=repeat_count or 1),), (formula,), depth
        )

    def components(self) -> list[tuple[int, FormulaNode]]:
        """Returns layers and their modules, with entries for the storages that layers share and for the loss."""
        component_nodes = components(self.formulas)
        for stack_path in self.numeric_sums.shared_bytes:
            last_layer_index = max(
                layer_index
                for layer_index, (_, node) in enumerate(component_nodes)
                if _path_names(node)[: len(stack_path)] == stack_path
            )
            component_nodes.insert(
                last_layer_index + 1, (len(stack_path) - 1, _node_outside_tree(_path_of_shared_storages(stack_path)))
            )
        return [*component_nodes, (0, _node_outside_tree(LOSS_NAMES))]

    def find_nodes(self, query: str) -> list[FormulaNode]:
        """Finds the nodes that a query names; storages shared by layers, and the loss, count as nodes."""
        added_nodes = [
            node for _, node in self.components() if not node.walk_indices and _path_names(node)[-1] == query.lower()
        ]
        if added_nodes:
            return added_nodes
        named_nodes = self.formulas.find_nodes(query)
        trained_nodes = [node for node in named_nodes if node.optional_part in {"", *self.formulas.include}]
        if not trained_nodes:
            optional_part = OPTIONAL_PARTS[named_nodes[0].optional_part]
            advice = (
                f"counted with {optional_part.option}"
                if optional_part.has_flops
                else "not trained here; expected params"
            )
            raise InputError(
                f"--quantity activations: {query} is a part of the {optional_part.title}, which are {advice}"
            )
        return trained_nodes

    def notes(self) -> tuple[str, ...]:
        """Returns notes on where the saved bytes differ from the formulas."""
        if self.training.batch > 1 or not self.formulas.has_symbols:
            return ()
        root_node, batch_of_two = self.formulas.root, {sequences_symbol(): 2}
        value_of_symbol = {symbol: meaning.value for symbol, meaning in self.formulas.meanings.items()}
        if self.symbolic_sums.saved_bytes_of(root_node).xreplace(
            {**value_of_symbol, **batch_of_two}
        ) == self.saved_sums("numbers", 2).saved_bytes_of(root_node):
            return ()
        return ("one sequence at a time keeps other copies than several; --batch 2 gives the formula of several",)


class SavedByteSums:
    """The bytes that every node saves for the backward pass, summed over its tensor storages.

    root_node: the whole model.
    memory_blocks: the storages.
    notation: whether the sums are numbers or symbolic expressions.
    by_location: index of a node in a walk → sum of one layer or of one part of it, with its children.
    repeat_counts: index of a node in a walk → number of equal layers that it is, or is part of.
    layer_indices: indices of the nodes that are layers.
    shared_bytes: path names of layers → sum of the storages that they share.
    loss_bytes: sum of the loss.
    """

    def __init__(self, root_node: FormulaNode, memory_blocks: Iterable[SavedBlock], notation: SizeNotation) -> None:
        self.notation: SizeNotation = notation
        self.by_location: dict[int, Any] = {}
        self.repeat_counts: dict[int, Any] = {}
        self.layer_indices: set[int] = set()
        self.shared_bytes: dict[PathNames, Any] = {}
        self.loss_bytes: Any = 0
        bytes_by_path_and_layer: defaultdict[LabelledPath, Counter[int]] = defaultdict(Counter)
        repeats_of_path: defaultdict[LabelledPath, set[int]] = defaultdict(set)
        for memory_block in memory_blocks:
            storage_location, byte_count = memory_block.location, formula_of(memory_block.bytes)
            if storage_location.path == LOSS_PATH:
                self.loss_bytes += byte_count
            elif storage_location.layer_path and memory_block.is_shared:
                self._add_shared_bytes(storage_location.stack_path, byte_count)
            else:
                bytes_by_path_and_layer[storage_location.path][storage_location.layer_index] += byte_count
                repeats_of_path[storage_location.layer_path].add(storage_location.layer_index)
        self._paths = set(repeats_of_path) - {()}
        bytes_by_path = {
            node_path: self._layer_sum(node_path, bytes_of_repeats, repeats_of_path)
            for node_path, bytes_of_repeats in bytes_by_path_and_layer.items()
        }
        self.by_location[root_node.walk_indices[0]] = (
            self._subtree_bytes(root_node, (), bytes_by_path) + self.loss_bytes
        )

    def saved_bytes_of(self, node: FormulaNode) -> Any:
        """Returns the bytes that a node saves for the backward pass, for one of its repeats."""
        if node.walk_indices:
            return sum((self.by_location[storage_location] for storage_location in node.walk_indices), 0)
        bytes_outside_nodes = {
            LOSS_NAMES: self.loss_bytes,
            **{
                _path_of_shared_storages(stack_path): byte_count for stack_path, byte_count in self.shared_bytes.items()
            },
        }
        return bytes_outside_nodes[_path_names(node)]

    def _add_shared_bytes(self, stack_path: PathNames, byte_count: Any) -> None:
        self.shared_bytes[stack_path] = self.shared_bytes.get(stack_path, 0) + byte_count

    def _layer_sum(
        self, node_path: LabelledPath, bytes_by_repeat: Counter[int], repeats_of_path: dict[LabelledPath, set[int]]
    ) -> Any:
        """Returns the saved bytes of a layer; storages that only some of the equal layers save count as shared."""
        layer_path = next(
            (
                node_path[:prefix_length]
                for prefix_length in range(len(node_path), 0, -1)
                if node_path[:prefix_length] in self._paths
            ),
            (),
        )
        if not layer_path:
            return sum(bytes_by_repeat.values())
        bytes_of_repeats = [
            _expand_expression(bytes_by_repeat[layer_index]) for layer_index in sorted(repeats_of_path[layer_path])
        ]
        ((common_bytes, _),) = Counter(bytes_of_repeats).most_common(1)
        excess_bytes = _expand_expression(sum(byte_count - common_bytes for byte_count in bytes_of_repeats))
        if excess_bytes:
            self._add_shared_bytes(tuple(name for name, _ in layer_path), excess_bytes)
        return common_bytes

    def _subtree_bytes(
        self,
        formula_node: FormulaNode,
        node_path: LabelledPath,
        unclaimed_bytes: dict[LabelledPath, Any],
        repeat_count: Any = None,
    ) -> Any:
        """Returns the saved bytes of a node and all nodes below it, and stores the bytes of each of these nodes.

        unclaimed_bytes: per path what no node has claimed yet; a step that is no node belongs to the module around it.
        repeat_count: the number of equal layers that it stands in; None outside the layers.
        """
        subtree_sum = unclaimed_bytes.pop(node_path, 0)
        for child_node in formula_node.children:
            node, storage_location = (
                child_node.numeric_node if self.notation == "numbers" else child_node.symbolic_node,
                child_node.walk_indices[0],
            )
            child_path = (*node_path, (child_node.numeric_node.name, child_node.numeric_node.label))
            is_repeated_layer = repeat_count is None and child_path in self._paths
            self.repeat_counts[storage_location] = node.repeat if is_repeated_layer else repeat_count
            self.by_location[storage_location] = self._subtree_bytes(
                child_node, child_path, unclaimed_bytes, self.repeat_counts[storage_location]
            )
            if is_repeated_layer:
                self.layer_indices.add(storage_location)
            subtree_sum += self.by_location[storage_location] * (node.repeat if is_repeated_layer else 1)
        subtree_sum += sum(
            unclaimed_bytes.pop(path) for path in list(unclaimed_bytes) if path[: len(node_path)] == node_path
        )
        path_names = tuple(name for name, _ in node_path)
        return subtree_sum + sum(count for path, count in self.shared_bytes.items() if path[:-1] == path_names)


def group_by_token(expression: Any) -> Any:
    """Rewrites a sum with the terms that grow with tokens in one bracket: B·S·(…)."""
    import sympy

    token_factor = sequences_symbol() * keys_symbol()
    token_terms: list[Any] = []
    terms_without_tokens: list[Any] = []
    for summand in sympy.Add.make_args(sympy.expand(expression)):
        per_token_term = summand / token_factor
        (
            terms_without_tokens
            if per_token_term.as_numer_denom()[1].has(sequences_symbol(), keys_symbol())
            else token_terms
        ).append(per_token_term)
    token_sum = sympy.Add(*token_terms)
    return sympy.Add(
        sequences_symbol() * keys_symbol() * token_sum,
        *(per_token_term * token_factor for per_token_term in terms_without_tokens),
    )


def _expand_expression(byte_count: Any) -> Any:
    if isinstance(byte_count, int):
        return byte_count
    import sympy

    return sympy.expand(byte_count)


def _path_names(node: FormulaNode) -> PathNames:
    return tuple(name for name, _, _ in node.path_names)


def _path_of_shared_storages(stack: PathNames) -> PathNames:
    """Returns the path under which storages shared by layers are listed. stack: the path of the layers."""
    return *stack[:-1], f"shared by {stack[-1]}"


def _node_outside_tree(path_names: PathNames) -> FormulaNode:
    """Returns a node under which saved bytes outside the model's tree are listed, such as the loss's."""
    node = Node(path_names[-1])
    return FormulaNode(tuple((name, "", ()) for name in path_names), ".".join(path_names), (), node, node, 1, "", "")
