"""`llmcalc explain`: the printed formula is the one that is evaluated, and its printed text evaluates to the count."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from fractions import Fraction
from math import ceil, floor
from pathlib import Path
from typing import Any

import pytest
import sympy

from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.mla import MLA
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import MoE
from llmcalc.components.norm import Norm
from llmcalc.components.stack import Stack
from llmcalc.costs.cache import kv
from llmcalc.costs.flops import flops
from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.reports.explain import report
from llmcalc.reports.expression import LATEX, FormulaStyle, write_expression
from llmcalc.reports.formats.table import render
from llmcalc.sources.preset import Preset
from llmcalc.sources.presets import load_preset
from llmcalc.symbolic.explain import Explanation, explain
from llmcalc.symbolic.formulas import Formulas, FormulaSetting
from llmcalc.symbolic.symbolic_model import model_in_symbols
from tests.builders import SOME_PRESETS, run_config, verbs_of
from tests.in_process import command
from tests.samples import sampled

RMS = Norm(type="rmsnorm")
MHA = Attention(num_attention_heads=8)
PLAIN = FeedForward(intermediate_size=256, hidden_act="gelu")
SWIGLU = FeedForward(intermediate_size=96, hidden_act="silu", gated=True)
SEQ = 300


def layer(attention: Any = MHA, feed_forward: Any = PLAIN, **fields: Any) -> Block:
    return Block(
        **{"attention": attention, "feed_forward": feed_forward, "norm": RMS, "norm_placement": "pre", **fields}
    )


def decoder(block: Block, layers: int = 6, **fields: Any) -> ModelSpec:
    stack = {k: fields.pop(k) for k in ("variants", "first_layers", "pattern", "position") if k in fields}
    spec = {"vocab_size": 1000, "hidden_size": 64, "tie_word_embeddings": False, **fields}
    return ModelSpec(decoder=Stack(num_hidden_layers=layers, block=block, final_norm=RMS, **stack), **spec)


def texts(explanation: Explanation, preset: Preset | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    """(node, quantity) → its record in the JSON document."""
    preset = preset or Preset(name="x", model=explanation.formulas.symbolic.spec)
    data = report(preset, explanation).data
    assert isinstance(data, dict)
    return {(row["node"], row["quantity"]): row for row in data["formulas"]}


def formulas_of(spec: ModelSpec, node: str | None = None, **options: Any) -> dict[tuple[str, str], str]:
    return {key: row["symbolic"] for key, row in texts(explain(spec, node, **options)).items()}


def names(spec: ModelSpec) -> dict[str, int]:
    return {m.name: m.value for m in model_in_symbols(spec).symbol_meanings.values()}


def read_back(text: str, values: dict[str, Any]) -> Fraction:
    """Evaluates a printed formula with Python's arithmetic on its text; it shares no code with the printer."""
    text = re.sub(
        r"[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda m: "**" + m.group().translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")), text
    )
    text = (
        text.replace("·", "*")
        .replace("−", "-")
        .replace("⌊", "floor(")
        .replace("⌋", ")")
        .replace("⌈", "ceil(")
        .replace("⌉", ")")
    )
    text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)", r"Fraction('\1')", text)
    exact = {name: Fraction(value) for name, value in values.items()}
    return Fraction(eval(text, {"Fraction": Fraction, "min": min, "max": max, "floor": floor, "ceil": ceil}, exact))


# --- the formulas are those of the papers -----------------------------------------------------------------------------


def test_mha_with_an_ungated_4h_feed_forward_is_12lh2_and_2vh() -> None:
    """Kaplan 2020 §2.1: 12·L·h² in the layers; 2·L + 1 norms of h weights, and an embedding and a head of V·h each."""
    rows = texts(explain(decoder(layer()), formula_setting=FormulaSetting(seq=SEQ)))
    assert rows["model", "params"]["symbolic"] == "L·(4·h² + 2·h·f + 2·h) + 2·V·h + h"
    assert rows["model", "params"]["in_units_of_h"] == "12·L·h² + 2·V·h + 2·L·h + h"
    assert rows["model", "flops"]["symbolic"] == "L·(8·h² + 4·h·f + 4·S·h) + 2·V·h"
    assert rows["model", "flops"]["in_units_of_h"] == "24·L·h² + 4·L·S·h + 2·V·h"
    assert rows["layers.self_attn", "params"]["symbolic"] == "4·h²"
    assert rows["layers.self_attn", "flops"]["symbolic"] == "8·h² + 4·S·h"
    assert rows["model", "params"]["value"] == 12 * 6 * 64**2 + 2 * 1000 * 64 + 2 * 6 * 64 + 64


