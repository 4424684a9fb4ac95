"""The layout that someone asks for, with what follows from the rest: the replicas of so many devices."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import date
from typing import Any, Literal, TypeAlias

from ..errors import InputError
from .layout import ContextExchange, ImpossibleLayout, Layout, Schedule

Framework: TypeAlias = Literal["torch", "fsdp2", "megatron", "deepspeed"]


@dataclass(frozen=True)
class Asked:
    """Every option of a layout; None where it is not given.

    devices: all of them. fsdp: ranks that divide the weights, of which there are `hsdp_replicas` groups. The others are
    those of `Layout`. framework: whose kernels and buffers. framework_version: as of which date or tag.
    """

    devices: int | None = None
    tp: int | None = None
    sequence_parallel: bool | None = None
    pp: int | None = None
    vpp: int | None = None
    pp_layout: tuple[int, ...] | None = None
    schedule: Schedule | None = None
    cp: int | None = None
    cp_comm: ContextExchange | None = None
    dp: int | None = None
    zero: int | None = None
    fsdp: int | None = None
    hsdp_replicas: int | None = None
    reshard: bool | None = None
    prefetch: int | None = None
    ep: int | None = None
    etp: int | None = None
    framework: Framework | None = None
    framework_version: str | None = None

    @property
    def anything(self) -> bool:
        """Whether anything is asked."""
        return any(getattr(self, field.name) is not None for field in fields(self))

    @property
    def pipeline(self) -> bool:
        """Whether something is asked that only a pipeline has."""
        return self.pp is not None or (self.vpp or 1) > 1 or self.schedule is not None

    def layout(self) -> Layout:
        """The layout. Raises `InputError` for options that contradict each other."""
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
        if kept_whole(self.kernels(), self.pp or 1, self._zero()):
            given.setdefault("reshard", False)
        if self.hsdp_replicas is not None:
            given["hsdp_replicas"] = self.hsdp_replicas
        given["zero"] = self._zero()
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

    def _zero(self) -> int:
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

    def kernels(self) -> Framework:
        """Whose kernels run."""
        if self.framework is not None:
            return self.framework
        return "fsdp2" if self._zero() == 3 else "torch"


def kept_whole(framework: Framework, pp: int, zero: int) -> bool:
    """Whether gathered weights stay whole after the forward pass where nothing else is asked.

    torchtitan keeps them in a pipeline, where every micro-batch would gather them again.
    """
    return framework == "fsdp2" and pp > 1 and zero == 3


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


ANY = Asked()
"""Nothing is asked."""
