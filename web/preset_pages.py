"""A page for every preset, `m/NAME/`: its headline numbers, a picture of its parameters, and its description in plain
HTML without scripts, for readers who come from a search engine or a chat; and `m/`, the list of all of them.

The numbers are those of the documents that the calculator shows first, so they are counted once.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import addresses

from llmcalc import units
from llmcalc.plots.params import COMPONENT_LABELS
from llmcalc.reports.palette import COMPONENT_COLOURS, OTHER_COLOUR
from llmcalc.sources.preset import Preset

POLICY = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'"
"""The Content-Security-Policy of these pages, which run no script."""

PICTURE = "picture.svg"
CARD = addresses.CARD
"""File of the preview card in a preset's folder; `card.py` draws it."""

WIDTH, HEIGHT, MARGIN = 1200, 430, 48

SMALLEST = 0.001
"""Shares below it have no name in a picture."""

escape = html.escape


@dataclass(frozen=True)
class PresetPage:
    """What a preset's page says. first: the documents that the page shows until Python is ready (`answers.of_preset`).
    defaults: the settings of their numbers. has_card: whether a preview card of its own stands in its folder.
    """

    preset: Preset
    first: dict[str, Any]
    defaults: dict[str, Any]
    has_card: bool = False

    @property
    def path(self) -> str:
        """The folder of the page, below the calculator's."""
        return f"m/{self.preset.name}/"

    @property
    def counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = self.first["answer"]["params"]["params"]
        return counts

    @property
    def shares(self) -> dict[str, float]:
        """Component → its share of the parameters, the largest first."""
        parts = sorted(self.counts["by_component"].items(), key=lambda part: -part[1])
        return {name: size / self.counts["total"] for name, size in parts}

    def figures(self) -> dict[str, tuple[str, str]]:
        """Headline numbers: what → the number, and what it is counted for."""
        answer, counts = self.first["answer"], self.counts
        tokens = units.exact_text(self.defaults["ctx"])
        figures = {"Parameters": (units.exact_text(counts["total"]), verdict(counts))}
        if counts["active"] != counts["total"]:
            figures["Active per token"] = (units.exact_text(counts["active"]), "parameters that a token uses")
        if "flops" in answer["flops"]:
            work = units.flops(answer["flops"]["flops"]["per_token"])
            figures["FLOPs per token"] = (work, f"forward pass, mean over {tokens} tokens, no mask")
        if "cache" in answer["kv"]:
            cache = answer["kv"]["cache"]
            whole = units.memory(cache["bytes"])
            figures["KV cache per token"] = (
                units.memory(cache["bytes_per_token"]),
                f"bf16; {whole} at {tokens} tokens",
            )
        memory = self.first["memory"].get("memory")
        if memory:
            figures["Memory"] = (
                units.memory(memory["device_bytes"]),
                f"peak of inference on one device, bf16 weights, {tokens} tokens",
            )
        return figures

    def description(self) -> str:
        """One sentence, for search engines and previews."""
        figures = "; ".join(f"{name.lower()} {value}" for name, (value, _) in self.figures().items())
        return f"{self.preset.display}: {self.first['answer']['headline']}. {figures[0].upper()}{figures[1:]}."

    def html(self, urls: dict[str, str]) -> str:
        """The page. urls: the project's addresses."""
        preset, answer = self.preset, self.first["answer"]
        rows = "\n".join(
            f'<tr><th scope="row">{escape(name)}</th><td><b>{escape(value)}</b></td><td>{escape(note)}</td></tr>'
            for name, (value, note) in self.figures().items()
        )
        origin = ", ".join(filter(None, (preset.developer, preset.released)))
        sources = "\n".join(
            f'<li><a href="{escape(source.url)}">{escape(source.gives)}</a></li>' for source in preset.sources
        )
        remarks = "\n".join(f"<li>{escape(note)}</li>" for note in answer["params"]["notes"])
        body = f"""<main class="sheet">
<h1>{escape(preset.display)}</h1>
<p class="quiet">{escape(origin)}</p>
<p>{escape(answer["headline"])}.</p>
<table class="figures-of">
<tbody>
{rows}
</tbody>
</table>
<p class="go"><a href="../../#m={escape(preset.name)}">Open in the calculator</a> to change context, batch, number
formats and accelerators, or to compare it with other models.</p>
<h2>Where the parameters are</h2>
{self.bar()}
<p class="quiet"><a href="{PICTURE}">The same as a picture</a>, with the numbers above.</p>
<h2>The same on the command line</h2>
<pre><code>llmcalc params {escape(preset.name)}
llmcalc {"flops" if "error" in self.first["memory"] else "memory"} {escape(preset.name)}</code></pre>
<h2>What is counted</h2>
<ul>
{remarks}
</ul>
<h2>Sources</h2>
<ul>
{sources}
</ul>
</main>"""
        title = f"{preset.display}: parameters, FLOPs, memory"
        card = (self.path + CARD, self.card_text()) if self.has_card else (addresses.CARD, addresses.CARD_IN_WORDS)
        return document(urls, self.path, title, self.description(), body, *card)

    def card_text(self) -> str:
        """The preview card in words."""
        return f"{units.exact_text(self.counts['total'])} parameters. {self.shares_text()}"

    def shares_text(self) -> str:
        """The picture in words."""
        parts = (f"{named(part)} {units.percent(share)}" for part, share in self.shares.items() if share >= SMALLEST)
        return f"Parameters of {self.preset.display}: {', '.join(parts)}."

    def bar(self) -> str:
        """The shares of the components as a bar as wide as the page, and their names below it in its letters."""
        start, boxes = 0.0, []
        for part, share in self.shares.items():
            place = f'x="{100 * start:.3f}%" width="{100 * share:.3f}%"'
            boxes.append(f'<rect {place} height="40" fill="{COMPONENT_COLOURS.get(part, OTHER_COLOUR)}"/>')
            start += share
        names = [
            f'<li><svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" rx="3" '
            f'fill="{COMPONENT_COLOURS.get(part, OTHER_COLOUR)}"/></svg>'
            f"{escape(named(part))} <b>{units.percent(share)}</b></li>"
            for part, share in self.shares.items()
            if share >= SMALLEST
        ]
        label = escape(self.shares_text())
        drawn, listed = "".join(boxes), "\n".join(names)
        return f"""<svg class="shares" role="img" aria-label="{label}" width="100%" height="40">{drawn}</svg>
<ul class="parts">
{listed}
</ul>"""

    def svg(self, urls: dict[str, str]) -> str:
        """A picture that stands alone: the shares of the components, the headline numbers, and its source."""
        wide, at, parts, legend = WIDTH - 2 * MARGIN, float(MARGIN), [], []
        for part, share in self.shares.items():
            colour = COMPONENT_COLOURS.get(part, OTHER_COLOUR)
            parts.append(f'<rect x="{at:.2f}" y="150" width="{wide * share:.2f}" height="84" fill="{colour}"/>')
            at += wide * share
        named_parts = [part for part, share in self.shares.items() if share >= SMALLEST]
        for i, part in enumerate(named_parts):
            x, y = MARGIN + (i % 4) * wide / 4, 272 + (i // 4) * 32
            legend.append(
                f'<rect x="{x:g}" y="{y - 14}" width="16" height="16" rx="4" '
                f'fill="{COMPONENT_COLOURS.get(part, OTHER_COLOUR)}"/>'
                f'<text x="{x + 26:g}" y="{y}">{escape(named(part))} {units.percent(self.shares[part])}</text>'
            )
        numbers = " · ".join(f"{name} {value}" for name, (value, _) in list(self.figures().items())[1:])
        source = addresses.name_of(urls)
        lines = [
            f'<text x="{MARGIN}" y="70" font-size="40" font-weight="600">{escape(self.preset.display)}</text>',
            f'<text x="{MARGIN}" y="116" font-size="24">{units.exact_text(self.counts["total"])} parameters</text>',
            *parts,
            *legend,
            f'<text x="{MARGIN}" y="{HEIGHT - 28}" font-size="17" fill="#66625d">{escape(numbers)}</text>',
            f'<text x="{WIDTH - MARGIN}" y="116" font-size="17" text-anchor="end" fill="#66625d">'
            f"{escape('llmcalc' + (f' · {source}' if source else ''))}</text>",
        ]
        drawn = "\n".join(lines)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{escape(self.shares_text())}" '
            f'font-family="system-ui, Noto Sans, DejaVu Sans, sans-serif" font-size="20" fill="#1c1b1a">\n'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{drawn}\n</svg>\n'
        )


