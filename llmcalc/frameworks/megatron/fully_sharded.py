"""Megatron-FSDP: ranks shard weights, gradients and optimizer states, and gather and reduce them layer by layer.

Sources: Megatron-LM, megatron/core/distributed/fsdp/src/megatron_fsdp/, param_and_grad_buffer.py and megatron_fsdp.py,
with `--data-parallel-sharding-strategy optim_grads_params`.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ...algebra import round_up
from ...parallel.layout import Coordinates, Layout
from ...simulator.autograd import AutogradGraph, record
from ...simulator.event_log import EventRecorder
from ...simulator.lowering import ModulePath
from ...simulator.meter import Meter
from ...simulator.tensor import NeedsInputGrad, Storage, Tensor, allocate_on_stream, count_storages_as
from .kernels import Parameter
from .param_and_grad_buffer import BUCKET_ELEMENTS_PER_RANK, SMALLEST_BUCKET_ELEMENTS
from .settings import MegatronSettings

GATHER_STREAM = 2
"""CUDA stream on which weights are gathered (`side_stream_for_param_gather`)."""

GRADIENT_QUEUE_ELEMENTS = 1_000_000_000
"""Number of gradient elements that may wait for reduction, unless two layers have more; half as many weight elements
are gathered ahead (`suggested_communication_unit_size`).
"""

MAIN_WEIGHT_BYTES = 4
"""Bytes per element of main weights, which are in fp32."""

GRADIENT_DTYPE_ARGUMENT_SINCE = datetime.date(2026, 7, 2)
"""Date since which main gradients are in fp32 only if an argument requests that format (Megatron-LM adfe9e11d9)."""

ONLY_LAYERS_PREFETCH_SINCE = datetime.date(2026, 4, 1)
"""Date since which, after the first backward pass, only layers gather weights ahead (Megatron-LM 41f3b6f308)."""

OUTER_WEIGHTS_STAY_SINCE = datetime.date(2026, 5, 30)
"""Date since which weights outside of layers stay gathered between steps (Megatron-LM 378d81fbd3)."""


@dataclass
class ShardedBucket:
    """Parameters whose weights are gathered together, and whose gradients are reduced together.

    layer_index: the layer of the parameters; None outside of layers.
    element_count: number of elements, with padding. shard_count: number of ranks that divide the bucket.
    parameter_ranges: first and last element of each parameter.
    paths_with_gradient: paths of the parameters that have their gradient of this backward pass.
    weights, gradients: memory of the gathered weights and of the gradients of all ranks; None while there is none.
    """

    parameters: list[Parameter]
    layer_index: int | None
    element_count: int
    shard_count: int
    parameter_ranges: list[tuple[int, int]]
    paths_with_gradient: set[ModulePath] = field(default_factory=set)
    weights: Storage | None = None
    gradients: Storage | None = None

    @property
    def is_trained(self) -> bool:
        """Whether the parameters are trained."""
        return self.parameters[0].is_trained

    @property
    def shard_size(self) -> int:
        """The number of elements of the bucket that one rank stores."""
        return self.element_count // self.shard_count


class ShardedWeights:
    """The parameter buckets of a rank, with the gathered weights and the gradients that wait for reduction.

    buckets: in the order in which weights are gathered ahead.
    gradient_bytes: bytes of an element of a main gradient.
    waiting_buckets: the buckets whose gradients wait for their reduction.
    shard_storages: memory of the shards of weights, main weights and main gradients.
    updated_element_counts: elements of each parameter that this rank updates.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        settings: MegatronSettings,
        layout: Layout,
        rank_coordinates: Coordinates,
        memory_meter: Meter | EventRecorder,
    ) -> None:
        self.meter = memory_meter
        self.layout = layout
        self.coordinates = rank_coordinates
        self.buckets: list[ShardedBucket] = make_buckets(parameters, settings, layout)
        self.bucket_of_path = {parameter.path: bucket for bucket in self.buckets for parameter in bucket.parameters}
        has_gradient_dtype_argument = _is_version_since(settings, GRADIENT_DTYPE_ARGUMENT_SINCE)
        has_fp32_gradients = (
            settings.megatron_fsdp_main_grads_dtype == "fp32"
            if has_gradient_dtype_argument
            else settings.reduces_in_fp32
        )
        self.gradient_bytes = MAIN_WEIGHT_BYTES if has_fp32_gradients else 2
        self.prefetches_only_layers = _is_version_since(settings, ONLY_LAYERS_PREFETCH_SINCE)
        self.keeps_outer_weights_gathered = _is_version_since(settings, OUTER_WEIGHTS_STAY_SINCE)
        layer_indices = {bucket.layer_index for bucket in self.buckets} - {None}
        layer_elements = sum(
            parameter.element_count
            for bucket in self.buckets
            if bucket.layer_index is not None
            for parameter in bucket.parameters
        )
        self.queue_elements = settings.suggested_communication_unit_size or max(
            GRADIENT_QUEUE_ELEMENTS, 2 * (layer_elements // max(1, len(layer_indices)))
        )
        self.waiting_buckets: list[ShardedBucket] = []
        self.shard_storages: list[Storage] = []
        self.fp32_gradients: list[Storage] = []
        self.updated_element_counts: list[int] = []

    def _allocate(self, storage_bytes: int, memory_category: str) -> Storage:
        """Allocates bytes under a category of memory, such as weights."""
        with count_storages_as(self.meter, memory_category):
            return Storage(self.meter, storage_bytes)

    def set_up(self, weights_by_path: dict[ModulePath, Storage]) -> None:
        """Moves the model's weights into buckets one by one, and frees each weight that has been moved."""
        for bucket in self.buckets:
            self.shard_storages.append(self._allocate(2 * bucket.shard_size, "weights"))
            gathered_weights = self._allocate(2 * bucket.element_count, "weights")
            if bucket.is_trained:
                self.shard_storages.append(self._allocate(MAIN_WEIGHT_BYTES * bucket.shard_size, "optimizer"))
            for parameter in bucket.parameters:
                del weights_by_path[parameter.path]
            del gathered_weights
        shard_elements = sum(bucket.shard_size for bucket in self.buckets if bucket.is_trained)
        self.shard_storages.append(self._allocate(self.gradient_bytes * shard_elements, "gradients"))
        trained_buckets = [bucket for bucket in self.buckets if bucket.is_trained]
        self.updated_element_counts = [
            shard_size for bucket in trained_buckets for shard_size in self._shard_sizes_on_rank(bucket) if shard_size
        ]

    def _shard_sizes_on_rank(self, bucket: ShardedBucket) -> Iterator[int]:
        """Yields, for each parameter of a bucket, its number of elements in this rank's shard."""
        rank_coordinates, is_expert = self.coordinates, bucket.parameters[0].is_expert
        shard_start = bucket.shard_size * (
            (rank_coordinates.edp if is_expert else rank_coordinates.dp * self.layout.cp + rank_coordinates.cp)
            % bucket.shard_count
        )
        for parameter_start, parameter_end in bucket.parameter_ranges:
            yield max(0, min(parameter_end, shard_start + bucket.shard_size) - max(parameter_start, shard_start))

    # --- weights -----------------------------------------------------------------------------------------------------

    def gather(self, layer_index: int | None, is_backward: bool = False) -> None:
        """Gathers the weights of a layer and, up to a number of elements, of the next layers (`all_gather_params`)."""
        bucket_indices = [
            bucket_index for bucket_index, bucket in enumerate(self.buckets) if bucket.layer_index == layer_index
        ]
        if layer_index is None:
            bucket_indices = bucket_indices[:1]
        if layer_index is not None or not self.prefetches_only_layers:
            next_bucket_indices = (
                range(bucket_indices[0] - 1, -1, -1) if is_backward else range(bucket_indices[0], len(self.buckets))
            )
            prefetched_elements = 0
            for bucket_index in next_bucket_indices:
                if prefetched_elements >= self.queue_elements // 2:
                    break
                if bucket_index not in bucket_indices:
                    bucket_indices.append(bucket_index)
                    prefetched_elements += self.buckets[bucket_index].element_count
        with allocate_on_stream(self.meter, GATHER_STREAM):
            for bucket_index in sorted(bucket_indices):
                if self.buckets[bucket_index].weights is None:
                    self.buckets[bucket_index].weights = self._allocate(
                        2 * self.buckets[bucket_index].element_count, "weights"
                    )

    def _free_weights(self, layer_index: int) -> None:
        """Frees the gathered weights of a layer on this rank."""
        for bucket in self.buckets:
            if bucket.layer_index == layer_index:
                bucket.weights = None

    def run_layer(
        self,
        autograd_graph: AutogradGraph,
        layer_index: int,
        layer_input: Tensor,
        run_modules: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Runs a layer between gathering and freeing its weights, in both passes."""
        self.gather(layer_index)

        def free_after_backward(output_gradient: Tensor, needs_input_grad: NeedsInputGrad) -> list[Tensor]:
            self._free_weights(layer_index)
            return [output_gradient]

        layer_output = run_modules(
            record(autograd_graph, "sharded_layer", (layer_input,), layer_input.detached(), free_after_backward)
        )
        self._free_weights(layer_index)
        if layer_output.node is not None:
            layer_output.node.hooks.append(lambda: self.gather(layer_index, is_backward=True))
        return layer_output

    # --- gradients ---------------------------------------------------------------------------------------------------

    def accumulate_gradient(self, parameter_path: ModulePath) -> None:
        """Moves a parameter's gradient to its bucket, and reduces the bucket after its last gradient."""
        bucket = self.bucket_of_path[parameter_path]
        if bucket.gradients is None:
            bucket.gradients = self._allocate(self.gradient_bytes * bucket.element_count, "gradients")
        bucket.paths_with_gradient.add(parameter_path)
        if len(bucket.paths_with_gradient) == len(bucket.parameters):
            while sum(waiting_bucket.element_count for waiting_bucket in self.waiting_buckets) > self.queue_elements:
                _free_gradients(self.waiting_buckets.pop(0))
            self.waiting_buckets.append(bucket)

    def end_backward(self) -> None:
        """Frees the gradients that were reduced during the backward pass (`_root_post_backward`)."""
        for bucket in self.buckets:
            _free_gradients(bucket)
        self.waiting_buckets = []

    def end_step(self) -> None:
        """Frees gathered weights (`AllGatherPipeline.reset`), and casts gradients for the optimizer.

        Gradients below fp32 are copied, and the copies stay (`update_main_grads`).
        """
        for bucket in self.buckets:
            if bucket.layer_index is not None or not self.keeps_outer_weights_gathered:
                bucket.weights = None
        if self.gradient_bytes < MAIN_WEIGHT_BYTES:
            for element_count in self.updated_element_counts:
                self.fp32_gradients.append(self._allocate(MAIN_WEIGHT_BYTES * element_count, "gradients"))
                if len(self.fp32_gradients) > len(self.updated_element_counts):
                    self.fp32_gradients.pop(0)


def _is_version_since(settings: MegatronSettings, first_date: datetime.date) -> bool:
    """Whether the run's Megatron-LM version is from `first_date` or later."""
    return settings.date is None or settings.date >= first_date


def _free_gradients(bucket: ShardedBucket) -> None:
    """Frees the gradients of a bucket."""
    bucket.gradients = None
    bucket.paths_with_gradient = set()


def make_buckets(parameters: Sequence[Parameter], settings: MegatronSettings, layout: Layout) -> list[ShardedBucket]:
    """Returns the buckets of parameters, grouped by layer and kind (`_get_parameter_groups`)."""
    parameters_by_group: dict[tuple[int | None, bool, bool], list[Parameter]] = {}
    for parameter in parameters:
        layer_index = next((path_part for path_part in parameter.path if isinstance(path_part, int)), None)
        parameters_by_group.setdefault((layer_index, parameter.is_expert, parameter.is_trained), []).append(parameter)
    largest_bucket_elements = settings.ddp_bucket_size or max(
        SMALLEST_BUCKET_ELEMENTS, BUCKET_ELEMENTS_PER_RANK * layout.shard_count
    )
    buckets = []
    for (layer_index, is_expert, _), group_parameters in parameters_by_group.items():
        for bucket_parameters in (
            [group_parameters]
            if layer_index is not None
            else _parameter_groups(group_parameters, largest_bucket_elements)
        ):
            ordered_parameters = sorted(bucket_parameters, key=_elements_per_row, reverse=True)
            shard_count = layout.expert_shard_count if is_expert else layout.shard_count
            bucket_elements, element_ranges = _pack_bucket(ordered_parameters, shard_count)
            buckets.append(ShardedBucket(ordered_parameters, layer_index, bucket_elements, shard_count, element_ranges))
    return buckets


def _parameter_groups(parameters: Sequence[Parameter], largest_bucket_elements: int) -> Iterator[list[Parameter]]:
    """Yields groups of parameters with at most the allowed number of elements."""
    parameter_group: list[Parameter] = []
    for parameter in parameters:
        parameter_group.append(parameter)
        if sum(group_parameter.element_count for group_parameter in parameter_group) >= largest_bucket_elements:
            yield parameter_group
            parameter_group = []
    if parameter_group:
        yield parameter_group


def _elements_per_row(parameter: Parameter) -> int:
    """Returns the number of elements per row of a parameter: 1 for a vector."""
    return math.prod(parameter.tensor.shape[1:])


def _pack_bucket(parameters: Sequence[Parameter], shard_count: int) -> tuple[int, list[tuple[int, int]]]:
    """Returns the size of a bucket and the range of each parameter (`build_data_parallel_buffer_index`).

    Parameters begin at multiples of a number of elements, with shorter parameters in the gaps.
    """
    row_alignment = _elements_per_row(parameters[0])
    for parameter in parameters:
        row_size, parameter_size = _elements_per_row(parameter), parameter.element_count
        if (
            row_size != row_alignment
            and (row_alignment % row_size or parameter_size % row_alignment)
            and parameter_size >= row_alignment
        ):
            row_alignment = math.lcm(row_alignment, row_size)
    start_by_path: dict[ModulePath, int] = {}
    small_parameters = [parameter for parameter in parameters if parameter.element_count < row_alignment]
    large_parameters = [parameter for parameter in parameters if parameter.element_count >= row_alignment]
    bucket_end = 0
    while large_parameters:
        parameter = large_parameters.pop(0)
        start_by_path[parameter.path] = bucket_end
        unaligned_elements = parameter.element_count % row_alignment
        if not unaligned_elements:
            bucket_end += parameter.element_count
            continue
        gap_start, bucket_end = (
            bucket_end + parameter.element_count,
            bucket_end + round_up(parameter.element_count, row_alignment),
        )
        gap_size = row_alignment - unaligned_elements
        for large_parameter in large_parameters:
            large_parameter_remainder = large_parameter.element_count % row_alignment
            if large_parameter_remainder and unaligned_elements + large_parameter_remainder <= row_alignment:
                large_parameters.remove(large_parameter)
                start_by_path[large_parameter.path] = bucket_end - large_parameter_remainder
                gap_size -= large_parameter_remainder
                bucket_end += large_parameter.element_count - large_parameter_remainder
                break
        for small_parameter in list(small_parameters):
            if small_parameter.element_count <= gap_size:
                start_by_path[small_parameter.path] = gap_start
                gap_start, gap_size = (
                    gap_start + small_parameter.element_count,
                    gap_size - small_parameter.element_count,
                )
                small_parameters.remove(small_parameter)
    for small_parameter in small_parameters:
        start_by_path[small_parameter.path] = bucket_end
        bucket_end += small_parameter.element_count
    parameter_ranges = [
        (start_by_path[parameter.path], start_by_path[parameter.path] + parameter.element_count)
        for parameter in parameters
    ]
    return round_up(bucket_end, shard_count * row_alignment), parameter_ranges
