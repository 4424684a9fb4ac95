"""Activation checkpointing: regions of the forward pass that save nothing and are recomputed in the backward pass.

Source: torch/utils/checkpoint.py of torch 2.13 (`_checkpoint_without_reentrant_generator`, `CheckpointFunction`,
`_CachingTorchDispatchMode`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias
from weakref import ref

from .autograd import AutogradGraph, backward, needs_autograd_node, record
from .tensor import AutogradNode, Dtype, NeedsInputGrad, OptionalGradient, SavedTensor, Tensor

RegionFunction: TypeAlias = Callable[[Sequence[Tensor]], Tensor]
"""A function that runs a part of the forward pass on its input tensors; it may run several times."""


class RecomputationComplete(Exception):
    """Raised to stop recomputation when every tensor that the backward pass needs is recomputed."""


class CheckpointedRegion:
    """A call under non-reentrant checkpointing; its arguments stay alive until its last node has run backward.

    run_region: computes the call's result from its arguments.
    stops_early: whether running again stops at the last needed tensor.
    kept_operations: names of the operations whose results are stored (selective checkpointing).
    alternate_operations: the operations among them of which only every other result is stored.
    """

    def __init__(
        self,
        autograd_graph: AutogradGraph,
        run_region: RegionFunction,
        input_tensors: Sequence[Tensor],
        stops_early: bool,
        kept_operations: frozenset[str],
        alternate_operations: frozenset[str],
    ) -> None:
        self.graph: AutogradGraph = autograd_graph
        self.run_region = run_region
        self.stops_early: bool = stops_early
        self.saved_operations: frozenset[str] = kept_operations
        self.alternate_operations: frozenset[str] = alternate_operations
        # beside its arguments torch saves an empty tensor (`_NoopSaveInputs`)
        if autograd_graph.checkpoint_pack_hook is not None:
            autograd_graph.save_uncheckpointed(Tensor((0,), input_tensors[0].dtype, input_tensors[0].storage))
        self.arguments: list[tuple[SavedTensor, bool, bool]] = [
            (autograd_graph.save_uncheckpointed(tensor), tensor.is_leaf, tensor.needs_grad) for tensor in input_tensors
        ]
        self.autocast: Dtype | None = autograd_graph.autocast_dtype
        self.packed_tensors: list[ref[_RecomputedTensor]] = []
        self.recomputed_tensors: list[Tensor | None] | None = None
        self.stored_results: dict[str, list[Tensor | None]] = {}
        self.result_positions: list[
            tuple[str, int, int]
        ] = []  # (operation, number of its result, saved tensors before it)

    def stores_next_result(self, operation_name: str, calls_by_operation: Counter[str]) -> bool:
        """Whether selective checkpointing stores an operation's next result, which `calls_by_operation` then counts."""
        calls_by_operation[operation_name] += 1
        return operation_name in self.saved_operations and (
            operation_name not in self.alternate_operations or calls_by_operation[operation_name] % 2 == 1
        )

    def pack(self, tensor: Tensor) -> SavedTensor:
        """Returns a numbered placeholder for a saved tensor, by which `unpack` finds the recomputed tensor."""
        recomputed_tensor = _RecomputedTensor(self, len(self.packed_tensors))
        self.packed_tensors.append(ref(recomputed_tensor))
        return recomputed_tensor

    def free_unread_results(self) -> None:
        """Frees the stored results that follow the last saved tensor, which the backward pass does not need."""
        for operation_name, result_number, saved_tensor_count in self.result_positions:
            if saved_tensor_count == len(self.packed_tensors):
                self.stored_results[operation_name][result_number] = None

    def unpack(self, tensor_number: int) -> Tensor:
        """Recomputes the region and returns saved tensor number `tensor_number`, which lives while it is referenced."""
        if self.recomputed_tensors is None:
            self._recompute_region()
        assert self.recomputed_tensors is not None
        tensor = self.recomputed_tensors[tensor_number]
        assert tensor is not None
        self.recomputed_tensors[tensor_number] = None
        return tensor

    def _recompute_region(self) -> None:
        """Recomputes the region until all tensors saved for the backward pass exist again."""
        autograd_graph, self.recomputed_tensors = self.graph, []
        outer_pack_hooks, autograd_graph.pack_hooks = autograd_graph.pack_hooks, [self._save_recomputed_tensor]
        grad_was_enabled, autograd_graph.is_grad_enabled = autograd_graph.is_grad_enabled, True
        backward_place = autograd_graph.meter.place
        outer_results = autograd_graph.result_store
        autograd_graph.result_store = _StoredResults(self) if self.saved_operations else None
        outer_autocast, outer_cast_copies = autograd_graph.autocast_dtype, autograd_graph.cast_copies
        autograd_graph.autocast_dtype, autograd_graph.cast_copies = self.autocast, {}
        try:
            self.run_region(
                [
                    _detached_result(autograd_graph, saved_argument.unpack(), *autograd_flags)
                    for saved_argument, *autograd_flags in self.arguments
                ]
            )
        except RecomputationComplete:
            pass
        finally:
            autograd_graph.pack_hooks = outer_pack_hooks
            autograd_graph.is_grad_enabled = grad_was_enabled
            autograd_graph.meter.place = backward_place
            autograd_graph.result_store = outer_results
            autograd_graph.autocast_dtype, autograd_graph.cast_copies = outer_autocast, outer_cast_copies

    def _save_recomputed_tensor(self, tensor: Tensor) -> SavedTensor:
        """Stores a recomputed tensor, if the node that saved the original still exists."""
        assert self.recomputed_tensors is not None
        detached_tensor = tensor.detached()
        self.graph.meter.reclassify(tensor.storage.block, "activations")
        self.recomputed_tensors.append(
            detached_tensor if self.packed_tensors[len(self.recomputed_tensors)]() is not None else None
        )
        if self.stops_early and len(self.recomputed_tensors) == len(self.packed_tensors):
            raise RecomputationComplete
        return SavedTensor(detached_tensor)


