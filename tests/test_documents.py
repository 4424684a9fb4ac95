"""`docs/documents.toml` says what every key of the JSON documents means, and nothing of keys that no document has."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from llmcalc.cli.main import COMMANDS
from tests.reports.test_goldens import SCREENS
from tests.samples import sampled
from tests.witnesses.test_distributed import one_process

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "docs"))

import documents  # noqa: E402
import running  # noqa: E402

TOLD = documents.described()
FOLDER = ROOT
"""The folder of the documents that are printed; `shared_documents` sets it."""


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> Any:
    """The folder in which the commands run."""
    with running.folder(tmp_path):
        yield


@pytest.fixture(autouse=True, scope="session")
def shared_documents(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Puts the documents where all processes of a test run find them."""
    global FOLDER
    folder = tmp_path_factory.getbasetemp()
    FOLDER = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@cache
def found(command: str) -> list[dict[str, Any]]:
    """The documents that a command prints, from whichever process of the test run printed them first."""
    file = FOLDER / f"documents-{sha256(command.encode()).hexdigest()}.json"
    if not file.exists():
        written = file.with_suffix(f".{os.getpid()}")
        with mock.patch.dict(os.environ, one_process() if "--distributed" in command else {}):
            written.write_text(json.dumps(documents.documents_of(command)))
        written.replace(file)
    return json.loads(file.read_text())


def entries(command: str) -> list[Any]:
    keys = TOLD.documents[command.split(maxsplit=1)[0]]
    return [entry for one in found(command) for entry in documents.entries(one, keys, TOLD.parts)]


def not_described(command: str) -> list[str]:
    return sorted({f"{entry.keys.title}: {entry.path}" for entry in entries(command) if not entry.described})


def seen(commands: Iterable[str]) -> Any:
    """What the documents of the commands have, by key."""
    told: Any = {}
    for command in commands:
        for one in found(command):
            documents.see(one, TOLD.documents[command.split(maxsplit=1)[0]], TOLD.parts, told)
    return told


def there(entry: Any) -> set[tuple[str, str]]:
    """The keys that an entry shows to be there: its own and, of an empty list or map, that of what it would hold."""
    own = {(entry.keys.title, entry.path)}
    if entry.value in ([], {}):
        own |= {(entry.keys.title, f"{entry.path}{mark}") for mark in ("[]", ".*")}
    return own


@pytest.mark.parametrize("name", TOLD.documents)
def test_every_key_is_described_and_every_described_key_is_there(name: str) -> None:
    keys = TOLD.documents[name]
    if keys.checked:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    commands = [*keys.asked, *keys.checked]
    assert {command: not_described(command) for command in commands} == {command: [] for command in commands}
    shown = set().union(*(there(entry) for command in commands for entry in entries(command)))
    assert [path for path, key in keys.rows.items() if (name, path) not in shown and not key.needs] == []


@pytest.mark.parametrize("name", TOLD.documents)
def test_types_are_those_of_the_documents(name: str) -> None:
    """The page takes a key's type from what its commands print, or from the description where they have no such key."""
    keys = TOLD.documents[name]
    stated = {path: key.kind for path, key in keys.rows.items() if key.kind and not key.needs}
    told = {path for title, path in seen(keys.asked) if title == name}
    containers = {path for path in keys.rows if path.endswith(("[]", "*"))}  # an empty list shows no type
    assert not [path for path, key in keys.rows.items() if path not in told | containers and not key.kind]
    if stated:
        pytest.importorskip("transformers")
        really = seen(keys.checked)
        for path, kind in stated.items():
            if (name, path) in really:
                assert really[name, path].kinds - {"null"} == {kind}, path


def test_every_key_of_a_part_is_there() -> None:
    commands = [command for keys in TOLD.documents.values() for command in keys.asked]
    shown = set().union(*(there(entry) for command in commands for entry in entries(command)))
    absent = {name: [path for path in part.rows if (name, path) not in shown] for name, part in TOLD.parts.items()}
    assert not any(absent.values()), absent


SEARCHES = ("fit", "plan", "serve", "cost")
"""Commands that take seconds; their documents have every key in the commands of `docs/documents.toml` above."""
PRINTED = {
    name: text.partition(" --format")[0] for name, text in SCREENS.items() if not text.startswith(("plot", "verify"))
}


def words_of(command: str) -> set[tuple[str, str]]:
    """What may give a document keys of its own: an option of the command."""
    name, *words = command.split()
    return {(name, word) for word in words if word.startswith("-")}


ASKED = {words for keys in TOLD.documents.values() for command in keys.asked for words in words_of(command)}


@pytest.mark.parametrize(
    "command",
    sampled(PRINTED, lambda text: set() if text.startswith(SEARCHES) else words_of(text) - ASKED),
)
def test_the_documents_of_the_goldens_are_described(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert not_described(command.replace(" --latex", "")) == []


def test_every_command_that_prints_documents_has_a_description() -> None:
    asked = {name for name in COMMANDS if "--format" in running.printed(f"{name} --help")}
    assert asked == set(TOLD.documents)


def test_parts_are_those_that_are_named() -> None:
    of = [*TOLD.documents.values(), *TOLD.parts.values()]
    assert {key.part for keys in of for key in keys.rows.values() if key.part} == set(TOLD.parts)


def test_bytes_say_that_they_are_bytes() -> None:
    for keys in [*TOLD.documents.values(), *TOLD.parts.values()]:
        for path, key in keys.rows.items():
            if path.split(".")[-1].endswith("_bytes"):
                assert key.unit == "bytes", path
            assert key.meaning.endswith("."), path


def test_a_key_without_a_description_is_found() -> None:
    keys = TOLD.documents["kv"]
    document = {
        "model": {"name": "x", "own": 1},
        "cache": {"bytes": 1, "by_dtype": {"int4": 2}, "layers": []},
        "new": {},
    }
    undescribed = [e.path for e in documents.entries(document, keys, TOLD.parts) if not e.described]
    assert undescribed == ["model.own", "new"]


def test_a_page_has_every_key_with_its_unit() -> None:
    told = documents.table(TOLD.documents["budget"], seen(["budget llmcalc.toml"]))
    assert '| <code>checks&#91;].<wbr>target</code> | string<br>`"llama3-8b"` | The model. |' in told
    assert '| <code>checks&#91;].<wbr>on</code> | string, null<br>`"h100-sxm"` |' in told
    told = documents.table(TOLD.documents["kv"], seen(["kv gpt2"]))
    assert "| <code>cache.<wbr>bytes</code> | integer, bytes<br>`37748736` |" in told
    assert "| <code>model</code> | [model](#part-model) | The model. |" in told
