"""Serves the browser page to this machine only, from a checkout, or copies the page into a folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from .errors import InputError
from .workload.validation import validate_whole

CONTENT_TYPES = {
    ".mjs": "text/javascript",
    ".js": "text/javascript",
    ".wasm": "application/wasm",
    ".json": "application/json",
}
"""File suffix → MIME type, for types that the operating system's table may lack and a browser requires of modules."""


CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob:; "
    "font-src 'self'; connect-src 'self' https://huggingface.co; worker-src 'self'; base-uri 'none'; form-action 'none'"
)
"""The Content-Security-Policy of the page: its own files, WebAssembly for Pyodide, configs from huggingface.co, and
pictures that its own scripts have made (`blob:`), which it saves as PNG. The page's `index.html` states it for any
server; here it is a header as well, which the page's workers obey too.
"""

LOCAL_HOST_HEADER = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)
"""Names of this machine in a request's Host header. Any other name belongs to a site whose address was changed to this
machine's while a browser shows it (DNS rebinding), so that the site could read what is served here.
"""


class PageRequestHandler(SimpleHTTPRequestHandler):
    """Serves the files of a folder to this machine's browser, without a log.

    It lists no folders and follows no links that lead out of the folder. A file that was rebuilt is never answered from
    a cache.
    """

    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, **CONTENT_TYPES}

    def send_head(self) -> Any:
        host_headers = self.headers.get_all("Host", [])
        if len(host_headers) != 1 or not LOCAL_HOST_HEADER.fullmatch(host_headers[0].strip()):
            return self._refuse_request(HTTPStatus.FORBIDDEN, "expected localhost or 127.0.0.1 as the Host")
        try:
            file_path = self.translate_path(self.path)
            if "\0" in file_path:
                raise ValueError("a NUL in the path")
            if os.path.isdir(file_path):
                file_path = os.path.join(file_path, "index.html")
            is_inside_folder = Path(os.path.realpath(file_path)).is_relative_to(os.path.realpath(self.directory))
            is_file = is_inside_folder and os.path.isfile(file_path)
        except ValueError:  # a lone surrogate is one too
            return self._refuse_request(HTTPStatus.BAD_REQUEST, "expected the path of a file")
        return super().send_head() if is_file else self._refuse_request(HTTPStatus.NOT_FOUND, "no such file")

    def _refuse_request(self, http_status: HTTPStatus, refusal_text: str) -> None:
        self.send_error(http_status, refusal_text)

    def list_directory(self, path: Any) -> None:
        return self._refuse_request(HTTPStatus.NOT_FOUND, "no such file")

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Content-Security-Policy", f"{CONTENT_SECURITY_POLICY}; frame-ancestors 'none'")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Discards the log message of a request, because a line per file would flood the terminal."""


class _PageHTTPServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a browser that closes the connection before the end of the answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class PageServer:
    """The page's server on this machine. folder: the page's files. address: the URL for a browser."""

    def __init__(self, page_folder: Path, port: int = 0) -> None:
        """Binds the server to a port. port: 0 (default) for any free port. Raises `InputError` for a port in use."""
        validate_whole("--port", port, 0, 65535)
        self.folder = page_folder
        try:
            self._server = _PageHTTPServer(("127.0.0.1", port), partial(PageRequestHandler, directory=str(page_folder)))
        except OSError as error:
            raise InputError(f"--port {port}: {error.strerror}; expected a port that is free") from None
        self.address: str = f"http://127.0.0.1:{self._server.server_port}/"

    def __repr__(self) -> str:
        return f"<page at {self.address}>"

    def run(self) -> None:
        """Serves the page until the process is interrupted."""
        with self._server:
            self._server.serve_forever()

    def start(self) -> None:
        """Serves the page in a thread, until `close` or the end of the process."""
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stops the server that `start` has started."""
        self._server.shutdown()
        self._server.server_close()


def web_folder_of_checkout() -> Path:
    """Returns the folder `web` of this package's checkout. Raises `InputError` for an installed package."""
    web_folder = Path(__file__).resolve().parents[1] / "web"
    if not (web_folder / "build.py").is_file():
        raise InputError(
            "the page is built from a checkout, and this llmcalc was installed without one; expected a checkout of "
            "its repository, with pip install -e . in it"
        )
    return web_folder


def build_page(rebuild: bool = False) -> tuple[Path, str]:
    """Returns the page's folder, built if missing, and a remark on the build or an empty text.

    rebuild: whether to build it anew. Raises `InputError` with what the build lacks.
    """
    web_folder = web_folder_of_checkout()
    page_folder = web_folder / "dist"
    if rebuild or not (page_folder / "index.html").is_file():
        build_script = [sys.executable, str(web_folder / "build.py")]
        build_result = subprocess.run(build_script, stderr=subprocess.PIPE, text=True, check=False)
        if build_result.returncode:
            failure_reason = (
                build_result.stderr.strip().partition("error: ")[2] or build_result.stderr.strip().splitlines()[-1]
            )
            raise InputError(f"the page is not built: {failure_reason}")
        return page_folder, build_result.stderr.strip().splitlines()[-1]
    return page_folder, "note: the page is older than this checkout; --rebuild builds it anew" if _is_outdated(
        page_folder, web_folder
    ) else ""


def check_export(export_folder: Path) -> None:
    """Raises `InputError` for a folder that is not empty."""
    if export_folder.exists() and (not export_folder.is_dir() or any(export_folder.iterdir())):
        raise InputError(f"--export: {export_folder}: is not empty; expected a new folder")


def export_page(page_folder: Path, export_folder: Path) -> None:
    """Writes the page into a new folder, for any static server."""
    check_export(export_folder)
    shutil.copytree(page_folder, export_folder, dirs_exist_ok=True)


def _is_outdated(page_folder: Path, web_folder: Path) -> bool:
    """Whether a source file has changed since the page was built."""
    page_changed_at = (page_folder / "index.html").stat().st_ctime  # copies keep the time of their original as st_mtime
    checkout_folder = web_folder.parent
    file_patterns = (
        (checkout_folder / "llmcalc", "*.py"),
        (checkout_folder / "presets", "*.toml"),
        (web_folder / "src", "*"),
    )
    return any(
        source_path.stat().st_mtime > page_changed_at
        for source_folder, file_pattern in file_patterns
        for source_path in source_folder.rglob(file_pattern)
    )
