"""Depth against width: shapes of one family of models that cost the same.

A family has a model's ratios (d_ff/h, heads·head_dim/h, key/value heads over heads, head size, vocabulary, tying,
norms) and varies hidden size and depth alone. The family is a spec whose sizes are functions of (h, L); the closed
forms of `params` and `flops` are evaluated on it with Python integers. Cost grows with h and with L, so the hidden
sizes that a budget allows, and the depth nearest to the budget at each of them, are found by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, Literal, TypeAlias

from ..algebra import Number, exact_div, floor_div
from ..components.base import HeadSizes, Network, TokenMixer, Unscalable
from ..components.head import LMHead
from ..components.layers.block import Layer
from ..costs.cache import kv
from ..costs.flops import flops
from ..costs.params import params
from ..errors import InputError
from ..model import ModelSpec
from ..run.workload import Workload
from ..sources.files import validated
from ..units import count
from .compare import StackShape, in_dense_band, stack_shape
from .literature import TOKENS_PER_PARAMETER, Verdicts, scaled_optimum, verdicts

HEAD_SIZES = (64, 96, 128, 256)
LEAST_ASPECT, MOST_ASPECT = 8, 1024
"""h/L of the deepest and the shallowest shape of a study."""
LEAST_WIDTHS, MOST_WIDTHS = 48, 256
"""Hidden sizes that a study counts at least, where the budget allows as many, and at most."""
FEWEST_WIDTHS = 6
"""Where a budget allows fewer hidden sizes than these, their step is halved."""
UNIT, LEAST_UNIT = 64, 16
"""What hidden sizes and widths of feed-forward networks are multiples of: usually, and where a budget is small."""
LEAST_HEAD_DIM = 16
"""The smallest head size that a study makes by halving a model's head size."""
LARGEST_WIDTH, LARGEST_DEPTH = 2**21, 2**16

BudgetKind: TypeAlias = Literal["parameters", "train_flops"]

STANDARD, SMALL_STANDARD = "llama3-8b", "smollm2-135m"
"""The presets whose ratios a budget without a model has: of all sizes, and of small ones."""
SMALL = 500_000_000
"""Parameters below which a budget has the ratios of the small standard. SmolLM2's models of 135 M and 360 M parameters
have the same ratios, vocabulary and head size (Allal 2025, arXiv:2502.02737).
"""


