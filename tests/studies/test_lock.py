"""`llmcalc lock`: what it writes is the counts' own, and what `--check` names is what changed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.sources import hub
from llmcalc.sources.presets import load_preset
from llmcalc.sources.target import load
from llmcalc.studies.lock import LOCKED_FORMATS, locked_model
from tests.families import shapes_of

MODELS = ("gpt2", "deepseek-v3", "bert-base", "t5-small", "mamba-2.8b")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a config."""
    (tmp_path / "config.json").write_text(json.dumps(shapes_of("llama")[0]))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_an_entry_has_the_counts(name: str) -> None:
    data = locked_model(load_preset(name)).data
    assert data["params"]["total"] == llmcalc.params(name).total
    assert data["flops"]["full"] == llmcalc.flops(name).total
    if data["cache"] is not None:
        assert data["cache"]["bytes_per_token"] == llmcalc.kv(name).bytes_per_token
    assert (data["cache"] is None) is (name == "bert-base")
    for scheme in LOCKED_FORMATS:
        if data["weights"][scheme] is not None:
            weights = llmcalc.memory(name, quantize=scheme, batch=1, seq=16).states.weights
            assert data["weights"][scheme] == weights


def test_gpt2_by_hand() -> None:
    """124,439,808 parameters; 12 layers keep keys and values of 768 in 2 bytes for a token."""
    data = locked_model(load_preset("gpt2")).data
    assert data["params"] == {"total": 124_439_808, "active": 124_439_808, "embedding": 50_257 * 768 + 1024 * 768}
    assert data["cache"] == {"seq": 1024, "bytes_per_token": 2 * 12 * 768 * 2, "bytes": 1024 * 2 * 12 * 768 * 2}
    assert data["weights"]["bf16"] == 2 * 124_439_808


def test_a_default_that_is_stated_changes_no_digest() -> None:
    """A later version has more fields, whose defaults change nothing."""
    plain, stated = load_preset("llama3-8b"), load("llama3-8b?decoder.block.attention.q_bias=false")
    stated = stated.model_copy(update={"changes": plain.changes})
    assert locked_model(stated).data["sha256"] == locked_model(plain).data["sha256"]


def test_a_lock_is_the_same_every_time(run: Any) -> None:
    words = ("lock", "gpt2", "config.json", "llama3-8b?num_hidden_layers=2")
    for file in ("a.json", "b.json"):
        assert run(*words, "-o", file).code == 0
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()
    assert run("lock", "--check", "a.json").code == 0
    for bill in ("a.cdx", "b.cdx"):
        assert run(*words, "--format", "cyclonedx", "-o", bill).code == 0
    assert Path("a.cdx").read_bytes() == Path("b.cdx").read_bytes()


def test_a_check_names_what_changed(run: Any) -> None:
    assert run("lock", "gpt2", "config.json", "-o", "llmcalc.lock.json").code == 0
    assert "2 models unchanged" in run("lock", "--check").out
    config = json.loads(Path("config.json").read_text())
    Path("config.json").write_text(json.dumps({**config, "num_hidden_layers": config["num_hidden_layers"] + 1}))
    checked = run("lock", "--check", "--format", "json")
    document = json.loads(checked.out)
    assert (checked.code, document["ok"], document["checked"]) == (1, False, 2)
    changed = {change["key"] for change in document["changes"]}
    assert {"sha256", "params.total", "flops.full", "cache.bytes_per_token", "weights.published"} <= changed
    assert {change["target"] for change in document["changes"]} == {"config.json"}
    assert not {key for key in changed if key.startswith(("statuses", "name", "kind"))}
    assert "config.json  params.total" in run("lock", "--check").out


def test_a_field_without_a_count_changes_the_digest_alone(run: Any) -> None:
    run("lock", "config.json", "-o", "llmcalc.lock.json")
    config = json.loads(Path("config.json").read_text())
    Path("config.json").write_text(json.dumps({**config, "rope_theta": 12345.0}))
    document = json.loads(run("lock", "--check", "--format", "json").out)
    assert [change["key"] for change in document["changes"]] == ["sha256"]


def test_order_and_space_of_a_config_change_nothing(run: Any) -> None:
    run("lock", "config.json", "-o", "llmcalc.lock.json")
    config = json.loads(Path("config.json").read_text())
    Path("config.json").write_text(json.dumps(dict(reversed(config.items())), indent=4))
    assert run("lock", "--check").code == 0


def test_a_hub_model_has_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(shapes_of("llama")[0]))
    monkeypatch.setattr(hub, "fetch_config", lambda target: snapshot / "config.json")
    data = llmcalc.lock("some-lab/some-model").document["models"][0]
    assert (data["revision"], data["model_type"]) == (commit, "llama")


@pytest.mark.parametrize("targets", [MODELS, ("config.json",)])
def test_a_bill_of_materials_is_valid(targets: tuple[str, ...], run: Any) -> None:
    from cyclonedx.schema import SchemaVersion  # imports grammars, for seconds
    from cyclonedx.validation.json import JsonStrictValidator

    printed = run("lock", *targets, "--format", "cyclonedx")
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(printed.out) is None
    bill = json.loads(printed.out)
    assert validator.validate_str(json.dumps({**bill, "own": 1})) is not None
    for component, target in zip(bill["components"], targets, strict=True):
        values = {entry["name"]: entry["value"] for entry in component["properties"]}
        assert component["type"] == "machine-learning-model"
        assert values["llmcalc:params.total"] == str(llmcalc.params(target).total)


WRONG: dict[str, tuple[str, str]] = {
    "no models": ("lock", "missing argument TARGET, or --check (llmcalc lock --help explains)"),
    "a model twice": ("lock gpt2 gpt2", "TARGET: gpt2 is given more than once"),
    "standard input": ("lock -", "TARGET: '-' cannot be read again by --check"),
    "two lock files": ("lock --check a b", "--check: checks one lock file"),
    "a bill of a check": ("lock --check --format cyclonedx", "--format cyclonedx: lists models"),
    "no lock file": ("lock --check", "llmcalc.lock.json: No such file"),
    "another file": ("lock --check config.json", "config.json: is no lock file of version 1"),
    "no list": ("lock --check list.json", "list.json: models: 3; expected a list of 1 to 1,000 models"),
    "no version": ("lock --check version.json", "version.json: llmcalc: 1; expected the version"),
    "no target": ("lock --check target.json", "target.json: models[1].target: none; expected a name or path"),
    "no number": ("lock --check nan.json", "nan.json: inf is no number of JSON; expected finite numbers"),
    "a model that is gone": ("lock --check gone.json", "gone"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_one_line(name: str, run: Any) -> None:
    words, message = WRONG[name]
    start = {"lock": 1, "llmcalc": "0.1.0"}
    Path("list.json").write_text(json.dumps({**start, "models": 3}))
    Path("version.json").write_text(json.dumps({"lock": 1, "llmcalc": 1, "models": [{"target": "gpt2"}]}))
    Path("target.json").write_text(json.dumps({**start, "models": [{"target": "gpt2"}, 7]}))
    Path("nan.json").write_text(json.dumps({**start, "models": [{"target": "gpt2", "flops": {"full": [[math.inf]]}}]}))
    Path("gone.json").write_text(json.dumps({**start, "models": [{"target": "gone"}]}))
    assert message in run(*words.split()).error
