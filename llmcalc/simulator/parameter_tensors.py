"""The parameters and buffers of a program."""

from __future__ import annotations

from typing import Any

from ..flow.axis import element_count
from ..flow.program import Step
from ..flow.record import Flow
from ..flow.tree import CountedOp
from ..flow.value import Weight
from .liveness import unused_modules
from .module_frame import ModulePath
from .strides import Shape
from .tensor import INT64, Dtype, Tensor, count_storages_as, empty
from .value_tensors import ValueTensors


class ParameterTensors(ValueTensors):
    """The parameters and buffers of a program, allocated on first use."""

    def weight(self, parameter_name: str, shape: Shape, module_path: ModulePath | None = None) -> Tensor:
        """Returns a module's parameter by name, allocated at the first use. module_path: default the current module."""
        parameter_key = (*(self.module_path() if module_path is None else module_path), parameter_name)
        is_trained = self.adapters is None and self._is_in_trained_part
        return self.parameter(parameter_key, shape, self.trained_dtype if is_trained else self.dtype, is_trained)

    def adapter_matrix(self, parameter_name: str, shape: Shape, module_path: ModulePath | None = None) -> Tensor:
        """Returns a module's trained adapter matrix. module_path: default the current module."""
        assert self.adapters is not None
        parameter_key = (*(self.module_path() if module_path is None else module_path), parameter_name)
        return self.parameter(parameter_key, shape, self.adapters.dtype, trained=True)

    @property
    def _is_in_trained_part(self) -> bool:
        """Whether the running module's parameters are trained; false for modules below the first trained layer."""
        if self.first_trained_layer is None:
            return True
        layer_indices = (module_call.layer_index for module_call in self.frames if module_call.layer_index is not None)
        return next(layer_indices, -1) >= self.first_trained_layer

    def expert_weight(self, operation: Step, shape: Shape, matrix_count: int = 1) -> Tensor:
        """Returns the stacked weights of all experts.

        shape: experts, rows and columns. matrix_count: the number of linear layers that are fused in it, default 1.
        """
        return self.weight(f"{operation.name}.weight", shape)

    def buffer(self, parameter_name: str, shape: Shape, is_integer: bool = False) -> Tensor:
        """Returns a buffer of the current module by name. is_integer: whether the elements are integers."""
        parameter_key = (*self.module_path(), parameter_name)
        self.buffers.add(parameter_key)
        return self.parameter(parameter_key, shape, INT64 if is_integer else self.dtype, trained=False)

    def linear_weight(self, operation: Step) -> Tensor:
        """Returns the weight [out, in] of a linear layer, which other operations may share."""
        assert operation.weight is not None
        shape = element_count(operation.weight.output_axes), element_count(operation.weight.input_axes)
        weight_owner = operation.options.get("lent")
        if weight_owner:
            return self.weight(f"{weight_owner}.weight", shape, self.module_path(outer_level_count=1))
        return self._shared_weight(operation.weight, operation.name, shape)

    def embedding_table(self, operation: Step) -> Tensor:
        """Returns the weight [rows, width] of an embedding table, which other operations may share."""
        assert operation.weight is not None
        return self._shared_weight(
            operation.weight,
            operation.name,
            (element_count(operation.weight.input_axes), element_count(operation.weight.output_axes)),
        )

    def _shared_weight(self, weight: Weight, parameter_name: str, shape: Shape) -> Tensor:
        """Returns a weight that several operations of a layer or of the model may share; allocates it on first use."""
        shared_key = ("", id(weight))
        shared_key_in_layer = (
            *shared_key,
            *(module_call.layer_index for module_call in self.frames if module_call.layer_index is not None),
        )
        for parameter_key in (shared_key, shared_key_in_layer):
            if parameter_key in self.weights:
                return self.weights[parameter_key]
        self.weights[shared_key_in_layer] = parameter = self.weight(f"{parameter_name}.weight", shape)
        return parameter

    def parameter(self, parameter_key: ModulePath, shape: Shape, dtype: Dtype, trained: bool) -> Tensor:
        """Returns the parameter or buffer at a path, allocated on first use."""
        if parameter_key not in self.weights:
            with count_storages_as(self.graph.meter, "weights"):
                self.weights[parameter_key] = empty(
                    self.graph.meter, shape, dtype, is_leaf=self.has_trained_weights and trained
                )
        return self.weights[parameter_key]

    def unread_parameters(self, parameter_name: str, counted_op: CountedOp) -> list[Tensor]:
        """Returns the weights and buffers of a module that no forward or backward pass runs."""
        memory_meter = self.graph.meter
        is_trained = self.has_trained_weights and self.adapters is None and self.first_trained_layer is None
        is_leaf = is_trained and not getattr(counted_op.op, "is_frozen", False)
        tensors = [empty(memory_meter, tensor.shape, self.dtype, is_leaf=is_leaf) for tensor in counted_op.tensors()]
        if counted_op.has_effect("buffers"):
            return [*tensors, empty(memory_meter, (counted_op.buffers(),), self.dtype)]
        return tensors

    def create_parameter(self, parameter_key: ModulePath, template: Tensor) -> Tensor:
        """Allocates a parameter or buffer. template: a tensor with the same shape and number format."""
        return empty(self.graph.meter, template.shape, template.dtype, is_leaf=template.is_leaf)

    def allocate_unread_parameters(self, program: Flow) -> None:
        """Allocates the parameters that no pass reads."""
        with count_storages_as(self.graph.meter, "weights"):
            for module_name, counted_op, copy_count in unused_modules(program.root):
                self.unused_modules += [
                    weight for _ in range(copy_count) for weight in self.unread_parameters(module_name, counted_op)
                ]

    @property
    def parameters(self) -> list[tuple[Any, Tensor]]:
        """Returns every trained parameter once with its path."""
        return [(key, weight) for key, weight in self.weights.items() if weight.is_leaf and key[0] != ""]
