"""One rank of a layout that is asked for, whose counts are wanted in the place of the whole model's.

Nothing that computes with layouts is loaded until one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..workload.setting import Declared, Setting, declared
from .layout_request import LayoutRequest

if TYPE_CHECKING:
    from ..algebra import Number
    from ..model import ModelSpec
    from .rank_model import RankModel, Share

SIZES = ("tp", "sequence_parallel", "pp", "vpp", "pp_layout", "cp", "dp", "ep", "etp")
"""The settings of a layout by which counts of one rank differ."""

RANK = Declared(
    "rank", int, Setting("Count what this rank of the layout has.", "Layout", "the rank that has most", least=0)
)


class RankRequest:
    """One rank of the layout that options ask for.

    sizes: fields of `LayoutRequest` that are given. rank: which rank; None for the one that has most.
    """

    def __init__(self, **given: Any) -> None:
        self.rank: int | None = given.pop("rank", None)
        self.sizes = {name: value for name, value in given.items() if value is not None}

    @property
    def anything(self) -> bool:
        """Whether anything is asked."""
        return bool(self.sizes) or self.rank is not None

    def share(self, spec: ModelSpec, cost: Callable[[RankModel], Number], most: str) -> Share | None:
        """The share of that rank; None where nothing is asked.

        cost: the cost by which the rank that has most is found. most: the same in words.
        Raises `InputError` for a layout that the model cannot have, and for a rank that it does not have.
        """
        if not self.anything:
            return None
        from .nearest import with_nearest
        from .rank_model import Share, heaviest, of_rank

        if not self.sizes:
            raise InputError("--rank: is of a layout; expected its sizes too, such as --tp 8")
        request = LayoutRequest(**self.sizes)
        with with_nearest(spec, request):
            layout = request.layout()
            if self.rank is None:
                why = f"the first rank that {most} the most" if layout.world > 1 else ""
                return Share(heaviest(spec, layout, cost), why)
            if self.rank >= layout.world:
                raise InputError(f"--rank {self.rank}: expected a number below {layout.world:,}, the number of devices")
            found = of_rank(spec, layout, self.rank)
            found.tree()
            return Share(found, "")


ANY_RANK = RankRequest()
"""Nothing is asked."""


def rank_settings() -> dict[str, Declared]:
    """The settings of one rank by their names."""
    return {**{name: declared(LayoutRequest)[name] for name in SIZES}, RANK.name: RANK}
