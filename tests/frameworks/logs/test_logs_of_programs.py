"""`explain-log` and `--receipt`: what is read of each program's log, what is computed beside it, and what is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.logs.log_contents import argument_pairs, parse_bytes
from llmcalc.frameworks.logs.log_text import LARGEST_LOG, LONGEST_LINE, MAX_LINES, LogText
from llmcalc.sources.presets import known_model
from tests.samples import in_one_test

functions: Any = llmcalc
"""The functions of the commands, whose answers are of several types."""

LOGS = Path(__file__).parents[2] / "data" / "logs"
GIB, MIB = 2**30, 2**20


def explained(name: str, model: str | None = None, **options: Any) -> dict[str, Any]:
    document = functions.explain_log(LOGS / f"{name}.log", model, **options).document
    return dict(document)


def sizes(document: dict[str, Any], field: str = "log") -> dict[str, Any]:
    return {term["name"] + (term["device"] or ""): term[field] for term in document["terms"]}


def gib(amount: float) -> int:
    return round(amount * GIB)


READ: dict[str, tuple[str, str | None, str, dict[str, int]]] = {
    "vllm_v0": (
        "vllm", "0.6.6", "startup",
        {
            "budget": gib(67.34), "weights": gib(14.99), "profile_run": gib(1.90), "non_torch": gib(0.12),
            "cuda_graphs": gib(0.22), "kv_cache": gib(50.33), "blocks": 25_768,
        },
    ),
    "vllm_v1": (
        "vllm", "0.19.0", "startup",
        {
            "budget": gib(71.27), "weights": gib(14.99), "profile_run": gib(1.89), "non_torch": gib(0.25),
            "cuda_graphs": gib(0.82), "kv_cache": gib(54.15), "kv_tokens": 443_552,
        },
    ),
    "vllm_fewer_sequences": (
        "vllm",
        "0.19.0",
        "startup",
        {
            "budget": gib(71.27), "weights": gib(14.99), "profile_run": gib(0.92), "non_torch": gib(0.25),
            "kv_cache": gib(55.11), "kv_tokens": 451_456,
        },
    ),
    "vllm_refused": ("vllm", "0.11.0", "startup", {"weights": gib(14.99), "kv_cache": gib(3.54)}),
    "vllm_out_of_memory": (
        "vllm", "0.18.0", "oom",
        {
            "weights": gib(15.27), "requested": gib(1.27), "free": round(109.81 * MIB), "process": gib(79.19),
            "allocated": gib(77.68), "unallocated": gib(1.07), "private_pools": 76 * MIB,
        },
    ),
    "sglang": (
        "sglang", None, "startup",
        {
            "budget": int(gib(78.68) * 0.88), "weights": gib(15.35), "cuda_graphs": gib(1.02),
            "kv_cache": 2 * gib(26.90), "kv_tokens": 391_844,
        },
    ),
    "tensorrt_llm": (
        "tensorrt-llm", "1.2.0", "startup",
        {
            "weights": gib(15.28), "profile_run": gib(0.85), "non_torch": gib(4.30) - gib(1.17),
            "kv_cache": gib(53.94), "kv_tokens": 392_800,
        },
    ),
    "llamacpp": (
        "llama.cpp", None, "startup",
        {
            "model_bufferCPU": round(281.81 * MIB), "model_bufferCUDA0": round(4403.49 * MIB),
            "kv_bufferCUDA0": 64 * MIB, "output_bufferCUDA_Host": round(0.49 * MIB),
            "compute_bufferCUDA0": round(258.5 * MIB), "compute_bufferCUDA_Host": round(9.01 * MIB),
        },
    ),
    "ollama": (
        "ollama", None, "startup",
        {"model_buffer": gib(8.6), "kv_buffer": gib(4.5), "compute_buffer": gib(2.1)},
    ),
    "torch_out_of_memory": (
        "torch", None, "oom",
        {
            "requested": 20 * MIB, "free": round(38.44 * MIB), "allocated": gib(14.56),
            "unallocated": gib(14.80) - gib(14.56),
        },
    ),
    "torch_other_processes": (
        "torch", None, "oom",
        {
            "requested": 2 * GIB, "free": gib(1.2), "process": gib(25.95), "allocated": gib(24.1),
            "unallocated": gib(1.35), "other_processes": gib(52.1),
        },
    ),
    "deepspeed": (
        "deepspeed", None, "startup",
        {
            "params": 6_738_000_000, "states": gib(28.73), "allocated": gib(28.31), "peak_allocated": gib(31.42),
            "reserved": 32 * GIB, "peak_reserved": 32 * GIB,
        },
    ),
    "megatron": (
        "megatron", None, "startup",
        {
            "params": 8_030_000_000, "weight_and_optimizer": round(57438.81 * MIB), "activation": round(2048.5 * MIB),
            "allocated": round(57550.404296875 * MIB), "peak_allocated": round(70999.5 * MIB),
            "reserved": 78404 * MIB, "peak_reserved": 78404 * MIB,
        },
    ),
    "torchtitan": (
        "torchtitan", None, "startup",
        {"params": 8_030_261_248, "after_model": gib(3.77), "peak_reserved": gib(47.94)},
    ),
    "trainer": (
        "trainer", None, "startup",
        {
            "before_init": 0, "init_allocated": 6127 * MIB, "train_allocated": 12263 * MIB, "train_peak": 17444 * MIB,
            "trainable": 3_212_749_824,
        },
    ),
}  # fmt: skip
"""Log → program, version, kind, and the terms as printed."""


def test_every_log_is_here() -> None:
    assert set(READ) == {path.stem for path in LOGS.iterdir()}


@in_one_test
@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str) -> None:
    program, version, kind, terms = READ[name]
    document = explained(name)
    assert document["engine"]["name"] == program
    assert document["engine"]["version"] == version
    assert document["kind"] == kind
    assert sizes(document) == terms


def test_computed_terms_of_a_full_log() -> None:
    """The log has the device's memory, the model, the version and the flags: nothing has to be typed."""
    document = explained("vllm_v1")
    assert document["model"]["name"] == "llama3.1-8b"
    assert (document["off"], document["flag"], document["missing"]) == (None, None, [])
    differences = sizes(document, "difference")
    assert {name for name, difference in differences.items() if difference is None} == set()
    assert max(abs(difference) for name, difference in differences.items() if name != "cuda_graphs") < 0.015