class _RecomputedTensor(SavedTensor):
    """The placeholder of a saved tensor, which is recomputed when the backward pass reads it."""

    __slots__ = ("__weakref__", "number", "region")

    def __init__(self, checkpointed_region: CheckpointedRegion, tensor_number: int) -> None:
        self.region, self.number = checkpointed_region, tensor_number

    def unpack(self) -> Tensor:
        """Returns the saved tensor, recomputed if necessary."""
        return self.region.unpack(self.number)


class _ResultRecorder:
    """Runs a region's operations in the forward pass, and stores the results that selective checkpointing keeps."""

    def __init__(self, checkpointed_region: CheckpointedRegion) -> None:
        self.region, self.calls = checkpointed_region, Counter[str]()

    def operation_result(self, operation_name: str, make_tensor: Callable[[], Tensor]) -> Tensor:
        """Computes an operation's result, and stores it if selective checkpointing keeps the operation."""
        operation_output = make_tensor()
        if self.region.stores_next_result(operation_name, self.calls):
            self.region.graph.meter.reclassify(operation_output.storage.block, "activations")
            stored_results = self.region.stored_results.setdefault(operation_name, [])
            self.region.result_positions.append((operation_name, len(stored_results), len(self.region.packed_tensors)))
            stored_results.append(operation_output.detached())
        return operation_output


class _StoredResults:
    """Replaces operations by their stored results while a region is recomputed."""

    def __init__(self, checkpointed_region: CheckpointedRegion) -> None:
        self.region, self.calls, self.next_result_numbers = checkpointed_region, Counter[str](), dict[str, int]()

    def operation_result(self, operation_name: str, make_tensor: Callable[[], Tensor]) -> Tensor:
        """Returns an operation's stored result, or computes the result."""
        if not self.region.stores_next_result(operation_name, self.calls):
            return make_tensor()
        result_number = self.next_result_numbers.get(operation_name, 0)
        self.next_result_numbers[operation_name] = result_number + 1
        operation_output = self.region.stored_results[operation_name][result_number]
        assert operation_output is not None
        self.region.stored_results[operation_name][result_number] = None
        return operation_output


