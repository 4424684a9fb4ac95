"""SGLang's record: its default fractions, pools with the arithmetic beside them, and a start-up log."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.sources.hardware import find_hardware

GIB = 2**30

SHOWN = 81559 / 1024
"""The memory of an H100 as nvidia-smi shows it, in GiB."""


def memory(target: str = "llama3.1-8b", hardware: str = "h100", version: str = "0.5.20", **flags: Any) -> Any:
    return llmcalc.memory(target, hardware=hardware, engine=f"sglang=={version}", **flags).result


@pytest.mark.parametrize(
    ("version", "flags", "fraction"),
    [
        ("0.4.3", {"tp": 2}, 0.87),
        ("0.4.9", {}, round((SHOWN - 9.5 - 0.5) / SHOWN, 3)),
        ("0.5.5", {}, round((SHOWN - (512 + 1.5 * 8192 + 2 * 256 + 128) / 1024) / SHOWN, 3)),
        # 58 lengths of prompts up to 8,192 are captured in pieces
        ("0.5.20", {}, round((SHOWN - (512 + 1.5 * 8192 + 2 * 256 + 128 + 58 * 8) / 1024) / SHOWN, 3)),
        ("0.5.20", {"chunked_prefill_size": 2048}, round((SHOWN - 10) / SHOWN, 3)),
        ("0.5.20", {"mem_fraction_static": 0.9}, None),
    ],
)
def test_the_default_fraction_is_that_of_the_version(
    version: str, flags: dict[str, Any], fraction: float | None
) -> None:
    assert memory(version=version, **flags).assumed.get("--mem-fraction-static") == fraction


def test_tokens_are_what_the_fraction_leaves() -> None:
    answer = memory(mem_fraction_static=0.9)
    left = answer.bytes_of("budget") - answer.bytes_of("weights")
    # 32 layers, 8 key heads of 128, keys and values, 2 bytes
    assert answer.kv_tokens == left // (32 * 8 * 128 * 2 * 2)


def test_windowed_layers_have_a_smaller_pool() -> None:
    answer = memory("gpt-oss-20b", mem_fraction_static=0.9)
    left = answer.bytes_of("kv_cache")
    # 12 full layers and 12 with a window, which keep 0.8 of the tokens; 8 key heads of 64
    assert answer.kv_tokens == int(left // (12 * 1.8 * 8 * 64 * 2 * 2))


def test_states_take_their_share() -> None:
    answer = memory("qwen3.5-9b", mem_fraction_static=0.9)
    # 8 layers of attention, 4 key heads of 256; states take 0.9 of 1.9
    assert answer.kv_tokens == int(answer.bytes_of("kv_cache") / 1.9) // (8 * 4 * 256 * 2 * 2)


def test_tokens_of_a_log() -> None:
    """https://github.com/vllm-project/vllm/issues/21348: 367,404 tokens; about 3.7 % more are computed."""
    answer = memory("qwen3-235b-a22b", version="0.4.9", tp=4, mem_fraction_static=0.93, quantize="fp8-block128")
    assert answer.kv_tokens == pytest.approx(367_404, rel=0.05)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"mem_fraction": 0.9}, "--mem-fraction-static"),
        ({"mem_fraction_static": 2}, "--mem-fraction-static"),
        ({"enable_dp_attention": True}, "data parallelism"),
        ({"quantization": "w4afp8"}, "--quantize SCHEME"),
        ({"speculative_algorithm": "medusa"}, "--speculative-algorithm"),
        ({"speculative_algorithm": "EAGLE", "target": "qwen3.5-9b"}, "states of drafted tokens"),
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        memory(**flags)


def test_too_large_weights_do_not_start() -> None:
    answer = llmcalc.memory("llama3.1-70b", hardware="rtx-4090", engine="sglang")
    assert not answer.ok
    assert "--mem-fraction-static" in answer.document["message"]


def test_replicas_and_stages() -> None:
    whole, replicas = memory(mem_fraction_static=0.8), memory(mem_fraction_static=0.8, dp_size=2)
    assert (replicas.devices, replicas.kv_tokens) == (2, whole.kv_tokens)
    stages = memory(mem_fraction_static=0.8, pp_size=2)
    # 16 of the 32 layers on each of two devices
    assert (stages.devices, memory(mem_fraction_static=0.8, ep_size=1).devices) == (2, 1)
    assert stages.kv_tokens == stages.bytes_of("kv_cache") // (16 * 8 * 128 * 2 * 2)


def test_an_encoder_lowers_the_default_fraction() -> None:
    """27 layers of 1,152 are 1.424 times 24 of 1,024: 0.95 x (1 - 0.1 x 0.424)."""
    fraction = memory("gemma3-27b", version="0.5.5").assumed["--mem-fraction-static"]
    text = round((SHOWN - (512 + 1.5 * 8192 + 2 * 256 + 128) / 1024) / SHOWN, 3)
    assert fraction == pytest.approx(text * 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1)), abs=1e-4)


def test_a_head_that_drafts_lowers_the_default_fraction() -> None:
    def reserve(**flags: Any) -> float:
        return SHOWN * (1 - float(memory(**flags).assumed["--mem-fraction-static"]))

    off = {"version": "0.5.20", "disable_piecewise_cuda_graph": True}
    eagle = {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "x/y"}
    assert reserve(version="0.5.5", **eagle) - reserve(version="0.5.5") == pytest.approx(2, abs=0.08)
    assert reserve(version="0.5.20", **eagle) - reserve(**off) == pytest.approx(4, abs=0.08)
    assert reserve(version="0.5.20", speculative_algorithm="ngram") == reserve(**off)


def test_latent_attention_has_a_reserve_of_its_own() -> None:
    fraction = memory("deepseek-v3", hardware="h200", tp=8).assumed["--mem-fraction-static"]
    gib = find_hardware("h200").memory_bytes / GIB
    # 8,192 tokens of a chunk, graphs of 512 sequences, 8 ranks, and 1.5 GiB for graphs of prompts
    assert fraction == round((gib - (512 + 1.5 * 8192 + 2 * 512 + 1024 + 1536) / 1024) / gib, 3)


def test_long_prompts_take_no_time() -> None:
    with pytest.raises(InputError, match="less than SGLang reserves"):
        memory(piecewise_cuda_graph_max_tokens=10**12)
