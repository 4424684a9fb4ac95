"""`llmcalc time` and `plan --by time`: the same seconds, ranges, parts that add up, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.parallel.layout import Layout
from llmcalc.reports.memory_answer import DeviceMemoryAnswer
from llmcalc.sources.hardware import load_hardware
from llmcalc.studies.layout_candidates import Candidate, sorted_by_memory, sorted_by_time, ties_with_previous
from llmcalc.studies.run_time import inference_formats
from llmcalc.timing.device import device_of
from llmcalc.timing.time_ranges import expected_range
from llmcalc.timing.timing_constants import software_stacks
from tests.in_process import shared_answer

SMALL = "qwen3-0.6b?num_hidden_layers=6"
H100 = ("--hardware", "h100")


def answer(run: Any, *words: str, code: int = 0) -> Any:
    return run(*words, "--format", "json").document_with(code)


TIMES: dict[str, tuple[str, ...]] = {
    "adapters": ("llama3-8b", "--lora-rank", "16", "--seq", "2k"),
    "adapters under Megatron": ("llama3-8b", "--lora-rank", "16", "--tp", "2", "--framework", "megatron"),
    "the host": ("llama3-8b", "--fsdp", "8", "--seq", "256"),
    "8 bits": ("llama3-8b", "--fsdp", "8", "--precision", "fp8"),
    "one device": (SMALL, "--seq", "512", "--global-batch", "4"),
    "a layout": ("llama3-8b", "--devices", "16", "--tp", "2", "--pp", "2", "--sequence-parallel", "--zero", "1"),
    "recomputed": ("llama3-8b", "--devices", "8", "--fsdp", "8", "--recompute", "full", "--compile"),
    "experts": ("qwen3-30b-a3b", "--devices", "32", "--ep", "8", "--etp", "1", "--zero", "1", "--seq", "4k"),
    "a prompt": ("llama3-8b", "--phase", "prefill", "--seq", "4k", "--context", "1k", "--tp", "2", "--server"),
    "a prompt in chunks": ("llama3-8b", "--phase", "prefill", "--seq", "4k", "--chunk", "1k", "--batch", "2"),
    "a token": ("llama3-8b", "--phase", "decode", "--users", "16", "--seq", "4k", "--kv-dtype", "fp8"),
    "an engine": ("llama3-8b", "--engine", "vllm==0.6", "--users", "16", "--quantize", "awq-int4-g128"),
    "a device without a class": (SMALL, "--phase", "decode", "--hardware", "gaudi3"),
}


@pytest.mark.parametrize("words", TIMES.values(), ids=TIMES)
def test_parts_bounds_and_nodes_add_up_to_the_estimate(run: Any, words: tuple[str, ...]) -> None:
    hardware = () if "--hardware" in words else H100
    document = answer(run, "time", *words, *hardware, "--by-node", "3")
    estimate = document["seconds"]["estimate"]
    parts = {name: seconds for name, seconds in document["parts"].items() if name != "layer waits"}
    assert sum(parts.values()) == pytest.approx(estimate, rel=1e-9)
    assert sum(document["bounds"].values()) == pytest.approx(estimate, rel=1e-9)
    assert sum(node["seconds"] for node in document["nodes"]) == pytest.approx(estimate, rel=1e-9)
    assert sum(node["share"] for node in document["nodes"]) == pytest.approx(1, rel=1e-9)
    assert all(0 < node["reached"] <= 1 for node in document["nodes"])
    assert document["seconds"]["low"] < estimate < document["seconds"]["high"]
    assert 0 < document["mfu"]["causal"] <= document["mfu"]["full"] < 1
    tokens = document["workload"]["batch"] * document["workload"]["seq"]
    assert document["tokens_per_second"] == pytest.approx(tokens / estimate)


def test_without_a_phase_it_is_a_token_or_what_an_option_says(run: Any) -> None:
    phases = {
        (): "decode",
        ("--engine", "vllm"): "decode",
        ("--server",): "prefill",
        ("--global-batch", "8"): "training",
        ("--stack", "maxtext"): "training",
        ("--optimizer", "adamw"): "training",
        ("--recompute", "full"): "training",
    }
    for options, phase in phases.items():
        assert answer(run, "time", "gpt2", *H100, "--seq", "64", *options)["class"]["phase"] == phase, options


@pytest.mark.parametrize(
    ("hardware", "scheme", "engine"),
    [
        ("m3-max", "none", "llama.cpp"),
        ("m3-max", "mlx-4bit", "mlx"),
        ("tesla-p40", "none", "llama.cpp"),
        ("v100-32gb", "none", "vllm"),
        ("strix-halo", "none", "llama.cpp"),
        ("h100", "none", "vllm"),
        ("h100", "fp8", "vllm"),
        ("h100", "q4_k_m", "llama.cpp"),
    ],
)
def test_without_an_engine_it_is_the_one_that_people_run_there(
    run: Any, hardware: str, scheme: str, engine: str
) -> None:
    words = ("time", SMALL, "--phase", "decode", "--hardware", hardware, "--quantize", scheme)
    usual = answer(run, *words)
    assert usual["seconds"] == answer(run, *words, "--engine", engine)["seconds"]
    assert usual["class"]["stack"] == {"llama.cpp": "llamacpp"}.get(engine, engine)


def test_a_model_whose_class_the_version_lacks_has_the_note_of_memory(run: Any) -> None:
    words = ("glm-5.2", "--hardware", "h200", "--notes", "--engine")
    for name in ("vllm==0.9", "vllm==0.19"):
        texts = [
            " ".join(run(verb, *words, name, *layout)[1].split())
            for verb, layout in (("time", ("--phase", "decode", "--tp", "8")), ("memory", ("--devices", "16")))
        ]
        assert [("has no class for GlmMoeDsaForCausalLM" in text) for text in texts] == [name == "vllm==0.9"] * 2


@pytest.mark.parametrize(
    ("hardware", "engine", "expected"),
    [
        ("m3-max", "vllm", "--engine llama.cpp"),
        ("m3-max", "sglang==0.5.5", "--engine llama.cpp"),
        ("mi300x", "tensorrt-llm", "--engine vllm"),
        ("v100-32gb", "sglang", "--engine vllm"),
        ("tpu-v6e", "ollama", "--engine vllm"),
    ],
)
def test_an_engine_is_not_timed_where_it_does_not_run(run: Any, hardware: str, engine: str, expected: str) -> None:
    refused = run("time", SMALL, "--phase", "decode", "--hardware", hardware, "--engine", engine)
    assert refused.code == 2
    assert f"--engine '{engine}': times of" in refused.err
    assert f"are not modelled; expected {expected}, or a GPU of" in refused.err
    plugin = run("time", SMALL, "--phase", "decode", "--hardware", "gaudi3", "--engine", "vllm", "--notes")
    assert "vLLM on this device was never tested" in " ".join(plugin.out.split())
    training = run("time", SMALL, "--phase", "training", "--hardware", "ascend-910b", "--framework", "torch", "--notes")
    assert "known stack on a device without kernel tables (eager PyTorch)" in " ".join(training.out.split())


@pytest.mark.parametrize(
    ("hardware", "scheme", "formats"),
    [
        ("h100", "fp8", "fp8 products"),
        ("a100", "fp8", "fp8 weights, multiplied in 16 bits"),
        ("h100", "awq-int4-g128", "quantized weights, multiplied in 16 bits"),
        ("rtx3060", "q4_k_m", "quantized weights, multiplied in int8"),
    ],
)
def test_a_screen_names_the_format_in_which_the_device_multiplies(
    run: Any, hardware: str, scheme: str, formats: str
) -> None:
    words = ("time", SMALL, "--phase", "decode", "--hardware", hardware, "--quantize", scheme)
    assert f", {formats}" in " ".join(run(*words).out.split())


def test_a_small_part_of_a_long_time_has_a_unit_of_its_size(run: Any) -> None:
    shown = run("time", SMALL, "--phase", "prefill", "--seq", "1M", "--hardware", "h100").out
    host_row = next(line for line in shown.splitlines() if line.strip().startswith("host"))
    assert "1.80 ms" in host_row


def test_products_in_float32_compute_no_tiles_of_rows(run: Any) -> None:
    """Tiles are of matrix units, which float32 does not use: the products of a token wait for their weights."""
    document = answer(run, "time", SMALL, "--phase", "decode", "--dtype", "fp32", *H100, "--by-node", "3")
    assert {node["bound"] for node in document["nodes"] if node["kind"] == "product"} == {"memory"}


def test_a_class_says_how_it_was_tested(run: Any) -> None:
    known = answer(run, "time", "llama3-8b", *H100, "--phase", "training", "--devices", "8", "--tp", "2")["class"]
    assert known["device"] == "profiled"
    assert known["stack"] == "megatron"
    assert known["tested_rows"] > 0
    assert known["median_error"] < known["p90_error"]
    words = ("time", "llama3-8b", "--hardware", "mi455x", "--phase", "decode")
    untested = answer(run, *words)
    assert untested["class"]["tested_rows"] == 0
    assert untested["class"]["median_error"] is None
    assert "never tested" in run(*words).out
    spreads = [document["high"] / document["low"] for document in (
        answer(run, "time", "llama3-8b", *H100, "--devices", "8", "--tp", "2")["seconds"], untested["seconds"],
    )]  # fmt: skip
    assert spreads[0] < spreads[1]


@pytest.mark.parametrize(
    ("hardware", "stack"), [("ascend-910b", "vllm-npu"), ("trn1", "vllm-neuron"), ("h100", "vllm")]
)
def test_an_engine_has_the_stack_of_its_plugin_by_default(run: Any, hardware: str, stack: str) -> None:
    words = ("time", "qwen3-8b", "--hardware", hardware, "--phase", "decode")
    documents = [answer(run, *words, *engine) for engine in ((), ("--engine", "vllm"), ("--stack", stack))]
    assert all(document["seconds"] == documents[0]["seconds"] for document in documents)
    assert documents[0]["class"]["stack"] == stack
    assert documents[0]["class"]["tested_rows"] > 0


@pytest.mark.parametrize("phase", ["training", "prefill", "decode"])
def test_what_was_never_tested_has_the_widest_range_of_its_phase(phase: str) -> None:
    device, stack = device_of(load_hardware("h100-sxm")), software_stacks()["vllm"]
    spec = llmcalc.load("mixtral-8x7b").model
    never = expected_range(1.0, phase, device, stack, spec, untested_reason="drafted tokens")
    tested = expected_range(1.0, phase, device, stack, spec)
    assert never.tested_class is None
    assert tested.tested_class is not None
    assert never.low <= tested.low < tested.high <= never.high
    under_load = expected_range(1.0, phase, device, stack, spec, burst_seconds=2.0)
    assert (under_load.tested_class == tested.tested_class) == (phase != "prefill")


def test_rules_stand_beside_the_estimate(run: Any) -> None:
    words = ("time", "llama3-8b", *H100, "--seq", "4k")
    assert answer(run, *words)["rules"]["8ND"] is None
    rules = answer(run, *words, "--recompute", "full")["rules"]
    assert rules["8ND"] == pytest.approx(rules["6ND"] * 4 / 3)
    assert rules["6ND"] == pytest.approx(6 * 8_030_261_248 * 4096 / (0.45 * 989.5e12))


def test_a_run_that_does_not_fit_undivided_takes_the_fastest_layout_of_its_plan(run: Any) -> None:
    words = ("llama3-8b", *H100, "--devices", "8", "--global-batch", "64")
    [fastest, *_] = answer(run, "plan", *words, "--rows", "1")["feasible"]
    timed = answer(run, "time", *words)
    assert timed["seconds"] == fastest["seconds"]
    assert timed["layout"]["zero"] == 1
    assert "the fastest layout that fits: --dp 8 --zero 1; undivided" in " ".join(
        run("time", *words, "--notes")[1].split()
    )
    stated = " ".join(run("time", *words, "--dp", "8")[1].split())
    assert "optimizer states and activations are 146.85 GiB a device, which has 79.19 GiB: they do not fit" in stated
    assert "do not fit" not in run("time", *words, "--dp", "8", "--zero", "1")[1]


@pytest.mark.parametrize(
    ("model", "hardware", "sizes"),
    [
        ("llama3-8b", "mi300x", ()),  # which fits undivided too
        ("gpt2", "h100", ("--global-batch", "12")),  # of which 8 replicas cannot have equal parts
    ],
)
def test_devices_alone_have_the_layout_of_plan_and_cost(
    run: Any, model: str, hardware: str, sizes: tuple[str, ...]
) -> None:
    words = (model, "--hardware", hardware, "--devices", "8", *sizes)
    timed = answer(run, "time", *words, "--phase", "training")
    [fastest, *_] = (plan := answer(run, "plan", *words))["feasible"]
    assert (timed["seconds"], timed["layout"]) == (fastest["seconds"], fastest["layout"])
    batch = ("--global-batch", str(plan["global_batch"]), "--seq", str(timed["workload"]["seq"]))
    cost = answer(run, "cost", model, "--hardware", hardware, "--devices", "8", "--tokens", "1B", *batch)
    assert cost["step"] == timed["seconds"]


def test_activations_that_do_not_fit_are_said(run: Any) -> None:
    """LoRA took 3.3 s in a run of 128 GiB on 79 GiB without a word, as weights and states alone were compared."""
    words = ("llama3.1-8b", "--hardware", "a100", "--lora-rank", "16", "--batch", "4", "--seq")
    assert "and activations are 123.16 GiB a device, which has 79.25 GiB: they do not fit" in " ".join(
        run("time", *words, "4k").out.split()
    )
    assert "do not fit" not in run("time", *words, "1k").out


def test_layers_that_llama_cpp_leaves_on_the_host_are_in_the_least_time(run: Any) -> None:
    """A server of llama.cpp starts with a model larger than its card, and is then several times slower."""
    words = ("qwen3-32b", "--hardware", "rtx-5070", "--users", "1", "--seq", "150")
    llama_cpp = " ".join(run("time", *words, "--engine", "llama.cpp", "--quantize", "q4_k_m").out.split())
    assert "a token of every sequence takes 89 ms or more, with layers on the host" in llama_cpp
    assert "layers that do not fit run on the host; the table has all layers on the accelerator" in llama_cpp
    size_and_certainty = [
        llama_cpp.index(text) for text in ("weights, cache and buffers are", "never seen before were")
    ]
    assert size_and_certainty == sorted(size_and_certainty)  # the note that explains the first line stands first
    assert "a host that reads 100 GB/s" in llama_cpp  # of 18.4 GB of weights 35 %; published: 227 ms with its memory
    vllm = " ".join(run("time", *words).out.split())
    assert "it does not fit; with enough memory a token of every sequence takes" in vllm
    assert "they do not fit; --devices N divides them" in vllm
    json_answer = answer(run, "time", *words, "--engine", "llama.cpp", "--quantize", "q4_k_m")
    assert (json_answer["fits"], round(json_answer["seconds_with_host"], 3)) == (False, 0.089)
    fitting = answer(run, "time", "qwen3-8b", "--hardware", "rtx-3090", "--quantize", "q4_k_m")
    assert (fitting["fits"], fitting["seconds_with_host"]) == (True, None)
    tag = " ".join(run("time", "qwen3:8b", "--hardware", "rtx-3090", "--engine", "ollama").out.split())
    assert tag.index("never seen before were") < tag.index("as most tags without a format have")


def test_a_token_after_a_default_context_is_also_timed_after_a_short_one(run: Any) -> None:
    """`qwen3:30b` on an M4 Max was said to write 9 tokens/s: after the 262,143 tokens for which Ollama makes room.

    Owners of such a chip measure 70 to 100, after prompts of a thousand tokens or fewer.
    """
    words = ("qwen3:30b", "--hardware", "m4-max-128gb")
    timed = answer(run, "time", *words)
    after_1k = answer(run, "time", *words, "--seq", "1024")
    assert "short_context" not in after_1k
    assert timed["workload"]["context"] == 262_143
    assert (timed["short_context"]["context"], timed["short_context"]["tpot"]) == (1024, after_1k["seconds"])
    assert timed["short_context"]["tokens_per_second"] > 5 * timed["tokens_per_second"]
    fitted = answer(run, "fit", *words)
    short, first = fitted["short_context"], fitted["decoding"][0]
    assert [(entry["users"], entry["context"]) for entry in (short, first)] == [(1, 1024), (1, 262_144)]
    assert short["tpot"] == after_1k["seconds"]
    screen = " ".join(run("time", *words).out.split())
    assert "takes 9.5 to 16 ms, likely 11 (93 tokens/s) after 1,024 tokens; 97-170 ms after 262,143 decoding" in screen


def test_a_host_that_is_the_accelerators_own_memory_runs_no_layers(run: Any) -> None:
    """M1 took 380 ms or more with layers on a host, less than its own table's 604 ms without."""
    for words in (("qwen3-32b", "--hardware", "m1"), ("llama3.1-70b", "--hardware", "jetson-orin-nx")):
        words += ("--quantize", "q4_k_m")
        screen = " ".join(run("time", *words, "--notes").out.split())
        assert "it does not fit; with enough memory a token of every sequence takes" in screen
        assert "they do not fit; llmcalc fit tries changes that need less" in screen
        assert "with enough memory: " in screen
        assert answer(run, "time", *words)["seconds_with_host"] is None
        assert "layers on the host" not in run("fit", *words, "--notes").out