def _detached_result(autograd_graph: AutogradGraph, tensor: Tensor, is_leaf: bool, needs_gradient: bool) -> Tensor:
    """Returns a detached alias of a tensor. is_leaf: whether the tensor is trained or has no gradient function.

    needs_gradient: whether the alias needs a gradient, which nothing passes on here.
    """
    detached_tensor = tensor.detached()
    detached_tensor.is_leaf = is_leaf
    detached_tensor.node = (
        AutogradNode(autograd_graph, "argument", (), lambda *_: ()) if needs_gradient and not is_leaf else None
    )
    return detached_tensor


def _detached_alias(tensor: Tensor, needs_gradient: bool) -> Tensor:
    """Returns a detached alias of a tensor. needs_gradient: whether the alias needs a gradient."""
    detached_tensor = tensor.detached()
    detached_tensor.is_leaf = needs_gradient
    return detached_tensor


def checkpoint(
    autograd_graph: AutogradGraph,
    run_region: RegionFunction,
    input_tensors: Sequence[Tensor],
    stops_early: bool = True,
    kept_operations: frozenset[str] = frozenset(),
    alternate_operations: frozenset[str] = frozenset(),
    compiled: bool = False,
) -> Tensor:
    """Runs a region without saving tensors for the backward pass (`use_reentrant=False`).

    stops_early: whether running again stops at the last tensor that is needed, true by default.
    kept_operations: names of operations whose results are kept, none by default.
    alternate_operations: of these, those of which every other result is kept.
    compiled: whether torch.compile is estimated, which keeps no result that the backward pass does
        not need (torch/_functorch/partitioners.py, `min_cut_rematerialization_partition`); false by default.
    """
    if not autograd_graph.is_grad_enabled:
        return run_region(input_tensors)
    checkpointed_region = CheckpointedRegion(
        autograd_graph, run_region, input_tensors, stops_early, kept_operations, alternate_operations
    )
    autograd_graph.pack_hooks.append(checkpointed_region.pack)
    outer_results = autograd_graph.result_store
    autograd_graph.result_store = _ResultRecorder(checkpointed_region) if kept_operations else None
    try:
        region_output = run_region(input_tensors)
    finally:
        autograd_graph.pack_hooks.pop()
        autograd_graph.result_store = outer_results
    if compiled:
        checkpointed_region.free_unread_results()
    return region_output


def checkpoint_reentrant(
    autograd_graph: AutogradGraph, run_region: RegionFunction, input_tensors: Sequence[Tensor]
) -> Tensor:
    """Runs a function without autograd. The backward pass recomputes the function with autograd.

    The inner backward pass runs inside the outer one (`use_reentrant=True`).
    """
    if not needs_autograd_node(autograd_graph, input_tensors):
        return run_region(input_tensors)

    forward_autocast = autograd_graph.autocast_dtype

    def reentrant_backward(
        gradient: Tensor, needs_input_grad: NeedsInputGrad, *saved_arguments: Tensor
    ) -> Sequence[OptionalGradient]:
        """Recomputes the function with autograd, and runs the backward pass."""
        detached_arguments = [
            _detached_alias(tensor, needs_grad)
            for tensor, needs_grad in zip(saved_arguments, needs_input_grad, strict=True)
        ]
        was_enabled, autograd_graph.is_grad_enabled = autograd_graph.is_grad_enabled, True
        previous_place = autograd_graph.meter.place
        outer_autocast, outer_cast_copies = autograd_graph.autocast_dtype, autograd_graph.cast_copies
        autograd_graph.autocast_dtype, autograd_graph.cast_copies = forward_autocast, {}
        recomputed_output = run_region(detached_arguments)
        autograd_graph.autocast_dtype, autograd_graph.cast_copies = outer_autocast, outer_cast_copies
        backward(autograd_graph, recomputed_output, gradient)
        autograd_graph.is_grad_enabled, autograd_graph.meter.place = was_enabled, previous_place
        return [
            tensor.grad if needs_grad else None
            for tensor, needs_grad in zip(detached_arguments, needs_input_grad, strict=True)
        ]

    with autograd_graph.no_grad():
        region_output = run_region(input_tensors)
    output_tensor = record(
        autograd_graph, "checkpoint", input_tensors, region_output, reentrant_backward, *input_tensors
    )
    assert output_tensor.node is not None
    output_tensor.node.attributes.append(run_region)  # `ctx.run_function`, and what it reads beside its arguments
    return output_tensor
