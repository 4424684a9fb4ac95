"""Ollama: defaults by version and memory, its options, and what stays on the GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.ollama.flags import read_options
from tests.engines import engine_memory
from tests.in_process import command


def answer(target: str = "llama3.1-8b", hardware: str = "rtx-3060", engine: str = "ollama", **options: Any) -> Any:
    return llmcalc.memory(target, hardware=hardware, engine=engine, quantize="q4_k_m", **options)


def server_memory(target: str = "llama3.1-8b", hardware: str = "rtx-3060", **options: Any) -> Any:
    return engine_memory(target, hardware=hardware, quantize="q4_k_m", **{"engine": "ollama", **options})


@pytest.mark.parametrize(
    ("version", "hardware", "context"),
    [
        ("0.6.5", "rtx-4090", 2048),
        ("0.12.6", "rtx-4090", 4096),
        ("0.16", "rtx-3060", 4096),
        ("0.16", "rtx-4090", 32768),
        ("0.32", "rtx-3060", 4096),
        ("0.32", "rtx-4090", 32768),
        ("0.32", "h100", 131072),  # 262,144, but the model is trained for 131,072
    ],
)
def test_the_default_context_goes_by_version_and_memory(version: str, hardware: str, context: int) -> None:
    assert server_memory(hardware=hardware, engine=f"ollama=={version}").assumed_flags["--num-ctx"] == context


def test_options_beat_the_environment() -> None:
    both = server_memory(num_ctx=8192, OLLAMA_CONTEXT_LENGTH=16384)
    assert both.max_model_len == 8192
    assert server_memory(OLLAMA_CONTEXT_LENGTH=16384).max_model_len == 16384


def test_each_sequence_has_a_context_of_its_own() -> None:
    # 32 layers, 8 key heads of 128, keys and values, 2 bytes, 4 sequences of 4,096 tokens
    four = server_memory(num_ctx=4096, OLLAMA_NUM_PARALLEL=4)
    assert four.term_bytes("kv_buffer") == 32 * 2 * 8 * 128 * 2 * 4 * 4096
    assert four.max_concurrency == 4


def test_a_quantized_cache_needs_flash_attention() -> None:
    small = answer(engine="ollama==0.12.6", num_ctx=8192, OLLAMA_KV_CACHE_TYPE="q8_0", OLLAMA_FLASH_ATTENTION="1")
    plain = answer(engine="ollama==0.12.6", num_ctx=8192, OLLAMA_KV_CACHE_TYPE="q8_0")
    assert small.result.term_bytes("kv_buffer") * 32 == plain.result.term_bytes("kv_buffer") * 17
    assert any("OLLAMA_FLASH_ATTENTION" in note for note in plain.result.notes)


def test_some_architectures_run_one_request_at_a_time() -> None:
    # Qwen3.5's family from 0.17.1 on: 16 layers with 4 key heads of 256, keys and values, one sequence of 4,096 tokens
    options = {"num_ctx": 4096, "OLLAMA_NUM_PARALLEL": 4}
    single = server_memory("qwen3.8-27b", hardware="rtx-5090", **options)
    four = server_memory("qwen3.8-27b", hardware="rtx-5090", engine="ollama==0.17.0", **options)
    assert 4 * single.term_bytes("kv_buffer") == four.term_bytes("kv_buffer")
    assert single.max_concurrency == 1
    assert any("OLLAMA_NUM_PARALLEL=4 counts as 1" in note for note in single.notes)


def test_flash_attention_by_default_goes_by_version_and_class() -> None:
    scores, flash = (
        server_memory("gpt-oss-20b", hardware="rtx-4090", engine=f"ollama=={version}", num_ctx=32768)
        for version in ("0.11.7", "0.11.8")
    )
    assert scores.term_bytes("compute_buffer") > 4 * flash.term_bytes("compute_buffer")


def test_files_of_gpt_oss_have_all_but_the_experts_in_16_bits() -> None:
    """Ollama 0.30 printed 61,223 MiB and 1,104 MiB of the host (ollama issue 16416); llama.cpp's files have Q8_0."""
    memory = engine_memory("gpt-oss-120b", hardware="h100", engine="ollama==0.30.0")
    assert memory.term_bytes("model_buffer") / 2**20 == pytest.approx(61223 + 1104, rel=0.001)
    tag = engine_memory("gpt-oss:20b", hardware="m4-pro", engine="llama.cpp")  # llama.cpp with Ollama's file
    file = engine_memory("gpt-oss-20b", hardware="m4-pro", engine="llama.cpp")
    assert tag.term_bytes("model_buffer") / 2**30 == pytest.approx(12.83, abs=0.01)
    assert file.term_bytes("model_buffer") / 2**30 == pytest.approx(11.27, abs=0.01)