def test_one_host_reads_the_layers_of_all_accelerators_and_no_faster_than_one(run: Any, tmp_path: Any) -> None:
    """Llama 3.1 405B took 2.2, 1.0 and 0.41 s on 1, 2 and 4 cards of 24 GB, of which the host reads nine tenths."""
    words = ("time", "llama3.1-405b", "--hardware", "rtx-3090", "--quantize", "q4_k_m", "--devices")
    weight_bytes, card_bytes = 243e9, 24 * 2**30
    for layout in ("1", "2", "4", "4 --tp 4", "2 --tp 2", "2 --dp 2"):
        on_cards = int(layout[0]) * card_bytes / (2 if "dp" in layout else 1)
        bound = answer(run, *words, *layout.split())["seconds_with_host"]
        assert bound > 0.85 * (weight_bytes - on_cards) / 100e9 * (2 if "dp" in layout else 1)
    slow_card = tmp_path / "slow.toml"
    slow_card.write_text(
        'title = "a slow card"\nvendor = "NVIDIA"\nmemory_bytes = 8589934592\nmemory_bandwidth = 40000000000\n'
        'usual_engine = "llama.cpp"\n[peak_flops]\nfloat16 = 4000000000000\n'
    )
    document = answer(run, "time", "qwen3-32b", "--hardware", str(slow_card), "--quantize", "q4_k_m", "--seq", "512")
    assert document["seconds_with_host"] >= document["seconds"]["low"]