def test_grouped_queries_with_a_head_size_of_their_own() -> None:
    rows = texts(explain(load_preset("llama3-8b").model, "self_attn", formula_setting=FormulaSetting(seq=2048)))
    one = rows["layers.self_attn", "params"]
    assert (one["symbolic"], one["substituted"], one["value"]) == (
        "2·h·a·d + 2·h·k·d",
        "2·4096·32·128 + 2·4096·8·128",
        41_943_040,
    )
    assert (one["source"], one["repeat"], one["path"]) == ("Ainslie et al. 2023, §2", 32, "layers.0-31.self_attn")
    flops = rows["layers.self_attn", "flops"]
    assert (flops["symbolic"], flops["value"]) == ("4·h·a·d + 4·h·k·d + 4·S·a·d", 83_886_080 + 16_384 * 2048)
    cache = rows["layers.self_attn", "kv"]
    assert (cache["symbolic"], cache["value"], cache["unit"]) == ("2·k·d·b", 2 * 8 * 128 * 2, "bytes/token")


def test_latent_attention() -> None:
    """DeepSeek-V2, §2.1: only c + r elements per token are cached, independent of the number of heads."""
    spec = decoder(
        layer(
            MLA(
                num_attention_heads=4,
                q_lora_rank=48,
                kv_lora_rank=32,
                qk_nope_head_dim=16,
                qk_rope_head_dim=8,
                v_head_dim=12,
            )
        )
    )
    rows = formulas_of(spec, "self_attn", formula_setting=FormulaSetting(dtype="int4"))
    assert rows["layers.self_attn", "params"] == "h·a·v + q·a·(n + r) + c·a·(n + v) + h·q + h·(c + r) + q + c"
    assert rows["layers.self_attn", "kv"] == "b·(c + r)"
    assert (
        texts(explain(spec, "self_attn", formula_setting=FormulaSetting(dtype="int4")))["layers.self_attn", "kv"][
            "value"
        ]
        == (32 + 8) / 2
    )


def test_both_forms_of_latent_attention() -> None:
    """A forward pass uses the expanded form; the absorbed form gives a decoded token's FLOPs with the same keys."""
    spec, setting = load_preset("deepseek-v3").model, FormulaSetting(seq=100)
    forms = [("flops", flops(spec, run_config(seq=100)).total / 100)]
    forms.append(("flops_absorbed", flops(spec, run_config(seq=1, context=99, phase="decode")).total))
    whole = explain(spec, None, "flops", setting)
    assert [(f.quantity, f.value) for f in whole.sections[-1].formulas] == forms
    assert {len(section.formulas) for section in whole.sections} == {2}  # rows of both tables add up
    (attention,) = explain(spec, "self_attn", "flops", setting).sections
    expanded, absorbed = (write_expression(formula.expression) for formula in attention.formulas)
    assert "2·S·a·(n + r + v)" in expanded
    assert absorbed == expanded.replace("(n + r + v)", "(2·c + r)")
    for model, one in ((spec, "kv_b_proj"), (spec, "layers.moe.mlp"), (load_preset("llama3-8b").model, "self_attn")):
        assert [f.quantity for f in explain(model, one, "flops", setting).sections[0].formulas] == ["flops"]
    for name, node, both in (
        ("deepseek-v3", None, True),
        ("deepseek-v3", "self_attn", True),
        ("deepseek-v3", "kv_b_proj", False),
        ("llama3-8b", None, False),
    ):
        out, preset = io.StringIO(), load_preset(name)
        render(report(preset, explain(preset.model, node)), out, width=80)
        text = " ".join(out.getvalue().split())
        assert ("FLOPs per token: MLA expanded" in text, "FLOPs, absorbed: as decode runs MLA" in text) == (both, both)


def test_experts_all_and_those_a_token_uses() -> None:
    spec = decoder(layer(feed_forward=MoE(num_experts=8, num_experts_per_tok=2, expert=SWIGLU)))
    rows = formulas_of(spec, "mlp")
    assert rows["layers.mlp", "params"] == "3·E·h·f + E·h"
    assert rows["layers.mlp", "active"] == "3·t·h·f + E·h"
    assert rows["layers.mlp", "flops"] == "6·t·h·f + 2·E·h"


