"""`llmcalc explain --quantity activations`: formulas of what the backward pass keeps, from the kernels that count it.

The kernels' saved bytes equal torch's in `tests/simulator`. Here formulas at their numbers equal those bytes.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import Any

import pytest

from llmcalc.components.base import Component
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.reports.explain import report
from llmcalc.reports.expression import write_expression
from llmcalc.reports.formats.table import render
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.lowering import UnsupportedKernel
from llmcalc.sources.presets import load_preset
from llmcalc.symbolic.activations import ActivationFormulas, explain_activations
from llmcalc.symbolic.explain import Explanation
from llmcalc.symbolic.formulas import Formulas, FormulaSetting, RecomputeChoice, TrainingSetting
from llmcalc.workload.execution import AttentionImplementation
from llmcalc.workload.recompute import RECOMPUTE_MODES
from tests.contracts.test_parts import around_a_model
from tests.in_process import command
from tests.samples import with_rest
from tests.simulator.compare import examples, sampled_examples
from tests.simulator.models import without_values
from tests.symbolic.test_explain import read_back, texts

SEQ, BATCH = 7, 2
TWO = TrainingSetting(batch=BATCH)
LAYERED = ["t5-base", "jamba-v0.1", "llama3-8b", "gemma4-e2b", "deepseek-v3", "bert-base", "zamba2-1.2b", "gpt-oss-20b"]
"""The first have two stacks and layers of several kinds; the others add parts, whose formulas are compared above."""


def first_examples() -> dict[str, Component]:
    """One example of every part that has kernels for sequences of `SEQ` tokens."""
    return {name: part for name, part in examples().items() if name.endswith("-0")}


def formulas_of(explanation: Explanation) -> dict[str, str]:
    return {
        place.name: write_expression(s.formulas[0].expression)
        for s in explanation.sections
        for place in s.formula_nodes
    }


def values_of(explanation: Explanation) -> dict[str, int]:
    return {place.name: int(s.formulas[0].value) for s in explanation.sections for place in s.formula_nodes}


def activations(spec: ModelSpec, seq: int = SEQ, training: TrainingSetting = TWO) -> ActivationFormulas:
    return ActivationFormulas(Formulas(spec, FormulaSetting(seq=seq)), training)


# --- a formula at its numbers is the count ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sampled_examples(first_examples()))
def test_formulas_of_every_part_give_the_bytes_that_are_saved(name: str) -> None:
    """`section` compares the formula of each node with a run with integers; the model's is what torch saves."""
    spec = around_a_model(first_examples()[name])
    kept = activations(spec)
    for found in kept.formulas.nodes():
        kept.section(found)
    assert kept.section(kept.formulas.root).formulas[0].value == without_values(spec, BATCH, SEQ).saved


@pytest.mark.parametrize("name", with_rest({name: name for name in LAYERED}, LAYERED[:2]))
def test_equal_layers_times_their_number_give_the_bytes_of_all_layers(name: str) -> None:
    spec = load_preset(name).model
    kept = activations(spec)
    assert kept.section(kept.formulas.root).formulas[0].value == without_values(spec, BATCH, SEQ).saved


def test_a_formula_holds_for_other_numbers() -> None:
    """That of 2 sequences of 7 tokens, at 3 sequences of 10."""
    spec = load_preset("llama3.2-1b").model
    row = texts(explain_activations(spec, None, FormulaSetting(seq=SEQ), TWO))["model", "activations"]
    values: dict[str, Any] = {m.name: m.value for m in Formulas(spec).meanings.values()}
    assert read_back(row["symbolic"], {**values, "B": BATCH, "S": SEQ}) == row["value"]
    assert read_back(row["symbolic"], {**values, "B": 3, "S": 10}) == without_values(spec, 3, 10).saved


