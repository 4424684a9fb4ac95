"""Closed forms of the seconds of a module's kernels on one device: symbols, numbers, values and sources.

They are the forms that `timing/time_estimator.py` evaluates. A kernel takes the longer of computing and of moving its
bytes, and the time until it starts:

    max(F / R, B / W) + l · t
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..accelerator import Hardware
from ..errors import InputError, suggest
from ..model import ModelSpec
from ..timing.device import device_of
from ..timing.kernels import Kernel, RankPass, RankWork
from ..timing.software_stacks import find_stack
from ..timing.time_estimator import DECODE_ATTENTION_RATE, NumberFormats, TimedOperation, TimeEstimator
from ..timing.timing_constants import AcceleratorGeneration, ConstantSource, accelerator_generations
from ..timing.work_recorder import rank_work
from ..workload.workload import Phase

SYMBOL_MEANINGS = {
    "F": "FLOPs of the kernel's matrix products",
    "B": "bytes that it reads and writes",
    "P": "peak FLOP/s of the device in the products' number format",
    "W": "bytes/s of the device's memory",
    "e": "share of the peak that kernels of its generation reach, in training under load",
    "r": "FLOP/s of operations without a share of their own",
    "w": "share of the memory's bandwidth that they reach",
    "P32": "peak FLOP/s of the device in float32",
    "v": "bytes of weights that the units read for each of these FLOP",
    "l": "kernels that are launched",
    "t": "seconds until a kernel starts",
    "S": "keys of a query",
    "S0": "keys at which attention reaches half of its rate",
    "b": "sequences times key heads, which fill the device in decoding attention",
}
"""Symbol in a time formula → its meaning in words."""


@dataclass(frozen=True)
class TimeFormula:
    """The closed form of the seconds of one kernel, with symbols and with numbers.

    path: path of its node. kernel: what it does. backward: whether it runs in the backward pass.
    symbolic_text, substituted_text: its closed form in symbols, and with numbers.
    seconds: the value.
    repeat_count: how often it runs in a pass of the model.
    source: where the shares come from.
    """

    path: str
    kernel: str
    backward: bool
    symbolic_text: str
    substituted_text: str
    seconds: float
    repeat_count: int
    source: str


@dataclass(frozen=True)
class _FormulaTerm:
    """A term of a time formula, in symbols and with numbers."""

    symbolic: str
    substituted: str

    def __bool__(self) -> bool:
        return bool(self.symbolic)


NO_TERM = _FormulaTerm("", "")


def time_formulas(
    spec: ModelSpec, node: str | None, hardware: Hardware, stack_name: str, phase: Phase, batch: int, seq: int
) -> list[TimeFormula]:
    """Returns the closed forms of the seconds of a module's kernels.

    node: its path, such as `layers.0-31.mlp`, or a part of it, such as `mlp.gate_proj`; None for all of the model.
    stack_name: name of the stack. phase: training, prefill or decode.
    batch, seq: sequences, and tokens of each; in decoding those in its cache.
    Raises `InputError` for a node without kernels, and for an accelerator without a bandwidth or a peak.
    """
    new_tokens, cached_tokens = (1, seq) if phase == "decode" else (seq, 0)
    software_stack = find_stack(stack_name, "training" if phase == "training" else "inference")
    rank_pass = RankPass(
        batch,
        new_tokens,
        cached_tokens,
        phase,
        fuses_elementwise=software_stack.fuses_elementwise,
        adds_experts_before_reduction=software_stack.adds_experts_before_reduction,
    )
    pass_work = rank_work(spec, rank_pass)
    time_estimator = TimeEstimator(device_of(hardware), software_stack, NumberFormats(), rank_pass)
    kernels = [kernel for kernel in pass_work.kernels if _belongs_to_node(kernel, node, pass_work)]
    if not kernels:
        kernel_paths = sorted({kernel.path for kernel in pass_work.kernels})
        raise InputError(
            f"NODE: no kernel of {phase} has the path '{node}'; expected one of {', '.join(kernel_paths)}."
            f"{suggest(node or '', kernel_paths)}"
        )
    return [
        time_formula
        for kernel in kernels
        for time_formula in _kernel_formulas(
            time_estimator, kernel, int(kernel.runs_per_layer * pass_work.layer_count(kernel.layer_kind_index))
        )
    ]


LAYER_PATH = re.compile(r"((?:\w+\.)?layers)\.([\d,{}-]+)((?:\..+)?)")
"""A path with the numbers of its layers: `layers.0-31.mlp`, `decoder.layers.{1,5}`."""


def _belongs_to_node(kernel: Kernel, node: str | None, pass_work: RankWork) -> bool:
    """Whether a kernel runs for a node of the model's tree or for a node below it."""
    layer_match = LAYER_PATH.fullmatch(node or "")
    if layer_match is None:
        return node is None or f".{node}." in f".{kernel.path}."
    stack_name, layer_numbers, layer_condition = layer_match.groups()
    if kernel.layer_kind_index < 0 or f".{stack_name}{layer_condition}." not in f".{kernel.path}.":
        return False
    layer_ranges = [
        (int(first_layer), int(last_layer or first_layer))
        for first_layer, last_layer in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", layer_numbers)
    ]
    return any(
        first_layer <= layer_index <= last_layer
        for first_layer, last_layer in layer_ranges
        for layer_index in pass_work.layer_kinds[kernel.layer_kind_index].indices
    )


