"""Logs that do not say which accelerator they are of: what is the same on every one is compared nevertheless."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.frameworks.logs.log_text import LogText
from llmcalc.frameworks.vllm.log import read_log

functions: Any = llmcalc

LLAMA_CPP = """build_info: b9010-d05fe1d7d
print_info: file type   = Q4_K - Medium
print_info: general.name          = Qwen3-Next-80B-A3B-Instruct
load_tensors: offloaded 49/49 layers to GPU
load_tensors:      Vulkan0 model buffer size = 43760.42 MiB
load_tensors:  Vulkan_Host model buffer size =   166.92 MiB
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 34048
llama_context: n_batch       = 2048
llama_context: n_ubatch      = 512
llama_context: flash_attn    = enabled
llama_context: kv_unified    = false
llama_kv_cache:    Vulkan0 KV buffer size =   798.00 MiB
llama_memory_recurrent:    Vulkan0 RS buffer size =    75.38 MiB
sched_reserve:    Vulkan0 compute buffer size =   308.75 MiB
sched_reserve: Vulkan_Host compute buffer size =    74.52 MiB
"""
"""Lines of a log of https://github.com/hogeheer499-commits/strix-halo-guide (filled-kv-decode, 32k)."""

TWO_DEVICES = """ggml_cuda_init: found 2 ROCm devices (Total VRAM: 49152 MiB):
  Device 0: Radeon RX 7900 XTX, gfx1100 (0x1100), VMM: no, Wave Size: 32, VRAM: 24576 MiB
  Device 1: Radeon RX 7900 XTX, gfx1100 (0x1100), VMM: no, Wave Size: 32, VRAM: 24576 MiB
build_info: b9010-d05fe1d7d
print_info: general.name          = Qwen3 8B
load_tensors: offloaded 37/37 layers to GPU
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 8192
llama_context: n_ubatch      = 512
llama_context: flash_attn    = enabled
llama_kv_cache:      ROCm0 KV buffer size =   608.00 MiB
llama_kv_cache:      ROCm1 KV buffer size =   544.00 MiB
"""
"""36 layers of 32 MiB, of which the first 19 are on the first of two equal devices: 37 with the output."""

VLLM = """(APIServer) INFO [utils.py:297] vLLM API server version 0.17.1
(EngineCore) INFO [core.py:101] Initializing a V1 LLM engine (v0.17.1) with config: model='Qwen/Qwen3.5-35B-A3B', \
dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=1, quantization=None, enforce_eager=True, \
kv_cache_dtype=fp8, seed=0, enable_prefix_caching=True, enable_chunked_prefill=True
(EngineCore) INFO [gpu_worker.py:452] Available KV cache memory: 5.69 GiB
(EngineCore) INFO [kv_cache_utils.py:1316] GPU KV cache size: 148,816 tokens
(EngineCore) INFO [kv_cache_utils.py:1321] Maximum concurrency for 32,768 tokens per request: 12.91x
"""
"""Numbers of a log with model and settings (index:63574967224); the device is not named."""


FREE_MEMORY = "ValueError: Free memory on device (61.22/79.25 GiB) on startup is less than desired"


def test_the_memory_of_a_device_without_a_name_is_that_of_the_line_on_free_memory() -> None:
    reading = read_log(LogText(VLLM + FREE_MEMORY))
    assert reading is not None
    assert reading.total_bytes == 79.25 * 2**30
    (available,) = (term for term in reading.terms if term.name == "kv_cache")
    assert available.value == pytest.approx(5.69 * 2**30, abs=0.01 * 2**30)


def terms_of(folder: Path, text: str, target: str, **options: Any) -> dict[str, tuple[int, int | None]]:
    """Name of a term with its device → what the log prints, and what is computed."""
    (folder / "server.log").write_text(text)
    document = functions.explain_log(str(folder / "server.log"), target, **options).document
    return {
        f"{term['name']} {term['device'] or ''}".strip(): (term["log"], term["computed"]) for term in document["terms"]
    }


def test_buffers_of_llama_cpp_follow_from_the_layers_that_are_offloaded(tmp_path: Path) -> None:
    terms = terms_of(tmp_path, LLAMA_CPP, "qwen3-next-80b-a3b")
    for name in ("kv_buffer Vulkan0", "compute_buffer Vulkan0", "compute_buffer Vulkan_Host"):
        log, computed = terms[name]
        # The gate beside the queries makes the GPU's graph 4 MiB smaller than that of Vulkan, unexplained.
        assert computed == pytest.approx(log, rel=0.014 if name == "compute_buffer Vulkan0" else 0.001)


def test_layers_are_divided_over_the_devices_that_a_log_lists(tmp_path: Path) -> None:
    terms = terms_of(tmp_path, TWO_DEVICES, "qwen3-8b", quantize="q4_k_m")
    assert terms == {f"kv_buffer ROCm{number}": (mib * 2**20,) * 2 for number, mib in ((0, 608), (1, 544))}


def test_tokens_of_a_cache_follow_from_its_size(tmp_path: Path) -> None:
    terms = terms_of(tmp_path, VLLM, "qwen3.5-35b-a3b")
    assert terms["kv_tokens"] == (148_816, 148_816)
    assert terms["kv_cache"][1] is None
    other = terms_of(tmp_path, VLLM.replace("enable_prefix_caching=True", "enable_prefix_caching=False"), "qwen3.5-9b")
    assert other["kv_tokens"][1] != 148_816


EXCERPT = """
print_info: general.name     = Llama 3.3 70B Instruct
load_tensors: offloaded 81/81 layers to GPU
load_tensors:        CUDA0 model buffer size = 19899.32 MiB
load_tensors:        CUDA1 model buffer size = 20070.85 MiB
llama_context: n_ctx         = 8192
llama_kv_cache_unified:      CUDA0 KV buffer size =  1312.00 MiB
llama_kv_cache_unified:      CUDA1 KV buffer size =  1248.00 MiB
"""


def test_an_excerpt_has_the_devices_of_its_buffers(tmp_path: Path) -> None:
    """ollama/ollama#9782 has buffers of eight devices: the first one was compared with the whole model."""
    file = tmp_path / "log.txt"
    file.write_text(EXCERPT)
    document = functions.explain_log(file, "llama3.3-70b", quantize="q4_k_m", hardware="rtx-3090").document
    differences = [term["difference"] for term in document["terms"]]
    assert len(differences) == 4
    assert all(abs(difference) < 0.01 for difference in differences)
