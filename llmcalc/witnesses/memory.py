"""Compares the replay of a run's memory with torch, which runs the reference: every phase's bytes, to the byte.

On meta and on the CPU, a dispatch mode follows every storage that torch makes (`storages.Alive`). Under it autograd
adds no gradient in place, so the passes of a micro-batch are compared once more without it, with the events of the
profiler on the CPU (`cpu_events`). What torch's allocator and a GPU's libraries add is compared on a GPU (`gpu`).

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from ..algebra import Number
from ..device_memory.estimate import memory
from ..device_memory.inference import Inference, replay_inference
from ..device_memory.optimizers.registry import optimizer
from ..device_memory.settings import Settings
from ..device_memory.simulated_run import inference_passes, is_stored_otherwise, kernel_choices, training_run
from ..device_memory.training import Training, TrainingRun
from ..errors import InputError
from ..model import ModelSpec
from ..ops.attention import AttentionCore
from ..ops.recurrent import State
from ..simulator.autograd import saved_storages
from ..simulator.meter import Meter
from ..workload.recompute import NONE
from . import variants
from .checks import MEMORY, Check, Verdict
from .cpu_events import BACKWARD, FORWARD, GradientSums, PassBytes, read_events
from .loop import Passes, TrainingLoop, cache_shapes, without_initial_values
from .reference import LARGEST_REAL, Device
from .shapes import Remembered
from .storages import Alive, saved_bytes

STEPS = 2
"""Training steps that are run: in the second one the optimizer's states exist from the beginning."""


EVENT_TOKENS = 8
"""The most tokens of a sequence in the passes whose events are read on the CPU."""

EVENTS = "cpu_events_"
"""How the names of quantities begin that the CPU's events show."""

WEIGHTS = "weights_bytes"

SUMS = "sums of gradients"

SMALL_VOCABULARY = 1024
"""The vocabulary of a model whose own one has too many bytes for the CPU."""


# --- what is compared -------------------------------------------------------------------------------------------------


@dataclass
class Compared:
    """The comparison of a model's memory.

    checks: one per quantity. runs: what each phase runs, in words. left_out: phase → why the reference cannot show it.
    info: further information, for the JSON document.
    """

    checks: list[Check] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)

    def joined(self, verdict: Verdict, seconds: float) -> Verdict:
        """A verdict with these checks too."""
        info = {"runs": self.runs, "left_out": self.left_out, **self.info}
        return replace(
            verdict,
            checks=[*verdict.checks, *self.checks],
            seconds=verdict.seconds + seconds,
            info=verdict.info | {"memory": info},
        )


def usual(spec: ModelSpec, batch: int, seq: int) -> list[Settings]:
    """The runs that are compared by default: training, prefill, and decoding, which an encoder-only model does not."""
    training, prefill = (Settings(phase, batch=batch, seq=seq) for phase in ("training", "prefill"))
    return [training, prefill, *([] if spec.kind == "encoder" else [Settings("decode", batch=batch, seq=seq)])]


def compare_memory(spec: ModelSpec, settings: Sequence[Settings], device: Device) -> Compared:
    """Compares every phase with torch on meta or on the CPU, to the byte.

    A run that the reference cannot show is left out, with the reason. Raises `Unsupported` for a step without kernels,
    and `InputError` for a run that is too large for the CPU.
    """
    found = Compared()
    for one in settings:
        why = not_shown(spec, one, device)
        if why:
            found.left_out[one.phase] = why
            continue
        if device == "cpu":
            _check_size(spec, one)
        ours, theirs = closed_form(spec, one), measured(spec, one, device)
        found.runs.append(in_words(spec, one))
        found.checks += [
            Check("", MEMORY + name, bytes, theirs[name], f"torch on {device}") for name, bytes in ours.items()
        ]
        if one.phase == "training":
            _compare_with_events(spec, one, found)
    return found


