"""Logs as they reach a reader: with prefixes and colours, in other encodings, cut off, and by newer wordings."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from tests.engines import engine_memory

functions: Any = llmcalc

LOGS = sorted((Path(__file__).parents[2] / "data" / "logs").glob("*.log"))
GIB, MIB = 2**30, 2**20


def prefixed(prefix: str) -> Callable[[str], bytes]:
    return lambda text: "".join(f"{prefix}{line}\n" for line in text.splitlines()).encode()


VARIANTS: dict[str, Callable[[str], bytes]] = {
    "docker compose": prefixed("vllm-1  | "),
    "kubectl --timestamps": prefixed("2026-03-14T09:12:41.123456789Z "),
    "journald": prefixed("Mar 14 09:12:41 node-7 engine[1884]: "),
    "colours": prefixed("\x1b[2K\x1b[1;36m(EngineCore pid=2)\x1b[0;0m "),
    "Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "PowerShell": lambda text: text.encode("utf-16"),
    "a mark of UTF-8": lambda text: text.encode("utf-8-sig"),
    "docker's JSON": lambda text: "\n".join(
        json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in text.splitlines() if '"' not in line
    ).encode(),
}


@cache
def terms_of_plain_log(path: Path) -> list[Any]:
    return terms_of(path)


def terms_of(path: Path) -> list[Any]:
    document = functions.explain_log(path).document
    return [(term["name"], term["device"], term["log"]) for term in document["terms"]]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_variant_has_the_terms_of_the_plain_log(log: Path, variant: str, tmp_path: Path) -> None:
    text = log.read_text()
    if variant == "docker's JSON" and '"' in text:
        pytest.skip("the log has quotes, which JSON escapes")
    file = tmp_path / "engine.log"
    file.write_bytes(VARIANTS[variant](text))
    assert terms_of(file) == terms_of_plain_log(log)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_log_that_is_cut_off_is_read_as_far_as_it_goes_or_refused(log: Path, share: float, tmp_path: Path) -> None:
    data = log.read_bytes()
    file = tmp_path / "engine.log"
    file.write_bytes(data[: int(len(data) * share)])
    whole = {(name, device) for name, device, _ in terms_of_plain_log(log)}
    try:
        read = {(name, device) for name, device, _ in terms_of(file)}
    except InputError as error:
        assert "no line is known" in str(error)  # noqa: PT017
    else:
        assert read <= whole | {("profile_run", None), ("kv_cache", None)}


NEWER: dict[str, tuple[str, dict[str, int]]] = {
    # vllm/v1/worker/gpu_worker.py, `compile_or_warm_up_model`, in 0.19
    "what vLLM 0.19 took": (
        "INFO [gpu_worker.py:661] Free memory on device (78.69/79.19 GiB) on startup. Desired GPU memory utilization "
        "is (0.9, 71.27 GiB). Actual usage is 14.99 GiB for weight, 1.89 GiB for peak activation, 0.25 GiB for "
        "non-torch memory, and 0.82 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with "
        "`--kv-cache-memory=58143211520` (54.15 GiB) to fit into requested memory.",
        {
            "budget": round(71.27 * GIB), "weights": round(14.99 * GIB), "profile_run": round(1.89 * GIB),
            "non_torch": round(0.25 * GIB), "cuda_graphs": round(0.82 * GIB),
        },
    ),
    # the same in 0.33: weights and what is outside torch in one amount
    "what vLLM 0.33 took": (
        "INFO Model loading took 14.99 GiB memory and 3.1 seconds\n"
        "INFO [gpu_worker.py:1064] Free memory on device (78.69/79.19 GiB) on startup. Desired GPU memory utilization "
        "is (0.92, 72.85 GiB). Actual usage is 15.55 GiB for consumed memory (weights + non-torch), 1.88 GiB for peak "
        "activation, and 0.85 GiB for CUDAGraph memory.",
        {
            "budget": round(72.85 * GIB), "weights": round(14.99 * GIB), "profile_run": round(1.88 * GIB),
            "non_torch": round(15.55 * GIB) - round(14.99 * GIB), "cuda_graphs": round(0.85 * GIB),
        },
    ),
    # numbers of https://github.com/noonghunna/club-3090/issues/1087: the peak has the estimate of the graphs in it
    "what vLLM 0.28 took": (
        "INFO [gpu_worker.py:726] CUDA graph pool memory: 0.09 GiB (actual), 0.13 GiB (estimated), difference: 0.04 "
        "GiB (51.1%).\n"
        "INFO [gpu_worker.py:789] Free memory on device (30.27/31.4 GiB) on startup. Desired GPU memory utilization is "
        "(0.92, 28.88 GiB). Actual usage is 15.03 GiB for consumed memory (weights + non-torch), 1.59 GiB for peak "
        "activation, and 0.09 GiB for CUDAGraph memory. Current kv cache memory in use is 12.26 GiB.",
        {
            "budget": round(28.88 * GIB), "profile_run": round(1.59 * GIB) - round(0.13 * GIB),
            "cuda_graphs": round(0.13 * GIB), "kv_cache": round(12.26 * GIB),
        },
    ),
    # ollama/ml/backend/ggml and llm/server.go
    "Ollama by device": (
        'time=2026-01-08 level=INFO source=ggml.go:136 msg="" architecture=qwen3 file_type=Q4_K_M name="Qwen3 8B" '
        'description="" num_tensors=399\n'
        'time=2026-01-08 level=INFO source=runner.go:1278 msg=load request="{Operation:commit Parallel:1 BatchSize:512 '
        'FlashAttention:Enabled KvSize:40960 KvCacheType: GPULayers:30}"\n'
        'time=2026-01-08 level=INFO source=device.go:240 msg="model weights" device=CUDA0 size="4.4 GiB"\n'
        'time=2026-01-08 level=INFO source=device.go:245 msg="model weights" device=CPU size="333.8 MiB"\n'
        'time=2026-01-08 level=INFO source=device.go:251 msg="kv cache" device=CUDA0 size="5.6 GiB"\n'
        'time=2026-01-08 level=INFO source=device.go:262 msg="compute graph" device=CUDA0 size="300.8 MiB"\n'
        'time=2026-01-08 level=INFO msg="llama runner started" binary=ollama',
        {
            "model_buffer CUDA0": round(4.4 * GIB), "model_buffer CPU": round(333.8 * MIB),
            "kv_buffer CUDA0": round(5.6 * GIB), "compute_buffer CUDA0": round(300.8 * MIB),
        },
    ),
    # ggml/src/ggml-cuda/ggml-cuda.cu, `ggml_backend_cuda_buffer_type_alloc_buffer`
    "llama.cpp out of memory": (
        "load_tensors:        CUDA0 model buffer size =  4403.49 MiB\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 16384.00 MiB on device 0: cudaMalloc failed: out of "
        "memory\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 17179869184",
        {"model_buffer CUDA0": round(4403.49 * MIB), "requested": 16 * GIB},
    ),
    # src/llama-kv-cache.cpp: an excerpt without the lines of buffers
    "llama.cpp's caches alone": (
        "llama_kv_cache: size = 5760.00 MiB (262144 cells,   9 layers,  1/1 seqs), K (f16): 3456.00 MiB\n"
        "llama_kv_cache: size =  828.75 MiB (  4352 cells,  39 layers,  1/1 seqs), K (f16):  497.25 MiB",
        {"kv_buffer": round(6588.75 * MIB)},
    ),
    # torchtune/training/memory.py; axolotl/utils/bench.py; LitGPT's units of 10^9 bytes; Unsloth's notebooks; ms-swift
    "torchtune": (
        "INFO:torchtune.utils._logging:Memory stats after model init:\n\tGPU peak memory allocation: 2.50 GiB\n"
        "\tGPU peak memory reserved: 2.75 GiB\n\tGPU peak memory allocation: 1.00 GiB",
        {"peak_allocated": 5 * GIB // 2, "peak_reserved": 11 * GIB // 4},
    ),
    "axolotl": (
        "[axolotl.callbacks.on_step_end:122] GPU memory usage while training: 13.250GB (+56.500GB cache, +1GB misc)",
        {"allocated": 53 * GIB // 4, "unallocated": 113 * GIB // 2},
    ),
    "LitGPT": ("Training time: 24.11s\nMemory used: 21.30 GB", {"peak_allocated": 21_300_000_000}),
    "Unsloth": (
        "5.984 GB of memory reserved.\nPeak reserved memory = 13.5 GB.\nPeak reserved memory for training = 7.516 GB.",
        {"peak_reserved": 27 * GIB // 2},
    ),
    "ms-swift": ("{'loss': 1.2, 'memory(GiB)': 62.5, 'train_speed(iter/s)': 0.21}", {"peak_reserved": 125 * GIB // 2}),
    # axolotl/core/trainers/base.py, `log`, of 2026 and of 2025; verl/workers/fsdp_workers.py; NeMo 2; torchtune's steps
    "axolotl by the step": (
        "{'loss': '1.6', 'memory/max_active (GiB)': '2.25', 'memory/max_allocated (GiB)': '2.25', "
        "'memory/device_reserved (GiB)': '7.5', 'epoch': '1'}\n"
        "{'loss': 1.5, 'memory/max_mem_allocated(gib)': 2.5, 'memory/device_mem_reserved(gib)': 7.25}",
        {"peak_allocated": 5 * GIB // 2, "peak_reserved": 15 * GIB // 2},
    ),
    "verl": (
        "step:1 - perf/max_memory_allocated_gb:80.5 - perf/max_memory_reserved_gb:84.9375 - perf/cpu_memory_used_gb:3",
        {"peak_allocated": 161 * GIB // 2, "peak_reserved": 1359 * GIB // 16},
    ),
    # verl of December 2025 (issue 3992 of verl-project/verl); NeMo-Automodel's recipes/llm/train_ft.py
    "verl's lines around a phase": (
        "megatron actor After compute_log_prob, memory allocated (GB): 52.00, max memory allocated (GB): 52.25, memory "
        "reserved (GB): 58.33, max memory reserved (GB): 58.50, device memory used/total (GB): 16.52/60.96",
        {"peak_allocated": 209 * GIB // 4, "peak_reserved": 117 * GIB // 2},
    ),
    "NeMo-Automodel": (
        "step 0 | epoch 0 | loss 0.7350 | grad_norm 35.6 | lr 1.18e-06 | mem 60.75 GiB | tps 360.1(45.0/gpu)\n"
        "step 10 | epoch 0 | loss 0.5489 | grad_norm 26.1 | lr 2.98e-06 | mem 40.25 GiB | tps 3400(425.0/gpu)",
        {"peak_allocated": 243 * GIB // 4},
    ),
    "NeMo": (
        "iteration 9/29 | global_step: 9 | max_memory_reserved: 57466159104 | max_memory_allocated: 53930270720 | x: 1",
        {"peak_allocated": 53_930_270_720, "peak_reserved": 57_466_159_104},
    ),
    # karpathy/nanochat, scripts/base_train.py; InternLM/xtuner, v1/train/trainer.py, of a step after the peak
    "nanochat": ("Peak memory usage: 75422.00MiB\nTotal training time: 5.05m", {"peak_allocated": 75422 * MIB}),
    "XTuner": (
        "[RANK 0] Step 1/9 time: 4.97 text_tokens: 4008.0 max_memory: 18.5 GB reserved_memory: 20.75 GB tgs: 1\n"
        "[RANK 0] Step 2/9 time: 0.88 text_tokens: 4037.0 max_memory: 16.0 GB reserved_memory: 20.75 GB tgs: 1",
        {"peak_allocated": 37 * GIB // 2, "peak_reserved": 83 * GIB // 4},
    ),
    # meta-llama/llama-cookbook, pull request 650: whole GiB
    "llama-cookbook": (
        "Max CUDA memory allocated was 19 GB\nMax CUDA memory reserved was 29 GB\nPeak active CUDA memory was 23 GB",
        {"peak_allocated": 19 * GIB, "peak_reserved": 29 * GIB},
    ),
    # c10/cuda/CUDACachingAllocator.cpp of torch 2.14, without the exception's message
    "torch's warning": (
        "[W906 15:02:06.204334026 CUDACachingAllocator.cpp:3934] memory allocation failed with OOM on device 0 while "
        "trying to allocate 1000341504 bytes (free: 916848640, total: 25243287552).",
        {"requested": 1_000_341_504, "free": 916_848_640},
    ),
    "torchtune's steps": (
        "Step 1 | loss:1.5 lr:2e-05 peak_memory_active:16.5 peak_memory_alloc:16.5 peak_memory_reserved:18.25 ",
        {"peak_allocated": 33 * GIB // 2, "peak_reserved": 73 * GIB // 4},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEWER)
def test_newer_wordings_are_read(name: str, tmp_path: Path) -> None:
    text, expected = NEWER[name]
    file = tmp_path / "engine.log"
    file.write_text(text)
    read = {f"{term} {device or ''}".strip(): value for term, device, value in terms_of(file)}
    assert read == expected


def test_lines_that_only_resemble_a_programs_peak_are_left_out(tmp_path: Path) -> None:
    """Any program may print `Peak memory usage: ` or a field `max_memory`."""
    path = tmp_path / "train.log"
    for text in (
        "Peak memory usage: 75.2 GiB on rank 0",
        "[0] Peak memory usage: 75422.00MiB",
        "a max_memory: 18.5 GB",
    ):
        path.write_text(f"{text}\n")
        with pytest.raises(InputError):
            functions.explain_log(path)


def test_ollamas_request_for_memory_states_the_context(tmp_path: Path) -> None:
    file = tmp_path / "ollama.log"
    file.write_text(NEWER["Ollama by device"][0])
    document = functions.explain_log(file, "qwen3-8b", hardware="rtx-3090").document
    assert document["engine"]["name"] == "ollama"
    terms = {(term["name"], term["device"]): term for term in document["terms"]}
    # 40,960 cells of 36 layers with 8 key heads of 128, keys and values in 16 bits
    assert terms["kv_buffer", "CUDA0"]["computed"] == 40_960 * 36 * 2 * 8 * 128 * 2
    assert abs(terms["model_buffer", "CUDA0"]["difference"]) < 0.02


ENCODER_APART = """\
time=2026-11-02T10:00:00.000Z level=INFO source=server.go:1 msg="starting llama-server" cmd="ollama runner"
print_info: general.name = Gemma 3 12b It
print_info: file type = Q4_K - Medium
load_tensors: offloaded 49/49 layers to GPU
load_tensors:   CPU_Mapped model buffer size =   787.50 MiB
load_tensors:        CUDA0 model buffer size =  6956.38 MiB
clip_model_loader: model size:         811.82 MiB
clip_ctx: CLIP using CUDA0 backend
"""


def test_the_encoder_of_ollamas_tag_is_logged_apart_and_counted_with_the_model(tmp_path: Path) -> None:
    """Both lines of the encoder are those that llama.cpp prints (tools/mtmd/clip.cpp); the sizes are made up."""
    file = tmp_path / "ollama.log"
    file.write_text(ENCODER_APART)
    document = functions.explain_log(file, "gemma3-12b", hardware="rtx-3090").document
    assert document["engine"]["name"] == "ollama"
    terms = {(term["name"], term["device"]): term for term in document["terms"]}
    assert terms["model_buffer", "CUDA0"]["log"] == pytest.approx((6956.38 + 811.82) * 2**20, abs=2**20)
    assert abs(terms["model_buffer", "CUDA0"]["difference"]) < 0.02


CONFIG_LINE = (
    "INFO 04-29 01:34:48 [core.py:58] Initializing a V1 LLM engine (v0.8.5) with config: model='Qwen/Qwen3-14B', "
    "speculative_config=None, tokenizer='Qwen/Qwen3-14B', dtype=torch.bfloat16, max_seq_len=4096, "
    "tensor_parallel_size=2, quantization=None, kv_cache_dtype=auto\n"
)


def test_the_configuration_of_an_engine_names_the_model(tmp_path: Path) -> None:
    """`config: model='…'` was read as a field `config`, so that the log named no model."""
    file = tmp_path / "config.log"
    file.write_text(CONFIG_LINE + "INFO 04-29 01:35:10 [gpu_model_runner.py:1347] Model loading took 13.79 GiB\n")
    document = functions.explain_log(file).document
    assert document["model"]["name"] == "qwen3-14b"
    assert document["terms"][0]["computed"] == pytest.approx(13.79 * 2**30, rel=0.01)


ALLOCATION = "alloc_buffer: allocating 51.72 MiB on device 1: cudaMalloc failed: out of memory\n"
FAILURES = {
    ALLOCATION + "graph_reserve: failed to allocate compute buffers": (
        "compute_buffer",
        "--ubatch-size",
    ),
    ALLOCATION + "llama_model_load: error loading model: unable to allocate CUDA1 buffer": (
        "model_buffer",
        "--n-gpu-layers",
    ),
    "alloc_tensor_range: failed to allocate Vulkan0 buffer of size 1632174080\n"
    "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache": (
        "kv_buffer",
        "--ctx-size",
    ),
    "ValueError: Free memory on device cuda:0 (13.87/15.99 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 14.39 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.": (
        "budget",
        "--gpu-memory-utilization 0.86",
    ),
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing": (
        "kv_cache",
        "--gpu-memory-utilization",
    ),
    "ValueError: To serve at least one request with the models's max seq len (262144), (24.00 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (11.52 GiB).": ("kv_cache", "--max-model-len"),
}


@pytest.mark.parametrize("message", FAILURES, ids=lambda message: FAILURES[message][0] + FAILURES[message][1])
def test_a_failure_names_what_found_no_room_and_its_flag(message: str, tmp_path: Path) -> None:
    file = tmp_path / "failed.log"
    file.write_text(message + "\n")
    document = functions.explain_log(file).document
    assert (document["off"], document["flag"]) == FAILURES[message]


def test_weights_of_sglang_by_the_free_memory_and_of_another_rank(tmp_path: Path) -> None:
    """Before 0.4.4 SGLang prints what is free before and after loading; a posted log may be of the last rank."""
    file = tmp_path / "sglang.log"
    file.write_text(
        "[2024-10-22 06:31:41 TP3] Load weight begin. avail mem=47.27 GB\n"
        "[2024-10-22 06:31:45 TP3] Load weight end. type=Phi3ForCausalLM, dtype=torch.bfloat16, avail mem=40.06 GB\n"
    )
    document = functions.explain_log(file).document
    assert [term["name"] for term in document["terms"]] == ["weights"]
    assert document["terms"][0]["log"] == pytest.approx(7.21 * 2**30)


def test_a_draft_is_loaded_beside_its_target(tmp_path: Path) -> None:
    """Sizes of https://github.com/sgl-project/sglang/pull/35996; a draft after the cache (to 0.5.13) is not counted.

    Each step of `--enable-multi-layer-eagle` has a draft of its own (https://github.com/sgl-project/sglang/pull/25368).
    """
    file = tmp_path / "sglang.log"
    log_lines = (
        "server_args=ServerArgs(model_path='Qwen/Qwen3.8-27B-FP8', tp_size=1, speculative_algorithm='NEXTN')\n"
        "Load weight begin. avail mem=78.68 GB\n"
        "Load weight end. type=Qwen3_5ForConditionalGeneration, avail mem=50.29 GB, mem usage=28.39 GB.\n"
        "Load weight begin. avail mem={free:.2f} GB\n"
        "Load weight end. type=Qwen3_5ForCausalLMMTP, avail mem={left:.2f} GB, mem usage=5.18 GB.\n"
    )
    weights = {}
    for version, free in (("0.5.19", 50.29), ("0.5.13", 20.29)):
        file.write_text(log_lines.format(free=free, left=free - 5.18))
        document = functions.explain_log(file, engine=f"sglang=={version}", hardware="h100").document
        weights[version] = next(term for term in document["terms"] if term["name"] == "weights")
    assert weights["0.5.19"]["log"] == pytest.approx(33.57 * 2**30)
    assert weights["0.5.13"]["log"] == pytest.approx(28.39 * 2**30)
    for term in weights.values():
        assert term["computed"] == pytest.approx(term["log"], rel=0.002)
    second_draft = "".join(log_lines.splitlines(keepends=True)[3:]).format(free=45.11, left=45.11 - 5.18)
    file.write_text(log_lines.format(free=50.29, left=50.29 - 5.18) + second_draft)
    terms = functions.explain_log(file, engine="sglang==0.5.19", hardware="h100").document["terms"]
    weights_term = next(term for term in terms if term["name"] == "weights")
    assert weights_term["log"] == pytest.approx((28.39 + 2 * 5.18) * 2**30)


def test_the_scheme_in_a_name_holds_without_an_accelerator(tmp_path: Path) -> None:
    file = tmp_path / "sglang.log"
    file.write_text(
        "server_args=ServerArgs(model_path='Qwen/Qwen3-8B-FP8', tp_size=1)\n"
        "Load weight end. type=Qwen3ForCausalLM, avail mem=62.40 GB, mem usage=8.80 GB.\n"
    )
    document = functions.explain_log(file).document
    assert document["terms"][0]["computed"] == pytest.approx(8.8 * 2**30, rel=0.02)


def test_a_checkpoint_in_nvfp4_of_a_log_has_the_layers_of_the_answer_by_its_name(tmp_path: Path) -> None:
    """Its attention is in 16 bits: 31.0 GiB with the head; with every linear layer in NVFP4 they were 19.5."""
    name, log = "lukealonso/Gemma-4-31B-IT-NVFP4", tmp_path / "vllm.log"
    log.write_text((LOGS[0].parent / "vllm_v1.log").read_text().replace("meta-llama/Llama-3.1-8B-Instruct", name))
    explained = llmcalc.explain_log(log, hardware="b200").document["terms"]
    named = engine_memory(name, engine="vllm==0.19", hardware="b200", max_model_len=32768)
    weights = next(term for term in explained if term["name"] == "weights")
    assert weights["computed"] == named.term_bytes("weights")


def test_a_first_start_is_computed_as_one_that_compiles(tmp_path: Path) -> None:
    """A log of vLLM 0.28 with the lines of a start that compiles (compilation/backends.py)."""
    lines = (
        "INFO [core.py:123] Initializing a V1 LLM engine (v0.28.0) with config: model='Qwen/Qwen3-14B'",
        "INFO [backends.py:393] Compiling a graph for compile range (1, 2048) takes 15.65 s",
        "INFO [gpu_worker.py:563] Available KV cache memory: 11.57 GiB",
        "INFO [kv_cache_utils.py:2235] GPU KV cache size: 75,824 tokens",
    )
    for compiles in (True, False):
        file = tmp_path / "vllm.log"
        file.write_text("\n".join(line for line in lines if compiles or "Compiling" not in line))
        explained = functions.explain_log(file, hardware="l40s")
        assert explained.document["off"] == (None if compiles else "kv_cache")
        assert any("first start, which compiled" in note for note in explained.document["notes"]) is compiles


def test_the_sampler_that_a_log_names_is_counted(tmp_path: Path) -> None:
    """The cache of Qwen2 7B on an A100 in vLLM 0.10.1.1; FlashInfer's sampler holds less than torch's."""
    lines = (
        "INFO [core.py:75] Initializing a V1 LLM engine (v0.10.1.1) with config: model='Qwen/Qwen2-7B-Instruct'",
        "INFO [utils.py:326] non-default args: {'model': 'Qwen/Qwen2-7B-Instruct', 'max_model_len': 16384, "
        "'gpu_memory_utilization': 0.25}",
        "INFO [topk_topp_sampler.py:50] Using FlashInfer for top-p & top-k sampling.",
        "INFO [gpu_worker.py:276] Available KV cache memory: 5.01 GiB",
        "INFO [kv_cache_utils.py:849] GPU KV cache size: 93,872 tokens",
    )
    for names_sampler in (True, False):
        file = tmp_path / "vllm.log"
        file.write_text("\n".join(line for line in lines if names_sampler or "FlashInfer" not in line))
        explained = functions.explain_log(file, hardware="a100-80gb").document
        assert any("counted with torch's sampler" in note for note in explained["notes"]) is not names_sampler
        assert (abs(explained["terms"][0]["difference"]) < 0.03) is names_sampler


@pytest.mark.parametrize(
    ("message", "engine", "flag"),
    [
        ("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (939).", "vllm", "--max-num-seqs"),
        (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.88.",
            "sglang",
            "--mem-fraction-static",
        ),
    ],
)
def test_a_refusal_names_the_flag_of_its_message(message: str, engine: str, flag: str, tmp_path: Path) -> None:
    """https://github.com/vllm-project/recipes/pull/831, https://github.com/SemiAnalysisAI/InferenceX/issues/2128."""
    file = tmp_path / "engine.log"
    file.write_text(message)
    document = functions.explain_log(file).document
    assert (document["engine"]["name"], document["off"], document["flag"]) == (engine, "kv_cache", flag)


def test_tables_among_the_arguments_are_read(tmp_path: Path) -> None:
    """vLLM prints tables as Python does, with single quotes; a table inside another one has no flags of its own.

    Lines of a log of vLLM 0.21.1: https://github.com/noonghunna/club-3090/issues/294, on two RTX 3090.
    """
    file = tmp_path / "tables.log"
    file.write_text(
        "INFO [utils.py:278] non-default args: {'model': 'Qwen/Qwen3.6-27B', 'tensor_parallel_size': 2, "
        "'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}, "
        "'limit_mm_per_prompt': {'image': {'count': 0}, 'video': 0}, 'compilation_config': {'pass_config': "
        "{'tensor_parallel_size': 4}, 'level': 3}}\n"
        "INFO [core.py:112] Initializing a V1 LLM engine (v0.21.1) with config: model='x'\n"
        "INFO [gpu_worker.py:440] Available KV cache memory: 9.62 GiB\n"
    )
    answer = functions.explain_log(file, hardware="rtx-3090", quantize="w4a16-g128").result
    assert not [note for note in answer.notes if note.startswith("computed without")]
    assert answer.parsed_log.flags["tensor_parallel_size"] == "2"
    assert answer.parsed_log.flags["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 3}


def test_names_of_workers_show_the_layout_of_a_part_of_a_log(tmp_path: Path) -> None:
    """Lines of https://github.com/noonghunna/club-3090/issues/104, and of https://github.com/sgl-project/sglang/pull/11309.

    With the first rank alone a server of one device is computed, which has no room, and that is said.
    """
    file = tmp_path / "part.log"
    line = "INFO 05-07 20:28:11 [gpu_worker.py:460] Available KV cache memory: 9.84 GiB\n"
    tokens = "(EngineCore pid=90) INFO 05-07 20:28:11 [kv_cache_utils.py:1710] GPU KV cache size: 619,202 tokens\n"
    options = {"engine": "vllm==0.21.1", "hardware": "rtx-3090"}

    def explained(*ranks: str, **others: Any) -> Any:
        file.write_text("".join(f"(Worker_{rank} pid=99) {line}" for rank in ranks) + tokens)
        return functions.explain_log(file, "qwen3.6-27b", **options, **others).result

    answer = explained("TP0", "TP1", quantize="w4a16-g128")
    assert answer.parsed_log.flags["tensor_parallel_size"] == 2
    assert abs(answer.terms[0].difference) < 0.15
    first_rank = explained("TP0")
    assert (first_rank.too_large_term, first_rank.suggested_flag, first_rank.terms[0].computed_value) == (
        "kv_cache",
        "",
        0,
    )
    assert any("TP0 alone" in note for note in first_rank.notes)

    for names, layout in (
        (("VllmWorker rank=0", "VllmWorker rank=3"), {"tensor_parallel_size": 4}),
        (("EngineCore_DP0", "EngineCore_DP1"), {"data_parallel_size": 2}),
        (("EngineCore_DP0",), {}),
    ):
        file.write_text("".join(f"({name} pid=9) {line}" for name in names) + tokens)
        answer = functions.explain_log(file, "qwen3-0.6b", hardware="h100").result
        assert (answer.parsed_log.flags, bool(answer.parsed_log.layout_note)) == (layout, bool(layout))

    # index:61511710941: the printed configuration does not say that ranks divide the experts
    config = "INFO [core.py:116] Initializing a V1 LLM engine (v0.26.0) with config: tensor_parallel_size=4,"
    file.write_text(f"{config} data_parallel_size=1\n(Worker_TP0_EP0 pid=9) {line}" + tokens)
    answer = functions.explain_log(file, "qwen3-30b-a3b", hardware="h200").result
    assert answer.parsed_log.flags["enable_expert_parallel"] is True
    assert answer.devices == 4

    file.write_text(
        "".join(
            f"[2025-10-07 DP{rank} TP{rank}] KV Cache is allocated. #tokens: 9, KV size: 43.67 GB\n" for rank in (0, 7)
        )
    )
    flags = functions.explain_log(file).result.parsed_log.flags
    assert flags == {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}


def test_a_cache_whose_tokens_have_the_computed_bytes_is_the_rest_of_another_budget(run: Any, tmp_path: Path) -> None:
    """A log without versions and flags: 411,616 tokens of 144 KiB were allocated, so the number format is right."""
    log_file = tmp_path / "vllm.log"
    lines = ("Available KV cache memory: 56.53 GiB", "GPU KV cache size: 411,616 tokens")
    log_file.write_text("".join(f"INFO 11-02 10:00:00 [gpu_worker.py:298] {line}\n" for line in lines))
    words = (str(log_file), "qwen3-8b", "--hardware", "h100", "--format", "json")
    document = run("explain-log", *words).document
    assert (document["off"], document["flag"]) == ("kv_cache", "--gpu-memory-utilization")
