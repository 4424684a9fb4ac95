"""The specification of an accelerator: memory, bandwidths, dense peak rates, links and power.

All peaks are dense. Vendors also print peaks with 2:4 sparsity, which dense matrix products do not reach. An unknown
figure is absent, never guessed.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from .errors import InputError
from .frozen import frozen
from .record import FigureSource, Record
from .units import DTYPE_NAMES

PEAK_DTYPES = ("float64", "float32", "tfloat32", "bfloat16", "float16", "float8", "int8", "float4")
"""Number formats that `peak_flops` may list, widest first."""

PositiveInteger = Annotated[int, Field(gt=0, le=10**24, strict=True)]


class Interconnect(Record):
    """The interconnect of the accelerators in one scale-up domain.

    name: name of the link, such as `NVLink 4` or `PCIe 5.0 x16`.
    bandwidth: bytes/s of all links of one accelerator together.
    direction: `bidirectional` if the bandwidth is the sum of both directions (NVIDIA's and Google's figures),
        `per_direction` if it is the bandwidth of one direction.
    domain_size: number of accelerators in one scale-up domain, joined by this link. None if not known.
    peer_access: whether accelerators read each other's memory over the link (default); without it, messages go through
        the host's memory, as between GeForce cards.
    is_mesh: whether each link joins two accelerators without a switch, so that ranks on a part of the domain have only
        the links between them; by default false.
    """

    name: str = Field(min_length=1)
    bandwidth: PositiveInteger
    direction: Literal["bidirectional", "per_direction"]
    domain_size: PositiveInteger | None = None
    peer_access: bool = True
    is_mesh: bool = False

    @property
    def bandwidth_per_direction(self) -> int:
        """Bytes/s that one accelerator can send over the interconnect."""
        return self.bandwidth // 2 if self.direction == "bidirectional" else self.bandwidth


class Nic(Record):
    """The scale-out network interface of an accelerator, as in one published system.

    name: the network card and the system, such as `ConnectX-7, 400 Gbit/s (DGX H100)`.
    bandwidth_per_direction: bytes/s per accelerator of the system's network cards.
    """

    name: str = Field(min_length=1)
    bandwidth_per_direction: PositiveInteger


class ComputeUnits(Record):
    """The compute units that run the thread blocks of a kernel.

    name: the vendor's name of one unit: `SM`, `CU`, `TensorCore`, `NeuronCore`, `MME`, `GPU core`.
    count: number of units of the accelerator.
    """

    name: str = Field(min_length=1)
    count: PositiveInteger


class MemoryConfiguration(Record):
    """One of the memory sizes in which an accelerator is sold, with the `Hardware` fields that depend on the size.

    None of these is inherited from the accelerator: a figure that is absent here is not known for this size. The peaks
    of the accelerator hold for a size, in proportion to its compute units where both numbers are known.
    """

    memory_bytes: PositiveInteger
    usable_memory_bytes: PositiveInteger | None = None
    memory_bandwidth: PositiveInteger | None = None
    compute_units: ComputeUnits | None = None


MACOS_BYTES = 4 * 2**30
"""Bytes of a Mac's memory that must be left to macOS and other programs when the GPU's limit is raised."""


VENDORS_WITHOUT_GPUS = ("Google", "AWS", "Huawei")
"""Vendors whose accelerators are not GPUs (TPUs, Trainium, Ascend)."""

NON_GPU_UNIT_NAMES = ("MME",)
"""Names of compute units that mark an accelerator other than a GPU: Gaudi's MMEs."""


