"""`fit` without an engine, compared with what the usual engine of the accelerator holds by its own rules."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from llmcalc import units
from tests.in_process import command, shared_answer


def fit(line: str) -> dict[str, Any]:
    document: dict[str, Any] = shared_answer(f"fit {line}").document
    return document


def fit_screen(line: str) -> str:
    return shared_answer(f"fit {line}").screen


def test_users_that_are_timed_are_those_that_the_engine_holds() -> None:
    """With its default limit of sequences: that of the users who are asked for leaves more room."""
    run = "llama3.2-1b --hardware l4 --users 100 --seq 4k"
    answer = fit(run)
    (option,) = fit(f"{run} --devices 1 --engine vllm --max-num-seqs 256")["options"]
    timed_users = [row["users"] for row in answer["decoding"]]
    assert answer["verdict"] == "fits"
    assert timed_users == [100, int(option["max_concurrency"])]
    assert answer["largest"]["users"] > timed_users[-1]
    assert f"vLLM holds {timed_users[-1]:,} users, not {answer['largest']['users']:,} (--engine vllm)" in fit_screen(
        run
    )


def test_weights_of_a_gguf_file_are_judged_by_llama_cpp() -> None:
    """The longest sequences are those of llama.cpp's own rule, beyond which it says that its memory is exhausted."""
    run = "qwen3-8b --hardware 8GiB --quantize q4_k_m"
    answer = fit(f"{run} --seq 14k")
    (option, *_) = fit(f"{run} --seq 14k --engine llama.cpp")["options"]
    assert (option["flags"], option["fits"]) == ({"--n-gpu-layers": "all"}, True)
    assert (answer["verdict"], answer["engine"]) == ("fits", "llama.cpp")
    assert "it fits on 8GiB under llama.cpp" in fit_screen(f"{run} --seq 14k")
    longest = answer["largest"]["seq"]
    for tokens, flags in ((longest, {"--n-gpu-layers": "all"}), (longest + 1, None)):
        (option, *_) = fit(f"{run} --seq {tokens} --engine llama.cpp")["options"]
        assert (option["flags"] == {"--n-gpu-layers": "all"}) == (flags is not None)
    too_long = fit(f"{run} --seq {longest + 1}")
    changes = {change["option"]: change for change in too_long["changes"]}
    assert too_long["verdict"] == "no"
    assert changes["--kv-dtype q8_0"]["verdict"] == changes[f"--seq {longest}"]["verdict"] == "fits"
    assert not any("fp8" in change for change in changes)


@pytest.mark.parametrize(
    ("hardware", "seq", "fits"),
    [
        ("rtx-3090 --devices 2", "8k", True),
        ("rtx-4090 --devices 2", "8k", True),
        ("rtx-3090 --devices 4", "8k", True),
        ("rtx-3090 --devices 1", "8k", False),
    ],
)
def test_layers_of_a_gguf_file_are_divided_among_accelerators(hardware: str, seq: str, fits: bool) -> None:
    """Llama 3 70B in Q4_K_M, as llama.cpp ran it: README of XiongjieDai/GPU-Benchmarks-on-LLM-Inference, May 2024.

    torch's kernels need 26 GiB of each of two cards at 32,768 tokens, and the answer was theirs.
    """
    answer = fit(f"llama3-70b --quantize q4_k_m --hardware {hardware} --seq {seq}")
    assert (answer["verdict"] != "no", answer["engine"], answer["framework"]) == (fits, "llama.cpp", "llama.cpp")


def test_a_replica_of_a_gguf_file_needs_what_its_engine_needs_with_the_flag_that_divides_layers() -> None:
    run = "llama3.1-70b --hardware rtx-3090 --quantize q4_k_m"
    answer = fit(f"{run} --devices 2 --seq 8k")
    server = "-ngl all -ts 1,1 --ctx-size 8192 --engine llama.cpp --format json"
    terms = command("memory", *run.split(), *server.split()).document["terms"]
    on_first_gpu = sum(term["bytes"] for term in terms if term.get("device") == "CUDA0")
    assert answer["layout"]["pp"] == 2
    assert 0 <= answer["device_bytes"] - on_first_gpu < 2**30  # what the driver and the context hold before it starts
    assert answer["layouts"][1]["tokens_per_second"] == pytest.approx(14.34, rel=0.2)  # the benchmark's tg 8192


