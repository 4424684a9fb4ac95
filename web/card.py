"""Draws `src/card.png`, the picture of the page's preview card: `python web/card.py` (needs Matplotlib)."""

from __future__ import annotations

import sys
from pathlib import Path

WEB = Path(__file__).resolve().parent
FILE = WEB / "src" / "card.png"
MODELS = ("gpt2", "llama3-8b", "mixtral-8x7b", "deepseek-v3")

sys.path.insert(0, str(WEB.parent))

from llmcalc import units  # noqa: E402
from llmcalc.costs.params import params  # noqa: E402
from llmcalc.reports.palette import COMPONENTS, INK, OTHER  # noqa: E402
from llmcalc.sources.target import load  # noqa: E402


def main() -> None:
    """Draws the shares of components of a few models beside their exact numbers of parameters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.3), dpi=100, facecolor="#fbfaf8")
    axes = figure.add_axes((0.07, 0.09, 0.86, 0.42))
    axes.axis("off")
    for row, name in enumerate(MODELS):
        preset = load(name)
        counted, start = params(preset.model), 0.0
        for part, size in sorted(counted.by_component.items(), key=lambda part: -part[1]):
            share = size / counted.total
            axes.barh(row, share, left=start, height=0.36, color=COMPONENTS.get(part, OTHER))
            start += share
        axes.text(0, row - 0.3, preset.display, va="bottom", fontsize=19, color=INK)
        axes.text(1, row - 0.3, units.exact(counted.total), va="bottom", ha="right", fontsize=19, color=INK)
    axes.set(xlim=(0, 1), ylim=(len(MODELS) - 0.7, -0.8))
    figure.text(0.07, 0.83, "llmcalc", fontsize=46, fontweight="bold", fontfamily="monospace", color=INK)
    figure.text(0.07, 0.74, "what a language model costs", fontsize=27, color=INK)
    line = "exact parameters · FLOPs · KV cache · memory · time · money"
    figure.text(0.07, 0.65, line, fontsize=19, color="#66625d")
    figure.savefig(FILE, metadata={"Software": None})


if __name__ == "__main__":
    main()