def test_a_wrong_formula_is_never_given(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = activations(load_preset("llama3.2-1b").model)
    kept.symbolic_sums.by_location[0] += 1
    with pytest.raises(ArithmeticError, match="the count is"):
        kept.section(kept.formulas.root)


@pytest.mark.parametrize("recompute", ["none", "full", "attention", "attention+matmuls"])
@pytest.mark.parametrize("attention", ["eager", "sdpa-math", "flash"])
@pytest.mark.parametrize("name", ["Attention-3", "MoE-0", "MergedAttention-0"])
def test_formulas_under_every_choice(name: str, attention: AttentionImplementation, recompute: RecomputeChoice) -> None:
    """With recomputation too they are all that is alive after the forward pass, but for the loss of 4 bytes."""
    spec, training = around_a_model(examples()[name]), TrainingSetting(BATCH, attention, recompute)
    try:
        held = without_values(
            spec, BATCH, SEQ, recompute=RECOMPUTE_MODES[recompute], choices=KernelChoices(attention=attention)
        )
    except UnsupportedKernel:
        with pytest.raises(UnsupportedKernel):
            activations(spec, SEQ, training)
        return
    kept = activations(spec, SEQ, training)
    assert kept.section(kept.formulas.root).formulas[0].value == held.live - 4


# --- the formulas -----------------------------------------------------------------------------------------------------


def test_llama() -> None:
    """Per layer in bf16: norms 6 bytes an element and 4 a row each; softmax 4 in float32, 2 in bf16."""
    spec = load_preset("llama3-8b").model
    formulas = formulas_of(explain_activations(spec, None, FormulaSetting(seq=2048), TWO))
    assert formulas == {
        "layers": "B·S·(8·a·d + 6·S·a + 16·h + 8·f + 8) + S²",
        "layers.self_attn": "B·S·(8·a·d + 6·S·a + 2·h) + S²",
        "layers.mlp": "B·S·(2·h + 8·f)",
        "layers.norms": "B·S·(12·h + 8)",
        "shared by layers": "4·S·d",
        "norm": "B·S·(6·h + 4)",
        "lm_head": "2·B·S·h",
        "loss": "4·V·B·S + 4",
        "model": "L·(B·S·(8·a·d + 6·S·a + 16·h + 8·f + 8) + S²) + B·S·(4·V + 8·h + 4) + 4·S·d + 4",
    }


def test_flash_attention_keeps_no_scores() -> None:
    """Queries after RoPE, keys and values; the output, and the copy of it that o_proj reads, heads side by side; a
    number per query, in float32; three integers, of which dropout would need two.
    """
    spec, flash = load_preset("llama3-8b").model, TrainingSetting(2, "flash")
    formulas = formulas_of(explain_activations(spec, "self_attn", FormulaSetting(seq=2048), flash))
    assert formulas == {"layers.self_attn": "B·S·(4·a·d + 4·k·d + 2·h + 4·a) + 24"}


def test_what_layers_share_counts_once() -> None:
    """An encoder's output in bf16, which the decoder's layers read; tables of sine and cosine for half of r each."""
    t5 = formulas_of(explain_activations(load_preset("t5-base").model, None, FormulaSetting(seq=64), TWO))
    assert t5["decoder.shared by layers"] == "2·B·S·h"
    names = list(t5)  # below the layers that share them, above the part that follows
    assert names.index("decoder.shared by layers") == names.index("decoder.norm") - 1
    latent = formulas_of(explain_activations(load_preset("deepseek-v3").model, "shared by layers", training=TWO))
    assert latent == {"shared by layers": "4·S·r"}


def test_parts_of_a_layer_add_up_to_it() -> None:
    values = values_of(explain_activations(load_preset("mixtral-8x7b").model, None, FormulaSetting(seq=64), TWO))
    assert values["layers"] == sum(values[f"layers.{part}"] for part in ("self_attn", "mlp", "norms"))
    assert values["model"] == 32 * values["layers"] + sum(
        values[part] for part in ("shared by layers", "norm", "lm_head", "loss")
    )


def test_a_node_that_reads_what_another_keeps() -> None:
    formulas = formulas_of(explain_activations(load_preset("llama3-8b").model, "k_proj", training=TWO))
    assert formulas == {"layers.self_attn.k_proj": "0"}


def test_a_batch_of_one_may_keep_other_copies() -> None:
    """MLA: with one sequence, heads of latent keys are a view of the projection's whole output."""
    latent, plain = load_preset("deepseek-v3").model, load_preset("llama3-8b").model
    one, two = (explain_activations(latent, "self_attn", training=TrainingSetting(batch=n)) for n in (1, 2))
    assert formulas_of(one) != formulas_of(two)
    assert [bool(found.notes) for found in (one, two, explain_activations(plain, "mlp"))] == [True, False, False]


def test_prediction_modules_count_where_they_are_asked_in() -> None:
    spec = load_preset("deepseek-v3").model
    with pytest.raises(InputError, match=r"mtp is a part of .* counted with --with-mtp"):
        explain_activations(spec, "mtp", FormulaSetting(seq=64), TWO)
    values = values_of(explain_activations(spec, None, FormulaSetting(seq=64), TWO, frozenset({"mtp"})))
    assert values["mtp"] > 0
    assert values["loss"] == 2 * 4 * (spec.vocab_size * BATCH * 64 + 1)


def test_what_has_no_kernels_is_refused_by_the_name_of_its_node() -> None:
    with pytest.raises(UnsupportedKernel, match=r"encoder\.layers\.self_attn.* no bias"):
        explain_activations(load_preset("t5-base").model, training=TrainingSetting(attention="flash"))


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "t5-base"])
def test_a_terminal_of_80_columns_holds_every_formula_whole(name: str) -> None:
    preset = load_preset(name)
    for node in (None, "self_attn"):
        explanation, out = explain_activations(preset.model, node, training=TWO), io.StringIO()
        render(report(preset, explanation), out, width=80)
        assert max(map(len, out.getvalue().splitlines())) <= 80
        bare = re.sub(r"\s", "", out.getvalue())
        for row in texts(explanation, preset).values():
            assert row["symbolic"].replace(" ", "") in bare


def test_the_command() -> None:
    given = ("llama3-8b", "mlp", "-q", "activations", "-b", "4", "--seq", "1k", "--attn-implementation", "flash")
    document = command("explain", *given, "--format", "json").document
    assert document["setting"] == {
        "batch": 4,
        "seq": 1024,
        "dtype": "bfloat16",
        "attn_implementation": "flash",
        "recompute": "none",
    }
    (row,) = document["formulas"]
    assert (row["symbolic"], row["unit"], row["repeat"]) == ("B·S·(2·h + 8·f)", "bytes", 32)
    assert row["value"] == 4 * 1024 * (2 * 4096 + 8 * 14336)
    assert document["symbols"]["B"] == {"field": "sequences at once", "value": 4}
    latex = command("explain", "llama3-8b", "mlp", "-q", "activations", "--latex").out
    assert r"\text{activations kept} &= B\,S\,(2\,h + 8\,f) \\" in latex


@pytest.mark.parametrize(
    ("option", "value", "quantities"),
    [
        ("--batch", "2", "activations and time"),
        ("--attn-implementation", "flash", "activations"),
        ("--recompute", "full", "activations"),
    ],
)
def test_options_of_activations_alone(option: str, value: str, quantities: str) -> None:
    error = command("explain", "llama3-8b", option, value).error
    assert error == f"error: {option}: only applies to {quantities}; expected --quantity activations too\n"


def test_kernels_wait_until_activations_are_asked_for() -> None:
    check = "import sys, llmcalc.cli.explain; sys.exit(any(m.startswith('llmcalc.simulator') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
