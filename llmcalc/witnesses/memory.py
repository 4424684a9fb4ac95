"""Compares a run's simulated memory with torch's memory for the reference; the bytes must be equal.

On meta and on the CPU, a dispatch mode tracks every storage that torch creates (`storage_tracker.StorageTracker`).
Under it autograd adds no gradient in place, so the passes of a micro-batch are compared again without it, with the
events of the CPU profiler (`cpu_events`). The overhead of torch's allocator and of GPU libraries is compared on a GPU.

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
from ..device_memory.inference import InferenceConfig, replay_inference
from ..device_memory.optimizers.registry import DEFAULT_OPTIMIZER, optimizer
from ..device_memory.settings import Settings
from ..device_memory.simulated_run import has_storage_format, inference_configs, kernel_choices, training_replay_config
from ..device_memory.training import TrainingConfig, TrainingRun
from ..errors import InputError
from ..model import ModelSpec
from ..ops.attention import AttentionCore
from ..ops.recurrent import State
from ..simulator.autograd import saved_storages
from ..simulator.meter import Meter
from ..workload.recompute import NO_RECOMPUTATION
from . import kernel_variants
from .checks import MEMORY_PREFIX, Check, Verdict
from .cpu_events import BACKWARD_PASS, FORWARD_PASS, GradientSums, PassBytes, discard_profiler_log, read_events
from .distributed.job import peaks_by_phase
from .reference import MAX_CPU_BYTES, Device
from .shape_cache import ShapeCache
from .storage_tracker import StorageTracker, saved_bytes
from .training_loop import InferencePasses, SkipInitialization, TrainingLoop, cache_shapes

STEPS = 2
"""Number of training steps; in the second the optimizer's states exist from the beginning."""


EVENT_TOKENS = 8
"""Largest number of tokens per sequence in passes whose events are read on the CPU."""

EVENTS_PREFIX = "cpu_events_"
"""Prefix of quantities from the CPU profiler's events."""

WEIGHTS_QUANTITY = "weights_bytes"

GRADIENT_SUMS_NAME = "sums of gradients"

SMALL_VOCABULARY = 1024
"""Vocabulary size that replaces one with too many bytes for the CPU."""


# --- what is compared -------------------------------------------------------------------------------------------------


@dataclass
class MemoryComparison:
    """The memory checks of a model, the compared runs, and the reasons why other runs were skipped.

    checks: one per quantity.
    run_descriptions: description of each run.
    skip_reasons: phase → why it is not compared.
    info: further information for the JSON document.
    """

    checks: list[Check] = field(default_factory=list)
    run_descriptions: list[str] = field(default_factory=list)
    skip_reasons: dict[str, str] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)

    def add_memory_checks(self, verdict: Verdict, seconds: float) -> Verdict:
        """Returns a verdict with the memory checks added."""
        verdict_info = {"runs": self.run_descriptions, "left_out": self.skip_reasons, **self.info}
        return replace(
            verdict,
            checks=[*verdict.checks, *self.checks],
            seconds=verdict.seconds + seconds,
            info=verdict.info | {"memory": verdict_info},
        )


def default_run_settings(spec: ModelSpec, batch: int, seq: int) -> list[Settings]:
    """Returns the runs that are compared by default: training, prefill and, except for encoders, decoding."""
    training_settings, prefill_settings = (Settings(phase, batch=batch, seq=seq) for phase in ("training", "prefill"))
    return [
        training_settings,
        prefill_settings,
        *([] if spec.one_pass_model_name else [Settings("decode", batch=batch, seq=seq)]),
    ]


def compare_memory(spec: ModelSpec, settings: Sequence[Settings], device: Device) -> MemoryComparison:
    """Compares the memory of every phase with torch's on meta or on the CPU, to the byte.

    A run that the reference does not support is left out with the reason. Raises `UnsupportedKernel` for a step that
    has no kernels, and `InputError` for a run that is too large for the CPU.
    """
    comparison = MemoryComparison()
    for run_settings in settings:
        reason_to_skip = unsupported_reason(spec, run_settings, device)
        if reason_to_skip:
            comparison.skip_reasons[run_settings.phase] = reason_to_skip
            continue
        if device == "cpu":
            _check_cpu_memory(spec, run_settings)
        simulated_bytes, measured_bytes = simulate_run(spec, run_settings), measure_run(spec, run_settings, device)
        comparison.run_descriptions.append(run_text(spec, run_settings))
        comparison.checks += [
            Check("", MEMORY_PREFIX + quantity_name, byte_count, measured_bytes[quantity_name], f"torch on {device}")
            for quantity_name, byte_count in simulated_bytes.items()
        ]
        if run_settings.phase == "training":
            _compare_with_events(spec, run_settings, comparison)
    return comparison


