"""The documentation's site: it builds without a warning, and its links lead somewhere without a network (a minute).

It needs Zensical (`pip install -e '.[docs]'`), and is skipped where that is missing. The site's test command in
CONTRIBUTING.md runs what reads the built site.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import tomllib
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from llmcalc.cli.main import COMMANDS
from llmcalc.sources.presets import load_preset, model_names
from tests.web.loading import AXE, inaccessible

ROOT = Path(__file__).parent.parent
NEEDED = ("zensical", "mkdocstrings_handlers", "latex2mathml", "matplotlib")


class Page(HTMLParser):
    """What a page refers to, the anchors that it has, and where its switch of languages leads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.sources: list[str] = []
        self.switch: dict[str, set[str]] = {}
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if tag == "a" and "hreflang" in given:
            self.switch.setdefault(given["hreflang"], set()).add(given["href"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("script", "img") and "src" in given:
            self.sources.append(given["src"])
        elif tag == "link" and given.get("rel") == "stylesheet":
            self.sources.append(given["href"])
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}


@cache
def page_of(file: Path) -> Page:
    """The page that stands in a file of the site, which is read once."""
    return Page(file.read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} missing: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "docs/build.py", folder], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stdout + done.stderr, done.stdout + done.stderr
    return folder


@pytest.mark.browser
def test_links_lead_somewhere(site: Path) -> None:
    """Every link within the site has its file and, if it names one, its anchor."""
    pages = {file: page_of(file) for file in site.rglob("*.html") if file.name != "404.html"}
    assert len(pages) > 20
    broken = []
    for file, page in pages.items():
        for link in page.links + page.sources:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            found = target in pages and parts.fragment and unquote(parts.fragment) not in pages[target].anchors
            if not target.exists() or found:
                broken.append(f"{file.relative_to(site)}: {link}")
    assert not broken


@pytest.mark.browser
def test_every_page_links_to_the_repository(site: Path) -> None:
    pages = [file for file in site.rglob("*.html") if 'http-equiv="refresh"' not in file.read_text()]
    assert [file for file in pages if 'href="https://github.com/llmcalc/llmcalc"' not in file.read_text()] == []


@pytest.mark.browser
def test_language_models_have_a_page_of_every_command(site: Path) -> None:
    """`llms.txt` links to pages of Markdown in the site; the schema has the address that it names."""
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]
    links = re.findall(r"\]\(([^)]*)\)", (site / "llms.txt").read_text())
    assert all(link.startswith(address) and (site / link.removeprefix(address)).exists() for link in links)
    assert [Path(link).stem for link in links if link.endswith(".md")] == list(COMMANDS)
    memory = (site / "llms" / "memory.md").read_text()
    assert "--lora-rank" in memory
    assert "- `memory.peak_bytes` (bytes): " in memory
    assert (site / "description.schema.json").read_text() == (ROOT / "presets/description.schema.json").read_text()


@pytest.mark.browser
def test_pages_ask_no_other_site(site: Path) -> None:
    """Scripts, styles and pictures are those of the site."""
    for file in site.rglob("*.html"):
        assert not [one for one in page_of(file).sources if urlsplit(one).netloc], file


@pytest.mark.browser
def test_pages_have_a_policy_and_no_scripts_or_styles_of_their_own(site: Path) -> None:
    """The policy stands before whatever it is to hold for."""
    for file in site.rglob("*.html"):
        text = file.read_text()
        assert text.index('<meta http-equiv="Content-Security-Policy"') < text.index("<script"), file
        assert not re.search(r"<script>|<style\b|<[^>]*\s(style|on\w+)=\"", text), file


