"""Cache formats of servers: bytes by hand from the layouts that llama.cpp and vLLM document."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.costs.cache_formats import CACHE_FORMATS, VectorFormat, cache_format
from llmcalc.errors import InputError
from tests.samples import in_one_test

LAYERS, KV_HEADS, HEAD_DIM, TOKENS = 32, 8, 128, 1024  # Llama 3 8B

PER_HEAD = {
    "q8_0": 2 * 4 * 34,  # four blocks of 32 codes and a fp16 scale, for the key and for the value
    "q5_1": 2 * 4 * 24,
    "q5_0": 2 * 4 * 22,
    "q4_1": 2 * 4 * 20,
    "q4_0": 2 * 4 * 18,
    "iq4_nl": 2 * 4 * 18,
    "nvfp4": 2 * (64 + 8),  # 4-bit codes, and a fp8 scale for each 16 elements
    "mxfp4": 2 * (64 + 4),
    "fp8_per_token_head": 2 * (128 + 4),  # a fp32 scale
    "int8_per_token_head": 2 * (128 + 4),
    "int4_per_token_head": 2 * (64 + 4),
    "turboquant_k8v4": 128 + 64 + 4,  # a fp16 scale and zero for the value
    "turboquant_4bit_nc": 64 + 2 + 64 + 4,  # a fp16 norm for the key
    "turboquant_k3v4_nc": 48 + 2 + 64 + 4,
    "turboquant_3bit_nc": 48 + 2 + 48 + 4,
}
"""Bytes of one token's key and value in one head of 128."""


@in_one_test
@pytest.mark.parametrize("name", PER_HEAD)
def test_a_cache_by_hand(name: str) -> None:
    cache = llmcalc.kv("llama3-8b", seq=TOKENS, dtype=name)
    assert cache.bytes == LAYERS * TOKENS * KV_HEADS * PER_HEAD[name]
    assert cache.bytes_per_token == LAYERS * KV_HEADS * PER_HEAD[name]


def test_every_format_is_counted_by_hand() -> None:
    assert PER_HEAD.keys() == {name for name, stored in CACHE_FORMATS.items() if not stored.is_latent_format}


def test_a_format_of_latents_stores_them_alone() -> None:
    """DeepSeek-V3.2: a latent of 512 with 4 scales, 64 rotary elements in bf16; and 128 of the indexer with a scale."""
    cache = llmcalc.kv("deepseek-v3.2", seq=10, dtype="fp8_ds_mla")
    assert cache.bytes_per_token == 61 * ((512 + 4 * 4 + 64 * 2) + (128 + 4)) == 61 * (656 + 132)
    with pytest.raises(InputError, match=r"fp8_ds_mla: stores the latents of MLA.*full attention"):
        assert llmcalc.kv("llama3-8b", seq=10, dtype="fp8_ds_mla").bytes


def test_blocks_are_those_of_ggml() -> None:
    """The sizes that ggml's own Python package states."""
    gguf = pytest.importorskip("gguf")
    sizes = {kind.name.lower(): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "mxfp4"):
        elements, size = sizes[name]
        assert CACHE_FORMATS[name].keys.bytes_of(elements) == size


def test_a_block_that_is_not_full_is_whole_and_a_slot_is_even() -> None:
    assert VectorFormat(4, 32, 2).bytes_of(33) == 2 * 18
    odd = cache_format("turboquant_3bit_nc")
    assert odd.bits_per_token([(1, 8), (1, 8)]) == 8 * (3 + 2 + 3 + 4)
    assert odd.bits_per_token([(1, 8), (1, 16)]) == 8 * (3 + 2 + 6 + 4 + 1)


@pytest.mark.parametrize(("short", "full"), [("bf16", "bfloat16"), ("f16", "float16"), ("fp8_e4m3", "float8")])
def test_number_formats_have_their_bits_alone(short: str, full: str) -> None:
    assert cache_format(short).name == full
    bits = cache_format(short).keys.bits
    assert llmcalc.kv("gpt2", seq=8, dtype=short).bytes == 12 * 8 * 2 * 768 * bits // 8


