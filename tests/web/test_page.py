"""The page in headless Chromium: `pytest -m browser tests/web` (4 min, 1 min of them to build the page).

It needs Node and npm, `pip install 'llmcalc-arch[browser]'`, and Chromium: `apt-get install chromium`, or the path of
one in the environment variable CHROMIUM. Where one of them is missing, the tests say so and are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmcalc.cli.web import Handler
from llmcalc.sources.presets import model_names

from .loading import WEB, bridge, module
from .test_bridge import CONFIG

pytestmark = pytest.mark.browser

FIRST = ["llama3-8b", "gemma3-27b", "deepseek-v3", "bert-base"]
"""Presets whose first answers are made; for a build of all there is no time."""

SETTINGS = (
    {"ctx": 8192, "batch": 1, "weights": "bf16", "kv": "bf16"},
    {"ctx": 32768, "batch": 16, "weights": "q4_k_m", "kv": "fp8"},
    {"ctx": 1024, "batch": 2, "weights": "fp8", "kv": "int4"},
)

PATIENCE = 120_000
"""Milliseconds after which something did not happen; on a quiet machine with two cores Python is ready after 4 s."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install playwright")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("Chromium is missing: apt-get install chromium, or name one in CHROMIUM")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the page is served, built from this checkout."""
    build = module(WEB / "build.py")
    try:
        build.needed()
    except build.Missing as missing:
        pytest.skip(str(missing))
    page = build.build(FIRST, tmp_path_factory.mktemp("page") / "dist")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(page)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


Open = Callable[..., Any]


@pytest.fixture
def visit(chromium: Any, address: str) -> Iterator[Open]:
    """Returns a function that opens the page and waits for live answers. An error in the console fails the test."""
    contexts, errors = [], []

    def go(link: str = "", width: int = 1280, *, live: bool = True, allowed: str = "\0", **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" and allowed not in m.text else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address + link)
        if live:
            settled(page)
        return page

    yield go
    for context in contexts:
        context.close()
    assert not errors


def settled(page: Any) -> None:
    page.wait_for_function("window.llmcalc && window.llmcalc.settled")


def test_it_loads(visit: Open) -> None:
    page = visit()
    assert page.inner_text("#total") == "8,030,261,248"
    assert "equal to the published count" in page.inner_text("#hero")
    assert page.inner_text("#command").startswith("llmcalc memory llama3-8b --seq 8192 --batch 1 --dtype bf16")
    page.wait_for_selector("#formula .katex")
    for part in ("#architecture", "#treemap", "#kv", "#flops"):
        assert page.locator(f"{part} svg").count() == 1
    assert page.locator(".fits li").count() == 20
    print({"first": page.evaluate("llmcalc.first"), "ready": page.evaluate("llmcalc.times.ready")})


def test_first_numbers_do_not_wait_for_python(visit: Open, chromium: Any) -> None:
    page = visit(live=False)
    page.wait_for_selector("#total")
    assert not page.evaluate("window.llmcalc.live")
    assert page.inner_text("#total") == "8,030,261,248"


def test_answers_are_cpythons_byte_for_byte(visit: Open) -> None:
    page = visit()
    page.evaluate(
        """() => {
          window.asking = new Worker("worker.js", { type: "module" });
          window.textOf = (call, request) => new Promise((resolve, reject) => {
            window.asking.onmessage = ({ data }) => {
              if (data.text !== undefined) resolve(data.text);
              if (data.failed !== undefined) reject(new Error(data.failed));
            };
            window.asking.postMessage({ id: 1, call, request });
          });
        }"""
    )
    questions = [("answer", {"model": name, **setting}) for name in model_names()[::12] for setting in SETTINGS]
    questions += [("memory", {"model": name, **setting}) for name in FIRST for setting in SETTINGS]
    questions += [("explain", {"model": "deepseek-v3", "node": "self_attn", "ctx": 4096, "kv": "bf16"})]
    for call, request in questions:
        theirs = page.evaluate("([call, request]) => window.textOf(call, request)", [call, request])
        assert theirs == bridge().call(call, json.dumps(request)), (call, request)


def test_a_slider_changes_the_numbers(visit: Open) -> None:
    page = visit()
    before = page.inner_text("#cards")
    page.focus("#ctx")
    page.keyboard.press("ArrowRight")  # the keyboard alone
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('#controls output').value === '16,384 tokens'")
    settled(page)
    assert "--seq 16384" in page.inner_text("#command")
    assert page.inner_text("#cards") != before
    assert "ctx=16384" in page.url


def test_a_pasted_config_and_the_link_to_it(visit: Open, tmp_path: Path) -> None:
    page = visit()
    page.fill("#add", json.dumps(CONFIG))
    page.press("#add", "Enter")
    page.wait_for_selector("table")
    settled(page)
    expected = bridge().answer({"model": {"config": json.dumps(CONFIG)}, **bridge().DEFAULTS})["params"]["params"][
        "total"
    ]
    assert page.inner_text("#total") == f"{expected:,}"
    assert page.inner_text("h1") == "Pasted config"
    again = visit("#" + page.url.partition("#")[2])
    assert again.locator("tbody tr").count() == 2
    again.click("tbody tr:nth-child(2) button")
    assert again.inner_text("#total") == f"{expected:,}"


def test_a_wrong_name(visit: Open) -> None:
    page = visit()
    page.fill("#add", "lamma3-8b")
    page.press("#add", "Enter")
    page.wait_for_selector("#problem:not([hidden])")
    said = json.loads(bridge().call("find", json.dumps({"text": "lamma3-8b"})))["error"]
    assert page.inner_text("#problem") == said
    assert page.locator(".chip").count() == 1


def test_a_hub_id_is_fetched(visit: Open) -> None:
    page = visit()
    served = lambda route: route.fulfill(body=json.dumps(CONFIG), headers={"Access-Control-Allow-Origin": "*"})  # noqa: E731
    page.route("https://huggingface.co/some-lab/some-model/resolve/main/config.json", served)
    page.fill("#add", "some-lab/some-model")
    page.press("#add", "Enter")
    page.wait_for_selector("table")
    settled(page)
    assert page.inner_text("h1") == "some-lab/some-model"
    assert page.inner_text("#command").startswith("llmcalc memory some-lab/some-model ")
    assert "some-lab%2Fsome-model%40main" in page.url


def test_a_hub_id_that_is_not_there(visit: Open) -> None:
    page = visit(allowed="404")
    page.route(
        "https://huggingface.co/**",
        lambda route: route.fulfill(status=404, headers={"Access-Control-Allow-Origin": "*"}),
    )
    page.fill("#add", "some-lab/none")
    page.press("#add", "Enter")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem") == "some-lab/none: huggingface.co has no config.json there (404)"


def test_a_link_is_restored(visit: Open) -> None:
    page = visit("#m=gemma3-27b,bert-base&ctx=2048&b=4&w=q4_k_m&kv=fp8&node=lm_head")
    assert page.inner_text("h1").startswith("Gemma 3 27B")
    assert "--seq 2048 --batch 4 --quantize q4_k_m --kv-dtype fp8" in page.inner_text("#command")
    assert page.inner_text("#node") == "lm_head"
    assert page.locator("tbody tr").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("link", ["", "#m=gemma3-27b,deepseek-v3,bert-base&ctx=131072"])
def test_a_telephone_scrolls_only_downwards(visit: Open, link: str, scheme: str) -> None:
    page = visit(link, 390, color_scheme=scheme, reduced_motion="reduce")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("getComputedStyle(document.querySelector('.bar i')).transitionDuration") in ("0s", "")


def test_the_keyboard_reaches_a_formula(visit: Open) -> None:
    page = visit()
    page.wait_for_selector("#formula .katex")
    page.focus("#architecture [data-node='layers.0-31.mlp']")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#node').textContent === 'layers.0-31.mlp'")
    page.wait_for_function("document.querySelector('#formula').textContent.includes('176,160,768')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(visit: Open, scheme: str, width: int) -> None:
    """axe-core: colour contrast, names of controls, order of headings, landmarks (WCAG 2.2 A and AA)."""
    page = visit("#m=llama3-8b,deepseek-v3", width, color_scheme=scheme)
    page.add_script_tag(path=str(WEB / "node_modules" / "axe-core" / "axe.min.js"))
    rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    found = page.evaluate("rules => axe.run(document, rules)", rules)
    assert found["passes"]
    wrong = {one["id"]: [node["html"][:90] for node in one["nodes"]][:4] for one in found["violations"]}
    assert wrong == {}