def test_notes_and_the_first_line_agree_on_layers_on_the_host(run: Any) -> None:
    words = ("time", "llama3.1-70b", "--hardware", "rtx-3090", "--quantize", "q4_k_m", "--seq", "8k", "--notes")
    decoded, measured, prompt = (
        " ".join(run(*words, *further).out.split()) for further in ((), ("--measured", "300ms"), ("--phase", "prefill"))
    )
    assert "the first line a host that reads 100 GB/s" in decoded
    assert "with all layers on the accelerator: 16 tokens/s" in decoded
    bound_text = decoded.partition(" takes ")[2].partition(" or more, with layers on the host")[0]
    assert f"as has the first line; with a host that reads 100 GB/s: {bound_text} or more" in measured
    assert "the estimate, with all layers on the accelerator: 16 tokens/s" in measured
    assert "it does not fit; with enough memory a prompt batch takes" in prompt
    assert "as has the first line: no time with the host is estimated" in prompt


@pytest.mark.parametrize(("model", "hardware"), [("t5-small", "a100"), ("whisper-tiny", "l4")])
def test_the_encoder_has_run_before_a_token_is_decoded(run: Any, model: str, hardware: str) -> None:
    """A token of Flan-T5 XXL took 16 ms, of which 6 ms were of the encoder, under vLLM, which refuses such models."""
    decoded, prompt = (
        answer(run, "time", model, "--hardware", hardware, "--phase", phase, "--by-node", "1")
        for phase in ("decode", "prefill")
    )
    shares = [
        sum(node["share"] for node in document["nodes"] if node["path"].startswith("encoder"))
        for document in (decoded, prompt)
    ]
    assert shares[0] < 0.002 < shares[1]  # the look-up of T5's relative positions alone
    assert decoded["class"]["tested_rows"] == 0
    assert "transformers in eager PyTorch with an encoder beside the decoder was never tested" in " ".join(
        run("time", model, "--hardware", hardware, "--phase", "decode").out.split()
    )


TRAINED_ALONE = "torch.distributed has no backend on M4 Max"


def test_accelerators_without_collectives_train_alone_in_pytorch(run: Any) -> None:
    """Two Macs trained under Megatron-Core, as a known stack."""
    words = ("smollm-135m", "--hardware", "m4-max")
    for command in (("time", "--phase", "training"), ("plan",), ("cost", "--tokens", "1B")):
        error = run(command[0], *words, *command[1:], "--devices", "2").error
        assert f"--devices 2: {TRAINED_ALONE}; expected --devices 1, or another --hardware" in error
    error = run("plan", *words, "--devices", "1", "--framework", "megatron").error
    assert f"--framework megatron: {TRAINED_ALONE}; expected --framework torch" in error
    assert answer(run, "plan", *words, "--devices", "1")["framework"] == "torch"


REFUSED_UNITS = ("nvfp4", "h100", "h100-sxm has no fp4"), ("fp8", "a100", "80gb has no fp8")


def test_no_advice_leads_back_to_a_refusal(run: Any) -> None:
    """plan said that time has nvfp4, and time that plan lists layouts; or plan named a framework that refuses it."""
    for command in (("plan",), ("cost", "--tokens", "1B"), ("time", "--phase", "training")):
        for precision, hardware, units in REFUSED_UNITS:
            words = (SMALL, "--devices", "2", "--hardware", hardware, "--precision", precision)
            error = run(command[0], *words, *command[1:]).error
            assert f"{units} units; expected bf16-master or another --hardware" in error
    words = ("llama3.1-405b", "--hardware", "gb200", "--phase", "training", "--precision", "nvfp4", "--devices", "8")
    stated = " ".join(run("time", *words).out.split())
    assert "they do not fit; more --tp, --pp or --fsdp divides them" in stated
    assert "llmcalc plan" not in stated


def test_a_measured_time_is_compared_with_the_range(run: Any) -> None:
    words = ("time", "llama3-8b", *H100, "--devices", "16", "--dp", "16", "--zero", "1", "--seq", "4k")
    estimate = answer(run, *words)["seconds"]["estimate"]
    inside = answer(run, *words, "--measured", f"{estimate * 1e3:.3f}ms")["measured"]
    assert inside["inside"]
    assert inside["seconds"] == pytest.approx(estimate, rel=1e-3)
    for rate in ("21845.3 tok/s", "21,845.3 tokens/s", "21.8453k tok/s", "1365.33 tps/GPU"):  # 16 sequences of 4,096
        assert answer(run, *words, "--measured", rate)["measured"]["seconds"] == pytest.approx(3.0, rel=1e-4)
    full = answer(run, *words, "--measured", "3s")["measured"]["mfu"]["full"]  # of an H100's 989.4 TFLOP/s
    tflops = f"{989.4 * full:.2f}"
    for rate in (f"{tflops} TFLOP/s/GPU", f"{tflops}TFLOPS", f"{tflops} TFLOPs/s", f"{100 * full:.3f}% MFU"):
        assert answer(run, *words, "--measured", rate)["measured"]["seconds"] == pytest.approx(3.0, rel=1e-3)
    slow = answer(run, *words, "--measured", f"{3 * estimate:.4f}s")["measured"]
    assert not slow["inside"]
    assert any("--overlap none" in line for line in slow["lines"])
    fast = answer(run, *words, "--measured", f"{estimate / 3:.4f}")["measured"]
    assert not fast["inside"]
    assert "times as fast" in fast["lines"][0]
    assert "what is recomputed" in fast["lines"][0]
    _phase_line, line = answer(run, "time", "gpt2", "--hardware", "h100", "--seq", "512", "--measured", "1us")[
        "measured"
    ]["lines"]
    assert line.endswith("compare the tokens before this one (--seq; 512 here), the users and the format")


