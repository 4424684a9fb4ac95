"""Notes of `llmcalc flops` on the form in which a model runs, and on work that is not counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llmcalc
from llmcalc.components.base import Component, TokenMixer
from llmcalc.components.mixers.fourier import FourierMixer
from llmcalc.errors import InputError
from llmcalc.ops import DecayScan, DeltaRule, HeadScan, MatrixMemory, SelectiveScan
from tests.builders import family_shapes
from tests.contracts.test_parts import EXAMPLES, around_a_model
from tests.samples import in_one_test

RECURRENCES = (DecayScan, DeltaRule, HeadScan, MatrixMemory, SelectiveScan)
DECODE = ("--phase", "decode", "--context", "100")
CHUNK = ("--phase", "prefill", "--seq", "8", "--context", "100")


def text(run: Any, *words: str) -> str:
    return " ".join(run("flops", *words, "--notes").out.split())


@pytest.mark.parametrize(
    ("words", "form"),
    [
        ((), "expanded"),
        (DECODE, "absorbed"),
        (CHUNK, "expanded"),
        ((*DECODE, "--mla", "expanded"), "expanded"),
        ((*CHUNK, "--mla", "absorbed"), "absorbed"),
        ((*DECODE, "--mla", "auto"), "absorbed"),
    ],
)
def test_the_form_of_latent_attention_is_named(words: tuple[str, ...], form: str, run: Any) -> None:
    document = run("flops", "deepseek-v3", *words, "--format", "json").document
    assert document["flops"]["mla"] == form
    assert document["workload"]["mla"] == (words[-1] if "--mla" in words else "auto")
    shown = text(run, "deepseek-v3", *words)
    assert f", MLA {form}" in shown
    other = "expanded" if form == "absorbed" else "absorbed"
    assert f"MLA {form}: kv_b_proj" in shown
    assert f"--mla {other}: the other form" in shown
    assert ("since only latents are cached" in shown) == (form == "expanded" and bool(words))


def test_nothing_is_said_of_a_model_without_it(run: Any) -> None:
    assert run("flops", "llama3-8b", "--format", "json").document["flops"]["mla"] is None
    assert "MLA" not in text(run, "llama3-8b", *DECODE)
    assert llmcalc.flops("llama3-8b").mla is None


def test_a_form_of_something_that_is_not_there(run: Any) -> None:
    message = "--mla absorbed: the model has no multi-head latent attention; expected auto"
    code, out, err = run("flops", "gpt2", "--mla", "absorbed")
    assert (code, out, err) == (2, "", f"error: gpt2: {message}\n")
    with pytest.raises(InputError) as error:
        llmcalc.flops("gpt2", mla="absorbed")
    assert str(error.value) == message
    with pytest.raises(InputError, match="--mla: 'absorb' is not known; expected one of auto, expanded, absorbed"):
        llmcalc.flops("deepseek-v3", mla="absorb")  # type: ignore[arg-type]
    code, _, err = run("flops", "deepseek-v3", "--mla", "absorb")
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("family", "said", "uncounted"),
    [
        ("mamba", ("a convolution computes", "a recurrence takes one step"), "the state update of Mamba's scan"),
        ("qwen3_next", ("a convolution computes", "a recurrence takes one step"), "the decays of gated DeltaNet"),
        ("rwkv", ("a recurrence takes one step",), "the WKV recurrence of RWKV"),
        ("lfm2", ("a convolution computes",), ""),
        ("deepseek_v32", ("attention reads the chosen keys alone",), ""),
        ("minimax_m3_vl_text", ("attention reads the chosen keys alone",), ""),
        ("deepseek_v4", ("attention reads the chosen keys alone",), ""),
        ("zaya", ("a convolution computes",), ""),
        ("llama", (), ""),
    ],
)
def test_what_decoding_runs_otherwise_and_what_is_not_counted(
    family: str, said: tuple[str, ...], uncounted: str, run: Any, tmp_path: Any
) -> None:
    file = tmp_path / "config.json"
    config = next(config for _, config in family_shapes() if config["model_type"] == family)
    file.write_text(json.dumps(config))
    every = ("a convolution computes", "a recurrence takes one step", "attention reads the chosen keys alone")
    for words in (DECODE[:2], ()):
        shown = text(run, str(file), *words)
        assert [note for note in every if f"decode: {note}" in shown] == ([*said] if words else [])
        assert ("not counted, as it is element by element" in shown) == bool(uncounted)
        assert uncounted in shown


@in_one_test
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_recurrence_says_what_of_it_is_not_counted(example: Component) -> None:
    spec = around_a_model(example)
    program = spec.program()
    ops = [step.op for step in program.root.steps()]
    if isinstance(example, FourierMixer):
        return  # its transform is not counted either
    recurs = any(isinstance(op, RECURRENCES) for op in ops) or "scan" in {step.verb for step in program.root.steps()}
    mixers = [
        mixer
        for _, stack in spec.stacks()
        for _, layer, *_ in stack.layer_groups()
        for _, mixer, _ in layer.mixers(stack.hidden_size or spec.hidden_size)
    ]
    assert recurs == any(mixer.uncounted_operations for mixer in mixers if isinstance(mixer, TokenMixer))
