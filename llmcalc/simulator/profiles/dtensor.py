"""torch's tensor parallelism: the tensors that DTensors allocate in addition to matrix products.

Rows of a product with a divided input are summed over ranks, and so is the gradient of what products with a divided
output read, once for all of a module's. The embedding is looked up in a rank's rows, with a mask of the tokens that
other ranks have; its gradient is whole on every rank. The loss is computed on divided logits (`loss_parallel`).

With sequence parallelism (torchtitan's plan, `SequenceParallel` of norms) what lies between the products is divided by
tokens: it is gathered before the products of a module, and each rank gets the sums of its own tokens.

Published modules of recurrences, which read their weights themselves, get their input and their output's sum in the
same way (mamba_ssm/modules/mamba2.py of 2.2.4: `ColumnParallelLinear`, and `reduce_fn` after the fused kernel).

Every method here allocates and frees what the function that it names does, in the same order; a local variable stands
for the local variable of that name. Source: torch/distributed/tensor of torch 2.13 (parallel/style.py,
parallel/loss.py, placement_types.py, _ops/_embedding_ops.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...algebra import Number, ceil_div
from ...components.norm import Norm
from ...errors import InputError
from ...flow.program import UNEXECUTED_ROLES, AlternativeBranches, ModuleScope, ProgramItem, Step
from ...flow.record import Flow
from ...flow.value import Value
from ...parallel.placements import Collective, CollectiveKind, PlacementTracker, has_tokens
from ...parallel.rank_program import (
    FIELD_OF_AXIS,
    AxisShard,
    RankFlow,
    axes_with_concatenated_parts,
    has_equal_shards,
    is_divided,
)
from ...workload.rows import TOKENS
from ..autograd import record
from ..lowering import ModuleFrame, ModulePath
from ..meter import AllocationPlace
from ..strides import Shape, is_size_one
from ..tensor import BOOL, FLOAT8, FLOAT32, INT64, AutogradNode, BackwardFunction, Dtype, NeedsInputGrad, Tensor
from .eager import EagerKernels
from .eager.scans.module_steps import ModuleSteps, module_steps

WRAPPED_INPUT_NODE = "from_local"
"""Name of the autograd node behind the input of matrix products whose output is sharded."""


class SentMessage(NamedTuple):
    """A collective message that a rank sends. module_and_phase: module and phase of the message."""

    module_and_phase: AllocationPlace
    collective: Collective


@dataclass
class RecurrentModule:
    """A recurrent module that a single kernel runs as a whole.

    output_projection: the step of its output projection.
    reduces_output: whether the output is reduced over ranks, true by default.
    """

    output_projection: Step
    reduces_output: bool = True


class DTensorKernels(EagerKernels):
    """Runs a rank's program with tensor parallelism by DTensors.

    module_inputs: per running module, the values that its products read, as they were before, and as they read them.
    ranks: of the tensor group. token_ranks: of them, those that divide the tokens between products, 1 without sequence
        parallelism.
    messages: messages that the rank has sent to the group, with module and phase.
    placement_tracker: the placement of each value, if tokens are sharded.
    recurrent_module: the published module that runs at once.
    divides_loss: whether the loss is computed on divided logits, true by default; else they are gathered.
    copies_gathered: whether gathered tokens of one sequence are copied too, which are side by side already; false by
        default, as in torch since 2025-12-02 (pull request 169404).
    """

    module_inputs: list[list[tuple[int, Tensor, Tensor]]]
    ranks: int = 1
    token_ranks: int = 1
    messages: list[SentMessage]
    placement_tracker: PlacementTracker | None = None
    recurrent_module: RecurrentModule | None = None
    divides_loss = True
    copies_gathered = False

    # --- values that are divided by tokens --------------------------------------------------------------------------

    def run(self, program: Flow) -> Tensor:
        self.find_placements(program)
        return super().run(program)

    def create_stage_input(self, program: Flow) -> Tensor | None:
        self.find_placements(program)
        return super().create_stage_input(program)

    def find_placements(self, program: Flow) -> None:
        """Finds how each tensor is placed over tensor-parallel ranks if tokens are sharded.

        Raises `InputError` for what torch does not divide, or no rule knows.
        """
        if hasattr(self, "messages"):
            return
        self.messages = []
        if not isinstance(program, RankFlow):
            return
        layout = program.rank_axes.layout
        if layout.tp > 1:
            self.check_plan(program)
        self.ranks = layout.tp
        if layout.tp == 1 or not layout.sequence_parallel:
            return
        self.token_ranks = layout.tp
        self.placement_tracker: PlacementTracker = PlacementTracker(
            layout, self.run_config, included_parts=self.included_parts
        )
        self.placement_tracker.run_program(program)
        self._check_token_sharding_rules(program)
        seq = self.run_config.new_rows(TOKENS)
        if seq % layout.tp:
            raise InputError(f"--sequence-parallel: --tp {layout.tp} does not divide {seq} tokens; expected a multiple")

    def check_plan(self, program: RankFlow) -> None:
        """Raises `InputError` for a module that torch's tensor-parallel plans do not cover."""
        check_equal_shards(program)

    def _check_token_sharding_rules(self, program: RankFlow) -> None:
        """Raises `InputError` for a module that torchtitan's plan does not cover if tokens are sharded."""
        assert self.placement_tracker is not None
        for step_name, operation in steps_with_module_path(program.root.items):
            creates_rows = (
                not operation.input_values
                and bool(operation.output_values)
                and has_tokens(operation.output_values[0].rows)
            )
            if not operation.output_values or (operation.weight is None and not creates_rows):
                continue
            is_divided_by_tokens = not operation.input_values or any(
                map(self.is_sharded_by_tokens, operation.input_values)
            )
            refusal_reason = ""
            if is_divided_by_tokens and (
                operation.weight is None
                or not is_divided((*operation.weight.input_axes, *operation.weight.output_axes))
            ):
                refusal_reason = "the plan of torch.distributed has no rule for it"
            elif operation.input_values and operation.input_values[0].rows is not TOKENS:
                refusal_reason = "of an encoder it is not modelled"
            if refusal_reason:
                raise InputError(f"--sequence-parallel: {step_name}: {refusal_reason}; expected no --sequence-parallel")

    def is_sharded_by_tokens(self, recorded_value: Value) -> bool:
        """Whether a tensor is sharded by tokens over the tensor-parallel ranks."""
        return self.placement_tracker is not None and self.placement_tracker.placement(recorded_value) == "rows"

    def shape(self, recorded_value: Value) -> Shape:
        shape = super().shape(recorded_value)
        if not self.is_sharded_by_tokens(recorded_value):
            return shape
        batch, row_count, *row_shape = shape
        return (batch, row_count // self.token_ranks, *row_shape)

    # --- sums over ranks --------------------------------------------------------------------------------------------

    def all_reduce(self, local_sum: Tensor) -> Tensor:
        """Sums a tensor over ranks into a new tensor (`funcol.all_reduce`)."""
        self.record_message("all_reduce", local_sum.bytes)
        return self.graph.new_tensor(local_sum.shape, local_sum.dtype)

    def record_message(self, collective_kind: CollectiveKind, full_bytes: Number) -> None:
        """Records a collective message that this rank sends. full_bytes: bytes of the tensor before it is sharded."""
        module_and_phase = self.graph.meter.place
        collective_message = Collective(
            module_and_phase.path, collective_kind, "tp", self.ranks, module_and_phase.phase == "backward", full_bytes
        )
        self.messages.append(SentMessage(module_and_phase, collective_message))

    def all_gather(self, x: Tensor, sends_float8: bool = False) -> Tensor:
        """Gathers the tokens of all tensor-parallel ranks: `funcol.all_gather_single`, then a concatenation.

        sends_float8: whether tokens are cast to 8 bits first (default false); readers compute in the format of x.
        """
        batch, row_count, *row_shape = x.shape
        shape, dtype = (batch, row_count * self.token_ranks, *row_shape), FLOAT8 if sends_float8 else x.dtype
        sent_tokens = self.graph.new_tensor(x.shape, dtype) if sends_float8 else x
        gathered_x = self.graph.new_tensor((batch * self.token_ranks, row_count, *row_shape), dtype)
        del sent_tokens
        self.record_message("all_gather", gathered_x.bytes)
        is_in_place = is_size_one(batch) and (self.has_overlapped_products or not self.copies_gathered)
        storage = gathered_x.storage if is_in_place else self.graph.new_tensor(shape, dtype).storage
        return Tensor(shape, x.dtype, storage)

    @property
    def has_overlapped_products(self) -> bool:
        """Whether matrix products overlap with communication (`torch.ops.symm_mem`); default false."""
        return False

    def gathers_in_8_bits(self, operation: Step) -> bool:
        """Whether a linear layer's input and output gradient are all-gathered in an 8-bit number format."""
        return False

    def reduce_scatter(self, x: Tensor, follows_product: bool = False) -> Tensor:
        """Runs `funcol.reduce_scatter_single`: sums over ranks, and keeps this rank's tokens.

        follows_product: whether x is a product.
        """
        batch, row_count, *row_shape = x.shape
        sent_chunks = (
            None if follows_product and self.has_overlapped_products else self.graph.new_tensor(x.shape, x.dtype)
        )
        result_store = self.graph.result_store

        def make_local_rows() -> Tensor:
            self.record_message("reduce_scatter", x.bytes)
            return self.graph.new_tensor((batch, row_count // self.token_ranks, *row_shape), x.dtype)

        if result_store is None:
            local_rows = make_local_rows()
        else:
            local_rows = result_store.operation_result("reduce_scatter", make_local_rows)
        del sent_chunks
        return local_rows

    def linear_output(self, operation: Step, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns a linear layer's output, reduced over ranks for a sharded input (`RowwiseParallel`)."""
        if self.choices.fake_quantization is not None:
            raise self.unsupported("--fake-quantize: on divided layers it is not modelled; expected --tp 1")
        output = super().linear_output(operation, x, weight, bias)
        if (
            operation.weight is None
            or not is_divided(operation.input_values[0].axes)
            or is_divided(operation.output_values[0].axes)
        ):
            return output
        # divided products read it
        if self.recurrent_module is not None and operation is not self.recurrent_module.output_projection:
            return record(self.graph, "redistribute", [output], self.all_reduce(output), self._all_reduce_gradient)
        return self._sum_of_ranks(operation, output)

    def _sum_of_ranks(self, operation: Step, output: Tensor) -> Tensor:
        """Reduces a linear layer's output over ranks, by a reduce-scatter for sharded tokens.

        Each rank adds its part of a replicated bias in its product, so a bias needs no further tensor.
        """
        if self.token_ranks == 1:
            return record(self.graph, "redistribute", [output], self.all_reduce(output), lambda g, _: [g])
        gathers_float8 = self.gathers_in_8_bits(operation)
        reduced_output = self.reduce_scatter(output, follows_product=True)
        return record(
            self.graph, "redistribute", [output], reduced_output, lambda g, _: [self.all_gather(g, gathers_float8)]
        )

    def do_linear(self, operation: Step) -> None:
        super().do_linear(operation)
        output_value = operation.output_values[0]
        if not self.divides_loss and self.result is not None and output_value.storage is self.result.storage:
            if self.head_of_loss is not None:
                raise self.unsupported(
                    f"--cross-entropy {self.choices.cross_entropy}: of logits that are gathered from their ranks it is "
                    "not modelled; expected fused or eager",
                    operation.name,
                )
            self.store_without_reshape(output_value, self._gather_logits(self.tensor_of(output_value), output_value))

    def _gather_logits(self, logits: Tensor, recorded_value: Value) -> Tensor:
        """Gathers the logits of the full vocabulary (`ColwiseParallel`, `Shard._to_replicate_tensor`).
        All parts are padded to the length of the longest.
        """
        axis = next(
            (axis for axis in axes_with_concatenated_parts(recorded_value.axes) if isinstance(axis, AxisShard)), None
        )
        if axis is None or axis.rank_count == 1:
            return logits
        new_tensor, (*row_shape, local_width), vocabulary_size = self.graph.new_tensor, logits.shape, axis.full_size
        logits_per_rank = ceil_div(vocabulary_size, axis.rank_count)
        local_tensor = (
            logits if local_width == logits_per_rank else new_tensor((*row_shape, logits_per_rank), logits.dtype)
        )
        gathered_logits = new_tensor((row_shape[0] * axis.rank_count, *row_shape[1:], logits_per_rank), logits.dtype)
        self.record_message("all_gather", gathered_logits.bytes)
        gathered_copy = new_tensor((*row_shape, logits_per_rank * axis.rank_count), logits.dtype)
        del gathered_logits
        if logits_per_rank * axis.rank_count != vocabulary_size:
            gathered_copy = new_tensor((*row_shape, vocabulary_size), logits.dtype)
        del local_tensor
        shape = logits.shape
        return record(self.graph, "redistribute", [logits], gathered_copy, lambda g, _: [new_tensor(shape, g.dtype)])

    def run_step(self, operation: Step) -> None:
        if (
            operation.weight is not None
            and operation.input_values
            and is_divided(operation.output_values[0].axes)
            and not self.is_from_earlier_pass(operation.input_values[0])
        ):
            self._enter_parallel_region(operation)
        super().run_step(operation)

    def _enter_parallel_region(self, operation: Step) -> None:
        """Sums the input gradients of all linear layers that read x, and all-reduces the sum over ranks."""
        recorded_value = operation.input_values[0]
        if is_divided(recorded_value.axes):
            return
        x = self.tensor_of(recorded_value)
        if self.is_sharded_by_tokens(recorded_value):
            if all(value_id != id(recorded_value) for value_id, *_ in self.module_inputs[-1]):
                local_tensor = self._wrap_in_dtensor(
                    x, self.all_gather(x, self.gathers_in_8_bits(operation)), self._reduce_scatter_gradient
                )
                self.module_inputs[-1].append((id(recorded_value), x, local_tensor))
                self.store_without_reshape(recorded_value, local_tensor)
            return
        if not x.needs_grad or (isinstance(x.node, AutogradNode) and x.node.name == WRAPPED_INPUT_NODE):
            return
        local_tensor = self._wrap_in_dtensor(x, x.detached(), self._all_reduce_gradient)
        self.module_inputs[-1].append((id(recorded_value), x, local_tensor))
        self.store_without_reshape(recorded_value, local_tensor)

    def _wrap_in_dtensor(self, x: Tensor, local_tensor: Tensor, backward: BackwardFunction) -> Tensor:
        """Wraps the input of a module's linear layers in a DTensor; torch.compile removes the wrapper."""
        self.graph.has_tensor_subclasses = not self.choices.compiled
        dtensor = record(self.graph, WRAPPED_INPUT_NODE, [x], local_tensor, backward)
        self.graph.has_tensor_subclasses = False
        return dtensor

    def norm(
        self, x: Tensor, spec: Norm, norm_name: str, shape: Any, groups: Any = 1, module_path: ModulePath | None = None
    ) -> Tensor:
        """Runs a norm, on distributed tensors if tokens are sharded (`SequenceParallel`)."""
        self.graph.has_tensor_subclasses = self.token_ranks > 1 and not self.choices.compiled
        try:
            return super().norm(x, spec, norm_name, shape, groups, module_path)
        finally:
            self.graph.has_tensor_subclasses = False

    def _all_reduce_gradient(self, gradient: Tensor, needs_input_grad: NeedsInputGrad) -> list[Tensor]:
        return [self.all_reduce(gradient)]

    def _reduce_scatter_gradient(self, gradient: Tensor, needs_input_grad: NeedsInputGrad) -> list[Tensor]:
        return [self.reduce_scatter(gradient)]

    def _run_module_items(self, module_call: ModuleFrame) -> None:
        if not hasattr(self, "module_inputs"):
            self.module_inputs = []
        self.module_inputs.append([])
        try:
            super()._run_module_items(module_call)
        finally:  # what runs again stops early
            module_inputs = self.module_inputs.pop()
        for value_id, x, _ in module_inputs:
            if value_id in self.tensors_by_value:
                self.tensors_by_value[value_id] = x

    # --- recurrences ------------------------------------------------------------------------------------------------

    def run_module_at_once(
        self, module_scope: ModuleScope, compute_module: Callable[[ModuleSteps, Tensor], Tensor]
    ) -> None:
        """Runs a module as one published kernel: gathers its input before and reduces its output after the kernel."""
        for operation in module_steps(module_scope):
            if (
                operation.weight is not None
                and operation.input_values[:1] == (module_scope.module_argument,)
                and is_divided(operation.output_values[0].axes)
            ):
                self._enter_parallel_region(operation)

        def compute_and_reduce(module_steps: ModuleSteps, x: Tensor) -> Tensor:
            self.recurrent_module = recurrence = RecurrentModule(module_steps.steps[-1])
            try:
                module_output = compute_module(module_steps, x)
            finally:
                self.recurrent_module = None
            output_projection = recurrence.output_projection
            if recurrence.reduces_output:
                return module_output
            return self._sum_of_ranks(output_projection, module_output)

        super().run_module_at_once(module_scope, compute_and_reduce)

    def unadapted_weight(self, operation: Step) -> Tensor:
        if self.recurrent_module is not None and operation is self.recurrent_module.output_projection:
            self.recurrent_module.reduces_output = not is_divided(operation.input_values[0].axes)
        return super().unadapted_weight(operation)

    def module_SelectiveScan(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs Mamba operation by operation, because Δ, B and C are summed over ranks between convolution and scan."""
        has_heads = module_steps["x_proj"].verb == "experts"
        return super().module_SelectiveScan(module_steps, x) if has_heads else self.mamba_step_by_step(module_steps, x)

    # --- the embedding ----------------------------------------------------------------------------------------------

    def look_up_rows(self, operation: Step, weight: Tensor, index: Tensor) -> Tensor:
        """Looks up rows of a table sharded by rows (`RowwiseParallel` of an embedding)."""
        weight_axes: tuple[Any, ...] = ()
        if operation.weight is not None:
            weight_axes = (
                *axes_with_concatenated_parts(operation.weight.input_axes),
                *axes_with_concatenated_parts(operation.weight.output_axes),
            )
        vocabulary_axes = [axis for axis in weight_axes if isinstance(axis, AxisShard) and axis.name == "vocab"]
        if not vocabulary_axes or vocabulary_axes[0].rank_count == 1:
            return super().look_up_rows(operation, weight, index)
        vocabulary_size, embedding_width = vocabulary_axes[0].full_size, weight.shape[1]
        mask, masked_tensor = self._allocate_table_mask(index)
        masked_rows = self.graph.new_tensor((*index.shape, embedding_width), weight.dtype)
        del masked_tensor, mask
        if self.token_ranks > 1:
            embeddings = self._record_full_table_gradient(
                weight, masked_rows, index, (vocabulary_size, embedding_width)
            )
            reduced_rows = self.reduce_scatter(masked_rows)
            return record(self.graph, "redistribute", [embeddings], reduced_rows, lambda g, _: [self.all_gather(g)])
        reduced_rows = self.all_reduce(masked_rows)
        del masked_rows
        return self._record_full_table_gradient(weight, reduced_rows, index, (vocabulary_size, embedding_width))

    def _record_full_table_gradient(self, weight: Tensor, output: Tensor, index: Tensor, table_shape: Shape) -> Tensor:
        """Records a look-up whose weight gradient has the full table's size (`embedding_dense_backward_strategy`)."""

        def backward(output_gradient: Tensor, needs_input_grad: NeedsInputGrad, *_: Tensor) -> list[Tensor]:
            return [self.graph.new_tensor(table_shape, output_gradient.dtype)]

        embeddings = record(self.graph, "embedding", [weight], output, backward, index)
        if embeddings.node is not None:
            embeddings.node.inputs[0] = (table_shape, weight.dtype)
        return embeddings

    def _allocate_table_mask(self, index_tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the mask of indices of other ranks (`_MaskPartial._allocate_table_mask`).

        Returns them with the indices relative to this rank's first row.
        """
        new_tensor = self.graph.new_tensor
        below_shard_mask, above_shard_mask = new_tensor(index_tensor.shape, BOOL), new_tensor(index_tensor.shape, BOOL)
        mask = new_tensor(index_tensor.shape, BOOL)
        del below_shard_mask, above_shard_mask
        mask_copy = new_tensor(index_tensor.shape, INT64)
        masked_tensor = new_tensor(index_tensor.shape, INT64)
        del mask_copy
        return mask, masked_tensor

    # --- the loss ---------------------------------------------------------------------------------------------------

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Runs `F.cross_entropy` under `loss_parallel` on logits [tokens, this rank's vocabulary]."""
        if not self.divides_loss:
            return super().cross_entropy(logits, labels)
        x = logits if self.graph.autocast_dtype is None else self.aten.to(logits, FLOAT32)
        output = self._log_softmax(x)
        log_probs = record(self.graph, "log_softmax", [x], output, lambda g, *_: [g], output)
        loss, total_weight = self._nll_loss_forward(log_probs)

        def backward(output_gradient: Tensor, needs_input_grad: NeedsInputGrad, x: Tensor, *_: Tensor) -> list[Tensor]:
            return [self._nll_loss_and_log_softmax_backward(x)]

        return record(self.graph, "nll_loss", [log_probs], loss, backward, log_probs, labels, total_weight)

    def _log_softmax(self, x: Tensor) -> Tensor:
        new_tensor, row_shape = self.graph.new_tensor, (*x.shape[:-1], 1)
        x_max = new_tensor(row_shape, x.dtype)
        x_max = self.all_reduce(x_max)
        shifted_x = new_tensor(x.shape, x.dtype)
        exponentials = new_tensor(x.shape, x.dtype)
        shifted_sumexp = new_tensor(row_shape, x.dtype)
        del exponentials
        shifted_sumexp = self.all_reduce(shifted_sumexp)
        _shifted_logsumexp = new_tensor(row_shape, x.dtype)
        log_probs = new_tensor(x.shape, x.dtype)
        del shifted_x
        return log_probs

    def _nll_loss_forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the loss of vocabulary-parallel log-probabilities (torch/distributed/tensor/parallel/loss.py)."""
        new_tensor, (token_count, _) = self.graph.new_tensor, x.shape
        _safe_target = self._allocate_mask_for_ignored_labels((token_count,), INT64)
        vocabulary_mask, _masked_target = self._allocate_table_mask(new_view((token_count, 1), _safe_target))
        result_partial = new_tensor((token_count, 1), x.dtype)
        del vocabulary_mask
        _result_reduced = self.all_reduce(result_partial)
        losses = new_tensor((token_count,), x.dtype)
        losses = self._allocate_mask_for_ignored_labels((token_count,), x.dtype)
        counted_token_mask = new_tensor((token_count,), BOOL)
        label_count = new_tensor((), INT64)
        del counted_token_mask
        total_weight = new_tensor((), x.dtype)
        del label_count
        loss_sum = new_tensor((), x.dtype)
        mean_loss = new_tensor((), x.dtype)
        del loss_sum
        losses = mean_loss
        return losses, total_weight

    def _allocate_mask_for_ignored_labels(self, shape: Shape, dtype: Dtype) -> Tensor:
        """Replaces ignored labels by zero: `torch.where(target != ignore_index, …, 0)`."""
        _mask = self.graph.new_tensor(shape, BOOL)
        return self.graph.new_tensor(shape, dtype)

    def _nll_loss_and_log_softmax_backward(self, x: Tensor) -> Tensor:
        """Computes the gradient of vocabulary-parallel logits (torch/distributed/tensor/parallel/loss.py)."""
        new_tensor, (token_count, _) = self.graph.new_tensor, x.shape
        grad_output = new_tensor((), x.dtype)
        _safe_target = self._allocate_mask_for_ignored_labels((token_count, 1), INT64)
        _grad_input = new_tensor(x.shape, x.dtype)
        _mask, _masked_labels = self._allocate_table_mask(new_view((token_count,), _safe_target))
        mask_as_numbers = new_tensor((token_count,), x.dtype)
        _grad_update = new_tensor((token_count,), x.dtype)
        del mask_as_numbers
        _arange_1d = new_tensor((token_count,), INT64)
        grad_output = self._allocate_mask_for_ignored_labels((token_count, 1), x.dtype)
        exponentials = new_tensor(x.shape, x.dtype)
        _gradient_sum = new_tensor(x.shape, x.dtype)
        del exponentials
        logit_gradient = new_tensor(x.shape, x.dtype)
        del _gradient_sum, grad_output
        return logit_gradient


def steps_with_module_path(scope_items: Iterable[ProgramItem], path: str = "") -> Iterator[tuple[str, Step]]:
    """Yields the operations that run, each with its module path."""
    for scope_item in scope_items:
        if isinstance(scope_item, AlternativeBranches):
            yield from steps_with_module_path(next(iter(scope_item.branches.values())).items, path)
        elif scope_item.node_fields.get("optional") or scope_item.node_fields.get("role") in UNEXECUTED_ROLES:
            continue
        else:
            step_path = ".".join(filter(None, (path, scope_item.name)))
            if isinstance(scope_item, Step):
                yield step_path, scope_item
            else:
                yield from steps_with_module_path(scope_item.items, step_path)


def check_equal_shards(program: RankFlow) -> None:
    """Raises `InputError` for experts (not modelled), and for fewer key heads or groups than ranks."""
    layout = program.rank_axes.layout
    for operation in program.root.steps():
        if operation.verb == "experts":
            raise InputError(f"--tp {layout.tp}: experts divided by torch's own tensors are not modelled; expected 1")
        if operation.output_values and has_equal_shards(operation.output_values[0].axes):
            axes = (
                axis
                for axis in axes_with_concatenated_parts(operation.output_values[0].axes)
                if isinstance(axis, AxisShard)
            )
            axis = next(axis for axis in axes if has_equal_shards((axis,)))
            raise InputError(
                f"--tp {layout.tp}: torch gives no part to several ranks, and {FIELD_OF_AXIS[axis.name]} is "
                f"{axis.full_size}; expected a divisor"
            )


def new_view(shape: Shape, viewed_tensor: Tensor) -> Tensor:
    """Creates a view of a tensor with another shape."""
    return Tensor(shape, viewed_tensor.dtype, viewed_tensor.storage)
