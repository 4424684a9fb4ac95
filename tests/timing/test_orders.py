"""What holds of seconds for any accelerator, stack, model and layout: drawn with a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.sources.hardware import hardware_names, load_hardware
from llmcalc.sources.presets import load_preset
from llmcalc.timing.batching import Replica, RequestSizes
from llmcalc.timing.device import Device, device_of
from llmcalc.timing.inference import decode, prefill
from llmcalc.timing.step import StepPlan, training_step
from llmcalc.timing.time_estimator import MAX_VECTOR_KERNEL_TOKENS, NumberFormats
from llmcalc.timing.timing_constants import SoftwareStack, software_stacks

MODELS = "llama3-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b", "mamba2-2.7b", "gemma3-1b"
FORMATS = (
    NumberFormats(),
    NumberFormats("fp8", 8, 8),
    NumberFormats("quantized", 4.5, 16),
    NumberFormats("fp4", 4.5, 8),
    NumberFormats("int8", 8, 16),
)
BATCHES = 1, 2, 3, 5, 8, 16, 64, 256
DRAWS = [3, pytest.param(8, marks=pytest.mark.exhaustive)]
"""Questions of a test."""

ROUNDING = 1 + 1e-9
"""Sums in another order differ by less."""


def devices() -> list[Device]:
    """All accelerators that have a bandwidth and a peak."""
    answering = []
    for name in hardware_names():
        try:
            answering.append(device_of(load_hardware(name)))
        except InputError:
            continue
    return answering


def stacks_of(phase: str) -> list[SoftwareStack]:
    return [stack for stack in software_stacks().values() if stack.phase == phase]


def faster(device: Device) -> Iterator[tuple[str, Device]]:
    """The device with one figure more: its name, and the device."""
    for factor in (1.1, 4.0):
        for name in ("memory_bandwidth", "link_bandwidth", "network_bandwidth"):
            yield name, replace(device, **{name: getattr(device, name) * factor})
        for dtype, peak in device.peak_rates.items():
            yield f"{dtype} peak", replace(device, peak_rates={**device.peak_rates, dtype: factor * peak})


def check_faster(seconds: Callable[[Device], float], device: Device) -> None:
    usual = seconds(device)
    for name, better in faster(device):
        assert seconds(better) <= usual * ROUNDING, (device.name, name)


def check_grows(values: Sequence[float], what: str) -> None:
    assert all(later >= earlier / ROUNDING for earlier, later in pairwise(values)), (what, values)


def drawn_plan(draw: random.Random) -> StepPlan:
    tp, ep = draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 4, 8))
    layout = Layout(
        tp=tp,
        pp=draw.choice((1, 2, 4)),
        dp=draw.choice((1, 2, 8, 64)) * ep,
        ep=ep,
        etp=1 if ep > 1 else None,
        zero=draw.choice((0, 1, 2, 3)),  # type: ignore[arg-type]
        sequence_parallel=tp > 1 and draw.random() < 0.5,
    )
    sizes = draw.choice((1, 2, 4)), draw.choice((1, 4, 16)), draw.choice((512, 4096, 16384))
    dtype, recompute = draw.choice(("bf16", "fp8", "fp32")), draw.choice((0.0, 1.0))
    return StepPlan.from_layout(layout, *sizes, dtype=dtype, recomputed_share=recompute)


def check_step(spec: ModelSpec, device: Device, stack: SoftwareStack, plan: StepPlan) -> None:
    step = training_step(spec, device, stack, plan)
    assert sum(step.seconds_by_part.values()) == pytest.approx(step.seconds, rel=1e-12)
    check_faster(lambda better: float(training_step(spec, better, stack, plan).seconds), device)
    longer = replace(plan, micro_batches=2 * plan.micro_batches)
    assert step.seconds < training_step(spec, device, stack, longer).seconds


def check_passes(replica: Replica, context: int, batch: int) -> None:
    """context: tokens in the cache, or of a prompt. batch: sequences whose token is computed on better devices."""
    spec, device, stack = replica.spec, replica.device, replica.stack
    layout, formats = replica.layout, replica.number_formats

    def token(size: int, device: Device) -> float:
        return float(decode(spec, device, stack, size, context, layout, formats).seconds)

    # llama.cpp's kernels of matrix by vector end at a number of tokens, beyond which its other kernel may be faster
    batches = [size for size in BATCHES if size <= MAX_VECTOR_KERNEL_TOKENS or not stack.has_vector_kernels]
    seconds = [token(size, device) for size in batches]
    check_grows(seconds, f"seconds of a token on {device.name}")
    check_grows([size / time for size, time in zip(batches, seconds, strict=True)], f"tokens/s on {device.name}")
    check_faster(lambda better: token(batch, better), device)
    check_faster(
        lambda better: float(prefill(spec, better, stack, 1, context, 0, None, layout, formats).seconds), device
    )
    loads = [replica.latencies(concurrency) for concurrency in batches]
    for quantity in ("tpot", "output_tokens_per_second", "end_to_end_seconds"):
        check_grows([getattr(load, quantity) for load in loads], f"{quantity} on {device.name}")
    assert all(load.ttft_of_burst >= load.ttft for load in loads), device.name


def check_draws(check: Callable[[], None], draws: int) -> None:
    """Runs a check that draws its question until so many were answered; a layout may not divide a model."""
    answered = 0
    for _ in range(10 * draws):
        try:
            check()
        except InputError:
            continue
        answered += 1
        if answered == draws:
            return
    raise AssertionError(f"{answered} questions were answered")


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("name", MODELS)
def test_steps(name: str, draws: int) -> None:
    """More hardware is never slower, parts add up, and a step of more micro-batches takes longer."""
    spec, draw, every_device = load_preset(name).model, random.Random(f"steps of {name}"), devices()
    check_draws(
        lambda: check_step(spec, draw.choice(every_device), draw.choice(stacks_of("training")), drawn_plan(draw)),
        draws,
    )


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("name", MODELS)
def test_passes(name: str, draws: int) -> None:
    """More hardware is never slower; seconds of a token and tokens/s grow with the batch and with the load."""
    spec, draw, every_device = load_preset(name).model, random.Random(f"passes of {name}"), devices()

    def check() -> None:
        requests = RequestSizes(draw.choice((100, 2000, 9000)), draw.choice((16, 200, 2000)))
        layout = Layout(tp=draw.choice((1, 2, 4)), pp=draw.choice((1, 2)))
        stack, formats = draw.choice(stacks_of("inference")), draw.choice(FORMATS)
        replica = Replica(spec, draw.choice(every_device), stack, requests, layout, formats, step_tokens=8192)
        check_passes(replica, draw.choice((100, 4000, 30000)), draw.choice(BATCHES))

    check_draws(check, draws)
