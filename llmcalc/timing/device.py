"""The rates that a device achieves: datasheet values times efficiencies measured on its generation.

Closed forms of one kernel and of one message, for numbers and for arrays. Evidence for a device:

profiled: kernel tables of this very device are behind its generation's figures.
sister: those of another device of its generation.
datasheet: none; the figures are assumed for every device.
"""

from __future__ import annotations

from dataclasses import field
from functools import reduce
from itertools import chain
from math import inf
from typing import Literal, TypeAlias

from ..accelerator import Hardware
from ..algebra import Number, ceil_div, choose, floor_div, log2, maximum, minimum
from ..frozen import frozen
from ..identity_cache import IdentityCache
from .timing_constants import AcceleratorGeneration, SoftwareStack, accelerator_generations

DeviceEvidence: TypeAlias = Literal["profiled", "sister", "datasheet"]

PEAK_NAMES_BY_FORMAT = {
    "fp32": ("float32", "tfloat32"),
    "bf16": ("bfloat16", "float16"),
    "fp8": ("float8",),
    "int8": ("int8",),
    "fp4": ("float4",),
}
"""Number format of products → names of its peak in an accelerator's record; the first that the record has counts.

torch multiplies float32 in full precision unless it is told otherwise (`torch.backends.cuda.matmul.allow_tf32`).
"""

DEEP_PRODUCT_SIZE = 4096
"""Inner size of the matrix products to which the rates of accelerator generations apply."""

DEFAULT_DOMAIN_SIZE = 8
"""Default number of accelerators in a scale-up domain."""

DEFAULT_NIC_RATE = 25_000_000_000
"""Default bytes/s of an accelerator's network: 200 Gbit/s, or less with a slower link to the host."""

PCIE_LINK_RATE = 64_000_000_000
"""Largest bytes/s, in one direction, of a link that is taken for PCI Express 5.0 or older."""

BRIDGED_LINK_RATES = {"8": 32_000_000_000, "9": 64_000_000_000}
"""Major compute capability of cards that NVLink bridges join → bytes/s of the PCI Express link, of generation 4.0 or
5.0, by which a card reaches those beyond its bridge (NVIDIA's datasheets of the A100 PCIe, RTX A6000 and H100 PCIe).
"""

PCIE_SHARE, UNPEERED_SHARE = 0.4, 0.26
"""Fraction of a PCI Express link's rate that a message reaches, with and without peer access between accelerators.

With access: 0.35 (32 MiB, NCCL's defaults) to 0.64 among eight RTX PRO 6000 (github.com/voipmonitor/rtx6kpro,
hardware/pcie-bandwidth.md). Without, every byte goes into the host's memory and out of it: two RTX 4090 copy 8.4 of
32 GB/s each way at once (gist.github.com/muellerzr/fbfabd0fc02ac259f0a47d6a51b36d0e), A40 whose access is disabled 9.6
to 10.6 (github.com/NVIDIA/nccl-tests/issues/74).
"""

PCIE_PAIR_SHARES = {"all_reduce": 0.6, "all_gather": 0.55, "reduce_scatter": 0.55}
"""Kind of messages between two accelerators with peer access → share of a PCI Express link; others: `PCIE_SHARE`.

All-reduces of 8 MiB to 512 MiB between two RTX PRO 6000 reach 0.54 to 0.60 of it and between two L40S 0.61 to 0.63
(NCCL's tables of aiconfigurator, 095f58a5, systems/data/*/comm/nccl); all-gathers of 512 MiB 0.51 and 0.61,
reduce-scatters 0.53 and 0.59, all-to-alls 0.40 and 0.70. Among four and eight RTX PRO 6000 all-reduces reach 0.39 and
0.38.
"""

LinkProtocol: TypeAlias = tuple[float, float, float]
"""A ring protocol: (fraction of the link's rate, seconds per message, seconds per step of a message)."""