def test_causal_pairs_and_windows() -> None:
    """The triangle of S tokens over S gives (S + 1)/2 keys per token; a window W limits it to min(S, W)."""
    spec = decoder(
        layer(),
        variants={"sliding": layer(Attention(num_attention_heads=8, sliding_window=32))},
        pattern=("sliding", "block"),
    )
    rows = texts(explain(spec, "self_attn", "flops", FormulaSetting(seq=SEQ, pairs="causal")))
    assert rows["layers.full.self_attn", "flops"]["symbolic"] == "8·h² + 2·h·(S + 1)"
    sliding = rows["layers.sliding.self_attn", "flops"]
    assert "min(W, S)" in sliding["symbolic"]
    pairs = 32 * 33 // 2 + (SEQ - 32) * 32
    assert Fraction(sliding["value"]).limit_denominator(SEQ) == 8 * 64**2 + Fraction(4 * 64 * pairs, SEQ)


# --- names of fields --------------------------------------------------------------------------------------------------


def test_one_value_is_one_symbol_and_several_have_subscripts() -> None:
    moe = MoE(num_experts=8, num_experts_per_tok=2, expert=SWIGLU, shared_expert=SWIGLU)
    spec = decoder(layer(), variants={"moe": layer(feed_forward=moe)}, first_layers=("block",), pattern=("moe",))
    assert names(spec) == {
        "a": 8,
        "f_dense": 256,
        "E": 8,
        "t": 2,
        "f_expert": 96,
        "f_shared": 96,
        "V": 1000,
        "h": 64,
        "L": 6,
        "L_dense": 1,
        "L_moe": 5,
    }


def test_layers_that_differ_in_their_heads_give_the_subscript() -> None:
    wide = layer(Attention(num_attention_heads=8, head_dim=16))
    narrow = layer(Attention(num_attention_heads=8, head_dim=4, sliding_window=32))
    found = names(decoder(wide, variants={"sliding": narrow}, pattern=("sliding", "sliding", "block")))
    assert (found["d_full"], found["d_sliding"], found["a"], found["L_full"], found["L_sliding"]) == (16, 4, 8, 2, 4)


def test_encoder_and_decoder_of_different_depth_and_heads() -> None:
    crossing = layer(cross_attention=Attention(num_attention_heads=4))
    stacks = {
        "encoder": Stack(num_hidden_layers=4, block=layer()),
        "decoder": Stack(num_hidden_layers=2, block=crossing),
    }
    spec = ModelSpec(vocab_size=100, hidden_size=64, tie_word_embeddings=True, **stacks)
    found = names(spec)
    assert (found["L_enc"], found["L_dec"]) == (4, 2)
    assert formulas_of(spec)["model", "params"] == "L_dec·(8·h² + 2·h·f + 3·h) + L_enc·(4·h² + 2·h·f + 2·h) + V·h"


def test_a_letter_that_two_fields_share_is_split() -> None:
    spec = decoder(layer(), embedding_size=32)
    found = names(spec)
    assert sorted(v for n, v in found.items() if v in (32, 256)) == [32, 256]
    assert found["f"] == 256


def test_layers_that_cost_the_same_stand_under_the_whole_depth() -> None:
    sliding = layer(Attention(num_attention_heads=8, sliding_window=32))
    rows = formulas_of(decoder(layer(), variants={"sliding": sliding}, pattern=("sliding", "block")))
    assert rows["model", "params"] == "L·(4·h² + 2·h·f + 2·h) + 2·V·h + h"


# --- every formula gives the count ------------------------------------------------------------------------------------


PRINTED = [*SOME_PRESETS, "gemma2-9b", "qwen3-30b-a3b", "jamba-v0.1", "gemma4-e2b", "mimo-v2-flash"]


@pytest.mark.parametrize(
    "name", sampled({name: name for name in PRINTED}, lambda name: verbs_of(load_preset(name).model))
)
def test_what_is_printed_reads_back_to_the_count(name: str) -> None:
    """Compares every component and the whole of every preset with the counts of `params`, `flops` and `kv`."""
    preset = load_preset(name)
    setting = FormulaSetting(seq=SEQ)
    asked = explain(preset.model, formula_setting=setting)
    data = report(preset, asked).data
    assert isinstance(data, dict)
    values = {symbol: entry["value"] for symbol, entry in data["symbols"].items()}
    for row in data["formulas"]:
        for text in (row["symbolic"], row["substituted"], row["in_units_of_h"]):
            if text is not None:
                assert read_back(text, values) == Fraction(row["value"]).limit_denominator(SEQ), (row["node"], text)
    rows = {row["quantity"]: row for row in data["formulas"] if row["node"] == "model"}
    count = params(preset.model)
    assert rows["params"]["value"] == count.total
    assert ("active" in rows) == (count.active != count.total)
    assert rows.get("active", rows["params"])["value"] == count.active
    workload = run_config(batch=1, seq=SEQ, source=SEQ)
    total = preset.model.tree().total(lambda use: use.forward_flops(), workload)
    assert Fraction(rows["flops"]["value"]).limit_denominator(SEQ) == Fraction(total, SEQ)
    if preset.model.kind != "encoder":
        assert ("kv" in rows) == bool(kv(preset.model).bytes_per_token)
        assert "kv" not in rows or rows["kv"]["value"] == kv(preset.model).bytes_per_token


