"""The layout that someone asks for, with what follows from the rest: the replicas of so many devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import date
from typing import Annotated, Any

from ..errors import InputError
from ..workload.setting import TRAINING, Setting
from .layout import ContextExchange, ImpossibleLayout, Layout, Schedule

MOST_DEVICES = 2**20
"""Most devices of a layout that can be asked for; the largest clusters have a quarter of them."""


def check_layers_of_stages(where: str, value: tuple[Any, ...]) -> tuple[int, ...]:
    """The layers of each stage as numbers."""
    try:
        return tuple(int(layers) for layers in value)
    except (TypeError, ValueError):
        raise InputError(
            f"{where}: '{','.join(map(str, value))}'; expected layers of each stage, such as 12,10,10"
        ) from None


@dataclass(frozen=True)
class LayoutRequest:
    """Parallelism options as they were given; None where one was not."""

    devices: Annotated[
        int | None,
        Setting(
            "Devices: tp · cp · pp · dp. Of devices that are given, --dp is what is left.",
            "Layout",
            spellings=("--world-size", "--gpus", "--num-gpus"),
            most=MOST_DEVICES,
            common=True,
        ),
    ] = None
    tp: Annotated[
        int | None, Setting("Ranks that divide heads and widths. The vocabulary too.", "Layout", "1", common=True)
    ] = None
    sequence_parallel: Annotated[
        bool | None, Setting("With --tp: what lies between the products is divided by tokens.", "Layout")
    ] = None
    pp: Annotated[int | None, Setting("Stages of a pipeline.", "Layout", "1", common=True)] = None
    vpp: Annotated[int | None, Setting("Chunks of layers of each rank of the pipeline.", "Layout", "1")] = None
    pp_layout: Annotated[
        tuple[int, ...] | None,
        Setting("Layers of each stage.", "Layout", "even", check=check_layers_of_stages, metavar="12,10,…"),
    ] = None
    schedule: Annotated[
        Schedule | None,
        Setting("Order of micro-batches in the pipeline.", "Layout", "1f1b, or interleaved with --vpp"),
    ] = None
    cp: Annotated[int | None, Setting("Ranks that divide each sequence.", "Layout", "1")] = None
    cp_comm: Annotated[
        ContextExchange | None,
        Setting("How they exchange keys and values: in a ring (p2p), by heads (a2a), or all at once.", "Layout", "p2p"),
    ] = None
    dp: Annotated[int | None, Setting("Replicas. Each has micro-batches of its own.", "Layout", "1", common=True)] = (
        None
    )
    zero: Annotated[
        int | None,
        Setting(
            "ZeRO stage. 1 shards optimizer states, 2 gradients too, 3 weights too.",
            "Layout",
            "none",
            TRAINING,
            metavar="1|2|3",
            common=True,
        ),
    ] = None
    fsdp: Annotated[
        int | None,
        Setting(
            "Replicas that shard weights, gradients and states. The same as --zero 3.",
            "Layout",
            "",
            TRAINING,
            common=True,
        ),
    ] = None
    hsdp_replicas: Annotated[
        int | None, Setting("Groups of --fsdp ranks, each with all of the weights.", "Layout", "1", TRAINING)
    ] = None
    reshard: Annotated[
        bool | None,
        Setting(
            "With sharded weights: whether a layer's are freed after its forward pass.",
            "Layout",
            "as the framework does",
            TRAINING,
            off="--no-reshard",
        ),
    ] = None
    prefetch: Annotated[
        int | None,
        Setting("Layers to all-gather ahead.", "Layout", "the framework's prefetch depth", TRAINING, least=0),
    ] = None
    ep: Annotated[
        int | None,
        Setting(
            "Ranks that divide the experts. They are among those of --dp, --cp and --tp.", "Layout", "1", common=True
        ),
    ] = None
    etp: Annotated[int | None, Setting("Ranks that divide each expert.", "Layout", "as many as --tp")] = None
    framework: Annotated[
        str | None,
        Setting(
            "Whose kernels and buffers.",
            "Layout",
            metavar="NAME",
            common=True,
        ),
    ] = None
    framework_version: Annotated[
        str | None,
        Setting(
            "Version of the framework, such as 2025-10-08.",
            "Layout",
            "the newest known",
            example="2025-10-08",
            metavar="DATE|TAG",
        ),
    ] = None

    @property
    def anything(self) -> bool:
        """Whether anything is asked."""
        return any(getattr(self, field.name) is not None for field in fields(self))

    @property
    def pipeline(self) -> bool:
        """Whether something is asked that only a pipeline has."""
        return self.pp is not None or (self.vpp or 1) > 1 or self.schedule is not None

    def layout(self, keeps_gathered: Callable[[int, int], bool] = lambda pp, zero: False) -> Layout:
        """The layout. Raises `InputError` for options that contradict each other.

        keeps_gathered: (pp, ZeRO stage) → whether gathered weights stay whole after the forward pass where `reshard`
            is not given.
        """
        given: dict[str, Any] = {
            name: value
            for name in (
                "tp",
                "pp",
                "vpp",
                "pp_layout",
                "cp",
                "cp_comm",
                "ep",
                "etp",
                "reshard",
                "prefetch",
                "sequence_parallel",
            )
            if (value := getattr(self, name)) is not None
        }
        if keeps_gathered(self.pp or 1, self.zero_stage()):
            given.setdefault("reshard", False)
        if self.hsdp_replicas is not None:
            given["hsdp_replicas"] = self.hsdp_replicas
        given["zero"] = self.zero_stage()
        given["schedule"] = self.schedule or ("interleaved" if (self.vpp or 1) > 1 else "1f1b")
        given["dp"] = self._replicas((self.tp or 1) * (self.pp or 1) * (self.cp or 1))
        found = Layout(**given)
        self.check(found)
        return found

    def check(self, found: Layout) -> None:
        """Raises `InputError` for an option of divided weights in a layout that does not divide them."""
        for option, asked in (("--prefetch", bool(self.prefetch)), ("--no-reshard", self.reshard is False)):
            if asked and found.zero != 3:
                raise InputError(
                    f"{option}: layers are gathered where weights are divided; expected --fsdp or --zero 3 too"
                )

    def zero_stage(self) -> int:
        """The ZeRO stage. Raises `InputError` for one that there is not, and for one that --fsdp contradicts."""
        if self.fsdp is not None and self.zero not in (None, 3):
            raise InputError(f"--zero {self.zero}: --fsdp divides the weights too; expected no --zero, or 3")
        if self.zero is not None and self.zero not in (0, 1, 2, 3):
            raise InputError(f"--zero: {self.zero}; expected 1, 2 or 3")
        return 3 if self.fsdp is not None else self.zero or 0

    def _replicas(self, each: int) -> int:
        """dp. each: devices of one replica."""
        dp = self.dp
        if self.fsdp is not None:
            found = self.fsdp * (self.hsdp_replicas or 1)
            if dp not in (None, found):
                raise InputError(f"--dp {dp}: --fsdp and --hsdp-replicas make {found}; expected no --dp")
            dp = found
        if self.devices is None:
            return dp or 1
        if self.devices % each or (dp is not None and self.devices != each * dp):
            wanted = f"a multiple of {each}" if dp is None else str(each * dp)
            raise ImpossibleLayout(f"--devices {self.devices}: tp · cp · pp · dp is another number; expected {wanted}")
        return self.devices // each


def dated(version: str) -> date | None:
    """The date of a framework's version; None for the newest. Raises `InputError` for a version that is no date."""
    if not version:
        return None
    try:
        return date.fromisoformat(version)
    except ValueError:
        raise InputError(
            f"--framework-version: '{version}'; expected the date of a commit, such as 2025-10-08"
        ) from None


ANY = LayoutRequest()
"""Nothing is asked."""
