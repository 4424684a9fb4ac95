"""The options that select one rank of a layout, whose parameters, FLOPs or cache are counted.

The modules that compute layouts are loaded when the first rank is requested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..workload.setting import DeclaredSetting, Setting, declarations_of
from .layout_request import LayoutRequest

if TYPE_CHECKING:
    from ..algebra import Number
    from ..model import ModelSpec
    from .rank_model import RankModel, SelectedRank

LAYOUT_OPTION_NAMES = ("tp", "sequence_parallel", "pp", "vpp", "pp_layout", "cp", "dp", "ep", "etp")
"""The options of a layout that change the counts of a single rank."""

RANK_SETTING = DeclaredSetting(
    "rank", int, Setting("Count what this rank of the layout has.", "Layout", "the rank that has most", minimum=0)
)


class RankRequest:
    """A request for the counts of one rank of a layout.

    sizes: the fields of `LayoutRequest` that options set.
    rank: the number of the rank; None for the rank with the highest cost.
    """

    def __init__(self, **options: Any) -> None:
        self.rank: int | None = options.pop("rank", None)
        self.sizes: dict[str, Any] = {
            option_name: option_value for option_name, option_value in options.items() if option_value is not None
        }

    @property
    def has_options(self) -> bool:
        """Whether the user gave any option of a layout or of a rank."""
        return bool(self.sizes) or self.rank is not None

    def selected_rank(
        self, spec: ModelSpec, rank_cost: Callable[[RankModel], Number], cost_verb: str
    ) -> SelectedRank | None:
        """Returns the requested rank's model; None if no layout was requested.

        rank_cost: the cost whose maximum selects the rank if no rank number was given.
        cost_verb: that cost in words.
        Raises `InputError` for a layout that the model cannot have, and for a rank that it does not have.
        """
        if not self.has_options:
            return None
        from .nearest_layouts import suggest_nearest_layouts
        from .rank_model import SelectedRank, heaviest_rank, rank_model

        if not self.sizes:
            raise InputError("--rank: is of a layout; expected its sizes too, such as --tp 8")
        layout_request = LayoutRequest(**self.sizes)
        with suggest_nearest_layouts(spec, layout_request):
            layout = layout_request.layout()
            if self.rank is None:
                choice_reason = f"the first rank that {cost_verb} the most" if layout.world_size > 1 else ""
                return SelectedRank(heaviest_rank(spec, layout, rank_cost), choice_reason)
            if self.rank >= layout.world_size:
                raise InputError(
                    f"--rank {self.rank}: expected a number below {layout.world_size:,}, the number of devices"
                )
            model = rank_model(spec, layout, self.rank)
            model.tree()
            return SelectedRank(model, "")


NO_RANK_OPTIONS = RankRequest()
"""A rank request without options, which means the whole model."""


def rank_settings() -> dict[str, DeclaredSetting]:
    """Returns option name → setting, for the options that select the rank whose costs are counted."""
    return {
        **{option_name: declarations_of(LayoutRequest)[option_name] for option_name in LAYOUT_OPTION_NAMES},
        RANK_SETTING.name: RANK_SETTING,
    }