def _compare_with_events(spec: ModelSpec, settings: Settings, comparison: MemoryComparison) -> None:
    """Compares the passes of a short micro-batch with the CPU profiler's events, or notes why that is impossible.

    If the vocabulary has too many bytes for the CPU, the model gets a small one, on which in-place sums do not depend.
    """
    short_settings = replace(settings, seq=min(settings.seq or EVENT_TOKENS, EVENT_TOKENS))
    reason_to_skip = unsupported_reason(spec, short_settings, "cpu")
    if reason_to_skip:
        comparison.skip_reasons[GRADIENT_SUMS_NAME] = reason_to_skip
        return
    training = replay_config(spec, short_settings)
    smaller_spec = spec.model_copy(update={"vocab_size": min(spec.vocab_size, SMALL_VOCABULARY)})
    assert isinstance(training, TrainingConfig)
    training = replace(training, has_master_weights=False)  # the passes read no master weights
    for model_spec in (spec, smaller_spec):
        simulated_bytes = simulate_event_passes(model_spec, training)
        byte_count = simulated_bytes[f"{EVENTS_PREFIX}backward_peak_bytes"] + simulated_bytes.pop(WEIGHTS_QUANTITY)
        if byte_count <= MAX_CPU_BYTES:
            break
    else:
        comparison.skip_reasons[GRADIENT_SUMS_NAME] = (
            f"the CPU alone shows where gradients are added in place, and {byte_count:,} bytes are too many for it; "
            "expected fewer layers (--set num_hidden_layers=1)"
        )
        return
    measured_bytes = measure_event_passes(model_spec, training)
    vocabulary_text = "" if model_spec is spec else f" with a vocabulary of {model_spec.vocab_size:,}"
    comparison.run_descriptions.append(
        f"{GRADIENT_SUMS_NAME} on the CPU on {training.batch} × {training.seq:,} tokens{vocabulary_text}"
    )
    comparison.checks += [
        Check("", MEMORY_PREFIX + simulated_name, quantity_bytes, measured_bytes[simulated_name], "CPU events")
        for simulated_name, quantity_bytes in simulated_bytes.items()
    ]


def simulate_run(spec: ModelSpec, settings: Settings) -> dict[str, int]:
    """Returns the simulated bytes of a run by quantity; the run is not on a GPU."""
    run_setup = replay_config(spec, settings)
    run_setup = replace(run_setup, kernel_choices=replace(run_setup.kernel_choices, multiprocessors=0))
    if isinstance(run_setup, TrainingConfig):
        return simulate_steps(spec, run_setup).bytes_by_name()
    return simulate_pass(spec, run_setup).bytes_by_name(run_setup.phase)


def measure_run(spec: ModelSpec, settings: Settings, device: str) -> dict[str, int]:
    """Returns the bytes of a run of the reference by quantity, measured with torch."""
    run_setup = replay_config(spec, settings)
    if isinstance(run_setup, TrainingConfig):
        return measure_steps(spec, run_setup, device).bytes_by_name()
    return measure_pass(spec, run_setup, device).bytes_by_name(run_setup.phase)


def fill_reference_defaults(settings: Settings) -> Settings:
    """Returns the settings with unset fields filled by the defaults of the PyTorch reference.

    The defaults are the reference's attention, separate matrix products, norms step by step, and the library's default
    for the optimizer's step.
    """
    if not settings.is_serving:
        attention, norm = settings.attn_implementation or "eager", settings.norm or "eager"
        settings = settings.with_changes(attn_implementation=attention, norm=norm, fused_qkv=bool(settings.fused_qkv))
    if settings.phase != "training":
        return settings
    default_implementation = optimizer(settings.optimizer or DEFAULT_OPTIMIZER).implementations[0]
    return settings.with_changes(optimizer_impl=settings.optimizer_impl or default_implementation)


