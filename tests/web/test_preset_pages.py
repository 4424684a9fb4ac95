"""The page of a preset, the project's addresses, and the preview cards: what search engines and chats read (2 s)."""

from __future__ import annotations

import io
import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image, ImageChops

import llmcalc
from llmcalc.reports.palette import COMPONENT_COLOURS
from llmcalc.sources.target import load

from .loading import WEB, bridge, module

URLS = {"Homepage": "https://example.org/page/", "Repository": "https://example.org/code?a=1&b=2"}


class Elements(HTMLParser):
    """Reads a page: `found` has (tag, attributes) of every element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def meta(self) -> dict[str | None, str | None]:
        """Name or property of each `meta` element → its content."""
        return {a.get("property") or a.get("name"): a.get("content") for tag, a in self.found if tag == "meta"}


@pytest.fixture(scope="module")
def pages() -> Any:
    """The module, and the pages of three presets: dense, a mixture of experts, and an encoder without a cache."""
    bridge()
    answers, addresses = module(WEB / "answers.py"), module(WEB / "addresses.py")
    assert addresses
    made = module(WEB / "preset_pages.py")
    names = ("llama3-8b", "mixtral-8x7b", "bert-base")
    of = {name: made.PresetPage(load(name), answers.of_preset(name)["first"], answers.DEFAULTS, True) for name in names}
    return made, of


def test_a_preset_whose_memory_is_not_modelled_has_a_page(pages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build of all pages ended with a traceback at the first such preset; today none is left."""
    made, _ = pages
    answers = module(WEB / "answers.py")

    def refuse(request: dict[str, Any]) -> Any:
        raise llmcalc.errors.InputError(f"memory of {request['model']} is not modelled")

    monkeypatch.setattr(answers.bridge, "memory", refuse)
    first = answers.of_preset("llama3-8b")["first"]
    page = made.PresetPage(load("llama3-8b"), first, answers.DEFAULTS, True)
    assert first["memory"] == {"error": "memory of llama3-8b is not modelled"}
    assert "Memory" not in page.figures()
    assert "llmcalc memory" not in page.html(URLS)
    assert page.figures()["Parameters"][0] == f"{llmcalc.params('llama3-8b').total:,}"


def test_a_page_says_what_the_command_line_says(pages: Any) -> None:
    _, of = pages
    for name, page in of.items():
        figures = page.figures()
        assert figures["Parameters"][0] == f"{llmcalc.params(name).total:,}"
        assert all(value in page.html(URLS) for value, _ in figures.values())
        assert f"{page.preset.display}: " in page.description()
    assert of["mixtral-8x7b"].figures()["Active per token"][0] == f"{llmcalc.params('mixtral-8x7b').active:,}"
    assert "Active per token" not in of["llama3-8b"].figures()
    assert "KV cache per token" not in of["bert-base"].figures()


def test_a_page_has_a_preview_and_runs_nothing(pages: Any) -> None:
    _, of = pages
    text = of["llama3-8b"].html(URLS)
    page = Elements(text)
    meta = page.meta()
    assert meta["og:url"] == "https://example.org/page/m/llama3-8b/"
    assert meta["og:image"] == meta["twitter:image"] == "https://example.org/page/m/llama3-8b/card.png"
    assert meta["og:image:type"] == "image/png"
    assert "8,030,261,248 parameters. Parameters of Llama 3 8B: feed-forward 70.2 %" in str(meta["og:image:alt"])
    assert meta["twitter:image:alt"] == meta["og:image:alt"]
    assert meta["twitter:card"] == "summary_large_image"
    assert meta["og:description"] == meta["description"] == meta["twitter:description"]
    assert "8,030,261,248" in str(meta["description"])
    links = {a.get("rel"): a.get("href") for tag, a in page.found if tag == "link"}
    assert links["canonical"] == "https://example.org/page/m/llama3-8b/"
    assert not any(tag in ("script", "style") or "style" in a for tag, a in page.found)
    assert not any(key.startswith("on") for _, a in page.found for key in a)
    assert ("a", {"href": "../../#m=llama3-8b"}) in page.found
    assert re.search(r"default-src 'none'[^\"]*style-src 'self'", text)


def test_a_picture_has_every_component_and_its_share(pages: Any) -> None:
    made, of = pages
    page = of["mixtral-8x7b"]
    root = ElementTree.fromstring(page.svg(URLS))
    name = "{http://www.w3.org/2000/svg}"
    bars = [float(box.get("width", 0)) for box in root.iter(f"{name}rect") if box.get("height") == "84"]
    assert sum(bars) == pytest.approx(made.WIDTH - 2 * made.MARGIN, abs=0.1)
    assert bars[0] / sum(bars) == pytest.approx(page.shares["experts"], abs=1e-3)
    drawn = ElementTree.fromstring(f"<div>{page.bar()}</div>")
    shares = [float(box.attrib["width"][:-1]) for box in drawn.findall("svg/rect")]
    assert shares == pytest.approx([100 * share for share in page.shares.values()], abs=1e-3)
    assert "".join(drawn.findall("ul/li")[0].itertext()) == f"experts {page.shares['experts']:.1%}".replace("%", " %")
    words = " ".join(text.text or "" for text in root.iter(f"{name}text"))
    assert "46,702,792,704 parameters" in words
    assert "example.org/page" in words


