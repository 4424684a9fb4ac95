"""The roofline plot (Williams, Waterman and Patterson 2009): FLOP/s of a model's products against their intensity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import units
from ..reports.palette import CURVE_COLOURS, LINE_COLOUR, TEXT_COLOUR
from ..studies.timed_run import TimedRun
from ..timing.time_estimator import TimeEstimator
from ..timing.traffic import MemoryTraffic
from .figure import draw_heading, in_llmcalc_style, new_figure, text_for_one_column
from .labels import FAR_LABEL_PLACES, LABEL_PLACES, escape_label, label_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST_POINT_AREA, SMALLEST_POINT_AREA = 900.0, 14.0
"""Area of a point that is all of a pass's time, and the least area of a point, in square points (1/72 inch)."""


SHARED_LABEL_DISTANCE = 0.06
"""Distance below which two points share one name, in decades of either axis."""


@in_llmcalc_style
def plot_roofline(title: str, titled_runs: Sequence[tuple[TimedRun, str]]) -> Figure:
    """Draws the matrix products of one or several passes under the roofline of an accelerator.

    titled_runs: a pass of inference with its description. A point's area is its share of the pass's time.
    Raises `InputError` for a training step.
    """
    from matplotlib.collections import PathCollection

    first_run = titled_runs[0][0]
    kernels_by_run = [timed_run.traffic() for timed_run, _ in titled_runs]
    figure = new_figure(9, 5.6)
    ax = figure.subplots()
    for (timed_run, pass_name), kernels, colour in zip(titled_runs, kernels_by_run, CURVE_COLOURS, strict=False):
        ax.scatter(
            [kernel.intensity for kernel in kernels.values()],
            [kernel.flops_per_second / 1e12 for kernel in kernels.values()],
            s=[_marker_area(kernel.seconds / timed_run.seconds) for kernel in kernels.values()],
            color=colour,
            alpha=0.65,
            linewidths=0,
            label=_pass_text(timed_run, pass_name, sum(kernel.seconds for kernel in kernels.values())),
        )
    roof_points = _draw_roof(
        ax, first_run, [kernel.intensity for kernels in kernels_by_run for kernel in kernels.values()]
    )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter("{x:,g}")
    ax.yaxis.set_major_formatter("{x:,g}")
    ax.grid(color=LINE_COLOUR, linewidth=0.4, alpha=0.6)
    ax.set_xlabel(text_for_one_column("FLOPs per byte of memory; a point's area is its share of the pass's time"))
    ax.set_ylabel("TFLOP/s")
    draw_heading(figure, f"{escape_label(title)} under the roof of {escape_label(first_run.hardware.title)}")
    legend = figure.legend(loc="outside lower left", frameon=False, fontsize=9)
    for legend_line in legend.legend_handles:
        if isinstance(legend_line, PathCollection):  # of points
            legend_line.set_sizes([40.0])
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    _label_node_points(
        ax, list(zip((timed_run for timed_run, _ in titled_runs), kernels_by_run, strict=True)), roof_points
    )
    return figure


def _pass_text(timed_run: TimedRun, pass_name: str, seconds: float) -> str:
    """Returns the legend text of a pass, with the percentage of the pass's time that the drawn products take."""
    hint = "" if timed_run.resident_bytes <= timed_run.hardware.capacity_bytes else ", whose memory they do not fit"
    legend_text = (
        f"{escape_label(pass_name)}{hint}; points: {units.percent(seconds / timed_run.seconds, 0)} of its time"
    )
    return text_for_one_column(legend_text, 3.8, 9)


