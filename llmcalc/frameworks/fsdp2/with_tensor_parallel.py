"""FSDP2 combined with tensor parallelism: linear layers sharded by both.

A parameter is a distributed tensor with this rank's rows or columns. FSDP shards its rows again (`_StridedShard`).
Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py of torch 2.13, `_init_sharding_spec`,
`_get_grad_inner_tensor`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from ...flow.axis import Shape as Axes
from ...flow.program import ProgramItem, Step
from ...flow.record import Flow
from ...parallel.rank_program import AxisShard, axes_with_concatenated_parts, is_divided
from ...simulator.lowering import ModulePath
from ...simulator.profiles.dtensor import DTensorKernels, steps_with_module_path
from ...simulator.strides import Shape
from .lowering import FsdpProfile, ParamGroupKey, torchtitan_path
from .param_groups import CommunicationState


class FsdpTensorParallelProfile(DTensorKernels, FsdpProfile):
    """Runs a compute graph in which FSDP shards parameters that tensor parallelism has already divided.

    unsharded_shapes: path of a divided parameter, without layer indices → its undivided shape.
    """

    unsharded_shapes: Mapping[str, Shape] = {}

    def shard(
        self,
        communication_state: CommunicationState,
        stack_paths: Collection[str],
        outer_group_keys: Collection[ParamGroupKey],
    ) -> None:
        """Makes all parameters created from now on sharded."""
        super().shard(communication_state, stack_paths, outer_group_keys)
        self.divides_loss: bool = communication_state.sharding.uses_loss_parallel
        self.copies_gathered: bool = communication_state.sharding.copies_gathered_tokens

    def allocate_parameters(self, program: Flow) -> None:
        """Allocates the parameters, and records their shapes before the division by tensor parallelism."""
        self.find_placements(program)
        self.unsharded_shapes = dict(_unsharded_shapes(program.root.items, "model"))
        super().allocate_parameters(program)

    @property
    def has_overlapped_products(self) -> bool:
        """Whether matrix products overlap with collectives, as torch.compile arranges it (`micro_pipeline_tp_pass`)."""
        overlaps_messages = self.communication_state is not None and self.communication_state.sharding.overlaps_products
        return overlaps_messages and self.choices.compiled and self.graph.meter.place.layer_index >= 0

    def unsharded_shape(self, parameter_key: ModulePath, shape: Shape) -> Shape:
        """Returns the shape that a parameter has before tensor parallelism divides it."""
        return self.unsharded_shapes.get(_path_without_indices(parameter_key), shape)

    def gathers_in_8_bits(self, operation: Step) -> bool:
        """Whether an operation's input is gathered in float8 with a scale per tensor (float8_tensor_parallel.py)."""
        float8_settings = None if self.communication_state is None else self.communication_state.sharding.float8
        if float8_settings is None or float8_settings.recipe != "tensorwise":
            return False
        layer_name = f"{_path_without_indices(self.module_path())}.{operation.name}".rstrip(".")
        row_count, column_count = self.unsharded_shapes[f"{layer_name}.weight"]
        return float8_settings.is_converted(torchtitan_path(layer_name), row_count, column_count)

    def has_partial_gradient(self, parameter_key: ModulePath) -> bool:
        """Whether the rank's gradient of a parameter must be summed over the tensor-parallel group."""
        return self.token_ranks > 1 and _path_without_indices(parameter_key) not in self.unsharded_shapes


def _path_without_indices(parameter: ModulePath) -> str:
    """Returns the path of a parameter without layer indices."""
    return ".".join(str(path_part).strip(".") for path_part in parameter if type(path_part) is not int and path_part)


def _unsharded_shapes(program_items: Iterable[ProgramItem], module_path: str) -> Iterator[tuple[str, Shape]]:
    """Yields (path, shape) of each parameter that tensor parallelism divides, with its shape before division."""
    for step_path, operation in steps_with_module_path(program_items, module_path):
        if operation.weight is not None and is_divided((*operation.weight.input_axes, *operation.weight.output_axes)):
            is_table = operation.verb in ("table", "unread_table")
            row_count, column_count = (
                (operation.weight.input_axes, operation.weight.output_axes)
                if is_table
                else (operation.weight.output_axes, operation.weight.input_axes)
            )
            yield f"{step_path}.weight", (_unsharded_element_count(row_count), _unsharded_element_count(column_count))
            yield f"{step_path}.bias", (_unsharded_element_count(operation.weight.output_axes),)


def _unsharded_element_count(axes: Axes) -> int:
    """Returns the number of elements along axes, before tensor parallelism divides them."""
    axis_length = 1
    for axis in axes_with_concatenated_parts(axes):
        axis_length *= axis.full_size if isinstance(axis, AxisShard) else axis.size
    return axis_length
