"""The parameters of one rank, tensor by tensor, and each rank's rows under ZeRO and FSDP.

ZeRO (Rajbhandari 2019, arXiv:1910.02054) divides parameters over the ranks that hold the same ones. FSDP2 gives each
rank equally many rows of every tensor (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `_init_sharded_param`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ..algebra import Number, ceil_div, times
from ..flow.program import AlternativeBranches, ProgramItem, Step
from ..ops.base import ParamTensor
from .rank_program import RankFlow, is_divided

ParameterPath: TypeAlias = tuple[tuple[str, Sequence[int] | None], ...]
"""The path of a parameter: module names, each with the indices that the module stands for in a module list."""


class WeightShard(NamedTuple):
    """A parameter of a rank after tensor and pipeline parallelism.

    path: the path of its module.
    tensor: its shape on this rank.
    module_count: number of modules of that path, each with one such parameter.
    is_expert: whether it belongs to routed experts, whose data-parallel group differs.
    has_partial_gradient: whether the rank applies the whole parameter to its own heads, so that its gradient is a
        partial sum.
    """

    path: ParameterPath
    tensor: ParamTensor
    module_count: Number
    is_expert: bool
    has_partial_gradient: bool

    @property
    def element_count(self) -> Number:
        """Elements of this parameter in all `count` modules."""
        return times(self.tensor.size, self.module_count)


@lru_cache(maxsize=256)
def weight_shards(program: RankFlow, extra_part_names: frozenset[str] = frozenset()) -> tuple[WeightShard, ...]:
    """Returns the parameters of a rank's program, a tied parameter once.

    extra_part_names: optional parts of the model that the program has, none by default.
    """
    layout = program.rank_axes.layout
    has_expert_groups = layout.ep > 1 or layout.expert_tp != layout.tp
    return tuple(_weight_shards(program.root.items, (), 1, extra_part_names, has_expert_groups))


def _weight_shards(
    program_items: Iterable[ProgramItem],
    module_path: ParameterPath,
    module_count: Number,
    extra_part_names: frozenset[str],
    has_expert_groups: bool,
) -> Iterator[WeightShard]:
    """Yields the parameters of a program's modules. has_expert_groups: whether experts have separate replica groups."""
    for program_item in program_items:
        if isinstance(program_item, AlternativeBranches):
            yield from _weight_shards(
                next(iter(program_item.branches.values())).items,
                module_path,
                module_count,
                extra_part_names,
                has_expert_groups,
            )
            continue
        item_attributes = program_item.node_fields
        optional_part = item_attributes.get("optional")
        if item_attributes.get("role") == "shared" or (optional_part and optional_part not in extra_part_names):
            continue
        layer_indices = item_attributes.get("indices")
        layer_indices = tuple(layer_indices) if isinstance(layer_indices, list) else layer_indices
        child_path = (*module_path, (program_item.name, layer_indices)) if program_item.name else module_path
        if not isinstance(program_item, Step):
            yield from _weight_shards(
                program_item.items,
                child_path,
                times(module_count, item_attributes.get("repeat", 1)),
                extra_part_names,
                has_expert_groups,
            )
        elif program_item.op is not None and "params" in program_item.op.effects:
            is_expert = (
                has_expert_groups
                and program_item.verb == "experts"
                and program_item.options["experts"].name == "experts"
            )
            is_head_norm = (
                program_item.verb == "norm"
                and is_divided(program_item.input_values[0].axes)
                and not is_divided(program_item.options["over"])
            )
            for tensor in program_item.op.tensors():  # type: ignore[attr-defined]
                yield WeightShard(child_path, tensor, module_count, is_expert, is_head_norm)


def shard_rows(row_count: int, rank_count: int, rank_index: int) -> int:
    """Returns the number of rows on rank `rank_index` of `rank_count`: equal parts, the last may be shorter."""
    rows_per_rank: int = ceil_div(row_count, rank_count)
    return max(0, min(rows_per_rank, row_count - rows_per_rank * rank_index))
