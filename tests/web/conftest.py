"""The page that headless Chromium opens, which the first process of a run builds from this checkout."""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from llmcalc.page_server import PageRequestHandler

from .loading import FIRST, PATIENCE, WEB, Open, answered, module, served, settled

Question = tuple[str, dict[str, Any]]

ASKED = """questions => {
  const python = window.python ??= new Worker("/worker.js", { type: "module" }), texts = [];
  window.answers = new Promise((resolve, reject) => {
    python.onerror = (event) => reject(new Error(event.message));
    python.onmessage = ({ data }) => {
      if (data.failed ?? data.broken) reject(new Error(data.failed ?? data.broken));
      if (data.text !== undefined) texts[data.id] = data.text;
      if (Object.keys(texts).length === questions.length) resolve(texts);
    };
  });
  questions.forEach(([call, request], id) => python.postMessage({ id, call, request }));
}"""
"""Asks the page's worker all questions, of which one that needs no archive overtakes others; does not wait."""


ASKS_THE_SERVER = """window.Worker = class {
  constructor() {
    this.last = Promise.resolve();
    setTimeout(() => this.onmessage?.({ data: { ready: true } }));
  }
  async postMessage({ id, call, request }) {
    const ask = () => fetch("/", { method: "POST", body: JSON.stringify([call, request]) });
    this.last = this.last.catch(() => {}).then(ask).then((found) => found.text());
    const data = await this.last.then((text) => ({ id, text, ms: 0 }), (error) => ({ id, failed: String(error) }));
    this.onmessage?.({ data });
  }
  terminate() { this.onmessage = null; }
};"""
"""A `Worker` that has no Python, and asks `AnsweringHandler` what `worker.js` asks the page's own, one question after
another.
"""

SAVES_DATA = 'Object.defineProperty(navigator, "connection", { value: { saveData: true } });'
"""A browser that saves data, in which panels out of view are not drawn: that would keep Python busy."""


class AnsweringHandler(PageRequestHandler):
    """Serves the page, whose files a context fetches once, and answers a question of `bridge.py` (POST)."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *request: Any, answer: Callable[[str], str], **options: Any) -> None:
        self.answer = answer  # before the request is read, which the class does when it is made
        super().__init__(*request, **options)

    def send_header(self, keyword: str, value: str) -> None:
        super().send_header(keyword, "max-age=3600" if keyword == "Cache-Control" else value)

    def do_POST(self) -> None:
        text = self.answer(self.rfile.read(int(self.headers["Content-Length"])).decode()).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class SharedAnswers:
    """Answers of `bridge.py`: each is computed once, by whichever process of the run is asked first."""

    def __init__(self, folder: Path, python: ProcessPoolExecutor) -> None:
        """folder: of this run, has a file for each answer. python: the process that answers for this one."""
        self._folder, self._python = folder, python

    def __call__(self, question: str) -> str:
        """The text of an answer. question: JSON, [call, request]."""
        with (self._folder / hashlib.sha256(question.encode()).hexdigest()).open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            if not text:
                text = self._python.submit(answered, question).result()
                file.write(text)
            return text


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
    (run / "answers").mkdir(exist_ok=True)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as python:
        answer = SharedAnswers(run / "answers", python)
        with served(partial(AnsweringHandler, directory=str(page), answer=answer)) as place:
            yield place


class Tab:
    """A page of Chromium, in which one test after another opens the page that counts: a new one takes twice as long."""

    def __init__(self, context: Any, *scripts: str) -> None:
        """context: a browser or a context. scripts: what runs before those of each document."""
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        for script in scripts:
            self.page.add_init_script(script)
        self.errors: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def clear(self) -> list[str]:
        """Leaves the document, and what a test has set. Returns the errors in the console."""
        self.page.unroute_all()
        self.page.goto("about:blank")
        errors, self.errors[:] = [*self.errors], []
        return errors


MEDIA = {"media": "screen", "color_scheme": "light", "reduced_motion": "no-preference"}
"""What `Page.emulate_media` is told where a test says nothing else."""


@pytest.fixture(scope="session")
def tabs(chromium: Any) -> Iterator[Callable[[bool], Tab]]:
    """Returns a function that opens a tab of the context that tests share, which asks CPython. saves_data: whether the
    browser does.
    """
    context = chromium.new_context()
    yield lambda saves_data: Tab(context, ASKS_THE_SERVER, *([SAVES_DATA] if saves_data else []))
    context.close()


@pytest.fixture(scope="session")
def idle_tabs() -> dict[bool, list[Tab]]:
    """Tabs that no test has, by whether the browser saves data."""
    return {True: [], False: []}


@pytest.fixture
def visit(tabs: Callable[[bool], Tab], idle_tabs: dict[bool, list[Tab]], chromium: Any, address: str) -> Iterator[Open]:
    """Returns a function that opens the page and waits for live answers. An error in the console fails the test.

    media: as of `Page.emulate_media`. own_python: whether the page starts Python itself, in its own context; false by
    default, where it asks CPython, which answers the same byte for byte (see `same`) in a fraction of the time. whole:
    whether it draws the panels out of view too when it rests, as where Python is its own. allowed: a text of
    errors in the console that do not fail the test.
    """
    opened: list[tuple[Tab, list[Tab] | None, str]] = []

    def go(
        link: str = "",
        width: int = 1280,
        *,
        live: bool = True,
        own_python: bool = False,
        whole: bool = False,
        allowed: str = "\0",
        **media: Any,
    ) -> Any:
        idle = None if own_python else idle_tabs[not whole]
        tab = Tab(chromium) if idle is None else idle.pop() if idle else tabs(not whole)
        opened.append((tab, idle, allowed))
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.page.emulate_media(**{**MEDIA, **media})
        tab.page.goto(address + link)
        if live:
            settled(tab.page)
        return tab.page

    yield go
    errors: list[str] = []
    for tab, idle, allowed in opened:
        errors += [error for error in tab.clear() if allowed not in error]
        if idle is None:
            tab.page.close()
        else:
            idle.append(tab)
    assert not errors


@pytest.fixture(scope="session")
def python_page(chromium: Any, address: str) -> Iterator[Any]:
    """A page whose worker, which takes seconds to start, answers the questions of all tests of this process."""
    page = chromium.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(f"{address}presets.json")  # which asks nothing itself
    yield page
    page.close()


@pytest.fixture
def same(python_page: Any) -> Callable[[list[Question]], None]:
    """Returns a function that asks the page's Python and this one questions of `bridge.py`, and compares the answers
    byte for byte. Both work at the same time.
    """

    def compare(questions: list[Question]) -> None:
        python_page.evaluate(ASKED, questions)
        ours = [answered(json.dumps(question)) for question in questions]
        theirs = python_page.evaluate("window.answers")
        for question, one, other in zip(questions, theirs, ours, strict=True):
            assert one == other, question

    return compare
