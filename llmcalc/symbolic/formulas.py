"""The formulas of a model's nodes: computed on the tree with symbols, checked against the tree with numbers.

A formula whose value at the model's numbers differs from the count is never returned: `ArithmeticError` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from typing import Any, Literal, TypeAlias

from ..algebra import Number, add, is_zero
from ..costs.cache_formats import STATE_BITS, CacheFormat, cache_format
from ..costs.flops import forward_flops_of
from ..costs.params import active_params_of, total_params_of
from ..errors import InputError, suggest
from ..flow.tree import Cost, CountedOp, Node, NodePosition
from ..model import ModelSpec
from ..ops import KVCache, State
from ..workload.counting import Counting, Pairs
from ..workload.execution import EAGER_EXECUTION, AttentionImplementation, Execution, NormImplementation
from ..workload.run_config import RunConfig
from ..workload.workload import Workload
from .symbolic_model import (
    ELEMENT_BYTES_LETTER,
    KEYS_LETTER,
    SymbolicModel,
    SymbolMeaning,
    bytes_symbol,
    cached_symbolic,
    has_sympy,
    keys_symbol,
    numeric_tree,
)

Quantity: TypeAlias = Literal["params", "active", "flops", "flops_absorbed", "kv", "state", "activations"]
QUANTITY_NAMES: dict[Quantity, tuple[str, str]] = {
    "params": ("parameters", "parameters"),
    "active": ("active per token", "parameters"),
    "flops": ("FLOPs per token", "FLOPs/token"),
    "flops_absorbed": ("FLOPs, absorbed", "FLOPs/token"),
    "kv": ("KV cache per token", "bytes/token"),
    "state": ("state per sequence", "bytes/sequence"),
    "activations": ("activations kept", "bytes"),
}
"""Quantity → its title and its unit.

flops_absorbed: FLOPs with latent attention in its absorbed form.
activations: activations saved for the backward pass (`activations`).
"""

WIDTH_FIELDS = frozenset({"intermediate_size", "embedding_size", "q_lora_rank", "kv_lora_rank"})
HEAD_COUNT_FIELDS = frozenset({"num_attention_heads", "num_key_value_heads"})
HEAD_SIZE_FIELDS = frozenset({"head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
LARGEST_DENOMINATOR = 1000

RecomputeChoice: TypeAlias = Literal["none", "full", "selective", "attention", "attention+matmuls"]
"""Values of `--recompute` under which equal layers save the same activations, so that formulas exist."""

NodePath: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
"""A path in the model's tree: (name, label, layer indices) of each node, from the top down."""

SumStyle: TypeAlias = Callable[[Any], Any]
"""A function that rewrites a symbolic sum without changing its value."""


@dataclass(frozen=True, slots=True)
class FormulaSetting:
    """The sequence length, counting convention and cache format for which formulas are evaluated.

    seq: the number of tokens per sequence, which with full pairs is the number of keys S per token; 2048 by default.
    pairs: the (query, key) pairs that count.
    dtype: the dtype of the cache.
    """

    seq: int = 2048
    pairs: Pairs = "full"
    dtype: str = "bfloat16"


DEFAULT_SETTING = FormulaSetting()


@dataclass(frozen=True, slots=True)
class TrainingSetting:
    """The training settings for which saved activations are explained.

    batch: the number of sequences, 1 by default.
    attention: how attention runs, `eager` by default.
    recompute: modules that are recomputed in the backward pass; none by default.
    norm: whether norms run step by step in float32 (`eager`, by default) or as one kernel (`fused`).
    dtype: the dtype of weights and activations, `bfloat16` by default.
    """

    batch: int = 1
    attention: AttentionImplementation = "eager"
    recompute: RecomputeChoice = "none"
    norm: NormImplementation = "eager"
    dtype: str = "bfloat16"


DEFAULT_TRAINING_SETTING = TrainingSetting()


@dataclass(frozen=True, slots=True)
class Formula:
    """The formula of a quantity in symbols, and its exact value.

    quantity: the quantity.
    expression: the formula in symbols; its value where sympy is not installed.
    value: its value, which equals the count.
    length_expression: the expression with all values but S substituted.
    hidden_expression: the expression with every width that is a multiple of h written as that multiple; None if there
        is none.
    """

    quantity: Quantity
    expression: Any
    value: Fraction
    length_expression: Any
    hidden_expression: Any = None


@dataclass(frozen=True, slots=True)
class CostTerm:
    """The sum of one cost over the model's tree in one run; a quantity is a sum of such terms."""

    cost: Cost
    run_config: RunConfig | None = None


