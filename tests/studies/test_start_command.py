"""The command that starts a server of `serve`: llmcalc's own reader of launch files finds the same server in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.frameworks.engines.registry import engine
from llmcalc.frameworks.engines.start_command import hub_id, start_command
from llmcalc.sources.target import load_text
from tests.builders import with_other_causes
from tests.engines import without_changes

REQUESTS = {"concurrency": 8, "input": 1024, "output": 256}

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vllm": ("llama3.1-70b", "h100", {"kv_dtype": "auto,fp8"}),
    "vllm, experts": ("qwen3-30b-a3b", "h200", {"devices": 4}),
    "vllm, fp8": ("llama3.1-8b", "l4", {"quantize": "fp8-dynamic"}),
    "sglang": ("qwen3-30b-a3b", "h200", {"engine": "sglang", "devices": 4}),
    "sglang, fp8": ("llama3.1-8b", "h100", {"engine": "sglang", "quantize": "fp8-dynamic", "kv_dtype": "fp8"}),
    "tensorrt-llm": ("qwen3-30b-a3b", "h200", {"engine": "tensorrt-llm", "devices": 4, "kv_dtype": "fp8"}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_command_starts_the_server(case: str, tmp_path: Path) -> None:
    """Read back, a layout with each value of a flag has as many devices and as many tokens of cache.

    vLLM's weights of a published checkpoint have rests of segments, which those that it converts have not.
    """
    model, hardware, options = CASES[case]
    servers = llmcalc.serve(model, hardware, **REQUESTS, **options).result.servers
    record, preset, script = engine(options.get("engine", "vllm")), llmcalc.load(model), tmp_path / "start.sh"
    assert servers
    for server in with_other_causes(servers, lambda server: {*server.flags.items(), ("quantize", server.quantize)}):
        command = start_command(record, preset, server.flags, server.quantize)
        assert command is not None
        script.write_text(f"{command}\n")
        with without_changes():
            memory = llmcalc.memory(launch=script, hardware=hardware).report().data
        tolerance = 1e-3 if server.quantize and record.name == "vllm" else 0.0
        assert memory["kv_tokens"] == pytest.approx(server.memory.kv_tokens, rel=tolerance), command
        assert memory["devices"] == server.layout_sizes.devices, command


@pytest.mark.parametrize(
    ("engine_name", "variable"),
    [("vllm", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"), ("sglang", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")],
)
def test_requests_longer_than_the_model_need_a_variable(engine_name: str, variable: str, tmp_path: Path) -> None:
    """By vllm/config/model.py, `_get_and_verify_max_len`, and sglang/srt/configs/model_config.py."""
    answer = llmcalc.serve("llama3-8b", "h100", input="16k", output="1k", concurrency=8, tp=1, engine=engine_name)
    report = answer.report()
    command, script = report.data["chosen"]["command"], tmp_path / "start.sh"
    assert command.startswith(f"{variable}=1 ")
    assert f"refuses requests of 17,408 tokens without {variable}=1" in report.tables[0].notes[1]
    script.write_text(f"{command}\n")
    started = llmcalc.memory(launch=script, hardware="h100").report()
    assert started.data["kv_tokens"] == answer.result.servers[0].memory.kv_tokens
    assert not any("refuses" in note for table in started.tables for note in table.notes)
    shorter = llmcalc.serve("llama3-8b", "h100", input="4k", output="1k", concurrency=8, tp=1, engine=engine_name)
    assert variable not in str(shorter.report().data)


def test_no_command_starts_requests_beyond_learned_positions() -> None:
    """GPT-2 has 1,024 positions in a table; with vLLM's variable its lookup fails on the device."""
    report = llmcalc.serve("gpt2", "h100", input=1024, output=256, concurrency=8, tp=1).report()
    assert report.data["chosen"]["command"] is None
    assert "could not run this" in report.tables[0].notes[0]


def test_the_document_has_the_command() -> None:
    answer = llmcalc.serve("llama3-8b", "h100", **REQUESTS).report()
    command = "vllm serve meta-llama/Meta-Llama-3-8B --max-model-len 1280"
    assert answer.data["chosen"]["command"] == command
    assert f"each replica starts with: {command}" in answer.tables[0].notes


def test_no_command_starts_what_an_engine_finds_no_weights_of() -> None:
    llama = llmcalc.load("llama3-8b")
    assert hub_id(llmcalc.load("llama3-8b", num_hidden_layers=2)) is None
    assert hub_id(load_text('{"model_type": "gpt2"}', "config.json", "config.json")) is None
    assert (
        hub_id(load_text('{"model_type": "gpt2"}', "org/name", "org/name")) == "org/name"
    )  # as the page names a model
    assert hub_id(llama) == "meta-llama/Meta-Llama-3-8B"
    assert start_command(engine("vllm"), llama, {}, "awq-int4-g128") is None
    assert start_command(engine("tensorrt-llm"), llama, {}, "fp8-dynamic") is None
    for quantized in ("gpt-oss-20b", "deepseek-v3"):  # mxfp4 and fp8 as published
        assert start_command(engine("vllm"), llmcalc.load(quantized), {}) is not None
        assert start_command(engine("vllm"), llmcalc.load(quantized), {}, "fp8-dynamic") is None
    assert start_command(engine("llama.cpp"), llama, {}) is None


@pytest.mark.parametrize("options", [{"disaggregate": "1:1", "devices": 2}, {"quantize": "awq-int4-g128"}])
def test_a_server_that_no_command_starts_has_none(options: dict[str, Any]) -> None:
    assert llmcalc.serve("llama3-8b", "h100", **REQUESTS, **options).report().data["chosen"]["command"] is None


def test_a_draft_is_in_the_command(tmp_path: Path) -> None:
    answer = llmcalc.serve("llama3.1-70b", "h100", **REQUESTS, tp=4, draft="llama3.2-1b", acceptance=0.7)
    command = answer.report().data["chosen"]["command"]
    script = tmp_path / "start.sh"
    script.write_text(f"{command}\n")
    server = answer.result.servers[answer.result.chosen_server.server_index]
    assert llmcalc.memory(launch=script, hardware="h100").report().data["kv_tokens"] == server.memory.kv_tokens
