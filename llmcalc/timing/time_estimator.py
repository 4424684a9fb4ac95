"""Estimates the seconds of a rank's kernels and messages, by module.

A kernel takes the longer of computing and of moving its bytes, and the time until it starts. Numbers may be arrays
with an element per layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import comb, inf, prod
from statistics import NormalDist
from typing import Any, TypeAlias

from ..algebra import Number, are_equal, choose, exact_div, floor_div, is_zero, log2, maximum, minimum
from ..frozen import frozen
from ..parallel.placements import Collective, CollectiveKind
from ..workload.rows import ONE_GROUP, ExpertGroups
from .device import Device
from .kernels import STATE_BITS, Kernel, LayerMessage, RankPass, RankWork
from .timing_constants import SoftwareStack

OPERAND_BYTES = {"fp32": 4.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625}
"""Number format → bytes per element that a training product reads; others 2. fp4: 4 bits and a scale per 16 elements.
"""

CAST_BYTES = {"fp8": 4.0, "fp4": 5.125}
"""Narrow number format → bytes per element that the kernel moves which casts a training product's operand to it.

It reads 16 bits and writes the rows and the columns of the operand, as the backward pass multiplies by its transpose;
a cast to 4 bits finds the largest magnitude first (transformer_engine/common/cast). Kernels of products start after it.
"""

FROZEN_CAST_SHARE = 0.75
"""Fraction of `CAST_BYTES` that remains for frozen weights, whose operands need no columns for the gradient."""

NARROW_FORMATS = frozenset({"fp8", "fp4", "int8"})
"""Number formats of products whose 16-bit inputs are cast first."""

QUANTIZED_FORMAT = "quantized"
"""The format of products whose kernel decodes the weights (AWQ, GPTQ, GGUF) to the format `SoftwareStack.quantized`."""

DEQUANTIZATION_FLOPS = 75.0
"""Number of float32 operations that take as long as the decoding of one 4-bit weight: 2.62e9 weights in 2.96 ms on an
H200 (bitsandbytes 0.50, kDequantizeBlockwise, in blocks of 64; tests/data/gpu).
"""

KEY_HEADS_OF_LATENTS = 16
"""Key heads among which decoding attention over latents or single keys counts as divided, to fill a device's units."""

DECODE_ATTENTION_RATE = 0.35
"""Fraction of the 16-bit peak that compute-bound decoding attention reaches."""

SCORE_BYTES = 14.0
"""Bytes per score that attention with scores in memory moves: product, mask, softmax and product, in 16 bits."""

EAGER_SCORE_BYTES = 30.0
"""Bytes per score that eager attention moves, step by step with softmax in float32: product (2), scale (4), mask (4),
to float32 (6), softmax (8), to 16 bits (6).
"""

ATTENTION_BACKWARD_FACTOR = 2.5
"""Ratio of fused attention's products in the backward pass, with recomputed scores, to the two in the forward pass."""

DECODED_TILE_ROWS = 16
"""Rows of the smallest tile in a kernel that decodes weights to 16 bits: Marlin's 16 · thread_m_blocks."""

MAX_VECTOR_KERNEL_TOKENS = 8
"""Largest number of tokens for which llama.cpp runs its matrix-vector kernel (MMVQ_MAX_BATCH_SIZE in
ggml-cuda/mmvq.cuh).
"""

FUSED_HEAD_DIM = 256
"""Largest head size for an accelerator generation's attention kernels: FlashAttention and cuDNN refuse
more (check_head_dim_size_flash in torch's sdp_utils.cpp), so that torch runs its memory-efficient kernel. Servers have
kernels of their own, and so has Megatron-Core for a single key of all heads
(`SoftwareStack.has_wide_single_key_kernel`).
"""

LOSS_BACKWARD_FACTOR = 0.7
"""Ratio of the bytes that the loss moves in its backward pass to those in its forward pass."""

EXPOSED_RING_SHARE = 0.3
"""Fraction of a context-parallel exchange that attention does not hide."""


KernelCounts: TypeAlias = Mapping[str, tuple[float, float]]
"""Recorder verb → numbers of kernels that the host launches, forward and backward (`SoftwareStack.kernels`)."""


@frozen
class NumberFormats:
    """The number formats of a run's matrix products, weights and KV cache.

    product_format: of products: bf16, fp32, fp8, int8, fp4 or `quantized`.
    weight_bits, cache_bits: bits of a stored element, with its share of a scale.
    head_bits: bits of an element of the head and of routers; None (default) for 16 at least, or for `weight_bits` if
        the kernel decodes weights.
    has_block_scales: whether weights in 8 bits have a scale for each block of rows and columns; default false.
    """

    product_format: str = "bf16"
    weight_bits: float = 16.0
    cache_bits: float = 16.0
    head_bits: float | None = None
    has_block_scales: bool = False

    def formats_on(self, device: Device) -> NumberFormats:
        """Returns an inference run's formats on a device, where weights without matrix units are decoded to 16 bits.

        So weights in 8 or 4 bits are multiplied in 16 bits without units for them, like `quantized` ones.
        """
        is_decoded = (
            self.product_format in NARROW_FORMATS and device.format_of(self.product_format) != self.product_format
        )
        return replace(self, product_format=QUANTIZED_FORMAT) if is_decoded else self


SIXTEEN_BIT_FORMATS = NumberFormats()
"""The number formats of a run with weights, cache and products in 16 bits."""


TIME_PARTS = ("compute", "memory", "network", "wait")
"""The fields of a timed operation that are seconds."""