@dataclass(frozen=True, slots=True)
class FormulaNode:
    """A node of the tree in two forms: with numbers and with symbols as sizes.

    walk_indices: indices of its places in a walk over the tree; several where a layer's norms are shown together.
    copies: the number of copies in the model.
    """

    path_names: NodePath
    path: str
    walk_indices: tuple[int, ...]
    numeric_node: Node
    symbolic_node: Node
    copies: Number
    optional_part: str
    source: str
    children: tuple[FormulaNode, ...] = ()

    @property
    def name(self) -> str:
        """The node's name, with a label of the layer's kind if layers differ: `layers.self_attn`, `layers.moe.mlp`."""
        return (
            ".".join(
                name_or_label for name, label, _ in self.path_names for name_or_label in (name, label) if name_or_label
            )
            or "model"
        )


class Formulas:
    """The formulas of one model for one `FormulaSetting`; without sympy, each formula is only a number."""

    def __init__(
        self,
        spec: ModelSpec,
        formula_setting: FormulaSetting = DEFAULT_SETTING,
        included_parts: frozenset[str] = frozenset(),
    ) -> None:
        self.has_symbols: bool = has_sympy()
        self._stored_format: CacheFormat = cache_format(formula_setting.dtype)
        self._element_bits: Number = self._stored_format.keys.element_bits
        self.symbolic: SymbolicModel = cached_symbolic(spec) if self.has_symbols else numeric_tree(spec)
        self.setting: FormulaSetting = formula_setting
        self.one_pass_model_name: str = spec.one_pass_model_name
        self.include: frozenset[str] = included_parts
        self.meanings: dict[Any, SymbolMeaning] = {}
        if self.has_symbols:
            cached_element_text = f"bytes of a cached element ({formula_setting.dtype})"
            self.meanings = {
                **self.symbolic.symbol_meanings,
                keys_symbol(): SymbolMeaning(KEYS_LETTER, "number of keys (= sequence length)", formula_setting.seq),
                bytes_symbol(): SymbolMeaning(
                    ELEMENT_BYTES_LETTER, cached_element_text, Fraction(self._element_bits) / 8
                ),
            }

        self._preorder_nodes: dict[tuple[int, RunConfig | None], list[NodePosition]] = {}
        self.root: FormulaNode = _build_node(
            self.symbolic.numeric_tree.root_position(), self.symbolic.symbolic_tree, (), count()
        )

    def nodes(self) -> list[FormulaNode]:
        """Returns the root (the whole model) and every node below it, parents first."""
        return list(_nodes_in_preorder(self.root))

    def find_nodes(self, query: str) -> list[FormulaNode]:
        """Finds the nodes whose paths end in `query`; without any, those whose paths have its names in order.

        Raises `InputError` if there are none either.
        """
        formula_nodes = self.nodes()
        if query.lower() == "model":
            return formula_nodes[:1]
        exact_matches = [node for node in formula_nodes[1:] if node.path == query]
        query_names = query.split(".")
        for allows_gaps in (False, True):
            exact_matches = exact_matches or [
                node for node in formula_nodes[1:] if _matches_path_end(query_names, node.path_names, allows_gaps)
            ]
        if not exact_matches:
            path_ends = {
                ".".join(path_name[0] for path_name in node.path_names[name_index:])
                for node in formula_nodes
                for name_index in range(len(node.path_names))
            }
            component_names = dict.fromkeys(
                node.path_names[-1][0]
                for node in formula_nodes[1:]
                if node.numeric_node.children or len(node.path_names) == 1
            )
            components: dict[str, str] = {}  # `attention` → self_attn: the outermost node of a component has its name
            for node in formula_nodes[1:]:
                if node.numeric_node.children:
                    components.setdefault(node.numeric_node.kind, node.path_names[-1][0])
            known_node_names = components | {path_end: path_end for path_end in sorted(path_ends)}
            suggestion = suggest(query, known_node_names) or f" Expected one of {', '.join(component_names)}."
            if query.lower() in QUANTITY_NAMES:
                suggestion = f" It is a quantity of every node: --quantity {query.lower()}"
            raise InputError(f"NODE: the model has no node '{query}'.{suggestion}")
        return exact_matches

    def formula(self, node: FormulaNode, quantity: Quantity) -> Formula | None:
        """Returns the formula of a quantity for one repeat of a node. FLOPs and parameters may be 0.

        None for a node or a model without a cache or state, and for the absorbed form in a model without one. Raises
        `ArithmeticError` if the formula's value differs from the count.
        """
        if quantity == "flops_absorbed" and not self.symbolic.numeric_tree.has_form("absorbed"):
            return None
        numeric_value = Fraction(self._sum_terms(self.symbolic.numeric_tree, self._numeric_terms(quantity), node))
        if quantity in ("kv", "state") and (not numeric_value or self.one_pass_model_name):
            return None
        if not self.has_symbols:
            return Formula(quantity, numeric_value, numeric_value, numeric_value)
        symbolic_sum = self._sum_terms(self.symbolic.symbolic_tree, self._symbolic_terms(quantity), node)
        return self._formula_with_forms(
            quantity, self._combine_equal_layers(symbolic_sum, _expand_if_shorter), numeric_value, node
        )

    def formula_of_activations(
        self, expression: Any, known_value: int, node: FormulaNode, rewrite_sums: SumStyle
    ) -> Formula:
        """Returns the formula of saved activations, from an expression and its known value.

        rewrite_sums: a function that rewrites the expression's sums.

        Raises `ArithmeticError` if it has another value.
        """
        if not self.has_symbols:
            return Formula("activations", Fraction(known_value), Fraction(known_value), Fraction(known_value))
        combined_expression = self._combine_equal_layers(expression, rewrite_sums)
        formula = self._formula_with_forms("activations", combined_expression, Fraction(known_value), node)
        if formula.hidden_expression is None:
            return formula
        return replace(formula, hidden_expression=self._combine_equal_layers(formula.hidden_expression, rewrite_sums))

    def _formula_with_forms(
        self, quantity: Quantity, expression: Any, expected_value: Fraction, node: FormulaNode
    ) -> Formula:
        formula_in_numbers = self._evaluate_at_numbers(expression, expected_value, node)
        formula_in_hidden_units = self._rewrite_in_hidden_units(expression)
        if formula_in_hidden_units is not None:
            self._evaluate_at_numbers(formula_in_hidden_units, expected_value, node)
        return Formula(quantity, expression, expected_value, formula_in_numbers, formula_in_hidden_units)

    def _sum_terms(self, root_node: Node, cost_terms: Iterable[CostTerm], node: FormulaNode) -> Any:
        """Returns the sum of cost terms for one repeat of a node."""
        cost_sum: Any = 0
        for cost_term in cost_terms:
            preorder_nodes = self._nodes_in_preorder(root_node, cost_term.run_config)
            for walk_index in node.walk_indices:
                cost_sum = add(cost_sum, preorder_nodes[walk_index].cost_per_repeat(cost_term.cost, self.include))
        return cost_sum

    def _nodes_in_preorder(self, root_node: Node, run_config: RunConfig | None) -> list[NodePosition]:
        """Returns all nodes of a tree with their run config, cached, in the order of `walk_indices`."""
        cache_key = (id(root_node), run_config)
        if cache_key not in self._preorder_nodes:
            self._preorder_nodes[cache_key] = list(root_node.walk(run_config))
        return self._preorder_nodes[cache_key]

    def _numeric_terms(self, quantity: Quantity) -> list[CostTerm]:
        """Returns the cost terms of a quantity, evaluated on the tree with numbers."""
        seq = self.setting.seq
        return self._cost_terms(quantity, seq, Fraction(1, seq), self._element_bits, Fraction(1, 8))

    def _symbolic_terms(self, quantity: Quantity) -> list[CostTerm]:
        """Returns the cost terms of a quantity, evaluated on the tree with symbols. Imports sympy."""
        return self._cost_terms(
            quantity, keys_symbol(), 1 / keys_symbol(), 8 * bytes_symbol(), _symbolic_bytes_per_bit()
        )

    def _cost_terms(
        self, quantity: Quantity, seq: Number, inverse_token_count: Any, element_bits: Number, bytes_per_bit: Any
    ) -> list[CostTerm]:
        """Returns the cost terms whose sum is the quantity, such as parameters or FLOPs.

        seq: tokens of a sequence.
        inverse_token_count: 1 / seq.
        element_bits: bits of a cached element.
        bytes_per_bit: 1/8, in numbers or in symbols.
        """
        if quantity in ("params", "active"):
            return [CostTerm(total_params_of if quantity == "params" else active_params_of)]
        if quantity in ("flops", "flops_absorbed"):
            execution = EAGER_EXECUTION if quantity == "flops" else Execution(mla="absorbed")
            run_config = RunConfig(Workload(batch=1, seq=seq), Counting(self.setting.pairs), execution)
            return [CostTerm(_scaled_cost(forward_flops_of, inverse_token_count), run_config)]
        run_without_tokens, run_of_one_token = (
            RunConfig(Workload(batch=1, seq=token_count, source=token_count, phase="prefill")) for token_count in (0, 1)
        )
        if quantity == "kv":
            self._check_whole_blocks()
        state_bits = STATE_BITS if self._stored_format.keys.bits < STATE_BITS else element_bits
        return _cache_terms(quantity, run_without_tokens, run_of_one_token, element_bits, state_bits, bytes_per_bit)

    def _check_whole_blocks(self) -> None:
        """Raises `InputError` for a cache format whose element blocks do not divide the head size or the latent."""
        stored_format, block_elements = self._stored_format, self._stored_format.keys.block_elements
        head_sizes = {
            head_size
            for node_place in self.symbolic.numeric_tree.walk()
            if isinstance(node_place.node.op, KVCache)
            for _, head_size in node_place.node.op.vectors
        }
        if (
            stored_format.has_scale_per_head
            or stored_format.is_latent_format
            or any(head_size % block_elements for head_size in head_sizes)
        ):
            raise InputError(
                f"--kv-dtype: {stored_format.name} has no number of bytes per element here "
                f"({stored_format.scales_text}); expected a number format such as fp8, or llmcalc kv for its bytes"
            )

    def _evaluate_at_numbers(self, expression: Any, expected_value: Fraction, node: FormulaNode) -> Any:
        """Returns the expression with numbers in place of all symbols except the sequence length S.

        Raises `ArithmeticError` if its value differs from `expected_value`.
        """
        import sympy

        value_of_symbol = {symbol: sympy.Rational(meaning.value) for symbol, meaning in self.meanings.items()}
        expression = sympy.sympify(expression)
        numeric_value = expression.xreplace(value_of_symbol)
        if numeric_value != sympy.Rational(expected_value):
            raise ArithmeticError(
                f"{node.name}: the formula {expression} gives {numeric_value}, the count is {expected_value}"
            )
        del value_of_symbol[keys_symbol()]
        return sympy.expand(expression.xreplace(value_of_symbol))

    def _combine_equal_layers(self, expression: Any, rewrite_sums: SumStyle) -> Any:
        """Writes the terms of equal layers once, times the number of these layers.

        rewrite_sums: function that rewrites the combined sums.
        """
        import sympy

        expression = sympy.sympify(expression)
        depth_symbols = self.symbolic.depth_symbols
        layer_count_symbols = {
            symbol for symbol, meaning in self.meanings.items() if meaning.field.startswith("num_hidden_layers")
        }
        layer_terms: dict[Any, set[Any]] = {}
        terms_without_layers: list[Any] = []
        for summand in sympy.Add.make_args(expression):
            repeat_factors = [factor for factor in sympy.Mul.make_args(summand) if factor in layer_count_symbols]
            if len(repeat_factors) == 1:
                layer_terms.setdefault(rewrite_sums(summand / repeat_factors[0]), set()).add(repeat_factors[0])
            else:
                terms_without_layers.append(summand)
        terms_by_repeat: dict[Any, list[Any]] = {}
        for layer_term, repeated_kinds in layer_terms.items():
            depth_symbol = next(
                (symbol for symbol, kind_counts in depth_symbols.items() if kind_counts == repeated_kinds), None
            )
            terms_by_repeat.setdefault(
                depth_symbol if depth_symbol is not None else sympy.Add(*repeated_kinds), []
            ).append(layer_term)
        repeated_terms = [
            repeat_factor * rewrite_sums(sympy.Add(*terms)) for repeat_factor, terms in terms_by_repeat.items()
        ]
        return sympy.Add(*repeated_terms, rewrite_sums(sympy.Add(*terms_without_layers)))

    def _rewrite_in_hidden_units(self, expression: Any) -> Any:
        """Rewrites f and heads × head size as multiples of h, term by term."""
        import sympy

        hidden_symbol = next(
            (symbol for symbol, meaning in self.meanings.items() if meaning.field == "hidden_size"), None
        )
        expanded_sum = sympy.expand(expression)
        if (
            hidden_symbol is None
            or not expanded_sum.has(hidden_symbol)
            or expanded_sum.has(sympy.Min, sympy.Max, sympy.floor)
        ):
            return None
        total_sum: Any = sympy.Integer(0)
        for summand in sympy.Add.make_args(expanded_sum):
            factors: list[tuple[Any, Any]] = [factor.as_base_exp() for factor in sympy.Mul.make_args(summand)]
            factor_fields = [
                self.meanings[factor_base].field if factor_base in self.meanings else "" for factor_base, _ in factors
            ]
            head_exponent = sum(
                exponent
                for (_, exponent), factor_field in zip(factors, factor_fields, strict=True)
                if factor_field in HEAD_COUNT_FIELDS
            )
            head_size_exponent = sum(
                exponent
                for (_, exponent), factor_field in zip(factors, factor_fields, strict=True)
                if factor_field in HEAD_SIZE_FIELDS
            )
            rewritten_fields = WIDTH_FIELDS | (
                HEAD_COUNT_FIELDS | HEAD_SIZE_FIELDS if head_exponent == head_size_exponent else frozenset()
            )
            for (factor_base, exponent), field_name in zip(factors, factor_fields, strict=True):
                hidden_exponent = exponent if field_name in WIDTH_FIELDS | HEAD_SIZE_FIELDS else 0
                changed_factor = (
                    sympy.Rational(self.meanings[factor_base].value) ** exponent
                    * (hidden_symbol / self.meanings[hidden_symbol].value) ** hidden_exponent
                    if field_name in rewritten_fields
                    else factor_base**exponent
                )
                summand = (
                    summand / factor_base**exponent * changed_factor if field_name in rewritten_fields else summand
                )
            total_sum += summand
        coefficients = [term_of_sum.as_coeff_Mul()[0] for term_of_sum in sympy.Add.make_args(total_sum)]
        is_readable = all(coefficient.q <= LARGEST_DENOMINATOR for coefficient in coefficients)
        return self._combine_by_power(total_sum) if is_readable and total_sum != expanded_sum else None

    def proportions(self) -> list[tuple[Any, Any]]:
        """Returns (width, the width as a multiple of h): (f, 3.5·h), (a·d, h), (k·d, h/4) or (k, a/4)."""
        import sympy

        value_of_symbol = {size_symbol: symbol_meaning.value for size_symbol, symbol_meaning in self.meanings.items()}

        def symbols_of(field_names: frozenset[str]) -> list[Any]:
            return [symbol for symbol, meaning in self.meanings.items() if meaning.field in field_names]

        def ratio(numerator: Number, denominator: Any) -> Any:
            return sympy.Rational(numerator, value_of_symbol[denominator]) * denominator

        hidden_widths, heads, head_sizes = (
            symbols_of(frozenset({"hidden_size"})),
            symbols_of(HEAD_COUNT_FIELDS),
            symbols_of(HEAD_SIZE_FIELDS),
        )
        if len(hidden_widths) != 1:
            return []
        (hidden_symbol,) = hidden_widths
        width_ratios = [
            (width_symbol, ratio(value_of_symbol[width_symbol], hidden_symbol))
            for width_symbol in symbols_of(WIDTH_FIELDS)
        ]
        if len(head_sizes) == 1:
            width_ratios += [
                (
                    head_count_symbol * head_sizes[0],
                    ratio(value_of_symbol[head_count_symbol] * value_of_symbol[head_sizes[0]], hidden_symbol),
                )
                for head_count_symbol in heads
            ]
        elif not head_sizes and len(heads) == 2:
            width_ratios.append((heads[1], ratio(value_of_symbol[heads[1]], heads[0])))
        return width_ratios

    def _combine_by_power(self, total_sum: Any) -> Any:
        """Combines terms that are equal for all kinds of layers into one term times the number of layers."""
        import sympy

        for depth_symbol, kind_counts in self.symbolic.depth_symbols.items():
            combined_terms = [
                {summand / kind_count for summand in sympy.Add.make_args(total_sum) if summand.has(kind_count)}
                for kind_count in kind_counts
            ]
            for shared_factor in set.intersection(*combined_terms) if combined_terms else set():
                total_sum = (
                    total_sum
                    - sum(shared_factor * kind_count for kind_count in kind_counts)
                    + shared_factor * depth_symbol
                )
        return total_sum