def test_tokens_of_gpt_oss_read_the_bits_of_the_file() -> None:
    """The output matrix, 2,880 x 201,088, is read in 16 bits of Ollama's files and in 8.5 of llama.cpp's."""

    def seconds(target: str, **options: str) -> float:
        return float(llmcalc.time(target, hardware="m4-pro", seq=4096, **options).document["seconds"]["estimate"])

    file_seconds = seconds("gpt-oss-20b", quantize="mxfp4-moe")
    for options in ({"stack": "llamacpp"}, {"engine": "llama.cpp"}):
        assert seconds("gpt-oss-20b", **options) == file_seconds
    tag_seconds = seconds("gpt-oss:20b")
    assert seconds("gpt-oss-20b", engine="ollama") == tag_seconds
    matrix_seconds = 2880 * 201_088 * (16 - 8.5) / 8 / 273e9
    assert matrix_seconds < tag_seconds - file_seconds < 2 * matrix_seconds  # and the products of attention


def test_what_does_not_fit_is_on_the_cpu_and_changes_bring_it_back() -> None:
    result = answer("qwen3-14b", num_ctx=32768)
    memory = result.result
    assert memory.can_start
    assert any("layers are on the CPU" in note for note in memory.notes)
    assert 0 < memory.host["share"] < 1
    context = next(row["flag"] for row in result.document["changes"] if row["flag"].startswith("--num-ctx"))
    assert not any("on the CPU" in note for note in server_memory("qwen3-14b", num_ctx=int(context.split()[1])).notes)
    assert any("on the CPU" in n for n in server_memory("qwen3-14b", num_ctx=int(context.split()[1]) + 512).notes)


def test_a_tag_of_a_model_that_sees_has_its_encoder_on_the_gpu() -> None:
    # ollama/ollama#11819, gemma3:12b with num_ctx 2048: projector.weights="795.9 MiB", which is of no other file
    tag = server_memory("gemma3-12b", num_ctx=2048)
    text_alone = engine_memory("gemma3-12b", hardware="rtx-3060", engine="llama.cpp", quantize="q4_k_m")
    encoder_bytes = tag.term_bytes("model_buffer") - text_alone.term_bytes("model_buffer")
    assert encoder_bytes == pytest.approx(795.9 * 2**20, rel=0.02)
    # its compute buffer is llama-server's; versions before 0.30 run the encoder themselves
    assert not any("its compute buffer" in note for note in tag.notes)
    earlier = server_memory("gemma3-12b", engine="ollama==0.15.5", num_ctx=2048)
    assert any("its compute buffer is not modelled" in note for note in earlier.notes)
    assert not any("the encoder of images" in note for note in server_memory("qwen3-14b", num_ctx=2048).notes)


def test_tags_of_gemma3n_have_the_text_model_alone_with_per_layer_embeddings_in_16_bits() -> None:
    """convert/convert_gemma3n.go leaves the encoders out, server/quantization.go `per_layer_token_embd` as it is."""
    result = llmcalc.memory("gemma3n:e4b", hardware="rtx-3060", engine="ollama").result
    assert result.host["disk_bytes"] == pytest.approx(7.5e9, rel=0.02)  # as `ollama list` has it
    assert not [note for note in result.notes if "encoder" in note]
    fitting = llmcalc.fit("gemma3n:e4b", hardware="rtx-3060")
    assert [note for note in fitting.document["notes"] if "encoder" in note] == []


