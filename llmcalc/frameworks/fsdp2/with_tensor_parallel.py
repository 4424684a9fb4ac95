"""Layers whose products are divided over ranks (`device.dtensor`), and what is left of their parameters sharded.

A parameter is a distributed tensor of this rank's rows or columns, of which FSDP shards the rows again
(`_StridedShard`): a shard is a part of what the rank has. Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py of
torch 2.13, `_init_sharding_spec`, `_get_grad_inner_tensor`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from ...flow.axis import Shape as Axes
from ...flow.program import Item, Step
from ...flow.record import Flow
from ...parallel.rank_program import Shard, flat_axes, is_divided
from ...simulator.lowering import Path
from ...simulator.profiles.dtensor import Divided, named_steps
from ...simulator.strides import Shape
from .lowering import Sharded, name_in_titan
from .param_groups import Traffic


class ShardedAndDivided(Divided, Sharded):
    """Layers whose products are divided, and what is left of their parameters sharded.

    wholes: the path of a divided parameter, without indices of layers → its shape before it is divided.
    """

    wholes: Mapping[str, Shape] = {}

    def shard(self, traffic: Traffic, layer_paths: Collection[str], splits: bool) -> None:
        super().shard(traffic, layer_paths, splits)
        self.divides_loss = traffic.how.divides_loss
        self.copies_gathered = traffic.how.copies_gathered

    def prepare(self, program: Flow) -> None:
        self.find_places(program)
        self.wholes = dict(_wholes(program.root.items, "model"))
        super().prepare(program)

    @property
    def in_products(self) -> bool:
        """Asynchronous tensor parallelism is in compiled layers (Inductor's `micro_pipeline_tp_pass`)."""
        overlaps = self.traffic is not None and self.traffic.how.overlaps
        return overlaps and self.choices.compiled and self.graph.meter.place.turn >= 0

    def whole_shape(self, key: Path, shape: Shape) -> Shape:
        return self.wholes.get(_plain(key), shape)

    def narrows(self, step: Step) -> bool:
        """torchao's styles cast what they gather, if all of a tensor has one scale (float8_tensor_parallel.py)."""
        float8 = None if self.traffic is None else self.traffic.how.float8
        if float8 is None or float8.recipe != "tensorwise":
            return False
        name = f"{_plain(self.module_path())}.{step.name}".rstrip(".")
        rows, columns = self.wholes[f"{name}.weight"]
        return float8.converts(name_in_titan(name), rows, columns)

    def gets_partial_sums(self, key: Path) -> bool:
        """Whether the gradient that a rank has of a parameter is of its own tokens or heads alone."""
        return self.tokens > 1 and _plain(key) not in self.wholes


def _plain(key: Path) -> str:
    """The path of a parameter without the indices of layers."""
    return ".".join(str(part).strip(".") for part in key if type(part) is not int and part)


def _wholes(items: Iterable[Item], path: str) -> Iterator[tuple[str, Shape]]:
    """The shapes of divided matrices and tables before they were divided, [rows, columns]."""
    for name, step in named_steps(items, path):
        if step.weight is not None and is_divided((*step.weight.ins, *step.weight.out)):
            table = step.verb in ("table", "unread_table")
            rows, columns = (step.weight.ins, step.weight.out) if table else (step.weight.out, step.weight.ins)
            yield f"{name}.weight", (_whole(rows), _whole(columns))
            yield f"{name}.bias", (_whole(step.weight.out),)


def _whole(axes: Axes) -> int:
    size = 1
    for axis in flat_axes(axes):
        size *= axis.whole if isinstance(axis, Shard) else axis.size
    return size
