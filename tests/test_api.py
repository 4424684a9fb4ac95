"""The Python functions: the forms of a model that they accept, and the same checks as on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.logs.explained_log import ExplainedLog
from llmcalc.questions.witnesses import VerifyResult
from llmcalc.studies.cost import Cost, RunCost
from llmcalc.studies.plan import LayoutPlan
from llmcalc.studies.serving import StudiedServers
from llmcalc.studies.timed_run import TimedRun
from llmcalc.timing.time_ranges import RangedAmount
from tests.families import shapes_of
from tests.samples import in_one_test

CONFIG = shapes_of("llama")[0]
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: llmcalc.flops("gpt2", seq=-1), "--seq: -1 is too small; expected at least 1"),
    (lambda: llmcalc.flops("gpt2", seq=0), "--seq: 0 is too small; expected at least 1"),
    (lambda: llmcalc.flops("gpt2", seq=2.5), "--seq: 2.5 is not a whole number; expected 1 or more"),  # type: ignore[arg-type]
    (lambda: llmcalc.flops("gpt2", batch=-3), "--batch: -3 is too small; expected at least 1"),
    (lambda: llmcalc.flops("gpt2", batch=True), "--batch: True is not a whole number; expected 1 or more"),
    (lambda: llmcalc.flops("gpt2", context=-1), "--context: -1 is too small; expected at least 0"),
    (lambda: llmcalc.flops("gpt2", seq=2**41), "--seq: 2199023255552 is too large; expected at most 1099511627776"),
    (lambda: llmcalc.flops("gpt2", pairs="foo"), "--pairs: 'foo' is not known; expected one of full, causal"),  # type: ignore[arg-type]
    (lambda: llmcalc.flops("gpt2", phase="trian"), "--phase: 'trian' is not known; expected one of forward, train"),  # type: ignore[arg-type]
    (lambda: llmcalc.flops("gpt2", phase=3), "--phase: 3 is not known; expected one of forward, train"),  # type: ignore[arg-type]
    (lambda: llmcalc.kv("gpt2", seq=0), "--seq: 0 is too small; expected at least 1"),
    (lambda: llmcalc.kv("gpt2", batch=0), "--batch: 0 is too small; expected at least 1"),
    (lambda: llmcalc.memory("gpt2", batch=0), "--batch: 0 is too small; expected at least 1"),
    (lambda: llmcalc.memory("gpt2", seq=1.5), "--seq: 1.5 is not a whole number; expected 1 or more"),
    (lambda: llmcalc.memory("gpt2", dtype=3), "--dtype: 3 is not text; expected a name such as 'bf16'"),
    (lambda: llmcalc.memory("gpt2", hardware=24), "--hardware: 24 is not text"),  # type: ignore[arg-type]
    (lambda: llmcalc.memory("gpt2", hardware={"like": "h100"}), "--hardware: a table is not text"),
    (lambda: llmcalc.kv("gpt2", dtype=None), "--kv-dtype: none is not text"),
    (lambda: llmcalc.flops("gpt2", recompute=3), "--recompute: 3 is not text"),  # type: ignore[arg-type]
    (lambda: llmcalc.load("gpt2", hidden_size={1}), "overrides: Object of type set is not JSON serializable"),
    (lambda: llmcalc.params({"model_type": "llama", 3: 4}), "config: the key 3 is not text"),
    (lambda: llmcalc.params("gpt22"), "no preset, file or hub id called 'gpt22'"),
    (lambda: llmcalc.params(3), "model: 3; expected a preset's name, a path, a parsed config.json"),
    (lambda: llmcalc.params({"model_type": "llama", "hidden_size": -1}), "hidden_size: -1; expected a positive"),
    (lambda: llmcalc.params({}), "model_type: missing; expected the name of a model type"),
]


@in_one_test
@pytest.mark.parametrize(("ask", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_said(ask: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        ask()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("option", ["--seq", "--batch"])
def test_the_command_line_says_the_same(option: str, run: Any) -> None:
    given: Any = {option.removeprefix("--"): 0}
    with pytest.raises(InputError) as error:
        llmcalc.flops("gpt2", **given)
    assert run("flops", "gpt2", option, "0").err == f"error: {error.value}\n"


def test_a_model_in_every_form(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    preset = llmcalc.load(str(file))
    forms = [
        str(file),
        file,
        tmp_path,
        CONFIG,
        transformers.AutoConfig.for_model(**{k: v for k, v in CONFIG.items() if k != "architectures"}),
        preset,
        preset.model,
    ]
    totals = {llmcalc.params(form).total for form in forms}
    assert totals == {preset.model.tree().total(lambda use: use.params())}
    assert len({llmcalc.flops(form, seq=7).total for form in forms}) == 1
    assert len({llmcalc.kv(form, seq=7).bytes for form in forms}) == 1
    assert len({llmcalc.memory(form, seq=7, dtype="bf16").device.exact_bytes for form in forms}) == 1


def test_integers_of_numpy_and_capital_letters_are_taken() -> None:
    numpy = pytest.importorskip("numpy")
    assert [llmcalc.kv("gpt2", seq=seq).bytes for seq in numpy.array([64, 128])] == [2359296, 4718592]  # 2·12·768·2
    assert llmcalc.flops("gpt2", phase="Train", seq=8).total == llmcalc.flops("gpt2", phase="train", seq=8).total  # type: ignore[arg-type]
    settings = {"phase": "training", "seq": 8}
    lower, upper = (llmcalc.memory("gpt2", optimizer=name, **settings) for name in ("lion", "Lion"))
    assert lower.document["memory"] == upper.document["memory"]


def test_a_name_is_enough() -> None:
    assert llmcalc.kv("llama3-8b", seq=8192).bytes == 2**30
    assert llmcalc.params("gpt2").total == 124_439_808


@pytest.mark.parametrize(
    ("name", "pass_", "cache"),
    [("llama3-8b", 2048, 8192), ("gpt2", 1024, 1024), ("llama3.1-405b", 2048, 32768), ("bert-base", 512, None)],
)
def test_lengths_of_which_nothing_is_said(name: str, pass_: int, cache: int | None, run: Any) -> None:
    """Default lengths are equal on the command line and in Python: 2,048 or all learned positions; the model's capped
    context.
    """
    assert llmcalc.flops(name).workload.seq == pass_
    assert run("flops", name, "--format", "json").document["workload"]["seq"] == pass_
    if cache is not None:
        assert llmcalc.kv(name).workload.seq == llmcalc.memory(name).states.workload.seq == cache
        assert run("kv", name, "--format", "json").document["workload"]["seq"] == cache
        assert run("memory", name, "--format", "json").document["workload"]["seq"] == cache
        assert (
            f"of {cache:,} tokens" in run("memory", name).out.splitlines()[0] + run("memory", name).out.splitlines()[1]
        )


def test_docstrings_name_attributes_that_the_results_have() -> None:
    result_classes = {
        llmcalc.plan: LayoutPlan,
        llmcalc.time: TimedRun,
        llmcalc.serve: StudiedServers,
        llmcalc.cost: RunCost,
        llmcalc.explain_log: ExplainedLog,
        llmcalc.verify: VerifyResult,
    }
    for function, result_class in result_classes.items():
        named_attributes = re.findall(r"`\.result\.(\w+)", function.__doc__ or "")
        known_attributes = {*dir(result_class), *result_class.__annotations__}
        assert named_attributes, function.__name__
        assert set(named_attributes) <= known_attributes, function.__name__
    assert {"low", "estimate", "high"} <= set(RangedAmount._fields)
    assert {"days", "energy_kwh"} <= set(dir(Cost))


def test_python_reads_two_accelerators_as_the_command_line_does() -> None:
    two_cards = llmcalc.fit("qwen3-0.6b", hardware="2x3090", quantize="q8_0")
    assert two_cards.document == llmcalc.fit("qwen3-0.6b", hardware="3090", devices=2, quantize="q8_0").document
    load_points = llmcalc.serve("qwen3-0.6b", "2x3090").result.load_points
    assert {load_point.devices for load_point in load_points if load_point is not None} == {2}
    used_devices = {
        engine_name: llmcalc.memory("qwen3-8b", hardware="2xl40s", engine=engine_name).result.devices
        for engine_name in ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "ik_llama.cpp", "ollama")
    }
    assert used_devices == {**dict.fromkeys(used_devices, 2), "ollama": 1}  # Ollama takes one card where one suffices
