"""The parameters of one rank, tensor by tensor, and the parts of them that it keeps when data parallelism divides them.

ZeRO (Rajbhandari 2019, arXiv:1910.02054) divides parameters over the ranks that hold the same ones. FSDP2 gives each
rank equally many rows of every tensor (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `_init_sharded_param`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from ..algebra import Number, ceil_div, times
from ..flow.program import Alternatives, Item, Step
from ..ops.base import ParamTensor
from .rank_program import RankFlow, is_divided

Path: TypeAlias = tuple[tuple[str, Sequence[int] | None], ...]
"""The names of the modules around a parameter; with the indices of those of a list."""


class Held(NamedTuple):
    """A parameter of a rank.

    path: the module that has it. tensor: its shape on this rank. count: how many modules of the path have one each.
    expert: whether it is of routed experts, which other ranks hold than those that hold the rest.
    of_heads: whether a rank applies all of it to its own heads alone, so that its gradient is a part of the whole one.
    """

    path: Path
    tensor: ParamTensor
    count: Number
    expert: bool
    of_heads: bool

    @property
    def elements(self) -> Number:
        """The elements of all of them."""
        return times(self.tensor.size, self.count)


def held(program: RankFlow, include: frozenset[str] = frozenset()) -> list[Held]:
    """The parameters of a rank's program. A tied one is listed where it is first used.

    include: the optional parts of the model that it has, none by default.
    """
    layout = program.shares.layout
    apart = layout.ep > 1 or layout.expert_tp != layout.tp
    return list(_held(program.root.items, (), 1, include, apart))


def _held(items: Iterable[Item], path: Path, count: Number, include: frozenset[str], apart: bool) -> Iterator[Held]:
    for item in items:
        if isinstance(item, Alternatives):
            yield from _held(next(iter(item.branches.values())).items, path, count, include, apart)
            continue
        about = item.about
        optional = about.get("optional")
        if about.get("role") == "shared" or (optional and optional not in include):
            continue
        indices = about.get("indices")
        indices = tuple(indices) if isinstance(indices, list) else indices
        below = (*path, (item.name, indices)) if item.name else path
        if not isinstance(item, Step):
            yield from _held(item.items, below, times(count, about.get("repeat", 1)), include, apart)
        elif item.op is not None and "params" in item.op.effects:
            expert = apart and item.verb == "experts" and item.options["experts"].name == "experts"
            of_heads = item.verb == "norm" and is_divided(item.ins[0].axes) and not is_divided(item.options["over"])
            for tensor in item.op.tensors():  # type: ignore[attr-defined]
                yield Held(below, tensor, count, expert, of_heads)


def shard_rows(rows: int, ranks: int, index: int) -> int:
    """How many rows of a tensor rank `index` of `ranks` keeps: an equal part, rounded up; the last ranks have the rest,
    which may be none.
    """
    each: int = ceil_div(rows, ranks)
    return max(0, min(each, rows - each * index))
