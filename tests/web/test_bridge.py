"""What the page asks of Python is what the command line prints, document by document (4 s)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .loading import bridge

SETTINGS = {
    "llama3-8b": {"ctx": 8192, "batch": 1, "weights": "bf16", "kv": "bf16"},
    "deepseek-v3": {"ctx": 32768, "batch": 16, "weights": "fp8", "kv": "fp8"},
    "gemma3-27b": {"ctx": 131072, "batch": 4, "weights": "q4_k_m", "kv": "int4"},
    "t5-11b": {"ctx": 512, "batch": 2, "weights": "nf4", "kv": "bf16"},
}

MACS = ("m4-pro", "m4-max", "m3-ultra")

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


def ask(name: str, **request: Any) -> Any:
    """The result of one question of the page."""
    found = json.loads(bridge().call(name, json.dumps(request)))
    assert "error" not in found, found
    return found["result"]


def printed(run: Any, *args: str) -> Any:
    """The document of a command. `memory` exits with 1 only where accelerators are named, and here none are."""
    result = run(*args, "--format", "json")
    return result.document


@pytest.mark.parametrize("model", SETTINGS)
def test_the_documents_are_those_of_the_commands(model: str, run: Any) -> None:
    given = SETTINGS[model]
    seq, batch, kv = str(given["ctx"]), str(given["batch"]), str(given["kv"])
    weights = ("--dtype" if given["weights"] == "bf16" else "--quantize", str(given["weights"]))
    answer = ask("answer", model=model, **given)
    assert answer["params"] == printed(run, "params", model)
    assert answer["kv"] == printed(run, "kv", model, "--seq", seq, "--batch", batch, "--dtype", kv)
    assert answer["flops"] == printed(run, "flops", model, "--seq", seq, "--batch", batch)
    memory = ask("memory", model=model, **given)["memory"]
    asked = ("memory", model, "--seq", seq, "--batch", batch, *weights, "--kv-dtype", kv)
    assert without_macs(memory) == without_macs(printed(run, *asked))


def without_macs(memory: dict[str, Any]) -> dict[str, Any]:
    """A document without the verdicts on Macs: the page has no engines, and the command has llama.cpp's buffers."""
    fits = [verdict for verdict in memory["fits"] if verdict["hardware"] not in MACS]
    notes = [
        note.replace(f"{', '.join(MACS)}: by llama.cpp's buffers, the others by torch's kernels; ", "")
        for note in memory["notes"]
    ]
    return memory | {"fits": fits, "notes": notes}


def test_a_formula_is_that_of_the_command(run: Any) -> None:
    found = ask("explain", model="llama3-8b", node="layers.0-31.self_attn", ctx=4096, kv="fp8")
    args = ("llama3-8b", "layers.0-31.self_attn", "--seq", "4096", "--dtype", "fp8")
    assert found == printed(run, "explain", *args)


def test_the_curves_pass_through_the_documents() -> None:
    answer = ask("answer", model="gemma3-27b", **bridge().DEFAULTS)
    tokens = bridge().DEFAULTS["ctx"]
    assert dict(answer["curves"]["kv"])[tokens] == answer["kv"]["cache"]["bytes"]
    assert dict(answer["curves"]["flops"])[tokens] == answer["flops"]["flops"]["per_token"]
    growth = {point["seq"]: point["bytes"] for point in answer["kv"]["cache"]["growth"]}
    assert growth == {seq: size for seq, size in answer["curves"]["kv"] if seq in growth}


def test_an_encoder_has_no_cache_and_the_page_is_told_why(run: Any) -> None:
    answer = ask("answer", model="bert-base", ctx=512, batch=1, weights="bf16", kv="bf16")
    assert f"error: bert-base: {answer['kv']['error']}\n" == run("kv", "bert-base").err
    assert answer["curves"]["kv"] == []
    memory = ask("memory", model="bert-base", ctx=512, batch=1, weights="bf16", kv="bf16")["memory"]
    assert memory == printed(run, "memory", "bert-base", "--seq", "512", "--batch", "1", "--dtype", "bf16")


def test_a_pasted_config(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    answer = ask("answer", model={"config": path.read_text(), "name": "mine/model"}, **bridge().DEFAULTS)
    command = printed(run, "params", str(path))
    assert answer["params"]["params"] == command["params"]
    assert answer["params"]["tree"] == command["tree"]
    assert answer["params"]["model"]["target"] == "mine/model"


def test_what_the_reader_remarks_is_shown(tmp_path: Path, run: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"some_field_of_tomorrow": True}))
    remarks = ask("answer", model={"config": path.read_text()}, **bridge().DEFAULTS)["remarks"]
    assert any("some_field_of_tomorrow" in line for line in remarks)
    said = run("params", str(path)).err.splitlines()
    assert [line.partition(": ")[2].partition(": ")[2] for line in said] == remarks


@pytest.mark.parametrize("text", ["lamma3-8b", "no-such-thing-at-all"])
def test_a_wrong_name_is_the_command_lines_message(text: str, run: Any) -> None:
    found = json.loads(bridge().call("find", json.dumps({"text": text})))
    assert run("params", text).err == f"error: {found['error']} (llmcalc presets lists all)\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("llama3-8b", {"preset": "llama3-8b"}),
        ("meta-llama/Meta-Llama-3-8B", {"preset": "llama3-8b"}),
        ("llama3-8b?num_hidden_layers=16", {"preset": "llama3-8b?num_hidden_layers=16"}),
        ("some-lab/some-model", {"hub": "some-lab/some-model", "revision": "main"}),
        ("some-lab/some-model@v2", {"hub": "some-lab/some-model", "revision": "v2"}),
        ("https://huggingface.co/meta-llama/Meta-Llama-3-8B", {"preset": "llama3-8b"}),
        ("https://huggingface.co/some-lab/some-model", {"hub": "some-lab/some-model", "revision": "main"}),
    ],
)
def test_what_a_text_names(text: str, found: dict[str, str]) -> None:
    assert ask("find", text=text) == found


def test_integers_that_javascript_cannot_hold_stand_as_text() -> None:
    answer = ask("answer", model="llama3-70b", ctx=131072, batch=64, weights="bf16", kv="bf16")
    total = answer["flops"]["flops"]["total"]
    assert total > 2**53
    assert answer["exact"]["flops"]["flops.total"] == str(total)
    assert bridge().exact({"a": [2**53 - 1, 2**53, 1.5e300]}) == {"a.1": str(2**53)}