def test_the_fewest_accelerators_for_a_gguf_file_are_the_same_in_each_answer() -> None:
    run = "llama3.1-70b --quantize q4_k_m"
    (option,) = [option for option in fit(run)["options"] if option["hardware"] == "rtx-4090"]
    on_one, on_two = (fit(f"{run} --hardware rtx-4090 {devices}") for devices in ("", "--devices 2"))
    assert option["devices"] == on_two["needed_devices"] == 3
    assert option["device_bytes"] == fit(f"{run} --hardware rtx-4090 --devices 3 --pp 3")["device_bytes"]
    for answer in (on_one, on_two):
        assert answer["changes"][0] == {
            "option": "--devices 3 --pp 3", "device_bytes": option["device_bytes"], "verdict": "fits"
        }  # fmt: skip
    assert "llama.cpp starts with layers on the host too" in fit_screen(f"{run} --hardware rtx-4090 --devices 2")


@pytest.mark.parametrize("words", ["--quantize q4_k_m --seq 8k", "--quantize q4_k_m --seq 24k"])
def test_time_divides_a_gguf_file_as_fit_does(words: str) -> None:
    """llama.cpp divides layers; `time` divided each matrix, 1.8 times as fast, and was silent where it does not fit."""
    run = f"llama3.1-70b --hardware rtx-3090 --devices 2 {words}"
    answer, timed = fit(run), command("time", *run.split(), "--format", "json").document
    assert (timed["layout"], timed["fits"]) == (answer["layout"], answer["verdict"] != "no")
    assert not any(node["kind"] == "all_reduce" for node in timed["nodes"])
    if answer["verdict"] != "no":
        assert timed["seconds"] == answer["layouts"][1]["tpot"]
    else:
        assert "weights, cache and buffers are 24.29 GiB a device" in " ".join(
            command("time", *run.split()).out.split()
        )


def test_llama_cpp_divides_layers_of_weights_in_16_bits_too() -> None:
    for words in ("--hardware gtx-1080", "--hardware rtx-3060 --engine llama.cpp"):
        layout = command("time", "llama3-8b", *words.split(), "--devices", "2", "--format", "json").document["layout"]
        assert (layout["tp"], layout["pp"]) == (1, 2), words


@pytest.mark.parametrize(
    ("engine", "sizes"),
    [("llama.cpp", {"tp": 1, "pp": 2}), ("vllm", {"tp": 2, "pp": 1})],
)
def test_a_named_engine_is_one_server_on_all_accelerators(engine: str, sizes: dict[str, int]) -> None:
    """As for `memory --engine`; of a model that fits on one card `time` had two replicas, and `fit` one card."""
    words = f"llama3.2-3b --hardware 2x3090 --engine {engine}"
    layout = command("time", *words.split(), "--format", "json").document["layout"]
    assert {"dp": 1, **sizes} == {size: layout[size] for size in ("dp", "tp", "pp")}
    assert [option["devices"] for option in fit(words)["options"]] == [2, 1]  # and that one suffices
    assert shared_answer(f"memory {words}").document["devices"] == 2


def test_memory_of_a_gguf_file_on_several_cards_is_what_fit_has() -> None:
    run = "phi4-reasoning:14b --hardware 2x3060"
    document, answer = shared_answer(f"memory {run}").document, fit(run)
    (verdict,) = document["fits"]
    assert (verdict["device_bytes"], verdict["engine"]) == (answer["device_bytes"], "llama.cpp")
    assert document["layout"] == answer["layout"]
    first_line = f"{units.GIB.write(answer['device_bytes'])} GiB required by the fullest device under llama.cpp"
    assert first_line in command("memory", *run.split()).out.replace("\n", " ")


def test_a_gguf_file_that_fits_on_no_number_of_accelerators_has_no_change_to_more_of_them() -> None:
    """ggml divides among up to 16 devices (GGML_CUDA_MAX_DEVICES); 32 in groups of eight were the advice."""
    run = "deepseek-v3 --hardware rtx-3090 --quantize q4_k_m --seq 8k"
    answer = fit(run)
    assert not any("--devices" in change["option"] for change in answer["changes"])
    assert [(option["devices"], option["verdict"]) for option in answer["options"]] == [(16, "no")]
    assert "llama.cpp divides layers among up to 16, on none of which they fit" in fit_screen(run)
    assert fit("llama3.1-405b --hardware rtx-3060 --devices 8 --quantize q4_k_m")["needed_devices"] is None