def test_a_recurrent_state_keeps_sixteen_bits() -> None:
    """Servers quantize keys and values only."""
    spec = llmcalc.load("jamba-v0.1").model
    states = {held.kind: held.bytes for held in llmcalc.kv(spec, seq=64).groups if held.tokens is None}
    quantized = {held.kind: held.bytes for held in llmcalc.kv(spec, seq=64, dtype="q8_0").groups if held.tokens is None}
    assert states
    assert quantized == states


def test_a_latent_is_stored_in_blocks_and_not_by_heads() -> None:
    latent = llmcalc.kv("deepseek-v3", seq=10, dtype="q8_0").bytes
    assert latent == 61 * 10 * (512 + 64) // 32 * 34
    with pytest.raises(InputError, match=r"turboquant_k8v4: stores keys and values of heads.*latent attention"):
        assert llmcalc.kv("deepseek-v3", seq=10, dtype="turboquant_k8v4").bytes


def test_memory_and_compare_take_them_too(run: Any) -> None:
    memory = run("memory", "llama3-8b", "--kv-dtype", "q8_0", "--seq", str(TOKENS), "--format", "json").document
    assert memory["memory"]["kv_cache"] == LAYERS * TOKENS * KV_HEADS * PER_HEAD["q8_0"]
    compared = run("compare", "llama3-8b", "--dtype", "nvfp4", "--format", "json").document
    assert compared["compare"]["kv_bytes_per_token"] == LAYERS * KV_HEADS * PER_HEAD["nvfp4"]


@pytest.mark.parametrize("command", [("kv", "--kv-dtype"), ("memory", "--kv-dtype"), ("compare", "--kv-dtype")])
def test_an_unknown_one_lists_them_all(command: tuple[str, str], run: Any) -> None:
    name, option = command
    err = run(name, "gpt2", option, "q9_0").error
    assert err.startswith(f"error: {option}: unknown cache format 'q9_0': expected a number format (")
    assert all(known in err for known in CACHE_FORMATS)
    assert "Did you mean q" in err


def test_explain_refuses_a_scale_per_head(run: Any) -> None:
    message = run("explain", "gpt2", "--kv-dtype", "int8_per_token_head").error
    assert "--kv-dtype: int8_per_token_head has no number of bytes per element here" in message


def test_convolution_states_stay_in_the_models_format() -> None:
    """vLLM's `mamba_cache_dtype` is auto, the model's format (vllm/model_executor/layers/mamba/mamba_utils.py)."""
    whole, narrow = (llmcalc.kv("lfm2-1.2b", seq=1024, dtype=name) for name in ("bf16", "fp8"))
    assert whole.by_layer_kind["conv_state"] == narrow.by_layer_kind["conv_state"] == 10 * 2048 * 3 * 2
    assert 2 * narrow.by_layer_kind["full_attention"] == whole.by_layer_kind["full_attention"]


def test_formulas_take_blocks() -> None:
    """Blocks of 32 elements in 18 bytes are 0.5625 bytes an element; padded blocks have no such number."""
    for model in ("llama3.1-8b", "lfm2-1.2b"):
        data = llmcalc.explain(model, quantity="kv", seq=64, kv_dtype="q4_0").document
        assert data["kv_bytes"] == llmcalc.kv(model, seq=64, kv_dtype="q4_0").bytes
    with pytest.raises(InputError, match="--kv-dtype: q4_0 has no number of bytes per element here"):
        llmcalc.explain("phi-2", quantity="kv", kv_dtype="q4_0")


def test_a_window_ends_the_cache_of_a_sequence() -> None:
    """Eight layers of Gemma 3 hold the sequence, and forty hold their window: `-s` counts in formulas and in shapes."""
    cache_bytes = llmcalc.kv("gemma3-12b", seq=131_072).bytes
    assert llmcalc.explain("gemma3-12b", quantity="kv", seq=131_072).document["kv_bytes"] == cache_bytes
    shapes = llmcalc.shape("gemma3-12b", seq=131_072, rows=3).document["shapes"]
    target_shape = next(shape for shape in shapes if shape["target"])
    assert target_shape["kv_bytes"] == cache_bytes < 131_072 * target_shape["kv_bytes_per_token"]