def test_google_s_files_of_gemma3_have_embeddings_in_16_bits() -> None:
    """https://ollama.com/library/gemma3/tags: 1b-it-qat has 1.0 GB, 4b-it-qat 4.0 GB and 12b-it-qat 8.9 GB."""
    for tag, gigabytes in (("1b", 1.0), ("4b", 4.0), ("12b", 8.9)):
        result = llmcalc.memory(f"gemma3:{tag}-it-qat", hardware="rtx-3090", engine="ollama").result
        assert result.host["disk_bytes"] / 1e9 == pytest.approx(gigabytes, rel=0.05), tag


def test_a_processor_has_all_buffers_in_its_memory() -> None:
    """Ollama has a context of 4,096 tokens without a GPU, and llama.cpp no device but the host."""
    tag = "llama3.1:8b"
    result = llmcalc.memory(tag, hardware="ryzen-9-7950x-64gb", engine="ollama").result
    assert (result.max_model_len, result.term_bytes("model_buffer")) == (4_096, result.host["disk_bytes"])
    fitting = llmcalc.fit(tag, hardware="ryzen-9-7950x-64gb").document
    assert fitting["device_bytes"] == sum(term.bytes for term in result.terms)
    assert not llmcalc.fit(tag, hardware="ryzen-9-7950x-4gb").ok
    # 12 tokens/s of an 8B in 4 bits, as owners of one report 12 to 15
    assert 8 < fitting["decoding"][0]["tokens_per_second"] < 16


def test_gpu_and_host_of_one_memory_share_it() -> None:
    """39.6 GiB of a file fit in no memory of 16 GiB, whatever part of it a GPU may have."""
    for hardware in ("steam-deck", "m4-16gb"):
        result = llmcalc.memory("llama3.1:70b", hardware=hardware, engine="ollama").result
        assert result.startup_error == "GPU and host need 41.18 GiB and have 16.00 GiB of memory in all", hardware


def test_num_gpu_says_how_many_layers_are_on_the_gpu() -> None:
    assert server_memory(num_gpu=0, num_ctx=4096).term_bytes("model_buffer", "CUDA0") == 0
    assert server_memory(num_gpu=99, num_ctx=4096).term_bytes("kv_buffer", "CPU") == 0
    assert not answer("llama3.1-70b", num_gpu=99, num_ctx=4096).ok


def test_fit_asks_for_the_whole_model_on_gpus() -> None:
    fit = llmcalc.fit("qwen3-14b", engine="ollama", hardware="rtx-3060", seq=32768, quantize="q4_k_m").document
    assert fit["options"][0]["devices"] == 2
    assert fit["options"][0]["flags"] == {"CUDA_VISIBLE_DEVICES": "0,1"} or fit["options"][0]["fits"]


def test_a_model_that_one_gpu_holds_is_on_one_unless_all_are_asked_for() -> None:
    """selectLlamaServerPlacement of server/sched.go: one GPU if file, cache and a reserve of 1,481 MiB fit there."""
    for options, used_gpus in (({}, 1), ({"OLLAMA_SCHED_SPREAD": "1"}, 2), ({"num_ctx": 200}, 1)):
        assert answer("qwen3-8b", hardware="2x3090", **options).result.devices == used_gpus, options
    assert answer("qwen3-32b", hardware="2x3090").result.devices == 2
    assert answer("qwen3-32b", hardware="2x3090", main_gpu=0).result.devices == 1
    assert answer("qwen3-8b", hardware="4x3090", engine="ollama==0.12").result.devices == 1
    fit = llmcalc.fit("qwen3-8b", engine="ollama", hardware="2x3090").document["options"]
    assert [(option["devices"], option["kv_tokens"]) for option in fit] == [(1, 40960)]
    time = llmcalc.time("qwen3-8b", engine="ollama", hardware="2x3090").document
    assert (time["layout"]["world"], time["workload"]["context"]) == (1, 40959)


