"""Colours that readers with any colour vision can tell apart: Okabe & Ito 2008, https://jfly.uni-koeln.de/color/."""

from __future__ import annotations

KINDS = {
    "weights": "#0072B2",
    "gradients": "#56B4E9",
    "optimizer": "#009E73",
    "activations": "#E69F00",
    "temporary": "#F0E442",
    "communication": "#CC79A7",
    "cache": "#D55E00",
    "overhead": "#999999",
}
"""Kind of memory → its colour."""

PASSES = {"F": "#56B4E9", "B": "#E69F00", "I": "#F0E442", "W": "#009E73"}
"""Pass of a pipeline's schedule → its colour."""

HATCHES = {"F": "", "B": "/////", "I": "/////", "W": "...."}
"""Pass of a pipeline's schedule → its hatching, which tells it apart without colour."""

INK, FAINT = "#222222", "#bbbbbb"
"""Colours of text and of lines beside it."""
