"""Autograd without values: operations record graph nodes, and the backward pass runs these in torch's order.

Source: torch/csrc/autograd/engine.cpp (`evaluate_function`, `call_function`, `validate_outputs`) and input_buffer.cpp
(`accumulate`) of torch 2.13.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from ..algebra import Number, is_zero
from ..errors import InputError
from .reductions import scratch_bytes
from .strides import Shape, Strides, elementwise_strides, is_dense, is_size_one, numel
from .tensor import (
    UINT8,
    AutogradNode,
    BackwardFunction,
    Dtype,
    Meter,
    OptionalGradient,
    SavedTensor,
    Storage,
    Tensor,
    empty,
)


class ResultStore(Protocol):
    """Stores results of operations for selective recomputation, or returns results that were stored earlier."""

    def operation_result(self, operation_name: str, make_tensor: Callable[[], Tensor]) -> Tensor:
        """Returns an operation's result, computed by `make_tensor` or stored earlier under `operation_name`."""


class AutogradGraph:
    """The autograd state that all operations of a replayed run share.

    is_grad_enabled: whether operations record nodes.
    adds_in_place: whether a second gradient is added in place where nothing else holds the first. Under a
        TorchDispatchMode, such as torch's own memory trackers, it never is.
    has_tensor_subclasses: whether operations run on a subclass of tensors (`DTensor`), whose gradients are never added
        in place; false by default.
    is_compiled: whether layers run as compiled code (torch.compile), whose sums are its own kernels, and reuse memory
        that eager autograd does not; false by default.
    multiprocessors: multiprocessors of the GPU whose workspaces kernels allocate; 0 (default) for no workspaces.
    autocast_dtype: the type in which products run (torch.autocast); None for that of their inputs.
    pack_hooks: the hooks that keep saved tensors; the last one applies.
    keeps_gradients: whether a trained tensor keeps its gradient. If not, it has been added to a sum of another type,
        and is dropped.
    leaf_gradient_hook: called with a trained tensor after it gets its gradient; None (default) for no hook.
    gradient_sum_hook: what is called with the bytes of each sum of two gradients, and with whether it is made in place;
        None (default) for nothing.
    checkpoint_pack_hook: what keeps saved tensors elsewhere than on the device; None (default) if they stay there.
    result_store: what keeps the results of products, or gives kept ones back (selective checkpointing); None for
        neither.
    """

    def __init__(self, memory_meter: Meter) -> None:
        self.meter = memory_meter
        self.is_grad_enabled: bool = True
        self.adds_in_place: bool = True
        self.keeps_gradients: bool = True
        self.has_tensor_subclasses = self.is_compiled = False
        self.multiprocessors = 0
        self.autocast_dtype: Dtype | None = None
        self.cast_copies: dict[int, tuple[Tensor, Tensor]] = {}
        self.pack_hooks: list[Callable[[Tensor], SavedTensor]] = []
        self.leaf_gradient_hook: Callable[[Tensor], None] | None = None
        self.gradient_sum_hook: Callable[[Number, bool], None] | None = None
        self.checkpoint_pack_hook: Callable[[Tensor], SavedTensor] | None = None
        self.result_store: ResultStore | None = None
        self.node_counter: Iterator[int] = itertools.count()

    def new_tensor(self, shape: Shape, dtype: Dtype, strides: Strides | None = None) -> Tensor:
        """Allocates a tensor with a new storage."""
        return empty(self.meter, shape, dtype, strides)

    def sum_to_shape(self, shape: Shape, x: Tensor) -> Tensor:
        """Sums x over broadcast axes, as `at::sum_to` does.

        If x has more axes, the result is a view of the sum.
        """
        summed_tensor = self.new_tensor(shape, x.dtype)
        output_count = numel(shape)
        if self.multiprocessors and shape and x.shape[-1] == shape[-1] and not is_zero(output_count):
            scratch_sizes = scratch_bytes(output_count, numel(x.shape) // output_count, self.multiprocessors)
            scratch_tensors = [self.new_tensor((byte_count,), UINT8) for byte_count in scratch_sizes if byte_count]
            while scratch_tensors:
                scratch_tensors.pop()
        summed_tensor.has_base = 0 < len(shape) < len(x.shape)
        return summed_tensor

    def operation_result(
        self, operation_name: str, shape: Shape, dtype: Dtype, strides: Strides | None = None
    ) -> Tensor:
        """Returns an operation's result, which selective recomputation may store by operation name."""
        if self.result_store is None:
            return self.new_tensor(shape, dtype, strides)
        return self.result_store.operation_result(operation_name, lambda: self.new_tensor(shape, dtype, strides))

    def save(self, tensor: Tensor) -> SavedTensor:
        """Saves a tensor for the backward pass."""
        return self.pack_hooks[-1](tensor) if self.pack_hooks else self.save_uncheckpointed(tensor)

    def save_uncheckpointed(self, tensor: Tensor) -> SavedTensor:
        """Saves a tensor for the backward pass, which is not recomputed even inside a checkpointed region."""
        if self.checkpoint_pack_hook is not None:
            return self.checkpoint_pack_hook(tensor)
        self.meter.reclassify(tensor.storage.block, "activations")
        return SavedTensor(tensor.detached())

    def leave_autocast(self) -> None:
        """Leaves the autocast context, and frees the weights' copies that autocast cached."""
        self.autocast_dtype, self.cast_copies = None, {}

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """Disables the recording of autograd nodes inside a `with`."""
        grad_was_enabled, self.is_grad_enabled = self.is_grad_enabled, False
        try:
            yield
        finally:
            self.is_grad_enabled = grad_was_enabled


def needs_autograd_node(autograd_graph: AutogradGraph, inputs: Sequence[Tensor]) -> bool:
    """Whether autograd records a node for an operation on these tensors."""
    if autograd_graph.is_grad_enabled:
        for tensor in inputs:
            if tensor.node is not None or tensor.is_leaf:
                return True
    return False


def record(
    autograd_graph: AutogradGraph,
    operation_name: str,
    inputs: Sequence[Tensor],
    output: Tensor | Callable[[], Tensor],
    backward: BackwardFunction,
    *tensors_to_save: Tensor,
) -> Tensor:
    """Records the autograd node of `output` if an input needs a gradient. tensors_to_save: for the backward pass.

    output: the result; where only inputs are saved, a function that makes it: torch saves inputs before it computes.
    """
    if not needs_autograd_node(autograd_graph, inputs):
        return output() if callable(output) else output
    graph_node = AutogradNode(autograd_graph, operation_name, inputs, backward)
    if tensors_to_save:
        graph_node.saved_tensors = [autograd_graph.save(saved_tensor) for saved_tensor in tensors_to_save]
    output_tensor = output() if callable(output) else output
    output_tensor.node = graph_node
    return output_tensor


def record_multiple_outputs(
    autograd_graph: AutogradGraph,
    operation_name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    backward: BackwardFunction,
    *tensors_to_save: Tensor,
) -> None:
    """Records one autograd node for several outputs. tensors_to_save: for the backward pass."""
    if needs_autograd_node(autograd_graph, inputs):
        graph_node = AutogradNode(autograd_graph, operation_name, inputs, backward, len(outputs))
        if tensors_to_save:
            graph_node.saved_tensors = [autograd_graph.save(saved_tensor) for saved_tensor in tensors_to_save]
        for output_index, output in enumerate(outputs):
            output.node, output.output_index = graph_node, output_index


def saved_storages(output: Tensor) -> list[Storage]:
    """Returns every storage saved in a tensor's graph for the backward pass, once."""
    storages: dict[int, Storage] = {}
    pending_nodes = [] if output.node is None else [output.node]
    visited_ids = {id(graph_node) for graph_node in pending_nodes}
    while pending_nodes:
        graph_node = pending_nodes.pop()
        storages |= {
            id(saved_tensor.tensor.storage): saved_tensor.tensor.storage for saved_tensor in graph_node.saved_tensors
        }
        for graph_edge in graph_node.edges:
            if graph_edge is not None and not isinstance(graph_edge, Tensor) and id(graph_edge[0]) not in visited_ids:
                visited_ids.add(id(graph_edge[0]))
                pending_nodes.append(graph_edge[0])
    return list(storages.values())


def backward(
    autograd_graph: AutogradGraph, output: Tensor, gradient: Tensor, end_callback: Callable[[], None] | None = None
) -> None:
    """Runs the backward pass from `output` with a gradient, which the caller references until the end.

    The gradients of trained tensors stay in their `grad`. end_callback: what is called in the end (`queue_callback` of
    torch's engine), nothing by default.
    """
    assert output.node is not None
    pending_uses = _count_leaf_uses(output.node)
    gradients: dict[tuple[int, int], Tensor] = {(id(output.node), output.output_index): gradient}
    ready_nodes, queued_ids = [(-output.node.creation_number, output.node)], {id(output.node)}
    node_attributes: list[object] = []  # the caller's loss holds the graph, and the graph its nodes' attributes
    forward_place = None
    with autograd_graph.no_grad():
        while ready_nodes:
            _, graph_node = heapq.heappop(ready_nodes)
            if graph_node.place is not forward_place:
                forward_place = graph_node.place
                autograd_graph.meter.place = forward_place.place_in_backward()
            input_gradients = _run_backward_node(autograd_graph, graph_node, gradients)
            node_attributes += graph_node.attributes
            graph_node.saved_tensors = []
            graph_node.backward = None
            graph_edges, graph_node.edges = graph_node.edges, []
            del graph_node
            for input_index, graph_edge in enumerate(graph_edges):
                input_gradient, input_gradients[input_index] = input_gradients[input_index], None
                if graph_edge is None:
                    continue
                gradient_key = (
                    (id(graph_edge), 0) if isinstance(graph_edge, Tensor) else (id(graph_edge[0]), graph_edge[1])
                )
                if input_gradient is not None:
                    if gradient_key in gradients:
                        _add_gradient(
                            autograd_graph,
                            gradients,
                            gradient_key,
                            input_gradient,
                            None if isinstance(graph_edge, Tensor) else graph_edge[0],
                        )
                    else:
                        gradients[gradient_key] = input_gradient
                        if not isinstance(graph_edge, Tensor) and gradient_key[0] not in queued_ids:
                            queued_ids.add(gradient_key[0])
                            heapq.heappush(ready_nodes, (-graph_edge[0].creation_number, graph_edge[0]))
                del input_gradient
                if isinstance(graph_edge, Tensor):
                    node_attributes.append(graph_edge)  # by the node that accumulates its gradient
                    pending_uses[gradient_key[0]] -= 1
                    if not pending_uses[gradient_key[0]] and gradient_key in gradients:
                        _accumulate_leaf_gradient(autograd_graph, graph_edge, gradients.pop(gradient_key))
            del graph_edges, graph_edge
        if end_callback is not None:
            end_callback()


def _run_backward_node(
    autograd_graph: AutogradGraph, graph_node: AutogradNode, gradients: dict[tuple[int, int], Tensor]
) -> list[OptionalGradient]:
    """Runs a node's backward function, during which saved tensors and incoming gradients stay alive."""
    if graph_node.backward is None:
        raise InputError(
            f"{graph_node.place.path}: the backward pass runs through it twice, which torch refuses: a layer that runs "
            "again by itself (--recompute full-reentrant) reads a tensor of the rest of the model; expected "
            "--recompute full"
        )
    for hook in graph_node.hooks:
        hook()
    output_gradients: OptionalGradient | list[OptionalGradient]
    if graph_node.output_count == 1:
        output_gradients = gradients.pop((id(graph_node), 0), None)
    else:
        output_gradients = [
            gradients.pop((id(graph_node), output_index), None) for output_index in range(graph_node.output_count)
        ]
    saved_tensors = [tensor.unpack() for tensor in graph_node.saved_tensors] if graph_node.saved_tensors else ()
    needs_input_grad = [graph_edge is not None for graph_edge in graph_node.edges]
    input_gradients = list(graph_node.backward(output_gradients, needs_input_grad, *saved_tensors))
    del saved_tensors  # what was made again goes now; what the node keeps stays until it has run
    for input_index, (shape, dtype) in enumerate(graph_node.inputs):
        if not needs_input_grad[input_index]:
            input_gradients[input_index] = None
            continue
        gradient = input_gradients[input_index]
        if gradient is None:
            continue
        if gradient.shape != shape:  # the gradient of what was broadcast is summed
            input_gradients[input_index] = gradient = autograd_graph.sum_to_shape(shape, gradient)
        if gradient.dtype is not dtype:  # the order of axes stays
            input_gradients[input_index] = autograd_graph.new_tensor(
                shape, dtype, elementwise_strides(((gradient.shape, gradient.strides),), shape)
            )
        del gradient
    return input_gradients


def _reference_count(referenced_object: object) -> int:
    """Counts the Python references to a function's argument."""
    return sys.getrefcount(referenced_object)


OWN_REFERENCES = _reference_count(object())
"""Number of references that `sys.getrefcount` reports for an object held only by a variable of the calling function: 2,
or 1 since Python 3.14, where calls borrow variables.
"""


def _add_gradient(
    autograd_graph: AutogradGraph,
    gradients: dict[tuple[int, int], Tensor],
    gradient_key: tuple[int, int],
    gradient: Tensor,
    graph_node: AutogradNode | None,
) -> None:
    """Accumulates another gradient, in place if nothing else references the first gradient.

    graph_node: whose output's gradient it is; None for a trained tensor's.

    Of one that is whole, where the first is a rank's part of it, a part is copied before. What holds the first is
    another reference to it or to its storage, and of a view its base: a linear layer's gradients, of its weight and of
    an input with several axes before the last, are views, so that a second gradient makes a third tensor.
    """
    first_gradient = gradients[gradient_key]
    if gradient.shape != first_gradient.shape:
        gradient = autograd_graph.new_tensor(first_gradient.shape, gradient.dtype)
    is_only_reference = (
        sys.getrefcount(first_gradient) <= OWN_REFERENCES + 1 and sys.getrefcount(first_gradient.storage) <= 2
    )  # besides the first gradient and the tensor
    is_only_reference = is_only_reference and (
        not first_gradient.has_base or (graph_node is not None and graph_node.is_compiled)
    )
    adds_in_place = (
        autograd_graph.adds_in_place
        and is_only_reference
        and is_dense(first_gradient.shape, first_gradient.strides)
        and (graph_node is None or not graph_node.never_adds_in_place)
    )
    if autograd_graph.gradient_sum_hook is not None:
        autograd_graph.gradient_sum_hook(first_gradient.bytes, adds_in_place)
    if not adds_in_place:
        strides = elementwise_strides(
            ((first_gradient.shape, first_gradient.strides), (gradient.shape, gradient.strides)), first_gradient.shape
        )
        gradients[gradient_key] = autograd_graph.new_tensor(first_gradient.shape, first_gradient.dtype, strides)


def _accumulate_leaf_gradient(autograd_graph: AutogradGraph, leaf: Tensor, gradient: Tensor) -> None:
    """Stores the gradient of a trained tensor in its `grad`.

    A gradient that something else refers to, or that has another order of axes than the tensor, is copied first.
    """
    if leaf.grad is None and autograd_graph.keeps_gradients:
        if sys.getrefcount(gradient) > OWN_REFERENCES or not _has_strides_of_leaf(gradient, leaf):
            gradient = autograd_graph.new_tensor(leaf.shape, gradient.dtype, leaf.strides)
        leaf.grad = gradient.detached() if gradient.has_base else gradient
        autograd_graph.meter.reclassify(gradient.storage.block, "gradients")
    if autograd_graph.leaf_gradient_hook is not None:
        autograd_graph.leaf_gradient_hook(leaf)


def _has_strides_of_leaf(gradient: Tensor, leaf: Tensor) -> bool:
    """Whether a gradient has the strides of its trained tensor."""
    axes = zip(leaf.shape, gradient.strides, leaf.strides, strict=True)
    return all(
        is_size_one(axis_size) or gradient_stride == leaf_stride for axis_size, gradient_stride, leaf_stride in axes
    )


def _count_leaf_uses(root_node: AutogradNode) -> dict[int, int]:
    """Counts the uses of each trained tensor in a node's graph, by the tensor's id."""
    use_counts: dict[int, int] = {}
    visited_ids, pending_nodes = {id(root_node)}, [root_node]
    while pending_nodes:
        for graph_edge in pending_nodes.pop().edges:
            if isinstance(graph_edge, Tensor):
                use_counts[id(graph_edge)] = use_counts.get(id(graph_edge), 0) + 1
            elif graph_edge is not None and id(graph_edge[0]) not in visited_ids:
                visited_ids.add(id(graph_edge[0]))
                pending_nodes.append(graph_edge[0])
    return use_counts
