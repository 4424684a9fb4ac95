"""`llmcalc hardware`: what is known of each accelerator, and where it is from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import units
from ..accelerator import PEAK_DTYPES, Hardware, ListedHardware
from .document import Column, Report, Row, Table, said
from .notes import also_called
from .sourcing import source_data, source_notes


def _rate(value: float) -> str:
    return units.amount(value, "B/s")


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 1 else f"{value:.1f}"


TERA, GIGA = units.decimal_scale(10**12, "FLOP/s"), units.decimal_scale(10**9, "B/s")

LIST_COLUMNS = (
    Column("target", "name", justify="left"),
    Column("memory_bytes", units.GIB.name, units.GIB.write),
    Column("memory_bandwidth_bytes_per_s", f"memory {GIGA.name}", GIGA.write),
    Column("bfloat16_flops_per_s", f"bf16 {TERA.name}", TERA.write),
    Column("float8_flops_per_s", f"fp8 {TERA.name}", TERA.write),
    Column("link_bytes_per_s_each_way", f"link {GIGA.name}", GIGA.write),
)

DETAIL_COLUMNS = (
    Column("quantity", "", justify="left"),
    Column("text", "value"),
    Column("value", "exactly", units.exact),
    Column("unit", "", justify="left"),
    Column("flops_per_byte", "FLOPs/byte", _ratio),
)


def report(chosen: Sequence[Hardware], details: bool) -> Report:
    """The answer as data and as tables: one row per accelerator, or one table each with everything that is known."""
    data = {"hardware": [hardware_data(one) for one in chosen]}
    return Report(data, [_detailed(one) for one in chosen] if details else [_listed(chosen)])


def _listed(chosen: Sequence[Hardware]) -> Table:
    rows = []
    for one in chosen:
        link = one.interconnect.bandwidth_per_direction if one.interconnect is not None else None
        cells = [
            one.name,
            one.memory_bytes,
            one.memory_bandwidth,
            one.peak_flops.get("bfloat16"),
            one.peak_flops.get("float8"),
            link,
        ]
        rows.append(Row(cells))
    notes = [
        "bf16, fp8: dense peaks, without sparsity; link: all links to other accelerators together, each way",
        "empty: the accelerator does not have it, or no source states it; V100 and T4 have fp16 and no bf16",
        "a chip that is sold with several memory sizes stands with its largest; m4-max-64gb names another",
        "llmcalc hardware NAME shows every figure, its sources and remarks",
    ]
    return Table("Accelerators", LIST_COLUMNS, rows, notes=notes)


def _detailed(one: Hardware) -> Table:
    nic = f"NIC: {one.nic.name}, one accelerator's share" if one.nic is not None else ""
    sources = source_notes(one.sources, isinstance(one, ListedHardware))
    notes = [*one.notes, nic, _sizes(one), also_called(one.aliases), *sources]
    if one.peak_flops and one.memory_bandwidth is not None:
        notes.insert(
            0,
            "peaks are dense; FLOPs/byte: an operation with more of them per byte of memory traffic is limited by the "
            "peak, one with fewer by the memory bandwidth",
        )
    elif one.peak_flops:
        notes.insert(0, "peaks are dense")
    announced = f"announced {one.released}" if one.released else ""
    aside = ", ".join(text for text in (one.vendor, announced) if text)
    return Table(one.title, DETAIL_COLUMNS, _detail_rows(one), aside, said(notes), target=one.name)


def _detail_rows(one: Hardware) -> list[Row]:
    """Every figure that is known, a row each."""
    rows = [Row(["memory", units.memory(one.memory_bytes), one.memory_bytes, "B", None])]

    def add(quantity: str, value: int | None, text: str, unit: str) -> None:
        if value is not None:
            rows.append(Row([quantity, text, value, unit, None]))

    def add_rate(quantity: str, value: int | None) -> None:
        add(quantity, value, _rate(value or 0), "B/s")

    add("usable memory", one.usable_memory_bytes, units.memory(one.usable_memory_bytes or 0), "B")
    add_rate("memory bandwidth", one.memory_bandwidth)
    link, nic, parts = one.interconnect, one.nic, one.compute_units
    if link is not None:
        add_rate(f"{link.name}, each way", link.bandwidth_per_direction)
        add("scale-up domain", link.domain_size, f"{link.domain_size} devices", "")
    if nic is not None:
        add_rate("NIC, each way", nic.bandwidth_per_direction)
    add("TDP", one.tdp_watts, f"{one.tdp_watts} W", "W")
    if parts is not None:
        add("compute units", parts.count, f"{parts.count} {parts.name}s", "")
    if one.compute_capability is not None:
        rows.append(Row(["compute capability", one.compute_capability, None, "", None]))
    clock = one.boost_clock_hz
    add("boost clock", clock, units.amount(clock or 0, "Hz"), "Hz")
    for dtype in PEAK_DTYPES:
        if dtype in one.peak_flops:
            peak = one.peak_flops[dtype]
            unit = "OP/s" if dtype.startswith("int") else "FLOP/s"
            ridge = None if one.memory_bandwidth is None else one.ridge(dtype)
            rows.append(Row([f"peak {units.short_dtype(dtype)}", units.amount(peak, unit), peak, unit, ridge]))
    return rows


def _sizes(one: Hardware) -> str:
    """The memory sizes that a chip is sold with, under the names that stand for them."""
    if not one.configurations:
        return ""
    names = [f"{one.name}-{size.memory_bytes // 2**30}gb" for size in one.configurations]
    return f"these are the figures of the largest memory size; all of them: {', '.join(names)}"


def hardware_data(one: Hardware) -> dict[str, Any]:
    """An accelerator as plain data: bytes, bytes/s, FLOP/s, Hz, watts; null where nothing is known."""
    link = one.interconnect
    return {
        "name": one.name,
        "title": one.title,
        "vendor": one.vendor,
        "released": one.released,
        "aliases": list(one.aliases),
        "memory_bytes": one.memory_bytes,
        "usable_memory_bytes": one.usable_memory_bytes,
        "memory_bandwidth": one.memory_bandwidth,
        "interconnect": link and {**link.model_dump(), "bandwidth_per_direction": link.bandwidth_per_direction},
        "nic": one.nic and one.nic.model_dump(),
        "compute_units": one.compute_units and one.compute_units.model_dump(),
        "compute_capability": one.compute_capability,
        "boost_clock_hz": one.boost_clock_hz,
        "peak_flops": {d: one.peak_flops[d] for d in PEAK_DTYPES if d in one.peak_flops},
        "tdp_watts": one.tdp_watts,
        "configurations": [size.model_dump() for size in one.configurations],
        "sources": source_data(one.sources),
        "notes": list(one.notes),
    }
