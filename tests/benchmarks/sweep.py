"""Counts a million shapes with the spec's closed form, and with the same formula written by hand in NumPy."""

from __future__ import annotations

from typing import Any

import llmcalc
from llmcalc.costs.params import params
from llmcalc.studies.shape import build_family
from llmcalc.studies.sweep import sweep

from .timing import calls, line

RUNS = 9
SHAPES = 1_000_000
TARGET = "llama3-8b"


def by_hand(h: Any, layers: Any) -> Any:
    """Parameters of Llama 3 8B's family: q and o h·h each, k and v h·h/4 each, three matrices of 3.5h, two norms.

    V = 128,256, untied.
    """
    heads = h // 128
    queries, keys = heads * 128, heads // 4 * 128
    width = h * 7 // 2
    layer = 2 * h * queries + 2 * h * keys + 3 * h * width + 2 * h
    return layers * layer + 2 * 128256 * h + h


def main() -> None:
    """Prints the two times and their ratio, after checking that the counts are equal."""
    import numpy as np

    generator = np.random.default_rng(0)
    of = build_family(llmcalc.load(TARGET).model)
    h = of.width_step * generator.integers(1, 40, SHAPES)
    layers = generator.integers(1, 200, SHAPES)
    if not np.array_equal(sweep(of, h, layers), by_hand(h, layers)):
        raise RuntimeError("the closed form and the expression by hand differ")
    sized = of.scaled_to(h, layers)
    whole, counted, hand = calls(
        [lambda: sweep(of, h, layers), lambda: params(sized).total, lambda: by_hand(h, layers)], RUNS
    )
    print(f"sweep: {SHAPES:,} shapes of {TARGET}'s family (median of {RUNS})")
    line("closed form of the spec, sizes included", f"{1000 * whole:.0f} ms")
    line("closed form of the spec, sizes given", f"{1000 * counted:.0f} ms")
    line("by hand in NumPy, sizes included", f"{1000 * hand:.0f} ms")
    line("ratio, sizes included in both", f"{whole / hand:.2f}", "≤ 3")