def _compare_with_events(spec: ModelSpec, settings: Settings, found: Compared) -> None:
    """Compares the passes of a micro-batch of few tokens with the CPU profiler's events; or says why not.

    If the whole vocabulary has too many bytes for the CPU, the model gets a small one: what is added in place does not
    depend on it.
    """
    few = replace(settings, seq=min(settings.seq or EVENT_TOKENS, EVENT_TOKENS))
    why = not_shown(spec, few, "cpu")
    if why:
        found.left_out[SUMS] = why
        return
    how, smaller = program(spec, few), spec.model_copy(update={"vocab_size": min(spec.vocab_size, SMALL_VOCABULARY)})
    assert isinstance(how, Training)
    how = replace(how, master=False)  # the passes read no master weights
    for model in (spec, smaller):
        ours = replayed_passes(model, how)
        size = ours[f"{EVENTS}backward_peak_bytes"] + ours.pop(WEIGHTS)
        if size <= LARGEST_REAL:
            break
    else:
        found.left_out[SUMS] = (
            f"the CPU alone shows where gradients are added in place, and {size:,} bytes are too many for it; expected "
            "fewer layers (--set num_hidden_layers=1)"
        )
        return
    theirs = measured_passes(model, how)
    vocabulary = "" if model is spec else f" with a vocabulary of {model.vocab_size:,}"
    found.runs.append(f"{SUMS} on the CPU on {how.batch} × {how.seq:,} tokens{vocabulary}")
    found.checks += [Check("", MEMORY + name, bytes, theirs[name], "CPU events") for name, bytes in ours.items()]


def closed_form(spec: ModelSpec, settings: Settings) -> dict[str, int]:
    """Quantity → bytes of the replay."""
    how = program(spec, settings)
    return replayed_steps(spec, how).named() if isinstance(how, Training) else replayed_pass(spec, how).named(how.phase)


def measured(spec: ModelSpec, settings: Settings, device: str) -> dict[str, int]:
    """Quantity → bytes of torch."""
    how = program(spec, settings)
    if isinstance(how, Training):
        return measured_steps(spec, how, device).named()
    return measured_pass(spec, how, device).named(how.phase)


def program(spec: ModelSpec, settings: Settings) -> Training | Inference:
    """What these settings run."""
    use = memory(spec, settings).states
    if settings.phase == "training":
        return training_run(settings, use)
    (how,) = inference_passes(settings, spec, use, kernel_choices(settings).attention)
    return how


def in_words(spec: ModelSpec, settings: Settings) -> str:
    """What these settings run, in words."""
    use = memory(spec, settings).states
    size = f"{use.workload.batch} × {use.workload.seq:,} tokens"
    if settings.phase == "training":
        assert use.optimizer is not None
        return f"training with {use.optimizer.name} in {use.precision or use.dtype} on {size}"
    return f"prefill of {size}" if settings.phase == "prefill" else f"decoding one token after {size}"


def not_shown(spec: ModelSpec, settings: Settings, device: Device) -> str:
    """Why the reference cannot show the memory of a run; empty if it can."""
    recurrent = _recurrent(spec)
    if recurrent:
        return f"{recurrent} runs kernels of a library, and the reference a loop of its own"
    if settings.phase == "inference":
        return "a server's paged cache is not in the reference; prefill and decode are compared"
    use, how = memory(spec, settings).states, program(spec, settings)
    if isinstance(how, Inference):
        return next(text for holds, text in _unlike_inference(use, how, device) if holds)
    return next(text for holds, text in _unlike_training(how, device) if holds)


def _recurrent(spec: ModelSpec) -> str:
    """The path of the first module with a recurrent state; empty if there is none.

    An attention layer with a convolution has a state too, and runs as the reference does.
    """
    for place in spec.tree().walk():
        ops = [child.op for child in place.node.children]
        if any(isinstance(op, State) for op in ops) and not any(isinstance(op, AttentionCore) for op in ops):
            return place.path
    return ""


def _unlike_inference(use: Any, inference: Inference, device: Device) -> Iterator[tuple[bool, str]]:
    yield is_stored_otherwise(use), "quantized weights are not in the reference"
    yield inference.paged, "a paged cache is not in the reference"
    yield from _unlike_kernels(inference.choices.attention, inference.choices.norm, device)
    yield True, ""


def _unlike_training(training: Training, device: Device) -> Iterator[tuple[bool, str]]:
    yield training.choices.compiled, "an estimate of torch.compile"
    yield training.gradient_dtype is not None, "sums of gradients in a format of their own"
    yield training.state_dtype is not None, "optimizer states in a format of their own"
    record = optimizer(training.optimizer)
    yield record.built is None, record.not_in_torch or "no optimizer of torch is named in its record"
    yield training.adapters is not None and training.adapters.base != "none", "a base in 4 bits needs bitsandbytes"
    yield training.autocast and device == "meta", "torch.autocast does nothing on meta; expected --device cpu"
    yield training.implementation == "fused" and device == "meta", "torch has no fused optimizer on meta"
    yield record.reads_values and device == "meta", f"{record.name} reads values; expected --device cpu"
    of_library = training.choices.cross_entropy in ("fused", "chunked")
    yield of_library and device == "cuda", "the cross-entropy of a library that is not a part of torch"
    yield from _unlike_kernels(training.choices.attention, training.choices.norm, device)
    yield True, ""


