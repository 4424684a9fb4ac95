"""What the tests of the page share: the scripts `web/src/bridge.py` and `web/build.py`, which are outside of the
package, and how to wait for the browser.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"

Open = Callable[..., Any]
"""The fixture `visit`."""

FIRST = ["llama3-8b", "gemma3-27b", "deepseek-v3", "bert-base"]
"""Presets whose first answers are made; for a build of all there is no time."""

PATIENCE = 120_000
"""Milliseconds after which something did not happen; on a quiet machine with two cores Python is ready after 4 s."""


def module(path: Path) -> ModuleType:
    """The module of a file, loaded once, under the name that `import` would give it."""
    if path.stem not in sys.modules:
        spec = spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[path.stem] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[path.stem])
    return sys.modules[path.stem]


def bridge() -> ModuleType:
    return module(WEB / "src" / "bridge.py")


def answered(question: str) -> str:
    """The text that `bridge.py` answers to a question. question: JSON, [call, request]."""
    call, request = json.loads(question)
    return str(bridge().call(call, json.dumps(request)))


@contextmanager
def served(handler: Callable[..., Any]) -> Iterator[str]:
    """A server of this machine while the block runs: its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def until(page: Any, condition: str, value: Any = None) -> None:
    """Waits until a condition of JavaScript is true: an expression, or a function of `value`.

    Playwright's own `wait_for_function` evaluates text in the page, which the page's Content-Security-Policy forbids.
    """
    ends = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(condition, value):
        assert time.monotonic() < ends, condition
        page.wait_for_timeout(20)


def settled(page: Any) -> None:
    """Waits until the page has drawn all that was asked."""
    until(page, "window.llmcalc && window.llmcalc.settled")


def draw_all(page: Any) -> None:
    """Draws all panels, as for a print."""
    page.evaluate("() => { window.print = () => { window.printed = true; }; }")
    page.click("#print")
    until(page, "window.printed === true")


def resting_box(page: Any, element: Any) -> dict[str, float]:
    """The box of an element in the window, once no panel above it has moved it for a second."""
    ends, box = time.monotonic() + PATIENCE / 1000, None
    while time.monotonic() < ends:
        settled(page)
        element.scroll_into_view_if_needed()
        previous_box, box = box, element.bounding_box()
        if box == previous_box:
            return dict(box)
        page.wait_for_timeout(1000)
    raise AssertionError("the panels above the element never come to rest")


AXE = WEB / "node_modules" / "axe-core" / "axe.min.js"
"""axe-core, which the page's build fetches."""

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
"""Rules of axe-core: colour contrast, names of controls, order of headings, landmarks (WCAG 2.2 A and AA)."""


def inaccessible(page: Any, schemes: Sequence[str] = ("light", "dark")) -> dict[str, list[str]]:
    """What axe-core finds in a page: rule → elements that break it. In dark colours contrast alone is looked at, which
    is the same at another width or in another language.
    """
    page.evaluate(AXE.read_text())  # a script tag would be refused
    found: dict[str, list[str]] = {}
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        rules = RULES if scheme == "light" else ["color-contrast"]
        options = {"runOnly": rules, "resultTypes": ["violations"]}  # no selectors of what is fine: most of the time
        answer = page.evaluate("options => axe.run(document, options)", options)
        assert answer["passes"]
        for one in answer["violations"]:
            found[f"{one['id']}, {scheme}"] = [node["html"][:90] for node in one["nodes"]][:4]
    return found
