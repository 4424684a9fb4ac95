"""`explain --quantity time`: closed forms of kernels give the seconds that `time` adds up."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llmcalc
from llmcalc.sources.hardware import load_hardware
from llmcalc.studies.time_formulas import TimeFormula, time_formulas

CASES = [
    ("llama3-8b", "h100-sxm", "vllm", "decode"),
    ("llama3-8b", "h100-sxm", "vllm", "prefill"),
    ("llama3-8b", "a100-80gb", "torch", "training"),
    ("qwen3-30b-a3b", "h200", "megatron", "training"),
    ("deepseek-v3", "b200", "sglang", "decode"),
    ("mamba2-370m", "h100-sxm", "transformers", "decode"),
    ("gpt2", "v100-32gb", "megatron-2021", "training"),
]
"""Model, accelerator, stack and phase."""


def formulas_of(model: str, hardware: str, stack: str, phase: Any) -> list[TimeFormula]:
    return time_formulas(llmcalc.load(model).model, None, load_hardware(hardware), stack, phase, 2, 1024)


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_numbers_of_a_formula_give_its_value(case: tuple[str, str, str, str]) -> None:
    for formula in formulas_of(*case):
        value = eval(formula.substituted_text.replace("·", "*"), {"__builtins__": {}, "max": max})
        assert value == pytest.approx(formula.seconds, rel=1e-9), formula
        assert bool(formula.source) == bool(formula.seconds), formula


@pytest.mark.parametrize(("phase", "name"), [("decode", "tokens"), ("prefill", "prompt")])
def test_kernels_add_up_to_the_time(run: Any, phase: str, name: str) -> None:
    words = ("llama3-8b", "--hardware", "h100", "--phase", phase, "--seq", "1024")
    code, out, err = run("time", *words, "--batch", "2", "--engine", "gpt-fast", "--format", "json")
    assert code == 0, err
    formulas = formulas_of("llama3-8b", "h100-sxm", "gpt-fast", phase)
    kernels = sum(formula.seconds * formula.repeat_count for formula in formulas)
    assert kernels == pytest.approx(json.loads(out)["parts"]["kernels"], rel=1e-9)


def test_a_product_by_hand(run: Any) -> None:
    """gate_proj of Llama 3 8B, one token: 2 · 4096 · 14336 FLOPs; its weights in 16 bits, one row in and one out."""
    words = ("explain", "llama3-8b", "mlp.gate_proj", "-q", "time", "--hardware", "h100", "--format", "json")
    (formula,) = run(*words).document["formulas"]
    flops, bytes = 2 * 4096 * 14336, 2 * (4096 * 14336 + 4096 + 14336)
    assert formula["value"] == pytest.approx(max(flops / (989.5e12 * 0.764), bytes / (3.35e12 * 0.845)) + 3.5e-6)
    assert formula["symbolic"] == "max(F / (P · e), B / (W · w)) + l · t + s"
    assert (formula["repeat"], formula["unit"]) == (32, "s")
    assert "aiconfigurator" in formula["source"]


@pytest.mark.parametrize(
    ("model", "node", "same"),
    [
        ("llama3-8b", "layers.0-31.mlp", "layers.mlp"),
        ("llama3-8b", "layers.7.self_attn.core", "self_attn.core"),
        ("deepseek-v3", "layers.0-2.mlp", "layers.0-2.mlp"),
    ],
)
def test_a_path_with_the_numbers_of_its_layers(model: str, node: str, same: str) -> None:
    """As other quantities name a node; the layers of other kinds are not of it."""
    spec, hardware = llmcalc.load(model).model, load_hardware("h100-sxm")
    found, expected = (time_formulas(spec, name, hardware, "vllm", "decode", 1, 1024) for name in (node, same))
    assert found == expected
    assert {formula.repeat_count for formula in found} == {3 if model == "deepseek-v3" else 32}


REFUSED = {
    "-q time": "--quantity time: of which accelerator?",
    "-q time --hardware h100 --latex": "--latex: has no form of times",
    "-q time --hardware h100 --tp 2": "--quantity time: counts one device",
    "-q time --hardware h100 --stack torch": "--stack torch: is for training",
    "-q time --hardware 24GiB": "24GiB",
    "-q flops --hardware h100": "--hardware: only applies to time",
    "nothing -q time --hardware h100": "no kernel of decode has the path 'nothing'",
}


@pytest.mark.parametrize(("words", "message"), REFUSED.items())
def test_refused(run: Any, words: str, message: str) -> None:
    assert message in run("explain", "llama3-8b", *words.split()).error


def test_a_model_without_a_head_is_explained_as_it_is_timed(run: Any) -> None:
    """It reads prompts and decodes nothing."""
    words = ("explain", "qwen3-embedding-8b?num_hidden_layers=1", "-q", "time", "--hardware", "h100")
    assert run(*words, "--format", "json").document["setting"]["phase"] == "prefill"
    assert "does not decode" in run(*words, "--phase", "decode").error
