"""The partitions of DeepSpeed's stages 1 and 2: one flat tensor of all parameters, with an equal part per rank.

Source: deepspeed/runtime/zero/stage_1_and_2.py of 0.19.8 (`__init__`, `get_partition_info`,
`initialize_gradient_partition`, `_round_robin_reorder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple, TypeVar

from ...simulator.lowering import Path
from ...simulator.strides import count as count_of
from ...simulator.tensor import Tensor

ALIGNMENT = 2
"""The number that divides the elements of a partition (`nccl_start_alignment_factor`)."""

Item = TypeVar("Item")


class Piece(NamedTuple):
    """The part of a parameter in one rank's partition. rank: the rank. elements: elements of the part."""

    rank: int
    elements: int


def elements(weight: Tensor) -> int:
    """The number of elements of a parameter."""
    number = count_of(weight.shape)
    assert isinstance(number, int)
    return number


def by_turns(items: Sequence[Item], ranks: int) -> list[Item]:
    """The parameters dealt to the ranks in turn, in the order of the ranks (`_round_robin_reorder`)."""
    return [item for rank in range(ranks) for item in items[rank::ranks]]


def offsets(counts: Sequence[int], width: int, aligned: bool) -> tuple[list[int], int]:
    """The start of each parameter in the flat tensor, and the end of the last one.

    counts: per parameter, its elements.
    width: bytes per element.
    aligned: whether each parameter begins at a multiple of 16 bytes.
    """
    alignment = 16 // gcd(16, width) if aligned else 1
    starts, end = [], 0
    for count in counts:
        end = -(-end // alignment) * alignment
        starts.append(end)
        end += count
    return starts, end


def flat_size(end: int, ranks: int) -> int:
    """Elements of the flat tensor with its padding."""
    return -(-end // (ALIGNMENT * ranks)) * ALIGNMENT * ranks


def pieces(start: int, count: int, part: int) -> list[Piece]:
    """The pieces of a parameter. start: its start in the flat tensor. part: elements of a partition."""
    results, position = [], start
    while position < start + count:
        end = min(start + count, (position // part + 1) * part)
        results.append(Piece(position // part, end - position))
        position = end
    return results


def in_module_order(paths: Sequence[Path]) -> list[Path]:
    """The paths of parameters in the order of `nn.Module.named_parameters`.

    The program has parameters in the order of their use. A layer has its sublayers before its norms (as in transformers
    and the reference), and a module its weight before its bias.
    """
    layer_positions: dict[Path, int] = {}
    module_positions: dict[Path, int] = {}
    for path in paths:
        layer_positions.setdefault(_layer_of(path), len(layer_positions))
        module_positions.setdefault(module_of(path), len(module_positions))

    def key(path: Path) -> tuple[int, bool, int, bool]:
        layer_path, module_path = _layer_of(path), module_of(path)
        is_norm = type(layer_path[-1]) is int and len(module_path) <= len(layer_path) + 1
        return layer_positions[layer_path], is_norm, module_positions[module_path], str(path[-1]).endswith("bias")

    return sorted(paths, key=key)


def module_of(path: Path) -> Path:
    """The path of a parameter's module."""
    *above, last = path
    name = str(last).rpartition(".")[0]
    return (*above, name) if name else tuple(above)


def _layer_of(path: Path) -> Path:
    """The path of a parameter's layer; of its module if it is in no layer."""
    inside = [i for i, part in enumerate(path) if type(part) is int]
    return path[: inside[0] + 1] if inside else module_of(path)