def _unlike_kernels(attention: str, norm: str, device: Device) -> Iterator[tuple[bool, str]]:
    yield attention == "flash" and device == "cpu", "torch has no flash attention of a GPU on the CPU"
    yield norm == "fused" and device == "cpu", "fused norms of the CPU keep other statistics"


def _check_size(spec: ModelSpec, settings: Settings) -> None:
    """Raises `InputError` for a run that would take too much memory on a CPU."""
    size = max(closed_form(spec, settings).values())
    if size > LARGEST_REAL:
        raise InputError(
            f"--device cpu: --memory: {settings.phase} takes {size:,} bytes, which are too many; expected --device "
            "meta, or fewer layers (--set num_hidden_layers=1)"
        )


# --- quantities -------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """Bytes of a training step, weights included.

    forward, backward, step: the most in each phase. after: after the step. live: after the last forward pass.
    saved: what autograd keeps for the last backward pass, beside weights and inputs; None where parts run again,
    because selective checkpoints are not among torch's saved tensors.
    """

    forward: int
    backward: int
    step: int
    after: int
    live: int
    saved: int | None


class Steps(NamedTuple):
    """Bytes after set-up, of the first step and of the second; of one step alone, twice the same."""

    set_up: int
    first: Step
    second: Step

    def named(self) -> dict[str, int]:
        """Quantity → bytes; of the first step, only what the second one does not repeat."""
        second = self.second
        saved = {} if second.saved is None else {"saved_bytes": second.saved}
        return {
            "set_up_bytes": self.set_up,
            **saved,
            "live_bytes": second.live,
            "forward_peak_bytes": second.forward,
            "backward_peak_bytes": second.backward,
            "first_step_peak_bytes": self.first.step,
            "step_peak_bytes": second.step,
            "after_step_bytes": second.after,
        }


class Passed(NamedTuple):
    """Bytes of a pass without gradients, weights and cache included. peak: the most. after: after it."""

    peak: int
    after: int

    def named(self, phase: str) -> dict[str, int]:
        """Quantity → bytes."""
        return {f"{phase}_peak_bytes": self.peak, f"{phase}_after_bytes": self.after}


# --- the replay -------------------------------------------------------------------------------------------------------


def replayed_steps(spec: ModelSpec, training: Training, number: int = STEPS) -> Steps:
    """The replay of training steps, as a dispatch mode sees them. number: 2, or 1 for the first one alone."""
    meter = Meter()
    run = TrainingRun(spec, training, meter=meter)
    run.graph.adds_in_place = False  # under a dispatch mode torch adds gradients into new tensors
    run.set_up()
    set_up, steps = meter.now, []
    for _ in range(number):
        meter.peaks = {}
        live, saved = 0, None
        for _ in range(training.microbatches):
            run.next_batch()
            loss = run.forward()
            live = meter.now
            saved = _saved(run, loss)
            run.backward(loss)
            del loss
        run.update()
        run.zero_grad()
        most = {
            phase: max((peak.bytes for place, peak in meter.peaks.items() if place.phase == phase), default=0)
            for phase in ("forward", "backward", "step")
        }
        steps.append(Step(**most, after=meter.now, live=live, saved=saved))
    return Steps(set_up, steps[0], steps[-1])


def replayed_passes(spec: ModelSpec, training: Training) -> dict[str, int]:
    """Quantity → bytes of a micro-batch's passes beside weights, as torch runs them without a dispatch mode."""
    meter, sums = Meter(), GradientSums()
    run = TrainingRun(spec, training, meter=meter)

    def add(size: Number, in_place: bool) -> None:
        nonlocal sums
        sums = sums.with_sum(size, in_place)

    run.set_up()
    weights = meter.by_kind["weights"]
    run.next_batch()
    run.graph.on_sum = add
    before = meter.now - sum(one.storage.bytes for one in _inputs(run))
    meter.peaks = {}
    run.next_batch()
    loss = run.forward()
    live = meter.now - before
    run.backward(loss)
    most = {
        phase: max(peak.bytes for place, peak in meter.peaks.items() if place.phase == phase) - before
        for phase in ("forward", "backward")
    }
    return _named(PassBytes(live, **most), sums) | {WEIGHTS: weights}


