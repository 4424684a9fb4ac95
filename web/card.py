"""Pictures of preview cards, which chats and search engines show of a link: one a preset, drawn by the build, and
`src/card.png` of the calculator itself, which `python web/card.py` draws.

Both are drawn by Pillow, in DejaVu Sans: Matplotlib has both.
"""

from __future__ import annotations

import io
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WEB = Path(__file__).resolve().parent
FILE = WEB / "src" / "card.png"
MODELS = ("gpt2", "llama3-8b", "mixtral-8x7b", "deepseek-v3")

sys.path[:0] = [str(WEB.parent), str(WEB), str(WEB / "src")]

import preset_pages  # noqa: E402

from llmcalc import units  # noqa: E402
from llmcalc.costs.params import params  # noqa: E402
from llmcalc.reports.palette import COMPONENT_COLOURS, OTHER_COLOUR, TEXT_COLOUR  # noqa: E402
from llmcalc.sources.target import load  # noqa: E402

SIZE = 1200, 630
"""Pixels of a card, as Open Graph's readers expect it."""

COLOURS = 64
"""Colours of a card: its file is small (20 kB), and edges of letters are still smooth."""

MARGIN = 72
PAPER, QUIET = "#fbfaf8", "#66625d"


def available() -> bool:
    """Whether the packages that draw a card are installed."""
    return find_spec("matplotlib") is not None and find_spec("PIL") is not None


@lru_cache(maxsize=64)
def font(size: float, style: str = "") -> Any:
    """DejaVu Sans of a size in pixels. style: "", "-Bold", "Mono-Bold"."""
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"DejaVuSans{style}.ttf", size)


class Card:
    """A picture of that size, on which texts and bars are put."""

    def __init__(self) -> None:
        from PIL import Image, ImageDraw

        self.image = Image.new("RGB", SIZE, PAPER)
        self.pen = ImageDraw.Draw(self.image)
        self.room = SIZE[0] - 2 * MARGIN

    def text(
        self, y: float, text: str, size: float, *, style: str = "", fill: str = TEXT_COLOUR, right: bool = False,
        x: float = 0, room: float | None = None,
    ) -> None:  # fmt: skip
        """A line of text. y: of its base line. x: from the margin. room: it is made as small as fits into so many
        pixels; default: up to the other margin.
        """
        room = self.room - x if room is None else room
        wide = font(size, style).getlength(text)
        face = font(min(size, int(size * room / wide)) if wide else size, style)
        at = SIZE[0] - MARGIN if right else MARGIN + x
        self.pen.text((at, y), text, font=face, fill=fill, anchor="rs" if right else "ls")

    def lines(self, y: float, text: str, size: float, step: float, fill: str) -> None:
        """A text of at most two lines, the first on that base line, which breaks at a comma where it is longer than
        one.
        """
        face, words = font(size), text.split(", ")
        fitting = [n for n in range(1, len(words) + 1) if face.getlength(", ".join(words[:n]) + ",") <= self.room]
        first = max(fitting, default=1)
        if first == len(words):
            return self.text(y + step / 2, text, size, fill=fill)
        self.text(y, ", ".join(words[:first]) + ",", size, fill=fill)
        return self.text(y + step, ", ".join(words[first:]), size, fill=fill)

    def bar(self, y: float, height: float, shares: dict[str, float]) -> None:
        """Shares of components, side by side."""
        start = 0.0
        for part, share in shares.items():
            left, right = (round(MARGIN + self.room * at) for at in (start, start + share))
            if right > left:
                self.pen.rectangle((left, y, right - 1, y + height - 1), fill=COMPONENT_COLOURS.get(part, OTHER_COLOUR))
            start += share

    def png(self) -> bytes:
        """The picture as a PNG of few colours."""
        from PIL import Image

        data = io.BytesIO()
        few = self.image.quantize(COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(data, "PNG")
        return data.getvalue()


def preset_card(page: preset_pages.PresetPage, source: str) -> bytes:
    """The card of a preset: its name, its exact parameters and where they are, and its headline numbers. A PNG.

    source: the address of the page, written in a corner.
    """
    card = Card()
    card.text(104, page.preset.display, 58, style="-Bold")
    card.lines(148, page.first["answer"]["headline"], 23, 32, QUIET)
    card.text(254, units.exact_text(page.counts["total"]), 58, style="Mono-Bold", room=820)
    card.text(254, "parameters", 27, fill=QUIET, right=True)
    card.bar(280, 74, page.shares)
    names = [(part, share) for part, share in page.shares.items() if share >= preset_pages.SMALLEST][:4]
    for i, (part, share) in enumerate(names):
        x, wide = i * card.room / 4, card.room / 4
        card.pen.rectangle((MARGIN + x, 379, MARGIN + x + 19, 398), fill=COMPONENT_COLOURS.get(part, OTHER_COLOUR))
        card.text(397, f"{preset_pages.named(part)} {units.percent(share)}", 22, x=x + 30, room=wide - 44)
    figures = list(page.figures().items())[1:]
    longest = max(font(36, "-Bold").getlength(value) for _, (value, _) in figures) if figures else 1
    size = min(36, int(36 * (card.room / 4 - 24) / longest))
    for i, (name, (value, _)) in enumerate(figures):
        x, wide = i * card.room / 4, card.room / 4
        card.text(478, value, size, style="-Bold", x=x)
        card.text(513, name, 21, fill=QUIET, x=x, room=wide - 24)
    card.text(582, "llmcalc", 27, style="Mono-Bold", room=160)
    settings = f"{page.defaults['weights']}, {units.exact_text(page.defaults['ctx'])} tokens"
    card.text(582, " · ".join(filter(None, (settings, source))), 21, fill=QUIET, right=True, room=card.room - 200)
    return card.png()


def site_card() -> bytes:
    """The card of the calculator: the components of a few models beside their exact numbers of parameters. A PNG."""
    card = Card()
    card.text(128, "llmcalc", 62, style="Mono-Bold")
    card.text(184, "what a language model costs", 38)
    card.text(232, "exact parameters · FLOPs · KV cache · memory · time · money", 26, fill=QUIET)
    for row, name in enumerate(MODELS):
        preset, y = load(name), 318 + 76 * row
        counted = params(preset.model)
        parts = sorted(counted.by_component.items(), key=lambda part: -part[1])
        card.text(y, preset.display, 26, room=600)
        card.text(y, units.exact_text(counted.total), 26, right=True, room=420)
        card.bar(y + 12, 26, {part: size / counted.total for part, size in parts})
    return card.png()


if __name__ == "__main__":
    FILE.write_bytes(site_card())