def test_options_of_a_modelfile_are_read_by_name() -> None:
    read = read_options({"num_ctx": "8192", "temperature": 0.7, "OLLAMA_KV_CACHE_TYPE": "q8_0", "stop": "<s>"})
    assert read == {"num_ctx": 8192, "OLLAMA_KV_CACHE_TYPE": "q8_0"}
    with pytest.raises(InputError, match="num-ctx"):
        read_options({"num_ctxt": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_ctx": "x"}, "--num-ctx"),
        ({"num_ctx": 0}, "--num-ctx"),
        ({"OLLAMA_KV_CACHE_TYPE": "fp8"}, "OLLAMA_KV_CACHE_TYPE"),
        ({"ctx_size": 4096}, "--num-ctx|no such flag"),
        ({"OLLAMA_NUM_PARALEL": 2}, "num-parallel"),
        ({"target": "t5-base"}, "encoder"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        answer(**options)


def test_variables_are_written_as_in_a_shell() -> None:
    result = command(
        "memory", "llama3.1-8b", "--engine", "ollama==0.12.6", "--hardware", "rtx-3060", "--quantize", "q4_k_m",
        "--num_ctx", "8k", "OLLAMA_NUM_PARALLEL=2", "--format", "json",
    )  # fmt: skip
    document = result.document
    assert document["max_model_len"] == 8000
    assert document["max_concurrency"] == 2
    assert "OLLAMA_NUM_PARALLEL" not in document["assumed"]


def test_weights_without_a_format_are_those_of_a_tag_without_one() -> None:
    """Most tags are in Q4_K_M (`llama3.2:1b` is in Q8_0); a note says so where nothing states the format."""
    words = ["llama3.2-1b", "--engine", "ollama==0.32.15", "--hardware", "rtx-3060"]
    screens = {
        options: command("memory", *words, *filter(None, options.split(" ")), columns=200).out
        for options in ("", "--quantize q4_k_m", "--quantize none")
    }
    assert ["as most tags without a format have" in screen for screen in screens.values()] == [True, False, False]
    buffers = [re.findall(r"model buffer, CUDA0 +(.+)", screen)[0].split() for screen in screens.values()]
    assert buffers[0] == buffers[1]
    assert float(buffers[2][0]) > 3 * float(buffers[0][0])
    assert "bf16" in buffers[2]


def test_a_server_that_starts_has_no_empty_change() -> None:
    document = command(
        "memory", "llama3.2-1b", "--engine", "ollama==0.32.15", "--hardware", "m4-max", "--format", "json"
    )
    assert document.document_with(0)["changes"] == []


def test_a_token_has_the_weights_of_a_tag_without_a_format() -> None:
    """As `memory` has them: q4_k_m, unless a format is stated or published."""

    def time_of(model: str, **options: Any) -> dict[str, Any]:
        return llmcalc.time(model, hardware="rtx-4090", engine="ollama", seq=1024, **options).document

    usual, in_16_bits = time_of("llama3.1-8b"), time_of("llama3.1-8b", quantize="none")
    assert usual["seconds"] == time_of("llama3.1-8b", quantize="q4_k_m")["seconds"]
    assert in_16_bits["seconds"]["estimate"] > 2 * usual["seconds"]["estimate"]
    assert in_16_bits["seconds"] == time_of("llama3.1-8b", dtype="bf16")["seconds"]
    assert any(note.startswith("weights in q4_k_m, as most tags") for note in usual["notes"])
    assert not any("q4_k_m" in note for note in time_of("gpt-oss-20b")["notes"])


def test_time_without_a_length_decodes_in_the_default_context(run: Any) -> None:
    """`memory` and `fit` counted 4,096 tokens of a GPU below 24 GiB (Ollama's server/routes.go), `time` 32,768."""
    words = ("qwen3-8b", "--engine", "ollama", "--hardware", "rtx-3060", "--format", "json")
    document = run("time", *words).document
    assert document["workload"]["context"] == run("memory", *words).document["max_model_len"] - 1 == 4095
    assert document["seconds"] == run("time", *words, "--seq", "4095").document["seconds"]
    assert any("context of 4,096 tokens" in note for note in document["notes"])
