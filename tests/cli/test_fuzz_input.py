"""Random damage to descriptions, overrides and files: each loads and can be counted, or raises an `InputError`, within
2 s.

Every integer of several presets is replaced by every invalid size; random damage has no such plan.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmcalc.errors import InputError
from llmcalc.sources.description_fields import all_field_names
from llmcalc.sources.files import validate
from llmcalc.sources.preset import Preset
from llmcalc.sources.presets import presets_dir
from llmcalc.sources.target import load
from tests.cli.damage import ENDLESS, NO_SIZES, anything_of, fuzzed, numbers, refused, rewrite

FUZZED = ("llama3-8b", "deepseek-v3", "gemma2-9b", "bart-large", "bert-base", "mixtral-8x7b")
TABLES = {name: tomllib.loads((presets_dir() / "models" / f"{name}.toml").read_text())["model"] for name in FUZZED}


def leaves(table: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields every path in a table with its value, tables included."""
    for key, value in table.items():
        yield (*before, key), value
        if isinstance(value, dict):
            yield from leaves(value, (*before, key))


def replaced(name: str, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    table = below = copy.deepcopy(TABLES[name])
    for step in path[:-1]:
        below = below[step]
    below[path[-1]] = value
    return table


@pytest.mark.parametrize("name", FUZZED)
def test_every_size_refuses_what_is_none(name: str) -> None:
    sizes = [
        path
        for path, value in leaves(TABLES[name])
        if type(value) is int and path[-1] not in ("rope_theta", "attn_logit_softcapping")
    ]
    assert len(sizes) >= 6
    for path in sizes:
        for value in (*NO_SIZES, ENDLESS):
            if value == 0 and path[-1] == "offset":
                continue
            with pytest.raises(InputError) as caught:
                validate(Preset, {"name": name, "model": replaced(name, path, value)}, "x.toml")
            assert path[-1] in str(caught.value), (path, caught.value)


words = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [*all_field_names(), "attention", "mla", "moe", "mlp", "rope", "none", "block", "rmsnorm", "gelu", "\x1b[0m"]
    ),
)
anything = anything_of(words)
places = st.sampled_from([(name, path) for name in FUZZED for path, _ in leaves(TABLES[name])])


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"variants": value}
    return value


@fuzzed
@given(place=places, value=anything)
@example(place=("llama3-8b", ("decoder",)), value=nested(200))
@example(place=("llama3-8b", ("decoder", "num_hidden_layers")), value=100_000)
@example(place=("gemma2-9b", ("decoder", "num_hidden_layers")), value=100_000)
@example(place=("mixtral-8x7b", ("decoder", "block", "feed_forward", "num_experts")), value=1_000_000)
@example(place=("llama3-8b", ("decoder", "variants")), value={f"v{i}": {} for i in range(20_000)})
def test_a_field_replaced_by_anything(place: tuple[str, tuple[str, ...]], value: Any) -> None:
    name, path = place
    refused(lambda: validate(Preset, {"name": name, "model": replaced(name, path, value)}, "x.toml"))


@fuzzed
@given(place=places, key=words, value=anything, remove=st.booleans())
def test_a_field_removed_or_inserted(place: tuple[str, tuple[str, ...]], key: str, value: Any, remove: bool) -> None:
    name, path = place
    table = replaced(name, path, TABLES[name])
    below = table
    for step in path[:-1]:
        below = below[step]
    below[path[-1]] = copy.deepcopy(dict(leaves(TABLES[name]))[path])
    if remove:
        del below[path[-1]]
    else:
        below[key] = value
    known = remove or key in all_field_names() or "variants" in path or "variants" in below
    if known:
        refused(lambda: validate(Preset, {"name": name, "model": table}, "x.toml"))
    else:
        with pytest.raises(InputError, match="unknown field"):
            validate(Preset, {"name": name, "model": table}, "x.toml")


values = st.one_of(
    numbers.map(str),
    st.just("9" * 5000),
    words,
    st.text(max_size=20),
    st.just('{"type": "mla"}'),
    st.just("[" * 900 + "]" * 900),
)
asked = st.one_of(
    words,
    st.lists(words, max_size=5).map(".".join),
    st.sampled_from(sorted({".".join(p[i:]) for t in TABLES.values() for p, _ in leaves(t) for i in range(3)})),
)


@fuzzed
@given(name=st.sampled_from(FUZZED), path=asked, value=values, joint=st.sampled_from(["=", "=", "=", "", "==", " = "]))
def test_an_override_of_anything_by_anything(name: str, path: str, value: str, joint: str) -> None:
    refused(lambda: load(name, (f"{path}{joint}{value}",)))


WHOLE = (presets_dir() / "models" / "mixtral-8x7b.toml").read_bytes()


@fuzzed
@given(
    content=st.one_of(
        st.binary(max_size=300), st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass"))
    ),
    cut=st.integers(0, len(WHOLE)),
)
def test_a_file_of_anything(content: bytes, cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "anything.toml"
    rewrite(path, WHOLE[:cut] + content)
    refused(lambda: load(str(path)))
