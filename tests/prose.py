"""What the sentences of the documentation may compute: `<!-- value: EXPRESSION -->text<!-- /value -->`.

An expression is Python over the functions of this file and `llmcalc`. It returns an integer, which is written with
thousands separators, or a string.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from math import log, pi
from statistics import median_low
from typing import Any

import llmcalc
from llmcalc.accelerator import Hardware
from llmcalc.flow.tree import Node, NodePosition
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.schedule_formulas import bubble_fraction
from llmcalc.sources.hardware import find_hardware
from llmcalc.sources.presets import load_preset, model_names
from llmcalc.studies.compare import StackShape, stack_shape
from llmcalc.studies.model_selection import attention_kinds
from llmcalc.workload.counting import Pairs
from llmcalc.workload.execution import LatentForm
from tests.builders import run_config

VALUE = re.compile(r"<!-- value: (.*?) -->(.*?)<!-- /value -->", re.DOTALL)


@cache
def spec(name: str) -> ModelSpec:
    """The spec of a preset, or of a variant such as `llama3-8b?num_hidden_layers=16`."""
    return llmcalc.load(name).model


def total(name: str) -> int:
    """Parameters."""
    return llmcalc.params(spec(name)).total


def active(name: str) -> int:
    """Parameters that one token uses."""
    return llmcalc.params(spec(name)).active


def places(name: str, node: str) -> list[NodePosition]:
    """The places of all nodes with a name."""
    return [place for place in spec(name).tree().walk() if place.node.name == node]


def first(name: str, node: str) -> Node:
    return places(name, node)[0].node


def size(name: str, node: str, which: int = 0) -> int:
    """Parameters of one node of that name; of several that differ, the first, or the one asked for."""
    count: int = places(name, node)[which].node.cost_per_repeat(lambda use: use.params())
    return count


def token_flops(
    name: str, seq: int = 2048, node: str = "model", pairs: Pairs = "full", mla: LatentForm = "auto"
) -> Fraction:
    """FLOPs per token of a forward pass over sequences of seq tokens, of the model or of one node."""
    if node == "model":
        count = llmcalc.flops(spec(name), seq=seq)
        return Fraction(count.full if pairs == "full" else count.causal, seq)
    run = run_config(batch=1, seq=seq, pairs=pairs, mla=mla)
    return Fraction(first(name, node).cost_per_repeat(lambda use: use.forward_flops(), run), seq)


def norms(name: str) -> int:
    """Parameters of all norms in the layers."""
    found = [
        p
        for p in spec(name).tree().walk()
        if p.node.name.endswith("_norm") and "layers" in p.path and not p.optional_part
    ]
    return sum(place.node.cost_per_repeat(lambda use: use.params()) * place.copies for place in found)


def train_flops(name: str, seq: int = 2048) -> Fraction:
    """FLOPs per token of a training step on sequences of seq tokens, eager attention, nothing recomputed."""
    return Fraction(llmcalc.flops(spec(name), seq=seq, phase="training").full, seq)


def cached(name: str, seq: int, batch: int = 1) -> int:
    """Bytes of the cache in bf16."""
    return llmcalc.kv(spec(name), batch=batch, seq=seq).bytes


def rule(name: str, tables: int = 2) -> int:
    """12·L·h² + 2·V·h, or with one table 12·L·h² + V·h."""
    model = spec(name)
    h = model.hidden_size
    return 12 * model.main.num_hidden_layers * h**2 + tables * model.vocab_size * h


def shape(name: str) -> StackShape:
    """h/L, d_ff/h and the other ratios of a model's shape."""
    return stack_shape(spec(name).main, spec(name).hidden_size)


@cache
def dense_decoders(least: float) -> tuple[str, ...]:
    """Presets that are decoders of attention and dense feed-forward networks, with at least so many parameters."""
    heads = {"mha", "gqa", "mqa", "mla", "sliding"}
    return tuple(
        name
        for name in model_names()
        if spec(name).kind == "decoder"
        and not spec(name).has_experts
        and attention_kinds(spec(name)) <= heads
        and total(name) >= least
    )


def presets_with(field: str, value: float | None = None) -> int:
    """Presets whose published training run states a setting, or states that value of it."""
    stated = [getattr(load_preset(name).training, field) for name in model_names()]
    return sum(setting is not None if value is None else setting == value for setting in stated)