@pytest.mark.exhaustive  # of one accelerator it is above; of 70B, test_the_fewest_accelerators has the options
def test_options_for_a_gguf_file_divide_layers_alone() -> None:
    for option in fit("llama3.1-405b --quantize q4_k_m")["options"]:
        if option["hardware"] not in ("m4-max", "m4-pro", "tpu-v7"):  # of which torch's kernels divide a model
            assert option["layout"] is None or option["layout"]["tp"] == 1, option["hardware"]


def test_one_computer_has_the_same_answer_with_the_number_of_them() -> None:
    run = "qwen3-14b --hardware m1 --quantize q4_k_m --seq 8k"
    assert fit(run)["device_bytes"] == fit(f"{run} --devices 1")["device_bytes"]


def test_a_layout_that_llama_cpp_does_not_divide_by_says_whose_buffers_are_counted() -> None:
    run = "qwen3-14b --hardware rtx-3090 --quantize q4_k_m --seq 8k --devices 2"
    known_where = "kernels of torch, not llama.cpp's buffers, which are known where layers alone are divided"
    assert known_where in fit_screen(f"{run} --tp 2")
    assert known_where in fit_screen("mixtral-8x7b --hardware rtx-3090 --quantize q4_k_m --devices 4 --ep 4")
    assert "kernels of torch" not in fit_screen(run)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param("qwen3-14b --hardware m1 --quantize q4_k_m --devices 2 --pp 2", id="several computers"),
        pytest.param("bert-base --hardware rtx-3090 --quantize q4_k_m --devices 2", id="undivided replicas"),
    ],
)
def test_a_run_whose_buffers_no_layout_makes_known_names_no_such_layout(run: str) -> None:
    assert "kernels of torch, not llama.cpp's buffers;" in fit_screen(run)


def test_a_number_of_accelerators_that_no_fitting_replica_divides_is_named_as_the_reason() -> None:
    screen = fit_screen("llama3.1-70b --hardware rtx-3090 --devices 17 --quantize q4_k_m")
    assert "none of the sizes that divide 17 fits; one of 3 devices does" in screen


def test_accelerators_for_a_gguf_file_are_judged_as_each_by_itself() -> None:
    run = "qwen3-8b --quantize q4_k_m --seq 14k"
    (option,) = [option for option in fit(run)["options"] if option["hardware"] == "rtx-4090"]
    assert option["device_bytes"] == fit(f"{run} --hardware rtx-4090")["device_bytes"]


def test_a_cache_that_is_concatenated_is_named_as_the_reason_of_free_blocks() -> None:
    run = "llama3.2-1b --hardware l4 --users 16 --seq 4k"
    assert "since torch concatenates each layer's cache" in fit_screen(f"{run} --phase decode")
    assert all("concatenates" not in fit_screen(f"{run} {paged}") for paged in ("--phase decode --kv-block 16", ""))


def test_llama_cpp_is_timed_with_the_weights_that_it_loads() -> None:
    """Weights published in MXFP4 become a GGUF file of that mix, whose other matrices have 8 bits, in both answers."""
    run = "gpt-oss-20b --hardware rtx-5090 --engine llama.cpp"
    timed = [
        command(*f"time {run} --phase decode --format json {scheme}".split()).document_with(0)["seconds"]
        for scheme in ("", "--quantize mxfp4_moe", "--quantize mxfp4")
    ]
    assert timed[0] == timed[1] != timed[2]
    assert "mxfp4-moe" in command(*f"memory {run}".split()).out


def test_times_say_where_the_engine_has_no_kernels_or_is_a_plugin() -> None:
    two_layers = "gpt-oss-20b?num_hidden_layers=2 --seq 4k"  # kernels are those of its formats and its attention
    assert "vLLM has no kernels for it on this accelerator" in fit_screen(f"{two_layers} --hardware v100-32gb")
    assert "has no kernels" not in fit_screen(f"{two_layers} --hardware a100-40gb")
    on_tpu = fit_screen("llama3.2-1b --hardware tpu-v6e --seq 4k")
    assert "under vLLM's plugin, whose memory there is not modelled" in on_tpu