@frozen(slots=True)
class TimedOperation:
    """A kernel or a message, with its estimated seconds.

    path, kind, layer_kind_index, runs_per_layer: as of `Kernel`.
    is_backward: whether it runs in the backward pass.
    is_message: whether it is a message.
    compute, memory, network, wait: seconds that each takes by itself; wait is the time until the kernel starts.
    ends_layer: as of `Kernel`.
    """

    path: str
    kind: str
    layer_kind_index: int
    runs_per_layer: Number
    is_backward: bool
    is_message: bool
    compute: Number
    memory: Number
    network: Number
    wait: Number
    ends_layer: bool = False

    @property
    def seconds(self) -> Number:
        """The estimated seconds of one execution; compute and memory traffic overlap."""
        return maximum(self.compute, self.memory) + self.network + self.wait

    @property
    def bound(self) -> str:
        """The resource that the operation waits for longest: `compute`, `memory`, `network` or `wait`."""
        return max(TIME_PARTS, key=lambda resource_name: getattr(self, resource_name))


GRAPH_MODULES: dict[str, tuple[str, ...]] = {
    "attn": ("self_attn", "self_attn_pre_norm"),
    "mamba": ("mamba", "mamba_pre_norm"),
    "mlp": ("mlp.gate_proj", "mlp.up_proj", "mlp.act", "mlp.mul", "mlp.down_proj", "mlp_pre_norm"),
    "moe": ("mlp", "mlp_pre_norm"),
    "moe_router": ("mlp_pre_norm", "mlp.router", "mlp.route", "mlp.shared_expert", "mlp.latent_in"),
}
"""Name of a module that Megatron-Core captures as a CUDA graph → the modules or steps of a layer inside that graph.

Sums with the residual belong to the modules before them. Experts, and what sends their tokens, are in `moe` alone,
which needs a fixed capacity (core/transformer/cuda_graphs.py).
"""


GRAPH_SPLITS = frozenset({"attention", "scores", "scan", "state"})
"""Kinds of kernels that the host launches between piecewise CUDA graphs of all other kernels: vLLM's
`splitting_ops` (vllm/config/compilation.py, `_attention_ops`)."""


def _is_captured(kernel: Kernel, captured_modules: tuple[str, ...]) -> bool:
    """Whether a CUDA graph captured from these modules contains the kernel, so that the host does not launch it."""
    if not captured_modules:
        return False
    path_in_layer = f"{kernel.path}.{kernel.step_verb}.".partition(".")[2]
    return path_in_layer == "add." or path_in_layer.startswith(_captured_prefixes(captured_modules))