def replay_config(spec: ModelSpec, settings: Settings) -> TrainingConfig | InferenceConfig:
    """Returns the training or inference config of these settings, with the reference's defaults filled in."""
    settings = fill_reference_defaults(settings)
    static_memory = memory(spec, settings).states
    if settings.phase == "training":
        return training_replay_config(settings, spec, static_memory)
    (inference_config,) = inference_configs(settings, spec, static_memory, kernel_choices(settings, spec).attention)
    return inference_config


def run_text(spec: ModelSpec, settings: Settings) -> str:
    """Returns the run of these settings in words."""
    static_memory = memory(spec, settings).states
    tokens_text = f"{static_memory.workload.batch} × {static_memory.workload.seq:,} tokens"
    if settings.phase == "training":
        assert static_memory.optimizer is not None
        number_format = static_memory.precision or static_memory.dtype
        return f"training with {static_memory.optimizer.name} in {number_format} on {tokens_text}"
    return f"prefill of {tokens_text}" if settings.phase == "prefill" else f"decoding one token after {tokens_text}"


def unsupported_reason(spec: ModelSpec, settings: Settings, device: Device) -> str:
    """Returns why a run's memory cannot be measured on the PyTorch reference; empty if it can be measured."""
    recurrent_path = _recurrent_module_path(spec)
    if recurrent_path:
        return f"{recurrent_path} runs kernels of a library, and the reference a loop of its own"
    if settings.phase == "inference":
        return "a server's paged cache is not in the reference; prefill and decode are compared"
    static_memory, run_setup = memory(spec, settings).states, replay_config(spec, settings)
    dropout_points = {} if spec.dropout is None else spec.dropout.probabilities()
    if (
        isinstance(run_setup, TrainingConfig)
        and run_setup.kernel_choices.attention == "sdpa-math"
        and "attention" in dropout_points
    ):
        return "outside of a GPU torch's math of sdpa has no mask of bytes for dropout"
    if device == "cuda" and run_setup.kernel_choices.attention == "flash" and _has_other_value_head_size(spec):
        return "torch's flash attention takes values of the size of keys alone"
    if isinstance(run_setup, InferenceConfig):
        return next(
            reason
            for reason_applies, reason in _inference_skip_reasons(static_memory, run_setup, device)
            if reason_applies
        )
    return next(reason for reason_applies, reason in _training_skip_reasons(run_setup, device) if reason_applies)


def _recurrent_module_path(spec: ModelSpec) -> str:
    """Returns the path of the first module with a recurrent state; empty if there is none.

    An attention layer with a convolution has a state too, and runs as the reference does.
    """
    for positioned_node in spec.tree().walk():
        child_ops = [child_node.op for child_node in positioned_node.node.children]
        if any(isinstance(op, State) for op in child_ops) and not any(
            isinstance(op, AttentionCore) for op in child_ops
        ):
            return positioned_node.path
    return ""


def _has_other_value_head_size(spec: ModelSpec) -> bool:
    """Whether value heads have another size than query and key heads, as in latent attention."""
    attention_ops = [
        positioned_node.node.op
        for positioned_node in spec.tree().walk()
        if isinstance(positioned_node.node.op, AttentionCore)
    ]
    return any(attention_op.qk_dim != attention_op.v_dim for attention_op in attention_ops)


def _inference_skip_reasons(
    static_memory: Any, inference_config: InferenceConfig, device: Device
) -> Iterator[tuple[bool, str]]:
    yield has_storage_format(static_memory), "quantized weights are not in the reference"
    yield inference_config.has_paged_cache, "a paged cache is not in the reference"
    yield from _kernel_skip_reasons(
        inference_config.kernel_choices.attention, inference_config.kernel_choices.norm, device
    )
    yield True, ""


