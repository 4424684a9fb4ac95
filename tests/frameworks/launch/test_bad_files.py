"""Damaged launch files: each is read or refused with one line that names the file, and within seconds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llmcalc.errors import InputError
from llmcalc.frameworks.launch import yaml_text as text_module
from llmcalc.frameworks.launch.launch_types import Launch
from llmcalc.frameworks.launch.read_launch_file import launch_from_text, read_launch
from llmcalc.frameworks.launch.yaml_text import MAX_VALUES, parse_yaml
from tests.samples import in_one_test

LAUNCHES = Path(__file__).parents[2] / "data" / "launches"
FILES = {path.name: path.read_text() for path in sorted(LAUNCHES.iterdir())}


def read(text: str, allow_unknown: bool = False) -> Launch | str:
    """A launch, or the message that refuses it."""
    start = time.process_time()
    try:
        launch_or_message: Launch | str = launch_from_text(text, "launch", 8, allow_unknown)
    except InputError as error:
        launch_or_message = str(error)
        assert launch_or_message
        assert "\n" not in launch_or_message
    assert time.process_time() - start < 2
    return launch_or_message


def test_the_files_are_read() -> None:
    for name in FILES:
        world = 128 if name.endswith(".toml") else 8
        read_launch(LAUNCHES / name, 256 if "2026" in name else world)


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]\n" for a, b in pairwise("abcdefghi"))

BAD: dict[str, tuple[str, str]] = {
    "nothing": ("", "is empty; expected a torchtitan job, "),
    "spaces": (" \n\n", "is empty"),
    "a word": ("hello", "is no launch file"),
    "a list": ("[1, 2]", "is no launch file"),
    "another table": ("a: 1\nb: 2", "is no launch file: it has a, b"),
    "a compose file": ("services:\n  ollama:\n    image: ollama/ollama\n", "is a compose file, of servers"),
    "another JSON": ('{"a": 1}', "is no launch file: it has a"),
    "Kaito": ("kind: ConfigMap\n---\napiVersion: kaito.sh/v1beta1\nkind: Workspace", "is a config of Kaito"),
    "Triton": ('backend: "vllm"\ninstance_group [{ count: 1 }]', "is a config of Triton Inference Server"),
    "DJL": ("engine=Python\noption.model_id=gpt2", "expected the server that it starts"),
    "ArcticTraining": ("type: sft\nmicro_batch_size: 1\nmodel: {name_or_path: a/b}", "is a config of ArcticTraining"),
    "ROLL": ("actor_train: {strategy_args: {}}\nactor_infer: {}", "is a config of ROLL"),
    "Primus": ("modules: {pre_trainer: {framework: megatron, overrides: {}}}", "the arguments under overrides"),
    "prime-rl": ("[deployment]\nnum_train_gpus = 1\n[trainer.optim]\n[orchestrator]", "is a config of prime-rl"),
    "VeOmni": ("model: {model_path: a/b}\ndata: {}\ntrain: {micro_batch_size: 1}", "is a config of VeOmni"),
    "Endpoints": ('{"compute": {}, "model": {"repository": "a/b"}}', "Hugging Face's Inference Endpoints"),
    "truncated JSON": ('{"--num-layers": 4, ', "not valid JSON: Expecting property name"),
    "deep JSON": ("{" + '"a":{' * 2000, "not valid JSON"),
    "a number of 5000 digits": ('{"--num-layers": ' + "1" * 5000 + "}", "not valid JSON"),
    "truncated YAML": ("MODEL_ARGS:\n  --x: [1", "not valid YAML"),
    "a tab in YAML": ("MODEL_ARGS:\n\t--x: 1", "not valid YAML"),
    "a Python object": ("MODEL_ARGS: !!python/object/apply:os.system ['true']", "not valid YAML"),
    "a bomb": (BOMB, f"too many values, with aliases expanded; expected at most {MAX_VALUES:,}"),
    "a list in itself": ("a: &a [*a]", "*a stands inside what it names"),
    "a repeated key": ("MODEL_ARGS:\n  --num-layers: 1\n  --num-layers: 2\n", "line 3: --num-layers is given twice"),
    "two documents": ("a: 1\n---\nb: 2\n", "not valid YAML"),
    "deep YAML": ("a: " + "[" * 100 + "]" * 100, "nested too deeply"),
    "truncated TOML": ("[model]\nflavor = ", "not valid TOML"),
    "MODEL_ARGS as text": ("MODEL_ARGS: 3", "is no launch file"),
    "MODEL_ARGS as a list": ("MODEL_ARGS:\n- --num-layers", "MODEL_ARGS: a list; expected a table"),
    "ENV_VARS as text": ("ENV_VARS: 3\nMODEL_ARGS: {--num-layers: 1}", "ENV_VARS: 3; expected a table"),
    "a name without hyphens": (
        "MODEL_ARGS: {num-layers: 1}",
        "num-layers: is no argument; expected --name. Did you mean --num-layers,",
    ),
    "a recipe of NeMo": ("MODEL_ARGS: {trainer.devices: 8}", "trainer.devices: NeMo's, whose recipes are not read"),
    "an unknown entry": ("ENV_VAR: {}\nMODEL_ARGS: {--num-layers: 1}", "--hidden-size: missing"),
    "a section as text": ("model = 1\n[training]\nseq_len = 1\n[job]\n", "model: 1; expected a table"),
}


@in_one_test
@pytest.mark.parametrize("name", BAD)
def test_bad_files(name: str) -> None:
    text, said = BAD[name]
    found = read(text)
    assert isinstance(found, str)
    assert found.startswith("launch: ")
    assert said in found


def test_a_few_aliases_are_read() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: *a\nc:\n  <<: *a\n  y: 2\n", "x") == {
        "a": {"x": 1},
        "b": {"x": 1},
        "c": {"x": 1, "y": 2},
    }


@pytest.mark.parametrize("text", ["!!bool x", "!!int ''", "0x_", "!!float x"])
def test_a_value_that_is_not_what_its_tag_says(text: str) -> None:
    with pytest.raises(InputError, match=r"line 1: .* is no .*; expected one, or quotes around it"):
        parse_yaml(f"a: {text}", "x")


def test_arguments_of_an_optimizer_are_looked_through_once() -> None:
    """Beginning again at each letter of a word took minutes."""
    text = f"per_device_train_batch_size: 1\noptim: galore_adamw\noptim_args: {'a' * 390_000}\n"
    assert isinstance(read(text, allow_unknown=True), Launch)


def test_a_huge_file(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.write_text("MODEL_ARGS:\n" + "".join(f"  --a{i}: 1\n" for i in range(60_000)))
    with pytest.raises(InputError, match="too large"):
        read_launch(path)
    with pytest.raises(InputError, match="No such file"):
        read_launch(tmp_path / "none.yaml")


def test_world_sizes() -> None:
    with pytest.raises(InputError, match="--devices: 0; expected a positive"):
        launch_from_text(FILES["gpt_tp2_pp2.yaml"], "x", 0)


def test_yaml_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InputError, match=r"YAML needs PyYAML: pip install .*\[launch\]"):
        text_module.parse_yaml("a: 1", "x")


def test_reading_json_loads_no_yaml() -> None:
    code = (
        "import sys\nfrom llmcalc.frameworks.launch.read_launch_file import read_launch\n"
        f"read_launch({str(LAUNCHES / 'mla_moe_ep4.json')!r})\nprint('yaml' in sys.modules, 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]


# ---- any text

FUZZED = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
PIECES = sorted({word for text in FILES.values() for word in re.findall(r"\S+|\n", text)})
SIGNS = [
    "$",
    "${",
    "}",
    "$(",
    "$((",
    ")",
    "(",
    '"',
    "'",
    "`",
    "\\",
    "\n",
    " ",
    "[",
    "]",
    "{",
    ":",
    "=",
    "&",
    "*",
    "<<E",
]


@FUZZED
@given(st.text(max_size=200))
@example("#!\n$")
@example("A=${A:-${A}}")
def test_any_text(text: str) -> None:
    read(text)
    read("#!/bin/sh\n" + text, allow_unknown=True)


@FUZZED
@given(
    st.lists(st.sampled_from([*PIECES, *SIGNS]), max_size=60),
    st.sampled_from(["", "#!/bin/bash\n", "MODEL_ARGS:\n  "]),
)
def test_any_words(words: list[str], start: str) -> None:
    read(start + " ".join(words), allow_unknown=True)
    read(start + "".join(words))


@FUZZED
@given(
    st.sampled_from(list(FILES)),
    st.integers(0, 4000),
    st.integers(0, 40),
    st.sampled_from(["", *SIGNS, "x", "7", "-1"]),
)
def test_a_damaged_file(name: str, at: int, length: int, new: str) -> None:
    text = FILES[name]
    at %= len(text)
    read(text[:at] + new + text[at + length :], allow_unknown=True)
    read(text[:at])


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10),
    st.sampled_from([10**13, 10**40, -1.5, 1e308, float("inf"), "", "x", "9" * 5000, "true", [], [1], {}, {"a": [1]}]),
)
TABLES: list[dict[str, Any]] = [
    json.loads(FILES["mla_moe_ep4.json"])["megatron_args"],
    json.loads(FILES["deepspeed_zero3_auto.json"]),
    parse_yaml(FILES["accelerate_fsdp2.yaml"], "x"),
    parse_yaml(FILES["trainer.yaml"], "x"),
    parse_yaml(FILES["hybrid_pp2_vpp2.yaml"], "x")["MODEL_ARGS"],
]


@settings(FUZZED, max_examples=250)
@given(st.sampled_from(range(len(TABLES))), st.integers(0, 1000), VALUES, st.booleans())
def test_a_wrong_value_anywhere(which: int, at: int, value: Any, allow: bool) -> None:
    table = dict(TABLES[which])
    table[list(table)[at % len(table)]] = value
    read(json.dumps(table), allow)


def test_the_message_says_where_files_of_servers_are_read(run: Any, tmp_path: Path) -> None:
    """Of a manifest of another operator, and of `time` with a script that starts vLLM."""
    manifest, script = tmp_path / "workspace.yaml", tmp_path / "serve.sh"
    manifest.write_text("apiVersion: example.org/v1\nkind: Workspace\ninference: {preset: {name: phi-4}}\n")
    script.write_text("vllm serve Qwen/Qwen3-8B\n")
    for words in (("memory", "--launch", str(manifest)), ("time", "--launch", str(script))):
        assert "of servers (vLLM, SGLang, llama.cpp, …) memory and fit read" in run(*words).error
