"""The options of counts of one rank of a layout, which load nothing of layouts until one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ..errors import InputError
from .grouped import takes
from .options import size

if TYPE_CHECKING:
    from ..algebra import Number
    from ..model import ModelSpec
    from ..parallel.layout_request import Asked
    from ..parallel.rank_model import RankModel, Share


Tp: TypeAlias = Annotated[int | None, size("--tp", text="Ranks that divide heads, widths and the vocabulary.")]
SequenceParallel: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--sequence-parallel",
        help="With --tp: what lies between the products is divided by tokens.",
        show_default=False,
    ),
]
Pp: TypeAlias = Annotated[int | None, size("--pp", text="Stages of a pipeline.")]
Vpp: TypeAlias = Annotated[int | None, size("--vpp", text="Chunks of layers of each of its ranks.")]
PpLayout: TypeAlias = Annotated[
    str | None,
    typer.Option("--pp-layout", metavar="12,10,…", help="Layers of each stage; even ones.", show_default=False),
]
Cp: TypeAlias = Annotated[int | None, size("--cp", text="Ranks that divide each sequence.")]
Dp: TypeAlias = Annotated[int | None, size("--dp", text="Replicas, each with micro-batches of its own.")]
Ep: TypeAlias = Annotated[
    int | None, size("--ep", text="Ranks that divide the experts, among those of --dp, --cp and --tp.")
]
Etp: TypeAlias = Annotated[int | None, size("--etp", text="Ranks that divide each expert; as many as --tp.")]


class RankOptions:
    """One attribute an option; each but `rank` is a field of `Asked`."""

    tp: Tp = None
    sequence_parallel: SequenceParallel = None
    pp: Pp = None
    vpp: Vpp = None
    pp_layout: PpLayout = None
    cp: Cp = None
    dp: Dp = None
    ep: Ep = None
    etp: Etp = None
    rank: Annotated[
        int | None,
        size("--rank", text="Count what this rank of the layout has; the one that has most if not given.", least=0),
    ] = None


class AskedRank:
    """One rank of the layout that someone asks for.

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

        cost: what the rank that has most has most of. most: the same in words.
        Raises `InputError` for a layout that the model cannot have, and for a rank that it does not have.
        """
        if not self.anything:
            return None
        from ..parallel.nearest import with_nearest
        from ..parallel.rank_model import Share, heaviest, of_rank

        if not self.sizes:
            raise InputError("--rank: is of a layout; expected its sizes too, such as --tp 8")
        asked = self._asked()
        with with_nearest(spec, asked):
            layout = asked.layout()
            if self.rank is None:
                why = f"the first rank that {most} the most" if layout.world > 1 else ""
                return Share(heaviest(spec, layout, cost), why)
            if self.rank >= layout.world:
                raise InputError(f"--rank {self.rank}: expected a number below {layout.world:,}, the number of devices")
            found = of_rank(spec, layout, self.rank)
            found.tree()
            return Share(found, "")

    def _asked(self) -> Asked:
        from ..parallel.layout_request import Asked

        return Asked(**self.sizes | {"pp_layout": stages_of(self.sizes.get("pp_layout"))})


ANY_RANK = AskedRank()
"""Nothing is asked."""


def stages_of(text: str | None) -> tuple[int, ...] | None:
    """The layers of each stage, as `--pp-layout` takes them."""
    try:
        return None if text is None else tuple(int(one) for one in text.split(","))
    except ValueError:
        raise InputError(f"--pp-layout: '{text}'; expected layers of each stage, such as 12,10,10") from None


def takes_rank(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of one rank in the place of its parameter `asked`, which gets them as one."""
    return takes("asked", RankOptions, lambda chosen: AskedRank(**chosen))(command)
