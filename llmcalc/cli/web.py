"""`llmcalc web`: the page that runs llmcalc in a browser, from a checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import webbrowser
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from .output import print_line, print_remarks, remark

TYPES = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm", ".json": "application/json"}
"""Ending → type, where the operating system's own table may lack it: a browser runs no module of another type."""


POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self' https://huggingface.co; worker-src 'self'; base-uri 'none'; form-action 'none'"
)
"""The Content-Security-Policy of the page: its own files, WebAssembly for Pyodide, and configs from huggingface.co. The
page's `index.html` states it for any server; here it is a header as well, which the page's workers obey too.
"""

HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)
"""Names of this machine in a request's Host header. Another name is that of a site whose address was changed to this
machine's while a browser shows it (DNS rebinding), so that the site could read what is served here.
"""


class Handler(SimpleHTTPRequestHandler):
    """Serves the files of a folder to this machine's browser, in silence. It lists no folders and follows no links that
    lead out of the folder. A file that was rebuilt is never answered from a cache.
    """

    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, **TYPES}

    def send_head(self) -> Any:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not HOST.fullmatch(hosts[0].strip()):
            return self._refuse(HTTPStatus.FORBIDDEN, "expected localhost or 127.0.0.1 as the Host")
        try:
            file = self.translate_path(self.path)
            if "\0" in file:
                raise ValueError("a NUL in the path")
            if os.path.isdir(file):
                file = os.path.join(file, "index.html")
            inside = Path(os.path.realpath(file)).is_relative_to(os.path.realpath(self.directory))
            found = inside and os.path.isfile(file)
        except ValueError:  # a lone surrogate is one too
            return self._refuse(HTTPStatus.BAD_REQUEST, "expected the path of a file")
        return super().send_head() if found else self._refuse(HTTPStatus.NOT_FOUND, "no such file")

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self.send_error(status, reason)

    def list_directory(self, path: Any) -> None:
        return self._refuse(HTTPStatus.NOT_FOUND, "no such file")

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Content-Security-Policy", f"{POLICY}; frame-ancestors 'none'")
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
