"""The project's addresses on the page: links in the header, and what a search engine or a chat shows of a link to it.

All of them come from `[project.urls]` of `pyproject.toml`; where the project states none, nothing is written.
"""

from __future__ import annotations

import html
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"

CARD = "card.png"
"""The picture of a preview card, 1200 × 630 pixels; chats and search engines show no SVG."""


def project_urls(project: Path = PROJECT) -> dict[str, str]:
    """Name → address of `[project.urls]`; empty where the project states none."""
    urls: dict[str, str] = tomllib.loads(project.read_text(encoding="utf-8"))["project"].get("urls", {})
    return urls


def name_of(urls: dict[str, str]) -> str:
    """The page's address as people write it, `llmcalc.github.io/llmcalc/page`; empty without one."""
    return urls.get("Homepage", "").removeprefix("https://").rstrip("/")


def header_links(urls: dict[str, str], table: dict[str, str] | None = None) -> str:
    """HTML: links to the documentation's site and to the repository, as far as there are addresses.

    table: English → the texts in another language; default none.
    """
    names = {"Documentation": "Docs", "Repository": "Source"}
    named = [(name, (table or {}).get(text, text)) for name, text in names.items()]
    return "\n  ".join(
        f'<a class="docs" href="{html.escape(urls[name])}">{text}</a>' for name, text in named if name in urls
    )


CARD_IN_WORDS = "llmcalc: exact parameters, FLOPs, bytes and time of language models"


def preview(
    urls: dict[str, str], path: str, title: str, description: str, card: str = CARD, in_words: str = CARD_IN_WORDS
) -> str:
    """HTML: the canonical address of a page, and its preview card (Open Graph, https://ogp.me, and Twitter's).

    path: of the page below the `Homepage`. card: of its picture there. in_words: what the picture shows. Empty without
    that address.
    """
    if "Homepage" not in urls:
        return ""
    home = urls["Homepage"].rstrip("/") + "/"
    properties = {
        "og:type": "website",
        "og:site_name": "llmcalc",
        "og:url": home + path,
        "og:title": title,
        "og:description": description,
        "og:image": home + card,
        "og:image:type": "image/png",
        "og:image:width": "1200",
        "og:image:height": "630",
        "og:image:alt": in_words,
    }
    names = {
        "twitter:card": "summary_large_image",
        "twitter:title": title,
        "twitter:description": description,
        "twitter:image": home + card,
        "twitter:image:alt": in_words,
    }
    lines = [f'<link rel="canonical" href="{html.escape(home + path)}">']
    lines += [f'<meta property="{key}" content="{html.escape(value)}">' for key, value in properties.items()]
    lines += [f'<meta name="{key}" content="{html.escape(value)}">' for key, value in names.items()]
    return "\n".join(lines)


def alternates(urls: dict[str, str], folders: dict[str, str]) -> str:
    """HTML: the addresses of a page in its languages. folders: language → its folder below the `Homepage`."""
    if "Homepage" not in urls:
        return ""
    home = urls["Homepage"].rstrip("/") + "/"
    return "\n".join(
        f'<link rel="alternate" hreflang="{language}" href="{html.escape(home + folder)}">'
        for language, folder in folders.items()
    )


def sitemap(urls: dict[str, str], paths: list[str]) -> str:
    """The site map of these pages, paths below the `Homepage` (https://www.sitemaps.org/protocol.html)."""
    home = urls["Homepage"].rstrip("/") + "/"
    places = "".join(f"<url><loc>{html.escape(home + path)}</loc></url>\n" for path in paths)
    name = "http://www.sitemaps.org/schemas/sitemap/0.9"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{name}">\n{places}</urlset>\n'
