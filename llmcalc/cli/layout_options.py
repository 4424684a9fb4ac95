"""The options of a run on many devices, which several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

from ..errors import InputError
from ..layouts.asked import Asked, AskedRank, Framework
from ..run.layout import ContextExchange, Schedule
from .grouped import takes
from .options import size


def _choice(name: str, text: str) -> Any:
    return typer.Option(name, help=text, show_default=False)


Tp: TypeAlias = Annotated[int | None, size("--tp", text="Ranks that divide heads, widths and the vocabulary.")]
SequenceParallel: TypeAlias = Annotated[
    bool | None, _choice("--sequence-parallel", "With --tp: what lies between the products is divided by tokens.")
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


class LayoutOptions:
    """One attribute an option; each is a field of `Asked`."""

    devices: Annotated[
        int | None,
        size("--devices", "--world-size", text="Devices: tp · cp · pp · dp; if given, --dp is what is left."),
    ] = None
    tp: Tp = None
    sequence_parallel: SequenceParallel = None
    pp: Pp = None
    vpp: Vpp = None
    pp_layout: PpLayout = None
    schedule: Annotated[
        Schedule | None,
        _choice("--schedule", "Order of micro-batches in the pipeline; 1f1b, or interleaved with --vpp."),
    ] = None
    cp: Cp = None
    cp_comm: Annotated[
        ContextExchange | None, _choice("--cp-comm", "How they exchange keys and values: in a ring, by heads, or all.")
    ] = None
    dp: Dp = None
    zero: Annotated[
        int | None,
        typer.Option(
            "--zero",
            metavar="1|2|3",
            help="What replicas divide: optimizer states, gradients too, weights too; nothing.",
            show_default=False,
        ),
    ] = None
    fsdp: Annotated[int | None, size("--fsdp", text="Replicas that divide weights, gradients and states (ZeRO-3).")] = (
        None
    )
    hsdp_replicas: Annotated[
        int | None, size("--hsdp-replicas", text="Groups of --fsdp ranks, each with all of the weights.")
    ] = None
    reshard: Annotated[
        bool | None,
        typer.Option(
            "--reshard/--no-reshard",
            help="With divided weights: whether a layer's are given back after its forward pass.",
            show_default=False,
        ),
    ] = None
    prefetch: Annotated[
        int | None,
        size(
            "--prefetch",
            text="With --fsdp: further layers that each layer gathers ahead of them; as the framework does.",
            least=0,
        ),
    ] = None
    ep: Ep = None
    etp: Etp = None
    framework: Annotated[
        Framework | None,
        _choice("--framework", "Whose kernels and buffers; fsdp2 with --fsdp or --zero 3, else torch."),
    ] = None
    framework_version: Annotated[
        str | None,
        typer.Option(
            "--framework-version", metavar="DATE|TAG", help="Such as 2025-10-08; the newest known.", show_default=False
        ),
    ] = None


class RankOptions:
    """The options of counts of one rank."""

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


def takes_layout(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command these options in the place of its parameter `asked`, which gets them as one."""
    return takes("asked", LayoutOptions, _asked)(command)


def takes_rank(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of one rank in the place of its parameter `asked`, which gets them as one."""
    return takes("asked", RankOptions, _asked_rank)(command)


def _asked_rank(chosen: dict[str, Any]) -> AskedRank:
    rank = chosen.pop("rank")
    return AskedRank(_asked(chosen), rank)


def _asked(chosen: dict[str, Any]) -> Asked:
    text = chosen.pop("pp_layout")
    try:
        stages = None if text is None else tuple(int(one) for one in text.split(","))
    except ValueError:
        raise InputError(f"--pp-layout: '{text}'; expected layers of each stage, such as 12,10,10") from None
    return Asked(**chosen, pp_layout=stages)
