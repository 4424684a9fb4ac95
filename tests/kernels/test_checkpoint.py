"""Activation checkpointing holds what torch's holds, to the byte, in every mode."""

from __future__ import annotations

import pytest

from llmcalc.components.layers.block import Block
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.run.recompute import MODES, NONE, Recompute, recompute_of
from tests.contracts.test_parts import around_a_model
from tests.kernels.models import by_torch, without_values

ALL = [mode for mode in MODES if mode != "none"] + ["every:2", "nodes:self_attn", "nodes:mlp", "nodes:self_attn,mlp"]


def deep(spec: ModelSpec, layers: int) -> ModelSpec:
    stack = spec.main.model_copy(update={"num_hidden_layers": layers})
    return spec.model_copy(update={"decoder": stack})


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("number", [0, 1, 2, 3, 12, 13])
def test_a_mode_holds_what_torch_holds(mode: str, number: int) -> None:
    how = recompute_of(mode)
    spec = deep(around_a_model(Block.examples()[number]), 3)
    ours: list[str] = []
    theirs: list[str] = []
    held = without_values(spec, log=ours, recompute=how)
    assert held == by_torch(spec, log=theirs, recompute=how), "\n".join([*ours, "=====", *theirs])


def test_an_option_says_what_runs_again() -> None:
    assert recompute_of("none") is NONE
    assert recompute_of("every:3") == Recompute(layers=True, every=3)
    assert recompute_of("nodes:self_attn,mlp") == Recompute(nodes=frozenset({"self_attn", "mlp"}))


@pytest.mark.parametrize(
    "text", ["", "some", "every", "every:", "every:0", "every:-1", "every:²", "every:1.5", "nodes:", "nodes:a,"]
)
def test_an_unknown_option_is_refused(text: str) -> None:
    with pytest.raises(
        InputError, match=r"^--recompute .*: not known; expected none, full, full-reentrant, attention, "
    ):
        recompute_of(text)


def test_a_module_in_another_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"mlp\.experts is inside mlp; expected one of the two"):
        recompute_of("nodes:mlp.experts,mlp")


def test_a_module_that_no_layer_has_is_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"^--recompute nodes:attn: no layer has that module; expected some of "
        r"self_attn_pre_norm, self_attn, mlp_pre_norm, mlp\. Did you mean self_attn",
    ):
        without_values(around_a_model(Block.examples()[0]), recompute=recompute_of("nodes:attn,mlp"))
