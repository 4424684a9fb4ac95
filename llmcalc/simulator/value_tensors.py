"""Stores the tensors of a program's values, and frees each tensor after its last reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from sys import intern
from typing import Any, TypeVar

from ..algebra import is_zero
from ..flow.program import ModuleScope, Step
from ..flow.value import Value
from ..workload.derived_rows import QueryKeyPairs
from ..workload.recompute import NO_RECOMPUTATION, Recompute
from ..workload.rows import NO_ROWS, Rows
from ..workload.run_config import RunConfig
from .adapters import Adapters
from .aten import Aten
from .autograd import AutogradGraph
from .kernel_choices import EAGER_CHOICES, KernelChoices
from .meter import AllocationPlace
from .module_frame import ModuleFrame, ModulePath, ParameterSet, RecomputedModule, UnsupportedKernel
from .strides import Shape, numel
from .tensor import INT64, Dtype, Tensor

Result = TypeVar("Result")


@cache
def method_name(prefix: str, method_suffix: str) -> str:
    """Returns the name of a profile's method as an interned string, which Python looks up faster."""
    return intern(f"{prefix}_{method_suffix}")


class ValueTensors:
    """Stores the tensor of every value of a program, and the stack of running modules.

    The fields are those of `lowering.Lowering`.
    """

    def __init__(
        self,
        autograd_graph: AutogradGraph,
        run_config: RunConfig,
        dtype: Dtype,
        has_trained_weights: bool = True,
        recompute: Recompute = NO_RECOMPUTATION,
        included_parts: frozenset[str] = frozenset(),
        choices: KernelChoices = EAGER_CHOICES,
        adapters: Adapters | None = None,
    ) -> None:
        self.graph: AutogradGraph = autograd_graph
        self.run_config: RunConfig = run_config
        self.dtype: Dtype = dtype
        self.has_trained_weights: bool = has_trained_weights
        self.recompute: Recompute = recompute
        self.included_parts: frozenset[str] = included_parts
        self.choices: KernelChoices = choices
        self.adapters: Adapters | None = adapters
        autograd_graph.is_compiled, autograd_graph.multiprocessors = choices.compiled, choices.multiprocessors
        self.aten: Aten = Aten(autograd_graph)
        self.tensors_by_value: dict[int, Tensor] = {}
        self.inputs: dict[Any, Tensor] = {}
        self.weights: dict[Any, Tensor] = {}
        self.buffers: set[ModulePath] = set()
        self.scales_of_quantizers: dict[ModulePath, tuple[Tensor, ...]] = {}
        self.known_parameters: ParameterSet | None = None
        self.frames: list[ModuleFrame] = []
        self.first_trained_layer: int | None = None
        self.trained_dtype: Dtype = dtype
        self.pass_memo: dict[Any, Any] = {}
        self.further_outputs: list[Tensor] = []
        self.result: Value | None = None
        self.head_of_loss: tuple[Step, Tensor, Tensor | None] | None = None
        self.logits: list[Tensor] = []
        self.cached_tensors_by_path: dict[ModulePath, tuple[Tensor, ...]] | None = None
        self.has_earlier_tokens = self.has_block_pool = self.only_finds_parameters = self.has_skipped_steps = (
            self.carries_tensors
        ) = False
        self.absent_value_ids: set[int] = set()
        self.run_repeats_by_stack: dict[int, int] = {}
        self.module_after_first_layer: ModuleScope | None = None
        self.stack_number = self.first_layer_index = 0
        self.last_reader_ids: dict[int, int] = {}
        self.shared_value_ids: set[int] = set()
        self.analyzed_program: object = None
        self.analyzed_run: tuple[RunConfig, frozenset[str]] | None = None
        self.stacked_outputs: dict[int, list[Tensor]] = {}
        self.modules: dict[int, tuple[ModulePath, str]] = {}
        self.read_storage_ids: dict[int, set[int]] = {}
        self.computed_value_ids: dict[int, set[int]] = {}
        self.recomputed_modules: dict[int, RecomputedModule] = {}
        self.view_ids: dict[int, list[int]] = {}
        self.unused_modules: list[Tensor] = []

    # --- tensors of values ------------------------------------------------------------------------------------------

    def shape(self, recorded_value: Value) -> Shape:
        """Returns the shape of a value: [batch, rows, *axes], [rows, *axes] if shared, or [*axes] without rows."""
        axis_sizes = tuple(axis.size for axis in recorded_value.axes)
        if recorded_value.rows is NO_ROWS:
            return axis_sizes
        row_count = self.run_config.new_rows(recorded_value.rows)
        return (
            (self.run_config.batch, row_count, *axis_sizes) if recorded_value.rows.batched else (row_count, *axis_sizes)
        )

    def tensor_of(self, recorded_value: Value) -> Tensor:
        """Returns a value's tensor in the value's shape; only its first rows if the value has fewer."""
        tensor = self.tensors_by_value.get(id(recorded_value))
        if tensor is not None:
            return tensor
        if (
            recorded_value.is_constant
            and recorded_value.storage.rows == recorded_value.rows
            and recorded_value.rows in self.inputs
        ):  # audio frames
            return self.inputs[recorded_value.rows]
        if recorded_value.view_source is None:
            raise self.unsupported("reads a value that no step has made")
        value_tensor, shape = self.tensor_of(recorded_value.view_source), self.shape(recorded_value)
        # rows of every sequence alike
        if (
            recorded_value.view_source.rows is NO_ROWS
            and recorded_value.rows is not NO_ROWS
            and recorded_value.rows.batched
        ):
            return self.aten.expand(self.aten.reshape(value_tensor, shape[1:]), shape)
        if (
            isinstance(value_tensor.numel, int)
            and value_tensor.numel != numel(shape)
            and value_tensor.shape[1] != shape[1]
        ):
            if recorded_value.rows == recorded_value.view_source.rows:  # rows of earlier passes are there too
                shape = (shape[0], value_tensor.shape[1], *shape[2:])
            else:
                value_tensor = self.aten.slice(value_tensor, shape[1], 1)
        return self.aten.reshape(value_tensor, shape)

    def is_from_earlier_pass(self, recorded_value: Value) -> bool:
        """Whether a pass reads a value that an earlier pass has stored in the cache."""
        if id(recorded_value) in self.tensors_by_value:
            return False
        return id(recorded_value) in self.absent_value_ids or (
            recorded_value.view_source is not None and self.is_from_earlier_pass(recorded_value.view_source)
        )

    def is_computed_earlier(self, value_rows: Rows) -> bool:
        """Whether an earlier pass has computed all rows of a value, such as an encoder's output."""
        return (
            self.has_earlier_tokens
            and value_rows is not NO_ROWS
            and is_zero(value_rows.new_rows(self.run_config.workload.with_changes(phase="decode")))
        )

    def tensor_read_by(self, operation: Step, recorded_value: Value) -> Tensor:
        """Returns a value's tensor for a reading operation, and drops the stored reference at the last read."""
        value_tensor, base_value = self.tensor_of(recorded_value), recorded_value.storage
        if self.last_reader_ids.get(id(base_value)) == id(operation):
            self.free_value(base_value)
        return value_tensor

    def flat_tensor(self, recorded_value: Value, operation: Step | None = None) -> Tensor:
        """Returns a value's tensor in the shape [batch, rows, width]; it is a copy if the heads are not contiguous.

        operation: the step that reads it, as in `tensor_read_by`; default none.
        """
        value_tensor = (
            self.tensor_of(recorded_value) if operation is None else self.tensor_read_by(operation, recorded_value)
        )
        if len(recorded_value.axes) == 1:
            return value_tensor
        return self.aten.flatten(value_tensor, len(value_tensor.shape) - len(recorded_value.axes))

    def store_tensor(self, recorded_value: Value, tensor: Tensor) -> None:
        """Stores the tensor of a value, with axes in the value's order."""
        if isinstance(recorded_value.rows, QueryKeyPairs):
            self.store_without_reshape(recorded_value, tensor)
            return
        shape = self.shape(recorded_value)
        if tensor.shape != shape and isinstance(tensor.numel, int) and tensor.numel != numel(shape):
            shape = tensor.shape  # all sequences share it
        self.store_without_reshape(recorded_value, self.aten.reshape(tensor, shape))

    def store_without_reshape(self, recorded_value: Value, tensor: Tensor) -> None:
        """Stores a tensor of any shape for a value, such as scores of query-key pairs."""
        value_id = id(recorded_value)
        self.tensors_by_value[value_id] = tensor
        if recorded_value.view_source is not None:
            self.view_ids.setdefault(id(recorded_value.storage), []).append(value_id)

    def store_output(self, operation: Step, tensor: Tensor) -> None:
        """Stores a tensor of any shape as the first output of a step."""
        self.store_without_reshape(operation.output_values[0], tensor)

    def free_value(self, base_value: Value) -> None:
        """Frees the references to a value's tensor and its views."""
        base_id, tensors_by_value = id(base_value), self.tensors_by_value
        tensors_by_value.pop(base_id, None)
        for value_id in self.view_ids.pop(base_id, ()):
            tensors_by_value.pop(value_id, None)

    def token_positions(self, token_count: Any) -> Tensor:
        """Returns the positions of the pass's tokens, computed once per pass."""
        return self.compute_once(("span", token_count), lambda: self.aten.new_tensor((token_count,), INT64))

    def compute_once(self, result_key: Any, compute_result: Callable[[], Result]) -> Result:
        """Returns the result that is stored under a key; the pass's first request computes and stores the result."""
        if result_key not in self.pass_memo:
            self.pass_memo[result_key] = compute_result()
        computed_result: Result = self.pass_memo[result_key]
        return computed_result

    def _value_with_tensor(self, recorded_value: Value | None) -> Value | None:
        """Returns the value itself, or the nearest value that it is a view of and that has a stored tensor."""
        while recorded_value is not None and id(recorded_value) not in self.tensors_by_value:
            recorded_value = recorded_value.view_source
        return recorded_value

    # --- calls of modules -------------------------------------------------------------------------------------------

    def module_path(self, outer_level_count: int = 0) -> ModulePath:
        """Returns the current module's path, with the index of the layer that owns its parameters.

        outer_level_count: of which module around it instead, 1 for the nearest.
        """
        if not outer_level_count and self.frames:
            innermost_frame = self.frames[-1]
            if innermost_frame.path is None:
                innermost_frame.path = self._path_of_frames(self.frames)
            return innermost_frame.path
        return self._path_of_frames(self.frames[: len(self.frames) - outer_level_count])

    def _path_of_frames(self, module_frames: Sequence[ModuleFrame]) -> ModulePath:
        """Returns the innermost module's path, with the index of the layer that owns the module's parameters."""
        path_parts: list[Any] = []
        for frame_index, frame in enumerate(module_frames):
            path_parts.append(frame.scope.name)
            if frame.scope.list_index is not None:
                path_parts.append(frame.scope.list_index)
            if frame.layer_index is not None:
                inner_scopes = [inner_frame.scope for inner_frame in self.frames[frame_index:]]
                is_shared = any(module_scope.node_fields.get("role") == "shared" for module_scope in inner_scopes)
                is_per_layer = any(module_scope.has_parameters_per_layer for module_scope in inner_scopes)
                path_parts.append(frame.owner_layer_index if is_shared and not is_per_layer else frame.layer_index)
        return tuple(path_parts)

    @property
    def cache_path(self) -> ModulePath:
        """The path of the current module with the indices of all layers, which is its key in the cache."""
        return tuple(
            path_part
            for module_call in self.frames
            for path_part in (module_call.scope.name, module_call.scope.list_index, module_call.layer_index)
        )

    @property
    def path(self) -> str:
        """The path of the running module."""
        return ".".join(module_call.scope.name for module_call in self.frames[1:] if module_call.scope.name)

    @property
    def place(self) -> AllocationPlace:
        """The module and phase to which new storages are counted."""
        layer_index = next(
            (module_call.layer_index for module_call in self.frames if module_call.layer_index is not None), -1
        )
        return AllocationPlace(self.graph.meter.place.phase, layer_index, self.path)

    def unsupported(self, reason: str, operation_name: str = "") -> UnsupportedKernel:
        """Creates the error for an operation that the profile has no kernel for. operation_name: its name."""
        return UnsupportedKernel(f"{'.'.join(filter(None, (self.path, operation_name)))}: {reason}")

    def run_kernel_of_op(self, operation: Step, prefix: str) -> None:
        """Runs the profile's kernel that is named `<prefix>_<class of the op>`."""
        op_name = type(operation.op).__name__
        kernel = getattr(self, method_name(prefix, op_name), None)
        if kernel is None:
            raise self.unknown_verb_error(operation, op_name)
        kernel(operation)

    def unknown_verb_error(self, operation: Step, verb: str) -> UnsupportedKernel:
        """Creates the error for an operation name (verb) that no profile implements."""
        reason = f"the memory of {verb!r} is not modelled; params, flops and kv count this model"
        return self.unsupported(reason, operation.name)

    def _copy_frames(self) -> list[ModuleFrame]:
        """Copies the stack of running modules without local variables."""
        return [module_frame.without_tensors() for module_frame in self.frames]