def test_a_refusal_names_the_longest_request_that_fits() -> None:
    """vLLM prints 28992 itself; it follows from the cache of the log, not from the computed one."""
    document = explained("vllm_refused", hardware="rtx-4090")
    assert (document["off"], document["flag"]) == ("kv_cache", "--max-model-len 28992")
    assert document["message"].startswith("(EngineCore_DP0 pid=9) ERROR")


def test_a_sampler_without_room_is_out_of_memory(tmp_path: Path) -> None:
    """The message comes after the cache is allocated: fewer sequences make it start, not a shorter length."""
    log = tmp_path / "sampler.log"
    message = "CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering"
    log.write_text(f"(Worker pid=22) ERROR 10-25 13:12:42 [multiproc_executor.py:671] RuntimeError: {message}\n")
    document = functions.explain_log(log).document
    assert (document["kind"], document["off"], document["flag"]) == ("oom", "profile_run", "--max-num-seqs")


def test_a_flag_that_is_not_modelled_is_noted(tmp_path: Path) -> None:
    log = tmp_path / "refused.log"
    log.write_text((LOGS / "vllm_refused.log").read_text().replace("'limit_mm_per_prompt'", "'enable_dbo': True, 'x'"))
    notes = functions.explain_log(log, hardware="rtx-4090").document["notes"]
    assert any("computed without --enable-dbo" in note for note in notes)


def test_without_the_devices_memory_weights_alone_are_computed() -> None:
    document = explained("vllm_refused")
    computed = sizes(document, "computed")
    assert computed["weights"] == pytest.approx(gib(14.99), rel=0.001)
    assert computed["kv_cache"] is None
    assert "--hardware" in document["missing"][0]


