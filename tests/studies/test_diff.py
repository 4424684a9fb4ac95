"""`llmcalc diff`: what changes between two models adds up, and files are compared with those of a commit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.cache import kv
from llmcalc.costs.flops import flops, run_config_of
from llmcalc.studies.diff import ModelDifference, diff

PAIRS = [
    ("llama3-8b", "qwen3-8b"),
    ("mixtral-8x7b", "deepseek-v2-lite"),
    ("bert-base", "t5-small"),
    ("gpt2", "mamba-130m"),
]


def between(before: str, after: str, seq: int = 512) -> ModelDifference:
    return diff(llmcalc.load(before), llmcalc.load(after), seq)


@pytest.mark.parametrize(("before", "after"), PAIRS, ids="-".join)
def test_changes_of_nodes_add_up_to_those_of_the_model(before: str, after: str) -> None:
    found = between(before, after)
    old, new = found.before, found.after
    assert old is not None
    assert new is not None
    total = {one.name: one.change for one in found.quantities}
    assert total["parameters"] == llmcalc.params(new).total - llmcalc.params(old).total
    assert sum(one.change for one in found.components["parameters"]) == total["parameters"]
    work = [flops(one.model, run_config_of(one.model, seq=512)).total for one in (old, new)]
    assert sum(one.change for one in found.components["forward FLOPs"]) == work[1] - work[0]
    cache = [0 if one.model.kind == "encoder" else kv(one.model, seq=512).bytes for one in (old, new)]
    assert sum(one.change for one in found.components["KV cache"]) == cache[1] - cache[0]


def test_a_model_equals_itself() -> None:
    found = between("gemma3-27b", "gemma3-27b")
    assert not found.has_changed
    assert not found.fields
    assert all(one.change == 0 for one in found.quantities)


def test_fields_have_their_defaults() -> None:
    found = between("llama3-8b", "qwen3-8b")
    fields = {one.name: (one.before, one.after) for one in found.fields}
    assert fields["decoder.num_hidden_layers"] == (32, 36)
    assert fields["decoder.block.norm.eps"] == (1e-5, 1e-6)  # Llama's is the default, which its description leaves out
    assert fields["decoder.block.attention.qk_norm.norm.type"] == (None, "rmsnorm")


def test_a_size_that_is_left_out_is_the_one_that_follows() -> None:
    assert [one.name for one in between("llama3-8b", "llama3.1-8b").fields] == ["max_position_embeddings"]
    fields = {one.name: (one.before, one.after) for one in between("gpt2", "llama3-8b").fields}
    assert fields["decoder.block.attention.head_dim"] == (64, 128)  # GPT-2 has 768 / 12
    assert fields["decoder.block.attention.num_key_value_heads"] == (12, 8)


def test_the_order_turns_every_sign() -> None:
    there, back = between("llama3-8b", "qwen3-8b"), between("qwen3-8b", "llama3-8b")
    assert {one.name: one.change for one in there.quantities} == {one.name: -one.change for one in back.quantities}


def test_two_targets_as_data_and_as_markdown(run: Any) -> None:
    code, out, _ = run("diff", "llama3-8b", "llama3-8b?num_hidden_layers=33", "--seq", "1k", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert found["changed"]
    assert found["spec"] == [{"field": "decoder.num_hidden_layers", "before": 32, "after": 33}]
    assert found["quantities"][0]["change"] == 218_112_000
    _, out, _ = run("diff", "llama3-8b", "llama3-8b?num_hidden_layers=33", "--format", "markdown")
    assert "| parameters | 8.03 B | 8.25 B | +218.11 M | +2.7 % |" in out


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> Path:
    """A git repository with one config, from which a layer has been taken since its commit."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    config = tmp_path / "small" / "config.json"
    assert run("convert", "qwen3-0.6b", "--to", "hf", "-o", str(config)).code == 0
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "A model"]):
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
    fields = json.loads(config.read_text())
    fewer = {"num_hidden_layers": 27, "layer_types": fields["layer_types"][:27]}
    config.write_text(json.dumps({**fields, **fewer}))
    return tmp_path


def test_files_are_compared_with_a_commit(repository: Path, run: Any) -> None:
    new = repository / "new" / "config.json"
    new.parent.mkdir()
    new.write_text((repository / "small" / "config.json").read_text())
    changed, added = run("diff", "--git", "HEAD", "small/config.json", "new/config.json", "--format", "json").document
    assert changed["spec"] == [{"field": "decoder.num_hidden_layers", "before": 28, "after": 27}]
    assert added["before"] is None
    assert added["quantities"][0]["after"] == changed["quantities"][0]["after"]
    (repository / "small" / "config.json").unlink()
    removed = run("diff", "--git", "HEAD", "small/config.json", "--format", "json").document
    assert removed["after"] is None
    assert removed["quantities"][0]["before"] == changed["quantities"][0]["before"]


