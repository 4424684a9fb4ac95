"""Frozen weights with adapters hold what peft's layers hold, to the byte.

peft is not installed for the tests: `Lora` repeats the lines of peft 0.21 that run, peft/tuners/lora/layer.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from llmcalc.components.layers.block import Block
from llmcalc.kernels.adapters import Adapters
from llmcalc.kernels.tensor import BFLOAT16, FLOAT32
from llmcalc.model import ModelSpec
from tests.contracts.test_parts import around_a_model
from tests.kernels.models import by_torch, without_values


class Dropout(nn.Module):
    """Dropout as it is on a GPU: one kernel with a mask of bytes. On meta torch multiplies by noise instead."""

    def forward(self, x: Any) -> Any:
        return torch.native_dropout(x, 0.1, True)[0]


class Lora(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, dropout: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.base_layer = base
        with torch.device("meta"):
            self.lora_A = nn.Linear(base.in_features, rank, bias=False, dtype=dtype)
            self.lora_B = nn.Linear(rank, base.out_features, bias=False, dtype=dtype)
        self.dropout = Dropout() if dropout else nn.Identity()

    def forward(self, x: Any) -> Any:
        result = self.base_layer(x)
        before = result.dtype
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(self.dropout(x))) * 2.0
        return result.to(before)


def with_adapters(how: Adapters) -> Any:
    def change(module: nn.Module) -> None:
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        for name, part in [*module.named_modules()]:
            above, _, own = name.rpartition(".")
            if own in how.targets:
                dtype = getattr(torch, how.dtype.name)
                setattr(module.get_submodule(above), own, Lora(part, how.rank, how.dropout, dtype))  # type: ignore[arg-type]

    return change


HOW = {
    "queries and values": Adapters(4, frozenset({"q_proj", "v_proj"})),
    "all": Adapters(3, frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})),
    "dropout": Adapters(4, frozenset({"q_proj", "down_proj"}), dropout=True),
    "of the weights' type": Adapters(4, frozenset({"k_proj", "up_proj"}), dtype=BFLOAT16),
}


def spec(number: int) -> ModelSpec:
    return around_a_model(Block.examples()[number])


@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize("number", [0, 1, 2, 12])
def test_adapters_hold_what_peft_holds(number: int, name: str) -> None:
    ours: list[str] = []
    theirs: list[str] = []
    held = without_values(spec(number), log=ours, adapters=HOW[name])._replace(saved=0)
    assert held == by_torch(spec(number), log=theirs, change=with_adapters(HOW[name])), "\n".join([*ours, "=", *theirs])


def test_a_base_in_4_bits_has_scales_and_is_decoded_for_each_product() -> None:
    """A matrix of 100 × 64: 3,200 bytes of codes, and 4 for each block of 64."""
    plain = Adapters(4, frozenset({"q_proj"}), base="nf4")
    assert plain.stored_bytes(6400) == 3200 + 4 * 100
    double = Adapters(4, frozenset({"q_proj"}), base="nf4-dq")
    assert double.stored_bytes(6400) == 3200 + 100 + 4 + 1024 + 4
    assert plain.dtype is FLOAT32
    of_4_bits, of_16 = (without_values(spec(0), adapters=how) for how in (plain, HOW["queries and values"]))
    assert of_4_bits.backward > 0
    assert of_16.backward > 0