@pytest.mark.browser
def test_no_page_breaks_its_policy(site: Path, chromium: Any) -> None:
    """What the theme does still works: the search, the copy buttons, the switch of colours. axe-core finds nothing,
    where the page that counts was built (`python web/build.py` fetches it).
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    context, messages = chromium.new_context(), []
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.on("console", lambda message: messages.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: messages.append(str(error)))
    try:
        names = ["index.html", "guide.html", "proof.html", "reference/index.html", "handbook/shapes.html"]
        page.set_viewport_size({"width": 390, "height": 900})  # where tables and formulas scroll
        assert all((site / name).exists() for name in names)
        for name in [one for one in (*names, *(f"zh/{one}" for one in names)) if (site / one).exists()]:
            page.goto(f"{address}/{name}")
            page.wait_for_selector(".js body, body")
            assert page.evaluate("typeof __md_scope") == "object", name  # a script that stood in the page
        looked_at = ("handbook/flops.html", "handbook/parameters.html", "reference/python.html")
        for name in looked_at if AXE.exists() else ():
            page.goto(f"{address}/{name}")
            assert inaccessible(page) == {}, name
            assert page.locator(".formula .katex-display").count() == page.locator(".formula").count(), name
        assert not AXE.exists() or (site / "assets/katex/katex.min.js").exists()
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(f"{address}/families.html")
        cell = page.locator('td[data-align="right"], td[data-align="left"]').first
        assert cell.evaluate("cell => getComputedStyle(cell).textAlign === cell.dataset.align")
        page.keyboard.press("/")
        search = page.locator("input[placeholder], input[type=search], input[type=text]").first
        search.fill("pipeline")
        page.wait_for_selector("text=/[0-9]+ results/")
        assert search.evaluate("field => getComputedStyle(field).borderStyle") == "none"  # of the search's own style
        assert messages == []
        page.evaluate(
            "() => { const one = document.createElement('script'); one.textContent = 'window.ran = 1'; "
            "document.head.append(one); }"
        )
        assert page.evaluate("window.ran") is None
        assert len(messages) == 1
        assert "Content Security Policy" in messages[0]
    finally:
        context.close()
        server.shutdown()
        server.server_close()


@pytest.mark.browser
def test_search_engines_are_told_of_each_page_and_its_languages(site: Path) -> None:
    """A page has its own description, and its address in each language that it is in; no other page's."""
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]
    alternate = re.compile(r'<link rel="alternate " href="([^"]*)" hreflang="(\w+)">')
    expected = {"handbook/norms.html": ("en", "zh"), "proof.html": ("en",), "zh/guide.html": ("en", "zh")}
    for name, codes in expected.items():
        path = name.removeprefix("zh/")
        places = {code: f"{address}{'zh/' if code == 'zh' else ''}{path}" for code in codes}
        assert {code: link for link, code in alternate.findall((site / name).read_text())} == places
    described = re.compile(r'<meta name="description" content="([^"]*)">')
    found = {file: described.findall(file.read_text()) for file in site.rglob("*.html") if file.name != "404.html"}
    assert all(len(texts) == 1 for texts in found.values())
    own = [texts[0] for file, texts in found.items() if file.name != "index.html"]
    assert max(map(own.count, own)) == 1
    assert found[site / "handbook" / "norms.html"][0].startswith("A norm rescales each token")


@pytest.mark.browser
def test_every_folder_of_pages_has_a_first_page(site: Path) -> None:
    """An address that ends in a folder, such as /reference/, shows what is in it."""
    folders = {file.parent for file in site.rglob("*.html")}
    assert {site / "reference", site / "how-to", site / "zh" / "tutorials"} <= folders
    for folder in folders:
        links = page_of(folder / "index.html").links
        pages = {page.name for page in folder.glob("*.html")} - {"index.html", "404.html"}
        assert pages <= {link.partition("#")[0].rpartition("/")[2] for link in links}, folder


class Quiet(SimpleHTTPRequestHandler):
    """Any static server, without a line per file."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.browser
def test_the_switch_of_languages_leads_to_the_same_page(site: Path) -> None:
    """Or to the other language's home, from pages that it does not have."""
    folders = {"en": site, "zh": site / "zh"}
    same = 0
    for file in site.rglob("*.html"):
        own = folders["zh" if file.is_relative_to(folders["zh"]) else "en"]
        switch = page_of(file).switch
        assert switch.keys() == folders.keys(), file
        for language, links in switch.items():
            other = folders[language] / file.relative_to(own)
            if file.name != "404.html":
                expected = other if other.exists() else folders[language] / "index.html"
                assert {(file.parent / link).resolve() for link in links} == {expected}, (file, language)
                same += other.exists() and folders[language] != own
    assert same >= 40


@pytest.mark.browser
def test_the_search_of_chinese_pages_answers_in_chinese(site: Path) -> None:
    """The theme's script has the words of its dialog in English: it said "50 results" on Chinese pages."""
    words = tomllib.loads((ROOT / "docs/zh/search.toml").read_text())
    english, chinese = (next((site / place / "assets/javascripts").glob("bundle.*.js")) for place in (".", "zh"))
    for before, after in words.items():
        assert f'"{before}"' in english.read_text()
        assert f'"{before}"' not in chinese.read_text()
        assert f'"{after}"' in chinese.read_text()


