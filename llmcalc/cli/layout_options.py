"""The options of a run on many devices, which several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..layouts.asked import Asked, Framework
from ..run.layout import ContextExchange, Schedule
from .device_options import takes
from .options import size


def _choice(name: str, text: str) -> Any:
    return typer.Option(name, help=text, show_default=False)


class LayoutOptions:
    """One attribute an option; each is a field of `Asked`."""

    devices: Annotated[
        int | None,
        size("--devices", "--world-size", text="Devices: tp · cp · pp · dp; if given, --dp is what is left."),
    ] = None
    tp: Annotated[int | None, size("--tp", text="Ranks that divide heads, widths and the vocabulary.")] = None
    sequence_parallel: Annotated[
        bool | None, _choice("--sequence-parallel", "With --tp: what lies between the products is divided by tokens.")
    ] = None
    pp: Annotated[int | None, size("--pp", text="Stages of a pipeline.")] = None
    vpp: Annotated[int | None, size("--vpp", text="Chunks of layers of each of its ranks.")] = None
    pp_layout: Annotated[
        str | None,
        typer.Option("--pp-layout", metavar="12,10,…", help="Layers of each stage; even ones.", show_default=False),
    ] = None
    schedule: Annotated[
        Schedule | None,
        _choice("--schedule", "Order of micro-batches in the pipeline; 1f1b, or interleaved with --vpp."),
    ] = None
    cp: Annotated[int | None, size("--cp", text="Ranks that divide each sequence.")] = None
    cp_comm: Annotated[
        ContextExchange | None, _choice("--cp-comm", "How they exchange keys and values: in a ring, by heads, or all.")
    ] = None
    dp: Annotated[int | None, size("--dp", text="Replicas, each with micro-batches of its own.")] = None
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
    ep: Annotated[
        int | None, size("--ep", text="Ranks that divide the experts, among those of --dp, --cp and --tp.")
    ] = None
    etp: Annotated[int | None, size("--etp", text="Ranks that divide each expert; as many as --tp.")] = None
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
    text = chosen.pop("pp_layout")
    try:
        stages = None if text is None else tuple(int(one) for one in text.split(","))
    except ValueError:
        raise InputError(f"--pp-layout: '{text}'; expected layers of each stage, such as 12,10,10") from None
    return Asked(**chosen, pp_layout=stages)
