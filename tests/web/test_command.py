"""`llmcalc web`: where the page is built, where it is not, and outside of a checkout (1 s; nothing is built here)."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import urllib.request
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmcalc import page_server

from .loading import WEB, bridge, module


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout's `web` whose page is built: three files stand for all."""
    made = tmp_path / "checkout" / "web"
    (made / "dist" / "pyodide").mkdir(parents=True)
    (made / "dist" / "index.html").write_text("<!doctype html>")
    (made / "dist" / "pyodide" / "pyodide.mjs").write_text("export {}")
    (made / "dist" / "pyodide" / "pyodide.asm.wasm").write_bytes(b"\0asm")
    monkeypatch.setattr(page_server, "web_folder_of_checkout", lambda: made)
    return made / "dist"


def test_export_writes_every_file(page: Path, run: Any, tmp_path: Path) -> None:
    out = tmp_path / "site"
    result = run("web", "--export", str(out))
    assert (result.code, result.out, result.err) == (0, "", f"wrote {out}\n")
    names = {path.relative_to(out) for path in out.rglob("*")}
    assert names == {path.relative_to(page) for path in page.rglob("*")}


def test_a_page_older_than_its_sources_is_said_to_be(page: Path, run: Any, tmp_path: Path) -> None:
    source = page.parent / "src" / "main.js"
    source.parent.mkdir()
    source.write_text("")
    os.utime(source, (2**32, 2**32))  # long after today
    result = run("web", "--export", str(tmp_path / "site"))
    assert result.err.startswith("note: the page is older than this checkout; --rebuild builds it anew\n")