@pytest.mark.browser
def test_a_drawing_scrolls_by_itself(site: Path) -> None:
    """On a narrow screen drawings were made smaller until their letters could not be read."""
    texts = [file.read_text() for file in site.rglob("*.html")]
    drawings = [drawing for text in texts for drawing in re.findall(r'.*<img [^>]*\.svg" />', text)]
    assert len(drawings) > 20
    assert [drawing for drawing in drawings if '<div class="drawing" tabindex="0"><img' not in drawing] == []


@pytest.mark.browser
def test_plots_of_chinese_pages_have_chinese_words(site: Path) -> None:
    """What is left in English are names of models, paths of nodes and symbols; every word of labels.toml is in some
    plot.
    """
    labels = tomllib.loads((ROOT / "docs/zh/labels.toml").read_text())
    names = {load_preset(name).title for name in model_names()}
    pictures = [file.read_text() for file in (site / "zh").rglob("*.svg")]
    written = [text for picture in pictures for text in re.findall(r"<text\b[^>]*>([^<]+)</text>", picture)]
    patterns = [re.escape(chinese).replace(r"\{\}", ".+?") for chinese in labels.values()]
    for pattern in patterns:
        assert any(re.fullmatch(pattern, text) for text in written), pattern
    plain = {text for text in written if re.search("[a-z]{3}", text) and not re.search("[\u4e00-\u9fff]", text)}
    assert {text for text in plain if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)+|lm_head", text)} <= names


def test_each_chinese_page_is_an_english_one_too() -> None:
    pages = sorted(page.relative_to(ROOT / "docs/zh") for page in (ROOT / "docs/zh").rglob("*.md"))
    assert len(pages) > 20
    assert [page for page in pages if not (ROOT / "docs" / page).exists()] == [Path("index.md")]


def test_the_chinese_page_about_links_has_the_same_fields() -> None:
    """The code and the numbers of each row; tests/web/test_links.py compares the English page with what is read."""
    english, chinese = ((ROOT / folder / "how-to/page-links.md").read_text() for folder in ("docs", "docs/zh"))
    rows = [
        [re.findall(r"`[^`]*`|\d+", row) for row in re.findall(r"^\| `.*", page, re.MULTILINE)]
        for page in (english, chinese)
    ]
    assert len(rows[0]) > 20
    assert rows[1] == rows[0]
    blocks = [re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE) for page in (english, chinese)]
    assert blocks[1] == blocks[0] != []


@pytest.mark.browser
def test_chinese_lines_do_not_end_in_a_space(site: Path) -> None:
    """A browser would show the end of a line as one."""
    for file in (site / "zh").rglob("*.html"):
        assert not re.search(r"[，。；：、\u4e00-\u9fff]\n *[\u4e00-\u9fff]", file.read_text()), file


@pytest.mark.browser
def test_no_page_shows_the_marks_of_its_source(site: Path) -> None:
    for file in site.rglob("*.html"):
        assert not re.search(r"(&lt;|<)!-- (value|output|plot)", file.read_text()), file


@pytest.mark.browser
def test_pages_say_where_they_are_published(site: Path) -> None:
    """At the address that pyproject.toml states; the page for what is not there is sent for every path below it."""
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]
    for name in ("guide.html", "zh/guide.html"):
        assert f'<link rel="canonical" href="{address}{name}">' in (site / name).read_text()
    sources = page_of(site / "404.html").sources
    assert sources
    assert [one for one in sources if not one.startswith(urlsplit(address).path)] == []


@pytest.mark.parametrize("language", ["", "zh"])
def test_every_page_is_in_the_navigation(language: str) -> None:
    """Except the pages of the reference, which are written when the site is built."""
    folder = ROOT / "docs" / language

    def leaves(entries: list[dict[str, object]]) -> list[str]:
        found: list[str] = []
        for entry in entries:
            for value in entry.values():
                found += leaves(value) if isinstance(value, list) else [str(value)]
        return found

    listed = leaves(tomllib.loads((folder / "zensical.toml").read_text())["project"]["nav"])
    pages = {str(one.relative_to(folder)) for one in folder.rglob("*.md")}
    own = {one for one in pages if language or not one.startswith("zh/")} - {"index.md"}
    assert own == {one for one in listed if one != "index.md" and not one.startswith("reference/")}
