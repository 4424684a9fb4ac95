"""Hub ids, against a local stand-in for the hub: the requests, the cache, and the messages for failures."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from tests.bounds import bounded

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "tie_word_embeddings": True,
}
TOTAL = 96 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 48 + 2 * 32) + 32
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _safetensors() -> bytes:
    shapes = {"model.embed_tokens.weight": (96, 32), "model.norm.weight": (32,)}
    for i in range(2):
        shapes |= {f"model.layers.{i}.self_attn.{p}_proj.weight": (32, 32) for p in "qkvo"}
        shapes |= {f"model.layers.{i}.mlp.{p}_proj.weight": (48, 32) for p in ("gate", "up")}
        shapes |= {f"model.layers.{i}.mlp.down_proj.weight": (32, 48)}
        shapes |= {f"model.layers.{i}.{p}_layernorm.weight": (32,) for p in ("input", "post_attention")}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


FILES = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": _safetensors()}


MODELOPT = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
NARROW = {**FILES, "hf_quant_config.json": json.dumps(MODELOPT).encode()}


class Hub(NamedTuple):
    url: str
    asked: list[tuple[str, str, str | None]]


class Handler(BaseHTTPRequestHandler):
    asked: list[tuple[str, str, str | None]] = []

    def _answer(self, body: bool) -> None:
        self.asked.append((self.command, self.path, self.headers.get("Range")))
        parts = self.path.split("?")[0].strip("/").split("/")
        repo, error = "/".join(parts[:2]), ""
        if repo == "org/gated":
            error = "GatedRepo"
        elif repo not in ("org/tiny", "org/bare", "org/narrow"):
            error = "RepoNotFound"
        files = {"org/tiny": FILES, "org/narrow": NARROW}.get(repo, {})
        data = None if error else files.get(parts[-1])
        if data is None:
            self.send_response(403 if error == "GatedRepo" else 404)
            self.send_header("X-Error-Code", error or "EntryNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = self.headers.get("Range")
        start, end = 0, len(data)
        if asked and body:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(len(data), int(last) + 1 if last else len(data))
        self.send_response(206 if asked and body else 200)
        self.send_header("ETag", f'"{len(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(end - start))
        if asked and body:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.end_headers()
        if body:
            self.wfile.write(data[start:end])

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    Handler.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Hub(f"http://127.0.0.1:{server.server_port}", Handler.asked)
    server.shutdown()
    server.server_close()


def llmcalc(hub: Hub, home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "*",
        **env,
    }
    with mock.patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("HF_")]:
            del os.environ[name]
        return bounded(*args, env=settings)


def test_a_config_is_fetched_cached_and_counted(hub: Hub, tmp_path: Path) -> None:
    first = llmcalc(hub, tmp_path, "params", "org/tiny", "--format", "json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["params"]["total"] == TOTAL
    assert json.loads(first.stdout)["model"]["name"] == "org/tiny"
    assert {path.split("/")[-1] for _, path, _ in hub.asked} == {"config.json", "hf_quant_config.json"}
    asked = len(hub.asked)
    for again in (["--offline"], []):
        cached = llmcalc(
            hub,
            tmp_path,
            "params",
            "org/tiny",
            "--format",
            "json",
            *again,
            **({} if again else {"HF_HUB_OFFLINE": "1"}),
        )
        assert cached.stdout == first.stdout, cached.stderr
    assert len(hub.asked) == asked


def test_a_config_of_modelopt_comes_with_its_quantization(hub: Hub, tmp_path: Path) -> None:
    """Matrices of the layers take a byte each; the embedding, which is the head, stays as it is."""
    weights = []
    for repo in ("org/tiny", "org/narrow"):
        answer = llmcalc(hub, tmp_path, "memory", repo, "--seq", "8", "--format", "json")
        assert answer.returncode == 0, answer.stderr
        assert ("taken from hf_quant_config.json" in answer.stderr) == (repo == "org/narrow")
        weights.append(json.loads(answer.stdout)["memory"]["by_kind"]["weights"])
    assert weights[0] - weights[1] > 2 * (4 * 32 * 32 + 3 * 32 * 48) - 1024


def test_files_beside_a_config_that_another_program_cached_are_fetched(hub: Hub, tmp_path: Path) -> None:
    """transformers caches the `config.json` alone; what the hub does not have is asked for once."""
    memory = ("memory", "org/narrow", "--seq", "8", "--format", "json")
    first = llmcalc(hub, tmp_path, *memory)
    for path in tmp_path.rglob("hf_quant_config.json"):
        path.unlink()
    offline = llmcalc(hub, tmp_path, *memory, HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    assert offline.stdout != first.stdout
    assert llmcalc(hub, tmp_path, *memory).stdout == first.stdout
    asked = []
    for _ in range(2):
        assert llmcalc(hub, tmp_path, "params", "org/tiny").returncode == 0
        asked.append([path for _, path, _ in hub.asked if path.endswith("/org/tiny/resolve/main/hf_quant_config.json")])
    assert asked[0]
    assert asked[0] == asked[1]


def _cache_config(home: Path, repository: str) -> None:
    """Writes a config alone into the cache, as transformers has it after a download."""
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    for path, text in ((f"snapshots/{COMMIT}/config.json", json.dumps(CONFIG)), ("refs/main", COMMIT)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.mark.parametrize("repository", ["org/gated", "org/nowhere"])
def test_a_cached_config_is_counted_without_access_to_the_files_beside_it(
    hub: Hub, tmp_path: Path, repository: str
) -> None:
    """The repository became gated, private or was deleted after the download of its config."""
    _cache_config(tmp_path, repository)
    result = llmcalc(hub, tmp_path, "params", repository, "--format", "json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["params"]["total"] == TOTAL


def test_an_unreachable_hub_is_asked_once_for_files_beside_cached_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that drops packets takes `REQUEST_SECONDS` for each request."""
    import huggingface_hub

    from llmcalc.sources import hub as hub_module

    repositories = ("org/first", "org/second")
    _cache_config(tmp_path, "org/first")
    config_path = tmp_path / "hub" / "models--org--first" / "snapshots" / COMMIT / "config.json"
    requested_files: list[str] = []

    def cached_path(repository: str, file_name: str, revision: str | None = None) -> str | None:
        return str(config_path) if file_name == "config.json" else None

    def download(repository: str, file_name: str, revision: str | None, byte_limit: int) -> Path:
        if file_name == "config.json":
            return config_path
        requested_files.append(file_name)
        raise OSError("timed out")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached_path)
    monkeypatch.setattr(hub_module, "_download_file", download)
    monkeypatch.setattr(hub_module, "_unreachable_until", {})
    for repository in repositories:
        assert hub_module.fetch_config(repository) == config_path
    assert len(requested_files) == 1


