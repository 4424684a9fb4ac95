"""Colours for readers with any colour vision: Okabe & Ito 2008, https://jfly.uni-koeln.de/color/."""

from __future__ import annotations

MEMORY_KIND_COLOURS = {
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

COMPONENT_COLOURS = {
    "embedding": "#009E73",
    "lm_head": "#8FD0BC",
    "attention": "#0072B2",
    "cross_attention": "#56B4E9",
    "state_space": "#7B5EA7",
    "linear_attention": "#A58CC9",
    "convolution": "#CBB9E3",
    "feed_forward": "#E69F00",
    "experts": "#D55E00",
    "shared_expert": "#F2C069",
    "router": "#8C4A00",
}
"""Component → its colour. The token mixers are blue and violet, feed-forward networks and experts orange, embedding and
head green; everything else is `OTHER_COLOUR`.
"""

OTHER_COLOUR = "#999999"

BOUND_COLOURS = {"compute": "#0072B2", "memory": "#E69F00", "network": "#CC79A7", "wait": "#999999"}
"""Bound of a part of a run's time (compute, memory, …) → its colour."""

CURVE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#222222", "#7B5EA7")
"""Colours of curves, in order."""

PASS_COLOURS = {"F": "#56B4E9", "B": "#E69F00", "I": "#F0E442", "W": "#009E73"}
"""Pass of a pipeline's schedule → its colour."""

PASS_HATCHES = {"F": "", "B": "/////", "I": "/////", "W": "...."}
"""Pass of a pipeline's schedule → its hatching, which tells it apart without colour."""

TEXT_COLOUR, LINE_COLOUR = "#222222", "#bbbbbb"
"""Colours of text, and of lines such as axes."""