def _training_skip_reasons(training: TrainingConfig, device: Device) -> Iterator[tuple[bool, str]]:
    yield training.kernel_choices.compiled, "an estimate of torch.compile"
    yield training.gradient_dtype is not None, "sums of gradients in a format of their own"
    yield training.state_dtype is not None, "optimizer states in a format of their own"
    optimizer_record = optimizer(training.optimizer)
    yield (
        optimizer_record.build_torch_optimizers is None,
        optimizer_record.reason_not_in_torch or "no optimizer of torch is named in its record",
    )
    yield (
        training.adapters is not None and training.adapters.base_storage != "none",
        "a base in 4 bits needs bitsandbytes",
    )
    yield training.autocast and device == "meta", "torch.autocast does nothing on meta; expected --device cpu"
    yield training.implementation == "fused" and device == "meta", "torch has no fused optimizer on meta"
    yield (
        optimizer_record.depends_on_values and device == "meta",
        f"{optimizer_record.name} reads values; expected --device cpu",
    )
    is_library_loss = training.kernel_choices.cross_entropy in ("fused", "chunked", "flash", "flash-in-place")
    yield is_library_loss and device == "cuda", "the cross-entropy of a library that is not a part of torch"
    yield from _kernel_skip_reasons(training.kernel_choices.attention, training.kernel_choices.norm, device)
    yield True, ""


def _kernel_skip_reasons(attention: str, norm: str, device: Device) -> Iterator[tuple[bool, str]]:
    yield attention == "flash" and device == "cpu", "torch has no flash attention of a GPU on the CPU"
    yield attention == "sdpa" and device != "cuda", "scaled_dot_product_attention runs another backend on a GPU"
    yield norm == "fused" and device == "cpu", "fused norms of the CPU keep other statistics"


def _check_cpu_memory(spec: ModelSpec, settings: Settings) -> None:
    """Raises `InputError` for a run that needs too much CPU memory."""
    byte_count = max(simulate_run(spec, settings).values())
    if byte_count > MAX_CPU_BYTES:
        raise InputError(
            f"--device cpu: --memory: {settings.phase} takes {byte_count:,} bytes, which are too many; expected "
            "--device meta, or fewer layers (--set num_hidden_layers=1)"
        )


# --- quantities -------------------------------------------------------------------------------------------------------


class StepBytes(NamedTuple):
    """The bytes of a training step: peaks of its phases, and bytes at certain times; weights included.

    forward_peak, backward_peak, step_peak: peak of each phase.
    after_step: bytes after the step.
    after_forward: bytes after the last forward pass.
    saved: bytes saved for the last backward pass without weights and inputs; None with recomputation,
        because selective checkpoints are not among torch's saved tensors.
    """

    forward_peak: int
    backward_peak: int
    step_peak: int
    after_step: int
    after_forward: int
    saved: int | None


class TrainingBytes(NamedTuple):
    """The bytes before the first step, in the first and in the second step; for a single step both are equal."""

    set_up: int
    first_step: StepBytes
    second_step: StepBytes

    def bytes_by_name(self) -> dict[str, int]:
        """Returns the bytes by quantity; of the first step only the peak."""
        second_step = self.second_step
        bytes_by_name = {} if second_step.saved is None else {"saved_bytes": second_step.saved}
        return {
            "set_up_bytes": self.set_up,
            **bytes_by_name,
            "live_bytes": second_step.after_forward,
            "forward_peak_bytes": second_step.forward_peak,
            "backward_peak_bytes": second_step.backward_peak,
            "first_step_peak_bytes": self.first_step.step_peak,
            "step_peak_bytes": second_step.step_peak,
            "after_step_bytes": second_step.after_step,
        }


class InferenceBytes(NamedTuple):
    """The bytes of an inference pass, weights and cache included. peak: at the peak. after_pass: after the pass."""

    peak: int
    after_pass: int

    def bytes_by_name(self, phase: str) -> dict[str, int]:
        """Returns the bytes by quantity, such as `prefill_peak_bytes`."""
        return {f"{phase}_peak_bytes": self.peak, f"{phase}_after_bytes": self.after_pass}


# --- the replay -------------------------------------------------------------------------------------------------------


