"""Hubs that send too much, too slowly, or not what they said: one line, within bounds of time and memory."""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.bounds import Bounded, bounded
from tests.sources.test_hub import COMMIT, FILES, TOTAL
from tests.sources.test_reader_bounds import refused

GIB = 2**30
SECONDS = 1
"""Most seconds of a download in the tests of slow servers."""


class Handler(BaseHTTPRequestHandler):
    """Answers by the name of the repository."""

    sent = 0

    def head(self, size: int | None, status: int = 200, **more: str) -> None:
        self.send_response(status)
        self.send_header("ETag", '"0123456789"')
        self.send_header("X-Repo-Commit", COMMIT)
        if size is not None:
            self.send_header("Content-Length", str(size))
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_HEAD(self) -> None:
        kind, name = self.path.split("/")[2], self.path.rpartition("/")[2]
        if kind in ("huge", "hugeindex") and name != "model.safetensors":
            self.head(5 * GIB)
        elif name == "model.safetensors" and kind == "hugeindex":
            self.head(0, 404, X_Error_Code="EntryNotFound")
        elif kind == "loop":
            self.head(0, 302, Location=self.path)
        elif kind == "local":
            self.head(0, 302, Location="file:///etc/passwd")
        elif kind == "slowhead":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            self.trickle(b"X-A: b\r\n")
        elif name not in FILES:
            self.head(0, 404, X_Error_Code="EntryNotFound")
        else:
            self.head(len(FILES[name]))

    def do_GET(self) -> None:
        kind, name = self.path.split("/")[2], self.path.rpartition("/")[2]
        if kind == "liar":
            self.head(5 * GIB)
            self.endless(b"{" + b" " * 2**16)
        elif kind == "bomb":
            body = gzip.compress(bytes(20_000_000))
            self.head(len(body), Content_Encoding="gzip")
            self.wfile.write(body)
        elif kind == "slow":
            self.head(len(FILES[name]))
            self.trickle(b" ")
        elif kind == "weights":
            self.head(5 * GIB)
            self.wfile.write(FILES[name])
            self.endless(bytes(2**16))
        elif kind == "long":
            self.head(10)
            self.wfile.write(struct.pack("<Q", 2**40) + b"{}")
        elif kind == "cut":
            self.head(100)
            self.wfile.write(struct.pack("<Q", 1000) + bytes(92))
        elif kind == "elsewhere":
            self.head(0, 302, Location=self.path.replace("elsewhere", "there"))
        elif kind in ("loop", "local"):
            self.head(0, 302, Location=self.path if kind == "loop" else "file:///etc/passwd")
        else:
            self.head(len(FILES[name]))
            self.wfile.write(FILES[name])

    def endless(self, part: bytes) -> None:
        try:
            while True:
                self.wfile.write(part)
                type(self).sent += len(part)
        except OSError:
            self.close_connection = True

    def trickle(self, part: bytes) -> None:
        try:
            for _ in range(600):
                self.wfile.write(part)
                time.sleep(0.2)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    Handler.sent = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "*",
    }
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("org/huge", "org/huge: config.json has 5,368,709,120 bytes; expected at most 5,000,000"),
        ("org/liar", "org/liar: config.json has more bytes than the hub said; expected at most 5,000,000"),
        ("org/bomb", "org/bomb: config.json has more bytes than the hub said"),
        ("org/loop", "config.json"),
        ("org/local", "org/local: "),
    ],
)
def test_a_config_that_is_none(target: str, message: str, env: dict[str, str]) -> None:
    refused(bounded("params", target, env=env), message)
    assert Handler.sent < 100_000_000


def test_a_config_that_is_elsewhere(env: dict[str, str]) -> None:
    result = bounded("params", "org/elsewhere", "--format", "json", env=env)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["params"]["total"] == TOTAL


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("org/long", "header length 1,099,511,627,776; expected at most 64,000,000 bytes in all headers"),
        ("org/cut", "the file ended in its header"),
        ("org/hugeindex", "model.safetensors.index.json has 5,368,709,120 bytes; expected at most 40,000,000"),
    ],
)
def test_weights_that_are_none(target: str, message: str, env: dict[str, str]) -> None:
    refused(bounded("check", target, "gpt2", env=env), message)


def test_a_hub_that_ignores_ranges(env: dict[str, str]) -> None:
    """The header is read, and nothing of the 5 GiB after it."""
    result: Bounded = bounded("check", "org/weights", "org/tiny", env=env)
    assert result.returncode == 0, result.stderr
    assert Handler.sent < 100_000_000


@pytest.mark.parametrize("target", ["org/slow", "org/slowhead"])
def test_a_hub_that_never_ends(target: str, env: dict[str, str]) -> None:
    code = (
        f"import sys; import llmcalc.sources.hub as hub; hub.CONFIG_SECONDS = {SECONDS}; "
        f"sys.argv = ['llmcalc', 'params', '{target}']; from llmcalc.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,  # of a machine with other work
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {target}: the hub did not send all of it within {SECONDS} s\n"