def named(part: str) -> str:
    """The name of a component for people."""
    return COMPONENT_LABELS.get(part, part.replace("_", " "))


def verdict(counts: dict[str, Any]) -> str:
    """How the count compares with the published one."""
    published, total = counts["published"], counts["total"]
    if published is None:
        return "counted exactly"
    if published == total:
        return "equal to the published count"
    return f"{units.difference(total - published)} against the published {units.exact_text(published)}"


def document(
    urls: dict[str, str],
    path: str,
    title: str,
    description: str,
    body: str,
    card: str = addresses.CARD,
    card_text: str = addresses.CARD_IN_WORDS,
) -> str:
    """A page without scripts, below the calculator's folder. path: its folder, such as `m/gpt2/`. card: the picture of
    its preview below the calculator's folder. card_text: what that shows.
    """
    up = "../" * path.count("/")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="description" content="{escape(description)}">
<title>{escape(title)} · llmcalc</title>
{addresses.preview(urls, path, title, description, card, card_text)}
<link rel="icon" href="{up}icon.svg">
<link rel="stylesheet" href="{up}style.css">
</head>
<body>
<header>
  <a class="mark" href="{up or "./"}">llm<b>calc</b></a>
  <a class="docs" href="{up}m/">All models</a>
  {addresses.header_links(urls)}