def test_a_revision(hub: Hub, tmp_path: Path) -> None:
    assert llmcalc(hub, tmp_path, "params", "org/tiny@v1.0").returncode == 0
    assert any("/v1.0/" in path for _, path, _ in hub.asked)


def test_a_checkpoint_is_checked_by_its_header_alone(hub: Hub, tmp_path: Path) -> None:
    result = llmcalc(hub, tmp_path, "check", "org/tiny", "org/tiny")
    assert result.returncode == 0, result.stderr + result.stdout
    wanted = [asked for command, path, asked in hub.asked if command == "GET" and path.endswith("model.safetensors")]
    assert wanted
    assert None not in wanted


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["org/nowhere"], "org/nowhere: no such repository, or a private one"),
        (["org/gated"], "org/gated: is gated: accept its terms"),
        (["org/bare"], "org/bare: has no config.json"),
        (["org/tiny", "--offline"], "org/tiny: no config.json in the cache"),
    ],
)
def test_what_fails_says_what_to_do(hub: Hub, tmp_path: Path, args: list[str], message: str) -> None:
    result = llmcalc(hub, tmp_path, "params", *args)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_presets_and_files_come_before_the_hub(hub: Hub, tmp_path: Path) -> None:
    assert llmcalc(hub, tmp_path, "params", "meta-llama/Meta-Llama-3-8B").returncode == 0
    assert hub.asked == []


def test_no_hub_at_all(hub: Hub, tmp_path: Path) -> None:
    dead = Hub("http://127.0.0.1:9", [])
    result = llmcalc(dead, tmp_path, "params", "org/tiny")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: org/tiny: ")


def test_without_the_extra_the_hint_is_one_line(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['huggingface_hub'] = None; sys.argv = ['llmcalc', 'params', 'org/name']; from "
        "llmcalc.cli.main import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert re.search(r"pip install .*\[hub\]", result.stderr)