def test_a_tag_without_a_format_has_the_format_of_ollamas_library() -> None:
    """README.md of Ollama, "Model library": Llama 3.3 70B has 43 GB, so a tag with a size alone is not in 16 bits."""
    remark = "weights in q4_k_m, as most tags without a format have (see `ollama show`; for fp16: --quantize none)"
    tag, typed = (fit(f"{words} --hardware 12GiB --seq 32k") for words in ("qwen3:8b", "qwen3-8b --quantize q4_k_m"))
    assert (tag["verdict"], tag["device_bytes"]) == (typed["verdict"], typed["device_bytes"])
    assert (tag["verdict"], tag["engine"], tag["notes"][0]) == ("fits", "llama.cpp", remark)
    for words in (("memory",), ("time", "--hardware", "rtx-3060")):
        of_tag, of_scheme = (
            json.loads(command(words[0], *model, *words[1:], "--seq", "2k", "--format", "json").out)
            for model in (("qwen3:8b",), ("qwen3-8b", "--quantize", "q4_k_m"))
        )
        assert of_tag.get("memory") == of_scheme.get("memory")
        assert of_tag.get("seconds") == of_scheme.get("seconds")
    assert fit("qwen3:8b --hardware 24GiB --quantize none")["device_bytes"] > 15 * 2**30
    assert fit("qwen3:30b-a3b --hardware 24GiB")["notes"][0] == remark
    for name in ("nomic-embed-text:latest", "mxbai-embed-large:latest"):  # `ollama list`: 274 and 669 MB, in F16
        assert remark not in fit(f"{name} --hardware rtx-3060")["notes"]
    assert remark not in fit("gpt-oss:20b --hardware 24GiB --seq 32k")["notes"]  # published in MXFP4
    training = json.loads(command("memory", "qwen3:8b", "--phase", "training", "--format", "json").out)
    assert training["memory"]["by_kind"]["weights"] == 16_381_470_720


def test_a_tag_with_a_format_is_the_model_in_that_format() -> None:
    tag, typed = (
        fit(f"{words} --hardware rtx-3060")
        for words in ("llama3.2:3b-instruct-q8_0", "llama3.2-3b --quantize q8_0 --seq 4096")
    )
    assert (tag["engine"], tag["device_bytes"], tag["decoding"]) == (
        "llama.cpp",
        typed["device_bytes"],
        typed["decoding"],
    )
    assert not any("as most tags without a format have" in note for note in tag["notes"])
    times = (
        json.loads(command("time", *words, "--hardware", "rtx-3060", "--format", "json").out)
        for words in (("llama3.2:3b-instruct-q8_0",), ("llama3.2-3b", "--quantize", "q8_0", "--seq", "4095"))
    )
    assert len({json.dumps(time["seconds"]) for time in times}) == 1
    served = command("memory", "gemma3:4b-it-qat", "--engine", "ollama", "--hardware", "rtx-3060").out
    assert "q4_0; with token embeddings" in served


@pytest.mark.parametrize(
    "run",
    [
        "gpt-oss:20b --hardware rtx-4090",  # in MXFP4, as published
        "llama3.2:3b-instruct-fp16 --hardware rtx-3060",
        "gpt-oss:20b --hardware m4-16gb",
        "gemma3-4b --hardware m3 --seq 8k",
        "llama3.1-8b --hardware gtx-1080 --seq 4k",
    ],
)
def test_fit_counts_the_buffers_of_the_engine_whose_time_it_has(run: str) -> None:
    """Where llama.cpp is the usual engine, its buffers decide, as with `--engine llama.cpp`, not torch's kernels."""
    answer = fit(run)
    seq = "" if "--seq" in run else f" --seq {answer['workload']['seq']}"
    (option, *_) = fit(f"{run}{seq} --engine llama.cpp")["options"]
    assert answer["engine"] == "llama.cpp"
    assert (answer["verdict"] != "no") == (option["flags"] == {"--n-gpu-layers": "all"})


