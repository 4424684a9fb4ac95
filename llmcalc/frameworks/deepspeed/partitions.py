"""How DeepSpeed shares out parameters among ranks: one flat tensor, of which each rank updates an equal part.

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
"""`nccl_start_alignment_factor`: the flat tensor is a multiple of so many elements a rank."""

Item = TypeVar("Item")


class Piece(NamedTuple):
    """The part of a parameter that lies in one rank's partition.

    rank: whose partition. elements: how many it has.
    """

    rank: int
    elements: int


def elements(weight: Tensor) -> int:
    """The number of elements of a parameter."""
    number = count_of(weight.shape)
    assert isinstance(number, int)
    return number


def by_turns(items: Sequence[Item], ranks: int) -> list[Item]:
    """The parameters in the order in which ranks get them by turns (`_round_robin_reorder`)."""
    return [item for rank in range(ranks) for item in items[rank::ranks]]


def offsets(counts: Sequence[int], width: int, aligned: bool) -> tuple[list[int], int]:
    """Where each parameter begins in the flat tensor, and where the last one ends.

    counts: elements of each. width: bytes of an element. aligned: whether each begins at a multiple of 16 bytes.
    """
    to = 16 // gcd(16, width) if aligned else 1
    starts, end = [], 0
    for count in counts:
        end = -(-end // to) * to
        starts.append(end)
        end += count
    return starts, end


def flat_size(end: int, ranks: int) -> int:
    """Elements of the flat tensor with its padding."""
    return -(-end // (ALIGNMENT * ranks)) * ALIGNMENT * ranks


def pieces(start: int, count: int, part: int) -> list[Piece]:
    """The pieces of a parameter. start: where it begins in the flat tensor. part: elements of a partition."""
    found, at = [], start
    while at < start + count:
        end = min(start + count, (at // part + 1) * part)
        found.append(Piece(at // part, end - at))
        at = end
    return found


def in_module_order(paths: Sequence[Path]) -> list[Path]:
    """The paths of parameters in the order of `nn.Module.named_parameters`.

    The program has them in the order in which they are used. A layer has its sublayers before its own norms (as in
    transformers and the reference), and a module its weight before its bias.
    """
    layer: dict[Path, int] = {}
    module: dict[Path, int] = {}
    for path in paths:
        layer.setdefault(_layer_of(path), len(layer))
        module.setdefault(module_of(path), len(module))

    def key(path: Path) -> tuple[int, bool, int, bool]:
        own, around = _layer_of(path), module_of(path)
        is_norm = type(own[-1]) is int and len(around) <= len(own) + 1
        return layer[own], is_norm, module[around], str(path[-1]).endswith("bias")

    return sorted(paths, key=key)


def module_of(path: Path) -> Path:
    """The path of the module that has a parameter."""
    *above, last = path
    name = str(last).rpartition(".")[0]
    return (*above, name) if name else tuple(above)


def _layer_of(path: Path) -> Path:
    """The path of the layer that a parameter is in; its module's where it is in none."""
    inside = [i for i, part in enumerate(path) if type(part) is int]
    return path[: inside[0] + 1] if inside else module_of(path)