def test_a_measured_time_has_the_mfu_of_its_tokens_per_second(run: Any) -> None:
    """As `llmcalc flops --tokens-per-second` has it of the rate."""
    sizes = ("llama3-8b", *H100, "--devices", "8", "--seq", "8k")
    words = ("time", *sizes, "--fsdp", "8", "--measured", "1.2s")
    measured = answer(run, *words)["measured"]
    assert measured["tokens_per_second"] == pytest.approx(8 * 8192 / 1.2)
    rate = ("--phase", "training", "--tokens-per-second", str(round(measured["tokens_per_second"])))
    by_key = {
        convention["key"]: convention["mfu"]
        for convention in answer(run, "flops", *sizes, *rate)["utilization"]["conventions"]
    }
    assert measured["mfu"]["causal"] == pytest.approx(by_key["exact_causal"], rel=1e-4)
    assert measured["mfu"]["full"] == pytest.approx(by_key["exact_full"], rel=1e-4)
    screen = " ".join(run(*words, "--notes").out.split())
    assert "measured 1.20 s, outside the range: 54,613 tokens/s (6,827 a device); MFU 36 % causal, 40 % full" in screen
    assert "the estimate: 72," in screen


PLANS: dict[str, tuple[str, ...]] = {
    "recomputed": ("llama3.2-1b", "--seq", "2k", "--recompute", "attention", "--devices", "8", "--global-batch", "32"),
    "experts": ("olmoe-1b-7b", "--seq", "2k", "--devices", "16", "--global-batch", "32"),
    "uneven stages": ("qwen3-0.6b?num_hidden_layers=7", "--seq", "1k", "--devices", "4", "--pp", "4"),
    "long sequences": (SMALL, "--seq", "16k", "--devices", "4", "--cp", "2"),
    "FSDP": ("llama3.2-1b", "--seq", "2k", "--devices", "8", "--framework", "fsdp2"),
    "ZeRO": ("llama3.2-1b", "--seq", "2k", "--devices", "8", "--framework", "deepspeed", "--batch", "2"),
    "adapters": ("llama3.2-1b", "--seq", "1k", "--devices", "4", "--framework", "torch", "--lora-rank", "8"),
    "8 bits": (SMALL, "--seq", "1k", "--devices", "2", "--precision", "fp8"),
    "another network": (SMALL, "--seq", "1k", "--devices", "16", "--nic", "25"),
    "nothing hidden": (SMALL, "--seq", "1k", "--devices", "8", "--overlap", "none"),
    "another stack": (SMALL, "--seq", "1k", "--devices", "8", "--stack", "megatron-no-overlap"),
}


@pytest.mark.parametrize("words", PLANS.values(), ids=PLANS)
def test_plan_and_time_give_the_same_seconds(run: Any, words: tuple[str, ...]) -> None:
    plan = answer(run, "plan", *words, *H100, "--rows", "3")
    assert plan["by"] == "time"
    assert plan["feasible"]
    sizes = {"--devices", "--global-batch", "--framework", "--pp", "--cp", "--recompute"}
    model = [word for i, word in enumerate(words) if not {word, words[i - 1]} & sizes]
    for row in plan["feasible"]:
        recompute = ("--recompute", "attention") if "--recompute" in words else ()
        options = (*row["options"].split(), "--framework", plan["framework"], *recompute)
        timed = answer(run, "time", *model, *H100, *options, "--global-batch", str(plan["global_batch"]))
        assert timed["seconds"] == row["seconds"]
        assert timed["workload"]["num_microbatches"] == row["num_microbatches"]
    estimates = [row["seconds"]["estimate"] for row in plan["feasible"]]
    slowest_before = 0.0
    for estimate in estimates:  # within 3 % the order is that of the kinds of parallelism
        assert 1.03 * estimate >= slowest_before
        slowest_before = max(slowest_before, estimate)


def test_a_plan_recomputes_as_little_as_it_needs_to_fit(run: Any, tmp_path: Path) -> None:
    """A layout that does not fit as it is runs with recomputation, in the memory and in the time of these options."""
    small = tmp_path / "small.toml"
    small.write_text('like = "h100-sxm"\nmemory_bytes = 9_663_676_416\nusable_memory_bytes = 9_663_676_416\n')
    words = (SMALL, "--hardware", str(small), "--devices", "2", "--seq", "4096")
    plan = answer(run, "plan", *words, "--rows", "20")
    again = [row for row in plan["feasible"] if "--recompute" in row["options"]]
    assert again
    chosen = {row["options"] for row in answer(run, "plan", *words, "--rows", "20", "--recompute", "none")["feasible"]}
    assert {row["options"] for row in plan["feasible"]} - chosen == {row["options"] for row in again}
    for row in again[:2]:
        number = str(row["num_microbatches"])
        options = (*row["options"].split(), "--framework", plan["framework"], "--num-microbatches", number)
        timed = answer(run, "time", *words, "--phase", "training", *options)
        assert timed["seconds"] == row["seconds"]
        memory = answer(run, "memory", *words, "--phase", "training", *options)
        assert memory["memory"]["device_bytes"] == row["device_bytes"]


def test_the_place_of_a_layout(run: Any) -> None:
    words = ("plan", SMALL, *H100, "--devices", "8", "--global-batch", "24", "--seq", "128", "--rows", "1")
    plan = answer(run, *words)
    first = plan["feasible"][0]["layout"]
    of_first, of_tp, by_memory = (
        shared_answer(" ".join((*words, options)))
        for options in (f"--where tp={first['tp']},dp={first['dp']}", "--where tp=4", "--by memory --where dp=8")
    )
    place = of_first.document["where"]
    assert place["place"] == 1
    assert place["of"] > 1
    assert place["slower_share"] == 0
    assert place["seconds"] == plan["feasible"][0]["seconds"]
    assert f"place 1 of {place['of']}, likely " in of_first.screen
    assert f" a step ({place['options']})" in of_first.screen
    later = of_tp.document["where"]
    steps = answer(run, "time", SMALL, *H100, "--phase", "training", "--seq", "128", "--global-batch", "24",
                   "--framework", plan["framework"], *later["options"].split())  # fmt: skip
    assert later["seconds"] == steps["seconds"]
    assert later["slower_share"] > 0
    assert f"tp4: place {later['place']} of {later['of']}, likely " in of_tp.screen
    assert f"% more than the first ({later['options']})" in of_tp.screen
    assert answer(run, *words, "--where", "tp=3")["where"]["place"] is None
    assert by_memory.document["by"] == "memory"
    assert "seconds" not in by_memory.document["feasible"][0]
    assert f" ({by_memory.document['where']['options']})" in by_memory.screen


def test_a_layout_that_a_replay_refuses_has_no_place() -> None:
    """Place 1 was a layout that is not in the table, since its replay did not fit."""
    layout_plan: Any = llmcalc.plan(SMALL, "h100", devices=4, seq=128, rows=3).result
    first, second, *others = layout_plan.ranked_layouts.fitting_candidates
    refused_plan = replace(layout_plan.ranked_layouts, fitting_candidates=[second, *others])
    layouts_in_order = [
        candidate for _, candidate in replace(layout_plan, ranked_layouts=refused_plan).candidates_in_order
    ]
    assert layouts_in_order[:2] == [second, *others][:2]
    assert first not in layouts_in_order
    assert len(layouts_in_order) == len(layout_plan.candidates_in_order) - 1


def test_an_accelerator_without_peaks_is_ordered_by_memory(run: Any) -> None:
    words = ("plan", SMALL, "--hardware", "24GiB", "--devices", "2", "--seq", "128", "--rows", "1")
    assert answer(run, *words)["by"] == "memory"
    assert "no memory bandwidth is known" in run(*words, "--by", "time").error


def test_adapters_of_divided_experts_are_refused_as_in_memory(run: Any) -> None:
    layout = ("--framework", "megatron", "--tp", "2", "--ep", "2", "--etp", "2", "--dp", "4", "--zero", "1")
    adapters = ("--lora-rank", "8", "--lora-library", "mcore-bridge", "--lora-targets", "all-linear")
    words = ("qwen3-30b-a3b", "--phase", "training", "--seq", "512", *layout, *adapters)
    message = run("memory", *words).error
    assert "--etp 2: not modelled with adapters of experts; expected --etp 1" in message
    assert run("time", *words, *H100).error == message


