"""The formulas of every node of a model: the tree in symbols and the tree in numbers, walked together and held to
agree.

A formula whose value at the model's numbers is not the count is never given back: `ArithmeticError` is raised instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from ..algebra import Number, times
from ..errors import InputError, suggest
from ..model import ModelSpec
from ..ops import Op
from ..tree import Cost, Node
from ..units import DTYPE_BITS
from ..workload import Pairs, Stream, Workload
from .params import active_of, total_of
from .symbolic import ELEMENT_BYTES, KEYS, Meaning, Symbolic, element_bytes, keys, symbolic

Quantity: TypeAlias = Literal["params", "active", "flops", "kv", "state"]
QUANTITIES: dict[Quantity, tuple[str, str]] = {
    "params": ("parameters", "parameters"),
    "active": ("active a token", "parameters"),
    "flops": ("FLOPs a token", "FLOPs/token"),
    "kv": ("KV cache a token", "bytes/token"),
    "state": ("state a sequence", "bytes/sequence"),
}
"""What a person calls each, and its unit."""

WIDTHS = frozenset({"intermediate_size", "embedding_size", "q_lora_rank", "kv_lora_rank"})
HEADS = frozenset({"num_attention_heads", "num_key_value_heads"})
HEAD_SIZES = frozenset({"head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
LARGEST_DENOMINATOR = 1000

Measure: TypeAlias = tuple[Cost, Workload | None]
Steps: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
"""(name, label, indices) of each node from the top down."""


@dataclass(frozen=True, slots=True)
class Setting:
    """seq: tokens of a sequence, which with full pairs are the keys S of each token. dtype: of the cache."""

    seq: int = 2048
    pairs: Pairs = "full"
    dtype: str = "bfloat16"


DEFAULT = Setting()


@dataclass(frozen=True, slots=True)
class Formula:
    """expression: in symbols. value: what it and the count both give. open: the same with S left open.

    in_hidden: the expression with every width that is a multiple of h written as that multiple; None where there is
    none.
    """

    quantity: Quantity
    expression: Any
    value: Fraction
    open: Any
    in_hidden: Any = None


@dataclass(frozen=True, slots=True)
class Found:
    """A node in numbers and in symbols. times: how often it occurs in the model."""

    steps: Steps
    path: str
    numbers: Node
    letters: Node
    times: Number
    stream: Stream | None
    optional: str
    source: str

    @property
    def name(self) -> str:
        """`layers.self_attn`, with the label where layers differ: `layers.moe.mlp`."""
        return ".".join(text for name, label, _ in self.steps for text in (name, label) if text) or "model"


class Formulas:
    """The formulas of one model under one setting."""

    def __init__(self, spec: ModelSpec, setting: Setting = DEFAULT, include: frozenset[str] = frozenset()) -> None:
        self.symbolic: Symbolic = symbolic(spec)
        self.setting, self.include = setting, include
        self.meanings: dict[Any, Meaning] = {
            **self.symbolic.meanings,
            keys(): Meaning(KEYS, "keys, as many as tokens of a sequence", setting.seq),
            element_bytes(): Meaning(
                ELEMENT_BYTES, f"bytes of a cached element ({setting.dtype})", Fraction(DTYPE_BITS[setting.dtype], 8)
            ),
        }

    def nodes(self) -> list[Found]:
        """The whole model and every node below it, parents first."""
        return list(
            _nodes(
                self.symbolic.numbers,
                self.symbolic.tree,
                Found((), "", self.symbolic.numbers, self.symbolic.tree, 1, None, "", ""),
            )
        )

    def find(self, query: str) -> list[Found]:
        """The nodes whose path ends in `query`; where there are none, those whose path has its names in that order.

        Raises `InputError` where there are none either.
        """
        nodes = self.nodes()
        if query.lower() == "model":
            return nodes[:1]
        exact = [n for n in nodes[1:] if n.path == query]
        asked = query.split(".")
        for gaps in (False, True):
            exact = exact or [n for n in nodes[1:] if _fits(asked, n.steps, gaps)]
        if not exact:
            tails = {".".join(s[0] for s in n.steps[i:]) for n in nodes for i in range(len(n.steps))}
            near = (
                suggest(query, sorted(tails))
                or " Expected one of "
                f"{', '.join(dict.fromkeys(n.steps[-1][0] for n in nodes[1:] if n.numbers.children))}."
            )
            raise InputError(f"NODE: the model has no node '{query}'.{near}")
        return exact

    def formula(self, found: Found, quantity: Quantity) -> Formula | None:
        """What one of the node costs, or None where that is nothing (FLOPs and parameters of nothing are given as 0).

        Raises `ArithmeticError` where the formula's value is not the count.
        """
        include = self.include | ({found.optional} - {""})
        exact, letters = self._costs(quantity, found.stream)
        value = Fraction(found.numbers.each(exact[0], exact[1], include))
        expression = self._gathered(found.letters.each(letters[0], letters[1], include))
        if quantity in ("kv", "state") and not value:
            return None
        open_form = self._checked(expression, value, found)
        in_hidden = self._in_hidden(expression)
        if in_hidden is not None:
            self._checked(in_hidden, value, found)
        return Formula(quantity, expression, value, open_form, in_hidden)

    def _costs(self, quantity: Quantity, stream: Stream | None) -> tuple[Measure, Measure]:
        """How the quantity is measured in numbers and in symbols."""
        if quantity == "params":
            return (total_of, None), (total_of, None)
        if quantity == "active":
            return (active_of, None), (active_of, None)
        if quantity == "flops":
            n, s = self.setting.seq, keys()
            here, there = (
                _entered(Workload(batch=1, seq=tokens, pairs=self.setting.pairs), stream) for tokens in (n, s)
            )
            return (_flops_of_one(n, Fraction), here), (_flops_of_one(s, _symbolic), there)
        bits, b = DTYPE_BITS[self.setting.dtype], element_bytes()
        held = _first_token if quantity == "kv" else _before_any
        one = _entered(Workload(batch=1, seq=1, source=1, phase="prefill"), stream)
        return (_bytes_of(held, bits, Fraction), one), (_bytes_of(held, 8 * b, _symbolic), one)

    def _checked(self, expression: Any, value: Fraction, found: Found) -> Any:
        """The expression with all numbers in but S.

        Raises `ArithmeticError` where it does not come to `value`.
        """
        import sympy

        number = {symbol: sympy.Rational(m.value) for symbol, m in self.meanings.items()}
        expression = sympy.sympify(expression)
        result = expression.xreplace(number)
        if result != sympy.Rational(value):
            raise ArithmeticError(f"{found.name}: the formula {expression} gives {result}, the count is {value}")
        del number[keys()]
        return sympy.expand(expression.xreplace(number))

    def _gathered(self, expression: Any) -> Any:
        """Terms of layers that cost the same together, under the whole depth where they are all layers of a stack."""
        import sympy

        expression = sympy.sympify(expression)
        depths = self.symbolic.depths
        counts = {s for s, m in self.meanings.items() if m.field.startswith("num_hidden_layers")}
        alike: dict[Any, set[Any]] = {}
        rest: list[Any] = []
        for term in sympy.Add.make_args(expression):
            repeat = [f for f in sympy.Mul.make_args(term) if f in counts]
            if len(repeat) == 1:
                alike.setdefault(_tidy(term / repeat[0]), set()).add(repeat[0])
            else:
                rest.append(term)
        by_repeat: dict[Any, list[Any]] = {}
        for inner, repeats in alike.items():
            whole = next((depth for depth, kinds in depths.items() if kinds == repeats), None)
            by_repeat.setdefault(whole if whole is not None else sympy.Add(*repeats), []).append(inner)
        layered = [repeat * _tidy(sympy.Add(*inner)) for repeat, inner in by_repeat.items()]
        return sympy.Add(*layered, _tidy(sympy.Add(*rest)))

    def _in_hidden(self, expression: Any) -> Any:
        """The expression in units of h, term by term: f as a multiple of h, heads × head size as a multiple of h."""
        import sympy

        hidden = next((s for s, m in self.meanings.items() if m.field == "hidden_size"), None)
        expanded = sympy.expand(expression)
        if hidden is None or not expanded.has(hidden) or expanded.has(sympy.Min, sympy.Max, sympy.floor):
            return None
        total: Any = sympy.Integer(0)
        for term in sympy.Add.make_args(expanded):
            factors: list[tuple[Any, Any]] = [f.as_base_exp() for f in sympy.Mul.make_args(term)]
            fields = [self.meanings[base].field if base in self.meanings else "" for base, _ in factors]
            heads = sum(exp for (_, exp), f in zip(factors, fields, strict=True) if f in HEADS)
            sizes = sum(exp for (_, exp), f in zip(factors, fields, strict=True) if f in HEAD_SIZES)
            lengths = WIDTHS | (HEADS | HEAD_SIZES if heads == sizes else frozenset())
            for (base, exp), field in zip(factors, fields, strict=True):
                power = exp if field in WIDTHS | HEAD_SIZES else 0
                changed = (
                    sympy.Rational(self.meanings[base].value) ** exp * (hidden / self.meanings[hidden].value) ** power
                    if field in lengths
                    else base**exp
                )
                term = term / base**exp * changed if field in lengths else term
            total += term
        coefficients = [t.as_coeff_Mul()[0] for t in sympy.Add.make_args(total)]
        readable = all(c.q <= LARGEST_DENOMINATOR for c in coefficients)
        return self._gathered_by_power(total) if readable and total != expanded else None

    def proportions(self) -> list[tuple[Any, Any]]:
        """Widths as multiples of h, where there is one of each kind: (f, 3.5·h), (a·d, h), (k·d, h/4), or (k, a/4)."""
        import sympy

        value = {s: m.value for s, m in self.meanings.items()}

        def of(fields: frozenset[str]) -> list[Any]:
            return [s for s, m in self.meanings.items() if m.field in fields]

        def ratio(part: Number, whole: Any) -> Any:
            return sympy.Rational(part, value[whole]) * whole

        (hidden,), heads, sizes = of(frozenset({"hidden_size"})), of(HEADS), of(HEAD_SIZES)
        found = [(width, ratio(value[width], hidden)) for width in of(WIDTHS)]
        if len(sizes) == 1:
            found += [(head * sizes[0], ratio(value[head] * value[sizes[0]], hidden)) for head in heads]
        elif not sizes and len(heads) == 2:
            found.append((heads[1], ratio(value[heads[1]], heads[0])))
        return found

    def _gathered_by_power(self, total: Any) -> Any:
        """Terms that differ only in which layers they are of, under the whole depth where they are all of them."""
        import sympy

        for depth, kinds in self.symbolic.depths.items():
            terms = [{t / k for t in sympy.Add.make_args(total) if t.has(k)} for k in kinds]
            for shared in set.intersection(*terms) if terms else set():
                total = total - sum(shared * k for k in kinds) + shared * depth
        return total


def _entered(workload: Workload, stream: Stream | None) -> Workload:
    return workload if stream is None else workload.enter(stream)


def _symbolic(value: Number) -> Any:
    import sympy

    return sympy.sympify(value)


def _flops_of_one(tokens: Number, exact: Callable[[Number], Any]) -> Cost:
    """Cost: FLOPs of a whole sequence of so many tokens, for each of them.
    exact: a number that divides without rounding.
    """

    def cost(op: Op, w: Workload) -> Any:
        return exact(op.forward_flops(w)) / tokens

    return cost


def _bytes_of(
    held: Callable[[Op, Workload, Number], Number], element_bits: Number, exact: Callable[[Number], Any]
) -> Cost:
    """Cost: what `held` gives in bits, as bytes."""

    def cost(op: Op, w: Workload) -> Any:
        return exact(held(op, w, element_bits)) / 8

    return cost


def _before_any(op: Op, w: Workload, element_bits: Number) -> Number:
    """Bits that are held before the first token: recurrent states."""
    return op.cache_bits(w.with_(seq=0, source=0), element_bits)


def _first_token(op: Op, w: Workload, element_bits: Number) -> Number:
    """Bits that the first token of a sequence adds: windows and states hold no less for it."""
    return op.cache_bits(w, element_bits) - _before_any(op, w, element_bits)


def _tidy(expression: Any) -> Any:
    """Multiplied out where that is shorter: 2E(hf + f) is, a(n + r)q is not."""
    import sympy

    expanded = sympy.expand(expression)
    return expanded if sympy.count_ops(expanded) <= sympy.count_ops(expression) else expression


def _nodes(numbers: Node, letters: Node, here: Found) -> Iterator[Found]:
    if (numbers.name, len(numbers.children)) != (letters.name, len(letters.children)):
        raise ArithmeticError(f"{here.path}: the tree in symbols is not the tree in numbers")
    yield here
    for number, letter in zip(numbers.children, letters.children, strict=True):
        yield from _nodes(number, letter, child(here, number, letter))


def child(of: Found, numbers: Node, letters: Node) -> Found:
    """One of the nodes below `of`."""
    step = (numbers.name, letters.label, tuple(numbers.indices or ()))
    path = f"{of.path}.{numbers.segment}" if of.path else numbers.segment
    return replace(
        of,
        steps=(*of.steps, step),
        path=path,
        numbers=numbers,
        letters=letters,
        times=times(of.times, numbers.repeat),
        stream=numbers.stream or of.stream,
        optional=numbers.optional or of.optional,
        source=numbers.source or of.source,
    )


def _fits(asked: list[str], steps: Steps, gaps: bool) -> bool:
    """Whether `asked` (names, each perhaps with a layer's label or number after it) ends where the path ends."""
    if not asked or not steps:
        return False
    (name, label, indices), above = steps[-1], steps[:-1]
    last, left = asked[-1], []
    if last == name:
        left.append(asked[:-1])
    if (
        last
        and (last == label or (last.isdecimal() and int(last) in indices))
        and (len(asked) == 1 or asked[-2] == name)
    ):
        left.append(asked[:-2])
    ends = range(len(above), 0 if gaps else len(above) - 1, -1)
    return any(not rest or any(_fits(rest, above[:end], gaps) for end in ends) for rest in left)
