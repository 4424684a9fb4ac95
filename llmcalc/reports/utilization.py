"""The table of `llmcalc flops --tokens-per-second`: MFU and HFU of a measured run under each convention."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .. import units
from ..studies.utilization import Utilization
from .document import Column, Table, row

EXACT_CAUSAL_KEY = "exact_causal"
"""The key of the exact count with causal pairs, the fewest FLOPs that a kernel needs for the pass."""


def _high_utilization_notes(utilization: Utilization) -> list[str]:
    """Returns a note if utilization exceeds 100 %, by the exact count or by other conventions alone."""
    rows_above_peak = [convention_row for convention_row in utilization.conventions if convention_row.hfu > 1]
    if not rows_above_peak:
        return []
    if all(convention_row.key != EXACT_CAUSAL_KEY for convention_row in rows_above_peak):
        names_text = ", ".join(convention_row.name for convention_row in rows_above_peak)
        return [
            f"more than 100 % by {names_text}, with FLOPs that need not be computed; the exact count of causal "
            "pairs is below the peak"
        ]
    dtype_bits = units.DTYPE_BITS[utilization.dtype]
    narrower_formats = [
        dtype
        for dtype in utilization.hardware.peak_flops
        if dtype.startswith("float") and units.DTYPE_BITS[dtype] < dtype_bits
    ]
    widest_format = max(narrower_formats, key=units.DTYPE_BITS.__getitem__, default="")
    advice_text = ""
    if widest_format:
        advice_text = f", and a narrower format has a higher peak (--dtype {units.short_dtype(widest_format)})"
    return [
        "more than 100 %: above the peak of these devices; --tokens-per-second is of all of them together" + advice_text
    ]


def utilization_table(title: str, headline: str, utilization: Utilization) -> Table:
    """Returns the table of MFU and HFU under each convention, exact counts first."""
    flops_scale = units.decimal_scale(
        max(convention_utilization.flops_per_token for convention_utilization in utilization.conventions), "FLOPs"
    )
    columns = (
        Column("convention", "convention", justify="left"),
        Column("formula", "formula", justify="left"),
        Column("flops_per_token", f"{flops_scale.name}/token", flops_scale.write),
        Column("mfu", "MFU", units.percent),
        Column("hfu", "HFU", units.percent),
    )
    table_rows = [
        row(
            utilization_row.name,
            utilization_row.formula,
            utilization_row.flops_per_token,
            utilization_row.mfu,
            utilization_row.hfu,
            is_bold=utilization_row.key.startswith("exact_"),
        )
        for utilization_row in utilization.conventions
    ]
    peak_flops_text = units.amount(utilization.peak_flops // utilization.devices, "FLOP/s")
    peak_text = f"{peak_flops_text} of {units.short_dtype(utilization.dtype)}, dense"
    notes = [
        *_high_utilization_notes(utilization),
        f"peak of each device: {peak_text}",
        "MFU: FLOPs that the model needs, each product once; HFU: what the kernels compute, with what runs again "
        "(--recompute, and the scores in flash attention's backward pass)",
        "an MFU without its convention cannot be compared: quote both",
        *(
            f"{convention_utilization.name}: {convention_utilization.source}"
            for convention_utilization in utilization.conventions
            if convention_utilization.source
        ),
    ]
    rate_text = f"{utilization.tokens_per_second:,} tokens/s on {utilization.devices:,} × {utilization.hardware.name}"
    subtitle = f"{rate_text}, {headline}"
    return Table(title, columns, table_rows, subtitle, notes, "utilization of a measured run", "utilization")


def utilization_data(utilization: Utilization) -> dict[str, Any]:
    """Returns the utilization as plain data. MFU and HFU are fractions of the peak FLOP/s."""
    return {
        "hardware": utilization.hardware.name,
        "devices": utilization.devices,
        "dtype": utilization.dtype,
        "tokens_per_second": utilization.tokens_per_second,
        "tokens_per_second_per_device": utilization.tokens_per_second / utilization.devices,
        "peak_flops_per_device": utilization.peak_flops // utilization.devices,
        "repeated_flops_per_token": utilization.repeated_flops_per_token,
        "conventions": [asdict(convention_row) for convention_row in utilization.conventions],
    }