def test_a_formula_that_does_not_give_the_number_is_never_given() -> None:
    formulas = Formulas(decoder(layer()))
    root = formulas.nodes()[0]
    assert formulas.formula(root, "params") is not None
    hidden = next(s for s, m in formulas.meanings.items() if m.name == "h")
    formulas.meanings[hidden] = type(formulas.meanings[hidden])("h", "hidden_size", 65)
    with pytest.raises(ArithmeticError, match=r"the formula .* gives .* the count is"):
        formulas.formula(root, "params")


# --- finding nodes ----------------------------------------------------------------------------------------------------


def places(spec: ModelSpec, query: str) -> list[str]:
    return [found.path for found in Formulas(spec).find_nodes(query)]


def test_a_node_is_found_by_the_end_of_its_path() -> None:
    spec = load_preset("deepseek-v3").model
    assert places(spec, "mlp") == ["layers.0-2.mlp", "layers.3-60.mlp", "mtp.0.block.mlp"]
    assert places(spec, "layers.mlp") == ["layers.0-2.mlp", "layers.3-60.mlp"]
    assert (
        places(spec, "layers.moe.mlp") == places(spec, "moe.mlp") == places(spec, "layers.7.mlp") == ["layers.3-60.mlp"]
    )
    assert places(spec, "layers.3-60.mlp") == ["layers.3-60.mlp"]
    assert places(spec, "layers.2") == ["layers.0-2"]
    assert places(spec, "moe.shared_expert.gate_proj") == [
        "layers.3-60.mlp.shared_expert.gate_proj"
    ]  # a path may skip names
    assert places(load_preset("t5-base").model, "decoder.layers.cross_attn") == ["decoder.layers.0-11.cross_attn"]


def test_places_with_the_same_formulas_share_a_section() -> None:
    spec = load_preset("deepseek-v3").model
    assert [[p.path for p in s.formula_nodes] for s in explain(spec, "self_attn").sections] == [
        ["layers.0-2.self_attn", "layers.3-60.self_attn", "mtp.0.block.self_attn"]
    ]
    assert [len(s.formula_nodes) for s in explain(spec, "mlp").sections] == [1, 2]
    tables = report(load_preset("deepseek-v3"), explain(spec, "layers", "kv")).tables
    assert [table.columns[1].title for table in tables] == ["layers (one of 61)", "stands for"]