def simulate_steps(spec: ModelSpec, training: TrainingConfig, step_count: int = STEPS) -> TrainingBytes:
    """Simulates training steps, with bytes counted as by a torch dispatch mode. step_count: 1 or 2 (default)."""
    memory_meter = Meter()
    simulated_run = TrainingRun(spec, training, memory_meter=memory_meter)
    simulated_run.graph.adds_in_place = False  # under a dispatch mode torch adds gradients into new tensors
    simulated_run.set_up()
    set_up_bytes, bytes_of_steps = memory_meter.live_bytes, []
    for _ in range(step_count):
        memory_meter.peaks = {}
        live_bytes, saved_bytes = 0, None
        for _ in range(training.microbatches):
            simulated_run.replace_batch()
            loss = simulated_run.forward()
            live_bytes = memory_meter.live_bytes
            saved_bytes = _saved_bytes(simulated_run, loss)
            simulated_run.backward(loss)
            del loss
        simulated_run.update()
        simulated_run.zero_grad()
        bytes_of_steps.append(
            StepBytes(
                **{f"{phase}_peak": peak_bytes for phase, peak_bytes in peaks_by_phase(memory_meter).items()},
                after_step=memory_meter.live_bytes,
                after_forward=live_bytes,
                saved=saved_bytes,
            )
        )
    return TrainingBytes(set_up_bytes, bytes_of_steps[0], bytes_of_steps[-1])


def simulate_event_passes(spec: ModelSpec, training: TrainingConfig) -> dict[str, int]:
    """Returns the simulated bytes of a micro-batch's passes by quantity, without the weights.

    The bytes are those that the CPU profiler's events show, without an active `TorchDispatchMode`.
    """
    memory_meter, gradient_sums = Meter(), GradientSums()
    training_run = TrainingRun(spec, training, memory_meter=memory_meter)

    def add_sum(byte_count: Number, is_in_place: bool) -> None:
        nonlocal gradient_sums
        gradient_sums = gradient_sums.with_addition(byte_count, is_in_place)

    training_run.set_up()
    weight_bytes = memory_meter.by_kind["weights"]
    training_run.replace_batch()
    training_run.graph.gradient_sum_hook = add_sum
    bytes_before = memory_meter.live_bytes - sum(tensor.storage.bytes for tensor in _input_tensors(training_run))
    memory_meter.peaks = {}
    training_run.replace_batch()
    micro_batch_loss = training_run.forward()
    live_bytes = memory_meter.live_bytes - bytes_before
    training_run.backward(micro_batch_loss)
    peaks_of_phases = peaks_by_phase(memory_meter)
    pass_bytes = PassBytes(
        live_bytes, peaks_of_phases["forward"] - bytes_before, peaks_of_phases["backward"] - bytes_before
    )
    return _event_bytes_by_quantity(pass_bytes, gradient_sums) | {WEIGHTS_QUANTITY: weight_bytes}


def _input_tensors(training_run: TrainingRun) -> list[Any]:
    """Returns the input tensors of a training batch, one per storage."""
    tensors_by_storage = {
        id(tensor.storage): tensor
        for tensor in (*training_run.lowering.inputs.values(), training_run.labels)
        if tensor is not None
    }
    return list(tensors_by_storage.values())


def _event_bytes_by_quantity(pass_bytes: PassBytes, gradient_sums: GradientSums) -> dict[str, int]:
    return {
        f"{EVENTS_PREFIX}live_bytes": pass_bytes.live_after_forward,
        f"{EVENTS_PREFIX}forward_peak_bytes": pass_bytes.forward_peak,
        f"{EVENTS_PREFIX}backward_peak_bytes": pass_bytes.backward_peak,
        f"{EVENTS_PREFIX}sums_in_place_bytes": gradient_sums.in_place_bytes,
        f"{EVENTS_PREFIX}sums_out_of_place_bytes": gradient_sums.out_of_place_bytes,
    }


def _saved_bytes(training_run: TrainingRun, loss: Any) -> int | None:
    """Returns the bytes saved in the autograd graph of a loss, without weights and inputs; None with recomputation."""
    if (
        training_run.training_config.recompute is not NO_RECOMPUTATION
        or training_run.training_config.kernel_choices.cross_entropy == "recomputed"
    ):
        return None
    input_storages = {id(tensor.storage) for tensor in _input_tensors(training_run)}
    storages = [
        tensor_storage
        for tensor_storage in saved_storages(loss)
        if tensor_storage.block.kind != "weights" and id(tensor_storage) not in input_storages
    ]
    saved_total: int = sum(tensor_storage.bytes for tensor_storage in storages)
    return saved_total


def simulate_pass(spec: ModelSpec, inference_config: InferenceConfig) -> InferenceBytes:
    """Simulates the memory of a prefill or of a decoding step."""
    inference_replay = replay_inference(spec, inference_config)
    return InferenceBytes(inference_replay.peak[1].bytes, inference_replay.final_bytes)


# --- torch ------------------------------------------------------------------------------------------------------------