def _kernel_formulas(time_estimator: TimeEstimator, kernel: Kernel, repeat_count: int) -> Iterator[TimeFormula]:
    for operation in time_estimator.timed_kernels(kernel):
        compute_term = _compute_formula(time_estimator, kernel, operation)
        memory_term = _memory_formula(time_estimator, kernel, operation)
        limit_terms = [formula_term for formula_term in (compute_term, memory_term) if formula_term]
        slower_term = limit_terms[0] if len(limit_terms) == 1 else NO_TERM
        if len(limit_terms) > 1:
            slower_term = _FormulaTerm(
                f"max({compute_term.symbolic}, {memory_term.symbolic})",
                f"max({compute_term.substituted}, {memory_term.substituted})",
            )
        wait_term = NO_TERM
        if operation.wait:
            launch_count = kernel.launches[operation.is_backward]
            wait_term = _FormulaTerm("l · t", f"{launch_count} · {_number_text(time_estimator.seconds_before_kernel)}")
            if remaining_wait := operation.wait - launch_count * time_estimator.seconds_before_kernel:
                wait_term = _FormulaTerm(
                    f"{wait_term.symbolic} + s", f"{wait_term.substituted} + {_number_text(remaining_wait)}"
                )
        formula_terms = [formula_term for formula_term in (slower_term, wait_term) if formula_term]
        yield TimeFormula(
            kernel.path,
            kernel.kind,
            operation.is_backward,
            " + ".join(formula_term.symbolic for formula_term in formula_terms) or "0",
            " + ".join(formula_term.substituted for formula_term in formula_terms) or "0",
            float(operation.seconds),
            repeat_count,
            _formula_source(time_estimator, kernel, compute_term, memory_term, wait_term),
        )


def _compute_formula(time_estimator: TimeEstimator, kernel: Kernel, operation: TimedOperation) -> _FormulaTerm:
    """Returns the formula of matrix products' compute_seconds: FLOPs / (peak · efficiency), F / (P · e)."""
    if not operation.compute:
        return NO_TERM
    device, compute_seconds = time_estimator.device, float(operation.compute)
    peak_rate = device.peak_rates["bf16"]
    kernel_flops = float(kernel.head_padding_ratio * kernel.flops[operation.is_backward])
    if kernel.kind in ("product", "experts"):
        kernel_flops /= 2 if operation.is_backward and not kernel.is_frozen else 1
        peak_rate = device.peak_rates[device.format_of("bf16")]
        return _FormulaTerm(
            "F / (P · e)",
            f"{_number_text(kernel_flops)} / ({_number_text(peak_rate)} · "
            f"{_number_text(kernel_flops / compute_seconds / peak_rate)})",
        )
    if kernel.kind == "attention" and time_estimator.rank_pass.phase == "decode":
        return _FormulaTerm(
            "F / (P · e)",
            f"{_number_text(kernel_flops)} / ({_number_text(peak_rate)} · {_number_text(DECODE_ATTENTION_RATE)})",
        )
    if kernel.kind == "attention" and time_estimator.stack.attention != "scores":
        _, half_rate_keys = (
            device.generation.attention_backward if operation.is_backward else device.generation.attention
        )
        key_count = max(1.0, float(kernel.keys_per_query))
        efficiency = kernel_flops * (1 + half_rate_keys / key_count) / compute_seconds / peak_rate
        return _FormulaTerm(
            "F · (1 + S0 / S) / (P · e)",
            f"{_number_text(kernel_flops)} · (1 + {_number_text(half_rate_keys)} / {_number_text(key_count)}) / "
            f"({_number_text(peak_rate)} · {_number_text(efficiency)})",
        )
    return (
        _FormulaTerm("F / r", f"{_number_text(kernel_flops)} / {_number_text(kernel_flops / compute_seconds)}")
        if kernel_flops
        else NO_TERM
    )


