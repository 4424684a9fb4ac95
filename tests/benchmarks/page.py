"""Measures the page in headless Chromium: what is transferred and how long it takes until there are numbers.

It needs what the marked tests in `tests/web/test_page.py` need, and a page that `python web/build.py` has built.
"""

from __future__ import annotations

import gzip
import os
import shutil
import statistics
import threading
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from llmcalc.page_server import PageRequestHandler
from tests.web.loading import settled, until

from .timing import line

DIST = Path(__file__).resolve().parents[2] / "web" / "dist"
RUNS = 3

SLIDER = """async () => {
  const input = document.getElementById("ctx"), { answers } = window.llmcalc.times, found = [];
  for (const value of [0, 1, 2, 4, 5, 6]) {
    const before = answers.length, start = performance.now();
    input.value = value;
    input.dispatchEvent(new Event("input"));
    while (answers.length === before) await new Promise((resolve) => setTimeout(resolve, 1));
    await new Promise((resolve) => requestAnimationFrame(resolve));
    found.push(performance.now() - start);
  }
  return found;
}"""


def processor_seconds() -> float:
    """Time of the processors that the browser has taken: of all processes below this one, from Linux's /proc (proc(5)).
    Other work of the machine does not show in it.
    """
    times, parents = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = entry.read_text().rpartition(") ")
        except OSError:  # it has ended
            continue
        pid, words = int(name.split()[0]), fields.split()
        parents[pid], times[pid] = int(words[1]), sum(map(int, words[11:15]))

    def below(pid: int) -> bool:
        return pid in parents and (parents[pid] == os.getpid() or below(parents[pid]))

    return sum(ticks for pid, ticks in times.items() if below(pid)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Prints the medians of several visits without a cache; the machine's other work shows in every one of them, but
    not in the time of the processors.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("page: not measured; Playwright is missing: pip install playwright")
        return
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None or not (DIST / "index.html").is_file():
        print("page: not measured; expected Chromium (apt-get install chromium) and a page (python web/build.py)")
        return
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(PageRequestHandler, directory=str(DIST)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    first, ready, slider, worked, moved = [], [], [], [], []
    downloaded: set[str] = set()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(RUNS):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            requested: list[str] = []

            def note_request(request: Any, requested: list[str] = requested) -> None:
                requested.append(request.url)

            page.on("request", note_request)
            before = processor_seconds()
            page.goto(f"{address}/")
            until(page, "window.llmcalc && window.llmcalc.live")
            downloaded |= {
                url.removeprefix(f"{address}/") or "index.html" for url in requested
            }  # later ones wait for it
            settled(page)
            worked.append(processor_seconds() - before)
            first.append(page.evaluate("window.llmcalc.first"))
            ready.append(page.evaluate("window.llmcalc.times.ready"))
            before = processor_seconds()
            steps = page.evaluate(SLIDER)
            moved.append((processor_seconds() - before) / len(steps))
            slider += steps
            page.close()
        browser.close()
    server.shutdown()
    server.server_close()
    files = [DIST / name for name in downloaded if (DIST / name).is_file() and name != "later.pack"]
    transfer = sum(min(one.stat().st_size, len(gzip.compress(one.read_bytes()))) for one in files)
    whole = sum(one.stat().st_size for one in DIST.rglob("*") if one.is_file())
    print(f"page: in headless Chromium (median of {RUNS} visits)")
    line("first numbers on screen", f"{statistics.median(first):.0f} ms", "≤ 500 ms")
    line("Python ready", f"{statistics.median(ready) / 1000:.1f} s", "≤ 5 s")
    line("slider, until it is drawn", f"{statistics.median(slider):.0f} ms", "≤ 50 ms")
    line("all that is drawn first, time of the processors", f"{statistics.median(worked):.1f} s", "")
    line("a step of the slider, time of the processors", f"{1000 * statistics.median(moved):.0f} ms", "")
    line("transfer before the first live answer, gzip", f"{transfer / 1e6:.2f} MB", "≤ 10 MB")
    line("the whole folder", f"{whole / 1e6:.1f} MB")
