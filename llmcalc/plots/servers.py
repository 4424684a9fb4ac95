"""The plots of servers under load: TPOT against users, and the Pareto front of TPOT and tokens/s per device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..reports.notes import counted_noun
from ..reports.palette import CURVE_COLOURS, LINE_COLOUR, TEXT_COLOUR
from ..reports.serve import layout_text, users_text
from ..studies.server import LatencyLimits, LoadPoint
from ..studies.serving import StudiedServers
from .figure import draw_heading, in_llmcalc_style, is_narrow, new_figure
from .labels import escape_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@in_llmcalc_style
def plot_servers(title: str, subtitle: str, studied_servers: StudiedServers, latency_limits: LatencyLimits) -> Figure:
    """Draws two panels: the Pareto front of all servers, and the chosen server's TPOT by users.

    latency_limits: limits that are drawn as lines. Without a chosen server, the second panel has the server with the
        most tokens/s.
    """
    figure = new_figure(11, 8.6 if is_narrow() else 5.4)
    pareto_axes, load_axes = figure.subplots(2, 1) if is_narrow() else figure.subplots(1, 2, width_ratios=(1.25, 1))
    draw_pareto_front(pareto_axes, studied_servers, latency_limits)
    draw_load_curve(load_axes, studied_servers, latency_limits)
    draw_heading(figure, escape_label(title), escape_label(subtitle))
    return figure


def shown_server_index(studied_servers: StudiedServers) -> int:
    """Returns the index of the chosen server; if none is chosen, of the one with the most tokens/s per device."""
    return (
        studied_servers.pareto_front[-1][0]
        if studied_servers.chosen_server is None
        else studied_servers.chosen_server.server_index
    )


def pareto_front_points(studied_servers: StudiedServers) -> list[tuple[int, LoadPoint]]:
    """Returns the load points on the Pareto front, each with the index of its server."""
    curves = [
        {curve_point.concurrency: curve_point for curve_point in server_curve}
        for server_curve in studied_servers.load_curves
    ]
    return [
        (server_index, curves[server_index][concurrency]) for server_index, concurrency in studied_servers.pareto_front
    ]


def draw_pareto_front(ax: Axes, studied_servers: StudiedServers, latency_limits: LatencyLimits) -> None:
    """Draws every server's curve (in colour on the Pareto front), the Pareto front, and the chosen load."""
    pareto_servers = pareto_front_points(studied_servers)
    pareto_indices = list(dict.fromkeys(server_index for server_index, _ in pareto_servers))
    colours = dict(zip(pareto_indices, CURVE_COLOURS, strict=False))
    for server_index, server_curve in enumerate(studied_servers.load_curves):
        x, y = (
            _tpot_milliseconds(server_curve),
            [load_point.tokens_per_second_per_device for load_point in server_curve],
        )
        if server_index in colours:
            server_label = escape_label(layout_text(studied_servers.servers[server_index]))
            ax.plot(
                x, y, color=colours[server_index], linewidth=1.4, marker="o", markersize=3, label=server_label, zorder=3
            )
        else:
            ax.plot(x, y, color=LINE_COLOUR, linewidth=0.8, zorder=1)
    pareto_points = [load_point for _, load_point in pareto_servers]
    ax.plot(
        _tpot_milliseconds(pareto_points),
        [load_point.tokens_per_second_per_device for load_point in pareto_points],
        color=TEXT_COLOUR,
        linewidth=5,
        alpha=0.18,
        solid_capstyle="round",
        label="Pareto front",
        zorder=2,
    )
    if studied_servers.chosen_server is not None:
        _mark_chosen_server(ax, studied_servers.chosen_server.load_point)
    if latency_limits.tpot is not None:
        ax.axvline(1e3 * latency_limits.tpot, color=TEXT_COLOUR, linestyle="--", linewidth=1)
    ax.set_xscale("log")
    ax.set_yscale("log")
    _use_plain_tick_numbers(ax)
    ax.set_xlabel("TPOT, ms" + ("; dashed: the limit" if latency_limits.tpot is not None else ""))
    ax.set_ylabel("output tokens/s of a device")
    ax.set_title("Which layout", color=TEXT_COLOUR)
    ax.legend(frameon=False, fontsize=8.5, loc="lower right")


def _tpot_milliseconds(load_points: Sequence[LoadPoint]) -> list[float]:
    return [1e3 * float(curve_point.tpot.estimate) for curve_point in load_points]


def _mark_chosen_server(ax: Axes, chosen_point: LoadPoint) -> None:
    """Draws a star at the chosen load, and a whisker for the range of its TPOT."""
    low_ms, estimate_ms, high_ms = (
        1e3 * float(tpot_seconds)
        for tpot_seconds in (chosen_point.tpot.low, chosen_point.tpot.estimate, chosen_point.tpot.high)
    )
    ax.plot(
        [low_ms, high_ms],
        [chosen_point.tokens_per_second_per_device] * 2,
        color=TEXT_COLOUR,
        linewidth=1,
        marker="|",
        markersize=8,
        zorder=4,
    )
    label = f"chosen: {users_text(chosen_point.concurrency)} users, with its range"
    ax.plot(
        [estimate_ms],
        [chosen_point.tokens_per_second_per_device],
        color=TEXT_COLOUR,
        marker="*",
        markersize=12,
        linestyle="",
        label=label,
        zorder=5,
    )


def draw_load_curve(ax: Axes, studied_servers: StudiedServers, latency_limits: LatencyLimits) -> None:
    """Draws the TPOT of one server against its users, with the range as a band."""
    server_index = shown_server_index(studied_servers)
    curve = studied_servers.load_curves[server_index]
    users = [curve_point.concurrency for curve_point in curve]
    low_curve, high_curve = (
        [1e3 * float(getattr(curve_point.tpot, range_end)) for curve_point in curve] for range_end in ("low", "high")
    )
    ax.fill_between(users, low_curve, high_curve, color=CURVE_COLOURS[0], alpha=0.18, linewidth=0, label="range")
    ax.plot(
        users,
        _tpot_milliseconds(curve),
        color=CURVE_COLOURS[0],
        linewidth=2,
        marker="o",
        markersize=3.5,
        label="estimate",
    )
    if studied_servers.chosen_server is not None:
        curve_point = studied_servers.chosen_server.load_point
        ax.plot(
            [curve_point.concurrency],
            _tpot_milliseconds([curve_point]),
            color=TEXT_COLOUR,
            marker="*",
            markersize=12,
            linestyle="",
        )
    if latency_limits.tpot is not None:
        ax.axhline(1e3 * latency_limits.tpot, color=TEXT_COLOUR, linestyle="--", linewidth=1, label="limit of TPOT")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    _use_plain_tick_numbers(ax)
    ax.set_xlabel(f"users at once; the cache holds {curve[-1].concurrency:,}")
    ax.set_ylabel("TPOT, ms")
    server = studied_servers.servers[server_index]
    ax.set_title(
        f"Load of {escape_label(layout_text(server))} ({counted_noun(server.devices, 'device')})", color=TEXT_COLOUR
    )
    ax.legend(frameon=False, fontsize=8.5, loc="upper left")


def _use_plain_tick_numbers(ax: Axes) -> None:
    """Labels the ticks of logarithmic axes with plain numbers, at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    formatter = FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    ax.xaxis.set_major_formatter(formatter)
    ax.yaxis.set_major_formatter(formatter)
    if ax.get_xscale() == "log" and ax.xaxis.get_transform().base == 10:  # type: ignore[attr-defined]
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.grid(color=LINE_COLOUR, linewidth=0.4, alpha=0.6)
