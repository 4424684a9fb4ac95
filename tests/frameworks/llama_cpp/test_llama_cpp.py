"""llama.cpp and its fork: versions, flags, placement, caches with the arithmetic beside them, --fit and commands."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.frameworks.ggml.compute_graph import ComputeGraph, Tensor, buffer_sizes
from llmcalc.frameworks.ggml.gguf_model import DeltaNetSizes, GgufModel, LayerShape
from llmcalc.frameworks.ggml.patterns import NamePattern
from llmcalc.frameworks.ggml.placement import LayerDevices
from llmcalc.frameworks.ggml.transformer_graph import GraphRules, GraphSettings, ModelGraph
from llmcalc.frameworks.llama_cpp.server import create_server
from llmcalc.sources.hardware import find_hardware
from tests.engines import engine_memory
from tests.gguf_files import write_gguf
from tests.in_process import command
from tests.samples import in_one_test

MIB = 2**20


def answer(
    target: str = "llama3.1-8b",
    hardware: str = "rtx-3090",
    engine: str = "llama.cpp==b10488",
    quantize: str = "q4_k_m",
    **flags: Any,
) -> Any:
    return llmcalc.memory(target, hardware=hardware, engine=engine, quantize=quantize, **flags)


def memory(target: str = "llama3.1-8b", **flags: Any) -> Any:
    server = {"hardware": "rtx-3090", "engine": "llama.cpp==b10488", "quantize": "q4_k_m"}
    return engine_memory(target, **server | flags)


@in_one_test
@pytest.mark.parametrize(
    ("text", "record"),
    [("llama.cpp==b6400", "b6325"), ("llama.cpp==6400", "b6325"), ("llama.cpp", "b10250"),
     ("ik_llama.cpp==3700", "3400"), ("ik_llama.cpp", "4832")],
)  # fmt: skip
def test_a_version_has_the_rules_of_its_range(text: str, record: str) -> None:
    assert engine_and_version(text)[1].rules_version == record


def test_a_cache_of_full_layers() -> None:
    # 32 layers, 8 key heads of 128, keys and values, 2 bytes; 8,192 cells, a multiple of 256
    kv = memory(ctx_size=8100, n_gpu_layers="all", parallel=1)
    assert kv.term_bytes("kv_buffer", "CUDA0") == 32 * 2 * 8 * 128 * 2 * 8192
    assert kv.kv_tokens == 8192


def test_fit_works_over_the_devices_that_an_option_counts() -> None:
    # --devices N are all GPUs of the machine, without shares that --fit would leave as they are
    line = "memory llama3.1-70b --engine llama.cpp --hardware rtx-3060 --quantize q4_k_m -c 4096 --devices 2"
    for words, code in (("", 0), (" -ts 1,1", 1), (" -ngl 99999999 --fit off", 1)):  # LocalAI's word for all layers
        assert command(*(line + words).split()).code == code, words


def test_a_mac_whose_memory_suffices_has_the_limit_to_raise() -> None:
    # 32 GiB, of which macOS lets the GPU use 24.96 GiB, before version 26 two thirds; Metal takes no context of it
    def on_a_mac(tokens: int) -> Any:
        return memory("qwen3-32b", hardware="m2-max-32gb", n_gpu_layers="all", fit="off", ctx_size=tokens)

    for tokens, starts, text in ((26624, True, "macOS before 26"), (30720, False, "use 24.96 GiB by default: sudo")):
        mac = on_a_mac(tokens)
        assert (mac.can_start, text in mac.notes[0], "iogpu.wired_limit_mb=" in mac.notes[0]) == (starts, True, True)
    assert not any("wired" in note for tokens in (4096, 131072) for note in on_a_mac(tokens).notes)
    assert re.search("recommended max working set .* 24.96 GiB free", on_a_mac(131072).startup_error)
    assert "vk::Device" in memory("qwen3-32b", n_gpu_layers="all", fit="off", device="Vulkan0").startup_error


def test_buffers_that_miss_only_the_context_may_start() -> None:
    small, full = (
        memory(target, hardware="1GiB", n_gpu_layers=14, fit="off", ctx_size=4096)
        for target in ("gemma3-1b", "llama3.1-8b")
    )
    assert (small.can_start, "may start" in small.notes[0]) == (False, True)
    assert (full.can_start, any("may start" in note for note in full.notes)) == (False, False)


def test_no_change_splits_layers_among_gpus_that_a_mac_has_not() -> None:
    line = "memory qwen3-32b --engine llama.cpp --fit off --quantize q8_0 --hardware "
    assert "-ts 1,1" in command(*f"{line}rtx-3090".split()).out
    assert "-ts" not in command(*f"{line}m2-max-32gb".split()).out


@in_one_test
@pytest.mark.parametrize(
    ("words", "error"), [("--devices 2", "--devices 2"), ("--n-gpu-layers 10", "--n-gpu-layers 10"), ("-ts 1,1", "-ts")]
)
def test_a_processor_has_no_gpus_for_layers(words: str, error: str) -> None:
    """common/arg.cpp: -ngl is the number of layers in VRAM; without one llama.cpp ignores it."""
    words_on_processor = ("memory", "llama3.1:8b", "--engine", "llama.cpp", "--hardware", "raspberry-pi-5")
    message = command(*words_on_processor, *words.split()).error
    assert "Raspberry Pi 5 is a processor, without GPUs that take layers; remove it" in message
    assert error.replace("-ts", "--tensor-split 1,1") in message


def test_changes_on_a_processor_are_those_of_its_memory() -> None:
    words = ("memory", "llama3.1:8b", "--engine", "llama.cpp", "--hardware")
    document = command(*words, "raspberry-pi-5", "--format", "json").document_with(1)
    starting_changes = [change["flag"] for change in document["changes"] if change["starts"]]
    assert starting_changes == ["-ctk q8_0 -ctv q8_0 -fa on", "-c 91904"]
    assert "More room in the host's memory" in command(*words, "ryzen-9-7950x").out


def test_a_cache_of_an_indexer() -> None:
    # the log of a server of GLM-5.2 with 4,096 cells: 351 MiB of 78 layers' latents, 21 MiB of 21 layers' index keys
    glm = {"target": "glm-5.2", "cpu_moe": True, "ctx_size": 4096, "parallel": 1}
    assert memory(**glm).term_bytes("kv_buffer") == (351 + 21) * MIB
    assert memory(**glm, engine="llama.cpp==b9440").term_bytes("kv_buffer") == 351 * MIB
    # MiniMax-M3: 60 layers with 4 key heads of 128; 57 with an index key of 128, and a value beside it
    m3 = memory("minimax-m3", cpu_moe=True, ctx_size=4096, parallel=1)
    assert m3.term_bytes("kv_buffer") == 4096 * 2 * (60 * 2 * 4 * 128 + 57 * 2 * 128)


def test_a_cache_of_compressed_entries() -> None:
    # DeepSeek-V4-Flash: 43 layers with a window of 128 and 512 tokens of a micro-batch, 21 with entries of 4 tokens and
    # an indexer's, 20 with entries of 128, each entry's cells a multiple of 256; waiting tokens, twice, in float32
    v4 = memory("deepseek-v4-flash", cpu_moe=True, ctx_size=64000, parallel=2)
    cells, states = 768 * 43 * 512 + 8192 * 21 * (512 + 128) + 256 * 20 * 512, 21 * 8 * 2 * (512 + 128) + 20 * 128 * 512
    assert v4.term_bytes("kv_buffer") == 2 * (2 * cells + 4 * 2 * states)
    assert any("compressed entries is not modelled" in note for note in v4.notes)


@pytest.mark.parametrize(
    ("version", "flash", "cells"), [("b5000", "off", 8128), ("b5000", "on", 8192), ("b9000", "off", 8192)]
)
def test_cells_are_padded_by_version(version: str, flash: str, cells: int) -> None:
    kv = memory(engine=f"llama.cpp=={version}", ctx_size=8100, n_gpu_layers="all", parallel=1, flash_attn=flash)
    assert kv.kv_tokens == cells


def test_quantized_caches_have_blocks_of_32() -> None:
    kv = memory(ctx_size=8192, parallel=1, n_gpu_layers="all", cache_type_k="q8_0", cache_type_v="q4_0")
    assert kv.term_bytes("kv_buffer") == 32 * 8192 * (8 * 128 // 32) * (34 + 18)


def test_layers_with_a_window_keep_the_window_and_a_micro_batch() -> None:
    # gpt-oss 20B: 12 layers of 128 tokens and 12 full ones, 8 key heads of 64
    token = 12 * 8 * 64 * 2 * 2
    flags: dict[str, Any] = {"ctx_size": 32768, "n_gpu_layers": "all"}
    assert memory("gpt-oss-20b", parallel=1, **flags).term_bytes("kv_buffer") == token * (32768 + 768)
    # four sequences in one cache: 4 · 128 + 512 = 1,024 cells; of their own: 4 · (128 + 512, padded)
    assert memory("gpt-oss-20b", **flags).term_bytes("kv_buffer") == token * (32768 + 1024)
    assert memory("gpt-oss-20b", parallel=4, **flags).term_bytes("kv_buffer") == token * (32768 + 4 * 768)
    assert memory("gpt-oss-20b", parallel=1, swa_full=True, **flags).term_bytes("kv_buffer") == token * 2 * 32768


def test_windows_that_llama_cpp_does_not_read_leave_the_whole_cache() -> None:
    """Architectures `llama` and `starcoder2` read no window (llama.cpp, src/models, `load_arch_hparams`).

    Mistral 7B v0.1: 32 layers with 8 key heads of 128, StarCoder2 15B: 40 with 4 of 128, both with a window of 4,096.
    Pixtral Large: 88 with 8 of 128, a LlavaForConditionalGeneration with a text model of Mistral.
    """
    flags: dict[str, Any] = {"ctx_size": 32768, "n_gpu_layers": "all", "parallel": 1}
    assert memory("mistral-7b", **flags).term_bytes("kv_buffer") == 4096 * MIB
    assert memory("starcoder2-15b", **flags).term_bytes("kv_buffer") == 40 * 2 * 4 * 128 * 2 * 32768
    large = memory("pixtral-large-124b", hardware="h200", quantize="q4_k_m", **flags)
    assert large.term_bytes("kv_buffer") == 88 * 2 * 8 * 128 * 2 * 32768


@pytest.mark.parametrize(
    ("engine", "flags", "width"),
    [
        ("llama.cpp==b4000", {}, 16 * (192 + 128)),
        ("llama.cpp==b6400", {}, 576 + 512),
        ("llama.cpp==b10000", {}, 576),
        ("ik_llama.cpp==3700", {}, 16 * (192 + 128)),
        ("ik_llama.cpp==3700", {"mla_use": 1}, 576 + 512),
        ("ik_llama.cpp==3700", {"mla_use": 1, "flash_attn": "on"}, 576),
        ("ik_llama.cpp==3700", {"mla_use": 3}, 576),
    ],
)
def test_latents_by_version_and_mode(engine: str, flags: dict[str, Any], width: int) -> None:
    kv = memory("deepseek-v2-lite", engine=engine, ctx_size=4096, parallel=1, n_gpu_layers=99, **flags)
    assert kv.term_bytes("kv_buffer") == 27 * 4096 * width * 2


def test_states_of_hybrid_layers_do_not_grow() -> None:
    # Qwen3-Next: 36 layers with a state of 32·128·128 and 3 inputs of 8,192 channels, in float32; 12 of attention
    states = 36 * (32 * 128 * 128 + 3 * 8192) * 4
    kv = memory("qwen3-next-80b-a3b", hardware="h100", ctx_size=4096, parallel=1, n_gpu_layers="all")
    assert kv.term_bytes("kv_buffer") == states + 12 * 2 * 256 * 2 * 2 * 4096


def test_model_buffers_are_all_tensors_and_a_tied_output_twice() -> None:
    untied = memory(ctx_size=512, n_gpu_layers="all")
    model = GgufModel(llmcalc.load("llama3.1-8b"), "q4_k_m")
    assert untied.term_bytes("model_buffer") == model.file_bytes == untied.host["disk_bytes"]
    table = next(tensor.nbytes for tensor in model.tensors if tensor.name == "token_embd.weight")
    assert untied.term_bytes("model_buffer", "CPU") == table
    tied = GgufModel(llmcalc.load("llama3.2-1b"), "q8_0")
    assert [tensor.name for tensor in tied.tensors].count("output.weight") == 1
    assert sum(tensor.nbytes for tensor in tied.tensors) > tied.file_bytes


@pytest.mark.parametrize(("target", "gpu", "host"), [("llama3.2-3b", 1918.36, 308.24), ("qwen3-4b", 2375.91, 304.28)])
def test_model_buffers_of_logs(target: str, gpu: float, host: float) -> None:
    """Q4_K_M files, as logs in public repositories show them (index:54573746480, index:71453436919)."""
    buffers = memory(target, ctx_size=2048, n_gpu_layers="all")
    assert buffers.term_bytes("model_buffer", "CUDA0") / MIB == pytest.approx(gpu, abs=0.02)
    assert buffers.term_bytes("model_buffer", "CPU") / MIB == pytest.approx(host, abs=0.02)


def test_tensors_of_gemma_4_have_the_names_of_its_files() -> None:
    # create_tensor lines of a log of Gemma 4 E2B; of the 26B-A4B: src/models/gemma4.cpp
    names = {tensor.name for target in ("gemma-4-e2b", "gemma-4-26b-a4b")
             for tensor in GgufModel.from_quantize_flag(llmcalc.load(target), "q4_0").tensors}  # fmt: skip
    assert {"per_layer_model_proj.weight", "per_layer_proj_norm.weight", "blk.0.inp_gate.weight", "blk.0.proj.weight",
            "blk.0.post_norm.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_gate_exps.weight"} <= names  # fmt: skip


def test_layers_that_share_a_cache_have_attention_of_all_heads() -> None:
    # Gemma 4 E2B: 8 heads of 512 in layers with the cache of an earlier one; 2,048 tokens in float32
    model = GgufModel.from_quantize_flag(llmcalc.load("gemma-4-e2b"), "q4_0")
    assert (model.layers[34].head_count, model.layers[34].head_dim, model.layers[34].key_width) == (8, 512, 0)
    flags = {"ctx_size": 2048, "batch_size": 2048, "ubatch_size": 2048, "n_gpu_layers": "all"}
    with_attention = memory("gemma-4-e2b", flash_attn="off", **flags).term_bytes("compute_buffer", "CUDA0")
    assert with_attention >= 2048 * 2048 * 8 * 4 + 2 * 2048 * 8 * 512 * 4


def test_layers_go_to_the_gpu_from_the_last_one() -> None:
    before = LayerDevices(32, ("CUDA0",), 10, (1.0,), is_output_first=False)
    assert [before.device(i) for i in (21, 22, 31, 32)] == ["CPU", "CUDA0", "CUDA0", "CPU"]
    now = LayerDevices(32, ("CUDA0",), 10, (1.0,), is_output_first=True)
    assert [now.device(i) for i in (22, 23, 32)] == ["CPU", "CUDA0", "CUDA0"]
    split = LayerDevices(32, ("CUDA0", "CUDA1"), 33, (3.0, 1.0), is_output_first=True)
    assert [split.device(i) for i in (0, 24, 25, 32)] == ["CUDA0", "CUDA0", "CUDA1", "CUDA1"]


def test_experts_on_the_host() -> None:
    base: dict[str, Any] = {"target": "qwen3-30b-a3b", "ctx_size": 4096, "n_gpu_layers": "all"}
    everything, ten = memory(**base), memory(**base, n_cpu_moe=10)
    by_pattern = memory(**base, override_tensor=r"blk\.[0-9]\.ffn_.*_exps\.=CPU")
    assert ten.term_bytes("model_buffer", "CPU") == by_pattern.term_bytes("model_buffer", "CPU")
    assert ten.term_bytes("model_buffer") == everything.term_bytes("model_buffer")
    all_experts = memory(**base, cpu_moe=True)
    assert all_experts.term_bytes("model_buffer", "CUDA0") == memory(**base, override_tensor="exps=CPU").term_bytes(
        "model_buffer", "CUDA0"
    )
    assert all_experts.term_bytes("model_buffer", "CUDA0") < ten.term_bytes("model_buffer", "CUDA0")


def test_the_cache_stays_on_the_host() -> None:
    kv = memory(ctx_size=4096, n_gpu_layers="all", no_kv_offload=True)
    assert kv.term_bytes("kv_buffer", "CUDA0") == 0
    assert kv.term_bytes("kv_buffer", "CPU") > 0


NAMES = [
    f"blk.{i}.{name}.weight" for i in (0, 3, 9, 10, 27, 38, 61)
    for name in ("attn_q", "ffn_up_exps", "ffn_gate_exps", "ffn_down_exps", "ffn_gate_inp", "ffn_down", "ffn_norm")
] + ["output.weight", "token_embd.weight"]  # fmt: skip


@in_one_test
@pytest.mark.parametrize(
    "text",
    [
        "exps", r"\.ffn_.*_exps\.", r"blk\.[3-4][0-9]\.ffn", r"blk\.(?:[0-9]|[1-2][0-9]|3[0-6])\.ffn.*", "^output",
        "weight$", "ffn_(up|down)_exps", r"blk\.\d+\.ffn_(up|down|gate_up|gate)_(ch|)exps", "[^a-z]ff+n{1}",
        "_{1,2}e?x+", r"([3-9]|[1-5][0-9]|60)\.ffn_.*_exps\.weight",
        "(attn|ffn)_(q|up).*?w", r"blk\.(0|1).*", "f{2}n_u",
    ],
)  # fmt: skip
def test_patterns_match_as_python_does(text: str) -> None:
    pattern = NamePattern(text, "-ot")
    assert [pattern.matches(name) for name in NAMES] == [bool(re.search(text, name)) for name in NAMES]


@pytest.mark.parametrize("text", ["(.*)*x", "(a?){999}b", "(x+x+)+y", "((.{9}){9}){9}"])
def test_no_pattern_is_slow(text: str) -> None:
    started = time.process_time()
    with suppress(InputError):  # refused for its number of states
        pattern = NamePattern(text, "-ot")
        for name in NAMES:
            pattern.matches(name + "x" * 200)
    assert time.process_time() - started < 20


@in_one_test
@pytest.mark.parametrize("text", ["(a", "a)", "*a", "[a", "a{3,1}", "(?=a)", "\\", "a{1000000}", "[z-a]", "x" * 3000])
def test_a_wrong_pattern_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="-ot"):
        NamePattern(text, "-ot")


def test_buffers_of_a_graph() -> None:
    weight = Tensor(100, operation_name="weight", device="CUDA0")
    numbers = Tensor(128, operation_name="input", dimensions=(32, 4))
    rows = Tensor(1024, (Tensor(0, operation_name="weight", device="CPU"), numbers), "new", (256, 4))
    first = Tensor(2048, (weight, rows), "new", (512, 4))
    activated = Tensor(2048, (first,), "inplace", (512, 4))
    second = Tensor(4096, (weight, activated), "new", (1024, 4))
    graph = ComputeGraph()
    graph.add_operations(second)
    # GPU: a copy of the rows (1,024), the first product (2,048), and the second product beside it, since the freed copy
    # is too small; host: the numbers and the rows
    assert buffer_sizes(graph, ["CUDA0"]) == {"CPU": 128 + 1024, "CUDA0": 1024 + 2048 + 4096}


def test_fit_reduces_the_context_first() -> None:
    fitted = memory("llama3.1-8b", hardware="rtx-3060")
    assert fitted.can_start
    assert 4096 <= fitted.kv_tokens < 131072
    assert fitted.assumed_flags["--ctx-size"] == fitted.kv_tokens
    assert any("--fit reduces --ctx-size" in note for note in fitted.notes)
    free = create_server(
        llmcalc.load("llama3.1-8b"), find_hardware("rtx-3060"), engine_and_version("llama.cpp")[1], {}
    ).free_bytes
    used = sum(term.bytes for term in fitted.terms if term.device == "CUDA0")
    assert free - 1100 * MIB - 64 * MIB < used <= free - 1024 * MIB


def test_fit_moves_experts_and_then_layers() -> None:
    experts = memory("qwen3-30b-a3b", hardware="rtx-4070", ctx_size=16384)
    assert experts.can_start
    assert any("49 of 49 layers" in note and "on the host" in note for note in experts.notes)
    dense = memory("llama3.1-70b", hardware="rtx-3090", ctx_size=4096)
    note = next(note for note in dense.notes if note.startswith("--fit places"))
    layers = int(re.findall(r"\d+", note)[0])
    assert not answer("llama3.1-70b", ctx_size=4096, n_gpu_layers=layers + 3, fit="off").ok or layers >= 80
    assert answer("llama3.1-70b", ctx_size=4096, n_gpu_layers=layers, fit="off").ok


def test_fit_leaves_what_the_user_sets() -> None:
    fixed = answer("llama3.1-70b", ctx_size=4096, n_gpu_layers=81)
    assert not fixed.ok
    assert "out of memory" in fixed.result.startup_error
    assert memory("llama3.1-8b", hardware="rtx-3060", fit="off").kv_tokens == 131072


def test_fit_over_several_gpus() -> None:
    fitted = memory("llama3.1-70b", hardware="rtx-3090", ctx_size=8192, device="CUDA0,CUDA1")
    sizes = [sum(term.bytes for term in fitted.terms if term.device == device) for device in ("CUDA0", "CUDA1")]
    assert fitted.can_start
    assert min(sizes) > 0.9 * max(sizes)
    larger = memory("llama3.1-70b", hardware="rtx-3090", ctx_size=8192, device="CUDA0,CUDA1", fit_target="4096,1024")
    assert larger.term_bytes("model_buffer", "CUDA0") < fitted.term_bytes("model_buffer", "CUDA0")


METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.context_length": 4096,
    "llama.block_count": 2,
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def tensors(matrix: str = "Q4_K") -> list[tuple[str, tuple[int, ...], str]]:
    layer = {
        "attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256), "attn_output": (256, 256),
        "ffn_up": (512, 256), "ffn_gate": (512, 256), "ffn_down": (256, 512), "attn_norm": (256,), "ffn_norm": (256,),
    }  # fmt: skip
    rows: list[tuple[str, tuple[int, ...], str]] = [
        ("token_embd.weight", (512, 256), "Q8_0"), ("output_norm.weight", (256,), "F32"),
    ]  # fmt: skip
    for i in range(2):
        rows += [(f"blk.{i}.{name}.weight", shape, matrix if len(shape) == 2 else "F32")
                 for name, shape in layer.items()]  # fmt: skip
    return rows


def test_a_gguf_file_has_its_own_types(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    nbytes = write_gguf(file, METADATA, tensors())
    tiny = engine_memory(str(file), hardware="rtx-3090", engine="llama.cpp", n_gpu_layers="all")
    embedding = 512 * 256 // 32 * 34
    assert tiny.host["disk_bytes"] == nbytes
    assert tiny.term_bytes("model_buffer", "CPU") == embedding
    assert tiny.term_bytes("model_buffer", "CUDA0") == nbytes  # its layers, and the table once more as the output
    assert tiny.kv_tokens == 4096
    half = engine_memory(str(file), hardware="rtx-3090", engine="llama.cpp", n_gpu_layers=1, fit="off")
    assert half.term_bytes("model_buffer", "CUDA0") == embedding + 256 * 4  # the output and its norm


def test_shards_of_a_gguf_file_are_read_together(tmp_path: Path) -> None:
    rows = tensors()
    first, second = (tmp_path / f"tiny-0000{i}-of-00002.gguf" for i in (1, 2))
    total = write_gguf(first, METADATA, rows[:8]) + write_gguf(second, {"split.no": 1}, rows[8:])
    both = engine_memory(str(first), hardware="rtx-3090", engine="llama.cpp")
    assert both.host["disk_bytes"] == total
    second.unlink()
    with pytest.raises(InputError, match="00002"):
        llmcalc.memory(str(first), hardware="rtx-3090", engine="llama.cpp")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "unheard"}, "general.architecture"),
        ({"general.architecture": 3}, "general.architecture"),
        ({"llama.embedding_length": float("inf")}, "embedding_length"),
        ({"llama.block_count": "many"}, "block_count"),
        ({"llama.attention.head_count": 0}, "heads|expected"),
    ],
)
def test_a_wrong_gguf_file_is_refused(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    file = tmp_path / "wrong.gguf"
    write_gguf(file, {**METADATA, **metadata}, tensors())
    with pytest.raises(InputError, match=message):
        llmcalc.memory(str(file), hardware="rtx-3090", engine="llama.cpp")


def test_a_draft_model_has_buffers_of_its_own() -> None:
    flags = {"ctx_size": 8192, "n_gpu_layers": "all", "parallel": 2, "fit": "off"}
    alone, both = memory(**flags), memory(**flags, model_draft="llama3.2-1b", cache_type_k_draft="q8_0")
    draft = engine_memory("llama3.2-1b", hardware="rtx-3090", engine="llama.cpp==b10488", cache_type_k="q8_0", **flags)  # type: ignore[union-attr]
    for name in ("model_buffer", "kv_buffer"):
        assert both.term_bytes(name) == alone.term_bytes(name) + draft.term_bytes(name)
    # 16 layers with 8 key heads of 64: keys in blocks of 34 bytes for 32, values in 16 bits
    assert draft.term_bytes("kv_buffer", "CUDA0") == 16 * 8192 * 8 * 64 * (34 / 32 + 2)
    assert both.term_bytes("compute_buffer", "CUDA0") > alone.term_bytes("compute_buffer", "CUDA0")


def test_a_draft_file_that_is_elsewhere_has_the_sizes_of_its_name() -> None:
    flags = {"ctx_size": 4096, "parallel": 1, "n_gpu_layers": "all", "fit": "off"}
    alone, both = (
        memory("qwen3-30b-a3b", **flags, **draft) for draft in ({}, {"model_draft": "/models/Qwen3-0.6B-Q8_0.gguf"})
    )
    draft = memory("qwen3-0.6b", quantize="q8_0", **flags)
    assert both.term_bytes("model_buffer") == alone.term_bytes("model_buffer") + draft.term_bytes("model_buffer")


def test_a_draft_model_may_stay_on_the_host() -> None:
    flags = {"ctx_size": 4096, "n_gpu_layers": "all", "parallel": 1, "fit": "off"}
    alone, both = memory(**flags), memory(**flags, model_draft="llama3.2-1b", n_gpu_layers_draft=0)
    assert both.term_bytes("model_buffer", "CUDA0") == alone.term_bytes("model_buffer", "CUDA0")
    assert both.term_bytes("kv_buffer", "CPU") == 16 * 4096 * 2 * 8 * 64 * 2


def test_drafted_tokens_have_logits() -> None:
    def compute(**flags: Any) -> int:
        return int(
            memory(ctx_size=8192, n_gpu_layers="all", parallel=4, fit="off", **flags).term_bytes("compute_buffer")
        )

    assert compute(spec_type="ngram-cache") < compute(spec_type="ngram-mod")
    assert compute(spec_type="ngram-mod", spec_ngram_mod_n_max=8) == compute(spec_type="ngram-cache")
    assert compute(spec_type="none") == compute()


def test_modules_of_the_model_draft() -> None:
    chosen: dict[str, Any] = {"ctx_size": 8192, "parallel": 2, "fit": "off", "kv_unified": True}
    plain = memory("qwen3.6-27b", **chosen)
    drafted = memory("qwen3.6-27b", spec_type="draft-mtp", draft_max=3, cache_type_k_draft="q8_0", **chosen)
    # the tensors of one layer of full attention, with its projection of two hidden states, in Q4_K and Q6_K
    matrices = 2 * 5120 * 5120 + 5120 * (2 * 6144 + 6144 + 1024) + 2 * 5120 * 17408
    weights = matrices * 144 // 256 + (5120 * 1024 + 5120 * 17408) * 210 // 256 + 4 * (5 * 5120 + 2 * 256)
    assert drafted.term_bytes("model_buffer") - plain.term_bytes("model_buffer") == weights
    # its cache of 8,192 cells, 4 key heads of 256 (keys in blocks of 34 bytes); and the states of two sequences, of 48
    # layers, three times more: 48 heads of 128 x 128 and three inputs of a convolution over 10,240, in float32
    cache = 8192 * 4 * 256 * 2 + 8192 * 4 * 256 * 34 // 32
    states = 48 * (48 * 128 * 128 + 3 * 10240) * 4
    assert drafted.term_bytes("kv_buffer") - plain.term_bytes("kv_buffer") == cache + 2 * 3 * states
    assert drafted.term_bytes("compute_buffer") > plain.term_bytes("compute_buffer")


def test_modules_that_draft_from_a_file_of_their_own() -> None:
    # ggml-org's mtp-Qwen3.8-27B-Q8_0.gguf, 2.94 GiB: the modules, embeddings, last norm and output matrix (18 tensors)
    flags = {"ctx_size": 8192, "fit": "off", "spec_type": "draft-mtp"}
    shared, q8, q4 = (
        memory("qwen3.8-27b", **flags, **({"model_draft": f"/m/mtp-Qwen3.8-27B-{name}.gguf"} if name else {}))
        for name in ("", "Q8_0", "Q4_0")
    )
    modules = sum(
        tensor.nbytes for tensor in GgufModel.from_quantize_flag(llmcalc.load("qwen3.8-27b"), "q4_k_m").mtp_tensors
    )
    assert q8.term_bytes("model_buffer") - shared.term_bytes("model_buffer") + modules == 3_153_061_888
    assert q8.term_bytes("kv_buffer") == shared.term_bytes("kv_buffer")
    assert {term.status for term in q4.terms if term.name == "model_buffer"} == {"estimate"}
    assert any("other mixes too" in note for note in q4.notes)


def test_modules_of_a_file_stay_in_it_where_they_do_not_draft(tmp_path: Path) -> None:
    write_gguf(tmp_path / "plain.gguf", METADATA, tensors())
    write_gguf(tmp_path / "modules.gguf", METADATA, [*tensors(), ("blk.2.nextn.eh_proj.weight", (256, 512), "Q4_K")])
    plain, modules = (
        engine_memory(str(tmp_path / name), hardware="rtx-3090", engine="llama.cpp", n_gpu_layers="all")
        for name in ("plain.gguf", "modules.gguf")
    )
    assert modules.term_bytes("model_buffer") == plain.term_bytes("model_buffer")
    assert modules.host["disk_bytes"] - plain.host["disk_bytes"] == 256 * 512 * 144 // 256


def test_dense_networks_of_the_first_layers_stay_on_the_host() -> None:
    flags = {"ctx_size": 4096, "n_gpu_layers": "all", "fit": "off"}
    whole, moved = memory(**flags), memory(**flags, n_cpu_ffn=4)
    server_of_file = create_server(
        llmcalc.load("llama3.1-8b"), find_hardware("rtx-3090"), engine_and_version("llama.cpp==b10488")[1],
        {**flags, "quantize": "q4_k_m"},
    )  # fmt: skip
    tensors = [t for t in server_of_file.model.tensors if t.layer_index is not None and t.layer_index < 4]
    networks = sum(t.nbytes for t in tensors if re.search(r"\.ffn_(up|gate|down)\.", t.name))
    assert networks
    assert whole.term_bytes("model_buffer", "CUDA0") - moved.term_bytes("model_buffer", "CUDA0") == networks


@pytest.mark.parametrize(
    ("flags", "mmap"),
    [({}, True), ({"load_mode": "none"}, False), ({"load_mode": "dio"}, False), ({"no_mmap": True}, False)],
)
def test_a_mode_of_loading_says_whether_the_file_is_mapped(flags: dict[str, Any], mmap: bool) -> None:
    assert memory(**flags).host["mmap"] is mmap


def test_slots_that_share_a_cache_may_state_their_context() -> None:
    assert memory(kv_unified_per_slot=4096, parallel=3, kv_unified=True).kv_tokens == 3 * 4096


@in_one_test
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"n_gpu_layer": 3}, "--n-gpu-layers"),
        ({"n_gpu_layers": "some"}, "--n-gpu-layers"),
        ({"ctx_size": -1}, "--ctx-size"),
        ({"cache_type_k": "q3"}, "--cache-type-k"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "flash"),
        ({"override_tensor": "exps=GPU7"}, "GPU7"),
        ({"override_tensor": "exps"}, "exps=CPU"),
        ({"tensor_split": "a,b"}, "--tensor-split"),
        ({"tensor_split": "1,1,1", "device": "CUDA0"}, "--tensor-split"),
        ({"fit_target": "x"}, "--fit-target"),
        ({"split_mode": "row"}, "--split-mode"),
        ({"model_draft": "x.gguf"}, "--model-draft 'x.gguf': cannot be read"),
        ({"model_draft": "llama3.1-1b-eagle"}, "--model-draft"),
        ({"model_draft": "llama3.2-1b", "engine": "llama.cpp==b5000"}, "modelled from build b9440"),
        ({"spec_type": "draft-eagle3"}, "--spec-type 'draft-eagle3': is not modelled"),
        ({"spec_type": "draft-mtp"}, "the model has no modules of multi-token prediction"),
        ({"target": "qwen3.8-27b", "spec_type": "draft-mtp", "model_draft": "x.gguf"}, "file of qwen3.8-27b.s modules"),
        ({"mla_use": 3}, "mla"),
        ({"device": ",".join(["CUDA0"] * 99)}, "--device"),
        ({"target": "t5-base"}, "encoder"),
        ({"target": "bert-base"}, "encoder"),
        ({"hardware": "tpu-v5e"}, "NVIDIA"),
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        answer(**flags)


def test_a_scheme_that_no_gguf_file_has_is_refused() -> None:
    with pytest.raises(InputError, match="q4_k_m"):
        llmcalc.memory("llama3.1-8b", hardware="rtx-3090", engine="llama.cpp", quantize="awq-int4-g128")


def test_the_document_names_devices() -> None:
    result = command(
        *("memory", "qwen3-30b-a3b", "--engine", "llama.cpp==b10488", "--hardware", "rtx-4070", "--quantize", "q4_k_m"),
        *("-c", "16384", "-ngl", "99", "-ot", r"blk\.[0-9]\.ffn_.*_exps.=CPU", "-ot", r"blk\.[1-3].\.ffn_.*_exps.=CPU"),
        *("-fa", "-t", "8", "--jinja", "--format", "json"),
    )
    document = json.loads(result.out)
    assert result.code == 0, result.err
    assert {(term["name"], term["device"]) for term in document["terms"]} >= {
        ("model_buffer", "CUDA0"), ("model_buffer", "CPU"), ("kv_buffer", "CUDA0"), ("compute_buffer", "CUDA0"),
        ("compute_buffer", "CPU"),
    }  # fmt: skip
    assert set(document["changes"][0]) == {"flag", "kv_tokens", "max_concurrency", "starts"}
    assert {"ram_bytes", "disk_bytes", "mmap", "share"} == set(document["host"])
    assert document["memory"]["device_bytes"] == document["memory"]["by_device"]["CUDA0"]
    assert "--parallel" in document["assumed"]
    assert "--ctx-size" not in document["assumed"]


def test_the_graph_of_a_gated_delta_net() -> None:
    """At the convolution, the stream and its norm, the inputs and the output are alive; that the projection's block is
    too small for the output beside a state keeps it free."""
    tokens, hidden, net = (
        512,
        128,
        DeltaNetSizes(value_head_count=4, key_dim=128, value_dim=128, key_width=512, convolution_kernel_size=4),
    )
    layer = LayerShape(state_elements=4 * 128 * 128 + 3 * net.channels, delta_net=net)
    settings = GraphSettings(
        tokens=tokens,
        logit_rows=1,
        cells_by_window={},
        uses_flash_attention=True,
        cache_bytes_of_layer=lambda _: (0, 0),
    )
    rules = GraphRules("glu", fused_delta_net=True)
    model_graph = ModelGraph(rules, settings, hidden, 16, {0: layer}, 1, lambda _: "CUDA0", lambda _: (0, "CUDA0"))
    graph = model_graph.build_graph()
    projection = convolved = tokens * 1536
    inputs = (tokens + 3) * 1536
    expected = 4 * (2 * tokens * hidden + 3 * 1536 + projection + inputs + convolved)
    assert buffer_sizes(graph, ["CUDA0"])["CUDA0"] == expected + 128  # and the number of the row of logits


@pytest.mark.parametrize(("cache", "matrices"), [("q8_0", 256**2 + 64**2), ("f16", 0)])
def test_heads_are_rotated_before_a_cache_of_blocks(cache: str, matrices: int) -> None:
    """The matrices are inputs: 256 rows for keys of 256 elements, 64 for values."""
    flags = {"ctx_size": 4096, "parallel": 1, "cache_type_k": cache, "cache_type_v": cache, "quantize": "q4_k_m"}
    model = llmcalc.load("qwen3.5-27b")
    sizes = []
    for build in ("b8600", "b8620"):
        record, version = engine_and_version(f"llama.cpp=={build}")
        terms = record.memory_on(model, find_hardware("h100"), version, flags).terms
        sizes.append(next(term.bytes for term in terms if (term.name, term.device) == ("compute_buffer", "CPU")))
    assert sizes[1] - sizes[0] == 4 * matrices


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("memory", "llama3.1-70b", "--engine", "llama.cpp", "--hardware", "rtx-3060", "-ngl", "99", "-c", "4k"), 1,
         "does not start"),
        (("memory", "llama3.1-8b", "--engine", "llama.cpp"), 2, "--hardware"),
        (("memory", "llama3.1-8b", "--engine", "llama.cpp", "--hardware", "rtx-3090", "--seq", "4k"), 0, "4,096"),
        (("memory", "llama3.1-8b", "--engine", "llama.cpp", "--hardware", "rtx-3090", "--n-gpu", "4"), 2, "--n-gpu"),
        (("kv", "gpt-oss-20b", "--engine", "ik_llama.cpp", "--hardware", "rtx-3090", "-c", "8192", "-ngl", "99"), 0,
         "8,192"),
    ],
)  # fmt: skip
def test_exit_codes(arguments: tuple[str, ...], code: int, message: str) -> None:
    result = command(*arguments)
    assert result.code == code, result.out + result.err
    assert message in result.out + result.err
    assert "Traceback" not in result.err


def test_fit_names_the_placements_that_a_card_holds() -> None:
    fit = llmcalc.fit("qwen3-30b-a3b", engine="llama.cpp", seq=32768, hardware="rtx-4070", quantize="q4_k_m").document
    options = [option["flags"] for option in fit["options"]]
    assert [sorted(flags) for flags in options] == [["--n-cpu-moe", "--n-gpu-layers"], ["--n-gpu-layers"]]
    assert all(option["starts"] and option["fits"] for option in fit["options"])
    experts = options[0]["--n-cpu-moe"]
    flags = {"ctx_size": 32768, "n_gpu_layers": "all", "fit": "off"}
    assert answer("qwen3-30b-a3b", hardware="rtx-4070", n_cpu_moe=experts, **flags).ok
    assert not answer("qwen3-30b-a3b", hardware="rtx-4070", n_cpu_moe=experts - 1, **flags).ok
    assert any(change["starts"] and "-ncmoe" in change["flag"] for change in fit["changes"])


def test_users_have_slots_of_their_own() -> None:
    fit = llmcalc.fit("llama3.1-8b", engine="llama.cpp", users=4, seq=8192, hardware="rtx-3090", quantize="q4_k_m")
    best = fit.document["options"][0]
    assert best["max_concurrency"] == 4
    assert best["kv_tokens"] == 4 * 8192


@pytest.mark.parametrize("engine", ["llama.cpp", "ik_llama.cpp"])
def test_users_of_memory_are_those_of_fit(engine: str) -> None:
    """--users is --parallel, and --seq the tokens of each user, where --ctx-size is that of all."""
    server = llmcalc.memory("qwen3-1.7b", engine=engine, hardware="h100", users=4, seq="8k").document
    assert (server["kv_tokens"], server["max_concurrency"]) == (4 * 8192, 4)
    fit = llmcalc.fit("qwen3-1.7b", engine=engine, hardware="h100", users=4, seq="8k").document
    assert fit["options"][0]["kv_tokens"] == server["kv_tokens"]


def test_a_dynamic_file_is_estimated_by_the_mix_near_it() -> None:
    run = {"engine": "llama.cpp", "hardware": "h100"}
    dynamic, mix = (llmcalc.memory("qwen3-1.7b", **run, quantize=name).document for name in ("ud-q4_k_xl", "q4_k_m"))
    for dynamic_term, term in zip(dynamic["terms"], mix["terms"], strict=True):
        assert dynamic_term["bytes"] == term["bytes"]
        assert dynamic_term["status"] == ("estimate" if term["name"] == "model_buffer" else term["status"])
    assert any("Unsloth chooses the types of its dynamic files" in note for note in dynamic["notes"])


@pytest.mark.parametrize("command", [llmcalc.memory, llmcalc.fit])
def test_fewer_slots_than_users_are_refused(command: Any) -> None:
    run = {"engine": "llama.cpp", "hardware": "h100", "users": 4, "seq": "8k"}
    with pytest.raises(InputError, match="--users 4: --parallel says 2; expected at least 4"):
        command("qwen3-1.7b", **run, parallel=2)


def test_users_without_a_length_have_the_longest_one() -> None:
    """--fit's default context is that of all slots, on every number of devices that is tried."""
    run = {"engine": "llama.cpp==b10488", "users": 2, "hardware": "4GiB"}
    (default,) = llmcalc.fit("qwen3-1.7b", **run).document["options"]
    (stated,) = llmcalc.fit("qwen3-1.7b", **run, seq=40960).document["options"]
    assert default == stated | {"flags": stated["flags"] | {"--ctx-size": 2 * 40960}}