def _cache_terms(
    quantity: Quantity,
    run_without_tokens: RunConfig,
    run_of_one_token: RunConfig,
    element_bits: Number,
    state_bits: Number,
    bytes_per_bit: Any,
) -> list[CostTerm]:
    """Returns the cost terms of the cache bytes per token, or for `state` of the bytes that do not grow with tokens.

    Assumes that no window is full yet; a recurrent state does not grow.
    """

    def cost(counted_op: CountedOp) -> Number:
        return counted_op.cache_bits(state_bits if isinstance(counted_op.op, State) else element_bits)

    terms_at_start = [
        CostTerm(_scaled_cost(cost, bytes_per_bit if quantity == "state" else -bytes_per_bit), run_without_tokens)
    ]
    return (
        terms_at_start
        if quantity == "state"
        else [CostTerm(_scaled_cost(cost, bytes_per_bit), run_of_one_token), *terms_at_start]
    )


def _scaled_cost(cost: Cost, factor: Any) -> Cost:
    """Returns a cost function whose result is multiplied by a factor."""

    def scaled_cost(counted_op: CountedOp) -> Number:
        unscaled_cost = cost(counted_op)
        return 0 if is_zero(unscaled_cost) else unscaled_cost * factor

    return scaled_cost


def _symbolic_bytes_per_bit() -> Any:
    import sympy

    return sympy.Rational(1, 8)


