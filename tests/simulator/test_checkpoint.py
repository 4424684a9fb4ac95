"""Activation checkpointing holds what torch's holds, to the byte, in every mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llmcalc.components.layers.block import Block
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.lowering import UnsupportedKernel
from llmcalc.witnesses import kernel_variants
from llmcalc.workload.recompute import NO_RECOMPUTATION, RECOMPUTE_MODES, TRAINER_MODES, Recompute, parse_recompute
from tests.contracts.test_parts import around_a_model
from tests.samples import in_one_test, sampled, spread
from tests.simulator.compare import examples
from tests.simulator.models import by_torch, inputs, result, without_values

OTHERS = ["every:2", "nodes:self_attn", "nodes:mlp", "nodes:self_attn,mlp", *TRAINER_MODES]
ALL = [mode for mode in RECOMPUTE_MODES if mode != "none"] + OTHERS


def deep(spec: ModelSpec, layers: int) -> ModelSpec:
    stack = spec.main.model_copy(update={"num_hidden_layers": layers})
    return spec.model_copy(update={"decoder": stack})


RUNS = {f"{number}-{mode}": (number, mode) for mode in ALL for number in (0, 1, 2, 3, 12, 13)}


@pytest.mark.parametrize(
    ("number", "mode"), spread(sampled(RUNS, lambda run: [(run[0] % 2, run[1]), (run[0], run[1] == "full")]))
)
def test_a_mode_holds_what_torch_holds(number: int, mode: str) -> None:
    recompute = parse_recompute(mode)
    spec = deep(around_a_model(Block.examples()[number]), 3)
    ours: list[str] = []
    theirs: list[str] = []
    held = without_values(spec, log=ours, recompute=recompute)
    assert held == by_torch(spec, log=theirs, recompute=recompute), "\n".join([*ours, "=====", *theirs])


MIXTURES = {name: part for name, part in examples().items() if name.startswith("MoE-")}
CARRIES = "MoE-9"
"""Its router adds the hidden state of the router in the layer below."""


@pytest.mark.parametrize("name", MIXTURES)
def test_layers_of_experts_run_again(name: str) -> None:
    spec = deep(around_a_model(MIXTURES[name]), 3)
    recompute = Recompute(layers=True)
    assert without_values(spec, recompute=recompute) == by_torch(spec, recompute=recompute)


@pytest.mark.parametrize("mode", ["every:2", "attention", "attention+matmuls", "nodes:self_attn"])
def test_a_router_that_reads_the_one_below_runs_again(mode: str) -> None:
    spec, recompute = deep(around_a_model(MIXTURES[CARRIES]), 3), parse_recompute(mode)
    assert without_values(spec, recompute=recompute) == by_torch(spec, recompute=recompute)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("full-reentrant", r"^layers\.mlp\.router: --recompute full-reentrant takes no layer that .*; expected full$"),
        ("nodes:mlp", r"^layers\.mlp\.router: it reads what the layer below has kept, .* nodes without this module$"),
    ],
)
def test_where_it_cannot_it_is_refused(mode: str, said: str) -> None:
    with pytest.raises(UnsupportedKernel, match=said):
        without_values(around_a_model(MIXTURES[CARRIES]), recompute=parse_recompute(mode))


@pytest.mark.parametrize("mode", ["full", "full-reentrant", "every:2", "but-every:2"])
def test_it_reads_the_same_state_again(mode: str) -> None:
    """The gradients of the reference are those without recomputation."""
    spec = deep(around_a_model(MIXTURES[CARRIES]), 3)

    def gradients(recompute: Recompute) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module: Any = spec.reference().float()
        kernel_variants.add_checkpoints(module, recompute)
        ids, source = inputs(spec, 2, 7)
        result(spec, module, torch.arange(14).reshape(ids.shape), source).backward()
        return [one.grad for one in module.parameters() if one.grad is not None]

    ours, theirs = gradients(parse_recompute(mode)), gradients(NO_RECOMPUTATION)
    assert any(one.any() for one in theirs)
    assert len(ours) == len(theirs)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", ["Attention-0", "Attention-1", "Attention-4", "Attention-12", "MixtureOfAttention-0"])
def test_selective_checkpoints_keep_what_flash_attention_gives(name: str) -> None:
    """Its output and what its backward pass reads, beside matrix products."""
    spec, recompute = deep(around_a_model(examples()[name]), 3), parse_recompute("attention+matmuls")
    choices = KernelChoices("flash")
    held = without_values(spec, recompute=recompute, choices=choices)
    assert held == by_torch(spec, recompute=recompute, choices=choices)
    products = Recompute(layers=True, saved_operations=recompute.saved_operations - {"flash_attention"})
    assert without_values(spec, recompute=products, choices=choices).live < held.live
    # eager runs no such kernel
    assert without_values(spec, recompute=products) == without_values(spec, recompute=recompute)


def test_an_option_says_what_runs_again() -> None:
    assert parse_recompute("none") is NO_RECOMPUTATION
    assert parse_recompute("every:3") == Recompute(layers=True, every=3)
    assert parse_recompute("but-every:3") == Recompute(layers=True, every=3, spares=True)
    assert parse_recompute("nodes:self_attn,mlp") == Recompute(nodes=frozenset({"self_attn", "mlp"}))
    assert parse_recompute("modules:moe,layernorm") == Recompute(modules=frozenset({"moe", "layernorm"}))


@in_one_test
@pytest.mark.parametrize(
    "text",
    ["", "some", "every", "every:", "every:0", "every:-1", "every:²", "every:1.5", "but-every:1", "nodes:", "nodes:a,"],
)
def test_an_unknown_option_is_refused(text: str) -> None:
    with pytest.raises(
        InputError, match=r"^--recompute .*: not known; expected none, full, full-reentrant, selective, attention, "
    ):
        parse_recompute(text)


@pytest.mark.parametrize(("text", "unknown"), [("modules:attn", "attn"), ("modules:moe,", "an empty name")])
def test_an_unknown_module_of_megatron_is_refused(text: str, unknown: str) -> None:
    with pytest.raises(InputError, match=rf"{unknown} is not known; expected some of core_attn, layernorm, "):
        parse_recompute(text)


def test_a_module_in_another_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"mlp\.experts is inside mlp; expected one of the two"):
        parse_recompute("nodes:mlp.experts,mlp")


def test_a_module_that_no_layer_has_is_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"^--recompute nodes:attn: no layer has that module; expected some of "
        r"self_attn_pre_norm, self_attn, mlp_pre_norm, mlp\. Did you mean self_attn",
    ):
        without_values(around_a_model(Block.examples()[0]), recompute=parse_recompute("nodes:attn,mlp"))
