"""Linear layers in 8 bits: what a layer of a rank saves, and which weights stay, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.device.megatron import rank_memory
from llmcalc.device.megatron.run import RankRun
from llmcalc.errors import InputError
from llmcalc.kernels.meter import Meter
from llmcalc.run.megatron import MegatronSettings
from llmcalc.sources.launch.megatron_model import model_of

H, HEADS, FFN, TP, ROWS = 512, 8, 1024, 2, 2 * 256
"""Sizes of the model, and the tokens of a micro-batch."""

WEIGHTS = (3 * H * H + H * H + 2 * FFN * H + FFN * H) // TP
"""Elements of the linear layers of one layer on a rank: qkv, proj, fc1 and fc2."""


def settings(layers: int = 2, **changes: Any) -> MegatronSettings:
    given: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": H,
        "num_attention_heads": HEADS,
        "ffn_hidden_size": FFN,
        "max_position_embeddings": 256,
        "seq_length": 256,
        "micro_batch_size": 2,
        "global_batch_size": 8,
        "vocab_size": 1024,
        "tokenizer_type": "NullTokenizer",
        "normalization": "RMSNorm",
        "swiglu": True,
        "disable_bias_linear": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "bf16": True,
        "world_size": 4,
        "tensor_model_parallel_size": TP,
        "sequence_parallel": True,
        "use_distributed_optimizer": True,
        "fp8_format": "hybrid",
        "fp8_recipe": "tensorwise",
        "fp8_param_gather": True,
    }
    return MegatronSettings(**{**given, **changes})


def saved(layers: int, **changes: Any) -> int:
    """Bytes that a forward pass leaves."""
    one, meter = settings(layers, **changes), Meter()
    run = RankRun(model_of(one, ""), one, 0, meter)
    run.set_up()
    run.forward(run.chunks[0], None)  # weights in 8 bits are made
    before = meter.now
    made = run.forward(run.chunks[0], None)
    found = int(meter.now - before)
    del made
    return found


def of_a_layer(**changes: Any) -> int:
    return saved(3, **changes) - saved(2, **changes)


def by_hand(transposed: bool, narrow: bool = True, divided: bool = True) -> int:
    """What one layer saves: h wide, f wide inside, of R tokens, r of them on this rank."""
    r, scale = ROWS // TP if divided else ROWS, 4
    residual = 2 * (2 * r * H + 4 * r)  # the input of both norms in bf16, and one number of each row
    of_norms = 2 * (r * H + scale) if narrow else 2 * (2 * r * H)
    attention = 2 * ROWS * 3 * H // TP + 2 * ROWS * H // TP + 4 * ROWS * HEADS // TP + 2 * 8  # qkv, out, sums, seed
    swiglu = 2 * ROWS * 2 * FFN // TP
    down = ROWS * FFN // TP + scale if narrow else 2 * ROWS * FFN // TP
    del transposed  # one of both copies is saved
    return residual + of_norms + attention + swiglu + down


@pytest.mark.parametrize("gpu", ["H100", "B200"])
@pytest.mark.parametrize("gathered", [True, False])
def test_a_layer_saves_a_byte_for_each_input_of_a_product(gpu: str, gathered: bool) -> None:
    """The output of attention alone is saved in 16 bits, as attention saves it."""
    assert of_a_layer(gpu=gpu, fp8_param_gather=gathered) == by_hand(gpu == "H100")


def test_without_8_bits_a_layer_saves_two() -> None:
    assert of_a_layer(fp8_format=None, fp8_param_gather=False) == by_hand(transposed=False, narrow=False)


def test_rows_that_ranks_do_not_divide() -> None:
    assert of_a_layer(sequence_parallel=False) == by_hand(transposed=True, divided=False)


def after_step(layers: int, **changes: Any) -> int:
    one = settings(layers, **changes)
    meter = Meter()
    run = RankRun(model_of(one, ""), one, 0, meter)
    run.set_up()
    run.step()
    run.step()
    return int(meter.now)


@pytest.mark.parametrize(
    ("gpu", "gathered", "bytes_of_weights"),
    [
        ("H100", True, 1 + 1),  # rows, and columns
        ("B200", True, 1),
        ("H100", False, 2 + 1 + 1),
        ("B200", False, 2 + 1),
    ],
)
def test_weights_that_stay(gpu: str, gathered: bool, bytes_of_weights: int) -> None:
    """A layer's weights, gradients in fp32, half of the optimizer's fp32 weights and states; two norms in bf16."""
    changes = {"gpu": gpu, "fp8_param_gather": gathered}
    more = after_step(4, **changes) - after_step(2, **changes)
    scales = 4 * 4
    linear = WEIGHTS * (bytes_of_weights + 4 + 12 // 2) + scales
    norms = 2 * H * (2 + 4 + 12 // 2)
    assert abs(more - 2 * (linear + norms)) <= 4096  # the ends of buckets


def test_first_and_last_layers_stay_wide() -> None:
    wide = {"first_last_layers_bf16": True, "num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 2}
    narrow, all_wide = saved(6), saved(6, fp8_format=None, fp8_param_gather=False)
    one = by_hand(transposed=False, narrow=False) - by_hand(transposed=True)
    assert all_wide - narrow == 6 * one
    assert saved(6, **wide) - narrow == 3 * one
    run = RankRun(model_of(settings(6, **wide), ""), settings(6, **wide), 0, Meter())
    made = run.chunks[0].lowering.parameters_of(run.chunks[0].program)
    assert sorted({one.path[2] for one in made if one.narrow}) == [1, 2, 3]


def test_layers_are_numbered_over_stages() -> None:
    """The last of four layers is the second of the second stage."""
    changes = {
        "first_last_layers_bf16": True,
        "num_layers_at_start_in_bf16": 0,
        "pipeline_model_parallel_size": 2,
    }
    one = settings(4, **changes)
    run = RankRun(model_of(one, ""), one, 2, Meter())
    made = run.chunks[0].lowering.parameters_of(run.chunks[0].program)
    narrow = {one.path for one in made if one.narrow}
    assert {path[2] for path in narrow} == {2}
    assert len(narrow) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"fp8_recipe": "delayed"},
        {"fp8_recipe": "blockwise"},
        {"num_experts": 4},
        {"multi_latent_attention": True},
        {"gpu": "A100"},
        {"optimizer": "sgd"},
        {"tp_comm_overlap": True},
        {"recompute_granularity": "full", "recompute_method": "uniform"},
        {"fp8_output_proj": True},
    ],
)
def test_other_8_bit_products_are_refused(changes: dict[str, Any]) -> None:
    one = settings(**changes)
    assert "--fp8-format" in one.not_modelled()
    with pytest.raises(InputError, match="--fp8-format"):
        rank_memory(model_of(one, ""), one, 0)