def _expand_if_shorter(expression: Any) -> Any:
    """Returns the expanded form of an expression if it is shorter, else the expression itself."""
    import sympy

    expanded_sum = sympy.expand(expression)
    return expanded_sum if sympy.count_ops(expanded_sum) <= sympy.count_ops(expression) else expression


def _build_node(
    numeric_position: NodePosition,
    symbolic_node: Node,
    path_names: NodePath,
    walk_indices: Iterator[int],
    formula_source: str = "",
) -> FormulaNode:
    """Builds a formula node with its children. walk_indices: yields the nodes' indices in a walk of the tree."""
    node, walk_index = numeric_position.node, next(walk_indices)
    if (node.name, len(node.children)) != (symbolic_node.name, len(symbolic_node.children)):
        raise ArithmeticError(f"{numeric_position.path}: the tree in symbols is not the tree in numbers")
    formula_source = node.source or formula_source
    child_nodes = tuple(
        _build_node(
            numeric_child,
            symbolic_child,
            (*path_names, (numeric_child.node.name, symbolic_child.label, tuple(numeric_child.node.indices or ()))),
            walk_indices,
            formula_source,
        )
        for numeric_child, symbolic_child in zip(numeric_position.children(), symbolic_node.children, strict=True)
    )
    return FormulaNode(
        path_names,
        numeric_position.path,
        (walk_index,),
        node,
        symbolic_node,
        numeric_position.copies,
        numeric_position.optional_part,
        formula_source,
        child_nodes,
    )


