"""Depth against width: the shapes of equal cost among models of one architecture.

A family has the ratios of a model (d_ff/h, heads·head_dim/h, key/value heads over heads, head size, vocabulary, tying,
norms) and varies hidden size and depth only. The family is a spec whose sizes are functions of (h, L); the closed
forms of `params` and `flops` are evaluated on it with Python integers. Cost grows with h and with L, so the hidden
sizes that a budget allows, and the depth nearest to the budget at each of them, are found by bisection.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, Literal, TypeAlias

from ..algebra import Number, exact_div, floor_div
from ..components.base import HeadSizes, Network, TokenMixer, UnscalableError
from ..components.head import LMHead
from ..components.layers.block import Layer
from ..costs.cache import kv
from ..costs.flops import flops
from ..costs.params import params
from ..errors import InputError
from ..model import ModelSpec
from ..sources.files import validate
from ..units import count
from ..workload.workload import Workload
from .compare import StackShape, is_in_dense_band, stack_shape
from .literature import TOKENS_PER_PARAMETER, StudyVerdicts, compare_with_studies, scaled_optimum

HEAD_SIZES = (64, 96, 128, 256)
LEAST_ASPECT, MAX_ASPECT = 8, 1024
"""Smallest and largest h/L of a study's shapes."""
LEAST_WIDTHS, MAX_WIDTHS = 48, 256
"""Smallest and largest number of hidden sizes that a study counts; a budget may allow fewer."""
FEWEST_ALLOWED_WIDTHS = 6
"""If a budget allows fewer hidden sizes than this number, the step between hidden sizes is halved."""
SIZE_MULTIPLE, SMALL_SIZE_MULTIPLE = 64, 16
"""Number of which hidden sizes and FFN widths are multiples: for usual budgets, and for small budgets."""
LEAST_HEAD_DIM = 16
"""The smallest head size that a study makes by halving a model's head size."""
LARGEST_WIDTH, LARGEST_DEPTH = 2**21, 2**16

BudgetKind: TypeAlias = Literal["parameters", "train_flops"]

STANDARD_PRESET, SMALL_STANDARD_PRESET = "llama3-8b", "smollm2-135m"
"""The presets whose ratios are used for a budget without a model, and for a small budget without a model."""
SMALL_BUDGET_PARAMETERS = 500_000_000
"""Number of parameters below which a budget uses `SMALL_STANDARD_PRESET`. SmolLM2's models of 135 M and 360 M
parameters have the same ratios, vocabulary and head size (Allal 2025, arXiv:2502.02737).
"""


