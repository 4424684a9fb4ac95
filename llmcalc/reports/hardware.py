"""The report of `llmcalc hardware`: the figures of accelerators (FLOP/s, bytes, bytes/s, watts), with their sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import units
from ..accelerator import PEAK_DTYPES, Hardware, HardwarePreset
from .document import Column, Report, Row, Table, row, without_repetitions
from .figure_sources import source_notes
from .notes import aliases_note


def _rate_text(bytes_per_second: float) -> str:
    return units.amount(bytes_per_second, "B/s")


def _ratio_text(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 1 else f"{ratio:.1f}"


TERAFLOPS_SCALE, GIGABYTES_SCALE = units.decimal_scale(10**12, "FLOP/s"), units.decimal_scale(10**9, "B/s")

LIST_COLUMNS = (
    Column("target", "name", justify="left"),
    Column("memory_bytes", units.GIB.name, units.GIB.write),
    Column("memory_bandwidth_bytes_per_s", f"memory {GIGABYTES_SCALE.name}", GIGABYTES_SCALE.write),
    Column("bfloat16_flops_per_s", f"bf16 {TERAFLOPS_SCALE.name}", TERAFLOPS_SCALE.write),
    Column("float8_flops_per_s", f"fp8 {TERAFLOPS_SCALE.name}", TERAFLOPS_SCALE.write),
    Column("link_bytes_per_s_each_way", f"link {GIGABYTES_SCALE.name}", GIGABYTES_SCALE.write),
)

DETAIL_COLUMNS = (
    Column("quantity", "", justify="left", may_wrap=True),
    Column("text", "value"),
    Column("value", "exactly", units.exact_text),
    Column("unit", "", justify="left"),
    Column("flops_per_byte", "FLOPs/B", _ratio_text),
)


def report(accelerators: Sequence[Hardware], has_details: bool) -> Report:
    """Returns the report: one row per accelerator, or one table per accelerator with `has_details`."""
    json_document = {"hardware": [hardware_data(hardware) for hardware in accelerators]}
    tables = [_detail_table(hardware) for hardware in accelerators] if has_details else [_list_table(accelerators)]
    return Report(json_document, tables)


def _list_table(accelerators: Sequence[Hardware]) -> Table:
    table_rows = []
    for hardware in accelerators:
        interconnect_rate = hardware.interconnect.bandwidth_per_direction if hardware.interconnect is not None else None
        row_cells = [
            hardware.name,
            hardware.memory_bytes,
            hardware.memory_bandwidth,
            hardware.peak_flops.get("bfloat16"),
            hardware.peak_flops.get("float8"),
            interconnect_rate,
        ]
        table_rows.append(Row(row_cells))
    notes = [
        "bf16, fp8: dense peaks, without sparsity; link: all links to other accelerators together, each way",
        "empty: the accelerator does not have it, or no source states it; V100 and T4 have fp16 and no bf16",
        "a chip that is sold with several memory sizes stands with its largest; m4-max-64gb names another",
        "llmcalc hardware NAME shows every figure, its sources and remarks",
    ]
    return Table("Accelerators", LIST_COLUMNS, table_rows, notes=notes)


def _detail_table(hardware: Hardware) -> Table:
    link_text = f"{hardware.interconnect.name}: bytes/s each way" if hardware.interconnect is not None else ""
    nic_text = f"NIC: {hardware.nic.name}, one accelerator's share, each way" if hardware.nic is not None else ""
    notes_on_sources = source_notes(hardware.sources, isinstance(hardware, HardwarePreset))
    hardware_remarks = [
        *hardware.notes,
        link_text,
        nic_text,
        _memory_sizes_text(hardware),
        aliases_note(hardware.aliases),
    ]
    notes = [*hardware_remarks, *notes_on_sources]
    if hardware.peak_flops and hardware.memory_bandwidth is not None:
        notes.insert(
            0,
            "peaks are dense; FLOPs/B: an operation with more FLOPs per byte of memory traffic is limited by the "
            "peak, one with fewer by the memory bandwidth",
        )
    elif hardware.peak_flops:
        notes.insert(0, "peaks are dense")
    announcement_text = f"announced {hardware.released}" if hardware.released else ""
    detail_texts = (hardware.vendor, announcement_text, "preliminary" if hardware.preliminary else "")
    vendor_text = ", ".join(detail_text for detail_text in detail_texts if detail_text)
    return Table(
        hardware.title,
        DETAIL_COLUMNS,
        _detail_rows(hardware),
        vendor_text,
        without_repetitions(notes),
        target=hardware.name,
    )


def _detail_rows(hardware: Hardware) -> list[Row]:
    """Returns a table row for each known figure of an accelerator, with its unit."""
    interconnect, nic, compute_units = hardware.interconnect, hardware.nic, hardware.compute_units
    hardware_figures: list[tuple[str, Any, Callable[[Any], str], str]] = [
        ("memory", hardware.memory_bytes, units.memory, "B"),
        ("usable memory", hardware.driver_total or hardware.usable_memory_bytes, units.memory, "B"),
        ("shown by its tools", hardware.usable_memory_bytes if hardware.driver_total else None, units.memory, "B"),
        ("CUDA context", hardware.context_bytes, units.memory, "B"),
        ("memory bandwidth", hardware.memory_bandwidth, _rate_text, "B/s"),
    ]
    if interconnect is not None:
        hardware_figures.append((interconnect.name, interconnect.bandwidth_per_direction, _rate_text, "B/s"))
        hardware_figures.append(("scale-up domain", interconnect.domain_size, "{} devices".format, ""))
        if interconnect.is_mesh:
            hardware_figures.append(("links join", "two devices each", str, ""))
        if not interconnect.peer_access:
            hardware_figures.append(("messages go through", "host memory", str, ""))
    if nic is not None:
        hardware_figures.append(("NIC", nic.bandwidth_per_direction, _rate_text, "B/s"))
    hardware_figures.append(("TDP", hardware.tdp_watts, "{} W".format, "W"))
    if compute_units is not None:
        hardware_figures.append(("compute units", compute_units.count, f"{{}} {compute_units.name}s".format, ""))
    hardware_figures.append(("compute capability", hardware.compute_capability, str, ""))
    hardware_figures.append(("boost clock", hardware.boost_clock_hz, lambda hertz: units.amount(hertz, "Hz"), "Hz"))
    table_rows = [
        row(
            figure_name,
            write_figure(hardware_figure),
            None if isinstance(hardware_figure, str) else hardware_figure,
            unit_text,
            None,
        )
        for figure_name, hardware_figure, write_figure, unit_text in hardware_figures
        if hardware_figure is not None
    ]
    for peaks_by_dtype, accumulation_text in (
        (hardware.peak_flops, ""),
        (hardware.float16_accumulation_flops, ", fp16 sums"),
    ):
        for dtype, peak_flops in _peaks_by_format_name(peaks_by_dtype).items():
            unit_text = "OP/s" if dtype.startswith("int") else "FLOP/s"
            ridge_intensity = None if hardware.memory_bandwidth is None else peak_flops / hardware.memory_bandwidth
            table_rows.append(
                row(
                    f"peak {units.short_dtype(dtype)}{accumulation_text}",
                    units.amount(peak_flops, unit_text),
                    peak_flops,
                    unit_text,
                    ridge_intensity,
                )
            )
    return table_rows


def _memory_sizes_text(hardware: Hardware) -> str:
    """Returns a chip's available memory sizes as text; empty if there is only one."""
    if not hardware.configurations:
        return ""
    size_names = [
        f"{hardware.name}-{configuration.memory_bytes // 2**30}gb" for configuration in hardware.configurations
    ]
    return f"these are the figures of the largest memory size; all of them: {', '.join(size_names)}"


def _peaks_by_format_name(peaks_by_dtype: dict[str, int]) -> dict[str, int]:
    """Returns peak FLOP/s by number format, widest format first."""
    return {dtype: peaks_by_dtype[dtype] for dtype in PEAK_DTYPES if dtype in peaks_by_dtype}


def hardware_data(hardware: Hardware) -> dict[str, Any]:
    """Returns an accelerator as plain data in bytes, bytes/s, FLOP/s, Hz and watts, null if unknown."""
    interconnect = hardware.interconnect
    return hardware.model_dump(mode="json") | {
        "interconnect": interconnect
        and {**interconnect.model_dump(), "bandwidth_per_direction": interconnect.bandwidth_per_direction},
        "peak_flops": _peaks_by_format_name(hardware.peak_flops),
        "float16_accumulation_flops": _peaks_by_format_name(hardware.float16_accumulation_flops),
    }