def merge_nodes(parent_node: FormulaNode, node_name: str, merged_nodes: Sequence[FormulaNode]) -> FormulaNode:
    """Merges several children of a node into one node with a new name."""
    numeric_node, symbolic_node = (
        Node(node_name, children=tuple(getattr(formula_node, node_field) for formula_node in merged_nodes))
        for node_field in ("numeric_node", "symbolic_node")
    )
    walk_indices = tuple(walk_index for merged_node in merged_nodes for walk_index in merged_node.walk_indices)
    node_path = f"{parent_node.path}.{node_name}" if parent_node.path else node_name
    return replace(
        parent_node,
        path_names=(*parent_node.path_names, (node_name, "", ())),
        path=node_path,
        walk_indices=walk_indices,
        numeric_node=numeric_node,
        symbolic_node=symbolic_node,
        children=(),
    )


def _nodes_in_preorder(node: FormulaNode) -> Iterator[FormulaNode]:
    yield node
    for child_node in node.children:
        yield from _nodes_in_preorder(child_node)


def _matches_path_end(query_names: list[str], path_names: NodePath, allows_gaps: bool) -> bool:
    """Whether a path ends in these names; a name may include a layer's label or number."""
    if not query_names or not path_names:
        return False
    (node_name, layer_label, layer_numbers), outer_path_names = path_names[-1], path_names[:-1]
    last_name, remaining_names = query_names[-1], []
    if last_name == node_name:
        remaining_names.append(query_names[:-1])
    if (
        last_name
        and (last_name == layer_label or (last_name.isdecimal() and int(last_name) in layer_numbers))
        and (len(query_names) == 1 or query_names[-2] == node_name)
    ):
        remaining_names.append(query_names[:-2])
    outer_path_lengths = range(len(outer_path_names), 0 if allows_gaps else len(outer_path_names) - 1, -1)
    return any(
        not unmatched_names
        or any(
            _matches_path_end(unmatched_names, outer_path_names[:outer_path_length], allows_gaps)
            for outer_path_length in outer_path_lengths
        )
        for unmatched_names in remaining_names
    )
