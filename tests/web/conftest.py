"""The page that headless Chromium opens, which the first process of a run builds from this checkout."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmcalc.page_server import PageRequestHandler

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


KEEPER = """() => {
  const channel = new BroadcastChannel("workers"), kept = [];
  const start = (number) => {
    const one = kept[number] = { worker: new Worker("/worker.js", { type: "module" }), began: null };
    const began = (data) => { one.began = data; channel.postMessage({ number, data }); };
    one.worker.onerror = (event) => began({ broken: event.message });
    one.worker.onmessage = ({ data }) => {
      if (data.id === undefined) return began(data);
      const [page, id] = data.id;
      channel.postMessage({ number, page, data: { ...data, id } });
    };
    return one;
  };
  channel.onmessage = ({ data: { number, page, begins, ends, asks } }) => {
    const one = kept[number] ?? start(number);
    if (begins && one.began) channel.postMessage({ number, page, data: one.began });
    if (ends) { one.worker.terminate(); kept[number] = undefined; }
    if (asks) one.worker.postMessage({ ...asks, id: [page, asks.id] });
  };
}"""
"""Keeps workers, and passes on what other pages ask them through `BORROWED` and what they answer."""

BORROWED = """{
  const page = Math.random(), used = new Set(), channel = new BroadcastChannel("workers");
  window.Worker = class {
    constructor() {
      this.number = 0;
      while (used.has(this.number)) this.number += 1;
      used.add(this.number);
      this.listen = ({ data: { number, page: of, data } }) => {
        if (number === this.number && (of ?? page) === page) this.onmessage({ data });
      };
      channel.addEventListener("message", this.listen);
      channel.postMessage({ number: this.number, page, begins: true });
    }
    postMessage(asks) { channel.postMessage({ number: this.number, page, asks }); }
    terminate() {
      channel.removeEventListener("message", this.listen);
      used.delete(this.number);
      channel.postMessage({ number: this.number, page, ends: true });
    }
  };
}"""
"""A `Worker` that is one of those that `KEEPER` keeps."""

SAVES_DATA = 'Object.defineProperty(navigator, "connection", { value: { saveData: true } });'
"""A browser that saves data, in which panels out of view are not drawn: that would keep the shared Python busy."""


@pytest.fixture(scope="session")
def address(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the page is served: that of the folder `LLMCALC_PAGE`, or one that is built."""
    build = module(WEB / "build.py")
    try:
        build.needed()
    except build.Missing as missing:
        pytest.skip(str(missing))
    own = tmp_path_factory.getbasetemp()
    run = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own  # the folder of all processes of this run
    page = Path(os.environ.get("LLMCALC_PAGE", run / "page")).resolve()
    with (run / "page.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not page.is_dir():
            build.build(FIRST, page)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(PageRequestHandler, directory=str(page)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def shared(chromium: Any, address: str) -> Iterator[Any]:
    """A context with a page that keeps the workers, whose Python is ready, for all pages that are opened in it."""
    context = chromium.new_context()
    keeper = context.new_page()
    keeper.goto(address + "presets.json")  # of the same origin, without a Python of its own
    keeper.evaluate(KEEPER)
    yield context
    context.close()


@pytest.fixture
def visit(shared: Any, chromium: Any, address: str) -> Iterator[Open]:
    """Returns a function that opens the page and waits for live answers. An error in the console fails the test.

    media: as of `Page.emulate_media`. own: whether the page starts Python itself; false by default, where it asks one
    that is shared with other tests and ready, which saves most of the time.
    """
    opened, errors = [], []

    def go(
        link: str = "", width: int = 1280, *, live: bool = True, own: bool = False, allowed: str = "\0", **media: Any
    ) -> Any:
        page = (chromium if own else shared).new_page()
        opened.append(page)
        page.set_default_timeout(PATIENCE)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(**media)
        if not own:
            page.add_init_script(BORROWED)
            page.add_init_script(SAVES_DATA)
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" and allowed not in m.text else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address + link)
        if live:
            settled(page)
        return page

    yield go
    for page in opened:
        page.close()
    assert not errors


@pytest.fixture
def same(visit: Open) -> Callable[[list[Question]], None]:
    """Returns a function that asks the page's Python and this one questions of `bridge.py`, and compares the answers
    byte for byte. Both work at the same time.
    """

    def compare(questions: list[Question]) -> None:
        page = visit("presets.json", live=False, allowed="404")  # asks nothing itself; and has no icon
        page.evaluate(ASKED, questions)
        ours = [bridge().call(call, json.dumps(request)) for call, request in questions]
        theirs = page.evaluate("window.answers")
        for question, one, other in zip(questions, theirs, ours, strict=True):
            assert one == other, question

    return compare