def test_sglang_beside_its_rule() -> None:
    differences = sizes(explained("sglang", hardware="h100"), "difference")
    assert abs(differences["budget"]) < 0.001
    assert abs(differences["kv_tokens"]) < 0.01
    assert differences["cuda_graphs"] is None  # outside of the budget, and not modelled


@pytest.mark.parametrize(
    ("name", "off", "flag"),
    [
        ("torch_out_of_memory", "allocated", None),  # reserved 14.80 GiB is not much more than allocated 14.56
        ("torch_other_processes", "other_processes", "CUDA_VISIBLE_DEVICES"),
        ("vllm_out_of_memory", "allocated", "--max-num-seqs"),
        ("vllm_fewer_sequences", "profile_run", "--max-num-seqs"),
        ("tensorrt_llm", "non_torch", None),
    ],
)
def test_what_is_in_the_way(name: str, off: str, flag: str) -> None:
    document = explained(name)
    assert (document["off"], document["flag"]) == (off, flag)


def test_a_message_of_a_device_that_tensors_fill_says_so_first() -> None:
    """`allocated` is the term of which most is in use, and no reason that a reader would understand."""
    message = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.20 GiB is "
        "free. Of the allocated memory 21.50 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but "
        "unallocated."
    )
    report = functions.explain_log(message).report()
    assert report.tables[0].answer == "out of memory: the run requires more than the device has"


def test_gaps_that_hold_a_share_of_the_device_are_in_the_way(tmp_path: Path) -> None:
    """The sizes of LLaMA-Factory's issue 2744: torch asks for other segments where reserved is much more."""
    file = tmp_path / "torch.log"
    file.write_text(
        "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 1 has a total capacity of 23.69 GiB of which 738.06 MiB "
        "is free. Of the allocated memory 11.74 GiB is allocated by PyTorch, and 9.96 GiB is reserved by PyTorch but "
        "unallocated."
    )
    document = functions.explain_log(file).document
    assert (document["off"], document["flag"]) == ("unallocated", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")


def test_an_out_of_memory_message_of_sglang_while_it_runs(tmp_path: Path) -> None:
    """At start the fraction has to be raised, while it runs to be lowered: the flag is the same."""
    message = (LOGS / "torch_other_processes.log").read_text().replace("Process 1407 has 52.10 GiB memory in use. ", "")
    file = tmp_path / "sglang.log"
    file.write_text((LOGS / "sglang.log").read_text() + message)
    document = functions.explain_log(file, hardware="h100").document
    assert (document["kind"], document["off"], document["flag"]) == ("oom", "allocated", "--mem-fraction-static")


def test_deepspeeds_estimate_follows_from_the_parameters() -> None:
    # 18 bytes per parameter over 4 devices, and the largest layer of 131 M parameters in float32
    computed = sizes(explained("deepspeed", "llama2-7b"), "computed")
    assert computed["params"] == 6_738_415_616
    assert computed["states"] == 6_738_415_616 * 18 // 4 + 4 * 131_000_000


def test_the_cache_of_llama_cpp() -> None:
    """The log's general.name is the name of a repository that a preset has as an alias."""
    document = explained("llamacpp")
    assert document["model"]["name"] == "llama3-8b"
    assert sizes(document, "computed")["kv_bufferCUDA0"] == 64 * MIB


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("/models/huggingface/hub/models--openai--gpt-oss-120b/snapshots/b5c939de", "gpt-oss-120b"),
        ("/models/Qwen3-8B/", "qwen3-8b"),
        ("Meta Llama 3 8B", "llama3-8b"),
        ("own", None),
        ("", None),
    ],
)
def test_names_of_models_in_logs(name: str, preset: str | None) -> None:
    known = known_model(name)
    assert (known.name if known else None) == preset


