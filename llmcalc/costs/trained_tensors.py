"""The tensors of a model that training updates, for which an optimizer has states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..algebra import Number, add, times
from ..flow.tree import Node, NodePosition
from ..frozen import frozen
from ..ops import ParamTensor
from ..units import DTYPE_BITS, bits_to_bytes


@frozen(slots=True)
class TrainedTensor:
    """A tensor that training updates, with its shape, component and number of copies.

    tensor: shape and role.
    kind: its component.
    copies: number of identical tensors.
    path: names of its parent nodes, without indices.
    is_in_layer: whether it is inside one of the model's layers; default True.
    """

    tensor: ParamTensor
    kind: str
    copies: Number
    path: str = ""
    is_in_layer: bool = True

    @property
    def is_layer_matrix(self) -> bool:
        """Whether the tensor is the matrix of a linear layer inside a transformer layer, and not of stacked experts."""
        return self.is_in_layer and self.tensor.role == "matrix" and len(self.tensor.shape) == 2


def trained_tensors(node_tree: Node, included_parts: frozenset[str] = frozenset()) -> Iterator[TrainedTensor]:
    """Yields every trained tensor; tied tensors once, and the experts of a layer as one stacked tensor."""
    for tree_node in node_tree.walk():
        counted_op = tree_node.counted_op
        if counted_op is not None and not (tree_node.optional_part and tree_node.optional_part not in included_parts):
            for tensor in counted_op.tensors():
                yield TrainedTensor(
                    tensor,
                    tree_node.kind,
                    tree_node.copies,
                    _path_without_indices(tree_node),
                    is_in_layer(tree_node),
                )


def trained_tensors_from_layer(
    node_tree: Node, first_layer: int, included_parts: frozenset[str] = frozenset()
) -> Iterator[TrainedTensor]:
    """Yields the trained tensors of the layers from index `first_layer` to the last layer."""
    operation_nodes = [tree_node for tree_node in node_tree.walk() if tree_node.counted_op is not None]
    for tree_node in operation_nodes:
        layer_node = _layer_around_node(tree_node)
        if layer_node is None or (tree_node.optional_part and tree_node.optional_part not in included_parts):
            continue
        layer_indices = range(int(layer_node.copies)) if layer_node.node.indices is None else layer_node.node.indices
        copy_count = (
            tree_node.copies
            * sum(layer_index >= first_layer for layer_index in layer_indices)
            // int(layer_node.copies)
        )
        if copy_count and tree_node.counted_op is not None:
            for tensor in tree_node.counted_op.tensors():
                yield TrainedTensor(tensor, tree_node.kind, copy_count, _path_without_indices(tree_node))


def layer_paths(node_tree: Node) -> tuple[str, ...]:
    """Returns the paths of the model's layers, without indices."""
    return tuple(
        dict.fromkeys(
            _path_without_indices(tree_node) for tree_node in node_tree.walk() if tree_node.node.kind == "layer"
        )
    )


def _path_without_indices(tree_node: NodePosition) -> str:
    """Returns a node's path without layer indices, such as `layers.self_attn.q_proj`."""
    parent_names = "" if tree_node.parent is None else _path_without_indices(tree_node.parent)
    return f"{parent_names}.{tree_node.node.name}".strip(".")


def is_in_layer(tree_node: NodePosition | None) -> bool:
    """Whether a node is inside a transformer layer."""
    return _layer_around_node(tree_node) is not None


def _layer_around_node(tree_node: NodePosition | None) -> NodePosition | None:
    """Returns the transformer layer that contains a node; None if the node is outside the layers."""
    while tree_node is not None and tree_node.node.kind != "layer":
        tree_node = tree_node.parent
    return tree_node


def packed_bytes(element_count: Number, dtype: str) -> Number:
    """Returns the bytes of a number of elements; formats below 8 bits are packed into whole bytes."""
    element_bits = DTYPE_BITS[dtype]
    return element_count * (element_bits // 8) if element_bits % 8 == 0 else bits_to_bytes(element_count * element_bits)


def sum_over_tensors(tensors: Iterable[TrainedTensor], tensor_quantity: Callable[[ParamTensor], Number]) -> Number:
    """Returns the sum of a quantity per tensor, such as bytes, over trained tensors and their copies."""
    value_sum: Number = 0
    for trained_tensor in tensors:
        value_sum = add(value_sum, times(tensor_quantity(trained_tensor.tensor), trained_tensor.copies))
    return value_sum


def total_elements(tensors: Iterable[TrainedTensor]) -> Number:
    """Returns the total number of elements of trained tensors."""
    return sum_over_tensors(tensors, lambda tensor: tensor.size)


def tensor_count(tensors: Iterable[TrainedTensor]) -> Number:
    """Returns the number of trained tensors."""
    return sum_over_tensors(tensors, lambda _: 1)