def test_adapters_of_peft_under_megatron_are_timed_although_their_memory_is_not_modelled(run: Any) -> None:
    words = (SMALL, "--phase", "training", "--framework", "megatron", "--tp", "2", "--seq", "512")
    adapters = ("--lora-rank", "8", "--lora-targets", "q_proj,v_proj")
    message = "--lora-rank: adapters of peft are not divided over ranks of Megatron-Core"
    assert message in run("memory", *words, *adapters).error
    whole = answer(run, "time", *words, *H100)
    low_rank = answer(run, "time", *words, *adapters, *H100)
    other_framework = answer(run, "time", *words, *adapters, *H100, "--stack", "deepspeed")
    assert low_rank["parts"]["update"] < whole["parts"]["update"] / 10
    assert low_rank["class"]["stack"] != other_framework["class"]["stack"]
    assert "--optimizer muon: not modelled" in run("time", *words, *adapters, *H100, "--optimizer", "muon").error


def candidate(seconds: float | None, needed: int = 50, sent: int = 0) -> Candidate:
    return Candidate(Layout(), 1, needed, 100, lambda: sent, seconds)


def test_replicas_of_attention_have_a_batch_each_and_divide_the_experts(run: Any) -> None:
    words = ("deepseek-v3", "--hardware", "h200", "--devices", "8", "--phase", "decode", "--seq", "8k", "--users", "4")
    by_experts = answer(run, "time", *words, "--dp", "8", "--ep", "8")
    assert by_experts["tokens_per_second"] == pytest.approx(8 * 4 / by_experts["seconds"]["estimate"])
    _, screen, _ = run("time", *words, "--dp", "8", "--ep", "8", "--notes")
    assert "decoding of 32 sequences" in screen
    assert "weights and cache are" not in screen
    assert "weights and cache are 629.07 GiB a device" in run("time", *words, "--dp", "8", "--notes")[1]


def test_ties_are_of_the_first_layout_of_a_tie() -> None:
    """1.00, 1.02 and 1.03 are tied; 1.04 begins the next tie, of which 1.07 is, and 1.08 is not."""
    layouts = [candidate(seconds) for seconds in (1.07, 1.0, 1.02, 1.03, 1.04, 1.08)]
    assert ties_with_previous(sorted_by_time(layouts)) == [False, True, True, False, True, False]


def test_of_a_tie_the_smallest_context_parallelism_and_the_fewest_kinds_come_first() -> None:
    layouts = [
        replace(candidate(seconds), layout=layout)
        for seconds, layout in (
            (1.0, Layout(cp=8, dp=2)),
            (1.01, Layout(tp=4, pp=2, dp=2)),
            (1.02, Layout(tp=4, dp=4)),
            (1.04, Layout(dp=16)),
        )
    ]
    ordered_candidates = sorted_by_time(layouts)
    assert [candidate.seconds for candidate in ordered_candidates] == [1.02, 1.01, 1.0, 1.04]
    assert ties_with_previous(ordered_candidates) == [False, True, True, False]


def test_headroom_beyond_a_tenth_is_no_merit() -> None:
    roomy, sends_less = candidate(None, needed=20, sent=10), candidate(None, needed=80, sent=1)
    assert sorted_by_memory([roomy, sends_less])[0] is sends_less


REFUSED = {
    "time gpt2": "--hardware: missing",
    "time gpt2 --hardware 24GiB": "no memory bandwidth is known",
    "time gpt2 --hardware h100 --phase inference": "expected prefill (a prompt) or decode (a token)",
    "time gpt2 --hardware h100 --measured soon": "such as 8.1s, 35ms or 12min, or a rate such as 2900 tok/s, 400 "
    "TFLOP/s or 41% MFU",
    "time gpt2 --hardware h100 --measured 0tok/s": "--measured: '0tok/s'; expected a rate such as 2900 tok/s",
    "time gpt2 --hardware h100 --measured 0TFLOPS": "--measured: '0TFLOPS'; expected a rate such as 400 TFLOP/s",
    "time gpt2 --hardware h100 --measured 7,5tok/s": "--measured: '7,5tok/s'; expected a duration",
    "time gpt2 --hardware h100 --measured -1": "--measured",
    "time gpt2 --hardware h100 --by-node 99": "--by-node: 99 is too large; expected at most 8",
    "time gpt2 --hardware h100 --framework torch --users 4": "--users: training has no users, and --framework torch",
    "time gpt2 --hardware t4 --precision fp16": "expected no --precision, or autocast: bf16 has as many bytes",
    "time gpt2 --hardware h100 --nic fast": "--nic: 'fast'; expected GB/s",
    "time gpt2 --hardware h100 --overlap pp": "--overlap: 'pp' is not known",
    "time gpt2 --hardware h100 --overlap dp,all": "expected none, all, or some of dp, tp, ep with commas",
    "time gpt2 --hardware h100 --phase training --stack vllm": "--stack vllm: is for inference",
    "time gpt2 --hardware h100 --phase decode --stack megatron": "--stack megatron: is for training",
    "time gpt2 --hardware h100 --engine tgi": "--engine: text-generation-inference is not modelled",
    "time gpt2 --hardware h100 --engine vllm --global-batch 8": "--engine: is of inference",
    "time gpt2 --hardware h100 --phase decode --context 4k": "--context: is of prompts; expected --seq",
    "time gpt2 --hardware h100 --phase prefill --context 512": "expected --seq with the prompt's tokens too",
    "time gpt2 --hardware h100 --phase training --context 4k --seq 64": "--context: is of inference",
    "time gpt2 --hardware h100 --devices 4 --dp 4 --global-batch 6": "--global-batch 6: expected a multiple of 4",
    "time gpt2 --hardware h100 --global-batch 6 --num-microbatches 3": "expected one of the two",
    "time gpt2 --hardware h100 --recompute nodes:mlpx": "nodes:mlpx: no layer has that module; expected some of",
    "time llama3-8b --hardware h100 --lora-rank 8 --base int8": "--base int8: its time is not modelled",
    "time llama3-8b --hardware h100 --lora-rank 8 --modules-to-save lm_head": "the time of trained copies",
    "time gpt2 --hardware h100 --fsdp 8 --precision autocast": "FSDP2 with autocast beside its own mixed precision",
    "time gpt2 --hardware h100 --fsdp 8 --zero-grad zeros": "FSDP2 with gradients that are set to zero",
    "time llama3-8b --hardware a100 --fsdp 8 --precision fp8": "--precision fp8: a100-80gb has no fp8 units",
    "time llama3-8b --hardware h100 --fsdp 8 --precision mxfp8": "h100-sxm (compute capability 9.0) has no units",
    "time llama3-8b --hardware h100 --dp 8 --zero-group 4": "--zero-group 4: nothing is sharded; expected",
    "time llama3-8b --hardware h100 --dp 8 --zero 1 --zero-group 3": "--zero-group 3: expected a divisor of dp",
    "time llama3-8b --hardware h100 --fsdp 4 --zero-group 4 --hsdp-replicas 2": "--hsdp-replicas says it",
    "memory llama3-8b --precision fp8": "not modelled under torch; expected --framework fsdp2 or megatron",
    "memory llama3-8b --precision nvfp4 --framework megatron": "expected llmcalc time, which has it",
    "memory llama3-8b --precision mxfp8 --framework megatron --hardware h100": "mxfp8 does not run on H100-SXM",
    "plan llama3-8b --precision mxfp8 --framework fsdp2 --devices 8 --hardware h100": "not modelled under FSDP2",
    "fit llama3-8b --precision fp8 --hardware h100": "--precision fp8: the memory of its products is not modelled",
    "time bert-base --hardware h100 --phase decode": "an encoder-only model does not decode",
    "plan gpt2 --hardware h100 --devices 2 --by memory --stack maxtext": "--stack: is of the order by time",
    "plan gpt2 --hardware h100 --devices 2 --stack nemo": "--stack: 'nemo' is not known",
    "plan gpt2 --hardware h100 --devices 2 --overlap some": "--overlap: 'some' is not known",
    "plan gpt2 --hardware h100 --devices 2 --where tp": "--where: 'tp'; expected sizes of a layout such as tp=8,pp=16",
}


def test_fp8_of_torch_is_an_estimate_of_sharded_layers(run: Any) -> None:
    """torchao's linear layers save what those of bf16 do; adapters beside them are not modelled."""
    words = "memory", "gpt2", "--fsdp", "8"
    answer = run(*words, "--precision", "fp8").out
    assert "fp8 products, fp32 master" in answer
    assert "torchao's products in float8, as those of bf16" in answer
    document = json.loads(run(*words, "--precision", "fp8", "--format", "json").out)
    term = next(term for term in document["memory"]["terms"] if term["name"] == "tensors")
    assert (term["status"], "float8" in term["witness"]) == ("estimate", True)
    assert "adapters beside products in 8 bits" in run(*words, "--precision", "fp8", "--lora-rank", "8").error


