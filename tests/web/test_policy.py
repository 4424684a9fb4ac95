"""The page's Content-Security-Policy: it is there, the page keeps to it, and it refuses what it is for.

Each test that opens the page fails at an error in the console, and so at a violation; here all of the page is opened.
"""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest

from llmcalc import page_server

from .loading import WEB, Open, settled, until
from .test_bridge import CONFIG
from .test_hub import NAME, add, answer

START = (WEB / "src" / "index.html").read_text()

VIOLATIONS = """window.violations = [];
addEventListener("securitypolicyviolation", ({ effectiveDirective, blockedURI }) => {
  window.violations.push(`${effectiveDirective} ${blockedURI}`);
});"""


def test_the_page_and_the_server_state_the_same_policy() -> None:
    (stated,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', START)
    assert html.unescape(stated) == page_server.CONTENT_SECURITY_POLICY
    assert START.index("Content-Security-Policy") < min(START.index("<script"), START.index("<link"))
    hosts = set(re.findall(r"https?://[^\s;]+", stated))
    assert hosts == {"https://huggingface.co"}
    sources = "".join(file.read_text() for file in (WEB / "src").rglob("*.js"))
    assert set(re.findall(r"fetch\(.(https?://[^/`]+)", sources)) == hosts


def test_no_script_or_style_stands_in_the_page() -> None:
    assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", START) == []
    assert re.findall(r"<style|\s(?:style|on\w+)=", START) == []


@pytest.mark.browser
def test_all_of_the_page_keeps_to_it(visit: Open) -> None:
    """Its formulas, its panels further down, and a config of the hub. That a page with a Python of its own keeps to it,
    test_page.py finds, whose first visit fails at an error in the console too.
    """
    page = visit()
    page.wait_for_selector("#formula .katex")
    for name in ("training", "cluster", "shape", "presets"):
        page.locator(f"#{name}").scroll_into_view_if_needed()
        until(page, "name => document.getElementById(name).querySelector('svg, table, .bar, .error') !== null", name)
        assert page.locator(f"#{name} > .error").count() == 0
    asked = answer(page, body=json.dumps(CONFIG))
    add(page, NAME)
    until(page, "document.querySelectorAll('.chip').length === 2")
    settled(page)
    assert asked == [f"https://huggingface.co/{NAME}/resolve/main/config.json"]


INSERT = """(name, fields) => {
  const element = document.createElement(name);
  Object.assign(element, fields);
  document.head.append(element);
}"""

ELSEWHERE = "https://evil.example/"

ATTEMPTS = (
    (f"({INSERT})('script', {{ textContent: 'window.ran = 1' }})", "script-src-elem"),
    (f"({INSERT})('script', {{ src: '{ELSEWHERE}' }})", "script-src-elem"),
    (f"({INSERT})('base', {{ href: '{ELSEWHERE}' }})", "base-uri"),
    (f"({INSERT})('link', {{ rel: 'stylesheet', href: '{ELSEWHERE}' }})", "style-src-elem"),
    ("document.body.insertAdjacentHTML('beforeend', '<img src=. onerror=window.ran=1>')", "script-src-attr"),
    (f"void fetch('{ELSEWHERE}').catch(() => {{}})", "connect-src"),
    (f"new Image().src = '{ELSEWHERE}'", "img-src"),
)
"""What somebody may try in the page, with the directive that refuses it."""


@pytest.mark.browser
def test_what_is_no_part_of_the_page_is_refused(visit: Open) -> None:
    page: Any = visit(live=False, allowed="")  # the console says so
    page.evaluate(VIOLATIONS)
    for attempt, directive in ATTEMPTS:
        page.evaluate(f"() => {{ window.violations.length = 0; {attempt}; }}")
        until(page, "directive => window.violations.some((one) => one.startsWith(directive))", directive)
        assert page.evaluate("window.ran") is None, attempt
