"""A rank's temporary bytes at points of a training step, in addition to activations and parameters.

They are buffers in which gradients are summed over replicas, parameters that are sharded and gathered, and temporary
tensors of the optimizer's step. Each framework counts its own (`transient_bytes` of its `estimate.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from ..device_memory.optimizers.registry import optimizer
from ..device_memory.optimizers.step import OptimizedParameter
from ..device_memory.training import TrainingConfig
from ..parallel.layout import Layout
from ..simulator.autograd import AutogradGraph
from ..simulator.meter import Meter
from ..simulator.tensor import DTYPES, FLOAT32, Dtype, empty


class StageParameterCounts(NamedTuple):
    """The numbers of parameters, by kind, of a pipeline stage on one tensor-parallel rank.

    dense: parameters of all modules except routed experts.
    experts: parameters of routed experts.
    outside_layers: parameters of modules outside the layers, such as the embedding and the head.
    largest_layer: parameters of the largest layer.
    largest_tensor: elements of the largest tensor.
    largest_layer_tensor: elements of the largest tensor in a layer.
    largest_dense_layer_tensor: elements of the largest tensor in a layer that is not of experts.
    extra_gradient_elements: elements by which whole gradients exceed their divided weights
        (`DTensorKernels.look_up_rows`).
    """

    dense: int
    experts: int
    outside_layers: int = 0
    largest_layer: int = 0
    largest_tensor: int = 0
    largest_layer_tensor: int = 0
    largest_dense_layer_tensor: int = 0
    extra_gradient_elements: int = 0

    @property
    def total(self) -> int:
        """The number of all parameters of the stage."""
        return self.dense + self.experts


class TransientBytes(NamedTuple):
    """A rank's temporary bytes by the moment of a training step at which they are allocated; 0 by default.

    Bytes of a moment inside of the passes are added to `during_passes`: they are negative where less exists then.

    whole_step: throughout the step.
    during_passes: during forward and backward passes.
    around_loss: around the loss.
    outside_layers: in the backward pass, where no layer runs.
    outside_modules: added to `outside_layers` where no module runs.
    before_head: between the layers' forward pass and that of the head.
    after_head: between the head's backward pass and that of the layers.
    forward_start: when a forward pass begins.
    from_first_gradient: in a backward pass, from its first gradient on.
    later_micro_batches: in all passes but those of the first micro-batch.
    in_layer_backward: in a layer's backward pass.
    from_previous_layer: in a layer's backward pass, left by the layer that ran before it.
    from_head: in the last layer's backward pass, left by the head.
    backward_end: when a backward pass has ended.
    gradient_reduction: after the last backward pass of a step, when gradients are reduced.
    optimizer_step: the peak of the optimizer's step.
    """

    whole_step: int = 0
    during_passes: int = 0
    around_loss: int = 0
    outside_layers: int = 0
    outside_modules: int = 0
    before_head: int = 0
    after_head: int = 0
    forward_start: int = 0
    from_first_gradient: int = 0
    later_micro_batches: int = 0
    in_layer_backward: int = 0
    from_previous_layer: int = 0
    from_head: int = 0
    backward_end: int = 0
    gradient_reduction: int = 0
    optimizer_step: int = 0


TransientBytesOfRank: TypeAlias = Callable[[Layout, Sequence[StageParameterCounts], int], TransientBytes]
"""Counts a rank's temporary bytes from its layout, its stages' parameters and the micro-batches of a step."""


def no_transient_bytes(
    layout: Layout, stage_parameters: Sequence[StageParameterCounts], micro_batch_count: int
) -> TransientBytes:
    """Returns temporary bytes of 0, for frameworks without temporary tensors."""
    return TransientBytes()


class OptimizerStepBytes(NamedTuple):
    """The temporary bytes of an optimizer step per tensor element, 0 by default.

    bytes_per_parameter: bytes per parameter.
    per_element_of_largest_tensor: further bytes per element of the largest tensor.
    per_element_of_largest_layer_tensor: further bytes per element of the largest tensor in a layer, whose update may
        not be over yet.
    per_adamw_parameter: where matrices are updated apart (Muon), bytes per parameter that is no matrix in a layer; None
        where all parameters are updated alike.
    gradient_copy_bytes: bytes of the fp32 copy of an element of a gradient; part of `bytes_per_parameter`.
    gradient_element_bytes: bytes of an element of a gradient.
    """

    bytes_per_parameter: float = 0
    per_element_of_largest_tensor: float = 0
    per_element_of_largest_layer_tensor: float = 0
    per_adamw_parameter: float | None = None
    gradient_copy_bytes: int = 0
    gradient_element_bytes: int = 0

    def rank_bytes(self, layout: Layout, stage_parameters: Sequence[StageParameterCounts], is_sharded: bool) -> int:
        """Returns the most temporary bytes of the optimizer step on a rank. is_sharded: whether ranks update shards."""
        dense_parameters = sum(stage.dense for stage in stage_parameters)
        expert_parameters = sum(stage.experts for stage in stage_parameters)
        shard_count, expert_shards = (layout.shard_count, layout.expert_shard_count) if is_sharded else (1, 1)
        parameter_bytes = self.bytes_per_parameter * (
            dense_parameters / shard_count + expert_parameters / expert_shards
        )
        if self.per_adamw_parameter is None:
            largest_tensor_bytes = self.per_element_of_largest_tensor * max(
                stage.largest_tensor for stage in stage_parameters
            )
            largest_tensor_bytes += self.per_element_of_largest_layer_tensor * max(
                stage.largest_layer_tensor for stage in stage_parameters
            )
        else:
            largest_dense_layer_tensor = max(stage.largest_dense_layer_tensor for stage in stage_parameters)
            adamw_parameters = sum(stage.outside_layers for stage in stage_parameters) + expert_parameters
            largest_tensor_bytes = max(
                (self.per_element_of_largest_tensor + self.per_element_of_largest_layer_tensor)
                * largest_dense_layer_tensor,
                self.per_adamw_parameter * adamw_parameters,
            )
        extra_gradient_elements = sum(stage.extra_gradient_elements for stage in stage_parameters)
        extra_bytes = (self.gradient_copy_bytes + self.gradient_element_bytes) * extra_gradient_elements
        return round(parameter_bytes + largest_tensor_bytes / shard_count + extra_bytes / shard_count)


MATRIX_SIDE = 1024
"""Number of rows and of columns of the matrices on which an optimizer's step is measured."""


