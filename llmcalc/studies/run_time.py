"""The seconds of a training step, a prompt or a decoded token, for given settings, layout and accelerator.

`llmcalc time` answers one run with this, `llmcalc plan` orders layouts by it, so that both give the same seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace

from ..accelerator import Hardware
from ..algebra import Number
from ..costs.cache_formats import cache_bits_cost, cache_format
from ..costs.trained_tensors import trained_tensors
from ..device_memory.estimate import Memory
from ..device_memory.optimizers.registry import optimizer
from ..device_memory.settings import PRODUCT_FORMAT_BY_PRECISION
from ..device_memory.simulated_run import supports_sdpa
from ..device_memory.static import GRADIENT_FORMATS
from ..errors import InputError
from ..flow.module_names import config_fields
from ..frozen import frozen
from ..parallel.layout import Layout, Schedule
from ..parallel.rank_program import check_exchanged_heads
from ..simulator.versions import is_older_version
from ..timing.calibration import UNIT_FACTORS, CalibrationFactors
from ..timing.device import Device, device_of
from ..timing.inference import InferencePass, decode, prefill
from ..timing.kernels import Adapters, RankWork
from ..timing.software_stacks import (
    find_stack,
    stack_of_vendor,
    with_16_bit_adapters,
    with_attention,
    with_cudnn_attention,
    with_gradient_buffers,
    with_loss,
    with_norms,
    with_optimizer,
    with_overlap,
    with_overlapped_groups,
    with_schedule,
)
from ..timing.step import StepPlan, StepTime, StepTimer, host_wait
from ..timing.time_estimator import QUANTIZED_FORMAT, NumberFormats, TimedOperation, TimedPass
from ..timing.time_ranges import TimeRange, expected_range, untested_layout_text
from ..timing.timing_constants import SoftwareStack
from ..units import DTYPE_BITS, short_dtype
from ..workload.execution import CrossEntropy
from ..workload.lora import stored_bytes
from ..workload.recompute import NO_RECOMPUTATION, Recompute
from ..workload.run_config import RunConfig
from ..workload.workload import Workload
from .timed_run import TimedRun, TimePhase
from .unpriced_options import is_stepwise_adamw, unpriced_options

SCHEME_FORMATS = (("fp8", "fp8"), ("w8a8", "int8"), ("nvfp4", "fp4"), ("mxfp4", "fp4"))
"""(prefix of a quantization scheme's label, number format of its matrix products); other schemes decode to 16 bits."""

DTYPE_FORMATS = {"float32": "fp32", "float8": "fp8", "int8": "int8", "float4": "fp4"}
"""Number format of weights → format of their matrix products; `bf16` for 16-bit formats."""


def missing_units_error(precision: str, dtype: str, hardware: Hardware) -> InputError:
    """Returns the error for training in a precision for which the accelerator has no matrix units."""
    sixteen_bit_option = "no --precision, which is fp16 there," if hardware.has_only_float16_peak else "bf16-master"
    return InputError(
        f"--precision {precision}: {hardware.name} has no {dtype} units; expected {sixteen_bit_option} or another "
        "--hardware"
    )


UNMEASURED_SCHEDULES = "zb-h1", "dualpipe"
"""Pipeline schedules that no measured run has."""

BLACKWELL_CAPABILITY = 10.0
"""NVIDIA's first compute capability whose units multiply numbers with a scale per 32 elements (mxfp8)."""

LARGE_WEIGHT_ELEMENTS = 2**24
"""Elements of an example weight matrix from which a scheme's bits per element, with scales, are computed."""

SELECTIVE_RECOMPUTE_SHARE = 0.5
"""Fraction of a layer's forward pass that runs again if checkpointing keeps some of its products."""


@frozen
class TimeSettings:
    """The settings of a time estimate that the memory settings do not have.

    stack: name of the stack.
    overlap: messages that run beside products: none, all, or some of dp, tp and ep with commas; None for the stack's.
    nic: bytes/s of a device's network; None for the accelerator's.
    product_format: number format of products in training; empty for that of the precision.
    overlapped_parallel_groups: groups whose messages a launch file sends beside products; None for those of the stack.
    unpriced_settings: what a launch file or an option sets that changes a step and that the time ignores.
    calls_torch_attention: whether the program of a launch file calls torch's attention, which its settings name
        `flash`.
    loss: the value of `--cross-entropy` of a run that states none; None (default) for the stack's own.
    recomputed_modules: modules that a launch file runs again by themselves, of `NAMED_MODULES`; default none.
    recomputed_layers: share of the layers that it runs again as a whole; default none.
    factors: of a calibration; default none.
    """

    stack: str
    overlap: str | None = None
    nic: float | None = None
    product_format: str = ""
    factors: CalibrationFactors = UNIT_FACTORS
    overlapped_parallel_groups: frozenset[str] | None = None
    unpriced_settings: tuple[str, ...] = ()
    calls_torch_attention: bool = False
    loss: CrossEntropy | None = None
    recomputed_modules: frozenset[str] = frozenset()
    recomputed_layers: float = 0.0

    def device(self, hardware: Hardware) -> Device:
        return self.factors.scale_device(device_of(hardware, self.nic))

    def supporting_stack(self, phase: TimePhase) -> SoftwareStack:
        """Returns the named software stack. Raises `InputError` for one that cannot run the phase."""
        software_stack = find_stack(self.stack, "training" if phase == "training" else "inference")
        software_stack = with_overlapped_groups(software_stack, self.overlapped_parallel_groups)
        return self.factors.scale_stack(with_overlap(software_stack, self.overlap))


PREFERS_CUDNN_SINCE = (2, 11)
"""First version of torch whose scaled_dot_product_attention prefers cuDNN's kernel on compute capabilities 9 and 10.

Its code does so for cuDNN above 9.15.0 (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp,
check_prefer_cudnn_attention), which wheels have since 2.11 (github.com/huggingface/transformers/pull/48163). Kernels of
torch 2.11 on an H100 (tests/data/gpu) reach the generation's rate, 1.6 times that of FlashAttention-2.
"""

CUDNN_CAPABILITIES = "9.", "10."
"""Prefixes of the compute capabilities on which torch prefers cuDNN's attention."""


def _with_attention_of_run(
    software_stack: SoftwareStack, model_memory: Memory, hardware: Hardware, calls_torch: bool = False
) -> SoftwareStack:
    """Returns a software stack with the run's attention implementation; the default is transformers' default.

    Torch's own attention runs the kernel that the run's version of torch prefers on the accelerator. calls_torch:
    whether `flash` is torch's own.
    """
    run_settings = model_memory.settings
    implementation = run_settings.attn_implementation
    if implementation is None and software_stack.reads_window_masks and not supports_sdpa(model_memory.spec):
        implementation = "eager"
    prefers_cudnn = (hardware.compute_capability or "").startswith(CUDNN_CAPABILITIES)
    is_torch_attention = implementation in (None, "sdpa") or (calls_torch and implementation == "flash")
    if is_torch_attention and prefers_cudnn and not is_older_version(run_settings.torch or "", PREFERS_CUDNN_SINCE):
        software_stack = with_cudnn_attention(software_stack)
    return with_attention(software_stack, implementation)


class TrainingTimes:
    """The seconds of training steps of one model in many layouts, which share the results for equal ranks."""

    def __init__(self, model_memory: Memory, hardware: Hardware, time_settings: TimeSettings) -> None:
        self.adapters: Adapters | None = _adapters_of_run(model_memory)
        self.memory: Memory = model_memory
        self.hardware: Hardware = hardware
        self.settings: TimeSettings = time_settings
        self.device: Device = time_settings.device(hardware)
        software_stack = _with_attention_of_run(
            time_settings.supporting_stack("training"), model_memory, hardware, time_settings.calls_torch_attention
        )
        software_stack = with_gradient_buffers(software_stack, _gradient_buffer_bytes(model_memory))
        software_stack = with_norms(software_stack, model_memory.settings.norm)
        software_stack = with_loss(software_stack, model_memory.settings.cross_entropy or time_settings.loss)
        if self.adapters is not None and DTYPE_BITS[model_memory.states.adapter_dtype] == 16:
            software_stack = with_16_bit_adapters(software_stack)
        updates_on_host = bool(model_memory.settings.optimizer_offload)
        self.assumes_host_update: bool = updates_on_host and not software_stack.host_update_seconds_per_parameter
        self.stack: SoftwareStack = with_optimizer(
            software_stack, *_optimizer_bytes_and_flops(model_memory), updates_on_host, is_stepwise_adamw(model_memory)
        )
        self._set_timers()
        self.recompute: Recompute = model_memory.settings.recompute_choice()
        _refuse_wide_products(model_memory)
        if model_memory.settings.fake_quantize is not None:
            raise InputError("--fake-quantize: the time of rounding is not modelled; expected none")
        self.dtype: str = time_settings.product_format or _training_format(model_memory)
        if self.dtype in PRODUCT_FORMAT_BY_PRECISION.values() and self.device.format_of(self.dtype) != self.dtype:
            raise missing_units_error(model_memory.settings.precision or self.dtype, self.dtype, hardware)
        if (
            model_memory.settings.precision == "mxfp8"
            and float(hardware.compute_capability or BLACKWELL_CAPABILITY) < BLACKWELL_CAPABILITY
        ):
            raise InputError(
                f"--precision mxfp8: {hardware.name} (compute capability {hardware.compute_capability}) has no units "
                "for products with a scale per 32 elements; expected fp8, bf16-master or another --hardware"
            )

    def _set_timers(self) -> None:
        spec, fastest_stack = self.memory.spec, self.stack.on_fastest_host
        self.step_timer: StepTimer = StepTimer(spec, self.device, self.stack)
        self.fast_host_timer: StepTimer | None = (
            None if fastest_stack is None else StepTimer(spec, self.device, fastest_stack)
        )

    def with_memory(self, memory: Memory) -> TrainingTimes:
        """Returns the time estimates of the same model with another recomputation setting."""
        other_times = copy(self)
        other_times.memory = memory
        other_times.recompute = memory.settings.recompute_choice()
        return other_times

    def with_schedule(self, schedule: Schedule) -> TrainingTimes:
        """Returns the time estimates with the messages that a pipeline schedule hides, unless `--overlap` is given."""
        software_stack = self.stack if self.settings.overlap is not None else with_schedule(self.stack, schedule)
        if software_stack is self.stack:
            return self
        scheduled_times = copy(self)
        scheduled_times.stack = software_stack
        scheduled_times._set_timers()
        return scheduled_times

    @property
    def unpriced_options(self) -> list[str]:
        """The run's options whose effect on kernels is missing from the time estimate."""
        return [*unpriced_options(self.memory, self.stack), *self.settings.unpriced_settings]

    def _ignored_overlap(self, layout: Layout) -> list[str]:
        """Returns the typed overlap of tensor-parallel messages if it has no effect without sequence parallelism."""
        overlapped_parallel_groups = (self.settings.overlap or "").split(",")
        is_ignored = layout.tp > 1 and not layout.sequence_parallel and not self.stack.hides_all_reduces
        return (
            ["--overlap tp (it needs --sequence-parallel)"] if "tp" in overlapped_parallel_groups and is_ignored else []
        )

    @property
    def _stops_early(self) -> bool:
        """Whether a recomputed layer stops running after the last tensor that the backward pass needs."""
        return self.stack.stops_early and not self.recompute.reentrant and not self.recompute.saved_operations

    def step_plan(self, layout: Layout, micro_batches: int) -> StepPlan:
        """Returns the `StepPlan` of a layout: batch, micro-batches, length and recomputation."""
        workload, included_parts = self.memory.states.workload, self.memory.states.parameter_count.include
        is_stated_by_file = self.recompute == NO_RECOMPUTATION  # else an option says what runs again
        return StepPlan.from_layout(
            layout,
            int(workload.batch),
            micro_batches,
            int(workload.seq),
            dtype=self.dtype,
            recomputed_share=self.settings.recomputed_layers if is_stated_by_file else recomputed_share(self.recompute),
            recomputes_attention=self.recompute.core,
            recomputed_nodes=self.recompute.nodes,
            recomputed_modules=self.settings.recomputed_modules if is_stated_by_file else self.recompute.modules,
            stops_early=self._stops_early,
            included_parts=included_parts,
            adapters=self.adapters,
        )

    def step_time(self, layout: Layout, micro_batches: int) -> StepTime:
        """Returns the estimated training step. Raises `InputError` for a layout that is not modelled."""
        return self.step_timer.step(self.step_plan(layout, micro_batches))

    def seconds_on(self, software_stack: SoftwareStack, layout: Layout, micro_batches: int) -> float:
        """Returns the seconds of a layout's step under another software stack."""
        step_timer = StepTimer(self.memory.spec, self.device, software_stack)
        return float(step_timer.step(self.step_plan(layout, micro_batches)).seconds)

    def time_range(self, seconds: float, layout: Layout, micro_batches: int) -> TimeRange:
        """Returns the range of a layout's estimated step time, in seconds.

        The low end is for the fastest measured host. Schedules, and pairs of stack and accelerator, that were never
        measured have the widest range.
        """
        vendor_stack_name = stack_of_vendor(self.hardware.vendor, "training")
        untested_reason = f"the schedule {layout.schedule}" if layout.schedule in UNMEASURED_SCHEDULES else ""
        if vendor_stack_name not in ("", self.stack.name):
            untested_reason = f"{self.hardware.title} devices"
        if self.assumes_host_update:
            untested_reason = "an optimizer on the host"
        fast_host_seconds = None
        if self.fast_host_timer is not None:
            fast_host_seconds = self.fast_host_timer.step(self.step_plan(layout, micro_batches)).seconds
        return expected_range(
            seconds,
            "training",
            self.device,
            self.stack,
            self.memory.spec,
            untested_reason,
            fast_host_seconds=fast_host_seconds,
        )

    def timed_run(self, layout: Layout, micro_batches: int) -> TimedRun:
        """Returns the `TimedRun` of a layout, with all parts of its step."""
        check_exchanged_heads(self.memory.spec, layout)
        step_plan, timed_step = self.step_plan(layout, micro_batches), self.step_time(layout, micro_batches)
        timed_pass = timed_step.timed_pass
        part_seconds = {part_name: float(seconds) for part_name, seconds in timed_step.seconds_by_part.items()}
        repeated_operations = [
            (self._run_count(timed_pass, step_plan, operation), operation) for operation in timed_pass.operations
        ]
        wait_seconds = self._layer_wait_seconds(timed_pass, step_plan)
        host_wait_seconds = self._host_wait_seconds(timed_pass, step_plan)
        seconds_scale = part_seconds["work"] / (
            sum(run_count * operation.seconds for run_count, operation in repeated_operations)
            + wait_seconds
            + host_wait_seconds
        )
        seconds_by_part = part_seconds | ({"layer waits": wait_seconds * seconds_scale} if wait_seconds else {})
        return TimedRun(
            self.memory.spec,
            "training",
            self.hardware,
            self.device,
            self.stack,
            layout,
            layout.dp * step_plan.micro_batch * micro_batches,
            int(step_plan.seq),
            0,
            NumberFormats(step_plan.dtype),
            step_plan,
            self.time_range(float(timed_step.seconds), layout, micro_batches),
            seconds_by_part,
            tuple((float(run_count * seconds_scale), operation) for run_count, operation in repeated_operations),
            host_wait_seconds=host_wait_seconds * seconds_scale,
            engine_notes=() if self.memory.states.adapters is None else self.memory.states.adapters.notes(),
            included_parts=step_plan.included_parts,
            unpriced_options=(*self.unpriced_options, *self._ignored_overlap(layout)),
            seconds_of_alternatives=dict(self._slower_settings(layout, micro_batches)),
            estimate_seconds_on=lambda device, stack: float(
                StepTimer(self.memory.spec, device, stack).step(step_plan).seconds
            ),
        )

    @staticmethod
    def _run_count(timed_pass: TimedPass, step_plan: StepPlan, operation: TimedOperation) -> float:
        """Returns the number of runs of a kernel in one micro-batch: one per layer, and more if it is recomputed."""
        run_count = 1.0
        if not operation.is_backward and operation.layer_kind_index >= 0:
            is_skipped = step_plan.stops_early and operation.ends_layer
            run_count += step_plan.recomputed_share * (not is_skipped) + step_plan.recomputes(operation, timed_pass)
        return float(
            operation.runs_per_layer * timed_pass.rank_work.layer_count(operation.layer_kind_index) * run_count
        )

    def _layer_wait_seconds(self, timed_pass: TimedPass, step_plan: StepPlan) -> float:
        if step_plan.tp == 1:
            return 0.0
        pass_work = timed_pass.rank_work
        layer_count = sum(pass_work.layer_count(layer_index) for layer_index in range(len(pass_work.layer_kinds)))
        return self.stack.layer_wait_seconds * layer_count * (2 + step_plan.recomputed_share)

    def _host_wait_seconds(self, timed_pass: TimedPass, step_plan: StepPlan) -> float:
        """Returns the seconds in which the device waits for kernel launches in a micro-batch through all layers."""
        host_wait_seconds = 0.0
        repeated_modules = step_plan.repeated_modules(timed_pass)
        for layer_index in range(len(timed_pass.rank_work.layer_kinds)):
            skipped_seconds = timed_pass.ending_seconds(layer_index) if step_plan.stops_early else 0.0
            for timed_kernels, is_backward, run_count, skipped_layer_seconds in (
                (timed_pass, False, 1.0, 0.0),
                (timed_pass, False, step_plan.recomputed_share, skipped_seconds),
                (repeated_modules, False, 1.0, 0.0),
                (timed_pass, True, 1.0, 0.0),
            ):
                kernel_seconds = (
                    timed_kernels.layer_seconds(layer_index, is_backward=is_backward) - skipped_layer_seconds
                )
                wait_seconds = host_wait(timed_kernels, self.stack, layer_index, is_backward, kernel_seconds)
                host_wait_seconds += float(timed_pass.rank_work.layer_count(layer_index) * run_count * wait_seconds)
        return host_wait_seconds

    def _slower_settings(self, layout: Layout, micro_batches: int) -> Iterator[tuple[str, float]]:
        """Yields settings that often slow down runs, each with the seconds that the step would take."""
        step_plan, spec = self.step_plan(layout, micro_batches), self.memory.spec
        device, software_stack = self.device, self.stack
        older_stack = software_stack.model_copy(update={"attention": "fa2"})
        unfused_stack = software_stack.model_copy(
            update={"fuses_elementwise": False, "accesses_by_verb": {"norm": 3.0, "rope": 3.0}}
        )
        slower_settings: list[tuple[str, Device, SoftwareStack, StepPlan]] = [
            ("no overlap of messages (--overlap none)", device, with_overlap(software_stack, "none"), step_plan),
            ("attention of an older kernel", device, older_stack, step_plan),
            (
                "every layer recomputed (--recompute full)",
                device,
                software_stack,
                replace(step_plan, recomputed_share=1.0),
            ),
            ("eager kernels without fusion", device, unfused_stack, step_plan),
        ]
        if layout.world_size > device.domain_devices:
            slower_settings.append(
                (
                    "half of the network (--nic)",
                    replace(device, network_bandwidth=device.network_bandwidth / 2),
                    software_stack,
                    step_plan,
                )
            )
        for settings_text, device, software_stack, changed_plan in slower_settings:
            yield settings_text, float(StepTimer(spec, device, software_stack).step(changed_plan).seconds)


def recomputed_share(recompute: Recompute) -> float:
    """Returns the fraction of layers whose whole forward pass is recomputed."""
    return (SELECTIVE_RECOMPUTE_SHARE if recompute.saved_operations else 1.0) * recompute.recomputed_layer_fraction


def _gradient_buffer_bytes(model_memory: Memory) -> float | None:
    """Returns the bytes per element of the gradient buffers; None if the run does not state them.

    Raises `InputError` for a number format in which no framework sums gradients.
    """
    if model_memory.settings.grad_dtype is None:
        return None
    if model_memory.states.grad_dtype not in GRADIENT_FORMATS:
        raise InputError(
            f"--grad-dtype {short_dtype(model_memory.states.grad_dtype)}: the time of gradients in this format is not "
            "modelled; expected fp32, bf16 or fp16"
        )
    return DTYPE_BITS[model_memory.states.grad_dtype] / 8


def _optimizer_bytes_and_flops(memory: Memory) -> tuple[float, float]:
    """Returns, per trained parameter, the bytes of optimizer states and the FLOPs of the optimizer's products."""
    memory_use = memory.states
    assert memory_use.optimizer is not None
    product_flops, parameter_count = optimizer(memory_use.optimizer.name).product_flops, memory_use.parameter_count
    flops_per_parameter: Number = 0
    if product_flops is not None and memory_use.adapters is None:
        flops_per_parameter = product_flops(list(trained_tensors(parameter_count.tree, parameter_count.include)))
    state_sizes = memory_use.optimizer.states.items()
    state_bytes = sum(
        element_bytes for state_name, element_bytes in state_sizes if state_name != "step"
    )  # step: one number per tensor
    return float(state_bytes / memory_use.trained_parameters), float(
        flops_per_parameter / memory_use.trained_parameters
    )


def _adapters_of_run(model_memory: Memory) -> Adapters | None:
    """Returns the low-rank adapters of a run. Raises `InputError` for adapters whose time is not modelled."""
    run_adapters = model_memory.states.adapters
    if run_adapters is None:
        return None
    if run_adapters.base_format == "int8":
        raise InputError("--base int8: its time is not modelled; expected --base nf4, nf4-dq or none")
    if run_adapters.base_format != "none" and not model_memory.settings.has_kbit_base:
        raise InputError(
            f"--lora-library {run_adapters.library}: the time of adapters beside its --base "
            f"{run_adapters.base_format} is not modelled; expected --lora-library peft, or --base none"
        )
    if run_adapters.trained_modules:
        module_names_text = ",".join(sorted(run_adapters.trained_modules))
        raise InputError(
            f"--modules-to-save {module_names_text}: the time of trained copies is not modelled; expected none"
        )
    if run_adapters.has_dora_magnitudes:
        raise InputError("--use-dora: the time of the norms of whole rows is not modelled; expected none")
    is_in_4_bits = run_adapters.base_format != "none"
    bits_per_element = 0.0
    if is_in_4_bits:
        bits_per_element = 8 * stored_bytes(run_adapters.base_format, 1, LARGE_WEIGHT_ELEMENTS) / LARGE_WEIGHT_ELEMENTS
    return Adapters(
        run_adapters.rank,
        run_adapters.target_names,
        float(bits_per_element),
        base_inputs_are_fp32=is_in_4_bits and model_memory.states.dtype == "float32",
        quantized_experts=is_in_4_bits and run_adapters.quantized_experts,
    )


def _refuse_wide_products(model_memory: Memory) -> None:
    """Raises `InputError` for 64-bit weights, for whose matrix products no efficiency was measured."""
    if model_memory.states.dtype == "float64":
        raise InputError("--dtype fp64: the time of products in 64 bits is not modelled; expected fp32, bf16 or fp16")


def _training_format(model_memory: Memory) -> str:
    """Returns the number format of matrix products in training; under autocast a 16-bit format."""
    precision = model_memory.settings.precision or ""
    if precision in PRODUCT_FORMAT_BY_PRECISION:
        return PRODUCT_FORMAT_BY_PRECISION[precision]
    return "fp32" if model_memory.states.precision == "fp32" or model_memory.settings.precision == "fp32" else "bf16"


def inference_formats(model_memory: Memory, cached_tokens: int) -> NumberFormats:
    """Returns the number formats of an inference run. cached_tokens: tokens per sequence in the cache.

    Raises `InputError` for weights in 64 bits.
    """
    _refuse_wide_products(model_memory)
    memory_use, cache_bits = model_memory.states, _cache_bits(model_memory, cached_tokens)
    quantized_weights = memory_use.quantized_size
    if quantized_weights is None:
        product_format = DTYPE_FORMATS.get(memory_use.dtype, "bf16")
        return NumberFormats(
            product_format, float(8 * memory_use.weights / memory_use.parameter_count.total), cache_bits
        )
    scheme_label = quantized_weights.scheme.label
    product_format = next(
        (format_name for scheme_prefix, format_name in SCHEME_FORMATS if scheme_label.startswith(scheme_prefix)),
        QUANTIZED_FORMAT,
    )
    elements_by_component = memory_use.parameter_count.by_component
    head_kinds = [component for component in ("lm_head", "embedding") if component in elements_by_component]
    layer_bits, *head_bits = (
        float(
            8
            * sum(quantized_weights.by_component[component_kind].total for component_kind in component_kinds)
            / sum(elements_by_component[component_kind] for component_kind in component_kinds)
        )
        for component_kinds in (
            [head_kind for head_kind in elements_by_component if head_kind not in ("lm_head", "embedding")],
            head_kinds[:1],
        )
        if component_kinds
    )
    has_block_scales = quantized_weights.scheme.has_square_blocks
    return NumberFormats(product_format, layer_bits, cache_bits, next(iter(head_bits), None), has_block_scales)


def _cache_bits(model_memory: Memory, cached_tokens: int) -> float:
    """Returns the bits per cached element, including its share of the scales."""
    if not model_memory.states.kv_dtype:
        return 16.0
    run_config, model_tree = RunConfig(Workload(1, cached_tokens)), model_memory.states.parameter_count.tree
    cached_format = cache_format(model_memory.states.kv_dtype)
    bits_per_element, bits_in_16_bit_format = (
        model_tree.total(cache_bits_cost(stored_format), run_config)
        for stored_format in (cached_format, cache_format("bfloat16"))
    )
    return float(16 * bits_per_element / bits_in_16_bit_format) if bits_in_16_bit_format else 16.0


def time_training(
    model_memory: Memory, hardware: Hardware, layout: Layout, micro_batches: int, time_settings: TimeSettings
) -> TimedRun:
    """Returns the `TimedRun` of a training step. Raises `InputError` for a run that is not modelled."""
    return (
        TrainingTimes(model_memory, hardware, time_settings)
        .with_schedule(layout.schedule)
        .timed_run(layout, micro_batches)
    )


def with_format_of_stack(model_memory: Memory, software_stack: SoftwareStack) -> Memory:
    """Returns an inference run with weights in the software stack's format, unless the user states a format.

    The format is 16 bits if the stack halves weights published in float32, and the stack's own scheme for weights
    published in 4 bits. GGUF files keep the published format (ollama issue 16416).
    """
    run_settings = model_memory.settings
    if run_settings.dtype is not None:
        return model_memory
    if software_stack.runs_float32_in_16_bits and model_memory.published_dtype == "float32":
        return model_memory.with_changes(dtype="bfloat16")
    converts_weights = (
        software_stack.four_bit_scheme is not None
        and DTYPE_BITS[model_memory.published_dtype] == 4
        and not run_settings.quantize
        and not model_memory.names_gguf_file
    )
    return model_memory.with_changes(quantize=software_stack.four_bit_scheme) if converts_weights else model_memory


def time_inference(
    model_memory: Memory,
    hardware: Hardware,
    layout: Layout,
    time_settings: TimeSettings,
    context_tokens: int = 0,
    has_server_delay: bool = False,
) -> TimedRun:
    """Returns the `TimedRun` of a batch of prompts, or of decoding one token per sequence.

    context_tokens: in prefill, tokens of each sequence that are cached before the prompt.
    has_server_delay: whether the time of a server before the first token is added.
    Raises `InputError` for a phase without a time.
    """
    phase, spec = model_memory.settings.phase, model_memory.spec
    if spec.model_without_tokens and phase == "decode":
        raise InputError(f"--phase decode: {spec.model_without_tokens} does not decode; expected prefill or training")
    time_phase: TimePhase = "decode" if phase == "decode" else "prefill"
    supporting_stack = time_settings.supporting_stack(time_phase)
    model_memory = with_format_of_stack(model_memory, supporting_stack)
    if supporting_stack.runs_layers_on_host:
        from ..frameworks.ggml.windows import without_ignored_windows

        spec = without_ignored_windows(spec, config_fields(model_memory.model_config))
    device, workload = time_settings.device(hardware), model_memory.states.workload
    batch, seq = int(workload.batch), int(workload.seq)
    replica_layout = replace(layout, dp=1) if layout.dp > 1 and layout.ep == 1 else layout
    total_tokens = seq if phase == "decode" else seq + context_tokens
    number_formats, chunk_tokens = inference_formats(model_memory, total_tokens), model_memory.settings.chunk
    run_formats = number_formats.formats_on(device)

    def pass_on(device: Device, software_stack: SoftwareStack) -> InferencePass:
        if phase == "decode":
            return decode(spec, device, software_stack, batch, seq, replica_layout, run_formats)
        return prefill(
            spec,
            device,
            software_stack,
            batch,
            seq,
            context_tokens,
            chunk_tokens,
            replica_layout,
            run_formats,
            has_server_delay,
        )

    software_stack = _with_attention_of_run(supporting_stack, model_memory, hardware)
    inference_pass = pass_on(device, software_stack)
    timed_operations = tuple(
        (float(operation.runs_per_layer * timed_pass.rank_work.layer_count(operation.layer_kind_index)), operation)
        for timed_pass in inference_pass.timed_passes
        for operation in timed_pass.operations
    )
    part_seconds = {part_name: float(seconds) for part_name, seconds in inference_pass.seconds_by_part.items()}
    kernel_seconds = sum(run_count * operation.seconds for run_count, operation in timed_operations)
    new_tokens, cached_tokens = (1, seq) if phase == "decode" else (seq, context_tokens)
    untested_reason = untested_layout_text(software_stack, layout)
    return TimedRun(
        spec,
        time_phase,
        hardware,
        device,
        software_stack,
        layout,
        batch * layout.dp,
        new_tokens,
        cached_tokens,
        number_formats,
        None,
        expected_range(float(inference_pass.seconds), time_phase, device, software_stack, spec, untested_reason),
        part_seconds,
        timed_operations,
        tuple(timed_pass.rank_work for timed_pass in inference_pass.timed_passes),
        host_wait_seconds=max(0.0, part_seconds["kernels"] - float(kernel_seconds)),
        resident_bytes=_resident_bytes(model_memory, layout, inference_pass.timed_passes[0].rank_work),
        estimate_seconds_on=lambda device, software_stack: float(pass_on(device, software_stack).seconds),
    )


def _resident_bytes(model_memory: Memory, layout: Layout, pass_work: RankWork) -> int:
    """Returns the bytes of a rank's weights, and of its shard of the KV cache."""
    memory_use = model_memory.states
    weight_bytes = float(memory_use.weights) * float(pass_work.parameters) / float(memory_use.parameter_count.total)
    return int(weight_bytes / layout.pp + float(memory_use.kv_cache) / (layout.tp * layout.pp))