def _inputs(run: TrainingRun) -> list[Any]:
    """The tensors of a batch, each storage once."""
    given = {id(one.storage): one for one in (*run.lowering.given.values(), run.labels) if one is not None}
    return list(given.values())


def _named(passes: PassBytes, sums: GradientSums) -> dict[str, int]:
    return {
        f"{EVENTS}live_bytes": passes.live,
        f"{EVENTS}forward_peak_bytes": passes.forward,
        f"{EVENTS}backward_peak_bytes": passes.backward,
        f"{EVENTS}sums_in_place_bytes": sums.in_place,
        f"{EVENTS}sums_out_of_place_bytes": sums.out_of_place,
    }


def _saved(run: TrainingRun, loss: Any) -> int | None:
    """The bytes that the graph behind a loss keeps, beside weights and inputs."""
    if run.training.recompute is not NONE:
        return None
    given = {id(one.storage) for one in _inputs(run)}
    kept = [one for one in saved_storages(loss) if one.block.kind != "weights" and id(one) not in given]
    total: int = sum(one.bytes for one in kept)
    return total


def replayed_pass(spec: ModelSpec, inference: Inference) -> Passed:
    """The replay of a prefill, or of a decoding step."""
    found = replay_inference(spec, inference)
    return Passed(found.peak[1].bytes, found.after)


# --- torch ------------------------------------------------------------------------------------------------------------


class OnCpu(Alive):
    """Follows no step counts of optimizers, which are on the host when the model is on a GPU.

    set_up: whether the model exists, whose own scalars are followed.
    """

    set_up = False

    def _follow(self, tensor: Tensor, func: Any) -> None:
        if self.set_up and func is torch.ops.aten.lift_fresh.default and not tensor.dim():
            storage = tensor.untyped_storage()
            self.seen.add(storage._cdata)
            weakref.finalize(storage, self.seen.discard, storage._cdata)
        else:
            super()._follow(tensor, func)


def measured_steps(spec: ModelSpec, training: Training, device: str, number: int = STEPS) -> Steps:
    """Training steps of the reference. number: as in `replayed_steps`."""
    mode = OnCpu(device=device) if device == "cpu" and training.implementation != "fused" else Alive(device=device)
    most: dict[str, int] = {}
    held: dict[str, Any] = {}

    def seen(phase: str, loss: Tensor | None) -> None:
        most[phase], mode.peak = max(most.get(phase, 0), mode.peak), mode.now
        if loss is not None:
            known = {one.untyped_storage()._cdata for one in loop.outside}
            held["saved"] = None if training.recompute is not NONE else saved_bytes(loss, known, device)
            held["live"] = mode.now

    with Remembered(), mode:
        loop = TrainingLoop(spec, training, device)
        mode.follow((*loop.module.parameters(), *loop.module.buffers()))
        set_up, steps = mode.now, []
        if isinstance(mode, OnCpu):
            mode.set_up = True
        for _ in range(number):
            most.clear()
            mode.peak = mode.now
            loop.step(seen)
            steps.append(Step(**most, after=mode.now, **held))
    return Steps(set_up, steps[0], steps[-1])


def measured_passes(spec: ModelSpec, training: Training) -> dict[str, int]:
    """Quantity → bytes of a micro-batch's passes on the CPU, from the profiler's events."""
    with without_initial_values():
        loop = TrainingLoop(spec, training, "cpu")
    loop.read()
    with torch.no_grad(), variants.running(training.choices):
        loop.loss()  # what is made once is made here
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as run, ExitStack() as now:
        now.enter_context(record_function(FORWARD))

        def seen(phase: str, loss: Tensor | None) -> None:
            now.close()
            if phase == "forward":
                now.enter_context(record_function(BACKWARD))

        loop.micro_batch(seen)
    events = read_events(run)
    return _named(events.passes(), events.sums)


def measured_pass(spec: ModelSpec, inference: Inference, device: str) -> Passed:
    """A prefill of the reference, or a decoding step with a cache of the shapes that a prefill leaves."""
    mode = Alive(device=device)
    with Remembered():
        shapes = cache_shapes(spec, inference) if inference.phase == "decode" else {}
    with Remembered(), mode:
        passes = Passes(spec, inference, device)
        mode.follow((*passes.module.parameters(), *passes.module.buffers()))
        if inference.phase == "decode":
            passes.cache_of(shapes)
        mode.peak = mode.now
        (passes.decode if inference.phase == "decode" else passes.prefill)()
        return Passed(mode.peak, mode.now)