def measure_optimizer_step(training_config: TrainingConfig, has_flat_parameters: bool = False) -> OptimizerStepBytes:
    """Measures the temporary bytes of an optimizer step on one, two and three matrices.

    The step over two shows what one matrix leaves to the next one's update; the third adds what each parameter takes.
    has_flat_parameters: whether a rank's shard of all parameters is one tensor, without rows.
    """
    # little: one tensor, or adapters alone
    if training_config.optimizer_in_backward or training_config.adapters is not None:
        return OptimizerStepBytes()
    dtype, matrix_elements = DTYPES[training_config.dtype], MATRIX_SIDE * MATRIX_SIDE
    gradient_type = training_config.gradient_dtype or dtype
    has_gradient_copies = training_config.has_master_weights and FLOAT32 not in (dtype, gradient_type)
    copy_bytes, gradient_element_bytes = FLOAT32.bytes if has_gradient_copies else 0, gradient_type.bytes
    if has_flat_parameters:
        return OptimizerStepBytes(
            _optimizer_step_peak(training_config, gradient_type, has_gradient_copies, 1, has_flat_parameters=True)
            / matrix_elements,
            gradient_copy_bytes=copy_bytes,
            gradient_element_bytes=gradient_element_bytes,
        )
    peak_of_1_matrix, peak_of_2_matrices, peak_of_3_matrices = (
        _optimizer_step_peak(training_config, gradient_type, has_gradient_copies, matrix_count) / matrix_elements
        for matrix_count in (1, 2, 3)
    )
    bytes_per_parameter = max(0.0, peak_of_3_matrices - peak_of_2_matrices)
    largest_matrix_bytes = max(0.0, peak_of_1_matrix - bytes_per_parameter)
    second_matrix_bytes = max(0.0, peak_of_2_matrices - 2 * bytes_per_parameter - largest_matrix_bytes)
    bytes_per_adamw_parameter = None
    if optimizer(training_config.optimizer).separates_layer_matrices:
        adamw_peak_bytes_per_element = (
            _optimizer_step_peak(training_config, gradient_type, has_gradient_copies, 1, is_matrix=False)
            / matrix_elements
        )
        bytes_per_adamw_parameter = max(0.0, adamw_peak_bytes_per_element - bytes_per_parameter)
    return OptimizerStepBytes(
        bytes_per_parameter,
        largest_matrix_bytes,
        second_matrix_bytes,
        bytes_per_adamw_parameter,
        copy_bytes,
        gradient_element_bytes,
    )


def _optimizer_step_peak(
    training_config: TrainingConfig,
    gradient_type: Dtype,
    has_gradient_copies: bool,
    parameter_count: int,
    is_matrix: bool = True,
    has_flat_parameters: bool = False,
) -> int:
    """Replays two optimizer steps over `parameter_count` tensors, and returns the temporary bytes of the second step.

    has_gradient_copies: whether gradients are copied to fp32 before the step. is_matrix: whether the optimizer
        takes the tensors for matrices in a layer. has_flat_parameters: whether they are vectors.
    """
    memory_meter = Meter()
    autograd_graph, tensor_shape = (
        AutogradGraph(memory_meter),
        (MATRIX_SIDE * MATRIX_SIDE,) if has_flat_parameters else (MATRIX_SIDE, MATRIX_SIDE),
    )
    weight_type = FLOAT32 if training_config.has_master_weights else DTYPES[training_config.dtype]
    parameters = [
        OptimizedParameter(empty(memory_meter, tensor_shape, weight_type), is_matrix and not has_flat_parameters)
        for _ in range(parameter_count)
    ]
    gradients = [empty(memory_meter, tensor_shape, gradient_type) for _ in parameters]
    start_bytes = 0
    for _ in range(2):  # the first step allocates the optimizer's states
        start_bytes = memory_meter.live_bytes
        memory_meter.restart()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.gradient = empty(memory_meter, tensor_shape, FLOAT32) if has_gradient_copies else gradient
        training_config.step_optimizer(autograd_graph, parameters)
        for parameter in parameters:
            parameter.gradient = None
    return memory_meter.peak_bytes - start_bytes