def test_export_never_writes_over_anything(page: Path, run: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    for wanted in ("mine", "mine/thesis.tex"):
        result = run("web", "--export", str(tmp_path / wanted))
        assert result.code == 2
        assert "is not empty; expected a new folder" in result.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_the_server_has_the_types_that_browsers_require(page: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(page_server.PageRequestHandler, directory=str(page)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    types = {}
    for path in ("/", "/pyodide/pyodide.mjs", "/pyodide/pyodide.asm.wasm"):
        with urllib.request.urlopen(address + path) as answer:
            types[path] = answer.headers["Content-Type"]
    server.shutdown()
    server.server_close()
    assert types == {
        "/": "text/html",
        "/pyodide/pyodide.mjs": "text/javascript",
        "/pyodide/pyodide.asm.wasm": "application/wasm",
    }


def answers(page: Path, *requests: str) -> list[tuple[int, str]]:
    """The status and the text that the server answers to each request, sent as it stands."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(page_server.PageRequestHandler, directory=str(page)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = []
    for request in requests:
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as client:
            client.sendall(request.encode())
            text = b""
            while part := client.recv(65536):
                text += part
        head, _, body = text.decode(errors="replace").partition("\r\n\r\n")
        found.append((int(head.split()[1]) if head else 0, body))
    server.shutdown()
    server.server_close()
    return found


def get(path: str, host: str = "127.0.0.1:8000", method: str = "GET") -> str:
    return f"{method} {path} HTTP/1.0\r\nHost: {host}\r\n\r\n"


def test_only_names_of_this_machine_are_hosts(page: Path) -> None:
    """A site that points its own name at this machine would read what is served here (DNS rebinding)."""
    ours = ("127.0.0.1:8000", "localhost:8000", "localhost", "LOCALHOST:1", "[::1]:8000")
    others = (
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example:1",
        "",
        "127.0.0.1@e",
    )
    found = answers(page, *(get("/index.html", host) for host in (*ours, *others)))
    assert [status for status, _ in found] == [200] * len(ours) + [403] * len(others)
    assert all("<!doctype html>" not in body for _, body in found[len(ours) :])
    twice = "GET / HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    none = "GET / HTTP/1.0\r\n\r\n"
    heads = get("/index.html", "evil.example", "HEAD")
    assert [status for status, _ in answers(page, twice, none, heads)] == [403, 403, 403]


def test_folders_are_not_listed(page: Path) -> None:
    found = answers(page, get("/pyodide/"), get("/pyodide"), get("/pyodide/pyodide.mjs"), get("/"))
    assert [status for status, _ in found] == [404, 404, 200, 200]
    assert all("pyodide.mjs" not in body for _, body in found[:2])


def test_links_do_not_lead_out_of_the_page(page: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    for name in ("index.html", "key"):
        (secret / name).write_text("SECRET")
    (page / "folder").symlink_to(secret)
    (page / "file").symlink_to(secret / "key")
    (page / "inner").mkdir()
    (page / "inner" / "index.html").symlink_to(secret / "index.html")
    (page / "inside").symlink_to(page / "index.html")
    paths = ("/folder/key", "/folder/", "/file", "/inner/", "/../secret/key", "/%2e%2e/%2e%2e/secret/key", "/inside")
    found = answers(page, *(get(path) for path in paths))
    assert [status for status, _ in found] == [404, 404, 404, 404, 404, 404, 200]
    assert "SECRET" not in str(found)


def test_a_path_that_no_file_can_have_is_a_bad_request(page: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = ("/%00", "/index.html%00.js", "/pyodide%00/", "/%ed%a0%80", f"/{'a' * 5000}")
    assert [status for status, _ in answers(page, *(get(path) for path in paths))] == [400, 400, 400, 400, 404]
    assert "Traceback" not in capfd.readouterr().err


def test_a_closed_connection_is_no_error(page: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A browser closes it when it goes on to another page; another error of an answer is shown."""
    server = page_server.PageServer(page)
    try:
        for error, shown in ((BrokenPipeError(), ""), (ConnectionResetError(), ""), (KeyError("x"), "KeyError: 'x'")):
            try:
                raise error
            except (OSError, KeyError):
                server._server.handle_error(None, ("127.0.0.1", 1))
            err = capfd.readouterr().err
            assert shown in err
            assert bool(err) == bool(shown)
    finally:
        server._server.server_close()


def test_a_port_that_is_taken(page: Path, run: Any) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), page_server.PageRequestHandler) as taken:
        result = run("web", "--no-browser", "--port", str(taken.server_port))
    assert result.code == 2
    assert f"--port {taken.server_port}: Address already in use; expected a port that is free" in result.err


def test_outside_of_a_checkout(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page_server, "__file__", str(tmp_path / "site-packages/llmcalc/page_server.py"))
    result = run("web")
    assert result.code == 2
    assert result.err.startswith("error: the page is built from a checkout")


def test_a_build_without_node_says_so(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = tmp_path / "web"
    (made / "src").mkdir(parents=True)
    for name in ("build.py", "src/bridge.py"):
        (made / name).write_text((WEB / name).read_text())
    monkeypatch.setattr(page_server, "web_folder_of_checkout", lambda: made)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run("web", "--no-browser")
    assert result.code == 2
    assert "the page is not built: node is not installed; the page is built with Node 20 or later" in result.err
    assert not (made / "dist").exists()


def test_every_package_is_pinned_by_version_and_hash() -> None:
    import json

    lines = [line for line in (WEB / "requirements.txt").read_text().splitlines() if line and line[0] != "#"]
    assert lines
    assert all("==" in line and "--hash=sha256:" in line for line in lines)
    lock = json.loads((WEB / "package-lock.json").read_text())
    packages = {name: one for name, one in lock["packages"].items() if name}
    assert all("integrity" in one for one in packages.values())
    assert not any("resolved" in one for one in packages.values())  # whichever registry the builder has
    asked = json.loads((WEB / "package.json").read_text())["dependencies"]
    assert all(packages[f"node_modules/{name}"]["version"] == version for name, version in asked.items())


def test_the_boxes_of_an_architecture_have_formulas() -> None:
    leaf = {"params": 1}
    layer = {"name": "layers.0-1", "kind": "layer", "params": 3, "children": [{"name": "mlp", **leaf, "children": []}]}
    left_out = {"name": "mtp", "optional": "mtp", **leaf}
    tree = {"children": [{"name": "embed", **leaf}, layer, {"name": "buffer", "params": 0}, left_out]}
    bridge()  # which answers.py imports
    assert module(WEB / "answers.py").nodes_of(tree) == ["embed", "layers.0-1.mlp"]


def test_the_built_page_is_no_part_of_git() -> None:
    ignored = subprocess.run(
        ["git", "check-ignore", "web/dist/index.html", "web/node_modules/x", "web/wheels/x", "web/src/main.js"],
        cwd=WEB.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if ignored.returncode == 128:
        pytest.skip("not a git checkout")
    assert ignored.stdout.split() == ["web/dist/index.html", "web/node_modules/x", "web/wheels/x"]