def standard_preset(parameters: int | None = None, train_flops: int | None = None, tokens: int | None = None) -> str:
    """Returns the preset whose proportions are the default for a budget without a model.

    A budget of training FLOPs C is converted to C/6D parameters, or to sqrt(C/120) at 20 tokens per parameter
    (Hoffmann 2022, C = 6ND).
    """
    if parameters is None and train_flops is not None:
        size_divisor = 6 * TOKENS_PER_PARAMETER if tokens is None else 6 * tokens
        parameters = math.isqrt(train_flops // size_divisor) if tokens is None else train_flops // size_divisor
    return SMALL_STANDARD_PRESET if parameters is not None and parameters < SMALL_BUDGET_PARAMETERS else STANDARD_PRESET


@dataclass(frozen=True)
class ShapeFamily:
    """Models that differ only in hidden size and depth; all other sizes follow in fixed proportions.

    spec: the model that the ratios come from.
    head_dim, kv_ratio, ffn_ratio: replace the model's own if given.
    head_divisor: every head size is the model's head size divided by this number.
    size_unit: hidden sizes and FFN widths are multiples of this number.
    """

    spec: ModelSpec
    head_dim: int | None = None
    kv_ratio: Fraction | None = None
    ffn_ratio: Fraction | None = None
    head_divisor: int = 1
    size_unit: int = SIZE_MULTIPLE

    def _distinct_layers(self) -> list[Layer]:
        return [self.spec.main.block, *self.spec.main.variants.values()]

    def _head_sizes_of_layers(self) -> list[HeadSizes]:
        mixers = [block.attention for block in self._distinct_layers() if isinstance(block.attention, TokenMixer)]
        return [head_sizes for mixer in mixers if (head_sizes := mixer.head_sizes(self.spec.hidden_size)) is not None]

    @property
    def least_depth(self) -> int:
        """The smallest depth: the first layers and one repeat of the layer pattern."""
        return len(self.spec.main.first_layers) + len(self.spec.main.pattern)

    @property
    def width_step(self) -> int:
        """The number of which all hidden sizes are multiples, so that head counts are integers."""
        width_fractions = [
            width_fraction
            for head_sizes in self._head_sizes_of_layers()
            for width_fraction in self._head_shares(head_sizes)[:2]
            if width_fraction is not None
        ]
        width_step = math.lcm(*(width_fraction.denominator for width_fraction in width_fractions))
        while width_step < self.size_unit:
            width_step *= 2
        return width_step

    def _head_shares(self, head_sizes: HeadSizes) -> tuple[Fraction, Fraction | None, int]:
        """Returns (query heads / h, key/value heads / h, head size); the second is None for multi-query attention."""
        query_heads, kv_heads = head_sizes.heads, head_sizes.kv_heads
        head_dim = (self.head_dim or head_sizes.head_dim) // self.head_divisor
        query_heads_per_width = Fraction(query_heads * head_sizes.head_dim, self.spec.hidden_size * head_dim)
        if self.kv_ratio is not None:
            return query_heads_per_width, query_heads_per_width * self.kv_ratio, head_dim
        is_multi_query = kv_heads == 1 and query_heads > 1
        return (
            query_heads_per_width,
            None if kv_heads is None or is_multi_query else query_heads_per_width * kv_heads / query_heads,
            head_dim,
        )

    def finer_family(self, keep_heads: bool) -> ShapeFamily | None:
        """Returns the family with smaller steps between hidden sizes; None if none can be smaller.

        keep_heads: whether head sizes must stay unchanged. Otherwise all of them are halved if possible.
        """
        head_dims = [
            (self.head_dim or head_sizes.head_dim) // self.head_divisor for head_sizes in self._head_sizes_of_layers()
        ]
        has_even_heads = all(head_dim % 2 == 0 and head_dim // 2 >= LEAST_HEAD_DIM for head_dim in head_dims)
        for head_factor in (1,) if keep_heads or not has_even_heads else (2, 1):
            size_unit = max(SMALL_SIZE_MULTIPLE, self.size_unit // 2)
            finer_family = replace(self, size_unit=size_unit, head_divisor=head_factor * self.head_divisor)
            try:
                finer_family.scaled_to(finer_family.width_step, finer_family.least_depth)
            except UnscalableError:  # for example, the rotary dimensions may require heads of the model's own size
                continue
            if finer_family.width_step < self.width_step:
                return finer_family
        return None

    def scaled_to(self, hidden_size: Number, num_hidden_layers: Number) -> ModelSpec:
        """Returns the family's model of a hidden size and depth: ints, or arrays of multiples of `width_step`."""
        stack = self.spec.main
        scaled_blocks = {kind: self._scaled_block(block, hidden_size) for kind, block in stack.variants.items()}
        changed_fields = {
            "num_hidden_layers": num_hidden_layers,
            "block": self._scaled_block(stack.block, hidden_size),
            "variants": scaled_blocks,
        }
        return self.spec.model_copy(
            update={"hidden_size": hidden_size, "decoder": stack.model_copy(update=changed_fields)}
        )

    def _scaled_block(self, block: Layer, hidden_size: Number) -> Layer:
        def scaled_heads(head_sizes: HeadSizes) -> HeadSizes:
            query_heads_per_width, kv_heads_per_width, head_dim = self._head_shares(head_sizes)
            heads = _share_of_width(hidden_size, query_heads_per_width)
            return HeadSizes(
                heads, 1 if kv_heads_per_width is None else _share_of_width(hidden_size, kv_heads_per_width), head_dim
            )

        return block.scaled(self.spec.hidden_size, scaled_heads, lambda width: self._scaled_width(width, hidden_size))

    def _scaled_width(self, width: int, hidden_size: Number) -> Number:
        """Returns a width scaled in proportion to the hidden size h, rounded to a multiple of `width_unit`.

        If the model's width is a multiple of a smaller power of two only, it is rounded to that power.
        """
        ffn_ratio, width_unit = self.ffn_ratio, self.size_unit
        if ffn_ratio is None:
            ffn_ratio, width_unit = Fraction(width, self.spec.hidden_size), math.gcd(width, self.size_unit)
        size_divisor = 2 * ffn_ratio.denominator * width_unit
        return (
            floor_div(2 * ffn_ratio.numerator * hidden_size + ffn_ratio.denominator * width_unit, size_divisor)
            * width_unit
        )


def _share_of_width(hidden_size: Number, width_fraction: Fraction) -> Number:
    return exact_div(hidden_size * width_fraction.numerator, width_fraction.denominator)


def build_family(
    spec: ModelSpec,
    head_dim: int | None = None,
    kv_ratio: Fraction | None = None,
    ffn_ratio: Fraction | None = None,
    vocab_size: int | None = None,
    ties_head: bool | None = None,
) -> ShapeFamily:
    """Returns the family of a model, with the given ratios and sizes in place of the model's.

    kv_ratio: key/value heads over heads, one over a whole number.
    ties_head: whether the language-model head is tied to the embedding.
    Raises `InputError` for models whose shape is more than hidden size and depth, and for a ratio or size that the
    model cannot have.
    """
    if spec.kind != "decoder":
        raise InputError(f"shape: only decoders are supported, and this model is an {spec.kind}; expected a decoder")
    stack = spec.main
    feed_forwards = [layer.feed_forward for layer in (stack.block, *stack.variants.values())]
    if ffn_ratio is not None and any(
        isinstance(feed_forward, Network) and feed_forward.is_mixture_of_experts for feed_forward in feed_forwards
    ):
        expected_text = "expected --set expert.intermediate_size=N"
        raise InputError(f"--ffn-ratio: a mixture of experts has no one width; {expected_text}")
    if spec.embedding_size is not None or stack.relative_bias is not None:
        raise InputError(
            "shape: a factorised embedding or relative bias has no rule for its sizes at another width; expected a "
            "decoder without"
        )
    if kv_ratio is not None and (kv_ratio.numerator != 1 or kv_ratio <= 0):
        raise InputError(
            f"--kv-ratio: {kv_ratio} is not one over a whole number; expected key/value heads over heads, such as "
            "1, 1/4 or 0.125"
        )
    spec = _with_vocabulary(spec.model_copy(update={"mtp": None}), vocab_size, ties_head)
    model_family = ShapeFamily(spec, None, kv_ratio, ffn_ratio)
    for option_name, tested_family in (
        ("shape", model_family),
        ("--head-dim", replace(model_family, head_dim=head_dim)),
    ):
        try:
            smallest_model = tested_family.scaled_to(tested_family.width_step, tested_family.least_depth)
        except UnscalableError as error:
            raise InputError(f"{option_name}: {error}") from None
        validate(ModelSpec, smallest_model.model_dump(), option_name)
    return replace(model_family, head_dim=head_dim)


def _with_vocabulary(spec: ModelSpec, vocab_size: int | None, ties_head: bool | None) -> ModelSpec:
    """Returns the model with another vocabulary size or another tying of the head, validated again."""
    if ties_head is not None and not isinstance(spec.head, LMHead):
        option_name = "--tie" if ties_head else "--no-tie"
        raise InputError(f"{option_name}: this model has no language-model head; expected a model that has one")
    changed_fields: dict[str, Any] = {}
    if vocab_size is not None:
        changed_fields["vocab_size"] = vocab_size
    if ties_head is not None:
        changed_fields["tie_word_embeddings"] = ties_head
    return validate(ModelSpec, spec.model_dump() | changed_fields, "shape") if changed_fields else spec


@dataclass(frozen=True)
class CostBudget:
    """The cost that all shapes must have: a number of parameters, or of training FLOPs.

    kind: parameters or training FLOPs.
    value: the number of parameters or FLOPs.
    tokens: number of training tokens; default None (20 per active parameter, Hoffmann 2022).
    seq: tokens per training sequence.
    """

    kind: BudgetKind
    value: int
    tokens: int | None = None
    seq: int = 2048

    def tokens_for(self, active_params: Number) -> Number:
        return TOKENS_PER_PARAMETER * active_params if self.tokens is None else self.tokens

    def cost_of(self, spec: ModelSpec) -> Number:
        """Returns the cost of a model, or of an array of models. Training FLOPs count full attention pairs."""
        parameter_count = params(spec)
        if self.kind == "parameters":
            return parameter_count.total
        training_flops = flops(spec, Workload(batch=1, seq=self.seq, phase="training")).total
        return floor_div(self.tokens_for(parameter_count.active) * training_flops, self.seq)


def budget_for(
    target_spec: ModelSpec | None,
    parameters: int | None = None,
    train_flops: int | None = None,
    tokens: int | None = None,
    seq: int = 2048,
) -> CostBudget:
    """Returns the budget that the options state; by default the target model's parameters.

    Raises `InputError` if no budget or two budgets are given, or tokens without training FLOPs.
    """
    if parameters is not None and train_flops is not None:
        raise InputError("--params and --flops: expected one budget, not both")
    if tokens is not None and train_flops is None:
        raise InputError("--tokens: only a budget of training FLOPs has tokens; expected --flops C beside it")
    if train_flops is not None:
        return CostBudget("train_flops", train_flops, tokens, seq)
    if parameters is None and target_spec is None:
        raise InputError("shape: no budget given; expected a TARGET, --params N or --flops C")
    return CostBudget(
        "parameters",
        params(target_spec).total if parameters is None and target_spec is not None else parameters or 0,
        None,
        seq,
    )


def parse_ratio(ratio_text: str | None, option: str) -> Fraction | None:
    """Parses a ratio exactly, such as `3.5`, `8/3` or `0.125`; None for None.

    Raises `InputError`, which names `option`, for anything that is not a positive number.
    """
    if ratio_text is None:
        return None
    try:
        parsed_ratio = Fraction(ratio_text.strip())
    except (ValueError, ZeroDivisionError):
        parsed_ratio = Fraction(0)
    if not Fraction(1, 10**6) <= parsed_ratio <= 10**6 or parsed_ratio.denominator > 10**6:
        raise InputError(f"{option}: '{ratio_text}' is not a positive ratio; expected something like 3.5, 8/3 or 1/8")
    return parsed_ratio


@dataclass(frozen=True)
class ModelShape:
    """The sizes and cost of one model in the family.

    is_target: whether it has the hidden size and the depth of the original model.
    embedding_and_head: parameters of the embedding and of an untied language-model head.
    cost_difference: its cost over the budget, minus 1.
    kv_bytes: bytes of the cache of one sequence of the study, where windows and states end its growth.
    head_sizes: the common head sizes that divide h.
    """

    spec: ModelSpec
    stack: StackShape
    is_target: bool
    parameters: int
    active: int
    embedding_and_head: int
    cost_difference: float
    tokens: int | None
    train_flops: int | None
    forward_flops_per_token: float
    kv_bytes_per_token: int
    kv_bytes: int
    head_sizes: tuple[int, ...]
    verdicts: StudyVerdicts

    @property
    def is_in_dense_band(self) -> bool:
        return is_in_dense_band(self.stack.hidden_size, self.stack.num_hidden_layers)


@dataclass(frozen=True)
class ShapeStudy:
    """The shapes of equal cost that a search found, deepest first, with the budget and the tolerance.

    family: their family, with the step and the head sizes that were chosen for the budget.
    searched_count: number of shapes that were counted in the search.
    scaled_target: (h, L, compute over the model's) extrapolated from the model with published exponents.
    """

    family: ShapeFamily
    budget: CostBudget
    tolerance: float
    seq: int
    dtype: str
    shapes: tuple[ModelShape, ...]
    searched_count: int
    scaled_target: tuple[float, float, float] | None


def find_shapes(
    model_family: ShapeFamily,
    budget: CostBudget,
    target_spec: ModelSpec | None = None,
    row_count: int = 12,
    tolerance_percent: float = 2.0,
    seq: int = 2048,
    dtype: str = "bfloat16",
) -> ShapeStudy:
    """Finds about `row_count` shapes that cost the budget within `tolerance_percent`, evenly spaced in log h/L.

    target_spec: the original model of the family; its shape is one of the rows if its cost matches the budget.
    Raises `InputError` if no shape matches the budget.
    """
    tolerance = tolerance_percent / 100
    target_shape = None if target_spec is None else (target_spec.hidden_size, target_spec.main.num_hidden_layers)
    target_fits = target_shape is not None and _cost_matches(model_family, target_shape, budget, tolerance)
    model_family = refine_step(
        model_family, budget, tolerance, keep_heads=target_fits or model_family.head_dim is not None
    )
    shape_sizes, searched_count = search_shapes(
        model_family, budget, tolerance, min(MAX_WIDTHS, max(LEAST_WIDTHS, 4 * row_count))
    )
    if target_shape is not None and target_fits:
        shape_sizes = [shape_size for shape_size in shape_sizes if shape_size[0] != target_shape[0]] + [target_shape]
    if not shape_sizes:
        raise InputError(_no_shapes_error(model_family, budget, tolerance_percent))
    spread_sizes = spread_evenly(shape_sizes, row_count, target_shape)
    found_shapes = tuple(
        _shape_of_size(model_family, shape_size, budget, shape_size == target_shape, seq, dtype)
        for shape_size in sorted(spread_sizes, key=lambda shape_size: shape_size[0] / shape_size[1])
    )
    return ShapeStudy(
        model_family, budget, tolerance, seq, dtype, found_shapes, searched_count, _scaled_target(target_spec, budget)
    )


def _cost_matches(model_family: ShapeFamily, shape_size: tuple[int, int], budget: CostBudget, tolerance: float) -> bool:
    """Whether a shape costs the budget up to `tolerance`; False if head counts are not integers."""
    try:
        shape_cost = budget.cost_of(model_family.scaled_to(*shape_size))
    except ArithmeticError:
        return False
    return bool(abs(shape_cost - budget.value) <= Fraction(tolerance) * budget.value)


def _no_shapes_error(model_family: ShapeFamily, budget: CostBudget, tolerance_percent: float) -> str:
    cost_text = (
        f"{count(budget.value)} parameters" if budget.kind == "parameters" else f"{budget.value:.3g} training FLOPs"
    )
    tie_option = (
        "" if model_family.spec.tie_word_embeddings or not isinstance(model_family.spec.head, LMHead) else "--tie, "
    )
    head_text = "" if model_family.head_dim is None else "a smaller --head-dim, "
    return (
        f"budget: no shape with h/L from {LEAST_ASPECT} to {MAX_ASPECT:,} and h a multiple of "
        f"{model_family.width_step} "
        f"costs {cost_text} to within {tolerance_percent:g} %, at a vocabulary of {model_family.spec.vocab_size:,}; "
        f"expected another budget, {tie_option}{head_text}a smaller --vocab or a wider --tolerance"
    )


def refine_step(model_family: ShapeFamily, budget: CostBudget, tolerance: float, keep_heads: bool) -> ShapeFamily:
    """Makes steps between hidden sizes smaller until the budget allows `FEWEST_ALLOWED_WIDTHS` sizes.

    keep_heads: whether head sizes must stay unchanged.
    """
    while len(allowed_widths(model_family, budget, tolerance)) < FEWEST_ALLOWED_WIDTHS:
        finer_family = model_family.finer_family(keep_heads)
        if finer_family is None:
            break
        model_family = finer_family
    return model_family


def _depth_range(model_family: ShapeFamily, hidden_size: int) -> tuple[int, int]:
    """Returns the smallest and largest depth with h/L in range; smallest > largest if there is none."""
    return max(model_family.least_depth, -(-hidden_size // MAX_ASPECT)), min(hidden_size // LEAST_ASPECT, LARGEST_DEPTH)


def allowed_widths(model_family: ShapeFamily, budget: CostBudget, tolerance: float) -> range:
    """Returns every hidden size for which a depth with h/L in range costs the budget.

    Its deepest shape costs at least the budget, its shallowest shape at most the budget.
    """
    width_step = model_family.width_step
    exact_tolerance = Fraction(tolerance)
    lowest_cost, highest_cost = budget.value * (1 - exact_tolerance), budget.value * (1 + exact_tolerance)

    def cost_at(width_index: int, depth: int) -> Number:
        return budget.cost_of(model_family.scaled_to(width_index * width_step, depth))

    def is_deep_enough(width_index: int) -> bool:
        shallowest_depth, deepest_depth = _depth_range(model_family, width_index * width_step)
        return shallowest_depth <= deepest_depth and bool(cost_at(width_index, deepest_depth) >= lowest_cost)

    def is_too_wide(width_index: int) -> bool:
        return bool(cost_at(width_index, _depth_range(model_family, width_index * width_step)[0]) > highest_cost)

    width_multiples = range(LARGEST_WIDTH // width_step + 1)
    least_multiple = bisect_left(width_multiples, True, lo=1, key=is_deep_enough)
    first_excessive_multiple = bisect_left(width_multiples, True, lo=least_multiple, key=is_too_wide)
    return range(least_multiple * width_step, first_excessive_multiple * width_step, width_step)


def nearest_depth(cost_of_depth: Callable[[int], int], target_cost: int, lower_depth: int, upper_depth: int) -> int:
    """Finds the depth from `lower_depth` to `upper_depth` with the cost nearest to a value; the smaller depth in a tie.

    cost_of_depth: an exact count that grows with depth. The search interpolates linearly: most are linear in depth,
    and bisects where that does not halve the bracket.
    """
    lower_cost, upper_cost = cost_of_depth(lower_depth), cost_of_depth(upper_depth)
    if lower_cost >= target_cost:
        return lower_depth
    if upper_cost <= target_cost:
        return upper_depth
    interpolates_linearly = True
    while upper_depth - lower_depth > 1:
        unclamped_depth = (
            lower_depth + (target_cost - lower_cost) * (upper_depth - lower_depth) // (upper_cost - lower_cost)
            if interpolates_linearly
            else (lower_depth + upper_depth) // 2
        )
        guessed_depth = min(max(unclamped_depth, lower_depth + 1), upper_depth - 1)
        previous_interval = upper_depth - lower_depth
        guessed_cost = cost_of_depth(guessed_depth)
        if guessed_cost <= target_cost:
            lower_depth, lower_cost = guessed_depth, guessed_cost
        else:
            upper_depth, upper_cost = guessed_depth, guessed_cost
        interpolates_linearly = not interpolates_linearly or 2 * (upper_depth - lower_depth) <= previous_interval
    return lower_depth if target_cost - lower_cost <= upper_cost - target_cost else upper_depth


def search_shapes(
    model_family: ShapeFamily, budget: CostBudget, tolerance: float, most_widths: int = MAX_WIDTHS
) -> tuple[list[tuple[int, int]], int]:
    """Returns, for each hidden size, the depth whose cost is nearest to the budget, within `tolerance`.

    It also returns the number of shapes that were counted.
    most_widths: largest number of hidden sizes; if the budget allows more, they are evenly spaced in log h.
    """
    costs_by_shape: dict[tuple[int, int], int] = {}

    def cost_of_size(hidden_size: int, depth: int) -> int:
        if (hidden_size, depth) not in costs_by_shape:
            costs_by_shape[hidden_size, depth] = budget.cost_of(model_family.scaled_to(hidden_size, depth))
        return costs_by_shape[hidden_size, depth]

    shape_sizes, exact_tolerance = [], Fraction(tolerance)
    for hidden_size in _spaced_widths(allowed_widths(model_family, budget, tolerance), most_widths):
        depth = nearest_depth(
            partial(cost_of_size, hidden_size), budget.value, *_depth_range(model_family, hidden_size)
        )
        if abs(cost_of_size(hidden_size, depth) - budget.value) <= exact_tolerance * budget.value:
            shape_sizes.append((hidden_size, depth))
    return shape_sizes, len(costs_by_shape)


def _spaced_widths(widths: range, width_limit: int) -> list[int]:
    """Returns at most `width_limit` of the hidden sizes, evenly spaced in log h; all of them if they are fewer."""
    if len(widths) <= width_limit:
        return list(widths)
    smallest_width, width_step = widths[0], widths.step
    log_width_step = math.log(widths[-1] / smallest_width) / (width_limit - 1)
    width_indices = (
        round(smallest_width * (math.exp(log_width_step * step_index) - 1) / width_step)
        for step_index in range(width_limit)
    )
    return [widths[step_index] for step_index in dict.fromkeys(width_indices)]


def spread_evenly(
    shape_sizes: list[tuple[int, int]], row_count: int, required_size: tuple[int, int] | None = None
) -> list[tuple[int, int]]:
    """Returns at most `row_count` shapes, evenly spaced in log h/L; `required_size` is one of them if present."""
    sorted_sizes = sorted(shape_sizes, key=lambda shape_size: shape_size[0] / shape_size[1])
    if len(sorted_sizes) <= row_count:
        return sorted_sizes
    log_ratios = [math.log(hidden_size / depth) for hidden_size, depth in sorted_sizes]
    selected_indices = {sorted_sizes.index(required_size)} if required_size in sorted_sizes else set()
    log_ratio_span = log_ratios[-1] - log_ratios[0]
    for i in range(row_count):
        target_log_ratio = log_ratios[0] + log_ratio_span * i / max(row_count - 1, 1)
        nearest_index = min(range(len(sorted_sizes)), key=lambda index: abs(log_ratios[index] - target_log_ratio))
        if len(selected_indices) < row_count:
            selected_indices.add(nearest_index)
    return [sorted_sizes[i] for i in sorted(selected_indices)]


def _shape_of_size(
    model_family: ShapeFamily, shape_size: tuple[int, int], budget: CostBudget, is_target: bool, seq: int, dtype: str
) -> ModelShape:
    hidden_size, depth = shape_size
    spec = model_family.scaled_to(hidden_size, depth)
    parameter_count = params(spec)
    shape_cost = budget.cost_of(spec)
    cache_size = kv(spec, seq=seq, format_name=dtype)
    is_training = budget.kind == "train_flops"
    return ModelShape(
        spec=spec,
        stack=stack_shape(spec.main, hidden_size),
        is_target=is_target,
        parameters=parameter_count.total,
        active=parameter_count.active,
        embedding_and_head=parameter_count.total - parameter_count.non_embedding,
        cost_difference=shape_cost / budget.value - 1,
        tokens=budget.tokens_for(parameter_count.active) if is_training else None,
        train_flops=shape_cost if is_training else None,
        forward_flops_per_token=flops(spec, Workload(batch=1, seq=seq)).per_token,
        kv_bytes_per_token=cache_size.bytes_per_token,
        kv_bytes=cache_size.bytes,
        head_sizes=tuple(head_size for head_size in HEAD_SIZES if hidden_size % head_size == 0),
        verdicts=compare_with_studies(hidden_size, depth),
    )


def _scaled_target(target_spec: ModelSpec | None, budget: CostBudget) -> tuple[float, float, float] | None:
    """Returns the target's h and L scaled to the budget's training compute, and the ratio of the computes.

    It is None if the budget is the model's own cost. For a budget of parameters, training compute is proportional to
    the square of the parameters, since tokens are proportional to parameters (Hoffmann 2022).
    """
    if target_spec is None:
        return None
    budget_ratio = budget.value / budget.cost_of(target_spec)
    compute_ratio = budget_ratio**2 if budget.kind == "parameters" else budget_ratio
    if math.isclose(compute_ratio, 1, rel_tol=1e-3):
        return None
    return (*scaled_optimum(target_spec.hidden_size, target_spec.main.num_hidden_layers, compute_ratio), compute_ratio)
