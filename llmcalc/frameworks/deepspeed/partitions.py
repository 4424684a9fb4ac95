"""Partitions in ZeRO stages 1 and 2: all parameters as one flat tensor, of which each rank owns an equal part.

Source: deepspeed/runtime/zero/stage_1_and_2.py of 0.19.8 (`__init__`, `get_partition_info`,
`initialize_gradient_partition`, `_round_robin_reorder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple, TypeVar

from ...simulator.lowering import ModulePath
from ...simulator.tensor import Tensor

PARTITION_ALIGNMENT = 2
"""A partition's number of elements is a multiple of this (`nccl_start_alignment_factor`)."""

ParameterType = TypeVar("ParameterType")


class PartitionPiece(NamedTuple):
    """The part of a parameter that is in one rank's partition. element_count: its number of elements."""

    rank: int
    element_count: int


def weight_element_count(weight: Tensor) -> int:
    """Returns a parameter's number of elements."""
    element_count = weight.numel
    assert isinstance(element_count, int)
    return element_count


def round_robin_order(parameters: Sequence[ParameterType], rank_count: int) -> list[ParameterType]:
    """Returns parameters in the order of DeepSpeed's round-robin assignment to ranks (`_round_robin_reorder`)."""
    return [parameter for first_index in range(rank_count) for parameter in parameters[first_index::rank_count]]


def aligned_offsets(element_counts: Sequence[int], element_bytes: int, is_aligned: bool) -> tuple[list[int], int]:
    """Returns each parameter's offset in the flat tensor, and the offset after the last parameter.

    element_counts: per parameter, its elements.
    element_bytes: bytes per element.
    is_aligned: whether each parameter begins at a multiple of 16 bytes.
    """
    aligned_elements = 16 // gcd(16, element_bytes) if is_aligned else 1
    start_offsets, next_offset = [], 0
    for element_count in element_counts:
        next_offset = -(-next_offset // aligned_elements) * aligned_elements
        start_offsets.append(next_offset)
        next_offset += element_count
    return start_offsets, next_offset


def padded_flat_size(element_count: int, rank_count: int) -> int:
    """Returns the number of elements of the flat tensor, padded so that ranks divide it equally."""
    return -(-element_count // (PARTITION_ALIGNMENT * rank_count)) * PARTITION_ALIGNMENT * rank_count


def partition_pieces(offset: int, element_count: int, partition_elements: int) -> list[PartitionPiece]:
    """Returns the pieces of a parameter in each rank's partition. offset: the parameter's start in the flat tensor."""
    weight_pieces, piece_start = [], offset
    while piece_start < offset + element_count:
        piece_end = min(offset + element_count, (piece_start // partition_elements + 1) * partition_elements)
        weight_pieces.append(PartitionPiece(piece_start // partition_elements, piece_end - piece_start))
        piece_start = piece_end
    return weight_pieces


def sort_in_module_order(parameter_paths: Sequence[ModulePath]) -> list[ModulePath]:
    """Returns the paths of parameters in the order of `nn.Module.named_parameters`.

    The program has parameters in the order of their use. A layer has its sublayers before its norms (as in transformers
    and the reference), and a module its weight before its bias.
    """
    layer_positions: dict[ModulePath, int] = {}
    module_positions: dict[ModulePath, int] = {}
    for parameter_path in parameter_paths:
        layer_positions.setdefault(_layer_path_of(parameter_path), len(layer_positions))
        module_positions.setdefault(module_path_of(parameter_path), len(module_positions))

    def position_in_module(tensor_path: ModulePath) -> tuple[int, bool, int, bool]:
        layer_path, module_path = _layer_path_of(tensor_path), module_path_of(tensor_path)
        is_norm = type(layer_path[-1]) is int and len(module_path) <= len(layer_path) + 1
        return (
            layer_positions[layer_path],
            is_norm,
            module_positions[module_path],
            str(tensor_path[-1]).endswith("bias"),
        )

    return sorted(parameter_paths, key=position_in_module)


def module_path_of(parameter_path: ModulePath) -> ModulePath:
    """Returns the path of a parameter's module."""
    *parent_path, parameter_name = parameter_path
    module_name = str(parameter_name).rpartition(".")[0]
    return (*parent_path, module_name) if module_name else tuple(parent_path)


def _layer_path_of(parameter_path: ModulePath) -> ModulePath:
    """Returns the path of the layer that contains a parameter; for a parameter outside of layers, of its module."""
    index_positions = [i for i, path_part in enumerate(parameter_path) if type(path_part) is int]
    return parameter_path[: index_positions[0] + 1] if index_positions else module_path_of(parameter_path)