</header>
{body}
</body>
</html>
"""


def index(urls: dict[str, str], pages: list[PresetPage]) -> str:
    """The list of all pages, the newest first."""
    newest = sorted(pages, key=lambda page: (page.preset.released, page.preset.name), reverse=True)
    rows = "\n".join(
        f'<tr><th scope="row"><a href="{escape(page.preset.name)}/">{escape(page.preset.display)}</a></th>'
        f"<td>{escape(page.preset.developer)}</td><td>{escape(page.preset.released)}</td>"
        f"<td>{units.exact_text(page.counts['total'])}</td></tr>"
        for page in newest
    )
    body = f"""<main class="sheet">
<h1>{len(pages)} language models</h1>
<p>Exact parameters of each, with FLOPs, KV cache and memory on its page.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Models">
<table>
<thead><tr><th scope="col">model</th><th scope="col">developer</th><th scope="col">released</th>
<th scope="col">parameters</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
</main>"""
    about = f"Exact parameters, FLOPs per token, KV cache and memory of {len(pages)} language models."
    return document(urls, "m/", "Language models, counted", about, body)


def files(urls: dict[str, str], pages: list[PresetPage]) -> dict[str, str]:
    """Path below the calculator's folder → text of each file: the pages, their pictures, the list and the site map."""
    texts = {"m/index.html": index(urls, pages)}
    for page in pages:
        texts[f"{page.path}index.html"] = page.html(urls)
        texts[f"{page.path}{PICTURE}"] = page.svg(urls)
    if "Homepage" in urls:
        texts["sitemap.xml"] = addresses.sitemap(urls, ["", "zh/", "m/", *(page.path for page in pages)])
    return texts