def test_the_model_may_be_typed(tmp_path: Path) -> None:
    file = tmp_path / "own.log"
    file.write_text((LOGS / "vllm_v1.log").read_text().replace("meta-llama/Llama-3.1-8B-Instruct", "/models/own"))
    assert "expected TARGET" in functions.explain_log(file).document["missing"][0]
    assert sizes(functions.explain_log(file, "llama3.1-8b").document, "computed")["weights"]


def test_a_pasted_message_is_a_log(run: Any) -> None:
    """Ollama's line stands in ollama/ollama#10920; llama.cpp's has no size (ggml-org/llama.cpp#7366)."""
    ollama = "Error: model requires more system memory (164.8 GiB) than is available (13.4 GiB)"
    document = run("explain-log", ollama, "--format", "json").document
    gib = {term["name"]: round(term["log"] / 2**30, 1) for term in document["terms"]}
    assert (gib, document["kind"], document["flag"]) == ({"requested": 164.8, "free": 13.4}, "oom", "num_ctx")
    vllm = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
    assert run("explain-log", vllm, "--format", "json").document["flag"] == "--gpu-memory-utilization"
    without_size = run("explain-log", "error loading model: unable to allocate CUDA0 buffer").error
    assert "the message: states no size of memory; expected the lines before it too" in without_size
    for mistyped_path in ("my old server log.txt", "logs/of my old server", r"D:\logs of my server\last"):
        assert "no such file" in run("explain-log", mistyped_path).error.lower(), mistyped_path
    for message in ("CUDA error: out of memory, see server.log", "out of memory\nat the end of a.log"):
        assert "the message: states no size of memory" in run("explain-log", message).error, message
    assert "the message: no line is known" in run("explain-log", "RuntimeError: see https://a.b/c for more").error
    assert "a message that a program printed; expected a model's name, or llmcalc explain-log" in run("fit", vllm).error


def test_the_command(run: Any) -> None:
    code, out, _ = run("explain-log", str(LOGS / "vllm_v1.log"))
    assert code == 0
    assert "no computed term is off" in out
    assert run("explain-log", "none.log").error.startswith("error: none.log: ")


def test_what_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    for text, message in (("", "is empty"), ("hello\n" * 9, "no line is known; expected a start-up log")):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            functions.explain_log(file)
    with file.open("wb") as handle:
        handle.truncate(LARGEST_LOG + 1)
    with pytest.raises(InputError, match="too large"):
        functions.explain_log(file)
    with pytest.raises(InputError, match="--engine sglang: the log is of vLLM"):
        functions.explain_log(LOGS / "vllm_v1.log", engine="sglang", hardware="h100")


def test_lines_are_bounded() -> None:
    assert LogText("a\n" + "x" * 10**6).lines_with("a", "x") == ["a", "x" * LONGEST_LINE]
    assert LogText("\x1b[32mINFO\x1b[0m vLLM").lines_with("vLLM") == ["INFO vLLM"]
    assert len(LogText("a\n" * 20_000).lines_with("a")) == MAX_LINES


@in_one_test
@pytest.mark.parametrize(
    ("text", "size"),
    [("14.99 GiB", gib(14.99)), ("14.9888 GB", gib(14.9888)), ("512MB", 512 * MIB), ("-1.5GiB", -gib(1.5)), ("7", 7)],
)
def test_amounts(text: str, size: int) -> None:
    assert parse_bytes(text) == size


def test_a_number_that_python_does_not_print_stays_text() -> None:
    text = f"[0x{'f' * 6000}]"
    assert argument_pairs(f"max_model_len={text}") == {"max_model_len": text}


def test_arguments_as_python_prints_them() -> None:
    text = "Namespace(a=1, b='x y', c=None, d=True, e=0.9, f=torch.bfloat16) {'g': 'h', 'i': [1], 'j': \"k\"}"
    assert argument_pairs(text) == {
        "a": "1", "b": "x y", "d": True, "e": "0.9", "f": "torch.bfloat16", "g": "h", "i": [1], "j": "k"
    }  # fmt: skip


# ---- receipts


