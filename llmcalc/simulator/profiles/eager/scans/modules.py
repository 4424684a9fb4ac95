"""The base class of recurrent modules: kernels for whole modules, and common operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .....algebra import exact_div, is_zero
from .....components.base import PUBLISHED_KERNELS_WITNESS, TORCH_WITNESS
from .....evidence import compared, kernels_compared
from .....flow.program import ModuleScope, Step, all_steps
from .....ops import State
from .....workload.rows import TOKENS
from ....published import causal_conv1d
from ....published.autograd_function import H100, Accelerator, OptionalTensor
from ....strides import is_size_one
from ....tensor import FLOAT32, UINT8, Tensor
from ..basic import BasicKernels
from ..convolution import ConvolutionKernels
from .module_steps import ModuleSteps, module_steps


@kernels_compared(TORCH_WITNESS, unchecked_kernels=("module_kernel",))
class ScanModuleKernels(ConvolutionKernels, BasicKernels):
    """Base class of the kernels that run a recurrent module as a whole, with the operations that they share.

    accelerator: properties of the device that determine kernels' workspaces.
    persistent_tensors: module path and name → tensor that the module references between its runs.
    """

    accelerator: Accelerator = H100

    def __init__(self, *lowering_arguments: Any, **lowering_options: Any) -> None:
        super().__init__(*lowering_arguments, **lowering_options)
        self.persistent_tensors: dict[Any, Tensor] = {}

    def module_kernel(self, module_scope: ModuleScope) -> Callable[[], None] | None:
        """Returns the kernel that runs a recurrent module as a whole; None for other modules."""
        for operation in module_steps(module_scope):
            if operation.verb not in ("core", "scan"):
                continue
            kind_name = type(operation.op).__name__ if operation.verb == "core" else operation.options.get("kind", "")
            kernel = getattr(self, f"{'decode' if self.decodes_one_token else 'module'}_{kind_name}", None)
            if kernel is not None:
                return lambda: self.run_module_at_once(module_scope, kernel)
        return super().module_kernel(module_scope)

    @property
    def decodes_one_token(self) -> bool:
        """Whether the pass decodes a single token, after earlier passes have filled the cache."""
        return self.has_earlier_tokens and is_size_one(self.run_config.new_rows(TOKENS))

    def run_module_at_once(
        self, module_scope: ModuleScope, compute_module: Callable[[ModuleSteps, Tensor], Tensor]
    ) -> None:
        """Runs all operations of a module by `compute_module`, which returns the last output."""
        assert module_scope.module_argument is not None
        module_operations = ModuleSteps(module_scope)
        if not self.keeps_float32_weights(module_operations):
            self._check_number_formats()
        for operation in module_operations.steps:
            if operation.verb == "keep":
                raise self.unknown_verb_error(operation, "a recurrence whose output higher layers read")
        self.store_tensor(
            module_operations.steps[-1].output_values[0],
            compute_module(module_operations, self.flat_tensor(module_scope.module_argument)),
        )
        for operation in module_operations.steps:
            if (
                operation.verb == "state"
                and self.cached_tensors_by_path is not None
                and self.cached_tensors(operation.name) is None
            ):
                raise self.unsupported("no kernels that keep this state", operation.name)
        for operation in all_steps(module_scope.items):
            for recorded_value in operation.input_values:
                if self.last_reader_ids.get(id(recorded_value.storage)) == id(operation):
                    self.free_value(recorded_value.storage)

    def keeps_float32_weights(self, module_steps: ModuleSteps) -> bool:
        """Whether a module's kernels read weights in float32 and activations in 16 bits; false by default."""
        return False

    def _check_number_formats(self) -> None:
        """Raises `UnsupportedKernel` for number formats that the kernels do not support.

        Autocast casts no weight that has its format already, as frozen weights beside adapters in float32 do.
        """
        if self.graph.autocast_dtype not in (None, self.dtype):
            raise self.unsupported("no published kernels under autocast; expected weights in the type of activations")

    def project(self, operation: Step, x: Tensor) -> Tensor:
        """Runs the linear layer of an operation on x."""
        return self.linear_output(operation, x, self.linear_weight(operation), self.bias(operation))

    def unadapted_weight(self, operation: Step) -> Tensor:
        """Returns the weight of a linear layer that a published kernel reads without calling the layer."""
        weight, adapters = self.linear_weight(operation), self.adapters
        if adapters is not None and (weight.dtype is UINT8 or operation.name in adapters.targets):
            raise self.unsupported(
                "the published module reads this weight itself; expected --lora-targets without it, and no --base",
                operation.name,
            )
        return weight

    def bias(self, operation: Step) -> Tensor | None:
        """Returns the bias of a linear layer or convolution."""
        return (
            self.weight(f"{operation.name}.bias", (operation.output_values[0].width,))
            if operation.options["bias"]
            else None
        )

    def convolution_filters(self, operation: Step) -> Tensor:
        """Returns the weight of a depthwise convolution: rearrange(weight, "d 1 w -> d w")."""
        channel_count, kernel_size = operation.output_values[0].width, operation.options["kernel"]
        return self.aten.reshape(
            self.weight(f"{operation.name}.weight", (channel_count, 1, kernel_size)), (channel_count, kernel_size)
        )

    def split_heads(self, x: Tensor, head_size: Any) -> Tensor:
        """Splits the last axis into heads: rearrange(x, "... (h d) -> ... h d")."""
        return self.aten.unflatten(x, -1, (exact_div(x.shape[-1], head_size), head_size))

    def state_decay(self, shape: tuple[Any, ...]) -> Tensor:
        """Computes the decay of a state-space mixer: A = -exp(A_log.float())."""
        return self.aten.scale(self.aten.exp(self.aten.to(self.weight("A_log", shape), FLOAT32)), "neg")

    def causal_conv(self, operation: Step, x: Tensor, activation_name: str | None = None) -> Tensor:
        """Runs a causal convolution with an activation, default none. x: [batch, channels, tokens].

        For a kernel that causal_conv1d does not have, torch's convolution of x with zeros on both sides.
        """
        aten, kernel_size = self.aten, operation.options["kernel"]
        if 2 <= kernel_size <= 4:
            convolved_x = causal_conv1d.causal_conv1d_fn(
                aten, x, self.convolution_filters(operation), self.bias(operation)
            )
            return (
                convolved_x
                if activation_name in (None, "silu")
                else self.apply_activation(convolved_x, activation_name)
            )
        weight = self.weight(f"{operation.name}.weight", (operation.output_values[0].width, 1, kernel_size))
        convolved_x = aten.slice(
            aten.convolution(x, weight, self.bias(operation), x.shape[2] + kernel_size - 1), x.shape[2]
        )
        return convolved_x if activation_name is None else self.apply_activation(convolved_x, activation_name)

    def convolve_after_cached_inputs(self, module_steps: ModuleSteps, x: Tensor, activation_name: str) -> Tensor:
        """Convolves with the inputs that earlier passes cached (transformers/cache_utils.py, `update_conv_state`)."""
        aten, state_step, token_count = self.aten, module_steps["conv_state"], x.shape[2]
        if self.cached_tensors_by_path is None:
            return self.causal_conv(module_steps["conv1d"], x, activation_name)
        assert isinstance(state_step.op, State)
        cached_token_count, cached_inputs = (
            exact_div(state_step.op.size, x.shape[1]),
            self.cached_tensors(state_step.name),
        )
        (state_tensor,) = self.state_tensors(state_step, (x.shape[1], cached_token_count))
        if cached_inputs is not None:
            x = aten.cat([state_tensor, x])
        elif token_count < cached_token_count:
            x = aten.new_tensor((*x.shape[:2], cached_token_count), x.dtype)
        return aten.slice(self.causal_conv(module_steps["conv1d"], x, activation_name), token_count)

    def do_conv(self, operation: Step) -> None:
        if is_zero(getattr(operation.op, "padding", 0)):
            super().do_conv(operation)
            return
        self._check_number_formats()
        x, state_name = (
            self.aten.transpose(self.flat_tensor(operation.input_values[0]), 1, 2),
            operation.options["state"],
        )
        uses_fused_kernel = 2 <= operation.options["kernel"] <= 4 and not self.decodes_one_token
        if self.cached_tensors_by_path is None or not uses_fused_kernel:
            if self.cached_tensors_by_path is None:
                convolved_x = self.causal_conv(operation, x)
            else:
                convolved_x = self.convolve_after_state(operation, x, state_name)
        else:
            self.cache_last_inputs(self.step_of_running_module(state_name), x)
            convolved_x = self.causal_conv(operation, x)
        self.store_tensor(operation.output_values[0], self.aten.transpose(convolved_x, 1, 2))

    def convolve_after_state(self, operation: Step, x: Tensor, state_name: str, cached_row_count: Any = None) -> Tensor:
        """Convolves x [batch, channels, tokens] after the cached inputs, and caches the last inputs."""
        aten, kernel_size, stored_inputs = self.aten, operation.options["kernel"], self.cached_tensors(state_name)
        cached_row_count = kernel_size if cached_row_count is None else cached_row_count
        channel_count, token_count = operation.output_values[0].width, x.shape[2]
        weight = self.conv_weight(operation, (channel_count, 1, kernel_size))
        if stored_inputs is None:
            output = aten.slice(
                aten.convolution(x, weight, self.bias(operation), token_count + kernel_size - 1), token_count
            )
            padded_input = aten.pad(x, token_count + cached_row_count)
        else:
            padded_input = aten.cat([stored_inputs[0], x])
            output = aten.convolution(
                aten.slice(padded_input, token_count + kernel_size - 1), weight, self.bias(operation), token_count
            )
        self.store_in_cache(state_name, aten.slice(padded_input, cached_row_count))
        return output

    def conv_weight(self, operation: Step, shape: Any) -> Tensor:
        """Returns the filters of a convolution; the filters of queries, keys and values are concatenated."""
        filter_keys = [(*self.module_path(), f"{operation_name}_conv1d.weight") for operation_name in "qkv"]
        if filter_keys[0] in self.weights:
            return self.new_pool_tensor(shape, self.dtype)
        return self.weight(f"{operation.name}.weight", shape)

    def cache_last_inputs(self, state_step: Step, x: Tensor) -> None:
        """Caches the last inputs of a convolution: conv_state.copy_(F.pad(x, (kernel - tokens, 0)))."""
        if self.cached_tensors_by_path is not None:
            assert isinstance(state_step.op, State)
            cached_tokens = exact_div(state_step.op.size, x.shape[1])
            self.state_tensors(state_step, (x.shape[1], cached_tokens))
            _padded_input = self.aten.new_tensor((*x.shape[:2], cached_tokens), x.dtype)

    def final_state(self, state_step: Step, *shape: Any) -> OptionalTensor:
        """Returns the tensor for a kernel's last state: the cached tensor, or a tensor that is copied to the cache."""
        is_first_pass = self.cached_tensors(state_step.name) is None
        state_tensors = self.state_tensors(state_step, shape)
        if not state_tensors or is_first_pass:
            return state_tensors[0] if state_tensors else None
        return self.graph.new_tensor((self.run_config.batch, *shape), state_tensors[0].dtype)

    def _normalize_with(self, operation: Step, x: Tensor) -> Tensor:
        return self.norm(x, operation.options["spec"], operation.name, x.shape[-1:])

    @compared(PUBLISHED_KERNELS_WITNESS)
    def do_scan(self, operation: Step) -> None:
        """Runs an elementwise recurrence with the kernel for its kind."""
        kernel = getattr(self, f"{'next' if self.decodes_one_token else 'scan'}_{operation.options['kind']}", None)
        if kernel is None:
            raise self.unsupported(f"no kernels for a scan of the kind '{operation.options['kind']}'", operation.name)
        self._check_number_formats()
        kernel(operation)

    def step_of_running_module(self, step_name: str) -> Step:
        """Returns an operation of the current module by name."""
        return next(operation for operation in module_steps(self.frames[-1].scope) if operation.name == step_name)

    def do_shift(self, operation: Step) -> None:
        aten, x, state_name = self.aten, self.tensor_of(operation.input_values[0]), operation.options["state"]
        cached_row = self.cached_tensors(state_name)
        previous_row = aten.new_tensor((x.shape[0], 1, *x.shape[2:]), x.dtype) if cached_row is None else cached_row[0]
        self.store_in_cache(state_name, aten.slice(x, 1, 1))
        self.store_tensor(operation.output_values[0], aten.cat([previous_row, aten.slice(x, x.shape[1] - 1, 1)], 1))

    def do_complement(self, operation: Step) -> None:
        self.store_tensor(
            operation.output_values[0], self.aten.scale(self.tensor_of(operation.input_values[0]), "rsub")
        )