def test_a_file_that_could_not_be_read_is_repaired(repository: Path, run: Any) -> None:
    config = repository / "small" / "config.json"
    whole = config.read_text()
    config.write_text("{")
    subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qam", "Broken"], check=True
    )
    config.write_text(whole)
    code, out, _ = run("diff", "--git", "HEAD", "small/config.json")
    assert code == 0
    assert out.startswith("small/config.json since HEAD: could not be read before\n")
    assert "HEAD:small/config.json: not valid JSON" in out
    config.write_text("{")
    assert run("diff", "--git", "HEAD", "small/config.json").code == 2


def test_files_that_describe_no_model_are_skipped_and_listed(repository: Path, run: Any) -> None:
    """With --models-only, which never skips a model's config that a change has damaged."""
    others = {"web": '{"theme": "dark"}', "list": "[1]", "comments": "// no JSON", "other": '{"model_type": "nope"}'}
    for name, text in (others | {"large": " " * 6_000_000}).items():
        (repository / name).mkdir()
        (repository / name / "config.json").write_text(text)
    (repository / "binary").mkdir()
    (repository / "binary" / "config.json").write_bytes(b"\xff\xfe")
    (repository / "link").mkdir()
    (repository / "link" / "config.json").symlink_to(repository / "small" / "config.json")
    skipped = [f"{name}/config.json" for name in (*others, "large", "binary", "link")]
    words = ("diff", "--git", "HEAD", "--models-only", "--format")
    code, out, err = run(*words, "json", "small/config.json", *skipped)
    assert code == 0
    assert json.loads(out)["changed"]
    lines = [line for line in err.splitlines() if line.startswith("note: skipped ")]
    assert [line.split(": ")[1] for line in lines] == [f"skipped {name}" for name in skipped]
    assert lines[0] == "note: skipped web/config.json: has no model_type"
    assert lines[3].startswith("note: skipped other/config.json: model_type: 'nope' is not supported")
    assert lines[6].endswith(": is a link")
    code, out, _ = run(*words, "markdown", "small/config.json", "web/config.json")
    assert code == 0
    assert out.index("small/config.json since HEAD") < out.index("Skipped: no config of a model") < out.index("| web/")
    commit = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qam", "All"]
    subprocess.run(["git", "add", "."], check=True)
    subprocess.run(commit, check=True)
    (repository / "web" / "config.json").unlink()
    assert run(*words, "json", "web/config.json", "large/config.json").document == []
    config = repository / "small" / "config.json"
    for damaged in ("{", "{}", config.read_text().replace('"qwen3"', '"nope"')):
        config.write_text(damaged)
        assert run(*words, "json", "small/config.json").code == 2, damaged
    assert run("diff", "--models-only", "gpt2", "qwen3-8b").code == 2
    assert run("diff", "--git", "nowhere", "--models-only", "web/config.json").code == 2


def test_csv_has_raw_values_and_both_targets(run: Any) -> None:
    _, out, _ = run("diff", "llama3-8b", "llama3-8b?num_hidden_layers=33", "--format", "csv")
    assert "llama3-8b → llama3-8b?num_hidden_layers=33,parameters,8030261248,8248373248,218112000,0.0271" in out


def test_a_sequence_that_a_model_could_not_run_is_told(run: Any) -> None:
    out = run("diff", "gpt2", "llama3-8b", "--seq", "4k").out
    assert "gpt2: 4,096 tokens do not fit the model's table of 1,024 learned positions" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-", "-"), "TARGET: '-' is given more than once"),
        (("--git", "nowhere", "small/config.json"), "--git nowhere: there is no such commit, branch or tag here"),
        (("--git", "--help", "small/config.json"), "--git: expects a value before --help"),
        (("--git", "HEAD", "small"), "small: with --git expected a file"),
        (("--git", "HEAD", "other/config.json"), "other/config.json: exists neither here nor in HEAD"),
        (("--git", "HEAD", "small/config.json", "--set", "vocab_size=5"), "--set: the files are compared as they are"),
        (("llama3-8b",), "diff: 1 TARGET; expected two"),
        (("llama3-8b", "qwen3-8c"), "no preset, file or hub id called 'qwen3-8c'"),
    ],
)
def test_what_is_wrong_is_said_with_the_fix(words: tuple[str, ...], message: str, repository: Path, run: Any) -> None:
    assert message in run("diff", *words).error


def test_outside_of_a_repository(tmp_path: Path, run: Any) -> None:
    (tmp_path / "config.json").write_text("{}")
    code, _, err = run("diff", "--git", "HEAD", str(tmp_path / "config.json"))
    assert code == 2
    assert "is in no git repository" in err
