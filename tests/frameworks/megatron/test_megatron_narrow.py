"""Linear layers in 8 bits: what a layer of a rank saves, and which weights stay, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.errors import InputError
from llmcalc.frameworks.megatron.model_from_flags import model_of_arguments
from llmcalc.frameworks.megatron.rank_memory import rank_memory
from llmcalc.frameworks.megatron.rank_run import RankRun
from llmcalc.frameworks.megatron.schedule import run_step
from llmcalc.frameworks.megatron.settings import MegatronSettings
from llmcalc.frameworks.megatron.unsupported import unmodelled_arguments
from llmcalc.simulator.meter import Meter

H, HEADS, FFN, TP, ROWS = 512, 8, 1024, 2, 2 * 256
"""Sizes of the model, and the tokens of a micro-batch."""

WEIGHTS = (3 * H * H + H * H + 2 * FFN * H + FFN * H) // TP
"""Elements of the linear layers of one layer on a rank: qkv, proj, fc1 and fc2."""


MATRICES = [(3 * H // TP, H), (H, H // TP), (2 * FFN // TP, H), (H, FFN // TP)]

BLOCKS = sum(4 * (-(-n // 512) * 4 * (m // 128) + -(-m // 512) * 4 * (n // 128)) for m, n in MATRICES)
"""Bytes of the scales of those weights in blocks of 128 × 128, by rows and by columns, padded to four."""


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
    run = RankRun(model_of_arguments(one, ""), one, 0, meter)
    run.set_up()
    run.backward(None, run.forward(run.chunks[0], None), None)  # weights in 8 bits are made
    before = meter.live_bytes
    chunk_output = run.forward(run.chunks[0], None)
    saved_bytes = int(meter.live_bytes - before)
    del chunk_output
    return saved_bytes


def of_a_layer(**changes: Any) -> int:
    return saved(3, **changes) - saved(2, **changes)


def columns(recipe: str, rows: int, width: int) -> int:
    """Bytes of a saved input of a product, with scales: one, or for each 128 or 32 rows of each column."""
    if recipe == "bf16":
        return 2 * rows * width
    scales = {"blockwise": 4 * -(-rows // 128) * width, "mxfp8": -(-rows // 128) * 4 * -(-width // 128) * 128}
    return rows * width + scales.get(recipe, 4)


def by_hand(recipe: str = "tensorwise", divided: bool = True) -> int:
    """What one layer saves: h wide, f wide inside, of R tokens, r of them on this rank."""
    r = ROWS // TP if divided else ROWS
    residual = 2 * (2 * r * H + 4 * r)  # the input of both norms in bf16, and one number of each row
    of_norms = 2 * columns(recipe, r, H)
    attention = 2 * ROWS * 3 * H // TP + 2 * ROWS * H // TP + 4 * ROWS * HEADS // TP + 2 * 8  # qkv, out, sums, seed
    swiglu = 2 * ROWS * 2 * FFN // TP
    down = columns(recipe, ROWS, FFN // TP)
    proj = columns(recipe, ROWS, H // TP) if recipe == "delayed" else 0  # else what attention saves
    return residual + of_norms + attention + swiglu + down + proj


@pytest.mark.parametrize(
    ("recipe", "gpu"),
    [
        ("tensorwise", "H100"),
        ("tensorwise", "B200"),
        ("delayed", "H100"),
        ("delayed", "B200"),
        ("blockwise", "H100"),
        ("mxfp8", "B200"),
    ],
)
@pytest.mark.parametrize("divided", [True, False])
def test_a_layer_saves_a_byte_for_each_input_of_a_product(recipe: str, gpu: str, divided: bool) -> None:
    changes = {"fp8_recipe": recipe, "gpu": gpu, "sequence_parallel": divided, "fp8_param_gather": False}
    assert of_a_layer(**changes) == by_hand(recipe, divided)


def test_weights_in_8_bits_save_the_same() -> None:
    assert of_a_layer() == by_hand()


def test_without_8_bits_a_layer_saves_two() -> None:
    assert of_a_layer(fp8_format=None, fp8_param_gather=False) == by_hand("bf16")


EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 256,
    "moe_shared_expert_intermediate_size": 128,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "expert_tensor_parallel_size": 1,
    "fp8_param_gather": False,
}


def test_layers_that_run_again_save_their_inputs() -> None:
    again = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    assert of_a_layer(**again) == 2 * ROWS // TP * H
    one = settings(**again)
    assert (
        rank_memory(model_of_arguments(one, ""), one, 0).peak_bytes
        < rank_memory(model_of_arguments(settings(), ""), settings(), 0).peak_bytes
    )


@pytest.mark.parametrize("recipe", ["tensorwise", "delayed", "blockwise", "mxfp8"])
def test_experts_save_a_byte_for_each_input_of_a_product(recipe: str) -> None:
    """Each of four experts has its own scales. The router saves the input of the shared one too, in 16 bits."""
    gpu = "B200" if recipe == "mxfp8" else "H100"
    wide = of_a_layer(**EXPERTS, fp8_format=None, gpu=gpu)
    narrow = of_a_layer(**EXPERTS, fp8_recipe=recipe, gpu=gpu)
    rows = ROWS // TP * 2  # of this rank's tokens, each to two experts, from as many tokens of the other ranks
    each = rows // 4
    of_experts = 2 * rows * (H + 256) - 4 * (columns(recipe, each, H) + columns(recipe, each, 256))
    of_shared = 2 * ROWS * 128 // TP - columns(recipe, ROWS, 128 // TP)
    attention = 2 * ROWS // TP * H - columns(recipe, ROWS // TP, H)
    if recipe == "delayed":  # quantized copies, of what is saved in 16 bits as well
        attention -= ROWS * H // TP + 4
        of_shared -= ROWS // TP * H + 4
    assert wide - narrow == of_experts + of_shared + attention


def test_rows_of_experts_that_would_be_padded_are_refused() -> None:
    one = settings(**EXPERTS, micro_batch_size=1, seq_length=24)
    with pytest.raises(InputError, match="expected a multiple of 16 rows of each"):
        rank_memory(model_of_arguments(one, ""), one, 0)


def after_step(layers: int, **changes: Any) -> int:
    one = settings(layers, **changes)
    meter = Meter()
    run = RankRun(model_of_arguments(one, ""), one, 0, meter)
    run.set_up()
    run_step(run)
    run_step(run)
    return int(meter.live_bytes)


@pytest.mark.parametrize(
    ("recipe", "gpu", "gathered", "bytes_of_weights", "scales"),
    [
        ("tensorwise", "H100", True, 1 + 1, 4 * 4),  # rows, and columns
        ("tensorwise", "B200", True, 1, 4 * 4),
        ("tensorwise", "H100", False, 2 + 1 + 1, 4 * 4),
        ("tensorwise", "B200", False, 2 + 1, 4 * 4),
        ("delayed", "H100", True, 1 + 1, 4 * (4 + 4 * (3 + 3 + 2 + 2))),  # and scales and maxima of five tensors
        ("blockwise", "H100", True, 1 + 1, BLOCKS),
        ("blockwise", "H100", False, 2 + 1 + 1, BLOCKS),
        ("mxfp8", "B200", False, 2 + 1 + 1, 2 * WEIGHTS // 32),
    ],
)
def test_weights_that_stay(recipe: str, gpu: str, gathered: bool, bytes_of_weights: int, scales: int) -> None:
    """A layer's weights, gradients in fp32, half of the optimizer's fp32 weights and states; two norms in bf16."""
    changes = {"fp8_recipe": recipe, "gpu": gpu, "fp8_param_gather": gathered}
    more = after_step(4, **changes) - after_step(2, **changes)
    linear = WEIGHTS * (bytes_of_weights + 4 + 12 // 2) + scales
    norms = 2 * H * (2 + 4 + 12 // 2)
    assert abs(more - 2 * (linear + norms)) <= 4096  # the ends of buckets


def test_first_and_last_layers_stay_wide() -> None:
    wide = {"first_last_layers_bf16": True, "num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 2}
    narrow, all_wide = saved(6), saved(6, fp8_format=None, fp8_param_gather=False)
    one = by_hand("bf16") - by_hand()
    assert all_wide - narrow == 6 * one
    assert saved(6, **wide) - narrow == 3 * one
    run = RankRun(model_of_arguments(settings(6, **wide), ""), settings(6, **wide), 0, Meter())
    made = run.chunks[0].lowering.parameters_of(run.chunks[0].program)
    assert sorted({one.path[2] for one in made if one.is_fp8}) == [1, 2, 3]


def test_layers_are_numbered_over_stages() -> None:
    """The last of four layers is the second of the second stage."""
    changes = {
        "first_last_layers_bf16": True,
        "num_layers_at_start_in_bf16": 0,
        "pipeline_model_parallel_size": 2,
    }
    one = settings(4, **changes)
    run = RankRun(model_of_arguments(one, ""), one, 2, Meter())
    made = run.chunks[0].lowering.parameters_of(run.chunks[0].program)
    narrow = {one.path for one in made if one.is_fp8}
    assert {path[2] for path in narrow} == {2}
    assert len(narrow) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"fp8_recipe": "delayed", "first_last_layers_bf16": True},
        {"fp8_recipe": "mxfp8"},
        {"fp8_recipe": "mxfp8", "gpu": "B200"},
        {"fp8_recipe": "blockwise", "gpu": "B200"},
        {"fp8_recipe": "custom"},
        {"num_experts": 4},
        {"gpu": "A100"},
        {"optimizer": "sgd"},
        {"tp_comm_overlap": True, "fp8_recipe": "delayed"},
        {"fp8_output_proj": True},
        {"recompute_granularity": "selective", "recompute_modules": ("layernorm",)},
    ],
)
def test_other_8_bit_products_are_refused(changes: dict[str, Any]) -> None:
    one = settings(**changes)
    assert "--fp8-format" in unmodelled_arguments(one)
    with pytest.raises(InputError, match="--fp8-format"):
        rank_memory(model_of_arguments(one, ""), one, 0)
