"""The options of a layout over devices: all of them, or those of the counts of one rank.

Nothing that computes with layouts is loaded until one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..parallel.layout_request import Asked
from ..workload.setting import Declared, Setting, declared
from .setting_options import OptionOfCommand, option_of, options_of, takes

if TYPE_CHECKING:
    from ..algebra import Number
    from ..model import ModelSpec
    from ..parallel.rank_model import RankModel, Share


def takes_layout(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of a layout in the place of its parameter `asked`, which gets them as one."""
    return takes("asked", {**options_of(Asked), "framework": _framework()}, lambda chosen: Asked(**chosen))(command)


def _framework() -> OptionOfCommand:
    """The option `--framework`, whose words are the names of the records."""
    from ..frameworks.registry import NAMES, WITHOUT_A_NAME, framework

    records = [framework(name) for name in NAMES]
    implied = (f"{record.name} {record.implied_by[0]}" for record in records if record.implied_by is not None)
    names = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"
    found = declared(Asked)["framework"]
    text = f"{names}. {found.setting.help} By default {', '.join((*implied, f'else {WITHOUT_A_NAME}'))}."
    return option_of(found, help=text, metavar="NAME", complete=lambda: NAMES)


SIZES = ("tp", "sequence_parallel", "pp", "vpp", "pp_layout", "cp", "dp", "ep", "etp")
"""The settings of a layout by which counts of one rank differ."""

RANK = Declared(
    "rank", int, Setting("Count what this rank of the layout has.", "Layout", "the rank that has most", least=0)
)


class AskedRank:
    """One rank of the layout that options ask for.

    sizes: fields of `Asked` that are given. rank: which rank; None for the one that has most.
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
        from ..parallel.nearest import with_nearest
        from ..parallel.rank_model import Share, heaviest, of_rank

        if not self.sizes:
            raise InputError("--rank: is of a layout; expected its sizes too, such as --tp 8")
        request = Asked(**self.sizes)
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


ANY_RANK = AskedRank()
"""Nothing is asked."""


def takes_rank(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of one rank in the place of its parameter `asked`, which gets them as one."""
    options = {**options_of(Asked, SIZES), RANK.name: option_of(RANK)}
    return takes("asked", options, lambda chosen: AskedRank(**chosen))(command)
