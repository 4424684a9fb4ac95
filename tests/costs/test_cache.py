"""KV caches: hand arithmetic, the bytes that the reference caches, what-ifs against written-out specs, and growth."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import llmcalc
from llmcalc.components.base import Component
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.merged_attention import MergedAttention
from llmcalc.components.mixers.mla import MLA
from llmcalc.components.stack import Stack
from llmcalc.costs.cache import CacheGroup, CacheSize, kv
from llmcalc.costs.model_changes import changed_models
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.ops import Op
from llmcalc.ops.base import CACHE_EFFECTS
from llmcalc.witnesses.module_measurements import cache_bytes_by_path
from llmcalc.workload.run_config import RunConfig
from tests.contracts.test_parts import COMPUTED, around_a_model, decoder, encoder_decoder, source_of
from tests.samples import in_one_test


def if_(cache: CacheSize) -> dict[str, int]:
    return {found.model_change.key: found.cache.bytes for found in cache.what_if}


# Hand arithmetic


def test_llama() -> None:
    """2 (keys, values) · 32 layers · 8 heads · 128 · 2 bytes = 131,072 per token."""
    cache = llmcalc.kv(llmcalc.load("llama3-8b"), seq=8192)
    assert cache.bytes == 2 * 32 * 8 * 128 * 2 * 8192 == 1_073_741_824
    assert cache.bytes_per_token == cache.growth_per_token == 131_072
    assert cache.elements == 2 * 32 * 8 * 128 * 8192
    assert cache.by_layer_kind == {"full_attention": cache.bytes}
    assert llmcalc.kv(llmcalc.load("llama3-8b"), batch=7, seq=8192).bytes == 7 * cache.bytes
    assert if_(cache) == {"mha": 4 * cache.bytes, "mqa": cache.bytes // 8}  # it already has GQA-8


def test_deepseek_v3() -> None:
    """61 layers of a latent of 512 and a rotary key of 64, against 128 heads' keys of 192 and values of 128."""
    cache = llmcalc.kv(llmcalc.load("deepseek-v3"), seq=100)
    assert cache.bytes == 61 * (512 + 64) * 2 * 100
    assert cache.bytes_per_token == 70_272
    assert cache.by_layer_kind == {"latent_attention": cache.bytes}
    per_head = 61 * (128 + 64 + 128) * 2 * 100
    assert if_(cache) == {"mha": 128 * per_head, "gqa_8": 8 * per_head, "mqa": per_head}


def test_sliding_windows() -> None:
    """Gemma 3 27B: 52 layers of 1,024 tokens and 10 layers of all tokens, 16 key/value heads of 128."""
    a_layer = 2 * 16 * 128 * 2
    short, long = (llmcalc.kv(llmcalc.load("gemma3-27b"), seq=seq) for seq in (1000, 32768))
    assert short.bytes == 62 * a_layer * 1000  # no window is full yet
    assert short.growth_per_token == short.bytes_per_token == 62 * a_layer
    assert long.by_layer_kind == {"sliding_attention": 52 * a_layer * 1024, "full_attention": 10 * a_layer * 32768}
    assert (long.bytes_per_token, long.growth_per_token) == (62 * a_layer, 10 * a_layer)
    assert if_(long)["no_windows"] == 62 * a_layer * 32768
    assert CacheGroup("sliding_attention", 52, 1024, 2 * 16 * 128, 52 * a_layer * 1024) in long.groups


def test_a_chunk_is_held_as_a_window_is() -> None:
    cache = kv(decoder(attention=Attention(num_attention_heads=4, attention_chunk_size=6)), seq=10)
    assert cache.by_layer_kind == {"chunked_attention": 2 * 2 * 24 * 6 * 2}
    assert if_(cache)["no_windows"] == 2 * 2 * 24 * 10 * 2