class CpuStorageTracker(StorageTracker):
    """Tracks storages except optimizers' step counters, which are on the host if the model is on a GPU.

    set_up: whether the model is built; scalars that are created before are tracked.
    """

    set_up = False

    def _track_tensor(self, tensor: Tensor, function: Any) -> None:
        if self.set_up and function is torch.ops.aten.lift_fresh.default and not tensor.dim():
            storage = tensor.untyped_storage()
            self.tracked.add(storage._cdata)
            weakref.finalize(storage, self.tracked.discard, storage._cdata)
        else:
            super()._track_tensor(tensor, function)


def measure_steps(spec: ModelSpec, training: TrainingConfig, device: str, step_count: int = STEPS) -> TrainingBytes:
    """Measures the memory of training steps of the reference. step_count: as in `simulate_steps`."""
    uses_cpu_tracker = device == "cpu" and training.implementation != "fused"
    tracker = (CpuStorageTracker if uses_cpu_tracker else StorageTracker)(device=device)
    peaks_by_quantity: dict[str, int] = {}
    results_after_forward: dict[str, Any] = {}

    def record_phase(phase: str, loss: Tensor | None) -> None:
        quantity_name = f"{phase}_peak"
        peaks_by_quantity[quantity_name] = max(peaks_by_quantity.get(quantity_name, 0), tracker.peak)
        tracker.peak = tracker.now
        if loss is not None:
            outside_storages = {tensor.untyped_storage()._cdata for tensor in training_loop.outside_tensors}
            results_after_forward["saved"] = (
                None if training.recompute is not NO_RECOMPUTATION else saved_bytes(loss, outside_storages, device)
            )
            results_after_forward["after_forward"] = tracker.now

    with ShapeCache(), tracker:
        training_loop = TrainingLoop(spec, training, device)
        tracker.track_tensors((*training_loop.module.parameters(), *training_loop.module.buffers()))
        set_up_bytes, bytes_of_steps = tracker.now, []
        if isinstance(tracker, CpuStorageTracker):
            tracker.set_up = True
        for _ in range(step_count):
            peaks_by_quantity.clear()
            tracker.peak = tracker.now
            training_loop.run_step(record_phase)
            bytes_of_steps.append(StepBytes(**peaks_by_quantity, after_step=tracker.now, **results_after_forward))
    return TrainingBytes(set_up_bytes, bytes_of_steps[0], bytes_of_steps[-1])


def measure_event_passes(spec: ModelSpec, training: TrainingConfig) -> dict[str, int]:
    """Returns the bytes of a micro-batch's passes on the CPU by quantity, measured from the profiler's events."""
    with SkipInitialization():
        training_loop = TrainingLoop(spec, training, "cpu")
    training_loop.create_tokens()
    with torch.no_grad(), kernel_variants.kernel_context(training.kernel_choices):
        training_loop.compute_loss()  # creates objects that are created once
    with (
        discard_profiler_log(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as profiler,
        ExitStack() as phase_context,
    ):
        phase_context.enter_context(record_function(FORWARD_PASS))

        def record_phase(phase: str, loss: Tensor | None) -> None:
            phase_context.close()
            if phase == "forward":
                phase_context.enter_context(record_function(BACKWARD_PASS))

        training_loop.run_micro_batch(record_phase)
    cpu_events = read_events(profiler)
    return _event_bytes_by_quantity(cpu_events.pass_bytes(), cpu_events.gradient_sums)


def measure_pass(spec: ModelSpec, inference_config: InferenceConfig, device: str) -> InferenceBytes:
    """Measures the memory of a prefill of the reference, or of a decoding step after a prompt."""
    tracker = StorageTracker(device=device)
    with ShapeCache():
        cache_tensors = cache_shapes(spec, inference_config) if inference_config.phase == "decode" else {}
    with ShapeCache(), tracker:
        inference_configs = InferencePasses(spec, inference_config, device)
        tracker.track_tensors((*inference_configs.module.parameters(), *inference_configs.module.buffers()))
        if inference_config.phase == "decode":
            inference_configs.create_cache(cache_tensors)
        tracker.peak = tracker.now
        (inference_configs.run_decode if inference_config.phase == "decode" else inference_configs.run_prefill)()
        return InferenceBytes(tracker.peak, tracker.now)
