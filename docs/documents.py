"""The page of the JSON documents: every key, its type, its unit and its meaning, from `documents.toml`."""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from running import folder, printed

FILE = Path(__file__).with_name("documents.toml")

KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "list", dict: "object"}


class Key(NamedTuple):
    """What a key means. meaning: a sentence. unit: of a number. part: the part of documents that it is. kind: its type,
    where no command of the page has it. needs: what the machine may lack that has it.
    """

    meaning: str
    unit: str = ""
    part: str = ""
    kind: str = ""
    needs: str = ""

    @classmethod
    def of(cls, row: str | dict[str, str]) -> Key:
        if isinstance(row, str):
            return cls(row)
        return cls(row["is"], row.get("unit", ""), row.get("part", ""), row.get("type", ""), row.get("needs", ""))


@dataclass(frozen=True)
class Keys:
    """The keys of a document or of a part. title: the command's or the part's name."""

    title: str
    rows: dict[str, Key]
    about: str = ""
    asked: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    known: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        paths = set(self.rows)
        for path in self.rows:
            names = path.split(".")
            starts = [".".join(names[: i + 1]) for i in range(len(names))]
            paths |= {*starts, *(start.removesuffix("[]") for start in starts)}
        object.__setattr__(self, "known", frozenset(paths))


@dataclass(frozen=True)
class Described:
    """documents, parts: by command and by name."""

    documents: dict[str, Keys]
    parts: dict[str, Keys]


def described() -> Described:
    """Reads the descriptions."""
    data = tomllib.loads(FILE.read_text())

    def rows(described_keys: dict[str, Any]) -> dict[str, Key]:
        return {key: Key.of(row) for key, row in described_keys.items()}

    every = rows(data["every"])
    parts = {
        name: Keys(name, rows({k: v for k, v in part_keys.items() if k != "about"}), part_keys["about"])
        for name, part_keys in data["parts"].items()
    }
    documents = {
        name: Keys(
            name,
            every | rows(command_keys["keys"]),
            "",
            tuple(command_keys["asked"]),
            tuple(command_keys.get("checked", ())),
        )
        for name, command_keys in data["documents"].items()
    }
    return Described(documents, parts)


class Entry(NamedTuple):
    """A value of a document. keys: whose key it has. path: the key, as the descriptions write it."""

    keys: Keys
    path: str
    value: Any

    @property
    def described(self) -> bool:
        """Whether a row says what it means; of an object or a list that is not empty, its entries have rows."""
        if isinstance(self.value, dict | list):
            return bool(self.value) or self.path in self.keys.known or f"{self.path}.*" in self.keys.known
        return self.path in self.keys.rows


def entries(value: Any, keys: Keys, parts: dict[str, Keys], path: str = "") -> Iterator[Entry]:
    """Every value of a document with its key, those of objects and lists too."""
    yield Entry(keys, path, value)
    if isinstance(value, list):
        for below in value:
            yield from entries(below, keys, parts, f"{path}[]")
    if not isinstance(value, dict):
        return
    row = keys.rows.get(path)
    part = parts[row.part] if row is not None and row.part else None
    for name, below in value.items():
        exact_path, any_name_path = (f"{path}.{each}" if path else each for each in (name, "*"))
        if exact_path in keys.known:
            yield from entries(below, keys, parts, exact_path)
        elif part is not None and name in part.known:
            yield from entries(below, part, parts, name)
        else:
            yield from entries(below, keys, parts, any_name_path if _within(any_name_path, keys) else exact_path)


def _within(path: str, keys: Keys) -> bool:
    return path in keys.known or f"{path}[]" in keys.known


def documents_of(command: str) -> list[dict[str, Any]]:
    """The documents that a command prints; it runs in a folder with the files that it names."""
    answer = json.loads(printed(f"{command} --format json"))
    return answer if isinstance(answer, list) else [answer]


@dataclass
class Seen:
    """The types that a key's values have, and the first one that is no object, no list and not null."""

    kinds: set[str] = field(default_factory=set)
    example: Any = None


Found: TypeAlias = dict[tuple[str, str], Seen]
"""(title, key) → what documents have there."""


def see(document: dict[str, Any], keys: Keys, parts: dict[str, Keys], seen_keys: Found) -> None:
    """Adds what a document has."""
    for entry in entries(document, keys, parts):
        seen_key = seen_keys.setdefault((entry.keys.title, entry.path), Seen())
        seen_key.kinds.add("null" if entry.value is None else KINDS[type(entry.value)])
        if seen_key.example is None and not isinstance(entry.value, dict | list):
            seen_key.example = entry.value


def page() -> str:
    """Every document and every part, a table each."""
    description = described()
    text = (
        "# JSON\n\nWhat `--format json` prints: one document for each model, several models as a list. Integers are "
        "exact and in base units; a number with a fraction is a ratio or an average. In a key, `[]` is each entry of a "
        "list, and `*` each name of a map. A key may be absent where its meaning says so.\n"
    )
    seen_keys: Found = {}
    with tempfile.TemporaryDirectory() as name, folder(Path(name)):
        for keys in description.documents.values():
            for document in chain.from_iterable(map(documents_of, keys.asked)):
                see(document, keys, description.parts, seen_keys)
    for title, keys in description.documents.items():
        text += f"\n## {title}\n\n`llmcalc {keys.asked[0]} --format json`\n{table(keys, seen_keys)}"
    text += "\n## Parts\n\nWhat several documents have.\n"
    for title, keys in description.parts.items():
        text += f"\n### {title} {{ #part-{title} }}\n\n{keys.about}\n{table(keys, seen_keys)}"
    return text


def table(keys: Keys, seen_keys: Found) -> str:
    """The rows of a document or a part."""
    text = "\n| key | value | meaning |\n|:---|:---|:---|\n"
    for path, key in keys.rows.items():
        seen_key = seen_keys.get((keys.title, path), Seen({key.kind} - {""}))
        kinds = ", ".join(sorted(seen_key.kinds - {"object" if key.part else ""}, key=lambda kind: kind == "null"))
        value = f"[{key.part}](#part-{key.part})" + (", null" if kinds else "") if key.part else kinds
        value += f", {key.unit}" if key.unit and not key.part else ""
        if seen_key.example is not None and not key.part:
            example = json.dumps(seen_key.example, ensure_ascii=False)
            value += f"<br>`{_cell(example if len(example) <= LONGEST else example[: LONGEST - 1] + '…')}`"
        shown = path.replace("*", "&#42;").replace("[", "&#91;").replace(".", ".<wbr>")  # it breaks at dots alone
        text += f"| <code>{shown}</code> | {value} | {_cell(key.meaning)} |\n"
    return text


LONGEST = 32
"""Characters of an example."""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