@cache
def _captured_prefixes(captured_modules: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{module_path}." for module_name in captured_modules for module_path in GRAPH_MODULES[module_name])


@dataclass
class TimedPass:
    """The timed kernels and messages of one micro-batch or pass, on a rank with all layers.

    host_launch: times the seconds of a launch that the accelerator's host needs.
    product_format: as of `NumberFormats`.
    """

    rank_work: RankWork
    operations: list[TimedOperation]
    host_launch: float = 1.0
    product_format: str = "bf16"
    _launches_by_counts: dict[tuple[Any, ...], Number] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def scaled_by(self, factor: Number) -> TimedPass:
        """Returns the pass with the seconds of each kernel and message multiplied by `factor`."""
        scaled_operations = [
            replace(operation, **{time_part: factor * getattr(operation, time_part) for time_part in TIME_PARTS})
            for operation in self.operations
        ]
        return replace(self, operations=scaled_operations)

    def layer_seconds(self, layer_kind_index: int, is_backward: bool | None = None) -> Number:
        """Returns the seconds of a layer of one kind. is_backward: the direction; None (default) for both."""
        return sum(
            operation.runs_per_layer * operation.seconds
            for operation in self.operations
            if operation.layer_kind_index == layer_kind_index and is_backward in (None, operation.is_backward)
        )

    def has_experts(self, layer_kind_index: int) -> bool:
        """Whether a kind of layer has routed experts."""
        return any(
            kernel.layer_kind_index == layer_kind_index and kernel.kind == "experts"
            for kernel in self.rank_work.kernels
        )

    def ending_seconds(self, layer_kind_index: int) -> Number:
        """Returns the forward seconds of a layer's last kernels, whose results its own gradients do not need."""
        return sum(
            operation.runs_per_layer * operation.seconds
            for operation in self.operations
            if operation.layer_kind_index == layer_kind_index and operation.ends_layer and not operation.is_backward
        )

    def layer_launches(
        self,
        layer_kind_index: int,
        is_backward: bool,
        kernel_counts: KernelCounts,
        captured_modules: tuple[str, ...] = (),
    ) -> Number:
        """Returns the number of kernel launches in the forward (or backward) pass of one layer.

        captured_modules: names of `GRAPH_MODULES`, whose kernels graphs launch.
        """
        return sum(
            kernel.runs_per_layer * kernel_counts.get(kernel.step_verb, kernel.launches)[is_backward]
            for kernel in self.rank_work.kernels
            if kernel.layer_kind_index == layer_kind_index and not _is_captured(kernel, captured_modules)
        )

    def expert_launches(
        self, layer_kind_index: int, is_backward: bool, captured_modules: tuple[str, ...] = ()
    ) -> Number:
        """Returns the number of single experts' matrix products that the host launches in one pass of a layer."""
        return sum(
            kernel.runs_per_layer * kernel.expert_count * kernel.launches[is_backward]
            for kernel in self.rank_work.kernels
            if kernel.layer_kind_index == layer_kind_index
            and kernel.kind == "experts"
            and not _is_captured(kernel, captured_modules)
        )

    def dtensor_operations(self, layer_kind_index: int, is_backward: bool, operation_counts: KernelCounts) -> Number:
        """Returns the number of DTensor operations in the forward (or backward) pass of a tensor-parallel layer.

        operation_counts: of a product and, with sequence parallelism, of a norm.
        """
        rank_pass = self.rank_work.rank_pass
        if not operation_counts or rank_pass.tp == 1:
            return 0
        sharded_kernel_kinds = ("product", "norm") if rank_pass.sequence_parallel else ("product",)
        return sum(
            kernel.runs_per_layer * operation_counts[sharded_kernel_kind][is_backward]
            for kernel in self.rank_work.kernels
            for sharded_kernel_kind in sharded_kernel_kinds
            if kernel.layer_kind_index == layer_kind_index and sharded_kernel_kind in (kernel.kind, kernel.step_verb)
        )

    @cached_property
    def seconds(self) -> Number:
        """The seconds of the forward and backward passes through all layers."""
        return sum(
            operation.runs_per_layer * self.rank_work.layer_count(operation.layer_kind_index) * operation.seconds
            for operation in self.operations
        )

    def launches(self, kernel_counts: KernelCounts, graph_tokens: int = 0, casts_inputs: bool = False) -> Number:
        """Returns the number of kernels and CUDA graphs that the host launches in the forward pass.

        casts_inputs: whether a kernel before each product casts its input to a narrower format; default false.
        graph_tokens: most tokens of a pass in which captured graphs launch all kernels between those of `GRAPH_SPLITS`;
            0 (default) for none.
        """
        kernel_count = self._kernel_launches(kernel_counts, casts_inputs)
        if not graph_tokens:
            return kernel_count
        return choose(self.rank_work.tokens <= graph_tokens, 2 * self._graph_split_count + 1, kernel_count)

    @cached_property
    def _graph_split_count(self) -> Number:
        """The number of kernels that piecewise CUDA graphs do not capture, and that separate the captured graphs."""
        return sum(
            kernel.runs_per_layer * self.rank_work.layer_count(kernel.layer_kind_index)
            for kernel in self.rank_work.kernels
            if kernel.kind in GRAPH_SPLITS
        )

    def _kernel_launches(self, kernel_counts: KernelCounts, casts_inputs: bool) -> Number:
        """Returns the number of kernels that the host launches in the forward pass without graphs."""
        counts_key = casts_inputs, *kernel_counts.items()
        if counts_key not in self._launches_by_counts:
            layer_kind_indices = {kernel.layer_kind_index for kernel in self.rank_work.kernels}
            kernel_count = sum(
                self.rank_work.layer_count(layer_kind_index)
                * self.layer_launches(layer_kind_index, False, kernel_counts)
                for layer_kind_index in layer_kind_indices
            )
            if casts_inputs:
                kernel_count += sum(
                    kernel.runs_per_layer * kernel.launches[0] * self.rank_work.layer_count(kernel.layer_kind_index)
                    for kernel in self.rank_work.kernels
                    if kernel.kind in ("product", "experts") and not kernel.in_16_bits
                )
            self._launches_by_counts[counts_key] = kernel_count
        return self._launches_by_counts[counts_key]


@frozen
class TimeEstimator:
    """Estimates the seconds of kernels and messages on a device, with a software stack's efficiencies."""

    device: Device
    stack: SoftwareStack
    number_formats: NumberFormats
    rank_pass: RankPass

    @property
    def is_training(self) -> bool:
        """Whether the pass is one of training, with a backward pass."""
        return self.rank_pass.phase == "training"

    @property
    def seconds_before_kernel(self) -> float:
        """The seconds between the launch of a kernel and its start."""
        generation = self.device.generation
        launch_gap = generation.kernel_start if self.is_training else generation.launch_gap * self.stack.launch_factor
        return max(launch_gap, self.stack.least_kernel_gap_seconds)

    def _units_format(self, dtype: str) -> str:
        """Returns the number format of the matrix units that run products of a number format."""
        return self.stack.quantized_product_format if dtype == QUANTIZED_FORMAT else dtype

    def product_rate(self, dtype: str) -> float:
        """Returns the FLOP/s of matrix products in a number format."""
        unit_format = self._units_format(dtype)
        if dtype == QUANTIZED_FORMAT and unit_format == "int8" and self.device.generation.block_quantized:
            return self.device.peak_rates["int8"] * self.device.generation.block_quantized
        has_own_units = self.device.format_of(unit_format) == unit_format  # else kernels decode weights to 16 bits
        rate_share = self.stack.rate_share_by_format.get(dtype, 1.0) if has_own_units else 1.0
        if self.device.generation.matrix_units:
            rate_share *= self.stack.product_rate_share
        return self.device.product_rate(unit_format, self.is_training, self.stack.sums_in_16_bits) * rate_share

    def _depth_factor(self, dtype: str, inner_size: Number) -> Number:
        """Returns the factor by which a short inner axis slows down a matrix product.

        inner_size: the size of the axis that it sums over.
        """
        return self.device.depth_factor(self._units_format(dtype), inner_size)

    def timed_pass(self, rank_work: RankWork) -> TimedPass:
        """Returns the timed kernels and messages of a rank."""
        timed_operations: list[TimedOperation] = []
        for kernel in rank_work.kernels:
            timed_operations += self.timed_kernels(kernel)
        for layer_message in rank_work.messages:
            layer_kind_index, collective = layer_message.layer_kind_index, layer_message.collective
            seconds, wait_seconds = self._message_seconds(layer_message), self._exchange_wait(collective)
            message_count = collective.repetitions
            timed_operations.append(
                TimedOperation(
                    collective.node_path,
                    self._collective_kind(layer_message),
                    layer_kind_index,
                    message_count,
                    collective.is_backward,
                    True,
                    0.0,
                    0.0,
                    seconds,
                    wait_seconds,
                    layer_message.ends_layer,
                )
            )
        host_launch, product_format = self.device.generation.host_launch, self.number_formats.product_format
        return TimedPass(rank_work, timed_operations, host_launch, product_format)

    def timed_kernels(self, kernel: Kernel) -> Iterator[TimedOperation]:
        """Returns the timed kernels of a product. A backward product is two kernels, for the input and the weight."""
        seconds_by_direction: Iterator[tuple[bool, Number, Number]] = getattr(
            self, f"_{kernel.kind.replace('-', '_')}_seconds"
        )(kernel)
        launched_directions: set[bool] = set()
        is_in_graph = not (self.is_training or self.stack.host_seconds_per_kernel)
        launch_counts = (
            self.stack.launches_by_verb.get(kernel.step_verb, kernel.launches) if is_in_graph else kernel.launches
        )
        for is_backward, compute_seconds, memory_seconds in seconds_by_direction:
            if is_backward and not self.is_training:
                continue
            launch_seconds = (
                0.0 if is_backward in launched_directions else launch_counts[is_backward] * self.seconds_before_kernel
            )
            launched_directions.add(is_backward)
            if is_in_graph and launch_seconds:
                launch_seconds += self.product_wait_by_format(kernel)
            yield TimedOperation(
                kernel.path,
                kernel.kind,
                kernel.layer_kind_index,
                kernel.runs_per_layer,
                is_backward,
                False,
                compute_seconds,
                memory_seconds,
                0.0,
                launch_seconds,
                kernel.ends_layer,
            )

    def product_wait_by_format(self, kernel: Kernel) -> float:
        """Returns the seconds of a product in a CUDA graph beyond its memory reads and the gap before the kernel.

        Those of all experts' products belong to the last one. A kernel that decodes the weights takes further seconds.
        """
        is_last_expert_product = kernel.kind == "experts" and kernel.path.endswith("down_proj")
        waits_by_format = (
            self.stack.expert_wait_by_format if is_last_expert_product else self.stack.product_wait_by_format
        )
        if kernel.kind != "product" and not is_last_expert_product:
            return 0.0
        dtype = self._inference_format(kernel)
        decoding_wait = waits_by_format.get(QUANTIZED_FORMAT, 0.0) if dtype == QUANTIZED_FORMAT else 0.0
        if is_last_expert_product and dtype == QUANTIZED_FORMAT and self.stack.is_server:
            decoding_wait += self.device.generation.decoded_experts
        return waits_by_format.get(self.device.format_of(self._units_format(dtype)), 0.0) + decoding_wait

    def _product_seconds(self, kernel: Kernel) -> Iterator[tuple[bool, Number, Number]]:
        """Estimates the seconds of y = x·Wᵀ, and in backward of dx = dy·W and of dW = dyᵀ·x, which is accumulated."""
        device, m, n, k = self.device, kernel.m, kernel.n, kernel.k
        weight_elements = kernel.weight_elements * (
            self.selected_expert_count(kernel) if kernel.kind == "experts" else 1.0
        )
        if not self.is_training:
            dtype = self._inference_format(kernel)
            compute_seconds = (
                kernel.flops[0]
                * self._depth_factor(dtype, k)
                / self.product_rate(dtype)
                / self._expert_rate_share(kernel, dtype)
                * self._row_padding_ratio(kernel, dtype)
                * self._expert_load_imbalance(kernel)
            )
            compute_seconds = self._block_scaled_seconds(kernel, compute_seconds)
            weight_elements *= self._prompt_pass_count(kernel)
            weight_bytes, value_bytes = self._weight_bytes(kernel, weight_elements), 2.0 * m * (k + n)
            vector_seconds = weight_bytes / self.vector_rate(kernel)
            copied_bytes = self._copied_bytes(kernel, dtype, weight_elements)
            read_bytes = choose(copied_bytes > 0, copied_bytes, weight_bytes)
            if dtype != QUANTIZED_FORMAT or not self.stack.reads_before_products:
                read_seconds = device.memory_seconds(read_bytes + value_bytes)
                yield False, compute_seconds, maximum(read_seconds, vector_seconds)
                if self.stack.least_tokens_to_copy_weights:
                    yield False, 0.0, device.memory_seconds(choose(copied_bytes > 0, weight_bytes + copied_bytes, 0.0))
                return
            bytes_read_first = choose(self._is_vector_product(kernel), 0.0, weight_bytes)
            read_seconds = device.memory_seconds(weight_bytes - bytes_read_first + value_bytes)
            yield False, compute_seconds, maximum(read_seconds, vector_seconds)
            yield False, 0.0, device.memory_seconds(bytes_read_first)
            return
        dtype = (
            "bf16"
            if kernel.in_16_bits and self.number_formats.product_format != "fp32"
            else self.number_formats.product_format
        )
        product_rate, bytes_per_element = self.product_rate(dtype), OPERAND_BYTES.get(dtype, 2.0)
        if self.stack.keeps_unaligned_sizes and dtype == "bf16":
            product_rate *= device.unaligned_rate_share(kernel.n, kernel.k)
        cast_bytes = CAST_BYTES.get(dtype, 0.0)
        output_bytes = max(2.0, bytes_per_element)
        backward_seconds = kernel.flops[1] / product_rate / (1 if kernel.is_frozen else 2)
        forward_seconds = (
            kernel.flops[0] / product_rate * self._depth_factor(dtype, k) * self._wave_factor(kernel, m, n)
        )
        yield from self._time_with_weights(
            kernel,
            False,
            forward_seconds,
            bytes_per_element * weight_elements,
            bytes_per_element * m * k + output_bytes * m * n,
        )
        casts_input, casts_gradient = self._needs_separate_casts(kernel)
        if cast_bytes and casts_input:
            yield False, 0.0, device.memory_seconds(cast_bytes * m * k)
        if not isinstance(kernel.flops[1], int) or kernel.flops[1]:
            moved_bytes = bytes_per_element * m * n + output_bytes * m * k
            input_gradient_seconds = backward_seconds * self._depth_factor(dtype, n) * self._wave_factor(kernel, m, k)
            yield from self._time_with_weights(
                kernel, True, input_gradient_seconds, bytes_per_element * weight_elements, moved_bytes
            )
            if cast_bytes and casts_gradient:
                yield (
                    True,
                    0.0,
                    device.memory_seconds((FROZEN_CAST_SHARE if kernel.is_frozen else 1.0) * cast_bytes * m * n),
                )
            if kernel.is_frozen:
                return
            backward_seconds = (
                backward_seconds * self._depth_factor(dtype, m / kernel.expert_count) * self._wave_factor(kernel, n, k)
            )
            moved_bytes = bytes_per_element * m * k + output_bytes * m * n
            yield from self._time_with_weights(
                kernel,
                True,
                backward_seconds,
                self._gradient_bytes_per_weight(bytes_per_element) * weight_elements,
                moved_bytes,
            )

    def _block_scaled_seconds(self, kernel: Kernel, seconds: Number) -> Number:
        """Returns the compute seconds of a product, whose weights may have one scale per block.

        Where the library has no tuned kernel for its sizes, one tile sums over the whole inner axis, block by block.
        Products of the same input are one kernel, whose first product has this time.
        """
        if kernel.step_verb != "linear" or kernel.in_16_bits or not self.number_formats.has_block_scales:
            return seconds
        rate_share, seconds_per_inner_element, tuned_share = self.device.generation.block_scaled
        if self.stack.has_tuned_products:
            return seconds / tuned_share
        tile_seconds = seconds_per_inner_element * kernel.k if kernel.launches[0] else 0.0
        return maximum(seconds / rate_share, tile_seconds)

    def _is_vector_product(self, kernel: Kernel) -> Number:
        """Whether a product has so few tokens that llama.cpp runs its matrix-vector kernel."""
        return (kernel.routed_tokens if kernel.kind == "experts" else kernel.m) <= MAX_VECTOR_KERNEL_TOKENS

    def vector_rate(self, kernel: Kernel) -> Number:
        """Returns the bytes/s at which a matrix-vector kernel reads a product's weights; inf for other kernels."""
        if not self.stack.has_vector_kernels:
            return inf
        return choose(self._is_vector_product(kernel), self.device.vector_rate, inf)

    def _wave_factor(self, kernel: Kernel, row_count: Number, column_count: Number) -> Number:
        """The slowdown of a training product whose last tiles leave compute units idle; 1 for expert products."""
        return self.device.wave_factor(row_count, column_count) if kernel.kind == "product" else 1.0

    def _time_with_weights(
        self, kernel: Kernel, is_backward: bool, compute_seconds: Number, weight_bytes: Number, activation_bytes: Number
    ) -> Iterator[tuple[bool, Number, Number]]:
        """Yields the kernel times of a training product; experts' weights move in a kernel of their own."""
        if kernel.kind == "experts" and self.stack.launches_experts_separately:
            yield is_backward, 0.0, self.device.memory_seconds(weight_bytes)
            yield is_backward, compute_seconds, self.device.memory_seconds(activation_bytes)
        else:
            yield is_backward, compute_seconds, self.device.memory_seconds(weight_bytes + activation_bytes)

    def _gradient_bytes_per_weight(self, bytes_per_element: float) -> float:
        """Returns the bytes moved per weight when the backward product adds to the weight's gradient."""
        return 2 * self.stack.gradient_bytes if self.stack.sends_gradient_buffers else bytes_per_element + 4.0

    _experts_seconds = _product_seconds

    def _needs_separate_casts(self, kernel: Kernel) -> tuple[bool, bool]:
        """Returns whether separate kernels cast a product's input, and whether they cast its output's gradient.

        Products with the same input cast it once. Fused experts cast what enters and leaves their activation.
        """
        is_fused = self.stack.fuses_expert_activation and kernel.kind == "experts"
        is_down_projection = kernel.path.endswith("down_proj")
        return kernel.launches[0] > 0 and not (is_fused and is_down_projection), not is_fused or is_down_projection

    def _expert_rate_share(self, kernel: Kernel, dtype: str) -> float:
        """The fraction of a large product's rate that the grouped kernel of all experts reaches."""
        if kernel.kind != "experts":
            return 1.0
        return self.stack.expert_rate_share_by_format.get(self.device.format_of(self._units_format(dtype)), 1.0)

    def _row_padding_ratio(self, kernel: Kernel, dtype: str) -> Number:
        """The ratio of computed rows to a product's rows; matrix units compute whole tiles of rows."""
        if kernel.kind == "experts" or dtype == "fp32" or not self.stack.pads_rows or is_zero(kernel.m):
            return 1.0
        tile_rows = DECODED_TILE_ROWS if dtype == QUANTIZED_FORMAT else self.device.generation.tile_rows
        return maximum(1.0, tile_rows / kernel.m)

    def _copied_bytes(self, kernel: Kernel, dtype: str, element_count: Number) -> Number:
        """Returns the bytes of 16-bit copies of quantized weights, which products of many tokens read instead.

        0 for a kernel that decodes the weights that it multiplies. element_count: of the weights, in all passes.
        """
        fewest_tokens = self.stack.least_tokens_to_copy_weights
        if dtype != QUANTIZED_FORMAT or not fewest_tokens or not self.device.generation.matrix_units:
            return 0.0
        return choose(kernel.m >= fewest_tokens, 2.0 * element_count, 0.0)

    def _prompt_pass_count(self, kernel: Kernel) -> Number:
        """The number of times that the weights are read for a prompt, whose tokens software splits into batches."""
        most_tokens = self.stack.prompt_batch_tokens
        if not most_tokens or self.rank_pass.phase == "decode":
            return 1.0
        return maximum(1.0, (kernel.routed_tokens if kernel.kind == "experts" else kernel.m) / most_tokens)

    def _expert_load_imbalance(self, kernel: Kernel) -> Number:
        """The ratio of the busiest rank's time for expert products to the time under even loads."""
        if kernel.kind != "experts" or not self.stack.slowdown_of_busiest_rank:
            return 1.0
        return 1 + self.stack.slowdown_of_busiest_rank * log2(self.rank_pass.ep)

    def _inference_format(self, kernel: Kernel) -> str:
        """Returns the number format in which an inference run computes a product."""
        return (
            "bf16"
            if kernel.in_16_bits and self.number_formats.product_format not in (QUANTIZED_FORMAT, "fp32")
            else self.number_formats.product_format
        )

    def _weight_bytes(self, kernel: Kernel, element_count: Number) -> Number:
        """Returns the bytes of a kernel's weights that a pass reads.

        The head stays in 16 bits unless all weights are quantized.
        """
        weight_bits = self.number_formats.weight_bits
        if kernel.in_16_bits:
            wide_format_bits = (
                weight_bits if self.number_formats.product_format == QUANTIZED_FORMAT else max(16.0, weight_bits)
            )
            weight_bits = wide_format_bits if self.number_formats.head_bits is None else self.number_formats.head_bits
        return element_count * weight_bits / 8 / (self._expert_weights_share() if kernel.kind == "experts" else 1.0)

    def _expert_weights_share(self) -> float:
        """Returns the share of the memory rate at which a pass reads experts' weights."""
        prompt_share = self.stack.prompt_expert_weight_rate_share if self.rank_pass.phase == "prefill" else None
        return self.stack.expert_weight_rate_share if prompt_share is None else prompt_share

    def selected_expert_count(self, kernel: Kernel) -> Number:
        """Returns the expected number of distinct experts that a pass's tokens select: E · (1 − (1 − k/E)^T).

        Tokens that a batch decodes together select the same experts more often than by chance. Of expert-parallel ranks
        it is that of the rank with most of them, for which all others wait.
        """
        shared_experts = self.stack.repeated_expert_share if self.rank_pass.phase == "decode" else 0.0
        routing_tokens = 1 + (kernel.routed_tokens / self._prompt_pass_count(kernel) - 1) * (1 - shared_experts)
        read_probability = 1 - (1 - kernel.selection_chance) ** routing_tokens
        mean_experts, rank_count = kernel.expert_count * read_probability, self.rank_pass.ep
        if self.is_training or are_equal(rank_count, 1):
            return mean_experts
        standard_deviation = (
            mean_experts * (1 - read_probability) * (1 - 1 / rank_count)
        ) ** 0.5  # of a hypergeometric number
        return minimum(kernel.expert_count, mean_experts + _expected_maximum(rank_count) * standard_deviation)

    def _attention_seconds(self, kernel: Kernel) -> Iterator[tuple[bool, Number, Number]]:
        device, rank_pass = self.device, self.rank_pass
        cache_bytes = kernel.cache_elements * self.number_formats.cache_bits / 8
        if rank_pass.phase == "decode":
            key_heads = kernel.kv_heads if kernel.kv_heads > 1 else KEY_HEADS_OF_LATENTS
            if self.stack.copies_cache_per_token:  # reads the cache and writes it with the token's entries
                cache_bytes *= 3
            if (
                self.stack.copies_key_heads and kernel.kv_heads != kernel.heads
            ):  # reads the cache, writes and reads copies
                cache_bytes *= 1 + 2 * exact_div(kernel.heads, kernel.kv_heads)
            idle_factor = 1 + 1 / (rank_pass.batch * key_heads)  # few heads of few sequences do not fill the device
            compute_seconds = (
                kernel.head_padding_ratio * kernel.flops[0] / (DECODE_ATTENTION_RATE * device.peak_rates["bf16"])
            )
            yield False, compute_seconds, device.cache_seconds(cache_bytes) * idle_factor
            return
        if self.stack.attention == "scores":
            score_count = kernel.heads * kernel.m * kernel.n
            has_unaligned_dim = isinstance(kernel.key_width, int) and kernel.key_width % 8
            score_flops = (
                2.0
                * score_count
                * (kernel.key_width + kernel.k)
                * (self.stack.unaligned_head_slowdown if has_unaligned_dim else 1.0)
            )
            score_bytes = SCORE_BYTES if self.stack.fuses_elementwise else EAGER_SCORE_BYTES
            compute_seconds, memory_seconds = (
                score_flops / self.product_rate("bf16"),
                device.memory_seconds(score_bytes * score_count),
            )
            for is_backward in (False, True):
                yield is_backward, (1 + is_backward) * compute_seconds, 0.0
                yield is_backward, 0.0, (1 + is_backward) * memory_seconds
            return
        older_kernels = device.generation.older_attention
        kernel_efficiency = older_kernels.get(self.stack.attention, 1.0)
        has_own_kernels = self.stack.is_server or (self.stack.has_wide_single_key_kernel and kernel.kv_heads == 1)
        if maximum(kernel.key_width, kernel.k) > FUSED_HEAD_DIM and not has_own_kernels:
            kernel_efficiency = min(kernel_efficiency, older_kernels["triton"])
        kernel_efficiency *= device.sustained_share() if self.is_training else 1.0
        flops_of_passes, key_count = kernel.flops, kernel.keys_per_query
        if self.stack.reads_window_masks and not are_equal(
            kernel.keys_per_query, kernel.n
        ):  # a window is a mask, and no pair is skipped
            key_count = kernel.n
            if self.stack.attention == "cudnn":
                kernel_efficiency *= older_kernels["fa2"]
            forward_flops = 2.0 * kernel.heads * kernel.m * kernel.n * (kernel.key_width + kernel.k)
            flops_of_passes = forward_flops, ATTENTION_BACKWARD_FACTOR * forward_flops
        for is_backward in (False, True):
            flops = kernel.head_padding_ratio * flops_of_passes[is_backward]
            seconds = device.attention_seconds(flops, key_count, kernel.key_width, is_backward, kernel_efficiency)
            yield is_backward, seconds, 0.0 if is_backward else device.cache_seconds(cache_bytes)

    def _scores_seconds(self, kernel: Kernel) -> Iterator[tuple[bool, Number, Number]]:
        """Estimates the seconds of products of queries and keys, which sum over the width of a key."""
        dtype = "bf16" if self.is_training else self._inference_format(kernel)
        product_rate = self.product_rate(dtype) / self._depth_factor(dtype, kernel.k)
        cache_bytes = kernel.cache_elements * self.number_formats.cache_bits / 8
        for is_backward in (False, True):
            memory_seconds = self.device.memory_seconds(
                2.0 * kernel.moved_elements[is_backward] + (0.0 if is_backward else cache_bytes)
            )
            yield is_backward, kernel.flops[is_backward] / product_rate, memory_seconds

    def _scan_seconds(self, kernel: Kernel) -> Iterator[tuple[bool, Number, Number]]:
        """Estimates the seconds of a scan or recurrence as element-wise memory traffic."""
        weight_bytes = kernel.weight_elements * (2.0 if self.is_training else self.number_formats.weight_bits / 8)
        for is_backward in (False, True):
            flops = kernel.flops[is_backward] * (1 if is_backward else kernel.scan_ratio)
            compute_seconds = self.device.scan_seconds(flops)
            yield (
                is_backward,
                compute_seconds,
                self.device.memory_seconds(2.0 * kernel.moved_elements[is_backward] + weight_bytes),
            )

    def _state_seconds(self, kernel: Kernel) -> Iterator[tuple[bool, Number, Number]]:
        """Estimates the seconds in which a decoded token reads and writes a recurrent state."""
        yield False, 0.0, self.device.memory_seconds(2 * kernel.cache_elements * STATE_BITS / 8)

    def _elementwise_seconds(self, kernel: Kernel) -> Iterator[tuple[bool, Number, Number]]:
        traffic_factor = 1.0 if self.stack.fuses_elementwise else self.stack.accesses_by_verb.get(kernel.step_verb, 1.0)
        casts_inputs = self.number_formats.product_format in NARROW_FORMATS
        if self.stack.fuses_expert_activation and casts_inputs and kernel.path.endswith(".experts"):
            traffic_factor = 0.0
        for is_backward in (False, True):
            yield (
                is_backward,
                0.0,
                self.device.memory_seconds(2.0 * traffic_factor * kernel.moved_elements[is_backward]),
            )

    _look_up_seconds = _permutation_seconds = _elementwise_seconds

    def _expert_bias_seconds(self, kernel: Kernel) -> Iterator[tuple[bool, Number, Number]]:
        """Estimates the seconds in which expert biases, times the routing weights, are added to expert outputs."""
        for is_backward in (False, True):
            moved_bytes = self.stack.expert_bias_bytes_per_element[is_backward] * kernel.m * kernel.n
            yield is_backward, 0.0, self.device.memory_seconds(moved_bytes)

    def _adapter_seconds(self, kernel: Kernel) -> Iterator[tuple[bool, Number, Number]]:
        """Estimates the seconds of the element-wise kernels around an adapter's matrix products."""
        input_bytes, output_bytes = (
            self.stack.adapter_bytes_per_element.get(tensor_name, (0.0, 0.0)) for tensor_name in ("input", "output")
        )
        for is_backward in (False, True):
            moved_bytes = kernel.m * (kernel.k * input_bytes[is_backward] + kernel.n * output_bytes[is_backward])
            yield is_backward, 0.0, self.device.memory_seconds(moved_bytes)

    def _dequantization_seconds(self, kernel: Kernel) -> Iterator[tuple[bool, Number, Number]]:
        """Estimates the seconds of dequantizing a 4-bit weight to 16 bits."""
        assert self.rank_pass.adapters is not None
        weight_elements, bytes_per_weight = kernel.weight_elements, self.rank_pass.adapters.base_bits / 8 + 2.0
        compute_seconds = (
            DEQUANTIZATION_FLOPS * weight_elements / self.device.peak_rates.get("fp32", self.device.peak_rates["bf16"])
        )
        for is_backward in (False, True):
            if kernel.launches[is_backward]:
                yield is_backward, compute_seconds, self.device.memory_seconds(bytes_per_weight * weight_elements)

    def _loss_seconds(self, kernel: Kernel) -> Iterator[tuple[bool, Number, Number]]:
        logit_count = kernel.m * kernel.n
        bytes_per_logit = self.stack.bytes_per_logit if self.is_training else 4.0
        gradient_bytes = self.stack.gradient_bytes_per_logit
        if gradient_bytes is None:
            gradient_bytes = LOSS_BACKWARD_FACTOR * bytes_per_logit
        yield False, 0.0, self.device.memory_seconds(logit_count * bytes_per_logit)
        yield True, 0.0, self.device.memory_seconds(logit_count * gradient_bytes)

    def _exchange_wait(self, collective: Collective) -> Number:
        """Returns the seconds of waiting before one expert all-to-all: half of the wait per layer."""
        if collective.process_group != "ep" or collective.is_backward or not self.stack.exchange_wait_seconds:
            return 0.0
        exposed_share = 1 - self.stack.hidden_share("ep")
        return choose(collective.ranks > 1, exposed_share * self.stack.exchange_wait_seconds / 2, 0.0)

    def _collective_kind(self, layer_message: LayerMessage) -> CollectiveKind:
        """Returns the collective that sends a message; training may all-gather tokens and reduce-scatter sums."""
        collective = layer_message.collective
        is_exchange = collective.process_group == "ep" and collective.collective_kind == "all_to_all"
        if not (is_exchange and self.is_training and self.stack.gathers_tokens):
            return collective.collective_kind
        return "all_gather" if layer_message.is_dispatch != collective.is_backward else "reduce_scatter"

    def _message_seconds(self, layer_message: LayerMessage) -> Number:
        """Estimates the seconds of a message."""
        collective = layer_message.collective
        device, rank_pass, message_bytes = self.device, self.rank_pass, collective.bytes
        exposed_share = 1 - self.stack.hidden_share(collective.process_group, collective.collective_kind)
        if collective.process_group == "ep" and collective.collective_kind != "all_to_all":
            is_cast = collective.collective_kind == "all_gather" and self.stack.casts_before_gathering
            byte_share = OPERAND_BYTES.get(self.number_formats.product_format, 2.0) / 2 if is_cast else 1.0
            rank_stride = rank_pass.tp
            return device.message_seconds(
                collective.collective_kind,
                collective.ranks,
                message_bytes * byte_share,
                rank_stride,
                self.stack.latency_factor,
            )
        collective_kind = self._collective_kind(layer_message)
        if collective.process_group == "ep" and collective_kind != "all_to_all":
            gathered_bytes = message_bytes * collective.ranks / layer_message.copies_per_token
            return exposed_share * device.message_seconds(
                collective_kind, collective.ranks, gathered_bytes, rank_pass.expert_tp
            )
        if collective.process_group == "ep":
            sent_bytes = message_bytes * self._exchanged_byte_share(layer_message)
            return exposed_share * device.message_seconds(
                collective.collective_kind, collective.ranks, sent_bytes, rank_pass.expert_tp
            )
        if collective.process_group == "cp":
            rank_count = minimum(collective.ranks, 2) if collective.collective_kind == "send" else collective.ranks
            rank_stride = choose(
                collective.ranks * rank_pass.tp > device.domain_devices, device.domain_devices, rank_pass.tp
            )
            return EXPOSED_RING_SHARE * device.message_seconds(
                collective.collective_kind, rank_count, message_bytes, rank_stride
            )
        copy_seconds: Number = 0.0
        if (
            self.stack.copies_gathered_tokens
            and self.is_training
            and collective.process_group == "tp"
            and collective.collective_kind in ("all_gather", "reduce_scatter")
        ):
            is_view = collective.collective_kind == "all_gather" and rank_pass.batch == 1
            copy_seconds = 0.0 if is_view else device.memory_seconds(2 * message_bytes)
        if self._is_cast_before_gather(layer_message):
            message_bytes = message_bytes * OPERAND_BYTES[self.number_formats.product_format] / 2
        return copy_seconds + exposed_share * device.message_seconds(
            collective.collective_kind, collective.ranks, message_bytes, latency=self.stack.latency_factor
        )

    def _is_cast_before_gather(self, layer_message: LayerMessage) -> bool:
        """Whether sequence-parallel ranks gather a product's input or gradient after its cast to a narrow format.

        Transformer Engine does, but not where a layer's adapter reads the gathered input in 16 bits, too
        (`return_layernorm_output_gathered` of layernorm_linear.py, which Megatron-Bridge's peft/utils.py sets).
        """
        collective, adapters = layer_message.collective, self.rank_pass.adapters
        module_name = collective.node_path.rpartition(".")[2]
        return (
            self.stack.casts_gathered_inputs
            and self.number_formats.product_format in NARROW_FORMATS
            and layer_message.layer_kind_index >= 0
            and collective.process_group == "tp"
            and collective.collective_kind == "all_gather"
            and (collective.is_backward or adapters is None or module_name not in adapters.target_modules)
        )

    def _exchanged_byte_share(self, layer_message: LayerMessage) -> Number:
        """Returns the bytes sent by an expert all-to-all, as a share of those of all token copies in 16 bits.

        Experts of one rank share a copy of a token, and with ranks in several network domains those of one domain
        (is_token_in_rank of deep_ep, csrc/kernels/layout.cu), but for decoded tokens: their kernels send every copy
        to its rank (DeepEP's low-latency kernels, csrc/kernels/internode_ll.cu). Inference sends 8-bit inputs of
        products. Where a stack sends copies, each goes to its rank by itself, as in NCCL's all-to-all.
        """
        rank_count, copies_per_token = layer_message.collective.ranks, layer_message.copies_per_token
        share_of_16_bits = (
            0.5
            if layer_message.is_dispatch and self.number_formats.product_format == "fp8" and not self.is_training
            else 1.0
        )
        if self.rank_pass.phase == "decode" or self.stack.sends_each_copy:
            return share_of_16_bits
        domain_ranks = maximum(1, floor_div(self.device.domain_devices, self.rank_pass.expert_tp))
        domain_count = choose(rank_count > domain_ranks, maximum(1.0, rank_count / domain_ranks), rank_count)
        return share_of_16_bits * _copies_per_domain(domain_count, copies_per_token, layer_message.expert_groups)


def _copies_per_domain(domain_count: Number, top_k: Number, expert_groups: ExpertGroups = ONE_GROUP) -> Number:
    """Returns the fraction of a token's expert copies that are sent if all experts of a network domain share one copy.

    domain_count: network domains, or ranks of a single one.

    Its groups are any topk_group of the n_group, and each of its experts is in any of these groups. A group is in
    several domains, or a domain has several groups: some domains one more than others if they cannot be equal.
    """
    n_group, topk_group = expert_groups
    reachable_domains = maximum(1.0, domain_count * topk_group / n_group)
    copies_per_token = reachable_domains * (1 - (1 - 1 / reachable_domains) ** top_k)
    if n_group > 1:
        least_groups = n_group // domain_count
        larger_domain_share = n_group / domain_count - least_groups
        copy_chances = [
            _chance_of_copy(group_count, top_k, expert_groups) for group_count in (least_groups, least_groups + 1)
        ]
        mean_copy_chance = (1 - larger_domain_share) * copy_chances[0] + larger_domain_share * copy_chances[1]
        copies_per_token = choose(domain_count < n_group, domain_count * mean_copy_chance, copies_per_token)
    return minimum(1.0, copies_per_token / top_k)


def _expected_maximum(number_count: int) -> float:
    """Returns the expected maximum of `number_count` standard normal numbers (Blom 1958)."""
    return NormalDist().inv_cdf((number_count - 0.375) / (number_count + 0.25))


def _chance_of_copy(groups_in_domain: Number, top_k: Number, expert_groups: ExpertGroups) -> Number:
    """Returns the probability that a network domain with some expert groups has any expert of a token.

    The number of these groups among the token's groups is hypergeometric.
    """
    n_group, topk_group = expert_groups
    weighted_chances = (
        _binomial(groups_in_domain, group_count)
        * _binomial(n_group - groups_in_domain, topk_group - group_count)
        * (1 - (1 - group_count / topk_group) ** top_k)
        for group_count in range(1, topk_group + 1)
    )
    return sum(weighted_chances) / comb(n_group, topk_group)


def _binomial(total_count: Number, selected_count: int) -> Number:
    """Returns a binomial coefficient, also of an array of totals."""
    return prod((total_count - factor_index) / (factor_index + 1) for factor_index in range(selected_count))


def time_pass(
    rank_work: RankWork, device: Device, software_stack: SoftwareStack, number_formats: NumberFormats
) -> TimedPass:
    """Estimates the seconds of the kernels and messages of a rank's pass."""
    return TimeEstimator(device, software_stack, number_formats, rank_work.rank_pass).timed_pass(rank_work)
