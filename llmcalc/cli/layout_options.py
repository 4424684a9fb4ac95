"""The options of a run on many devices, which several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from ..parallel.layout import ContextExchange, Schedule
from ..parallel.layout_request import Asked, Framework
from .grouped import takes
from .options import size
from .rank_options import Cp, Dp, Ep, Etp, Pp, PpLayout, SequenceParallel, Tp, Vpp, stages_of


def _choice(name: str, text: str) -> Any:
    return typer.Option(name, help=text, show_default=False)


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


def takes_layout(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command these options in the place of its parameter `asked`, which gets them as one."""
    return takes("asked", LayoutOptions, _asked)(command)


def _asked(chosen: dict[str, Any]) -> Asked:
    return Asked(**chosen | {"pp_layout": stages_of(chosen["pp_layout"])})