PCIE_PROTOCOLS: tuple[LinkProtocol, ...] = (0.5, 6.6e-6, 1.0e-6), (1.0, 8.4e-6, 5.7e-6)
"""NCCL's protocols of rings over PCI Express, LL and Simple (nccl 5067397c, src/graph/tuning.cc: baseLatencies,
hwLatencies, and half of the bandwidth for LL). Servers use them too among more than two accelerators: their kernels
that reduce in one step need NVLink there (vllm/distributed/device_communicators/custom_all_reduce.py).
"""

PAIR_REDUCTION_SECONDS = 5e-6
"""Latency in seconds of an all-reduce between two accelerators with peer access, in one kernel that reads the other's
memory: vLLM's custom all-reduce, which SGLang has too (custom_all_reduce.py). In graphs, 4 KiB take 4.5 microseconds
between two RTX PRO 6000 and 5.6 between two L40S (tables of aiconfigurator, comm/vllm and comm/sglang); NCCL's kernels
take 6.7 and 6.5.
"""

UNPEERED_LL_STEP = 2.4e-6
"""Seconds of a step of LL through the host's memory: 8 bytes among eight RTX 4090 take 40 microseconds
(github.com/NVIDIA/nccl/issues/1530)."""


@frozen
class Device:
    """An accelerator with the rates that kernels achieve on it.

    generation: the shares by which its datasheet figures are multiplied.

    name: the accelerator's name.
    evidence: how well the generation's figures are known for this device.
    peak_rates: dense FLOP/s by format.
    memory_bandwidth: bytes/s of the memory.
    link_bandwidth, network_bandwidth: bytes/s of the scale-up link and of the network, in one direction.
    domain_devices: devices that the link joins.
    link_share, latency: share of the link that a message reaches, and its latency in seconds.
    link_protocols: protocols of a link over which NCCL sends everything; () (default) of links with one latency.
    link_share_by_message_kind: kind of messages between two devices → share of the link that they reach; others:
        `link_share`.
    vendor: maker of the accelerator; empty (default) if unknown.
    is_mesh: whether each link joins two devices of the domain; by default false.
    gain_of_16_bit_sums_by_format: format of products → rate with sums in 16 bits over that with sums in float32, where
        it is higher; default {}.
    compute_units: compute units, each of which computes a tile of a product's output at a time; 0 (default) if unknown.
    """

    name: str
    evidence: DeviceEvidence
    generation: AcceleratorGeneration
    peak_rates: dict[str, float]
    memory_bandwidth: float
    link_bandwidth: float
    domain_devices: int
    network_bandwidth: float
    link_share: float
    latency: float
    gain_of_16_bit_sums_by_format: dict[str, float] = field(default_factory=dict)
    compute_units: int = 0
    link_protocols: tuple[LinkProtocol, ...] = ()
    link_share_by_message_kind: dict[str, float] = field(default_factory=dict)
    is_mesh: bool = False
    vendor: str = ""

    def evidence_class(self, software_stack: SoftwareStack) -> Literal["profiled", "tested"] | None:
        """Returns the evidence for a device's estimates under a software stack: `profiled`, `tested` or None.

        `profiled` if kernel tables of its generation are behind the figures, `tested` if only measured runs under this
        software are known; None if neither, or if the software runs on other makers' accelerators alone.
        """
        if self.vendor and software_stack.supported_vendors and self.vendor not in software_stack.supported_vendors:
            return None
        if self.evidence != "datasheet":
            return "profiled"
        return "tested" if software_stack.name in self.generation.tested_stacks else None

    def format_of(self, dtype: str) -> str:
        """Returns the number format in which matrix units compute `dtype`; bf16 if there are no units for it."""
        return dtype if dtype in self.peak_rates and dtype in self.generation.products else "bf16"

    def product_rate(self, dtype: str, is_sustained: bool = False, sums_in_16_bits: bool = False) -> float:
        """Returns the FLOP/s of large matrix products. is_sustained: under load for hours; default false.

        sums_in_16_bits: whether 16-bit products add in 16 bits; default false, which is in float32.
        """
        units_format = self.format_of(dtype)
        rate_share = self.generation.products[units_format]
        if sums_in_16_bits and units_format == "bf16":
            rate_share *= self.gain_of_16_bit_sums_by_format.get(units_format, 1.0)
        else:
            rate_share = self._share_with_float32_sums(rate_share, units_format)
        return (
            self.peak_rates[units_format] * rate_share * (self.sustained_share(units_format) if is_sustained else 1.0)
        )

    def _share_with_float32_sums(self, rate_share: float, units_format: str) -> float:
        """Returns the share of the peak rate with float32 accumulation. rate_share: share without that limit.

        Where these sums halve the units' rate, that half is reached before power, loads or issue bound the kernel.
        """
        speedup_of_16_bit_sums = self.gain_of_16_bit_sums_by_format.get(units_format, 1.0)
        return min(rate_share * speedup_of_16_bit_sums, max(rate_share, self.generation.float32_sums))

    def depth_factor(self, dtype: str, inner_size: Number) -> Number:
        """Returns the factor by which a short inner axis slows down a matrix product.

        inner_size: size of the axis that it sums over; the rates are for products over `DEEP_PRODUCT_SIZE` elements.
        """
        half_rate_depth = self.generation.half_rate_depth[self.format_of(dtype)]
        return maximum(1.0, (1 + half_rate_depth / maximum(1, inner_size)) / (1 + half_rate_depth / DEEP_PRODUCT_SIZE))

    def wave_factor(self, row_count: Number, column_count: Number) -> Number:
        """Returns the slowdown of a matrix product whose last tiles leave compute units idle.

        row_count, column_count: sizes of its output. Units compute tiles in waves; of the tiles the best one is taken.
        """
        tile_shapes = self.generation.tiles
        if not tile_shapes or not self.compute_units:
            return 1.0
        busy_shares = [
            tile_efficiency
            * row_count
            * column_count
            / (tile_height * tile_width * self.compute_units)
            / ceil_div(ceil_div(row_count, tile_height) * ceil_div(column_count, tile_width), self.compute_units)
            for tile_height, tile_width, tile_efficiency in tile_shapes
        ]
        return self.generation.filled / reduce(maximum, busy_shares)

    def unaligned_rate_share(self, *axis_lengths: Number) -> float:
        """The fraction of a 16-bit product's rate that is reached with unaligned sizes on older compute units.

        axis_lengths: of the contiguous axes; a size is unaligned if it is no multiple of 8 elements.
        """
        integer_lengths = [axis_length for axis_length in axis_lengths if isinstance(axis_length, int)]
        rate_share_at_odd_lengths, rate_share_at_even_lengths = self.generation.unaligned
        if any(axis_length % 2 for axis_length in integer_lengths):
            return rate_share_at_odd_lengths
        return rate_share_at_even_lengths if any(axis_length % 8 for axis_length in integer_lengths) else 1.0

    def sustained_share(self, dtype: str = "bf16") -> float:
        """Returns the fraction of the FLOP/s of short benchmarks that a device sustains under long load."""
        share_by_format = self.generation.sustained
        return share_by_format.get(dtype, share_by_format["bf16"])

    @property
    def vector_rate(self) -> float:
        """The bytes/s at which llama.cpp's matrix-vector kernels read weights if compute-bound; inf if unknown."""
        bytes_per_flop = self.generation.vector_read
        return self.peak_rates["fp32"] * bytes_per_flop if bytes_per_flop and "fp32" in self.peak_rates else inf

    @property
    def memory_rate(self) -> float:
        """The bytes/s at which a kernel reads and writes memory."""
        return self.memory_bandwidth * self.generation.memory

    def memory_seconds(self, byte_count: Number) -> Number:
        """Returns the seconds in which a kernel reads and writes `byte_count` bytes."""
        return byte_count / self.memory_rate

    def cache_seconds(self, byte_count: Number) -> Number:
        """Returns the seconds in which decoding attention reads `byte_count` bytes of the cache."""
        return byte_count / (self.memory_bandwidth * self.generation.cache)

    def attention_seconds(
        self, flops: Number, key_count: Number, head_dim: Number, backward: bool = False, efficiency: float = 1.0
    ) -> Number:
        """Returns the seconds of fused attention over `key_count` keys, with efficiency e(S) = e∞ / (1 + S₀ / S).

        head_dim: width of a key; narrow heads fill the units less. efficiency: of the best kernel's rate, 1 by default.
        """
        best_rate_share, half_rate_keys = self.generation.attention_backward if backward else self.generation.attention
        best_rate_share = self._share_with_float32_sums(best_rate_share, "bf16")
        head_dim_share = minimum(1.0, head_dim / 128) ** 0.5
        return (
            flops
            * (1 + half_rate_keys / maximum(1, key_count))
            / (self.peak_rates["bf16"] * efficiency * best_rate_share * head_dim_share)
        )

    def message_seconds(
        self,
        collective_kind: str,
        rank_count: Number,
        byte_count: Number,
        rank_stride: Number = 1,
        latency: float = 1.0,
        message_count: Number = 1,
    ) -> Number:
        """Returns the seconds of collectives among ranks whose devices are `rank_stride` apart.

        byte_count: as of `Collective`, of all messages together. message_count: of equal messages, 1 by default.
        latency: times the device's own, but for `link_protocols`.
        Beyond a scale-up domain, the devices of a domain use their network cards side by side; the slower one counts.
        All-gathers and reduce-scatters are rings, whose every link sends all but a rank's own part; all-reduces are
        trees there.
        """
        ranks_in_domain = maximum(1, minimum(rank_count, floor_div(self.domain_devices, maximum(1, rank_stride))))
        link_rate = self._link_rate(ranks_in_domain, collective_kind)
        network_rate = self.network_bandwidth * self.generation.nic
        domain_count = maximum(1, rank_count / ranks_in_domain)
        tree_latency = message_count * (latency * self.generation.far_latency * log2(maximum(2, domain_count)))
        latency_in_domain = message_count * latency * self.latency
        if collective_kind == "all_to_all":
            link_seconds = (ranks_in_domain - 1) / rank_count * byte_count / link_rate
            network_seconds = (1 - ranks_in_domain / rank_count) * byte_count / network_rate
            collective_seconds = tree_latency + maximum(link_seconds, network_seconds)
        elif collective_kind == "send":
            link_seconds = byte_count / link_rate * (ranks_in_domain > 1)
            network_seconds = byte_count / network_rate * (ranks_in_domain <= 1)
            collective_seconds = tree_latency + maximum(link_seconds, network_seconds)
        elif collective_kind == "all_reduce":
            link_seconds = 2 * (ranks_in_domain - 1) / ranks_in_domain * byte_count / link_rate
            network_seconds = 2 * (1 - ranks_in_domain / rank_count) * byte_count / (ranks_in_domain * network_rate)
            collective_seconds = tree_latency + maximum(link_seconds, network_seconds)
        else:  # a ring
            link_seconds = (ranks_in_domain - 1) / ranks_in_domain * byte_count / link_rate
            ring_seconds = (1 - 1 / rank_count) * maximum(
                byte_count / link_rate, byte_count / (ranks_in_domain * network_rate)
            )
            collective_seconds = message_count * self.latency + self._ring_seconds(
                ring_seconds, message_count, rank_count, domain_count
            )
        seconds_in_domain = latency_in_domain + link_seconds
        if self.link_protocols:
            ring_passes = 2 if collective_kind == "all_reduce" else 1
            step_count = 1 if collective_kind == "send" else ring_passes * (ranks_in_domain - 1)
            seconds_in_domain = self._link_seconds(link_seconds, message_count, step_count)
            if self.link_share_by_message_kind and collective_kind == "all_reduce":
                kernel_seconds = link_seconds + message_count * PAIR_REDUCTION_SECONDS
                seconds_in_domain = choose(
                    ranks_in_domain <= 2, minimum(kernel_seconds, seconds_in_domain), seconds_in_domain
                )
        return choose(rank_count <= 1, 0.0, choose(domain_count > 1, collective_seconds, seconds_in_domain))

    def _link_rate(self, ranks_in_domain: Number, collective_kind: str) -> Number:
        """Returns the bytes/s that a device sends over its links to the other ranks in its network domain."""
        pair_share = self.link_share_by_message_kind.get(collective_kind, self.link_share)
        link_share = choose(ranks_in_domain <= 2, pair_share, self.link_share)
        full_rate = self.link_bandwidth * link_share
        return (
            full_rate * maximum(1, ranks_in_domain - 1) / max(1, self.domain_devices - 1) if self.is_mesh else full_rate
        )

    def _link_seconds(self, link_seconds: Number, message_count: Number, step_count: Number) -> Number:
        """Returns the seconds of messages over a link, by its fastest protocol.

        link_seconds: seconds of the bytes at the full rate. step_count: steps of a message's ring.
        """
        return reduce(
            minimum,
            (
                link_seconds / rate_share + message_count * (message_seconds + step_count * step_seconds)
                for rate_share, message_seconds, step_seconds in self.link_protocols
            ),
        )

    def _ring_seconds(
        self, full_rate_seconds: Number, message_count: Number, rank_count: Number, domain_count: Number
    ) -> Number:
        """Returns the seconds of a ring collective over several domains. full_rate_seconds: seconds at the full rate.

        Of the generation's protocols the faster one is taken.
        """
        ring_times = [
            full_rate_seconds / protocol_efficiency
            + message_count * ((rank_count - domain_count) * link_step + (domain_count - 1) * network_step)
            for protocol_efficiency, link_step, network_step in self.generation.ring_protocols
        ]
        return reduce(minimum, ring_times)

    def scan_seconds(self, flops: Number) -> Number:
        """Returns the seconds of a recurrence that is computed chunk by chunk."""
        return flops / (self.peak_rates["bf16"] * self.generation.scan)

    def stages_per_domain(self, pp: Number, stage_devices: Number) -> Number:
        """Returns the number of whole pipeline stages that fit in a domain of fast links, at least one.

        Stages are the outermost axis of the ranks, so that each has `stage_devices` consecutive devices.
        """
        return minimum(pp, maximum(1, floor_div(self.domain_devices, stage_devices)))

    def stage_send_seconds(self, byte_count: Number, device_count: Number) -> Number:
        """Returns the seconds of a send to the next pipeline stage. device_count: devices of the run."""
        link_rate = choose(
            device_count > self.domain_devices, self.network_bandwidth * self.generation.nic, self._link_rate(2, "send")
        )
        return byte_count / link_rate + self.latency


