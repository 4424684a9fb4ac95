"""`llmcalc hardware`: what is known of each accelerator, and where it is from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import units
from ..hardware import PEAK_DTYPES, Hardware
from .document import Column, Report, Row, Table, said
from .notes import also_called
from .sourcing import source_data, source_notes


def _rate(value: float) -> str:
    return units.amount(value, "B/s")


TERA, GIGA = units.decimal_scale(10**12, "FLOP/s"), units.decimal_scale(10**9, "B/s")

LIST_COLUMNS = (
    Column("name", "name", justify="left"),
    Column("memory_bytes", f"memory {units.GIB.name}", units.GIB.write),
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
    Column("flops_per_byte", "FLOPs/byte", "{:.0f}".format),
)


def report(chosen: Sequence[Hardware], details: bool) -> Report:
    """The answer as data and as tables: one row an accelerator, or one table each with everything that is known."""
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
        "empty: there is none, or its maker gives no figure",
        "llmcalc hardware NAME shows every number format, the sources and remarks",
    ]
    return Table("Accelerators", LIST_COLUMNS, rows, notes=notes)


def _detailed(one: Hardware) -> Table:
    rows = [
        Row(["memory", units.memory(one.memory_bytes), one.memory_bytes, "B", None]),
        *(
            [Row(["usable memory", units.memory(usable), usable, "B", None])]
            if (usable := one.usable_memory_bytes) is not None
            else []
        ),
        Row(["memory bandwidth", _rate(one.memory_bandwidth), one.memory_bandwidth, "B/s", None]),
    ]
    link = one.interconnect
    if link is not None:
        each = link.bandwidth_per_direction
        rows.append(Row([f"{link.name}, each way", _rate(each), each, "B/s", None]))
    if one.tdp_watts is not None:
        rows.append(Row(["greatest power", f"{one.tdp_watts} W", one.tdp_watts, "W", None]))
    for dtype in PEAK_DTYPES:
        if dtype in one.peak_flops:
            peak = one.peak_flops[dtype]
            unit = "OP/s" if dtype.startswith("int") else "FLOP/s"
            rows.append(
                Row([f"peak {units.short_dtype(dtype)}", units.amount(peak, unit), peak, unit, one.ridge(dtype)])
            )
    notes = [*one.notes, also_called(one.aliases), *source_notes(one.sources)]
    if one.peak_flops:
        notes.insert(
            0,
            "peaks are dense; FLOPs/byte: so many for each byte of memory traffic make the peak, not the "
            "bandwidth, the limit",
        )
    return Table(one.title, DETAIL_COLUMNS, rows, f"{one.vendor}, announced {one.released}", said(notes))


def hardware_data(one: Hardware) -> dict[str, Any]:
    """An accelerator as plain data: bytes, bytes/s, FLOP/s, watts."""
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
        "peak_flops": {d: one.peak_flops[d] for d in PEAK_DTYPES if d in one.peak_flops},
        "tdp_watts": one.tdp_watts,
        "sources": source_data(one.sources),
        "notes": list(one.notes),
    }