@cache
def peak(name: str, **options: Any) -> int:
    """Bytes at the peak of a training step on one device."""
    return int(llmcalc.memory(name, "training", **options).device.peak_bytes)


@cache
def median_depth(experts: bool, least: float, most: float) -> int:
    """The median number of layers of decoders with least to most parameters, with experts or without."""
    depths = [
        spec(name).main.num_hidden_layers
        for name in model_names()
        if spec(name).kind == "decoder" and spec(name).has_experts is experts and least <= total(name) < most
    ]
    return int(median_low(depths))


def vocabularies(year: int) -> list[int]:
    """The vocabularies of decoders and encoder-decoders that were released in a year, in order of size."""
    return sorted(
        spec(name).vocab_size
        for name in model_names()
        if (load_preset(name).released or "").startswith(str(year)) and spec(name).kind != "encoder"
    )


def wavelength(base: float, head_dim: int) -> str:
    """Tokens in which the slowest pair of RoPE makes a full turn."""
    return f"{2 * pi * base ** ((head_dim - 2) / head_dim):,.0f}"


def yarn_scale(factor: float) -> str:
    """What YaRN multiplies logits by, for a context that grows by a factor (Peng et al. 2023, §3.4)."""
    return number((0.1 * log(factor) + 1) ** 2, 3)


@cache
def accelerator(name: str) -> Hardware:
    """The record of an accelerator."""
    return find_hardware(name)


def balance(name: str) -> float:
    """FLOPs that an accelerator computes in 16 bits in the time in which it reads a byte."""
    hardware = accelerator(name)
    return hardware.peak_rate("bfloat16") / hardware.bandwidth()


def time_of(name: str, hardware: str, part: str = "", **options: Any) -> float:
    """Seconds of a step, a prompt or a token as `llmcalc time` estimates them, or of one of its parts."""
    document = llmcalc.time(spec(name), hardware=hardware, **options).document
    return float(document["parts"][part] if part else document["seconds"]["estimate"])


def idle_share(stages: int, micro_batches: int, chunks: int = 1) -> str:
    """The share of a step in which a rank of a pipeline waits, in percent."""
    layout = Layout(pp=stages, vpp=chunks, schedule="interleaved" if chunks > 1 else "1f1b")
    return percent(bubble_fraction(layout, micro_batches))


def milliseconds(seconds: float, digits: int = 1) -> str:
    """In units of 10⁻³ s: 4.8 ms."""
    return f"{seconds * 1e3:,.{digits}f} ms"


def number(value: float | Fraction, digits: int = 2) -> str:
    """A number with thousands separators and so many decimals."""
    return f"{float(value):,.{digits}f}".replace("-", "−")


def percent(value: float | Fraction, digits: int = 1) -> str:
    """A share or a difference in percent: −6.7 %."""
    return f"{float(value) * 100:.{digits}f} %".replace("-", "−")


def billions(value: float | Fraction, digits: int = 2) -> str:
    """In units of 10⁹: 8.03 billion."""
    return f"{float(value) / 1e9:,.{digits}f} billion"


def millions(value: float | Fraction, digits: int = 1) -> str:
    """In units of 10⁶: 12.6 million."""
    return f"{float(value) / 1e6:,.{digits}f} million"


def gib(value: float | Fraction) -> str:
    """In units of 2³⁰ bytes."""
    return f"{float(value) / 2**30:,.2f} GiB"


def kib(value: float | Fraction) -> str:
    """In units of 2¹⁰ bytes."""
    return f"{float(value) / 2**10:,.2f} KiB"


def written(expression: str) -> str:
    """The text of an expression's value."""
    value = eval(expression, globals())
    if isinstance(value, str):
        return value
    if isinstance(value, Fraction) and value.denominator == 1:
        value = int(value)
    assert isinstance(value, int), f"{expression}: {value!r}; expected an integer or a string"
    return f"{value:,}"


def renewed(text: str) -> str:
    """A page with its values computed anew."""
    return VALUE.sub(lambda m: f"<!-- value: {m[1]} -->{written(m[1])}<!-- /value -->", text)