class Hardware(Record):
    """The specification of one accelerator: memory in bytes, bandwidths in bytes/s, dense peak FLOP/s, links and power.

    name: name of the preset, empty for an accelerator read from a user's file.
    title: the vendor's full name of the accelerator.
    vendor: the manufacturer; may be empty in a user's file.
    released: the date of the vendor's announcement, as YYYY, YYYY-MM or YYYY-MM-DD.
    preliminary: whether the vendor announced the figures before the first systems, so that they may change.
    like: the preset that a user's file starts from, whose measured efficiencies hold for it too; None without one.
    aliases: other names that `--hardware` accepts.
    memory_bytes: nominal memory, including the share of the driver and of error correction.
    driver_total: bytes that the driver offers to programs, as CUDA and torch report them
        (`torch.cuda.mem_get_info()[1]`). None if no source states it.
    usable_memory_bytes: memory as tools of the vendor show it, such as nvidia-smi, or as it was measured.
    context_bytes: bytes that a process uses outside torch's allocator, as measured on this accelerator. None to take
        them by compute capability and compute units.
    memory_bandwidth: bytes/s.
    unified_memory: whether the processor has no memory of its own, as in Macs and Jetsons, so that layers which do not
        fit cannot run on it.
    is_processor: whether it is a processor, which computes in the memory of its computer, of any size.
    interconnect: the link to other accelerators.
    nic: the network beyond that link's domain.
    compute_units: SMs, CUs or cores.
    compute_capability: NVIDIA's number for a generation of GPUs, such as `9.0`.
    usual_engine: what most people serve models with on it, where that is not vLLM.
    boost_clock_hz: the clock at which the vendor states the peaks.
    peak_flops: number format → dense peak FLOP/s of matrix products (operations/s for int8).
    float16_accumulation_flops: number format → the same with sums in float16, for cards that then multiply faster.
    tdp_watts: TDP, of the whole board if the vendor states it.
    configurations: the memory sizes that it is sold with, smallest first. The figures above describe the largest.
    """

    name: str = ""
    title: str = Field(min_length=1)
    vendor: str = ""
    released: str | None = Field(default=None, pattern=r"^\d{4}(-\d{2}){0,2}$")
    preliminary: bool = False
    like: str | None = None
    aliases: tuple[str, ...] = ()
    memory_bytes: PositiveInteger
    driver_total: PositiveInteger | None = None
    usable_memory_bytes: PositiveInteger | None = None
    context_bytes: PositiveInteger | None = None
    memory_bandwidth: PositiveInteger | None = None
    unified_memory: bool = False
    is_processor: bool = False
    interconnect: Interconnect | None = None
    nic: Nic | None = None
    compute_units: ComputeUnits | None = None
    compute_capability: str | None = Field(default=None, pattern=r"^\d{1,2}\.\d$")
    usual_engine: Literal["llama.cpp"] | None = None
    boost_clock_hz: PositiveInteger | None = None
    peak_flops: dict[str, PositiveInteger] = {}
    float16_accumulation_flops: dict[str, PositiveInteger] = {}
    tdp_watts: PositiveInteger | None = None
    configurations: tuple[MemoryConfiguration, ...] = ()
    sources: tuple[FigureSource, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def capacity_bytes(self) -> int:
        """The bytes of memory available to a run: the driver's total, else the usable or the nominal memory."""
        return self.driver_total or self.usable_memory_bytes or self.memory_bytes

    def wired_limit_mib(self, gpu_bytes: int, host_bytes: int = 0) -> int | None:
        """The value of `iogpu.wired_limit_mb` with which macOS lets a Mac's GPU use `gpu_bytes`; None if there is too
        little memory.

        host_bytes: further bytes of the run in the same memory. None if too few are left for macOS, and for others.
        """
        if self.vendor != "Apple" or gpu_bytes + host_bytes + MACOS_BYTES > self.memory_bytes:
            return None
        return -(-gpu_bytes // 2**20)

    def check_fields(self) -> None:
        if self.driver_total is not None and self.driver_total > (self.usable_memory_bytes or self.memory_bytes):
            raise ValueError(f"driver_total: {self.driver_total} is more than usable_memory_bytes")
        memory_configurations: tuple[Hardware | MemoryConfiguration, ...] = (self, *self.configurations)
        for memory_configuration in memory_configurations:
            usable_memory_bytes = memory_configuration.usable_memory_bytes
            if usable_memory_bytes is not None and usable_memory_bytes > memory_configuration.memory_bytes:
                raise ValueError(
                    f"usable_memory_bytes: {memory_configuration.usable_memory_bytes} is more than memory_bytes"
                )
        memory_sizes = [memory_configuration.memory_bytes for memory_configuration in self.configurations]
        if memory_sizes and (memory_sizes != sorted(set(memory_sizes)) or memory_sizes[-1] != self.memory_bytes):
            raise ValueError("configurations: expected each memory size once, ascending, up to memory_bytes")
        for rate_field in ("peak_flops", "float16_accumulation_flops"):
            for format_name in getattr(self, rate_field):
                if format_name not in PEAK_DTYPES:
                    raise ValueError(
                        f"{rate_field}: '{format_name}' is not a number format; "
                        f"expected one of {', '.join(PEAK_DTYPES)}"
                    )

    @property
    def has_bfloat16_units(self) -> bool:
        """Whether the matrix units multiply bfloat16: on NVIDIA since Ampere, assumed on other vendors' chips."""
        return self.compute_capability is None or float(self.compute_capability) >= 8.0

    @property
    def has_only_float16_peak(self) -> bool:
        """Whether float16's peak rate is known but not bfloat16's, so that 16-bit products run at float16's."""
        return "float16" in self.peak_flops and "bfloat16" not in self.peak_flops

    @property
    def is_gpu(self) -> bool:
        """Whether the accelerator is a GPU (not a processor, a TPU, Trainium, Gaudi, …); true if only a memory size is
        known.
        """
        compute_unit_name = "" if self.compute_units is None else self.compute_units.name
        is_other_kind = self.vendor in VENDORS_WITHOUT_GPUS or compute_unit_name in NON_GPU_UNIT_NAMES
        return not self.is_processor and not is_other_kind

    @property
    def is_laptop_gpu(self) -> bool:
        """Whether the accelerator is sold only in laptops, one per laptop, by the vendor's name."""
        return self.title.endswith("Laptop GPU")

    @property
    def supports_nf4_weights(self) -> bool:
        """Whether bitsandbytes can store nf4 weights on the accelerator: on Gaudi and on all GPUs except Apple's."""
        return self.vendor == "Intel" or self.has_8bit_optimizers

    @property
    def has_8bit_optimizers(self) -> bool:
        """Whether bitsandbytes has optimizers for the accelerator: a GPU of NVIDIA, AMD or Intel."""
        return self.is_gpu and self.vendor != "Apple"

    @property
    def has_fp8_kernels(self) -> bool:
        """Whether serving engines have fp8 kernels for weights and caches on the accelerator.

        vLLM has them for NVIDIA's GPUs since Ampere (Marlin), and elsewhere where matrix units multiply fp8. A bare
        memory size has them.
        """
        if self.compute_capability is None and self.vendor:
            return "float8" in self.peak_flops
        return self.has_bfloat16_units

    def peak_rate(self, dtype: str) -> int:
        """Returns the dense peak FLOP/s in a number format, such as `bfloat16`.

        Raises `InputError` if no peak is known for it.
        """
        if dtype in self.peak_flops:
            return self.peak_flops[dtype]
        known_format_names = [
            DTYPE_NAMES.get(dtype_name, dtype_name) for dtype_name in PEAK_DTYPES if dtype_name in self.peak_flops
        ]
        requested_format = DTYPE_NAMES.get(dtype, dtype)
        if not known_format_names:
            raise InputError(f"{self.title}: no peak FLOP/s is known; {self._missing_figure_advice('peak_flops')}")
        raise InputError(
            f"{self.title}: no peak FLOP/s is known for {requested_format}; "
            f"expected one of {', '.join(known_format_names)}"
        )

    def bandwidth(self) -> int:
        """Returns the memory bandwidth in bytes/s.

        Raises `InputError` if it is not known, as for a bare memory size given to `--hardware`.
        """
        if self.memory_bandwidth is None:
            raise InputError(
                f"{self.title}: no memory bandwidth is known; "
                f"{self._missing_figure_advice('memory_bandwidth (bytes/s)')}"
            )
        return self.memory_bandwidth

    def _missing_figure_advice(self, field_name: str) -> str:
        if self.vendor:
            return f"{self.vendor} publishes none, or no source that a reader can open states it"
        return f"expected a named accelerator, or a TOML file of your own with {field_name}"


class HardwarePreset(Hardware):
    """A `Hardware` record from llmcalc's presets, for which a vendor and sources are required."""

    vendor: str = Field(min_length=1)
    sources: tuple[FigureSource, ...] = Field(min_length=1)


Verdict: TypeAlias = Literal["fits", "tight", "no"]


@frozen(slots=True)
class MemoryFit:
    """The verdict on whether a run's memory fits on one accelerator.

    needed_bytes: bytes required, with the estimated fragmentation.
    fragmentation: bytes of them that are the allocator's free blocks, an estimate; default 0.
    engine_name: the engine whose buffers they are; empty (default) for the kernels of torch.
    left_bytes: the headroom in bytes; negative for a shortfall.
    """

    hardware: Hardware
    needed_bytes: int
    fragmentation: int = 0
    engine_name: str = ""

    @property
    def capacity_bytes(self) -> int:
        """The bytes of the accelerator's memory that a run can use."""
        return self.hardware.capacity_bytes

    @property
    def has_nominal_capacity(self) -> bool:
        """Whether `capacity_bytes` is the nominal memory, because the usable memory is not known."""
        return self.hardware.driver_total is None and self.hardware.usable_memory_bytes is None

    @property
    def left_bytes(self) -> int:
        return self.capacity_bytes - self.needed_bytes

    @property
    def used_fraction(self) -> float:
        """The required bytes divided by the capacity, which is above 1 if the run does not fit."""
        return self.needed_bytes / self.capacity_bytes

    @property
    def verdict(self) -> Verdict:
        """The verdict: `fits`, `tight` if the run fits only without fragmentation, or `no`."""
        if self.left_bytes >= 0:
            return "fits"
        return "tight" if self.left_bytes + self.fragmentation >= 0 else "no"