def test_a_tag_has_the_context_of_ollama_by_default() -> None:
    """Ollama, server/routes.go: 4,096 tokens on GPUs below 23 GiB, 32,768 below 47, else 262,144, up to the model's."""

    def default_tokens(words: str) -> int:
        workload = shared_answer(words).document["workload"]
        return workload["context"] if words.startswith("time") else workload["seq"]

    for words, tokens in (
        ("fit qwen3:8b --hardware rtx-4060", 4_096),  # with --engine ollama too
        ("memory qwen3:8b --hardware rtx-4060", 4_096),
        ("time qwen3:8b --hardware rtx-4060", 4_095),  # and the token that is decoded
        ("fit qwen3:8b --hardware rtx-3090", 32_768),
        ("fit llama3.1:8b --hardware a100-80gb", 131_072),
        ("time llama3.1:8b --hardware a100-80gb", 131_071),
        ("time llama3.1-8b --hardware a100-80gb --engine ollama", 131_071),
        ("time qwen3:8b --hardware rtx-4060 --devices 2", 4_095),  # replicas of one GPU each
        ("time qwen3:8b --hardware rtx-4060 --quantize q8_0", 4_095),
        ("time qwen3:8b --hardware rtx-4060 --stack llamacpp", 32_768),
        ("fit llama3.1:8b --hardware rtx-3090 --devices 2", 32_768),
        ("fit llama3.1:8b --hardware rtx-3090 --devices 2 --pp 2", 131_072),
        ("memory llama3.3:70b --hardware rtx-3090 --devices 2", 131_072),  # 39.6 GiB: on both of them
        ("memory llama3.3:70b --hardware rtx-3090", 32_768),
        ("memory llama3.3:70b --hardware rtx-4060-ti-16gb --devices 8 --tp 2", 32_768),  # replicas of two: 32 GB
        ("memory llama3.3:70b --hardware rtx-4060-ti-16gb --devices 8 --tp 2 --dp 4", 32_768),
        ("memory llama3.3:70b --hardware rtx-4060-ti-16gb --devices 4", 131_072),  # 39.6 GiB: on three of them
        ("fit deepseek-r1:32b --hardware rtx-3090 --devices 2", 131_072),
        ("time deepseek-r1:32b --hardware rtx-3090 --devices 2", 131_071),
        ("memory hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M --hardware rtx-3060", 4_096),
        ("memory hf.co/unsloth/Qwen3-8B-GGUF --hardware rtx-3060", 4_096),  # Q4_K_M, without a type
        ("memory bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M --hardware rtx-3060", 32_768),  # llama.cpp's -hf
        ("memory phi3:medium --hardware rtx-3090", 32_768),  # of the file with 128K
        ("memory phi3:mini-4k --hardware rtx-3090", 4_096),  # the model's
        ("fit qwen2.5:7b --hardware a100-80gb", 32_768),  # the file's, not the 131,072 of the base model
        ("memory deepseek-r1:32b --hardware rtx-3090 --devices 2 --tp 2", 131_072),
        ("fit deepseek-r1:32b --hardware rtx-3090 --devices 2 --pp 2", 131_072),
        ("fit llama3.1:8b --hardware rtx-3090 --devices 4 --dp 2", 131_072),
        ("memory gpt-oss:20b --hardware rtx-4060", 4_096),  # MXFP4, as published
        ("fit deepseek-r1:671b --hardware h100 --devices 8", 163_840),  # published in FP8; q4_k_m in the library
        ("memory qwen3:8b --hardware rtx-4060 --quantize none", 4_096),  # the tag in fp16
        ("memory qwen3:8b --hardware rtx-4060 --seq 8k", 8_192),
        ("memory qwen3:8b --hardware rtx-4060 --quantize fp8", 32_768),  # no file of Ollama's
        ("memory qwen3-8b --hardware rtx-4060", 32_768),
        ("memory qwen3:8b", 32_768),
    ):
        assert default_tokens(words) == tokens, words
    note = "Ollama has a context of 4,096 tokens here by default; --seq for another"
    assert fit("qwen3:8b --hardware rtx-4060")["notes"][1] == note
    assert fit("qwen3:8b --hardware rtx-4060")["verdict"] == "fits"
    for words in ("fit", "memory"):  # one of the context's tokens is decoded
        run = f"{words} llama3.1:8b --hardware a100-80gb --phase decode --devices 2 --notes"
        screen = command(*run.split()).out
        assert "decode after 131,071 tokens" in screen
        assert "Ollama has a context of 131,072 tokens here" in screen
    for devices in ("1", "2"):
        answer = json.loads(
            command("memory", "qwen3:8b", "--hardware", "rtx-4060", "--devices", devices, "--format", "json").out
        )
        assert note in answer["notes"], devices