def _memory_formula(time_estimator: TimeEstimator, kernel: Kernel, operation: TimedOperation) -> _FormulaTerm:
    """Returns the formula of memory traffic's seconds: bytes / (bandwidth · share), B / (W · w)."""
    if not operation.memory:
        return NO_TERM
    device, memory_seconds = time_estimator.device, float(operation.memory)
    efficiency = device.generation.cache if _reads_cache(time_estimator, kernel) else device.generation.memory
    rate_text = f"({_number_text(device.memory_bandwidth)} · {_number_text(efficiency)})"
    if kernel.kind == "attention" and time_estimator.rank_pass.phase == "decode":
        cache_bytes = float(kernel.cache_elements) * time_estimator.number_formats.cache_bits / 8
        bandwidth_share = memory_seconds * device.memory_bandwidth * efficiency / cache_bytes if cache_bytes else 1.0
        unit_ratio = 1 / (bandwidth_share - 1)
        return _FormulaTerm(
            "B / (W · w) · (1 + 1 / b)",
            f"{_number_text(cache_bytes)} / {rate_text} · (1 + 1 / {_number_text(unit_ratio)})",
        )
    if _is_vector_read(time_estimator, kernel):
        byte_text, rate_text = (
            _number_text(memory_seconds * device.vector_rate),
            _number_text(device.generation.vector_read),
        )
        return _FormulaTerm("B / (P32 · v)", f"{byte_text} / ({_number_text(device.peak_rates['fp32'])} · {rate_text})")
    return _FormulaTerm(
        "B / (W · w)", f"{_number_text(memory_seconds * device.memory_bandwidth * efficiency)} / {rate_text}"
    )


def _is_vector_read(time_estimator: TimeEstimator, kernel: Kernel) -> bool:
    """Whether a matrix-vector kernel is limited by the compute units' read rate, not by the memory bandwidth."""
    is_product = kernel.kind in ("product", "experts")
    return is_product and bool(time_estimator.vector_rate(kernel) < time_estimator.device.memory_rate)


def _memory_figure_name(time_estimator: TimeEstimator, kernel: Kernel) -> str:
    """Returns the name of the measured bandwidth share that applies to a kernel's memory traffic."""
    if _reads_cache(time_estimator, kernel):
        return "cache"
    return "vector_read" if _is_vector_read(time_estimator, kernel) else "memory"


def _formula_source(
    time_estimator: TimeEstimator,
    kernel: Kernel,
    compute_term: _FormulaTerm,
    memory_term: _FormulaTerm,
    wait_term: _FormulaTerm,
) -> str:
    """Returns the sources of a formula's efficiency factors, with the evidence and the measurements."""
    is_fused_attention = kernel.kind == "attention" and time_estimator.stack.attention != "scores"
    figure_names = [
        *(["attention"] if is_fused_attention and compute_term else ["products"] if compute_term else []),
        *([_memory_figure_name(time_estimator, kernel)] if memory_term else []),
        *(["kernel_start" if time_estimator.is_training else "launch_gap"] if wait_term else []),
    ]
    sources = [
        figure_source
        for figure_name in figure_names
        if (figure_source := _source_of_figure(time_estimator.device.generation, figure_name)) is not None
    ]
    source_texts = [f"{source.source} ({source.evidence}, tested on {source.rows} rows)" for source in sources]
    return "; ".join(dict.fromkeys(source_texts))


def _reads_cache(time_estimator: TimeEstimator, kernel: Kernel) -> bool:
    """Whether a kernel is attention over a KV cache, or fused attention that stores no scores."""
    keeps_scores = time_estimator.stack.attention == "scores" and time_estimator.rank_pass.phase != "decode"
    return kernel.kind == "attention" and not keeps_scores


def _source_of_figure(generation: AcceleratorGeneration, figure_name: str) -> ConstantSource | None:
    """Returns the source of a figure: the accelerator's generation, or the generation it is taken from."""
    for figure_source in generation.sources:
        if figure_name in figure_source.fields:
            return figure_source
    return _source_of_figure(accelerator_generations()[generation.like], figure_name) if generation.like else None


def _number_text(formula_number: float) -> str:
    """Returns a number as text, with all digits that the formula's value needs."""
    return f"{formula_number:.12g}"
