"""Headless Chromium, and the page that it opens, which the first process of a run builds from this checkout."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from llmcalc.cli.web import Handler

from .loading import FIRST, PATIENCE, WEB, Open, bridge, module, settled

Question = tuple[str, dict[str, Any]]

ASKED = """questions => {
  const worker = new Worker("/worker.js", { type: "module" }), texts = [];
  window.answers = new Promise((resolve, reject) => {
    worker.onerror = (event) => reject(new Error(event.message));
    worker.onmessage = ({ data }) => {
      if (data.failed ?? data.broken) reject(new Error(data.failed ?? data.broken));
      if (data.text !== undefined && texts.push(data.text) === questions.length) resolve(texts);
    };
  });
  questions.forEach(([call, request], id) => worker.postMessage({ id, call, request }));
}"""
"""Asks the page's worker all questions, which it answers in their order; does not wait."""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install playwright")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("Chromium is missing: apt-get install chromium, or name one in CHROMIUM")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def address(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the page is served."""
    build = module(WEB / "build.py")
    try:
        build.needed()
    except build.Missing as missing:
        pytest.skip(str(missing))
    own = tmp_path_factory.getbasetemp()
    run = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own  # the folder of all processes of this run
    page = run / "page"
    with (run / "page.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not page.is_dir():
            build.build(FIRST, page)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(page)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


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


@pytest.fixture
def same(visit: Open) -> Callable[[list[Question]], None]:
    """Returns a function that asks the page's Python and this one questions of `bridge.py`, and compares the answers
    byte for byte. Both work at the same time.
    """

    def compare(questions: list[Question]) -> None:
        page = visit("presets.json", live=False, allowed="404")  # no Python of its own; and no icon
        page.evaluate(ASKED, questions)
        ours = [bridge().call(call, json.dumps(request)) for call, request in questions]
        theirs = page.evaluate("window.answers")
        for question, one, other in zip(questions, theirs, ours, strict=True):
            assert one == other, question

    return compare