def test_each_number_of_accelerators_has_the_context_that_ollama_takes_on_so_many() -> None:
    """As above. A change to more of them keeps the tokens that the answer is about."""
    answer = fit("deepseek-r1:32b --hardware rtx-3090 --devices 2")
    assert [(layout["layout"]["pp"], layout["seq"]) for layout in answer["layouts"]] == [(1, 32_768), (2, 131_072)]
    assert (answer["verdict"], answer["needed_devices"]) == ("no", 3)
    screen = fit_screen("deepseek-r1:32b --hardware rtx-3090 --devices 2")
    assert "Ollama has a context of 131,072 tokens here" in screen
    assert re.search(r"dp2 32,768 .* pp2 131,072 ", screen)
    changes = {change["option"]: change for change in fit("deepseek-r1:32b --hardware rtx-3090")["changes"]}
    on_two = fit("deepseek-r1:32b --hardware rtx-3090 --devices 2 --pp 2 --seq 32768")
    assert changes["--devices 2 --pp 2 --seq 32768"]["device_bytes"] == on_two["device_bytes"]


def test_a_mac_that_is_too_small_names_what_can_be_done_under_llama_cpp() -> None:
    """It divides no layers among computers; macOS has a limit that `iogpu.wired_limit_mb` raises."""
    answer = fit("gpt-oss:20b --hardware m4-16gb")
    changes = {change["option"]: change["verdict"] for change in answer["changes"]}
    assert (answer["verdict"], changes["--hardware m4-24gb"]) == ("no", "fits")
    assert not any("--devices" in change for change in changes)
    limit = -(-answer["device_bytes"] // 2**20)
    assert f"sudo sysctl iogpu.wired_limit_mb={limit} lets the GPU use as much" in " ".join(answer["notes"])
    nearly_all = fit("qwen3-32b --quantize q4_k_m --hardware m2-max-32gb --seq 49152")  # 30.2 GiB: none for macOS
    assert "wired_limit" not in " ".join(nearly_all["notes"])
    on_another = {change["option"] for change in fit("gpt-oss:120b --hardware m3-max-48gb")["changes"]}
    assert "--hardware m3-max-96gb --seq 32768" in on_another  # whose context is 131,072 by default
    too_large = fit("gpt-oss:120b --hardware m4-max-64gb")
    assert "wired_limit" not in " ".join(too_large["notes"])  # it has not so much memory
    assert {"--hardware m4-max-128gb"} == {c["option"] for c in too_large["changes"] if c["verdict"] == "fits"}


def test_accelerators_that_are_judged_by_llama_cpp_are_named() -> None:
    options = {option["hardware"]: option["engine"] for option in fit("llama3.1-8b --notes")["options"]}
    assert options["m4-pro"] == options["m3-ultra"] == "llama.cpp"
    assert options["h100-sxm"] is None
    screen = shared_answer("fit llama3.1-8b --notes").screen
    assert "m4-pro, m4-max, m3-ultra: by llama.cpp's buffers, on one computer; the others by torch's kernels" in screen


def test_placements_of_llama_cpp_have_a_time_on_gpus_and_the_hosts_memory_beside_them() -> None:
    """`time` with as many stages has the same seconds; a 70B model in bf16 does not fit in a desktop's memory."""
    on_gpus = fit("llama3.1-70b --hardware rtx-3090 --devices 3 --quantize q4_k_m --seq 32768 --engine llama.cpp")
    assert (on_gpus["options"][0]["devices"], on_gpus["options"][0]["flags"]["--n-gpu-layers"]) == (3, "all")
    words = "time llama3.1-70b --hardware rtx-3090 --quantize q4_k_m --seq 32768 --engine llama.cpp --devices 3"
    timed = json.loads(command(*words.split(), "--format", "json").out)
    assert on_gpus["options"][0]["tpot"] == timed["seconds"]
    experts = "qwen3-30b-a3b --engine llama.cpp --hardware rtx-3090 --quantize q4_k_m"
    assert fit(f"{experts} --override-tensor exps=CUDA0")["options"][0]["tpot"]
    for flag in ("--override-tensor exps=CPU", "--n-cpu-moe 8", "--no-kv-offload"):  # llama-server's --help
        assert fit(f"{experts} {flag}")["options"][0]["tpot"] is None, flag
    on_host = fit("llama3.1-70b --hardware rtx-3090 --engine llama.cpp")
    assert on_host["options"][0]["tpot"] is None
    assert on_host["notes"][0] == "memory of the host for its layers: 150.77 GiB with -ngl 10"


def test_engines_that_read_a_tags_file_count_its_format_and_others_say_that_they_do_not() -> None:
    """Whoever names a tag has Ollama's file of it, which llama.cpp reads too; vLLM loads the published weights."""
    for question in ("memory", "time"):
        of_tag, of_scheme = (
            json.loads(
                command(question, *model, "--engine", "llama.cpp", "--hardware", "rtx-4090", "--format", "json").out
            )
            for model in (("qwen3:8b",), ("qwen3-8b", "--quantize", "q4_k_m"))
        )
        assert of_tag.get("terms") == of_scheme.get("terms")
        assert of_tag.get("seconds") == of_scheme.get("seconds")
    of_engine, *of_stacks = (
        json.loads(command("time", "qwen3:8b", *words.split(), "--hardware", "rtx-4090", "--format", "json").out)
        for words in ("--engine llama.cpp", "--stack llamacpp", "--stack llamacpp-2024")
    )
    assert all(
        of_stack["seconds"] == of_engine["seconds"] for of_stack in of_stacks
    )  # the engine of the stack reads it
    remark = "weights as published: vLLM reads no tag of Ollama's library (--engine ollama does)"
    for words in (
        "memory qwen3:8b --engine vllm --hardware h100",
        "time qwen3:8b --engine vllm --hardware h100 --notes",
        "time qwen3:8b --stack vllm-2025 --hardware h100 --notes",
        "serve qwen3:8b --hardware h100 --input 1000 --output 100",
        "cost qwen3:8b --hardware h100 --input 1000 --output 100 --requests 1M",
    ):
        times_servers_alone = words.startswith(("serve", "cost"))  # which have no --engine ollama
        expected_remark = remark.replace("--engine", "llmcalc time --engine") if times_servers_alone else remark
        assert expected_remark in " ".join(command(*words.split()).out.split()), words
    remark = "weights as published: transformers in eager PyTorch reads no tag of Ollama's library"
    for software in ("--engine", "--stack"):
        assert remark in " ".join(
            command("time", "qwen3:8b", software, "transformers", "--hardware", "h100").out.split()
        )
    quantized = command(*["memory", "qwen3:8b", "--engine", "vllm", "--hardware", "h100", "--quantize", "fp8"]).out
    assert "reads no tag" not in " ".join(quantized.split())


def test_memory_has_the_buffers_of_llama_cpp_where_fit_has_them() -> None:
    screen = " ".join(command("memory", "qwen3-8b", "--quantize", "q4_k_m", "--seq", "2k").out.split())
    assert "5.24 GiB required under llama.cpp" in screen
    remark = "required: llama.cpp's buffers, as llmcalc fit has them; --engine"
    assert f"{remark} llama.cpp lists them" in screen
    for words, title in (
        ("gpt-oss:20b --hardware rtx-3060", "GeForce RTX 3060"),  # in MXFP4
        ("llama3.2:3b-instruct-fp16 --hardware rtx-3060", "GeForce RTX 3060"),  # in 16 bits
        ("qwen3-8b --hardware m4-max", "M4 Max"),  # on a Mac
    ):
        screen = " ".join(command("memory", *words.split(), "--seq", "2k", "--notes").out.split())
        needed_bytes = fit(f"{words} --seq 2k")["device_bytes"]
        engine_name = "ollama" if ":" in words else "llama.cpp"
        assert re.search(
            f"{units.memory(needed_bytes)} required under llama.cpp: (fits|does not fit) on {title}", screen
        )
        assert f"{remark} {engine_name} lists them" in screen
    macs = command("memory", "llama3.1-8b", "--notes").out
    assert "m4-pro, m4-max, m3-ultra: by llama.cpp's buffers, the others by torch's" in macs
    assert remark not in " ".join(command("memory", "t5-small", "--hardware", "m4-max", "--notes").out.split())


def test_fit_names_the_format_that_a_tag_states() -> None:
    for tag, remark in (
        ("llama3.2:3b-instruct-q8_0", "weights in q8_0, as the tag says"),
        ("llama3.2:3b-instruct-fp16", "weights in 16 bits, as the tag says"),
        ("google/gemma-3-4b-it-qat-q4_0-gguf", "weights in q4_0, as the name says"),
        (
            "unsloth/Qwen3-4B-GGUF",
            "weights in q4_k_m, which llama.cpp and Ollama take of a repository where no type is",
        ),
    ):
        assert remark in " ".join(command("fit", tag, "--hardware", "rtx-3060", "--notes").out.split()), tag
    quantized = command("fit", "llama3.2:3b-instruct-q8_0", "--quantize", "q4_k_m", "--hardware", "rtx-3060").out
    assert "as the tag says" not in quantized


def test_fit_counts_the_encoder_that_ollama_loads_with_a_tag() -> None:
    """Of qwen2.5vl:7b on 24 GB, `--engine ollama` has 8.05 GiB in its buffers."""
    remark = "with the encoder of images or sound, which comes with the tag"
    with_encoder, without_encoder = (
        fit(f"qwen2.5{name} --hardware rtx-3090 --seq 32k --quantize q4_k_m") for name in ("vl:7b", "-vl-7b")
    )
    assert 8.05 < with_encoder["device_bytes"] / 2**30 < 8.5
    assert with_encoder["device_bytes"] - without_encoder["device_bytes"] > 1.5 * 2**30
    assert (remark in with_encoder["notes"], remark in without_encoder["notes"]) == (True, False)
    assert remark not in fit_screen("llama3.1:8b --hardware rtx-3060 --seq 2k")
    assert remark not in fit_screen("gemma3n:e4b --hardware rtx-3060")  # its tags have the text model alone


def test_tokens_of_llama_cpp_read_the_cache_that_its_buffers_have() -> None:
    """Mistral 7B v0.1 and v0.3 differ in a window, which llama.cpp does not read, and in 768 words."""
    run = "--quantize q4_k_m --hardware rtx-3060 --seq 32k --phase decode"
    first, third = (fit(f"{model} {run}")["decoding"][0]["tpot"] for model in ("mistral-7b", "mistral-7b-v0.3"))
    assert first["estimate"] == pytest.approx(third["estimate"], rel=0.01)


def test_a_change_to_a_gguf_file_needs_what_the_changed_run_needs() -> None:
    """Llama 3.1 8B in 16 bits on 12 GiB: the change's bytes are those of llama.cpp, as of the run with the change."""
    changes = {row["option"]: row for row in fit("llama3.1-8b --hardware 12GiB")["changes"]}
    change, changed = changes["--quantize q4_k_m"], fit("llama3.1-8b --hardware 12GiB --quantize q4_k_m")
    assert (change["device_bytes"], change["verdict"]) == (changed["device_bytes"], changed["verdict"])
    users = fit("qwen3-8b --hardware h100 --users 64 --seq 16k --kv-dtype fp8")
    assert f"--users {users['largest']['users']}" in {row["option"] for row in users["changes"]}


def test_an_engine_that_holds_fewer_users_says_how_many() -> None:
    """llama.cpp was said to hold 0 users where it holds all but three, because it does not start with all of them."""
    run = "gemma3-27b --hardware m3-ultra-256gb"
    timed_users = fit(run)["decoding"][-1]["users"]
    assert 1 < timed_users == fit(run)["largest"]["users"]
    (option,) = fit(f"{run} --engine llama.cpp --quantize none --users {timed_users} --seq 32k")["options"]
    assert option["fits"]
    assert "by its own budget vLLM does not start with it" in fit_screen("gpt-oss-20b --hardware rtx-4060-ti-16gb")


def test_weights_published_in_float32_are_tried_in_16_bits() -> None:
    """vLLM loads StarCoder in bfloat16 (`_get_and_verify_dtype`): on L40S it was advised in FP8 or on two alone."""
    for hardware, dtype in (("l40s", "bfloat16"), ("v100", "float16")):
        changes = [change["option"] for change in fit(f"starcoder-15b --hardware {hardware}")["changes"]]
        assert changes[0] == f"--dtype {dtype}"
