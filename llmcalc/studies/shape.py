"""Depth against width: shapes of one family of models that cost the same.

A family keeps a model's proportions (d_ff/h, heads·head_dim/h, key/value heads over heads, head size, vocabulary,
tying, norms) and varies hidden size and depth alone. The family is a spec whose sizes are functions of (h, L); the
closed forms of `params` and `flops` are evaluated on it with NumPy arrays for the whole grid, and with ints for the
shapes that are shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from ..algebra import Number, exact_div, floor_div
from ..components.base import HeadSizes, Network, TokenMixer, Unscalable
from ..components.layers.block import Layer
from ..costs.cache import kv
from ..costs.flops import flops
from ..costs.params import params
from ..errors import InputError
from ..model import ModelSpec
from ..run.workload import Workload
from .compare import StackShape, in_dense_band, stack_shape
from .literature import TOKENS_PER_PARAMETER, Verdicts, scaled_optimum, verdicts

HEAD_SIZES = (64, 96, 128, 256)
LEAST_ASPECT, MOST_ASPECT = 8, 1024
"""h/L of the deepest and the shallowest shape that is looked at."""
MOST_WIDTHS = 256
LEAST_STEP = 64
LARGEST_WIDTH, LARGEST_DEPTH = 2**21, 2**16

BudgetKind: TypeAlias = Literal["parameters", "train_flops"]

STANDARD: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "tie_word_embeddings": False,
    "decoder": {
        "num_hidden_layers": 32,
        "final_norm": {"type": "rmsnorm"},
        "block": {
            "norm": {"type": "rmsnorm"},
            "norm_placement": "pre",
            "attention": {
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "position": {"type": "rope"},
            },
            "feed_forward": {"intermediate_size": 14336, "hidden_act": "silu", "gated": True},
        },
    },
}
"""Proportions where no model gives them: those of Llama 3 8B (Grattafiori 2024, arXiv:2407.21783, Table 3)."""


@dataclass(frozen=True)
class Family:
    """Models that differ in hidden size and depth alone.

    spec: the model whose proportions they have. head_dim, kv_ratio, ffn_ratio: in place of the model's, where given.
    """

    spec: ModelSpec
    head_dim: int | None = None
    kv_ratio: Fraction | None = None
    ffn_ratio: Fraction | None = None

    def _blocks(self) -> list[Layer]:
        return [self.spec.main.block, *self.spec.main.variants.values()]

    @property
    def least_depth(self) -> int:
        """One of each layer that a pattern names."""
        return len(self.spec.main.first_layers) + len(self.spec.main.pattern)

    @property
    def step(self) -> int:
        """Hidden sizes are multiples of it: heads and key/value heads come out whole, and it is 64 or more."""
        mixers = [block.attention for block in self._blocks() if isinstance(block.attention, TokenMixer)]
        sizes = [one for mixer in mixers if (one := mixer.heads(self.spec.hidden_size)) is not None]
        shares = [share for one in sizes for share in self._shares(one)[:2] if share is not None]
        least = math.lcm(*(share.denominator for share in shares))
        while least < LEAST_STEP:
            least *= 2
        return least

    def _shares(self, sizes: HeadSizes) -> tuple[Fraction, Fraction | None, int]:
        """(heads over h, key/value heads over h or None where there is one for all, head size)."""
        h, a, k, d = self.spec.hidden_size, sizes.heads, sizes.kv_heads, sizes.head_dim
        size = self.head_dim or d
        heads = Fraction(a * d, h * size)
        if self.kv_ratio is not None:
            return heads, heads * self.kv_ratio, size
        return heads, None if k is None or (k == 1 and a > 1) else heads * k / a, size

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
        """A width in proportion, to the nearest multiple of 64 (of a smaller power of two, where its own is one)."""
        ratio, unit = self.ffn_ratio, LEAST_STEP
        if ratio is None:
            ratio, unit = Fraction(width, self.spec.hidden_size), math.gcd(width, LEAST_STEP)
        whole = 2 * ratio.denominator * unit
        return floor_div(2 * ratio.numerator * h + ratio.denominator * unit, whole) * unit


def _share(h: Number, share: Fraction) -> Number:
    return exact_div(h * share.numerator, share.denominator)


def family(
    spec: ModelSpec | None,
    head_dim: int | None = None,
    kv_ratio: Fraction | None = None,
    ffn_ratio: Fraction | None = None,
    vocab_size: int | None = None,
) -> Family:
    """The family of a model, or of the standard proportions, with some of them replaced.

    kv_ratio: key/value heads over heads, one over a whole number. Raises `InputError` for models whose shape is more
    than hidden size and depth, and for a proportion that the model cannot have.
    """
    spec = ModelSpec.model_validate(STANDARD) if spec is None else spec
    if spec.kind != "decoder":
        raise InputError(f"shape: an {spec.kind} has other sizes than depth and width to trade; expected a decoder")
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
    changes: dict[str, Any] = {"mtp": None} if vocab_size is None else {"mtp": None, "vocab_size": vocab_size}
    spec = spec.model_copy(update=changes)
    members = Family(spec, None, kv_ratio, ffn_ratio)
    for what, one in (("shape", members), ("--head-dim", replace(members, head_dim=head_dim))):
        try:
            one.at(spec.hidden_size, stack.num_hidden_layers)
        except Unscalable as error:
            raise InputError(f"{what}: {error}") from None
    return replace(members, head_dim=head_dim)


@dataclass(frozen=True)
class Budget:
    """What every shape is to cost: parameters, or FLOPs of training.

    tokens: trained on; where None, 20 for each parameter that a token passes through (Hoffmann 2022). seq: of a
    training sequence.
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
        raise InputError("shape: nothing to hold fixed; expected a TARGET, --params N or --flops C")
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
    """One member of the family. difference: its cost over the budget, less 1. head_sizes: common ones that divide h."""

    spec: ModelSpec
    stack: StackShape
    target: bool
    parameters: int
    active: int
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
    found, searched = search(members, budget, tolerance)
    own_size = None if own is None else (own.hidden_size, own.main.num_hidden_layers)
    if own_size is not None and abs(budget.spent(members.at(*own_size)) / budget.value - 1) <= tolerance:
        found = [size for size in found if size[0] != own_size[0]] + [own_size]
    if not found:
        raise InputError(
            f"budget: no shape with h/L from {LEAST_ASPECT} to {MOST_ASPECT} and h a multiple of {members.step} "
            f"costs {budget.value:.3g} {budget.kind} "
            f"to within {percent:g} %; expected a wider --tolerance, another budget or a smaller --vocab"
        )
    chosen = spread(found, rows, own_size)
    shapes = tuple(
        _shape(members, size, budget, size == own_size, seq, dtype)
        for size in sorted(chosen, key=lambda s: s[0] / s[1])
    )
    return Study(members, budget, tolerance, seq, dtype, shapes, searched, _scaled_from(own, budget))


