"""`llmcalc web`: the page that runs llmcalc in a browser, from a checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from .output import print_line, print_remarks, remark

TYPES = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm", ".json": "application/json"}
"""Ending → type, where the operating system's own table may lack it: a browser runs no module of another type."""


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder to this machine's browser, in silence. A file that was rebuilt is never answered from a cache."""

    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, **TYPES}

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """A terminal is no place for a line per file."""


def command(
    port: Annotated[
        int, typer.Option("--port", metavar="N", help="Port to serve on; 0: any that is free.", min=0, max=65535)
    ] = 0,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="DIR",
            help="Write the page into a new folder, for any static server.",
            show_default=False,
        ),
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build the page anew, after a change.")] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """The page: the same counts in a browser.
    It is built from a checkout, with Node and npm, and served to this machine alone.
    """
    if export is not None and export.exists() and (not export.is_dir() or any(export.iterdir())):
        raise InputError(f"--export: {export}: is not empty; expected a new folder")
    page = _built(rebuild)
    if export is not None:
        shutil.copytree(page, export, dirs_exist_ok=True)
        remark(f"wrote {export}")
        return
    _serve(page, port, browser)


def checkout() -> Path:
    """The folder `web` of the checkout that this package is part of. Raises `InputError` in an installed package."""
    web = Path(__file__).resolve().parents[2] / "web"
    if not (web / "build.py").is_file():
        raise InputError(
            "the page is built from a checkout, and this llmcalc was installed without one; expected a checkout of "
            "its repository, with pip install -e . in it"
        )
    return web


def _built(rebuild: bool) -> Path:
    """The folder of the page, built first if it is not there. Raises `InputError` with what the build lacks."""
    web = checkout()
    page = web / "dist"
    if rebuild or not (page / "index.html").is_file():
        script = [sys.executable, str(web / "build.py")]
        done = subprocess.run(script, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            reason = done.stderr.strip().partition("error: ")[2] or done.stderr.strip().splitlines()[-1]
            raise InputError(f"the page is not built: {reason}")
        remark(done.stderr.strip().splitlines()[-1])
    elif _older(page, web):
        remark("note: the page is older than this checkout; --rebuild builds it anew")
    return page


def _older(page: Path, web: Path) -> bool:
    """Whether a source has changed since the page was built."""
    written = (page / "index.html").stat().st_ctime  # copies keep the time of their original as st_mtime
    kinds = (web.parent / "llmcalc", "*.py"), (web.parent / "presets", "*.toml"), (web / "src", "*")
    return any(path.stat().st_mtime > written for folder, kind in kinds for path in folder.rglob(kind))


def _serve(page: Path, port: int, browser: bool) -> None:
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory=str(page)))
    except OSError as error:
        raise InputError(f"--port {port}: {error.strerror}; expected a port that is free") from None
    address = f"http://127.0.0.1:{server.server_port}/"
    print_remarks()
    print_line(f"the page is at {address} (Ctrl+C ends it)")
    if browser:
        webbrowser.open(address)
    with server:
        server.serve_forever()