def has_product_units(hardware: Hardware, dtype: str) -> bool:
    """Whether an accelerator has matrix units for a number format; true if no peak rate of it is known."""
    return not hardware.peak_flops or any(peak_name in hardware.peak_flops for peak_name in PEAK_NAMES_BY_FORMAT[dtype])


_devices: IdentityCache[Device] = IdentityCache(256)
"""Accelerators with achievable rates, by the accelerator and the network's bytes/s."""


def device_of(hardware: Hardware, nic: float | None = None) -> Device:
    """Returns an accelerator's `Device` with achievable rates. nic: network bytes/s; default from its file.

    Raises `InputError` for an accelerator without a bandwidth or without peaks.
    """
    return _devices.result((hardware,), (nic,), lambda: _device_of(hardware, nic))


def _device_of(hardware: Hardware, nic: float | None) -> Device:
    """Returns an accelerator with achievable rates. Arguments and errors are those of `device_of`."""
    memory_bandwidth = hardware.bandwidth()
    peak_rates = {
        name: float(
            next(hardware.peak_flops[peak_name] for peak_name in peak_names if peak_name in hardware.peak_flops)
        )
        for name, peak_names in PEAK_NAMES_BY_FORMAT.items()
        if any(peak_name in hardware.peak_flops for peak_name in peak_names)
    }
    if not {"bf16", "fp32"} & set(peak_rates):
        hardware.peak_rate("bfloat16")
    peak_rates["bf16"] = max(
        peak_rates.get(format_name, 0.0) for format_name in ("bf16", "fp32")
    )  # values in 16 bits are multiplied in the faster format
    generation = accelerator_generation(hardware)
    interconnect = hardware.interconnect
    link_rate = float(interconnect.bandwidth_per_direction if interconnect is not None else DEFAULT_NIC_RATE)
    domain_size = (interconnect.domain_size or DEFAULT_DOMAIN_SIZE) if interconnect is not None else 1
    is_pcie = (
        interconnect is not None
        and link_rate <= PCIE_LINK_RATE
        and domain_size > 1
        and "NVLink" not in interconnect.name
    )
    has_peer_access = interconnect is None or interconnect.peer_access
    pcie_share = PCIE_SHARE if has_peer_access else UNPEERED_SHARE
    low_latency, simple_protocol = PCIE_PROTOCOLS
    pcie_protocols = PCIE_PROTOCOLS if has_peer_access else ((*low_latency[:2], UNPEERED_LL_STEP), simple_protocol)
    host_link_rate = link_rate if is_pcie else inf
    if interconnect is not None and "bridge" in interconnect.name:
        host_link_rate = BRIDGED_LINK_RATES.get((hardware.compute_capability or "").split(".")[0], inf)
    unknown_nic = min(DEFAULT_NIC_RATE, host_link_rate * pcie_share)
    return Device(
        name=hardware.name,
        evidence=_device_evidence(hardware, generation),
        generation=generation,
        peak_rates=peak_rates,
        memory_bandwidth=float(memory_bandwidth),
        link_bandwidth=link_rate,
        domain_devices=domain_size,
        network_bandwidth=float(
            nic or (hardware.nic.bandwidth_per_direction if hardware.nic is not None else unknown_nic)
        ),
        link_share=pcie_share if is_pcie else generation.link,
        latency=sum(simple_protocol[1:]) if is_pcie else generation.latency,
        gain_of_16_bit_sums_by_format={
            format_name: hardware.float16_accumulation_flops[peak_name] / peak_rates[format_name]
            for format_name, peak_name in {"bf16": "float16", "fp8": "float8"}.items()
            if peak_name in hardware.float16_accumulation_flops and format_name in peak_rates
        },
        compute_units=hardware.compute_units.count if hardware.compute_units is not None else 0,
        link_protocols=pcie_protocols if is_pcie else (),
        link_share_by_message_kind=PCIE_PAIR_SHARES
        if is_pcie and has_peer_access and hardware.vendor == "NVIDIA"
        else {},
        is_mesh=interconnect is not None and interconnect.is_mesh,
        vendor=hardware.vendor,
    )


def accelerator_generation(hardware: Hardware) -> AcceleratorGeneration:
    """Returns the GPU generation of an accelerator: by its name or `like`, else its compute capability or vendor."""
    known_generations = accelerator_generations().values()
    capability_prefix = f"{hardware.compute_capability or ''}."
    accelerator_names = {hardware.name, hardware.like}
    generations_of_name = (
        generation for generation in known_generations if accelerator_names & set(generation.accelerators)
    )
    generations_of_capability = (
        generation
        for generation in known_generations
        if any(capability_prefix.startswith(f"{known_capability}.") for known_capability in generation.capabilities)
    )
    generations_of_vendor = (generation for generation in known_generations if hardware.vendor in generation.vendors)
    return next(
        chain(generations_of_name, generations_of_capability, generations_of_vendor),
        accelerator_generations()["default"],
    )


def _device_evidence(hardware: Hardware, generation: AcceleratorGeneration) -> DeviceEvidence:
    if hardware.name in generation.profiled:
        return "profiled"
    return "sister" if generation.profiled else "datasheet"