def search(members: Family, budget: Budget, tolerance: float) -> tuple[list[tuple[int, int]], int]:
    """For each hidden size the depth that costs nearest the budget, if within `tolerance`;
    and how many shapes were counted.
    """
    import numpy as np

    widths, depths = _grid(members, budget)
    h, layers = (
        widths[:, None].astype(np.float64),
        depths[None, :].astype(np.float64),
    )  # costs may be past 2^63: floats choose, ints count
    off = np.abs(budget.spent(members.at(h, layers)) / float(budget.value) - 1)
    aspect = widths[:, None] / depths[None, :]
    off = np.where((aspect >= LEAST_ASPECT) & (aspect <= MOST_ASPECT), off, np.inf)
    best = off.argmin(axis=1)
    return [(int(widths[i]), int(depths[j])) for i, j in enumerate(best) if off[i, j] <= tolerance], off.size


def _grid(members: Family, budget: Budget) -> tuple[Any, Any]:
    """Hidden sizes and depths that hold every shape of the budget with an h/L in range;
    at most `MOST_WIDTHS` hidden sizes.
    """
    import numpy as np

    step, least = members.step, members.least_depth
    widest, deepest = step, least

    def costs(h: int, layers: int) -> Number:
        return budget.spent(members.at(h, max(layers, least)))

    while widest < LARGEST_WIDTH and costs(widest, widest // MOST_ASPECT) < budget.value:
        widest *= 2
    while deepest < LARGEST_DEPTH and costs(-(-LEAST_ASPECT * deepest // step) * step, deepest) < budget.value:
        deepest *= 2
    steps = np.arange(1, widest // step + 1)
    if len(steps) > MOST_WIDTHS:
        steps = np.unique(np.geomspace(1, len(steps), MOST_WIDTHS).round().astype(np.int64))
    return steps.astype(np.int64) * step, np.arange(least, deepest + 1, dtype=np.int64)


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