@pytest.mark.parametrize(
    ("target", "node", "quantity", "message"),
    [
        ("llama3-8b", "self_atn", "all", "no node 'self_atn'. Did you mean self_attn"),
        ("llama3-8b", "layers.32.mlp", "all", "no node 'layers.32.mlp'"),
        ("llama3-8b", "", "all", "no node ''"),
        ("llama3-8b", "mlp", "kv", "mlp has no cache"),
        ("bert-base", None, "kv", "encoder-only"),
    ],
)
def test_what_cannot_be_explained_is_one_clear_message(
    target: str, node: str | None, quantity: Any, message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        explain(load_preset(target).model, node, quantity)


def test_prediction_modules_count_where_they_are_asked_in() -> None:
    spec = load_preset("deepseek-v3").model
    without, with_them = (
        explain(spec, quantity="params"),
        explain(spec, quantity="params", included_parts=frozenset({"mtp"})),
    )
    difference = texts(with_them)["model", "params"]["value"] - texts(without)["model", "params"]["value"]
    assert difference == params(spec).left_out["mtp"] == texts(explain(spec, "mtp"))["mtp", "params"]["value"]


# --- writing ----------------------------------------------------------------------------------------------------------


def test_writing() -> None:
    h, k, a, w, s = sympy.symbols("h k a W S", integer=True, positive=True)
    dense = sympy.Symbol("f_dense", integer=True, positive=True)
    assert write_expression(2 * h**2 * k / a + 2 * h**2) == "2·h² + 2·h²·k/a"
    assert write_expression(h / (a * k)) == "h/(a·k)"
    assert write_expression(sympy.Rational(193, 16) * h**2) == "12.0625·h²"
    assert write_expression(sympy.Rational(54, 7) * h**2) == "54·h²/7"
    assert write_expression(sympy.Min(s, w) * h) == "h·min(W, S)"
    assert write_expression(h - 3 * a) == "h − 3·a"
    assert write_expression(s // 16) == "⌊S/16⌋"
    assert write_expression(-(-s // 16)) == "⌈S/16⌉"
    assert write_expression(3 * h * dense, LATEX) == r"3\,h\,f_{\text{dense}}"
    assert write_expression(h**2 / a, LATEX) == r"\frac{h^{2}}{a}"
    assert write_expression(2 * h * a, FormulaStyle(values={"h": 4096, "a": 32})) == "2·4096·32"
    assert write_expression(sympy.Integer(8030261248) + s, FormulaStyle(groups_digits=True)) == "8,030,261,248 + S"
    assert write_expression(sympy.Integer(1024), FormulaStyle(is_latex=True, groups_digits=True)) == "1{,}024"
    with pytest.raises(ArithmeticError, match="no way to write"):
        write_expression(sympy.sqrt(h))


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "gemma4-31b", "gpt-oss-120b", "t5-11b", "bert-base"])
def test_a_terminal_of_80_columns_holds_every_formula_whole(name: str) -> None:
    preset = load_preset(name)
    for node in (None, "self_attn"):
        explanation = explain(preset.model, node)
        out = io.StringIO()
        render(report(preset, explanation), out, width=80)
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= 80
        bare = re.sub(r"\s", "", out.getvalue())
        for (_, quantity), row in texts(explanation, preset).items():
            assert row["symbolic"].replace(" ", "") in bare, quantity


def test_the_command_in_every_format(tmp_path: Path) -> None:
    document = command("explain", "llama3-8b", "self_attn", "--format", "json").document
    assert set(document) >= {"schema_version", "model", "formulas", "symbols"}
    assert set(document["formulas"][0]) >= {
        "node",
        "quantity",
        "symbolic",
        "latex",
        "substituted",
        "value",
        "unit",
        "source",
    }
    assert document["symbols"]["k"] == {"field": "num_key_value_heads", "value": 8}
    assert document["symbols"]["S"]["value"] == document["setting"]["keys"] == 2048
    rows = list(
        csv.DictReader(io.StringIO(command("explain", "llama3-8b", "mlp", "-q", "params", "--format", "csv").out))
    )
    assert [(r["symbolic"], r["value"]) for r in rows] == [("3*h*f", "176160768")]
    assert "| layers.mlp | params | 3·h·f |" in command("explain", "llama3-8b", "mlp", "--format", "markdown").out
    written = tmp_path / "formula.tex"
    assert command("explain", "llama3-8b", "mlp", "-q", "params", "--latex", "-o", str(written)).code == 0
    assert r"\text{parameters} &= 3\,h\,f \\" in written.read_text()
    assert r" &= 3\cdot 4096\cdot 14336 \\" in written.read_text()
    wrong = command("explain", "llama3-8b", "no_such_part")
    assert (wrong.code, wrong.out, wrong.err.count("\n")) == (2, "", 1)


def test_sympy_waits_until_a_formula_is_asked_for() -> None:
    check = "import sys, llmcalc.cli.explain; {}; sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check.format("pass")], check=False).returncode == 0
    asked = "llmcalc.cli.explain.explain(llmcalc.cli.explain.load('gpt2').model)"
    assert subprocess.run([sys.executable, "-c", check.format(asked)], check=False).returncode == 1


def test_a_kind_of_layer_with_the_formulas_of_an_earlier_kind_takes_one_row() -> None:
    preset = load_preset("gemma3-1b")
    out, other = io.StringIO(), load_preset("deepseek-v3")
    render(report(preset, explain(preset.model, quantity="params")), out, width=100)
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert ["layers", "(full)", "×", "L_full", "as", "layers", "(sliding)"] in rows
    assert len([row for row in rows if row[:1] == ["self_attn"]]) == 1
    render(report(other, explain(other.model, quantity="params")), out := io.StringIO(), width=100)
    assert "as layers" not in out.getvalue()  # its layers with experts have other formulas than the dense ones


def test_models_with_more_than_twenty_kinds_of_layers_are_explained() -> None:
    block = layer()
    variants = {
        f"wide_{i}": layer(feed_forward=PLAIN.model_copy(update={"intermediate_size": i})) for i in range(1, 22)
    }
    spec = decoder(block, layers=21, variants=variants, pattern=tuple(variants))
    assert explain(spec, quantity="params").sections[-1].formulas[0].value == params(spec).total