@pytest.mark.parametrize("command", REFUSED)
def test_what_has_no_time_is_refused(command: str, run: Any) -> None:
    assert REFUSED[command] in run(*command.split()).error


def test_narrow_products_are_faster_and_keep_more(run: Any) -> None:
    """8-bit products: a step takes less; Megatron's ranks keep 8-bit copies of weights beside the 16-bit ones."""
    layout = ("llama3-8b", "--framework", "megatron", "--tp", "2", "--hardware", "b200", "--seq", "4k")
    precisions = ("bf16-master", "mxfp8", "nvfp4")
    seconds = [answer(run, "time", *layout, "--precision", word)["seconds"]["estimate"] for word in precisions]
    assert seconds[0] > 1.15 * seconds[1] > 1.15 * 1.05 * seconds[2]
    memory = [answer(run, "memory", *layout, "--precision", word)["memory"]["device_bytes"] for word in precisions[:2]]
    assert memory[1] > memory[0]


@pytest.mark.parametrize(
    ("model", "scheme", "weight_bits", "head_bits"),
    [
        ("llama3-8b", "awq-int4-g128", 4 + 20 / 128, 16),  # a scale in 16 bits and a zero in 4 for each group
        ("llama3-8b", "q4_k_m", 4.797, 6.5625),  # the head is in q6_k
        ("qwen2.5-0.5b", "awq-int4-g128", 4 + 20 / 128, 16),  # tied to the embedding
        ("llama3-8b", "fp8-dynamic", 8, 16),
    ],
)
def test_a_token_reads_the_bits_of_the_layers_and_of_the_head(
    model: str, scheme: str, weight_bits: float, head_bits: float
) -> None:
    """The embedding, of which a token reads a row, was part of the mean: 5.7 bits of AWQ, 9.1 of FP8."""
    use = llmcalc.memory(model, phase="decode", seq=1024, quantize=scheme)
    assert isinstance(use, DeviceMemoryAnswer)
    formats = inference_formats(use.memory, 1024)
    assert formats.weight_bits == pytest.approx(weight_bits, rel=2e-3)
    assert formats.head_bits == pytest.approx(head_bits, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "scheme", "has_block_scales"),
    [("deepseek-v3", None, True), ("llama3-8b", "fp8-dynamic", False), ("llama3-8b", None, False)],
)
def test_published_blocks_of_scales_are_those_of_products(
    model: str, scheme: str | None, has_block_scales: bool
) -> None:
    """DeepSeek-V3's weights have a scale for each 128 x 128 (weight_block_size of its config)."""
    use = llmcalc.memory(model, phase="decode", seq=1024, quantize=scheme)
    assert isinstance(use, DeviceMemoryAnswer)
    assert inference_formats(use.memory, 1024).has_block_scales is has_block_scales


def test_engines_halve_models_of_float32(run: Any) -> None:
    """SantaCoder was published in float32: vLLM and SGLang run it in 16 bits, transformers as it was published."""
    command = ("time", "santacoder", "--phase", "prefill", "--hardware", "h200", "--seq", "1k")
    half, full = (answer(run, *command, "--dtype", dtype)["seconds"]["estimate"] for dtype in ("bfloat16", "float32"))
    assert full > 3 * half
    for engine in ("vllm", "sglang"):
        assert (
            answer(run, *command, "--engine", engine, "--stack", engine)["seconds"]
            == (answer(run, *command, "--stack", engine, "--dtype", "bfloat16")["seconds"])
        )
    assert answer(run, *command)["seconds"]["estimate"] == half
    eager = [
        answer(run, *command, "--stack", "transformers", *words)["seconds"] for words in ((), ("--dtype", "float32"))
    ]
    assert eager[0] == eager[1]


def test_zero_group_is_shards_in_groups(run: Any) -> None:
    """`--zero-group 8` of 64 ranks is 8 groups, as Megatron's --num-distributed-optimizer-instances 8."""
    layout = ("llama3-8b", *H100, "--framework", "megatron", "--dp", "64", "--zero", "1")
    grouped, named = (
        answer(run, "time", *layout, *words) for words in (("--zero-group", "8"), ("--hsdp-replicas", "8"))
    )
    assert grouped["seconds"] == named["seconds"]
    assert grouped["layout"]["hsdp_replicas"] == 8
    assert answer(run, "time", *layout)["parts"]["update"] < grouped["parts"]["update"]
    memory = [answer(run, "memory", *layout, *words)["memory"]["device_bytes"] for words in ((), ("--zero-group", "8"))]
    assert memory[1] > memory[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grad_dtype": "fp64"}, "--grad-dtype fp64: .* expected fp32, bf16 or fp16"),
        ({"grad_dtype": "fp8"}, "--grad-dtype fp8: .* expected fp32, bf16 or fp16"),
        ({"dtype": "fp64"}, "--dtype fp64: .* expected fp32, bf16 or fp16"),
        ({"dtype": "fp64", "phase": "prefill"}, "--dtype fp64: .* expected fp32, bf16 or fp16"),
    ],
)
def test_formats_without_a_time_are_refused(options: dict[str, str], message: str) -> None:
    """They were timed as 16 bits."""
    with pytest.raises(InputError, match=message):
        llmcalc.time("gpt2", **{"hardware": "h100", "phase": "training", **options})
    assert llmcalc.time("gpt2", hardware="h100", phase="training", grad_dtype="fp32").result.time_range.estimate > 0


def test_products_of_a_device_without_bfloat16_are_named_as_float16(run: Any) -> None:
    """V100 multiplies float16 alone in its tensor cores."""
    note = "products in 16 bits are in fp16: no peak of bf16 is known for V100 32 GB"
    words = (SMALL, "--phase", "training", "--hardware", "v100", "--seq", "512")
    assert note in answer(run, "time", *words)["notes"]
    assert note not in answer(run, "time", *words, "--precision", "fp32")["notes"]
    assert note not in answer(run, "time", *words[:3], *H100, "--seq", "512")["notes"]
    cost = ("cost", SMALL, "--tokens", "1B", "--devices", "1", "--seq", "512")
    assert note in answer(run, *cost, "--hardware", "v100")["notes"]
    with pytest.raises(InputError, match="no fp8 units; expected no --precision, which is fp16 there, or another"):
        llmcalc.time(SMALL, hardware="v100", phase="training", precision="fp8")


@pytest.mark.parametrize(
    ("words", "stack", "tested"),
    [
        (("--hardware", "tpu-v5p"), "maxtext", True),
        (("--hardware", "tpu-v5p", "--stack", "fsdp2"), "fsdp2", False),
        (("--hardware", "h100", "--stack", "maxtext"), "maxtext", True),
        (("--hardware", "trainium2"), "fsdp2", False),
        (("--hardware", "h100", "--devices", "2", "--pp", "2", "--num-microbatches", "4"), "megatron", True),
        (
            ("--hardware", "h100", "--devices", "2", "--pp", "2", "--num-microbatches", "4", "--schedule", "dualpipe"),
            "megatron",
            False,
        ),
    ],
)
def test_a_stack_or_schedule_that_no_run_has_is_never_tested(
    run: Any, words: tuple[str, ...], stack: str, tested: bool
) -> None:
    """TPUs run XLA's programs alone, and no measured run has a schedule with split backward passes."""
    size = () if "--pp" in words else ("--fsdp", "2")
    document = answer(run, "time", SMALL, "--phase", "training", "--seq", "512", *size, *words)
    assert document["class"]["stack"] == stack
    assert bool(document["class"]["tested_rows"]) == tested


def test_every_framework_that_is_named_trains(run: Any) -> None:
    """`--framework torch` alone timed a token of vLLM, where the others timed a step."""
    for framework in ("torch", "deepspeed", "megatron", "fsdp2"):
        document = run("time", "gpt2", "--hardware", "h100", "--framework", framework, "--format", "json").document
        assert document["class"]["phase"] == "training", framework


DUALPIPE = (
    "time", "deepseek-v3", "--hardware", "h800", "--devices", "128", "--pp", "4", "--ep", "32", "--pp-layout",
    "15x3,16", "--framework", "megatron", "--global-batch", "512", "--seq", "4k", "--precision", "fp8",
)  # fmt: skip


