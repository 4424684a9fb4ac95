"""What is known of an accelerator: memory, bandwidths and dense peak rates.

Vendors print peaks with 2:4 sparsity, which a dense matrix product does not reach: the peaks here are dense.
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

    bandwidth: bytes/s of all of one accelerator's links together. direction: what that adds up: `bidirectional`, both
    directions (NVIDIA's and Google's figures), or `per_direction`, one of them.
    """

    name: str = Field(min_length=1)
    bandwidth: Amount
    direction: Literal["bidirectional", "per_direction"]

    @property
    def bandwidth_per_direction(self) -> int:
        """bytes/s that one accelerator can send."""
        return self.bandwidth // 2 if self.direction == "bidirectional" else self.bandwidth


class Hardware(Record):
    """One accelerator.

    released: the day its vendor announced it. memory_bytes: what it has, before driver and error correction take their
    share. usable_memory_bytes: what they leave to a program, where that is published or measured. memory_bandwidth:
    bytes/s. peak_flops: dense peak FLOP/s of matrix products by number format (operations/s for int8); none where its
    vendor publishes none. tdp_watts: its greatest power.
    """

    name: str = ""
    title: str = Field(min_length=1)
    vendor: str = Field(min_length=1)
    released: str = Field(pattern=r"^\d{4}(-\d{2}){0,2}$")
    aliases: tuple[str, ...] = ()
    memory_bytes: Amount
    usable_memory_bytes: Amount | None = None
    memory_bandwidth: Amount
    interconnect: Interconnect | None = None
    peak_flops: dict[str, Amount] = {}
    tdp_watts: Amount | None = None
    sources: tuple[Source, ...] = Field(min_length=1)
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.usable_memory_bytes is not None and self.usable_memory_bytes > self.memory_bytes:
            raise ValueError(f"usable_memory_bytes: {self.usable_memory_bytes} is more than memory_bytes")
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
            raise InputError(f"{self.title}: no peak FLOP/s is known, because {self.vendor} publishes none")
        raise InputError(f"{self.title}: no peak FLOP/s is known for {wanted}; expected one of {', '.join(known)}")

    def ridge(self, dtype: str) -> float:
        """FLOPs a byte of memory traffic from which on the peak, not the memory bandwidth,
        is the limit (Williams 2009).
        """
        return self.peak(dtype) / self.memory_bandwidth
