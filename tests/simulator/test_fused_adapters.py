"""Adapters whose layers run in functions of their own, against torch with functions that allocate the same tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import llmcalc
from llmcalc.components.layers.block import Block
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.simulator.adapters import Adapters
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.tensor import BFLOAT16
from llmcalc.witnesses import kernel_variants
from tests.comparisons import compares, of_run
from tests.contracts.test_parts import around_a_model
from tests.simulator.models import by_torch, without_values

NETWORK, ATTENTION = ("gate_proj", "up_proj", "down_proj"), ("q_proj", "k_proj", "v_proj", "o_proj")


def adapted_rows(x: Any, weight: Any, lora_a: Any, lora_b: Any) -> Any:
    """x·Wᵀ + x·Aᵀ·Bᵀ, added in place."""
    output = x @ weight.t()
    return output.addmm_(x @ lora_a.t(), lora_b.t())


class GatedNetwork(torch.autograd.Function):
    """The lines of axolotl's `LoRA_MLP` that allocate tensors; x: [tokens, hidden]."""

    @staticmethod
    def forward(ctx: Any, x: Any, dropped_x: Any, *matrices: Any) -> Any:
        gate, up = adapted_rows(x, *matrices[:3]), adapted_rows(x, *matrices[3:6])
        product = torch.empty_like(gate)
        output = adapted_rows(product, *matrices[6:])
        ctx.save_for_backward(x, dropped_x, gate, up, *matrices)
        return output

    @staticmethod
    def backward(ctx: Any, output_gradient: Any) -> Any:
        x, dropped_x, _gate, _up, *matrices = ctx.saved_tensors
        down, lora_a, lora_b = matrices[6:]
        product_gradient = adapted_rows(output_gradient, down.t(), lora_b.t(), lora_a.t())
        gradients = [None if index % 3 == 0 else torch.empty_like(matrix) for index, matrix in enumerate(matrices)]
        input_gradient = torch.empty_like(x)
        del product_gradient
        return input_gradient, None if dropped_x is x else torch.empty_like(x), *gradients


class Projections(torch.autograd.Function):
    """The lines of `LoRA_QKV` and `LoRA_O` that allocate tensors, for any number of layers."""

    @staticmethod
    def forward(ctx: Any, x: Any, dropped_x: Any, *matrices: Any) -> Any:
        ctx.save_for_backward(x, dropped_x, *matrices)
        return tuple(adapted_rows(x, *matrices[start : start + 3]) for start in range(0, len(matrices), 3))

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        x, dropped_x, *matrices = ctx.saved_tensors
        gradients = [None if index % 3 == 0 else torch.empty_like(matrix) for index, matrix in enumerate(matrices)]
        return torch.empty_like(x), None if dropped_x is x else torch.empty_like(x), *gradients


def run_fused(function: Any, layers: list[Any], x: Any) -> Any:
    matrices = [weight for layer in layers for weight in (layer.base_layer, layer.lora_A, layer.lora_B)]
    rows = x.view(-1, x.shape[-1])
    outputs = function.apply(rows, layers[0].dropout(rows), *(module.weight for module in matrices))
    shaped = [y.view(*x.shape[:-1], -1) for y in (outputs if isinstance(outputs, tuple) else (outputs,))]
    return shaped if len(layers) == 3 and function is Projections else shaped[0]


def fuse_network(network: Any) -> None:
    """Runs a gated network as one function."""
    network.forward = lambda x, *_: run_fused(GatedNetwork, [getattr(network, name) for name in NETWORK], x)


def fuse_attention(attention: Any) -> None:
    """Runs queries, keys and values as one function when the queries are asked for, and the output as another."""
    projections, outputs = [getattr(attention, name) for name in ATTENTION[:3]], []

    def run_all(x: Any) -> Any:
        outputs.extend(run_fused(Projections, projections, x))
        return outputs.pop(0)

    projections[0].forward = run_all
    projections[1].forward = projections[2].forward = lambda _: outputs.pop(0)
    attention.o_proj.forward = lambda x: run_fused(Projections, [attention.o_proj], x)


def fuse(module: Any) -> None:
    """Fuses gated networks and attention whose layers all have adapters."""
    for part in list(module.modules()):
        names = {name for name, layer in part.named_children() if isinstance(layer, kernel_variants.Lora)}
        if names.issuperset(NETWORK):
            fuse_network(part)
        if names.issuperset(ATTENTION):
            fuse_attention(part)


def spec() -> ModelSpec:
    network = FeedForward(intermediate_size=96, hidden_act="silu", gated=True)
    return around_a_model(Block.examples()[0].model_copy(update={"feed_forward": network}))


@compares(lambda **_: of_run(spec(), KernelChoices(fused_adapters=True)))
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("targets", [NETWORK, ATTENTION, NETWORK + ATTENTION])
def test_fused_adapters_keep_what_their_functions_save(
    targets: tuple[str, ...], dropout: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = Adapters(3, frozenset(targets), dropout=dropout, dtype=BFLOAT16)
    apply_kernel_choices = kernel_variants.apply_kernel_choices

    def use_fused_kernels(module: Any, *arguments: Any) -> None:
        apply_kernel_choices(module, *arguments)
        fuse(module)

    monkeypatch.setattr(kernel_variants, "apply_kernel_choices", use_fused_kernels)
    expected = by_torch(spec(), adapters=adapters)
    fused = without_values(spec(), adapters=adapters, choices=KernelChoices(fused_adapters=True))
    assert fused._replace(saved=0) == expected._replace(saved=0)
    assert fused.backward < without_values(spec(), adapters=adapters).backward


ADAPTED: dict[str, Any] = {"phase": "training", "seq": 64, "lora_rank": 4, "lora_targets": "all-linear"}


def test_layers_that_a_class_joins_have_no_fused_adapters() -> None:
    """Phi-3's class has qkv_proj and gate_up_proj; axolotl's `find_self_attn_in_layer` wants q_proj, k_proj, v_proj."""
    for name, is_changed in (("phi3-mini", False), ("llama3.2-1b", True)):
        usual, fused = (
            llmcalc.memory(f"{name}?num_hidden_layers=1", **ADAPTED, fused_adapters=is_fused).document["memory"]
            for is_fused in (False, True)
        )
        assert (usual["by_kind"] != fused["by_kind"]) is is_changed


def test_zero_3_has_no_fused_adapters() -> None:
    with pytest.raises(InputError, match="--fused-adapters in ZeRO-3: with DeepSpeed it is not modelled"):
        llmcalc.memory("llama3.2-1b", **ADAPTED, fused_adapters=True, zero=3, devices=2, framework="deepspeed")


def test_a_part_of_a_group_of_layers_has_no_fused_adapters() -> None:
    """It changed nothing, without a word: axolotl's kernels take whole groups (monkeypatch/lora_kernels.py)."""
    with pytest.raises(
        InputError, match="--lora-targets q_proj,up_proj: no kernel for a part of a layer's projections"
    ):
        llmcalc.memory("llama3.2-1b", lora_rank=8, lora_targets="q_proj,up_proj", phase="training", fused_adapters=True)
