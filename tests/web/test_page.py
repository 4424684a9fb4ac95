"""The page in headless Chromium: `pytest -m browser tests/web` (4 min, 1 min of them to build the page).

It needs Node and npm, `pip install 'llmcalc-arch[browser]'`, and Chromium: `apt-get install chromium`, or the path of
one in the environment variable CHROMIUM. Where one of them is missing, the tests say so and are skipped.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from .loading import WEB, Open, bridge, draw_all, inaccessible, module, settled, until
from .test_bridge import CONFIG
from .test_memory_panels import SMALL

pytestmark = pytest.mark.browser


def test_a_first_visit(visit: Open, address: str) -> None:
    """The first numbers do not wait for Python. Up to the first answer of the page's own Python, at most 10 megabytes
    are transferred, compressed as servers send them. What is out of view is fetched when the page rests.
    """
    page = visit(live=False, own_python=True)
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.wait_for_selector("#total")
    assert not page.evaluate("window.llmcalc.live")
    assert page.inner_text("#total") == "8,030,261,248"
    until(page, "window.llmcalc && window.llmcalc.live")
    urls = page.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
    late = {
        f"{address}{name}" for name in ("panels/training.js", "panels/cluster.js", "panels/shape.js", "shapes.pack")
    }
    assert late.isdisjoint([*urls, *fetched])
    names = ("app.pack", *(f"pyodide/{file}" for file in module(WEB / "build.py").RUNTIME))
    urls += [address, *(f"{address}{name}" for name in names)]
    contents = [urlopen(url).read() for url in {url for url in urls if url.startswith(address)}]
    sizes = [min(len(content), len(gzip.compress(content))) for content in contents]
    assert len(sizes) > 20
    assert sum(sizes) < 10_000_000
    settled(page)
    assert page.inner_text("#total") == "8,030,261,248"
    assert "equal to the published count" in page.inner_text("#hero")
    assert page.inner_text("#command").startswith("llmcalc memory llama3-8b --seq 8192 --batch 1 --dtype bf16")
    page.wait_for_selector("#formula .katex")
    for part in ("#architecture", "#treemap", "#kv", "#flops"):
        assert page.locator(f"{part} svg").count() == 1
    assert page.locator("#memory .fits li").count() == 20
    until(page, "window.llmcalc.whole")
    assert late.issubset(fetched)
    assert page.evaluate("window.scrollY") == 0
    empty = "[...document.querySelectorAll('article > div[id]')].filter((place) => !place.innerText.trim()).length"
    assert page.evaluate(empty) == 0
    assert page.locator("#training .said").count() == 1
    assert page.locator("#cluster .ranks li").count() == 4


def test_a_slider_changes_the_numbers(visit: Open) -> None:
    page = visit()
    before = page.inner_text("#cards")
    page.focus("#ctx")
    page.keyboard.press("ArrowRight")  # the keyboard alone
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('#controls output').value === '16,384 tokens'")
    settled(page)
    assert "--seq 16384" in page.inner_text("#command")
    assert page.inner_text("#cards") != before
    assert "ctx=16384" in page.url


def test_a_pasted_config_and_the_link_to_it(visit: Open, tmp_path: Path) -> None:
    page = visit()
    page.fill("#add", json.dumps(CONFIG))
    page.press("#add", "Enter")
    page.wait_for_selector("#cards table")
    settled(page)
    expected = bridge().answer({"model": {"config": json.dumps(CONFIG)}, **bridge().DEFAULTS})["params"]["params"][
        "total"
    ]
    assert page.inner_text("#total") == f"{expected:,}"
    assert page.inner_text("h1") == "Pasted config"
    again = visit("#" + page.url.partition("#")[2])
    assert again.locator("#cards tbody tr").count() == 2
    again.click("#cards tbody tr:nth-child(2) button")
    assert again.inner_text("#total") == f"{expected:,}"


def test_a_wrong_name(visit: Open) -> None:
    page = visit()
    page.fill("#add", "lamma3-8b")
    page.press("#add", "Enter")
    page.wait_for_selector("#problem:not([hidden])")
    said = json.loads(bridge().call("find", json.dumps({"text": "lamma3-8b"})))["error"]
    assert page.inner_text("#problem") == said
    assert page.locator(".chip").count() == 1


def test_a_link_to_a_model_that_there_is_not_shows_the_error_alone(visit: Open) -> None:
    page = visit("#m=nosuch-8b", whole=True)
    until(page, "window.llmcalc.whole")
    assert "nosuch-8b" in page.inner_text("#hero .error")
    assert not page.locator(".lead:visible, .grid:visible").count()


def test_a_link_is_restored(visit: Open) -> None:
    page = visit("#m=gemma3-27b,bert-base&ctx=2048&b=4&w=q4_k_m&kv=fp8&node=lm_head")
    assert page.inner_text("h1").startswith("Gemma 3 27B")
    assert "--seq 2048 --batch 4 --quantize q4_k_m --kv-dtype fp8" in page.inner_text("#command")
    assert page.inner_text("#node") == "lm_head"
    assert page.locator("#cards tbody tr").count() == 2


def test_a_link_says_which_model_is_looked_at(visit: Open) -> None:
    page = visit("#m=gpt2,mixtral-8x7b&on=2&node=layers.mlp")
    assert page.inner_text("h1").startswith("Mixtral 8x7B")
    page.locator(".chip button").first.click()
    until(page, "document.querySelector('h1').textContent.startsWith('GPT-2')")
    assert "on=" not in page.url


@pytest.mark.parametrize("link", ["#m=~abc", "#m=llama3-8b&node=layers.3-60.mlp"])
def test_what_a_link_cannot_mean_is_left_out(visit: Open, link: str) -> None:
    page = visit(link)
    assert page.inner_text("h1").startswith("Llama 3 8B")
    assert page.inner_text("#problem").startswith("This link is damaged") == ("~" in link)
    assert page.inner_text("#node").endswith("self_attn")


@pytest.mark.parametrize("link", ["", "#m=gemma3-27b,deepseek-v3,bert-base&ctx=131072"])
def test_a_telephone_scrolls_only_downwards(visit: Open, link: str) -> None:
    page = visit(link, 390, reduced_motion="reduce")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate("getComputedStyle(document.querySelector('.bar i')).transitionDuration") in ("0s", "")


def test_the_keyboard_reaches_a_formula(visit: Open) -> None:
    page = visit()
    page.wait_for_selector("#formula .katex")
    page.focus("#architecture [data-node='layers.0-31.mlp']")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#node').textContent === 'layers.0-31.mlp'")
    until(page, "document.querySelector('#formula').textContent.includes('176,160,768')")


@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_in_any_panel(visit: Open, width: int) -> None:
    """With every panel drawn, every table open, and a plan; and only downwards it scrolls."""
    page = visit(f"#m={quote(SMALL)},deepseek-v3&r.seq=256&p.devices=8&p.global_batch=16", width)
    draw_all(page)
    page.click("text=Find layouts that fit")
    page.wait_for_selector("#cluster .plan")
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    for panel in ("serve .plan", "cost .figures", "training .fits", "cluster .ranks", "shape tbody", "presets .own"):
        assert page.locator(f"#{panel}").first.is_visible(), panel
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert inaccessible(page, ["light", "dark"] if width == 1280 else ["light"]) == {}