def test_dualpipe_hides_exchanges_of_experts(run: Any) -> None:
    """arXiv:2412.19437, §3.2.1; alone it was slower than 1F1B with --overlap all."""

    def seconds(*words: str) -> float:
        return float(run(*DUALPIPE, *words, "--format", "json").document["seconds"]["estimate"])

    hidden = seconds("--schedule", "dualpipe")
    assert hidden == seconds("--schedule", "dualpipe", "--overlap", "all")  # --tp 1: of tp there are no messages
    assert hidden < seconds("--overlap", "all") < seconds()
    assert seconds("--schedule", "dualpipe", "--overlap", "none") > hidden


LORA_STEP = (
    "time", "qwen1.5-7b", "--hardware", "a100", "--lora-rank", "64", "--lora-targets", "all-linear",
    "--num-microbatches", "8", "--recompute", "full", "--seq",
)  # fmt: skip


def test_the_range_of_a_step_that_waits_for_the_host_begins_on_a_fast_one(run: Any) -> None:
    """Qwen's table has 1.2 s an iteration with fewer adapters; the range was 2.4 to 4.7 s."""
    short = run(*LORA_STEP, "256", "--format", "json").document
    low, estimate = short["seconds"]["low"], short["seconds"]["estimate"]
    assert low < 0.6 * estimate
    text = " ".join(run(*LORA_STEP, "256").out.split())
    host_note = "waits for the host at 40 µs an operation; the low end has the fastest measured host, 22 µs"
    assert f"{host_note}; longer micro-batches (--batch) wait less" in text
    long = run(*LORA_STEP, "8192", "--format", "json").document
    assert long["seconds"]["low"] > 0.8 * long["seconds"]["estimate"]
    assert "waits for the host" not in run(*LORA_STEP, "8192", "--notes").out


def test_a_plan_has_the_range_of_time(run: Any) -> None:
    words = ("smollm-135m", "--hardware", "a100", "--seq", "512", "--format", "json", "--framework", "fsdp2")
    first = run("plan", *words, "--devices", "2", "--rows", "1").document["feasible"][0]
    timed = run(
        "time", *words, *first["options"].split(), "--num-microbatches", str(first["num_microbatches"])
    ).document
    assert timed["seconds"] == first["seconds"]


def test_a_token_in_a_framework_is_that_of_transformers(run: Any) -> None:
    """`--phase decode --framework X` was that of vLLM, whatever X."""
    words = ("time", "gpt2", "--hardware", "h100", "--phase", "decode")
    document = run(*words, "--framework", "torch", "--format", "json").document
    assert document["class"]["stack"] == "transformers"
    code, _, error = run(*words, "--framework", "megatron")
    assert code == 2
    assert "--framework megatron: only trains; expected --phase training, or --engine vllm" in error
    code, _, error = run(*words, "--framework", "torch", "--engine", "vllm")
    assert code == 2
    assert "--framework torch: is no server; expected --engine without it" in error


def update_of(run: Any, *words: str) -> tuple[float, list[str]]:
    """Returns the seconds of an optimizer's step of an 8B model, and the answer's notes."""
    run_words = "llama3-8b", "--hardware", "b300", "--phase", "training", "--seq", "2k"
    document = answer(run, "time", *run_words, *words)
    return document["parts"]["update"], document["notes"]


def test_an_update_reads_and_writes_the_states_of_its_optimizer(run: Any) -> None:
    """AdamW moves 38 bytes per parameter, of which its states are 16; the others have 8 or none in their place."""
    adamw, _ = update_of(run, "--optimizer", "adamw")
    assert update_of(run, "--optimizer", "sgd")[0] == pytest.approx(adamw * 22 / 38, rel=1e-6)
    assert update_of(run, "--optimizer", "lion")[0] == pytest.approx(adamw * 30 / 38, rel=1e-6)
    assert update_of(run, "--optimizer", "adamw", "--optimizer-dtype", "bf16")[0] == pytest.approx(adamw * 30 / 38)
    states, stepwise = 7 * 8, update_of(run, "--optimizer-impl", "foreach")
    assert stepwise[0] == pytest.approx(adamw * (38 + states) / 38)
    assert not any("--optimizer-impl" in note for note in stepwise[1])
    eight_bits, notes = update_of(run, "--optimizer", "adamw-8bit")
    assert update_of(run, "--optimizer", "sgd")[0] < eight_bits < adamw
    assert not any("timed as without" in note for note in notes)


def test_the_update_of_muon_multiplies_matrices(run: Any) -> None:
    """Each of 5 iterations takes 4 a² b + 2 a³ FLOPs of a matrix of a rows and b ≥ a columns.

    Of a layer of Llama 3 8B these are q and o (4096 × 4096), k and v (1024 × 4096), and three of 4096 × 14336.
    """
    layer = 2 * 6 * 4096**3 + 2 * (4 * 1024**2 * 4096 + 2 * 1024**3) + 3 * (4 * 4096**2 * 14336 + 2 * 4096**3)
    device = device_of(load_hardware("b300"))
    muon, adamw = (update_of(run, "--optimizer", name)[0] for name in ("muon", "adamw"))
    products = 32 * 5 * layer / device.product_rate("bf16", is_sustained=True)
    assert 0.9 * products < muon - adamw < products  # its momentum has half of the bytes of AdamW's states
    shards = ("--devices", "8", "--zero", "2", "--framework", "deepspeed", "--optimizer")
    assert update_of(run, *shards, "muon")[0] < muon / 6


def test_an_optimizer_on_the_host_takes_the_host_s_time(run: Any) -> None:
    words = "--devices", "8", "--framework", "megatron", "--zero", "1", "--optimizer-offload"
    seconds, notes = update_of(run, *words)
    assert seconds == pytest.approx(2e-9 * 8_030_261_248 / 8, rel=1e-3)
    assert any("an optimizer on the host was never tested" in note for note in notes)


def test_a_compiled_model_on_one_device_has_kernels_of_torch_compile(run: Any) -> None:
    """Two sequences of 4,096 tokens of Llama 3.2 3B on an A100 take 1.16 s, compiled 0.91 s (torchtune's README)."""
    words = (
        "llama3.2-3b",
        "--phase",
        "training",
        "--hardware",
        "a100-80gb",
        "-b",
        "2",
        "-s",
        "4k",
        "--precision",
        "bf16",
    )
    eager, compiled = (answer(run, "time", *words, *option) for option in ((), ("--compile",)))
    assert eager["seconds"]["estimate"] == pytest.approx(1.16, rel=0.15)
    assert compiled["seconds"]["estimate"] == pytest.approx(0.91, rel=0.15)
    assert not any("--compile" in note for note in compiled["notes"])


def test_kernels_of_liger_move_fewer_bytes(run: Any) -> None:
    """512 sequences of Qwen2.5 1.5B on an RTX 4090 take 55.7 s (llm.q's benchmark of LLaMA-Factory, train_llmq)."""
    words = "qwen2.5-1.5b", "--phase", "training", "--hardware", "rtx-4090", "-b", "16", "-s", "1k"
    run_words = *words, "--num-microbatches", "32", "--precision", "bf16", "--recompute", "full"
    eager, norms, liger, both = (
        answer(run, "time", *run_words, *options)
        for options in ((), ("--norm", "fused"), ("--norm", "liger"), ("--norm", "liger", "--cross-entropy", "chunked"))
    )
    seconds = [document["seconds"]["estimate"] for document in (eager, norms, liger, both)]
    assert sorted(seconds, reverse=True) == seconds
    assert seconds[-1] == pytest.approx(55.7, rel=0.1)
    assert not any("timed as without" in note for note in both["notes"])


def test_what_is_timed_as_without_an_option_is_said(run: Any) -> None:
    options = ("--cross-entropy", "split"), ("--offload-activations",)
    for option in options:
        _, notes = update_of(run, *option)
        assert f"timed as without {' '.join(option)}: what that changes is not estimated" in notes
    _, notes = update_of(run, "--optimizer", "galore")
    assert "timed as without projections of gradients (--optimizer galore): what that changes is not estimated" in notes
    words = "llama3-8b", *H100, "--devices", "8", "--framework", "fsdp2", "--seq", "2k", "--cross-entropy", "split"
    note = "timed as without --cross-entropy split: what that changes is not estimated"
    assert note in answer(run, "plan", *words, "--rows", "1")["notes"]
    assert note in answer(run, "cost", *words, "--tokens", "1B")["notes"]