def standard(parameters: int | None = None, train_flops: int | None = None, tokens: int | None = None) -> str:
    """The name of the preset whose ratios a budget without a model has.

    Training FLOPs stand for C/6D parameters, or for sqrt(C/120) at 20 tokens per parameter (Hoffmann 2022, C = 6ND).
    """
    if parameters is None and train_flops is not None:
        divisor = 6 * TOKENS_PER_PARAMETER if tokens is None else 6 * tokens
        parameters = math.isqrt(train_flops // divisor) if tokens is None else train_flops // divisor
    return SMALL_STANDARD if parameters is not None and parameters < SMALL else STANDARD


@dataclass(frozen=True)
class Family:
    """Models that differ in hidden size and depth alone.

    spec: the model whose ratios they have.
    head_dim, kv_ratio, ffn_ratio: in place of the model's, where given.
    head_divisor: every head size is the model's divided by this number.
    unit: what hidden sizes and widths of feed-forward networks are multiples of.
    """

    spec: ModelSpec
    head_dim: int | None = None
    kv_ratio: Fraction | None = None
    ffn_ratio: Fraction | None = None
    head_divisor: int = 1
    unit: int = UNIT

    def _blocks(self) -> list[Layer]:
        return [self.spec.main.block, *self.spec.main.variants.values()]

    def _own_heads(self) -> list[HeadSizes]:
        mixers = [block.attention for block in self._blocks() if isinstance(block.attention, TokenMixer)]
        return [one for mixer in mixers if (one := mixer.heads(self.spec.hidden_size)) is not None]

    @property
    def least_depth(self) -> int:
        """The smallest depth: one of each layer that a pattern names."""
        return len(self.spec.main.first_layers) + len(self.spec.main.pattern)

    @property
    def step(self) -> int:
        """Hidden sizes are multiples of this number, so that head counts stay integers. It is at least `unit`."""
        shares = [share for one in self._own_heads() for share in self._shares(one)[:2] if share is not None]
        least = math.lcm(*(share.denominator for share in shares))
        while least < self.unit:
            least *= 2
        return least

    def _shares(self, sizes: HeadSizes) -> tuple[Fraction, Fraction | None, int]:
        """(heads over h, key/value heads over h or None where there is one for all, head size)."""
        h, a, k, d = self.spec.hidden_size, sizes.heads, sizes.kv_heads, sizes.head_dim
        size = (self.head_dim or d) // self.head_divisor
        heads = Fraction(a * d, h * size)
        if self.kv_ratio is not None:
            return heads, heads * self.kv_ratio, size
        return heads, None if k is None or (k == 1 and a > 1) else heads * k / a, size

    def finer(self, keep_heads: bool) -> Family | None:
        """The same family with hidden sizes at smaller steps; None where there is none.

        keep_heads: whether head sizes must stay as they are. Otherwise they are halved, if all of them can be.
        """
        dims = [(self.head_dim or one.head_dim) // self.head_divisor for one in self._own_heads()]
        even = all(d % 2 == 0 and d // 2 >= LEAST_HEAD_DIM for d in dims)
        for divisor in (1,) if keep_heads or not even else (2, 1):
            half = replace(self, unit=max(LEAST_UNIT, self.unit // 2), head_divisor=divisor * self.head_divisor)
            try:
                half.at(half.step, half.least_depth)
            except Unscalable:  # rotary dimensions, for one, may need heads of the model's own size
                continue
            if half.step < self.step:
                return half
        return None

    def at(self, hidden_size: Number, num_hidden_layers: Number) -> ModelSpec:
        """The member of that size: ints, or arrays of ints that are multiples of `step`."""
        stack = self.spec.main
        blocks = {name: self._scaled(block, hidden_size) for name, block in stack.variants.items()}
        changes = {
            "num_hidden_layers": num_hidden_layers,
            "block": self._scaled(stack.block, hidden_size),
            "variants": blocks,
        }
        return self.spec.model_copy(update={"hidden_size": hidden_size, "decoder": stack.model_copy(update=changes)})

    def _scaled(self, block: Layer, h: Number) -> Layer:
        def heads(sizes: HeadSizes) -> HeadSizes:
            share, kv_share, size = self._shares(sizes)
            return HeadSizes(_share(h, share), 1 if kv_share is None else _share(h, kv_share), size)

        return block.scaled(self.spec.hidden_size, heads, lambda width: self._widened(width, h))

    def _widened(self, width: int, h: Number) -> Number:
        """A width in proportion, to the nearest multiple of `unit` (or of a smaller power of two, where its own is
        one).
        """
        ratio, unit = self.ffn_ratio, self.unit
        if ratio is None:
            ratio, unit = Fraction(width, self.spec.hidden_size), math.gcd(width, self.unit)
        whole = 2 * ratio.denominator * unit
        return floor_div(2 * ratio.numerator * h + ratio.denominator * unit, whole) * unit


def _share(h: Number, share: Fraction) -> Number:
    return exact_div(h * share.numerator, share.denominator)


def family(
    spec: ModelSpec,
    head_dim: int | None = None,
    kv_ratio: Fraction | None = None,
    ffn_ratio: Fraction | None = None,
    vocab_size: int | None = None,
    tie: bool | None = None,
) -> Family:
    """The family of a model, with some of its ratios and sizes replaced.

    kv_ratio: key/value heads over heads, one over a whole number.
    tie: whether the language-model head has the embedding's weight.
    Raises `InputError` for models whose shape is more than hidden size and depth, and for a ratio or size that the
    model cannot have.
    """
    if spec.kind != "decoder":
        raise InputError(f"shape: only decoders are supported, and this model is an {spec.kind}; expected a decoder")
    stack = spec.main
    networks = [layer.feed_forward for layer in (stack.block, *stack.variants.values())]
    if ffn_ratio is not None and any(isinstance(network, Network) and network.mixture for network in networks):
        fix = "expected --set expert.intermediate_size=N"
        raise InputError(f"--ffn-ratio: a mixture of experts has no one width; {fix}")
    if spec.embedding_size is not None or stack.relative_bias is not None:
        raise InputError(
            "shape: a factorised embedding or relative bias does not scale with hidden_size alone; expected a "
            "decoder without"
        )
    if kv_ratio is not None and (kv_ratio.numerator != 1 or kv_ratio <= 0):
        raise InputError(
            f"--kv-ratio: {kv_ratio} is not one over a whole number; expected key/value heads over heads, such as "
            "1, 1/4 or 0.125"
        )
    spec = _changed(spec.model_copy(update={"mtp": None}), vocab_size, tie)
    members = Family(spec, None, kv_ratio, ffn_ratio)
    for what, one in (("shape", members), ("--head-dim", replace(members, head_dim=head_dim))):
        try:
            member = one.at(one.step, one.least_depth)
        except Unscalable as error:
            raise InputError(f"{what}: {error}") from None
        validated(ModelSpec, member.model_dump(), what)
    return replace(members, head_dim=head_dim)


def _changed(spec: ModelSpec, vocab_size: int | None, tie: bool | None) -> ModelSpec:
    """The model with another vocabulary size, or with its head tied to the embedding or not, checked again."""
    if tie is not None and not isinstance(spec.head, LMHead):
        option = "--tie" if tie else "--no-tie"
        raise InputError(f"{option}: this model has no language-model head; expected a model that has one")
    changes: dict[str, Any] = {}
    if vocab_size is not None:
        changes["vocab_size"] = vocab_size
    if tie is not None:
        changes["tie_word_embeddings"] = tie
    return validated(ModelSpec, spec.model_dump() | changes, "shape") if changes else spec


@dataclass(frozen=True)
class Budget:
    """What every shape is to cost: parameters, or FLOPs of training.

    kind: which of the two.
    value: how many of them.
    tokens: the number of training tokens; where None, 20 per active parameter (Hoffmann 2022).
    seq: tokens of a training sequence.
    """

    kind: BudgetKind
    value: int
    tokens: int | None = None
    seq: int = 2048

    def tokens_for(self, active: Number) -> Number:
        return TOKENS_PER_PARAMETER * active if self.tokens is None else self.tokens

    def spent(self, spec: ModelSpec) -> Number:
        """What a model, or an array of them, costs; training FLOPs exactly, forward and backward, full pairs."""
        count = params(spec)
        if self.kind == "parameters":
            return count.total
        step = flops(spec, Workload(batch=1, seq=self.seq, phase="train")).total
        return floor_div(self.tokens_for(count.active) * step, self.seq)


def budget_for(
    own: ModelSpec | None,
    parameters: int | None = None,
    train_flops: int | None = None,
    tokens: int | None = None,
    seq: int = 2048,
) -> Budget:
    """The budget that was asked for; by default the parameters of the model.

    Raises `InputError` where none or two are given, or tokens without training FLOPs.
    """
    if parameters is not None and train_flops is not None:
        raise InputError("--params and --flops: expected one budget, not both")
    if tokens is not None and train_flops is None:
        raise InputError("--tokens: only a budget of training FLOPs has tokens; expected --flops C beside it")
    if train_flops is not None:
        return Budget("train_flops", train_flops, tokens, seq)
    if parameters is None and own is None:
        raise InputError("shape: no budget given; expected a TARGET, --params N or --flops C")
    return Budget(
        "parameters", params(own).total if parameters is None and own is not None else parameters or 0, None, seq
    )


def proportion(text: str | None, what: str) -> Fraction | None:
    """`3.5`, `8/3`, `0.125` exactly; None for None.

    Raises `InputError` naming `what` for anything that is no positive number.
    """
    if text is None:
        return None
    try:
        value = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if not Fraction(1, 10**6) <= value <= 10**6 or value.denominator > 10**6:
        raise InputError(f"{what}: '{text}' is not a positive ratio; expected something like 3.5, 8/3 or 1/8")
    return value


@dataclass(frozen=True)
class Shape:
    """One member of the family.

    target: whether it has the hidden size and the depth of the model that the family is of.
    embedding_and_head: the parameters of the embedding and of an untied language-model head.
    difference: its cost over the budget, minus 1.
    head_sizes: the common head sizes that divide h.
    """

    spec: ModelSpec
    stack: StackShape
    target: bool
    parameters: int
    active: int
    embedding_and_head: int
    difference: float
    tokens: int | None
    train_flops: int | None
    forward_flops_per_token: float
    kv_bytes_per_token: int
    head_sizes: tuple[int, ...]
    verdicts: Verdicts

    @property
    def in_dense_band(self) -> bool:
        return in_dense_band(self.stack.hidden_size, self.stack.num_hidden_layers)


@dataclass(frozen=True)
class Study:
    """Shapes of one budget, deepest first.

    family: what they are members of, with the steps and head sizes that were chosen for the budget.
    searched: how many shapes were counted to find them.
    scaled: (h, L, compute over the model's) by published exponents from the model.
    """

    family: Family
    budget: Budget
    tolerance: float
    seq: int
    dtype: str
    shapes: tuple[Shape, ...]
    searched: int
    scaled: tuple[float, float, float] | None


def study(
    members: Family,
    budget: Budget,
    own: ModelSpec | None = None,
    rows: int = 12,
    percent: float = 2.0,
    seq: int = 2048,
    dtype: str = "bfloat16",
) -> Study:
    """About `rows` shapes that cost the budget to within `percent` of it, evenly spaced in log h/L.

    own: the model that the family is of; its own shape is one of them where it costs the budget. Raises `InputError`
    where no shape does.
    """
    tolerance = percent / 100
    own_size = None if own is None else (own.hidden_size, own.main.num_hidden_layers)
    own_fits = own_size is not None and _costs(members, own_size, budget, tolerance)
    members = refined(members, budget, tolerance, keep_heads=own_fits or members.head_dim is not None)
    found, searched = search(members, budget, tolerance, min(MOST_WIDTHS, max(LEAST_WIDTHS, 4 * rows)))
    if own_size is not None and own_fits:
        found = [size for size in found if size[0] != own_size[0]] + [own_size]
    if not found:
        raise InputError(_nothing_found(members, budget, percent))
    chosen = spread(found, rows, own_size)
    shapes = tuple(
        _shape(members, size, budget, size == own_size, seq, dtype)
        for size in sorted(chosen, key=lambda s: s[0] / s[1])
    )
    return Study(members, budget, tolerance, seq, dtype, shapes, searched, _scaled_from(own, budget))


def _costs(members: Family, size: tuple[int, int], budget: Budget, tolerance: float) -> bool:
    """Whether a shape costs the budget to within `tolerance`; false where its head counts are no integers."""
    try:
        spent = budget.spent(members.at(*size))
    except ArithmeticError:
        return False
    return bool(abs(spent - budget.value) <= Fraction(tolerance) * budget.value)


def _nothing_found(members: Family, budget: Budget, percent: float) -> str:
    cost = f"{count(budget.value)} parameters" if budget.kind == "parameters" else f"{budget.value:.3g} training FLOPs"
    tie = "" if members.spec.tie_word_embeddings or not isinstance(members.spec.head, LMHead) else "--tie, "
    head = "" if members.head_dim is None else "a smaller --head-dim, "
    return (
        f"budget: no shape with h/L from {LEAST_ASPECT} to {MOST_ASPECT:,} and h a multiple of {members.step} costs "
        f"{cost} to within {percent:g} %, at a vocabulary of {members.spec.vocab_size:,}; expected "
        f"another budget, {tie}{head}a smaller --vocab or a wider --tolerance"
    )


def refined(members: Family, budget: Budget, tolerance: float, keep_heads: bool) -> Family:
    """The family with steps of hidden size so small that the budget allows `FEWEST_WIDTHS` of them, where it can be.

    keep_heads: whether head sizes must stay as they are.
    """
    while len(allowed_widths(members, budget, tolerance)) < FEWEST_WIDTHS:
        finer = members.finer(keep_heads)
        if finer is None:
            break
        members = finer
    return members


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest number from `low` on for which a condition holds, by bisection; `high` where none below it does.

    The condition holds for every number above one for which it holds.
    """
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _depths(members: Family, h: int) -> tuple[int, int]:
    """(smallest, largest) depth with an h/L in range; the first is above the second where there is none."""
    return max(members.least_depth, -(-h // MOST_ASPECT)), min(h // LEAST_ASPECT, LARGEST_DEPTH)


def allowed_widths(members: Family, budget: Budget, tolerance: float) -> range:
    """Every hidden size at which some h/L in range costs the budget: the deepest shape of each costs at least as much,
    the shallowest at most as much.
    """
    step = members.step
    exact = Fraction(tolerance)
    least, most = budget.value * (1 - exact), budget.value * (1 + exact)

    def spent(i: int, depth: int) -> Number:
        return budget.spent(members.at(i * step, depth))

    def deep_enough(i: int) -> bool:
        shallowest, deepest = _depths(members, i * step)
        return shallowest <= deepest and spent(i, deepest) >= least

    def too_wide(i: int) -> bool:
        return bool(spent(i, _depths(members, i * step)[0]) > most)

    end = LARGEST_WIDTH // step + 1
    narrowest = _first(deep_enough, 1, end)
    return range(narrowest * step, _first(too_wide, narrowest, end) * step, step)


def nearest_depth(cost: Callable[[int], int], value: int, low: int, high: int) -> int:
    """The depth from `low` to `high` that costs nearest to a value; of two equally near ones the smaller.

    cost: an exact count that grows with depth. A line through the ends of the bracket says where to look, since most
    costs are linear in depth; where it does not halve the bracket, the middle does.
    """
    below, above = cost(low), cost(high)
    if below >= value:
        return low
    if above <= value:
        return high
    line = True
    while high - low > 1:
        guess = low + (value - below) * (high - low) // (above - below) if line else (low + high) // 2
        guess, before = min(max(guess, low + 1), high - 1), high - low
        count = cost(guess)
        if count <= value:
            low, below = guess, count
        else:
            high, above = guess, count
        line = not line or 2 * (high - low) <= before
    return low if value - below <= above - value else high


def search(
    members: Family, budget: Budget, tolerance: float, most_widths: int = MOST_WIDTHS
) -> tuple[list[tuple[int, int]], int]:
    """For each hidden size the depth that costs nearest to the budget, if within `tolerance`;
    and how many shapes were counted.

    most_widths: of more hidden sizes than these, as many are taken, evenly spaced in log h.
    """
    counted: dict[tuple[int, int], int] = {}

    def cost(h: int, depth: int) -> int:
        if (h, depth) not in counted:
            counted[h, depth] = budget.spent(members.at(h, depth))
        return counted[h, depth]

    found, exact = [], Fraction(tolerance)
    for h in _thinned(allowed_widths(members, budget, tolerance), most_widths):
        depth = nearest_depth(partial(cost, h), budget.value, *_depths(members, h))
        if abs(cost(h, depth) - budget.value) <= exact * budget.value:
            found.append((h, depth))
    return found, len(counted)


def _thinned(widths: range, most: int) -> list[int]:
    """All the hidden sizes, or at most `most` of them, evenly spaced in log h."""
    if len(widths) <= most:
        return list(widths)
    first, step = widths[0], widths.step
    growth = math.log(widths[-1] / first) / (most - 1)
    nearest = (round(first * (math.exp(growth * i) - 1) / step) for i in range(most))
    return [widths[i] for i in dict.fromkeys(nearest)]


def spread(found: list[tuple[int, int]], rows: int, keep: tuple[int, int] | None = None) -> list[tuple[int, int]]:
    """At most `rows` of the shapes, evenly spaced in log h/L; `keep` is one of them where it was found."""
    ordered = sorted(found, key=lambda size: size[0] / size[1])
    if len(ordered) <= rows:
        return ordered
    logs = [math.log(h / layers) for h, layers in ordered]
    chosen = {ordered.index(keep)} if keep in ordered else set()
    span = logs[-1] - logs[0]
    for i in range(rows):
        wanted = logs[0] + span * i / max(rows - 1, 1)
        nearest = min(range(len(ordered)), key=lambda j: abs(logs[j] - wanted))
        if len(chosen) < rows:
            chosen.add(nearest)
    return [ordered[i] for i in sorted(chosen)]


def _shape(members: Family, size: tuple[int, int], budget: Budget, target: bool, seq: int, dtype: str) -> Shape:
    h, layers = size
    spec = members.at(h, layers)
    count = params(spec)
    spent = budget.spent(spec)
    trains = budget.kind == "train_flops"
    return Shape(
        spec=spec,
        stack=stack_shape(spec.main, h),
        target=target,
        parameters=count.total,
        active=count.active,
        embedding_and_head=count.total - count.non_embedding,
        difference=spent / budget.value - 1,
        tokens=budget.tokens_for(count.active) if trains else None,
        train_flops=spent if trains else None,
        forward_flops_per_token=flops(spec, Workload(batch=1, seq=seq)).per_token,
        kv_bytes_per_token=kv(spec, dtype_name=dtype).bytes_per_token,
        head_sizes=tuple(d for d in HEAD_SIZES if h % d == 0),
        verdicts=verdicts(h, layers),
    )


def _scaled_from(own: ModelSpec | None, budget: Budget) -> tuple[float, float, float] | None:
    """(h, L, compute ratio) that published exponents make of the model at the budget's training compute; None at its
    own.

    At a budget of parameters, training compute goes as their square, since tokens go as parameters (Hoffmann 2022).
    """
    if own is None:
        return None
    ratio = budget.value / budget.spent(own)
    compute = ratio**2 if budget.kind == "parameters" else ratio
    if math.isclose(compute, 1, rel_tol=1e-3):
        return None
    return (*scaled_optimum(own.hidden_size, own.main.num_hidden_layers, compute), compute)
