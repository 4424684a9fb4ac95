"""Plots of the memory of a device: by kind in every phase, and over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import units
from ..accelerator import MemoryFit
from ..device_memory.device_memory import DeviceMemory
from ..device_memory.estimate import Memory
from ..reports.memory import KIND_NAMES, PHASE_NAMES
from ..reports.memory_notes import run_text
from ..reports.palette import LINE_COLOUR, MEMORY_KIND_COLOURS, TEXT_COLOUR
from .figure import draw_heading, in_llmcalc_style, is_narrow, new_figure, text_for_one_column
from .labels import escape_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEXT_BACKGROUND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1}
"""Background of a text that may overlap a line."""


@in_llmcalc_style
def plot_memory(title: str, memory_estimate: Memory, accelerator_fits: Sequence[MemoryFit] = ()) -> Figure:
    """Draws two panels: stacked bars of the memory by kind and phase, and memory over time, module by module.

    The first bar is the device's need, which is the number in the title.

    accelerator_fits: accelerators whose capacity is marked; default none.
    """
    device = memory_estimate.device
    figure = new_figure(9, 3.0 + 0.42 * len(device.moments) + (3.4 if is_narrow() else 2.4))
    panel_heights = (1.15 + 0.45 * len(device.moments), 2.4)
    bar_axes, timeline_axes = figure.subplots(2, 1, height_ratios=panel_heights, gridspec_kw={"hspace": 0.06})
    draw_bars(bar_axes, device, accelerator_fits)
    draw_timeline(timeline_axes, device, accelerator_fits)
    draw_heading(
        figure, f"{escape_label(title)}: {units.memory(device.device_bytes)} in {run_text(memory_estimate.states)}"
    )
    return figure


OVERHEAD_LABEL = "free blocks, CUDA context"
"""Label of the bytes that the allocator and the runtime need in addition to tensors at the peak."""


def draw_bars(ax: Axes, device: DeviceMemory, accelerator_fits: Sequence[MemoryFit] = ()) -> None:
    """Draws a stacked bar for the device and for each phase in order, and a line per capacity.

    The device's bar has the tensors of the peak, and what the allocator and the runtime take beside them.
    """
    byte_scale = units.memory_scale(device.device_bytes)
    bar_rows: list[tuple[str, dict[str, int]]] = [
        ("the device, at its peak", {**device.by_kind, OVERHEAD_LABEL: device.device_bytes - device.peak_bytes}),
        *((PHASE_NAMES[phase], dict(bytes_by_kind)) for phase, bytes_by_kind in device.moments.items()),
    ]
    for memory_kind in (*MEMORY_KIND_COLOURS, OVERHEAD_LABEL):
        bar_heights = [bar_parts.get(memory_kind, 0) / byte_scale.factor for _, bar_parts in bar_rows]
        bar_starts = [
            sum(
                bar_parts.get(lower_kind, 0)
                for lower_kind in [*MEMORY_KIND_COLOURS][: [*MEMORY_KIND_COLOURS, OVERHEAD_LABEL].index(memory_kind)]
            )
            / byte_scale.factor
            for _, bar_parts in bar_rows
        ]
        if any(bar_heights):
            colour = MEMORY_KIND_COLOURS.get(memory_kind, LINE_COLOUR)
            ax.barh(
                range(len(bar_rows)),
                bar_heights,
                left=bar_starts,
                color=colour,
                label=KIND_NAMES.get(memory_kind, memory_kind),
                height=0.62,
            )
    for row_index, (_, bar_parts) in enumerate(bar_rows):
        bar_height = sum(bar_parts.values()) / byte_scale.factor
        font_weight = "bold" if row_index == 0 else "normal"
        ax.text(
            bar_height,
            row_index,
            f" {bar_height:,.2f}",
            va="center",
            ha="left",
            color=TEXT_COLOUR,
            fontweight=font_weight,
        )
    ax.set_yticks(range(len(bar_rows)), [bar_name for bar_name, _ in bar_rows])
    ax.invert_yaxis()
    ax.xaxis.set_major_formatter("{x:,g}")
    ax.set_xlabel(text_for_one_column(f"{byte_scale.name}; of each phase the tensors at its highest point, by kind"))
    ax.margins(x=0.12)
    _draw_capacities(ax, accelerator_fits, device, byte_scale.factor, is_vertical=True)
    legend_place = {"bbox_to_anchor": (-0.6, -0.32), "ncols": 2} if is_narrow() else {"bbox_to_anchor": (1.01, 1.0)}
    ax.legend(loc="upper left", frameon=False, fontsize=9, **legend_place)


def draw_timeline(ax: Axes, device: DeviceMemory, accelerator_fits: Sequence[MemoryFit] = ()) -> None:
    """Draws the peak during each module in execution order."""
    byte_scale = units.memory_scale(device.device_bytes)
    timeline_points = [timeline_point for timeline_point in device.timeline if timeline_point.module_path]
    timeline_points += [timeline_point for timeline_point in device.timeline if timeline_point.phase == "step"] * max(
        1, len(timeline_points) // 12
    )
    point_bytes = [timeline_point.bytes / byte_scale.factor for timeline_point in timeline_points]
    ax.step(range(len(point_bytes)), point_bytes, where="mid", color=TEXT_COLOUR, linewidth=1)
    ax.fill_between(range(len(point_bytes)), point_bytes, step="mid", color=LINE_COLOUR, alpha=0.4)
    phase_starts = [
        point_index
        for point_index, timeline_point in enumerate(timeline_points)
        if point_index == 0 or timeline_points[point_index - 1].phase != timeline_point.phase
    ]
    for phase_start, phase_end in zip(phase_starts, [*phase_starts[1:], len(timeline_points)], strict=True):
        if phase_start:
            ax.axvline(phase_start - 0.5, color=LINE_COLOUR, linewidth=0.8)
        phase = timeline_points[phase_start].phase
        phase_title = phase if is_narrow() else PHASE_NAMES[phase]
        ax.annotate(
            phase_title,
            ((phase_start + phase_end - 1) / 2, 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
        )
    peak_index = max(range(len(point_bytes)), key=point_bytes.__getitem__)
    peak_node = timeline_points[peak_index].module_path or PHASE_NAMES["step"]
    text_side: Any = "right" if peak_index > len(point_bytes) / 2 else "left"
    peak_text = f"{point_bytes[peak_index]:,.2f} {byte_scale.name}: {escape_label(peak_node)}  "
    ax.annotate(
        peak_text,
        (peak_index, point_bytes[peak_index]),
        ha=text_side,
        va="bottom",
        color=TEXT_COLOUR,
        bbox=TEXT_BACKGROUND,
    )
    ax.set_xticks([])
    ax.set_ylabel(byte_scale.name)
    ax.yaxis.set_major_formatter("{x:,g}")
    ax.set_ylim(0, max(point_bytes) * 1.15)
    ax.set_xlabel("modules in the order in which they run")
    _draw_capacities(ax, accelerator_fits, device, byte_scale.factor, is_vertical=False)


def _draw_capacities(
    ax: Axes, accelerator_fits: Sequence[MemoryFit], device: DeviceMemory, bytes_per_unit: float, is_vertical: bool
) -> None:
    """Draws a dashed line for the capacity of each accelerator, except for capacities far above the peak.

    bytes_per_unit: bytes of the axis' unit.
    """
    for accelerator_fit in accelerator_fits:
        capacity_in_unit = accelerator_fit.capacity_bytes / bytes_per_unit
        if accelerator_fit.capacity_bytes > 2.5 * device.peak_bytes:
            continue
        if is_vertical:
            ax.axvline(capacity_in_unit, color=TEXT_COLOUR, linestyle="--", linewidth=1)
            ax.text(
                capacity_in_unit,
                -0.5,
                f" {escape_label(accelerator_fit.hardware.name)}",
                ha="left",
                va="bottom",
                fontsize=9,
                color=TEXT_COLOUR,
            )
        else:
            ax.axhline(capacity_in_unit, color=TEXT_COLOUR, linestyle="--", linewidth=1)
            ax.set_ylim(0, max(ax.get_ylim()[1], capacity_in_unit * 1.08))
