"""Training of the last layers alone holds what torch holds where the other parameters are frozen, to the byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import llmcalc
from llmcalc.components.layers.block import Block
from llmcalc.errors import InputError
from llmcalc.simulator.tensor import FLOAT32
from llmcalc.witnesses import kernel_variants
from tests.contracts.test_parts import around_a_model
from tests.simulator.models import by_torch, without_values


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("number", [0, 2])
def test_frozen_layers_keep_nothing(number: int, is_wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where trained layers are in float32 beside frozen ones in bfloat16, under autocast."""
    spec = around_a_model(Block.examples()[number])
    assert spec.decoder is not None
    last_layer = spec.decoder.num_hidden_layers - 1
    apply_kernel_choices = kernel_variants.apply_kernel_choices

    def freeze(module: nn.Module, *arguments: Any) -> None:
        apply_kernel_choices(module, *arguments)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name.startswith(f"layers.{last_layer}."))
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(torch.bfloat16)

    monkeypatch.setattr(kernel_variants, "apply_kernel_choices", freeze)
    trained_dtype = FLOAT32 if is_wide else None
    recorded = without_values(spec, autocast=is_wide, first_trained_layer=last_layer, trained_dtype=trained_dtype)
    assert recorded._replace(saved=0) == by_torch(spec, autocast=is_wide)._replace(saved=0)


@pytest.mark.parametrize("recompute", ["none", "full", "full-reentrant"])
def test_the_trained_layers_alone_have_gradients_and_states(recompute: str) -> None:
    """Of Llama 3.2 1B with 4 layers: a layer has 60,821,504 parameters."""
    model = "llama3.2-1b?num_hidden_layers=4"
    document = llmcalc.memory(model, trainable_layers=1, precision="bf16", seq=128, recompute=recompute).document
    memory = document["memory"]
    assert memory["trained_parameters"] == 60_821_504
    assert (memory["gradients"], memory["optimizer"]["states"]["exp_avg"]) == (2 * 60_821_504, 2 * 60_821_504)
    whole = llmcalc.memory(model, precision="bf16", seq=128, recompute=recompute).document["memory"]
    fewer_states = whole["optimizer"]["bytes"] - memory["optimizer"]["bytes"]
    assert 0 <= whole["after_step_bytes"] - memory["after_step_bytes"] - fewer_states < 2**22  # the allocator rounds up


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainable_layers": 5}, "--trainable-layers 5: the model has 4 layers; expected 1 to 4"),
        ({"trainable_layers": 1, "devices": 2, "tp": 2}, "--trainable-layers: not modelled in a layout that divides"),
        ({"trainable_layers": 1, "lora_rank": 8}, "--trainable-layers with --lora-rank: adapters train no layers"),
        (
            {"trainable_layers": 1, "fsdp": 2, "tp": 2},
            "FSDP2 with frozen layers in a layout that divides more is not",
        ),
        ({"trainable_layers": 1, "zero": 3, "devices": 2, "framework": "deepspeed"}, "--trainable-layers: with DeepS"),
        ({"trainable_layers": 1, "zero": 1, "devices": 2, "framework": "megatron"}, "--trainable-layers"),
    ],
)
def test_frozen_layers_that_are_not_modelled_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        llmcalc.memory("llama3.2-1b?num_hidden_layers=4", seq=128, **options)
    assert message in str(error.value)


def test_plans_and_times_of_frozen_layers_are_refused() -> None:
    model, message = (
        "llama3.2-1b?num_hidden_layers=4",
        "plans and times are of runs that train whole models or adapters",
    )
    with pytest.raises(InputError, match=message):
        llmcalc.plan(model, devices=2, hardware="h100", trainable_layers=1, seq=128)
    with pytest.raises(InputError, match=message):
        llmcalc.time(model, hardware="h100", trainable_layers=1, seq=128)
    with pytest.raises(InputError, match="--use-dora: the time of the norms of whole rows is not modelled"):
        llmcalc.time(model, hardware="h100", lora_rank=4, use_dora=True, seq=128)
