"""Formula and PyTorch reference share only the fields of a spec: the source code shows it, and an error in one makes
them disagree.
"""

from __future__ import annotations

import ast
from typing import Any

import pytest

from llmcalc.components.classifier import Classifier
from llmcalc.components.head import LMHead
from llmcalc.components.layers.block import Block, Layer
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.multi_token_prediction import MultiTokenPrediction
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.no_head import NoHead
from llmcalc.components.norm import Norm
from llmcalc.components.stack import Stack
from llmcalc.model import ModelSpec
from llmcalc.witnesses.reference import verify_reference
from tests.contracts.independence import faults, members, modules, parts

NORM = "llmcalc.components.norm"
MODEL = "llmcalc.model"


def test_reference_code_uses_the_fields_of_specs_and_no_formula() -> None:
    found = faults()
    assert not found, "\n".join(found)


def test_all_that_is_built_of_parts_is_looked_at() -> None:
    assert {f"llmcalc.components.{name}" for name in ("mixers.attention", "towers.conformer", "runtime")} <= {
        *modules()
    }
    assert {"ModelSpec", "MultiTokenPrediction", "Conformer", "SharedBlock", "Rope"} <= {*parts()}
    assert {
        "formula_source",
        "sizes",
        "projected_output_size",
        "prediction_block",
        "sharing_key",
        "rotary_size",
        "output_width",
        "has_bias",
    } <= members()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("if spec.bias is not None else (", "if spec.has_bias else (", "has_bias"),
        ("bias = spec.bias if", "derived = spec\n            bias = derived.has_bias if", "has_bias"),
        ("bias = spec.bias if", 'bias = getattr(spec, "has_bias") if', "has_bias"),
        ("bias = spec.bias if", "bias = vars(spec)[str(shape)].op(1) if", "op"),
        ("self.kind, self.eps", "self.whole, self.kind, self.eps", "has_bias"),
        ("torch.ones(shape)", "torch.ones(ops.Norm(1, True, True, None).params())", "ops"),
        (
            "    import torch\n",
            "    import torch\n    from ..algebra import exact_div\n    exact_div(1, 1)\n",
            "exact_div",
        ),
        (
            "return norm_reference(self, model_properties.hidden_size)",
            "return norm_reference(self, self.op(1).params())",
            "op",
        ),
        ("spec.eps, group_count", "helped(spec), group_count", "has_bias"),
        ("spec.eps, group_count", "LARGEST, group_count", "LARGEST"),
    ],
)
def test_reference_code_that_uses_more_is_told(before: str, after: str, said: str) -> None:
    source = modules()[NORM].read_text()
    assert source.count(before) == 1
    changed = source.replace(before, after)
    if "self.whole" in after:
        changed = changed.replace("= spec.type, spec.eps, group_count", "= spec, spec.type, spec.eps, group_count")
        changed = changed.replace("if self.bias is None else", "if self.whole.has_bias else")
    if "helped" in after:
        changed += "\n\ndef helped(spec: Norm) -> bool:\n    return spec.has_bias\n"
    if "LARGEST" in after:
        changed += "\nLARGEST = 3\n"
    assert changed != source
    found = faults({NORM: changed})
    assert found
    assert all(f"`{said}`" in fault or f"`.{said}`" in fault for fault in found)


def test_a_formula_that_uses_reference_code_is_told() -> None:
    source = modules()[NORM].read_text()
    before = 'return recorder.norm("", x, self)'
    assert source.count(before) == 1
    changed = source.replace(before, "norm_reference(self)\n        self.reference(x)\n        " + before)
    assert [fault.partition("`")[2] for fault in faults({NORM: changed})] == [
        f"{name}` is reference code, and is used elsewhere" for name in ("norm_reference", "reference")
    ]


def test_no_formula_uses_torch() -> None:
    for name, path in modules().items():
        for function in (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)):
            if function.name == "flow":
                used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
                assert not used & {"torch", "nn"}, f"{name}: flow uses torch"


def block(width: int) -> Block:
    return Block(
        attention=Attention(num_attention_heads=4),
        feed_forward=FeedForward(intermediate_size=width, hidden_act="silu"),
        norm=Norm(type="rmsnorm"),
        norm_placement="pre",
    )


def model(**fields: Any) -> ModelSpec:
    layers = Stack(
        num_hidden_layers=5,
        block=block(40),
        variants={"dense": block(16), "wide": block(72)},
        first_layers=("dense",),
        pattern=("wide", "block"),
    )
    return ModelSpec(**{"vocab_size": 50, "hidden_size": 24, "tie_word_embeddings": False, "decoder": layers, **fields})


@pytest.mark.parametrize("named", [None, "dense", "wide"])
def test_a_wrong_layer_in_multi_token_prediction_is_told(monkeypatch: pytest.MonkeyPatch, named: str | None) -> None:
    spec = model(mtp=MultiTokenPrediction(num_nextn_predict_layers=2, layer=named))
    assert verify_reference(spec, batch=2, seq=7).ok
    assert spec.mtp is not None
    right = spec.mtp.prediction_block(spec.main)

    def wrong(self: MultiTokenPrediction, stack: Stack) -> Layer:
        return next(layer for layer in (block(40), block(16)) if layer != right)

    monkeypatch.setattr(MultiTokenPrediction, "prediction_block", wrong)
    verdict = verify_reference(spec.model_copy(), batch=2, seq=7)
    assert {(check.node.partition(".")[0], check.quantity) for check in verdict.failures} >= {("mtp", "parameters")}


@pytest.mark.parametrize("head", [LMHead(), NoHead(), Classifier(num_labels=3, over="token")])
def test_a_wrong_width_that_the_output_is_mapped_to_is_told(monkeypatch: pytest.MonkeyPatch, head: Any) -> None:
    spec = model(embedding_size=12, head=head)
    assert spec.projected_output_size == 12
    assert verify_reference(spec, batch=2, seq=7).ok
    for wrong in (None, 16):
        monkeypatch.setattr(ModelSpec, "projected_output_size", wrong)
        assert not verify_reference(spec.model_copy(), batch=2, seq=7).ok
