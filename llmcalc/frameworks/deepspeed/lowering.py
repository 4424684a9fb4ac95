"""Runs a model under ZeRO stage 3, which gathers each module's parameters before use and releases them after."""

from __future__ import annotations

from typing import Any

from ...flow.program import Step
from ...flow.tree import CountedOp
from ...flow.value import Value, Weight
from ...ops import Linear
from ...simulator.lowering import ModuleFrame, ModulePath
from ...simulator.profiles.eager import EagerKernels
from ...simulator.strides import Shape
from ...simulator.tensor import Dtype, SavedTensor, Tensor
from .param_coordinator import ParameterCoordinator


class UnpackHook:
    """A backward hook that unpacks a saved tensor even if no gradient needs the tensor."""

    def __init__(self, saved_tensor: SavedTensor) -> None:
        self.saved_tensor = saved_tensor

    def __call__(self) -> None:
        self.saved_tensor.unpack()


class GatheringProfile(EagerKernels):
    """Runs a compute graph with ZeRO stage 3's hooks, which gather and release parameters module by module.

    coordinator: gathers and releases parameters; None in a run that only lists them.
    gathered_modules: modules that the current step gathered.
    modules_by_frame: per frame, the modules that stay gathered until its end.
    loss_modules: modules whose parameters the loss reads, which stay gathered until its end.
    """

    coordinator: ParameterCoordinator | None = None

    def set_coordinator(self, coordinator: ParameterCoordinator) -> None:
        """Makes all parameters created from now on partitioned. coordinator: gathers and releases parameters."""
        self.coordinator = coordinator
        self.gathered_modules: list[ModulePath] = []
        self.modules_by_frame: list[list[ModulePath]] = []
        self.loss_modules: list[ModulePath] = []

    # --- parameters -------------------------------------------------------------------------------------------------

    def create_parameter(self, parameter_key: ModulePath, template: Tensor) -> Tensor:
        """Creates a partitioned parameter and returns the full tensor."""
        if self.coordinator is None or parameter_key in self.buffers:
            return super().create_parameter(parameter_key, template)
        return self.coordinator.add_parameter(parameter_key, template).full_param

    @property
    def parameters(self) -> list[tuple[Any, Tensor]]:
        """Returns the path and the full tensor of every trained parameter."""
        if self.coordinator is None:
            return super().parameters
        return [
            (parameter.path, parameter.full_param)
            for parameter in self.coordinator.parameters
            if parameter.full_param.is_leaf
        ]

    def unread_parameters(self, module_name: str, parameter_use: CountedOp) -> list[Tensor]:
        """Returns a module's parameters that are read neither by the forward nor by the backward pass."""
        unread_weights = super().unread_parameters(module_name, parameter_use)
        if self.coordinator is None:
            return unread_weights
        unread_count = len(self.unused_modules)
        return [
            self.coordinator.add_parameter(("unread", unread_count, weight_index, module_name), weight).full_param
            for weight_index, weight in enumerate(unread_weights)
        ]

    def parameter(self, parameter_key: ModulePath, shape: Shape, dtype: Dtype, trained: bool) -> Tensor:
        """Returns a parameter, gathered from all ranks."""
        return self.gather_for_use(super().parameter(parameter_key, shape, dtype, trained))

    def _shared_weight(self, weight: Weight, parameter_name: str, shape: Shape) -> Tensor:
        """Returns a parameter that several modules share, gathered from all ranks."""
        return self.gather_for_use(super()._shared_weight(weight, parameter_name, shape))

    def gather_for_use(self, weight: Tensor) -> Tensor:
        """Returns a parameter; if ranks store shards of it, first gathers all parameters of its module."""
        if self.coordinator is not None and not self.only_finds_parameters:
            parameter = self.coordinator.parameter_by_tensor_id.get(id(weight))
            if parameter is not None and not any(
                parameter.module in module_set for module_set in (self.gathered_modules, *self.modules_by_frame)
            ):
                self.gathered_modules.append(parameter.module)
                self.coordinator.fetch_module(parameter.module)
        return weight

    # --- running ----------------------------------------------------------------------------------------------------

    def run_step(self, operation: Step) -> None:
        """Runs one operation of the compute graph and then releases the parameters that it has read."""
        if self.coordinator is None:
            super().run_step(operation)
            return
        outer_modules, self.gathered_modules = self.gathered_modules, []
        input_tensor = None
        if self.adapters is not None and isinstance(operation.op, Linear):
            input_tensor = self._value_with_tensor(operation.input_values[0])
        linear_input = (
            self.tensors_by_value[id(input_tensor)] if input_tensor is not None and self.graph.is_grad_enabled else None
        )
        has_frozen_input = linear_input is not None and not linear_input.needs_grad
        try:
            super().run_step(operation)
            if linear_input is not None and not has_frozen_input:
                self._save_input(linear_input, operation.output_values[0])
        finally:  # a part that runs again stops at the last tensor that is needed
            linear_input = None
            used_modules, self.gathered_modules = self.gathered_modules, outer_modules
        if self.head_of_loss is not None and self.head_of_loss[0] is operation:
            self.loss_modules, used_modules = used_modules, []
        for module in used_modules:
            if module == self.module_path():
                self.modules_by_frame[-1].append(module)
            elif has_frozen_input and not any(
                parameter.full_param.is_leaf for parameter in self.coordinator.parameters_by_module[module]
            ):
                self.coordinator.release_module(module)  # no gradient passes a frozen layer whose input needs none
            else:
                self._add_release_hooks(module, operation.output_values[0] if operation.output_values else None)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Computes the loss; releases the output head's parameters if the loss multiplies by them."""
        loss = super().loss(logits, labels)
        loss_modules, self.loss_modules = getattr(self, "loss_modules", []), []
        for module in loss_modules:
            assert self.coordinator is not None
            self.coordinator.external_parameter_modules.add(module)
            if loss.node is not None:
                loss.node.hooks.append(self.coordinator.pre_backward_hook(module))
            self.coordinator.release_module(module)
        return loss

    def _save_input(self, x: Tensor, product_output: Value) -> None:
        """Saves a linear layer's input even for a frozen weight (`LinearFunctionForZeroStage3`)."""
        bound_tensor = self._value_with_tensor(product_output)
        autograd_node = None if bound_tensor is None else self.tensors_by_value[id(bound_tensor)].node
        if autograd_node is not None:
            autograd_node.hooks.append(UnpackHook(self.graph.save(x)))

    def _run_module_items(self, module_call: ModuleFrame) -> None:
        """Runs a module's operations, between gathering and releasing the module's parameters."""
        if self.coordinator is None:
            super()._run_module_items(module_call)
            return
        self.modules_by_frame.append([])
        try:
            super()._run_module_items(module_call)
        finally:
            running_modules = self.modules_by_frame.pop()
        for module in running_modules:
            self._add_release_hooks(module, module_call.scope.output)

    def _add_release_hooks(self, module_path: ModulePath, module_output: Value | None) -> None:
        """Releases a module's parameters after its forward pass, and adds a hook for the backward pass."""
        assert self.coordinator is not None
        bound_tensor = self._value_with_tensor(module_output)
        autograd_node = None if bound_tensor is None else self.tensors_by_value[id(bound_tensor)].node
        if autograd_node is not None:
            autograd_node.hooks.append(self.coordinator.pre_backward_hook(module_path))
        self.coordinator.release_module(module_path)
