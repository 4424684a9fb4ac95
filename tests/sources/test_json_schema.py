"""The JSON Schema of descriptions takes every preset, and refuses what the reader refuses.

`python -m tests.sources.test_json_schema` writes presets/description.schema.json, which editors find by the first line
of every preset.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from llmcalc.errors import InputError
from llmcalc.sources.json_schema import description_schema
from llmcalc.sources.presets import model_names, presets_dir
from llmcalc.sources.target import load
from tests.builders import with_other_causes

FILE = presets_dir() / "description.schema.json"
LINE = f"#:schema ../{FILE.name}"


@cache
def described() -> Any:
    """The schema, which takes a second."""
    return description_schema()


@cache
def validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(described())


def description(name: str) -> Any:
    """A preset as JSON has it; dates are text."""
    text = (presets_dir() / "models" / f"{name}.toml").read_text()
    return json.loads(json.dumps(tomllib.loads(text), default=str))


def keys_of(value: Any, path: str = "") -> set[str]:
    """Every key of a description, by its path; and each value of a `type`."""
    if isinstance(value, list):
        return {key for element in value for key in keys_of(element, path)}
    if not isinstance(value, dict):
        return {f"{path}={value}"} if path.endswith(".type") else set()
    below = {key for name, inner in value.items() for key in keys_of(inner, f"{path}.{name}")}
    return {f"{path}.{name}" for name in value} | below


def with_other_keys() -> list[str]:
    return list(with_other_causes(model_names(), lambda name: keys_of(description(name))))


@pytest.mark.parametrize(
    "names",
    [with_other_keys, pytest.param(model_names, marks=pytest.mark.exhaustive)],
    ids=["with a key of their own", "all"],
)
def test_it_takes_every_preset(names: Callable[[], Iterable[str]]) -> None:
    schema = validator()
    assert {name: wrong for name in names() for wrong in schema.iter_errors(description(name))} == {}


@pytest.mark.exhaustive
def test_it_is_a_json_schema() -> None:
    """It takes seconds; pydantic writes the schema, and the tests here read each of its tables."""
    type(validator()).check_schema(described())


def test_every_property_has_a_description() -> None:
    """From the docstring of its class; editors show it beside the field."""
    document = described()
    tables = {"": document, **document["$defs"]}
    fields = {
        (name, field): schema.get("description", "")
        for name, table in tables.items()
        for field, schema in table.get("properties", {}).items()
    }
    assert len(fields) > 800
    assert {field: text for field, text in fields.items() if len(text) < 5} == {}
    assert fields["PublishedFigures", "nominal"] == "The rounded figure (`8B`)."
    assert fields["Attention", "head_dim"] == fields["AttentionPartial", "head_dim"]


def test_its_address_is_the_sites() -> None:
    """The documentation's build puts the file there."""
    project = tomllib.loads((presets_dir().parent / "pyproject.toml").read_text())["project"]
    assert described()["$id"] == f"{project['urls']['Documentation']}{FILE.name}"


def test_every_preset_names_it() -> None:
    files = sorted((presets_dir() / "models").glob("*.toml"))
    assert [file.name for file in files if file.read_text().partition("\n")[0] != LINE] == []


def test_the_file_beside_the_presets_is_it() -> None:
    """If this fails: python -m tests.sources.test_json_schema."""
    assert json.loads(FILE.read_text()) == described()


def test_the_command_prints_it(run: Any) -> None:
    code, out, err = run("schema")
    assert (code, err) == (0, "")
    assert json.loads(out) == described()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("model", "decoder", "num_hidden_layerz"), 3),
        (("model", "decoder", "num_hidden_layers"), -3),
        (("model", "decoder", "num_hidden_layers"), "three"),
        (("model", "decoder", "block", "attention", "type"), "no-such-attention"),
        (("model", "decoder", "block", "feed_forward", "intermediate_size"), None),
        (("model", "vocab_size"), 0),
        (("released",), "yesterday"),
        (("name",), "a name that no file states"),
    ],
)
def test_it_refuses_what_the_reader_refuses(path: tuple[str, ...], value: Any, tmp_path: Path) -> None:
    whole = description("llama3-8b")
    table = whole
    for name in path[:-1]:
        table = table[name]
    if value is None:
        del table[path[-1]]
    else:
        table[path[-1]] = value
    assert not validator().is_valid(whole)
    if path != ("name",):
        import tomli_w

        file = tmp_path / "a.toml"
        file.write_text(tomli_w.dumps(whole))
        with pytest.raises(InputError):
            load(str(file))


def test_a_variant_states_what_differs_and_nothing_else() -> None:
    whole = description("gemma3-27b")
    variants = whole["model"]["decoder"]["variants"]
    assert all("feed_forward" not in one for one in variants.values())
    schema = validator()
    assert schema.is_valid(whole)
    next(iter(variants.values()))["attention"]["no_such_field"] = 1
    assert not schema.is_valid(whole)


if __name__ == "__main__":
    FILE.write_text(json.dumps(description_schema(), indent=1) + "\n")
    for preset in (presets_dir() / "models").glob("*.toml"):
        lines = preset.read_text()
        if not lines.startswith(LINE):
            preset.write_text(f"{LINE}\n{lines}")