def test_eager_norms_and_losses_on_fused_software_are_said_to_be_timed_as_fused(run: Any) -> None:
    """torch.compile fuses both; nanotron's own norm is one kernel (nanotron/nn/layer_norm.py)."""
    for stack, option, is_named in (
        ("megatron", "--norm", True),
        ("nanotron", "--norm", True),
        ("torch", "--norm", False),
        ("fsdp2-liger", "--cross-entropy", True),
        ("megatron", "--cross-entropy", False),  # which it prices
        ("torch", "--cross-entropy", False),
    ):
        _, notes = update_of(run, "--stack", stack, option, "eager")
        note = f"timed as without {option} eager: what that changes is not estimated"
        assert (note in notes) is is_named, (stack, option)
    _, notes = update_of(run, "--compile", "--norm", "eager", "--cross-entropy", "eager")
    assert not any("timed as without" in note for note in notes)
    for option, is_named in ((("--loss-chunk", "512"), True), ((), False)):
        _, notes = update_of(run, "--cross-entropy", "chunked", *option)
        assert ("timed as without --loss-chunk 512: what that changes is not estimated" in notes) is is_named


def test_fused_and_compiled_kernels_are_timed_as_such(run: Any) -> None:
    for words in (
        ("--devices", "8", "--fsdp", "8", "--compile"),
        ("--devices", "8", "--framework", "megatron", "--cross-entropy", "fused", "--norm", "fused"),
        ("--devices", "8", "--fsdp", "8", "--attn", "eager", "--norm", "eager"),
    ):
        assert not any("timed as without" in note for note in update_of(run, *words)[1])


def test_torch_chooses_the_kernel_of_attention_by_its_version_and_the_accelerator(run: Any) -> None:
    """From torch 2.11 on, attention of an H100 is cuDNN's (tests/data/gpu), in place of FlashAttention-2.

    One layer of 32 heads of 128 for 32,768 tokens takes 14.3 ms forward and 40.3 ms backward.
    """
    layer = "llama3-8b?num_hidden_layers=1", "--framework", "fsdp2", "--compile", "--seq", "32k"

    def attention(*words: str) -> float:
        nodes = answer(run, "time", *layer, *words)["nodes"]
        return sum(node["seconds"] for node in nodes if node["kind"] == "attention")

    seconds = attention(*H100)
    assert 1.0 < seconds / (0.01434 + 0.04028) < 1.25  # under load for hours, products keep 0.87 of their rate
    assert attention(*H100, "--torch", "2.11") == attention(*H100, "--attn", "sdpa") == seconds
    older = attention(*H100, "--torch", "2.10")
    assert older == attention(*H100, "--attn", "flash") == pytest.approx(seconds / 0.6, rel=1e-3)
    on_ampere = "--hardware", "a100"
    assert attention(*on_ampere) == attention(*on_ampere, "--torch", "2.10")


def test_programs_that_call_torch_s_attention_run_the_kernel_of_its_version(run: Any, tmp_path: Path) -> None:
    """Their files have `flash` for memory, as torchtitan's, whose attention is scaled_dot_product_attention."""
    job = tmp_path / "job.toml"
    job.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 32768\n'
        "[parallelism]\ndata_parallel_shard_degree = 8\n[compile]\nenable = true\n"
    )
    step = "time", "--launch", str(job), *H100
    newest, same, older = (
        answer(run, *step, *words)["seconds"]["estimate"] for words in ((), ("--attn", "sdpa"), ("--torch", "2.10"))
    )
    assert newest == same < 0.85 * older


@pytest.mark.parametrize(
    ("framework", "mode", "repeats"), [("fsdp2", "full", 0), ("fsdp2", "full-reentrant", 1), ("megatron", "full", 1)]
)
def test_a_layer_that_runs_again_stops_at_the_last_tensor_that_it_needs(
    run: Any, framework: str, mode: str, repeats: int
) -> None:
    """torch's checkpoints leave a layer's last product out, as `flops` says; reentrant ones and Megatron do not."""
    words = "llama3-8b?num_hidden_layers=4", "--framework", framework, "--tp", "2", "--sequence-parallel"

    def seconds(recompute: str) -> dict[str, float]:
        step = ("time", *words, *H100, "--seq", "8k", "--by-node", "3", "--recompute", recompute)
        return {node["path"]: node["seconds"] for node in answer(run, *step)["nodes"] if node["kind"] == "product"}

    without, recomputed = seconds("none"), seconds(mode)
    for name, times in (("up_proj", 1), ("down_proj", repeats)):
        path = f"layers.mlp.{name}"
        assert recomputed[path] == pytest.approx(without[path] * (3 + times) / 3, rel=0.02)


def test_heads_that_ranks_of_a_context_cannot_share_out_have_no_time(run: Any) -> None:
    """`memory` refuses them, too: 8 heads of keys, of which a rank of --tp 2 has 4."""
    words = "time", "llama3-8b", *H100, "--devices", "16", "--framework", "megatron", "--seq", "64k", "--cp-comm", "a2a"
    refused = "divide the 32 and 8 heads of queries and keys of a rank; expected a divisor of both, or --cp-comm p2p"
    assert refused in run(*words, "--cp", "16").error
    assert "divide the 16 and 4 heads" in run(*words, "--tp", "2", "--cp", "8").error
    assert answer(run, *words, "--tp", "2", "--cp", "4")["seconds"]
    assert answer(run, *words[:-2], "--cp", "16")["seconds"]
    latent = "time", "deepseek-v2-lite", *H100, "--devices", "16", "--seq", "8k", "--cp", "16", "--cp-comm", "a2a"
    assert answer(run, *latent, "--framework", "megatron")["seconds"]


def test_a_server_divides_its_experts_over_the_ranks_of_tensor_parallelism() -> None:
    """vLLM's --enable-expert-parallel on --tensor-parallel-size 2 is ep 2 with whole experts, as `serve` counts it."""
    typed = llmcalc.time("qwen3-30b-a3b", engine="vllm", hardware="h100", tp=2, ep=2).document
    assert typed == llmcalc.time("qwen3-30b-a3b", engine="vllm", hardware="h100", tp=2, ep=2, etp=1).document
    divided = llmcalc.time("mixtral-8x7b", hardware="h100", tp=2, dp=4, ep=2).document
    assert divided == llmcalc.time("mixtral-8x7b", hardware="h100", tp=2, dp=4, ep=2, etp=2).document


def test_a_prompt_in_several_passes_says_so(run: Any) -> None:
    words = ("time", SMALL, "--phase", "prefill", "--hardware", "rtx-4090", "--engine", "llama.cpp", "--seq")
    note = "the prompt is computed 512 tokens at a time, the software's default; each pass reads the weights"
    assert note in answer(run, *words, "1k")["notes"]
    assert note not in answer(run, *words, "512")["notes"]


def test_a_stack_without_rows_on_a_generation_has_the_widest_range(run: Any) -> None:
    """Qwen3 8B in Q4_K_M decoded 161 tokens/s on MI300X (github.com/ggml-org/llama.cpp/discussions/14640)."""
    words = ("time", "qwen3-8b", "--quantize", "q4_k_m", "--seq", "128", "--hardware", "mi300x", "--format", "json")
    document = run(*words, "--engine", "llama.cpp").document
    assert document["class"]["tested_rows"] == 0
    assert document["seconds"]["low"] < 1 / 161 < document["seconds"]["high"]
    assert run(*words[:2], *words[6:], "--engine", "vllm").document["class"]["tested_rows"]


def test_stated_micro_batches_say_what_searches_layouts(run: Any) -> None:
    words = ("time", "llama3-8b", "--hardware", "h100", "--devices", "8", "--num-microbatches", "4", "--format", "json")
    batch_advice = "--global-batch 32 in place of --num-microbatches takes the fastest of them"
    assert any(batch_advice in note for note in run(*words).document["notes"])
    assert run(*words[:6], "--global-batch", "32", "--format", "json").document["layout"]["dp"]


def test_a_measured_time_outside_the_range_names_the_assumed_phase(run: Any) -> None:
    words = ("time", SMALL, "--hardware", "h100", "--devices", "2", "--measured", "5s")
    remark = "decoding of a token is assumed: a training step has --phase training"
    assert remark in " ".join(run(*words).out.split())
    assert remark not in " ".join(run(*words, "--phase", "decode").out.split())
