"""What is known of an accelerator: memory, bandwidths, dense peak rates, links and power.

Vendors print peaks with 2:4 sparsity, which a dense matrix product does not reach: the peaks here are dense. A figure
that is not known is absent, never guessed.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .errors import InputError
from .record import Record, Source
from .units import DTYPE_NAMES

PEAK_DTYPES = ("float64", "float32", "tfloat32", "bfloat16", "float16", "float8", "int8", "float4")
"""Number formats that a peak may be given for, widest first."""

Amount = Annotated[int, Field(gt=0, le=10**24, strict=True)]


class Interconnect(Record):
    """The link to other accelerators of its kind.

    name: `NVLink 4`, `PCIe 5.0 x16`.
    bandwidth: bytes/s of all links of one accelerator together.
    direction: `bidirectional`, where the bandwidth adds up both directions (NVIDIA's and Google's figures), or
        `per_direction`, where it is that of one of them.
    domain_size: the scale-up domain: how many accelerators one fabric of this link joins. Absent where none is known.
    """

    name: str = Field(min_length=1)
    bandwidth: Amount
    direction: Literal["bidirectional", "per_direction"]
    domain_size: Amount | None = None

    @property
    def bandwidth_per_direction(self) -> int:
        """bytes/s that one accelerator can send."""
        return self.bandwidth // 2 if self.direction == "bidirectional" else self.bandwidth


class Nic(Record):
    """The network beyond the scale-up domain, as one system has it: the same accelerator is sold in several.

    name: the network card and the system, `ConnectX-7, 400 Gbit/s (DGX H100)`.
    bandwidth_per_direction: bytes/s of one accelerator's share of the system's network cards.
    """

    name: str = Field(min_length=1)
    bandwidth_per_direction: Amount


class ComputeUnits(Record):
    """The units that a kernel's blocks of work are spread over.

    name: what the vendor calls one: `SM`, `CU`, `TensorCore`, `NeuronCore`, `MME`, `GPU core`.
    count: how many of them the accelerator has.
    """

    name: str = Field(min_length=1)
    count: Amount


class Configuration(Record):
    """A memory size that an accelerator is sold with, and the figures that can differ with it, as in `Hardware`.

    Nothing is taken over from the accelerator itself: a figure that is absent here is not known for this size.
    """

    memory_bytes: Amount
    usable_memory_bytes: Amount | None = None
    memory_bandwidth: Amount | None = None
    compute_units: ComputeUnits | None = None


class Hardware(Record):
    """One accelerator.

    title: its name as its vendor writes it.
    vendor: empty for an accelerator of one's own that has none.
    released: the day its vendor announced it.
    memory_bytes: its memory, before driver and error correction take their share.
    usable_memory_bytes: the memory that they leave to a program, where that is published or measured.
    memory_bandwidth: bytes/s.
    interconnect: the link to other accelerators.
    nic: the network beyond that link's domain.
    compute_units: SMs, CUs or cores.
    boost_clock_hz: the clock that the vendor's peaks are stated at.
    peak_flops: dense peak FLOP/s of matrix products by number format (operations/s for int8).
    tdp_watts: TDP, the board's where the vendor states one.
    configurations: the memory sizes that it is sold with, smallest first. The figures above are those of the largest.
    """

    name: str = ""
    title: str = Field(min_length=1)
    vendor: str = ""
    released: str | None = Field(default=None, pattern=r"^\d{4}(-\d{2}){0,2}$")
    aliases: tuple[str, ...] = ()
    memory_bytes: Amount
    usable_memory_bytes: Amount | None = None
    memory_bandwidth: Amount | None = None
    interconnect: Interconnect | None = None
    nic: Nic | None = None
    compute_units: ComputeUnits | None = None
    boost_clock_hz: Amount | None = None
    peak_flops: dict[str, Amount] = {}
    tdp_watts: Amount | None = None
    configurations: tuple[Configuration, ...] = ()
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        sized: tuple[Hardware | Configuration, ...] = (self, *self.configurations)
        for one in sized:
            if one.usable_memory_bytes is not None and one.usable_memory_bytes > one.memory_bytes:
                raise ValueError(f"usable_memory_bytes: {one.usable_memory_bytes} is more than memory_bytes")
        sizes = [one.memory_bytes for one in self.configurations]
        if sizes and (sizes != sorted(set(sizes)) or sizes[-1] != self.memory_bytes):
            raise ValueError("configurations: expected each memory size once, ascending, up to memory_bytes")
        for name in self.peak_flops:
            if name not in PEAK_DTYPES:
                raise ValueError(
                    f"peak_flops: '{name}' is not a number format; expected one of {', '.join(PEAK_DTYPES)}"
                )
        return self

    def peak(self, dtype: str) -> int:
        """Dense peak FLOP/s in a number format, under its full name.

        Raises `InputError` where none is known.
        """
        if dtype in self.peak_flops:
            return self.peak_flops[dtype]
        known = [DTYPE_NAMES.get(d, d) for d in PEAK_DTYPES if d in self.peak_flops]
        wanted = DTYPE_NAMES.get(dtype, dtype)
        if not known:
            raise InputError(f"{self.title}: no peak FLOP/s is known; {self._how_to_give('peak_flops')}")
        raise InputError(f"{self.title}: no peak FLOP/s is known for {wanted}; expected one of {', '.join(known)}")

    def bandwidth(self) -> int:
        """bytes/s of its memory. Raises `InputError` where they are not known: a memory size has none."""
        if self.memory_bandwidth is None:
            raise InputError(
                f"{self.title}: no memory bandwidth is known; {self._how_to_give('memory_bandwidth (bytes/s)')}"
            )
        return self.memory_bandwidth

    def ridge(self, dtype: str) -> float:
        """FLOPs per byte of memory traffic above which the peak, not the memory bandwidth, is the limit
        (Williams 2009).
        """
        return self.peak(dtype) / self.bandwidth()

    def _how_to_give(self, field: str) -> str:
        if self.vendor:
            return f"{self.vendor} publishes none, or no source that a reader can open states it"
        return f"expected a named accelerator, or a TOML file of your own with {field}"


class ListedHardware(Hardware):
    """An accelerator that comes with llmcalc: it says who makes it and where its figures are from."""

    vendor: str = Field(min_length=1)
    sources: tuple[Source, ...] = Field(min_length=1)