def _draw_roof(ax: Axes, timed_run: TimedRun, intensities: Sequence[float]) -> list[tuple[float, float]]:
    """Draws the roof of the datasheet's bandwidth and peak, and dashed lines at the rates of large kernels.

    Returns points along both, in data coordinates.
    """
    device, product_format = timed_run.device, timed_run.number_formats.product_format
    time_estimator = TimeEstimator(
        device, timed_run.stack, timed_run.number_formats, timed_run.inference_passes[0].rank_pass
    )
    ridge_intensity = timed_run.peak_flops / device.memory_bandwidth
    intensity_range = (min(0.5 * min(intensities), ridge_intensity / 4), max(4 * max(intensities), 4 * ridge_intensity))
    sampled_intensities = [
        intensity_range[0] * (intensity_range[1] / intensity_range[0]) ** (sample_index / ROOF_SAMPLES)
        for sample_index in range(ROOF_SAMPLES + 1)
    ]
    roof_points = []
    datasheet_text = text_for_one_column(f"roof of the datasheet: {_roof_text(timed_run, ridge_intensity)}", 3.8, 9)
    for peak_rate, bandwidth, roof_line, roof_name in (
        (timed_run.peak_flops, device.memory_bandwidth, "-", datasheet_text),
        (
            time_estimator.product_rate(product_format),
            device.memory_bandwidth * device.generation.memory,
            "--",
            "reached by large kernels",
        ),
    ):
        x = [intensity_range[0], peak_rate / bandwidth, intensity_range[1]]
        y = [min(peak_rate, intensity * bandwidth) / 1e12 for intensity in x]
        ax.plot(x, y, color=TEXT_COLOUR, linewidth=1.1, linestyle=roof_line, label=roof_name, zorder=0)
        roof_points += [(intensity, min(peak_rate, intensity * bandwidth) / 1e12) for intensity in sampled_intensities]
    ax.axvline(ridge_intensity, color=LINE_COLOUR, linewidth=0.8, zorder=0)
    ax.set_xlim(*intensity_range)
    ax.margins(y=0.12)
    return roof_points


ROOF_SAMPLES = 200
"""Steps along a roof at which no name may lie."""


def _roof_text(timed_run: TimedRun, ridge: float) -> str:
    product_format = timed_run.device.format_of(timed_run.number_formats.product_format)
    peak_rate, bandwidth = timed_run.peak_flops / 1e12, timed_run.device.memory_bandwidth / 1e12
    return (
        f"{peak_rate:,.0f} TFLOP/s ({product_format}), {bandwidth:.2f} TB/s; they meet at {ridge:,.0f} FLOPs per byte"
    )


def _label_node_points(
    ax: Axes,
    runs_with_kernels: Sequence[tuple[TimedRun, dict[str, MemoryTraffic]]],
    roof_points: Sequence[tuple[float, float]],
) -> None:
    """Labels points with the last parts of their node paths, slowest node first. Overlapping points share one label."""
    weighted_points = [
        (kernel.seconds / timed_run.seconds, (kernel.intensity, kernel.flops_per_second / 1e12), path)
        for timed_run, kernels in runs_with_kernels
        for path, kernel in kernels.items()
    ]
    weighted_points.sort(key=lambda kernel_point: -kernel_point[0])
    names_by_point: dict[tuple[float, float], list[str]] = {}
    point_radii: dict[tuple[float, float], float] = {}
    for time_share, kernel_point, path in weighted_points:
        nearest_point = next(
            (
                other_point
                for other_point in names_by_point
                if _log_distance(kernel_point, other_point) < SHARED_LABEL_DISTANCE
            ),
            kernel_point,
        )
        marker_radius = math.sqrt(_marker_area(time_share) / math.pi)
        point_radii.setdefault(nearest_point, marker_radius)  # of the slowest, which is drawn the largest
        names_by_point.setdefault(nearest_point, []).append(".".join(path.split(".")[-2:]))
    point_labels = [
        first_name if not other_names else f"{first_name} and {len(other_names)} more"
        for first_name, *other_names in names_by_point.values()
    ]
    label_points(
        ax,
        list(names_by_point),
        point_labels,
        roof_points,
        (*LABEL_PLACES, *FAR_LABEL_PLACES),
        list(point_radii.values()),
    )


def _marker_area(time_share: float) -> float:
    """Returns the area of a point whose kernel takes this share of the pass's time."""
    return max(SMALLEST_POINT_AREA, LARGEST_POINT_AREA * time_share)


def _log_distance(point: tuple[float, float], other_point: tuple[float, float]) -> float:
    return max(
        abs(math.log10(coordinate / other_coordinate))
        for coordinate, other_coordinate in zip(point, other_point, strict=True)
    )
