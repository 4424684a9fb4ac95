"""Dropout holds what torch's native dropout holds on meta, at every place of a model; and sdpa chooses by it."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.components.dropout import Dropout
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.local_attention import LocalAttention
from llmcalc.components.mixers.mla import MLA
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import MoE
from llmcalc.model import ModelSpec
from llmcalc.simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from llmcalc.simulator.sdpa import SdpaCall, sdpa_backend
from llmcalc.simulator.tensor import BFLOAT16, FLOAT16
from llmcalc.workload.recompute import parse_recompute
from tests.comparisons import compares, of_run
from tests.contracts.test_parts import around_a_model
from tests.simulator.models import by_torch, without_values

EVERYWHERE = Dropout(**dict.fromkeys(Dropout.model_fields, 0.1))
KERNELS = {
    "eager": EAGER_CHOICES,
    "flash": KernelChoices("flash"),
    "sdpa": KernelChoices("sdpa", compute_capability=80),
}
PARTS: tuple[Any, ...] = (
    *Block.examples(),
    Attention(num_attention_heads=4, sinks=True),
    MLA.examples()[0],
    LocalAttention.examples()[0],
    MoE(num_experts=4, num_experts_per_tok=2, expert=FeedForward(intermediate_size=40, hidden_act="relu")),
)


def spec(number: int) -> ModelSpec:
    return around_a_model(PARTS[number]).model_copy(update={"dropout": EVERYWHERE})


def check_like_torch(number: int, choices: KernelChoices, **settings: Any) -> None:
    """Compares a model with dropout everywhere with torch, moment by moment."""
    ours: list[str] = []
    theirs: list[str] = []
    simulated = without_values(spec(number), log=ours, choices=choices, **settings)
    assert simulated == by_torch(spec(number), log=theirs, choices=choices, **settings), "\n".join(
        [*ours, "=====", *theirs]
    )


@compares(lambda number: of_run(spec(number), EAGER_CHOICES))
@pytest.mark.parametrize("number", range(len(PARTS)))
def test_dropout_holds_what_torch_holds(number: int) -> None:
    check_like_torch(number, EAGER_CHOICES)


@compares(lambda kernels, number: of_run(spec(number), KERNELS[kernels]))
@pytest.mark.parametrize("number", [0, 1, 2, 13, 14])
@pytest.mark.parametrize("kernels", ["flash", "sdpa"])
def test_fused_attention_keeps_no_mask_of_dropout(kernels: str, number: int) -> None:
    check_like_torch(number, KERNELS[kernels])


@pytest.mark.parametrize("mode", ["full", "attention"])
def test_recomputed_dropout_holds_what_torch_holds(mode: str) -> None:
    check_like_torch(1, EAGER_CHOICES, recompute=parse_recompute(mode))


def test_a_mask_of_one_byte_is_kept_at_each_place() -> None:
    """2 layers on 14 tokens: width 24, 40 in the network, 4 heads of 7 × 7 scores in each of 2 sequences.

    What dropout returns is kept in the place of its input, which nothing else keeps here.
    """
    plain, dropped = around_a_model(PARTS[1]), spec(1)
    more = without_values(dropped).saved - without_values(plain).saved
    ends, layer = 2 * 14 * 24, 2 * 14 * 24 + 14 * 40 + 2 * 4 * 7 * 7
    assert more == ends + 2 * layer


def test_experts_drop_what_they_activate() -> None:
    """Switch Transformers' and NLLB-MoE's, whose ReLU and product each keep a tensor of their own then."""
    rows, without_activation = 14 * 2, Dropout(**(dict.fromkeys(Dropout.model_fields, 0.1) | {"activation": None}))
    plain = spec(len(PARTS) - 1).model_copy(update={"dropout": without_activation})
    assert plain.decoder is not None
    mixtures, element_bytes = plain.decoder.num_hidden_layers, 2
    more = without_values(spec(len(PARTS) - 1)).saved - without_values(plain).saved
    assert more == mixtures * rows * 40 * (1 + element_bytes)


def test_inference_drops_nothing() -> None:
    assert spec(0).with_dropout(0.0).dropout == Dropout(**dict.fromkeys(Dropout.model_fields, 0.0))
    assert without_values(spec(0).with_dropout(0.0)) == without_values(around_a_model(PARTS[0]))


def test_a_model_without_places_drops_in_attention_alone() -> None:
    plain = around_a_model(PARTS[0])
    assert plain.with_dropout(None) is plain
    assert plain.with_dropout(0.2).dropout == Dropout(attention=0.2)


@pytest.mark.parametrize(
    ("capability", "size", "dropout", "backend"),
    [
        (90, 64, 0.0, "cudnn"),
        (90, 64, 0.125, "cudnn"),  # a multiple of 1/16
        (90, 64, 0.1, "flash"),
        (80, 64, 0.1, "flash"),
        (75, 64, 0.1, "efficient"),
        (89, 256, 0.0, "flash"),
        (89, 256, 0.1, "efficient"),
        (0, 64, 0.0, "cpu"),
        (0, 64, 0.1, "math"),
    ],
)
def test_sdpa_chooses_by_dropout(capability: int, size: int, dropout: float, backend: str) -> None:
    dtype = BFLOAT16 if capability != 75 else FLOAT16
    assert sdpa_backend(capability, SdpaCall(dtype, size, size, 128, False, True, dropout)) == backend