def test_a_slot_has_at_least_one_padded_context() -> None:
    slots = memory(ctx_size=1, parallel=100, n_gpu_layers=0)
    assert (slots.max_model_len, slots.kv_tokens, slots.max_concurrency) == (256, 25600, 100)


def test_an_apple_accelerator_has_one_device() -> None:
    devices = {term.device for term in memory(hardware="m4-max", ctx_size=4096).terms}
    assert devices == {"MTL0", "CPU"}


def test_devices_of_vulkan_have_its_name_and_a_note() -> None:
    server = memory(device="Vulkan0,Vulkan1", ctx_size=4096)
    assert {term.device for term in server.terms} == {"Vulkan0", "Vulkan1", "CPU"}
    assert any("Vulkan" in note for note in server.notes)
    assert not any("Vulkan" in note for note in memory(ctx_size=4096).notes)


def test_flags_that_fit_lists_are_those_of_their_tokens() -> None:
    """Without -c the server shortens the context to what fits; a row with all tokens states them."""
    run = "qwen3-1.7b --hardware 4GiB --engine llama.cpp==b10488"
    answer = command(*f"fit {run} --format json".split()).document_with(0)
    (option,) = [option for option in answer["options"] if option["flags"].get("--n-gpu-layers") != "all"]
    flags = " ".join(f"{flag} {value}" for flag, value in option["flags"].items())
    assert "--ctx-size" in option["flags"]
    assert command(*f"memory {run} {flags} --format json".split()).document_with(0)["kv_tokens"] == option["kv_tokens"]
    typed = " ".join(f"{flag} {value}" for flag, value in option["flags"].items() if flag != "--ctx-size")
    assert command(*f"memory {run} {typed} --format json".split()).document_with(0)["kv_tokens"] < option["kv_tokens"]


def test_a_change_to_more_devices_says_so() -> None:
    run = "memory qwen3-1.7b --hardware 4GiB --engine llama.cpp==b10488 --seq 32k"
    assert "-ngl all -ts 1,1, on 2 × 4GiB" in command(*run.split()).out