def with_receipt(model: str = "llama3.1-8b", version: str = "0.19", **options: Any) -> Any:
    flags = {"max_model_len": 32768, **options}
    return functions.memory(
        model, engine=f"vllm=={version}", hardware="h100", receipt=LOGS / "vllm_v1.log", **flags
    ).result


def measured(answer: Any) -> set[str]:
    return {term.name for term in answer.terms if term.status == "measured"}


def test_measured_terms_stand_in_place_of_estimates() -> None:
    answer = with_receipt()
    assert measured(answer) == {"weights", "profile_run", "non_torch", "cuda_graphs"}
    assert [answer.term_bytes(name) for name in ("weights", "profile_run", "non_torch")] == list(
        map(gib, (14.99, 1.89, 0.25))
    )
    taken = sum(answer.term_bytes(name) for name in ("weights", "profile_run", "non_torch"))
    assert answer.term_bytes("kv_cache") == answer.term_bytes("budget") - taken
    (term,) = (term for term in answer.terms if term.name == "non_torch")
    assert (term.source, term.origin) == (str(LOGS / "vllm_v1.log"), f"measured in {LOGS / 'vllm_v1.log'}")


def test_a_term_that_other_flags_decide_is_computed() -> None:
    answer = with_receipt(max_num_seqs=64)
    assert measured(answer) == {"weights", "non_torch"}
    assert any("profile_run, cuda_graphs was measured with other flags" in note for note in answer.notes)


def test_a_receipt_of_another_model_or_version(tmp_path: Path) -> None:
    assert measured(with_receipt("qwen3-8b")) == {"non_torch"}
    assert measured(with_receipt(version="0.21")) == {"weights"}
    with pytest.raises(InputError, match=r"is of llama3.1-8b and version 0.19.0; expected a log of this model"):
        with_receipt("qwen3-8b", version="0.21")
    with pytest.raises(InputError, match="is a log of vLLM; expected one of SGLang"):
        functions.memory("llama3.1-8b", engine="sglang", hardware="h100", receipt=LOGS / "vllm_v1.log")
    file = tmp_path / "tokens.log"
    file.write_text("INFO vLLM API server version 0.19.0\nINFO GPU KV cache size: 443,552 tokens\n")
    with pytest.raises(InputError, match=r"has none of weights, profile_run"):
        functions.memory("llama3-8b", engine="vllm==0.19", hardware="h100", receipt=file)


def test_changes_use_the_receipt_where_they_may(run: Any) -> None:
    words = "memory", "llama3.1-8b", "--engine", "vllm==0.19", "--hardware", "h100", "--format", "json"
    log = str(LOGS / "vllm_v1.log")
    plain, received = (run(*words, *more).document for more in ((), ("--receipt", log)))
    assert received["changes"] != plain["changes"]
    assert {term["status"] for term in received["terms"]} == {"source", "estimate", "measured"}


def test_fit_with_a_receipt() -> None:
    options: dict[str, Any] = {"engine": "vllm==0.19", "hardware": "h100", "users": 4, "seq": "32k"}
    plain, received = (
        functions.fit("llama3.1-8b", **options, **more).document["options"][0]["kv_tokens"]
        for more in ({}, {"receipt": LOGS / "vllm_v1.log"})
    )
    assert 0 < abs(received / plain - 1) < 0.01


def test_a_cache_in_fp8_that_the_log_does_not_mention(tmp_path: Path) -> None:
    """Twice the tokens in the same bytes: fp8 by the checkpoint, which the arguments do not show."""
    log = (LOGS / "vllm_fewer_sequences.log").read_text()
    file = tmp_path / "fp8.log"
    file.write_text(log.replace("451,456 tokens", "902,912 tokens"))
    document = functions.explain_log(file, None).document
    tokens = next(term for term in document["terms"] if term["name"] == "kv_tokens")
    plain = explained("vllm_fewer_sequences")
    assert tokens["computed"] == pytest.approx(2 * sizes(plain, "computed")["kv_tokens"], rel=1e-3)
    assert any("--kv-cache-dtype fp8" in note for note in document["notes"])
    assert not any("--kv-cache-dtype" in note for note in plain["notes"])