def test_an_encoder_decoder_keeps_its_source_too() -> None:
    spec = encoder_decoder(
        Block.examples()[-1]
    )  # self-attention: 2 of 4 heads of 6; cross-attention: 2 heads of 12; 2 layers
    own, crossing = 2 * 2 * 12 * 2, 2 * 2 * 24 * 2
    assert kv(spec, seq=5).by_layer_kind == {"full_attention": own * 5, "cross_attention": crossing * 5}
    told = kv(spec, seq=5, source=30)
    assert told.by_layer_kind == {"full_attention": own * 5, "cross_attention": crossing * 30}
    assert told.growth_per_token == own  # the source has been read
    assert told.bytes_per_token == kv(spec, seq=5).bytes_per_token == own + crossing  # in encoder and decoder
    assert told.size_after(1024).bytes == own * 1024 + crossing * 30
    assert kv(spec, seq=5).size_after(1024).bytes == (own + crossing) * 1024
    assert if_(told) == {"mha": 2 * own * 5 + crossing * 30, "mqa": (own * 5 + crossing * 30) // 2}


def test_dtypes() -> None:
    cache = llmcalc.kv(llmcalc.load("llama3-8b"), seq=64)
    assert [cache.bytes // cache.bytes_in_format(name) for name in ("bf16", "fp8", "int8", "int4")] == [1, 2, 2, 4]
    assert llmcalc.kv(llmcalc.load("llama3-8b"), seq=64, dtype="fp8").bytes == cache.bytes_in_format("fp8")
    with pytest.raises(InputError, match="bf17"):
        llmcalc.kv(llmcalc.load("llama3-8b"), dtype="bf17")
    three = kv(
        decoder(
            attention=MLA(num_attention_heads=1, kv_lora_rank=1, qk_nope_head_dim=2, qk_rope_head_dim=2, v_head_dim=1)
        ),
        seq=1,
    )
    assert three.elements == 2 * 3
    assert three.bytes_in_format("int4") == 3  # 6 elements of 4 bits


def test_states_with_a_dtype_of_their_own_are_no_elements() -> None:
    """An op with a state of 100 bits per sequence, independent of the dtype of keys and values."""

    class Kept(Op):
        effects = CACHE_EFFECTS

        def cache_bits(self, s: RunConfig, kv_bits: Any) -> Any:
            return 96 * s.batch

    cache = kv(decoder(), batch=2, seq=3)
    op = Kept()
    tree = cache.spec.tree()
    first, *rest = tree.children
    both = replace(cache, tree=replace(tree, children=(replace(first, op=op), *rest)).with_effect("cache_bits"))
    assert both.bytes == cache.bytes + 2 * 12
    assert both.elements == cache.elements
    assert both.by_layer_kind == cache.by_layer_kind | {"recurrent_state": 24}
    assert both.growth_per_token == cache.growth_per_token
    assert both.bytes_in_format("int4") == cache.bytes_in_format("int4") + 24


def test_an_encoder_keeps_nothing() -> None:
    spec = ModelSpec(
        vocab_size=50,
        hidden_size=24,
        tie_word_embeddings=False,
        encoder=Stack(num_hidden_layers=1, block=decoder().decoder.block),
    )
    with pytest.raises(InputError, match="encoder-only"):
        kv(spec, seq=4)
    with pytest.raises(InputError, match="--source"):
        kv(decoder(), seq=4, source=4)


# The bytes that the reference caches


@in_one_test
@pytest.mark.parametrize("example", [case for case in COMPUTED if not case.marks])
def test_what_is_listed_is_what_is_held(example: Component) -> None:
    """The kinds add up to the total, and the reference caches the same bytes, with 32 bits per element."""
    spec = around_a_model(example)
    cache = kv(spec, batch=2, seq=9, format_name="fp32")
    assert sum(cache.by_layer_kind.values()) == sum(held.bytes for held in cache.groups) == cache.bytes
    assert all(
        held.bytes == 2 * held.layers * held.tokens * held.width * 4
        for held in cache.groups
        if held.tokens is not None and held.width is not None
    )
    store: dict[torch.nn.Module, Any] = {}
    net = spec.reference()
    ids = torch.zeros(2, 9, dtype=torch.long)
    net(ids, source_of(spec, 9), cached_tensors=store)
    assert cache_bytes_by_path(store, net)[""] == cache.bytes


# What-ifs


@pytest.mark.parametrize("name", ["mha", "gqa_8", "mqa", "no_windows"])
def test_a_what_if_is_the_model_written_out(name: str) -> None:
    heads = {"mha": 32, "gqa_8": 8, "mqa": 1, "no_windows": 4}[name]
    window = None if name == "no_windows" else 4
    is_, would_be = (
        decoder(attention=Attention(num_attention_heads=32, num_key_value_heads=k, head_dim=6, sliding_window=w))
        for k, w in ((4, 4), (heads, window))
    )
    found = {what.key: spec for what, spec in changed_models(is_)}
    assert set(found) == {"mha", "gqa_8", "mqa", "no_windows"}
    assert found[name] == would_be
    cache = kv(is_, batch=2, seq=10)
    assert if_(cache)[name] == kv(would_be, batch=2, seq=10).bytes
    assert {w.model_change.key: w.ratio for w in cache.what_if}[name] == pytest.approx(
        heads / 4 * (10 / 4 if name == "no_windows" else 1)
    )


def test_what_if_merged_attention_had_other_heads() -> None:
    """It caches keys and values of both sides: 2 of 4 heads, and a window of 5, of 12 tokens and of the 12 encoder
    tokens.
    """
    part = MergedAttention(num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=5)
    is_ = around_a_model(part)
    found = {what.key: kv(spec, seq=12).bytes for what, spec in changed_models(is_)}
    token = 2 * 2 * 8 * 2 * 2  # keys and values, heads, head_dim, bytes, layers
    assert kv(is_, seq=12).bytes == token * (5 + 12)
    assert (found["mha"], found["mqa"], found["no_windows"]) == (2 * token * 17, token * 17 // 2, token * 24)


def test_what_changes_nothing_is_not_listed() -> None:
    def keys(**attention: Any) -> list[str]:
        return [what.key for what, _ in changed_models(decoder(attention=Attention(**attention)))]

    assert keys(num_attention_heads=4) == ["mqa"]
    assert keys(num_attention_heads=4, num_key_value_heads=1) == ["mha"]
    assert keys(num_attention_heads=8, num_key_value_heads=4) == ["mha", "mqa"]  # GQA-8 would be MHA
    assert keys(num_attention_heads=12, head_dim=2, num_key_value_heads=4) == ["mha", "mqa"]  # 8 does not divide 12
    assert keys(num_attention_heads=1) == []


# Growth


@in_one_test
@pytest.mark.parametrize(
    ("limit", "seq", "expected"),
    [
        (8192, 8192, [1024, 2048, 4096, 8192]),
        (8192, 20000, [1024, 2048, 4096, 8192, 16384, 20000]),
        (5000, 100, [100, 1024, 2048, 4096, 5000]),
        (512, 100, [100, 512]),
        (None, 1024, [2**i for i in range(10, 18)]),
    ],
)
def test_contexts(limit: int | None, seq: int, expected: list[int]) -> None:
    cache = kv(decoder(max_position_embeddings=limit), seq=seq, batch=3)
    assert cache.contexts == expected
    assert cache.growth == {tokens: 3 * tokens * cache.bytes_per_token for tokens in expected}


# The command


def test_json(run: Any) -> None:
    code, out, err = run("kv", "llama3-8b", "gemma3-27b", "--batch", "2", "--format", "json")
    first, second = json.loads(out)
    assert (code, err) == (0, "")
    cache = first["cache"]
    assert first["workload"] == {"batch": 2, "seq": 8192, "dtype": "bfloat16"}
    assert (cache["bytes"], cache["bytes_per_token"], cache["growth_per_token"]) == (2_147_483_648, 131_072, 131_072)
    assert cache["by_layer_kind"] == {"full_attention": cache["bytes"]}
    assert cache["what_if"]["mha"]["bytes"] == 4 * cache["bytes"]
    assert cache["what_if"]["mha"]["ratio"] == 4
    assert cache["growth"][-1] == {"seq": 8192, "bytes": cache["bytes"]}
    assert set(second["cache"]["by_layer_kind"]) == {"sliding_attention", "full_attention"}


@pytest.mark.parametrize("target", ["llama3-8b", "deepseek-v3", "gemma3-27b", "t5-base"])
def test_the_tables_say_it_in_eighty_columns(run: Any, target: str) -> None:
    code, out, _ = run("kv", target, "--batch", "1024", "--seq", "131072", "--dtype", "fp32")
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 80
    for text in ("what if", "as MQA", "tokens per sequence", "in fp32", "int4", "TiB"):
        assert text in out


@pytest.mark.parametrize(
    ("target", "growth"),
    [
        ("t5-base", "per token of both stacks, 36.00 KiB per further decoded token"),
        ("gemma3-27b", "until a window fills"),
        (
            "mamba2-370m",
            "states of 1 sequence in 16 bits (conv_state) and 32 bits (recurrent_state), the same at any length",
        ),
        ("mamba2-370m --kv-dtype fp32", "states of 1 sequence in 32 bits, the same at any length; no keys and values"),
    ],
)
def test_what_a_further_token_adds(run: Any, target: str, growth: str) -> None:
    """T5 has no windows: its cross-attention caches the encoder's tokens once."""
    output = " ".join(run("kv", *target.split())[1].split())
    assert growth in output
    assert ("tokens per sequence" in output) is (not target.startswith("mamba2"))


def test_a_model_published_in_float32_says_what_memory_counts(run: Any) -> None:
    """transformers caches in their format, vLLM in 16 bits (vllm/config/model.py, _get_and_verify_dtype)."""
    for words, is_noted in ((("gpt2",), True), (("gpt2", "--kv-dtype", "fp32"), False), (("llama3-8b",), False)):
        notes = run("kv", *words, "--format", "json").document["notes"]
        assert any("--kv-dtype fp32" in note for note in notes) is is_noted
    in_memory = run("memory", "gpt2", "--seq", "512", "--format", "json").document
    in_kv = run("kv", "gpt2", "--seq", "512", "--kv-dtype", "fp32", "--format", "json").document
    assert in_kv["cache"]["bytes"] == in_memory["memory"]["by_kind"]["cache"]


def test_more_tokens_than_the_model_was_made_for(run: Any) -> None:
    _, out, err = run("kv", "llama3-8b", "--seq", "8193", "--format", "csv")
    assert (
        err == "note: llama3-8b: 8,193 tokens are more than the model's max_position_embeddings of 8,192; counted "
        "anyway\n"
    )
    assert out.splitlines()[0] == "target,layer_kind,layers,tokens,elements_per_token,bytes,share"
    assert "8,193 tokens are more" in " ".join(run("kv", "llama3-8b", "--seq", "8193")[1].split())
    assert "more than" not in run("kv", "llama3-8b")[1]


@pytest.mark.parametrize(
    "words",
    [("bert-base",), ("llama3-8b", "--dtype", "bf17"), ("llama3-8b", "--source", "4"), ("llama3-8b", "--seq", "0")],
)
def test_bad_usage_is_one_line_and_exit_code_2(run: Any, words: tuple[str, ...]) -> None:
    assert run("kv", *words).error