def test_names_are_text_and_no_markup(pages: Any) -> None:
    made, of = pages
    page = of["bert-base"]
    hostile = made.PresetPage(page.preset.model_copy(update={"title": '<b>"&'}), page.first, page.defaults)
    assert "<b>&quot;" not in hostile.html(URLS).replace("&lt;b&gt;", "")
    assert ElementTree.fromstring(hostile.svg(URLS)) is not None
    assert '<b>"&' not in hostile.html(URLS)


def test_the_list_and_the_site_map_name_every_page(pages: Any) -> None:
    made, of = pages
    files = made.files(URLS, list(of.values()))
    listed = [a["href"] for tag, a in Elements(files["m/index.html"]).found if tag == "a"]
    newest = sorted(of, key=lambda name: of[name].preset.released, reverse=True)
    assert [one for one in listed if one in {f"{name}/" for name in of}] == [f"{name}/" for name in newest]
    places = re.findall("<loc>(.*?)</loc>", files["sitemap.xml"])
    assert places[:3] == [f"https://example.org/page/{folder}" for folder in ("", "zh/", "m/")]
    assert set(places[3:]) == {f"https://example.org/page/m/{name}/" for name in of}
    assert {f"m/{name}/{file}" for name in of for file in ("index.html", "picture.svg")} <= set(files)
    assert "sitemap.xml" not in made.files({}, list(of.values()))


def test_the_models_of_the_list() -> None:
    bridge()
    models = module(WEB / "answers.py").models()
    assert len(models) == len(bridge().names({}))
    assert [one["released"] for one in models] == sorted((one["released"] for one in models), reverse=True)
    llama = next(one for one in models if one["name"] == "llama3-8b")
    assert llama == {
        "name": "llama3-8b",
        "title": "Llama 3 8B",
        "developer": "Meta",
        "released": "2024-04-18",
        "parameters": 8_030_261_248,
    }


def test_addresses_are_the_projects(tmp_path: Path) -> None:
    addresses = module(WEB / "addresses.py")
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nurls = { Documentation = "https://example.org/?a=1&b=2" }\n')
    urls = addresses.project_urls(project)
    assert addresses.header_links(urls) == '<a class="docs" href="https://example.org/?a=1&amp;b=2">Docs</a>'
    assert addresses.preview(urls, "", "title", "description") == ""
    project.write_text("[project]\n")
    assert addresses.header_links(addresses.project_urls(project)) == ""
    assert "a=1&amp;b=2" in addresses.header_links(URLS)
    assert 'content="&quot;"' in addresses.preview(URLS, "", '"', "description")


def test_the_calculator_has_a_preview() -> None:
    page = module(WEB / "build.py").with_addresses((WEB / "src" / "index.html").read_text(encoding="utf-8"))
    meta = Elements(page).meta()
    urls = module(WEB / "addresses.py").project_urls()
    assert meta["og:url"] == urls["Homepage"]
    assert meta["og:description"] == meta["description"]
    assert f'href="{urls["Repository"]}"' in page
    assert "<!-- links -->" not in page
    assert "<!-- preview -->" not in page


def test_a_page_without_a_card_of_its_own_has_the_calculators(pages: Any) -> None:
    made, of = pages
    page = of["llama3-8b"]
    text = made.PresetPage(page.preset, page.first, page.defaults).html(URLS)
    assert Elements(text).meta()["og:image"] == "https://example.org/page/card.png"


def test_cards_have_the_size_that_is_said(pages: Any) -> None:
    _, of = pages
    card = module(WEB / "card.py")
    for data in [(WEB / "src" / "card.png").read_bytes(), *(card.preset_card(page, "a.b") for page in of.values())]:
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", data[16:24]) == (1200, 630) == card.SIZE
        assert len(data) < 40_000


def test_a_card_shows_the_shares_of_the_components(pages: Any) -> None:
    """Along the middle of the bar, as many pixels as the share have the component's colour."""
    _, of = pages
    card = module(WEB / "card.py")
    page = of["mixtral-8x7b"]
    image = Image.open(io.BytesIO(card.preset_card(page, "a.b"))).convert("RGB")
    row = [image.getpixel((x, 317)) for x in range(card.MARGIN, card.SIZE[0] - card.MARGIN)]
    want = tuple(bytes.fromhex(COMPONENT_COLOURS["experts"][1:]))
    alike = sum(all(abs(a - b) < 12 for a, b in zip(pixel, want, strict=True)) for pixel in row)
    assert alike / len(row) == pytest.approx(page.shares["experts"], abs=2e-3)
    with_source = card.preset_card(of["llama3-8b"], "a.b")
    assert with_source != card.preset_card(of["llama3-8b"], "")


@pytest.mark.parametrize(
    ("text", "lines"), [("one, two", 1), (", ".join(["a phrase of a headline"] * 6), 2), ("x" * 400, 1)]
)
def test_a_headline_of_any_length_stays_inside(text: str, lines: int) -> None:
    card = module(WEB / "card.py")
    drawn = card.Card()
    drawn.lines(100, text, 23, 32, card.TEXT_COLOUR)
    left, top, right, bottom = ImageChops.difference(drawn.image, card.Card().image).getbbox()
    assert card.MARGIN - 2 <= left < right <= card.SIZE[0] - card.MARGIN + 2
    assert (bottom - top > 32) == (lines == 2)