def test_a_negative_memory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "negative.log"
    log = (LOGS / "vllm_fewer_sequences.log").read_text()
    file.write_text(re.sub(r"\(util\), [0-9.]+ GiB", "(util), -11.27 GiB", log))
    with pytest.raises(InputError, match=r"the device's memory in the log is -\d+ bytes; expected a positive size"):
        functions.explain_log(file, None, hardware="h100")


def test_sglang_is_computed_with_the_memory_that_was_free(tmp_path: Path) -> None:
    """Another program has 30 GiB: the share is of what is left."""
    log = (LOGS / "sglang.log").read_text()
    file = tmp_path / "shared.log"
    file.write_text(log.replace("avail mem=78.68 GB", "avail mem=48.68 GB"))
    whole, shared = (
        functions.explain_log(path, None, hardware="h100").document for path in (LOGS / "sglang.log", file)
    )
    budgets = [sizes(document, "computed")["budget"] for document in (whole, shared)]
    assert budgets == pytest.approx([0.88 * 78.68 * GIB, 0.88 * 48.68 * GIB], rel=1e-6)
    assert sizes(whole, "computed")["kv_tokens"] == pytest.approx(391_844, rel=0.005)
    flags: dict[str, Any] = {"hardware": "h100", "mem_fraction_static": 0.88}
    receipt = functions.memory("qwen3-8b", engine="sglang==0.4.9", receipt=str(file), **flags).document
    assert next(term["bytes"] for term in receipt["terms"] if term["name"] == "budget") == budgets[1]


def test_a_log_of_training_is_compared_with_the_run_of_its_launch_file(tmp_path: Path) -> None:
    launch, log = tmp_path / "train.sh", tmp_path / "train.log"
    launch.write_text(
        "python run_clm.py --model_name_or_path openai-community/gpt2 --block_size 64 --per_device_train_batch_size 1 "
        "--do_train --bf16"
    )
    computed = functions.memory(launch=launch).device
    log.write_text("Number of trainable parameters = 124,439,808\n")
    assert sizes(functions.explain_log(log, launch=launch).document, "computed") == {"trainable": 124_439_808}
    message = (
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 1.50 GiB of which 0.10 GiB "
    )
    log.write_text(
        f"{message}is free. Of the allocated memory 1.20 GiB is allocated by PyTorch, and 9.00 MiB is reserved"
    )
    document = functions.explain_log(log, launch=launch).document
    assert sizes(document, "computed")["allocated"] == computed.peak_bytes
    assert document["notes"][1].endswith(", and the device has 1.50: too few")
    assert (document["off"], document["flag"]) == ("process", None)
    with pytest.raises(InputError, match="--quantize: is of engines; remove it, or --launch"):
        functions.explain_log(log, launch=launch, quantize="q4_0")
    with pytest.raises(InputError, match="states its flags itself"):
        functions.explain_log(LOGS / "vllm_v1.log", launch=launch)


@pytest.mark.parametrize(
    ("table", "command"),
    [
        (
            "NAME            ID              SIZE      PROCESSOR    CONTEXT    UNTIL\n"
            "qwen3:8b        500a1f067a9f    6.5 GB    100% GPU     4096       4 minutes from now\n",
            "llmcalc memory qwen3:8b --engine ollama --num-ctx 4096 --hardware NAME",
        ),
        (
            "NAME           ID              SIZE      PROCESSOR          UNTIL\n"
            "llama3.1:8b    42182419e950    6.7 GB    12%/88% CPU/GPU    4 minutes from now\n",
            "llmcalc memory llama3.1:8b --engine ollama --hardware NAME",
        ),
    ],
)
def test_the_table_of_ollama_ps_is_answered_with_a_command(tmp_path: Path, table: str, command: str) -> None:
    """Columns as in cmd/cmd.go of ollama/ollama, with CONTEXT since 0.11."""
    file = tmp_path / "ps.txt"
    file.write_text(table)
    with pytest.raises(InputError, match=re.escape(command)):
        functions.explain_log(file)
