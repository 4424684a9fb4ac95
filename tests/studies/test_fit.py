"""`llmcalc fit`: the verdict, the largest numbers, and what would make it fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llmcalc
from llmcalc import load
from llmcalc.accelerator import Hardware
from llmcalc.device_memory.estimate import Memory, memory
from llmcalc.device_memory.settings import Settings
from llmcalc.simulator.repeat_layers import RepeatAnalysis
from llmcalc.sources.hardware import find_hardware
from llmcalc.studies.fit import (
    MAX_CHANGES_OF_DEEP_MODEL,
    changes_with_more_devices,
    fit,
    largest_fitting_number,
    largest_run,
)
from tests.contracts.test_parts import decoder
from tests.in_process import command, shared_answer
from tests.samples import in_one_test

SMALL = "smollm2-135m?num_hidden_layers=2"


def test_the_largest_run_up_to_a_number() -> None:
    """A rank that holds as much as another has the other's largest run; one that holds less has its own."""
    model, hardware = load(SMALL).model, find_hardware("1GiB")
    run = memory(model, Settings(phase="inference", seq=256))
    batch, seq = largest_run(run, hardware)
    assert min(batch, seq) > 1
    assert largest_run(run, hardware, batch - 1, seq - 1) == (batch - 1, seq - 1)
    further_batch, further_seq = largest_run(run, hardware, 4 * batch, 4 * seq)  # free blocks come and go with sizes
    assert 0.95 * batch < further_batch < 1.05 * batch
    assert 0.95 * seq < further_seq < 1.05 * seq
    assert largest_run(run, hardware, 0, 0) == (0, 0)


@in_one_test
@pytest.mark.parametrize("start", [1, 7, 5000])
@pytest.mark.parametrize("capacity", [0, 99, 100, 101, 10**4, 10**7])
def test_the_largest_number_is_found_in_few_steps(start: int, capacity: int) -> None:
    """Of bytes that grow quadratically and by steps, as memory does."""
    asked: list[int] = []

    def needed(n: int) -> int:
        asked.append(n)
        return 100 + (3 * n * n + 17 * n) // 64 * 16 - 5

    largest_number = largest_fitting_number(needed, capacity, start, 2**20)
    assert largest_number == 0 or needed(largest_number) <= capacity
    assert needed(largest_number + 1) > capacity
    assert len(asked) < 20


def test_the_largest_number_fits_and_the_next_one_does_not() -> None:
    """Of bytes that fall again, such as an allocator's, every answer is a number of that kind."""

    def needed(n: int) -> int:
        return 10 * n + (3_000 if n % 400 > 250 else 0)

    answers = {largest_fitting_number(needed, 5_000, start, 2**20) for start in (1, 100, 260, 450)}
    assert answers <= {250, 500}
    assert all(needed(number) <= 5_000 < needed(number + 1) for number in answers)


def test_the_largest_run_of_a_paged_cache_takes_few_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache has a closed form, so that the search starts beside its end: a replay of each of the two numbers."""
    replayed: list[tuple[int, int]] = []
    replay = Memory._replay

    def counted(self: Memory, *arguments: Any) -> Any:
        replayed.append((int(self.states.workload.batch), int(self.states.workload.seq)))
        return replay(self, *arguments)

    monkeypatch.setattr(Memory, "_replay", counted)
    run = memory(load("llama3-8b").model, Settings(phase="inference"))
    batch, seq = largest_run(run, find_hardware("h100-sxm"))
    assert {(batch, 8192), (batch + 1, 8192), (1, seq), (1, seq + 1)} <= {*replayed}
    assert len(replayed) <= 6


def test_bytes_of_blocks_beside_other_growth_take_few_trials() -> None:
    """A cache in blocks of 16 has a closed form; other bytes grow too, so that the first guess is too large."""
    trials: list[int] = []

    def needed(n: int) -> int:
        trials.append(n)
        return 70 * (-(-n // 16) * 16) + 40 * max(0, n - 30_000)

    largest_number = largest_fitting_number(needed, 60_000_000, 32_768, 2**24, 16, lambda n: 70 * n)
    assert needed(largest_number) <= 60_000_000 < needed(largest_number + 1)
    assert len(trials) <= 12


def test_the_largest_number_ends_where_there_are_no_more() -> None:
    assert largest_fitting_number(lambda n: n, 10**9, 1, 1000) == 1000


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (SMALL, Settings(phase="training", seq=256)),
        (SMALL, Settings(phase="inference", seq=256, quantize="q4_k_m")),
        ("gpt2", Settings(phase="prefill", seq=64)),
    ],
)
def test_the_least_bytes_are_a_bound(model: str, settings: Settings) -> None:
    """A device has its tensors and the context, which are known without the allocator, and free blocks beside them."""
    run = memory(load(model).model, settings)
    least, device = run.least_device_bytes, run.device
    assert least == device.device_bytes - device.fragmentation - device.by_kind["overhead"] + sum(
        term.bytes for term in device.terms if term.name == "cuBLAS workspaces"
    )
    assert run.least_device_bytes == least  # also after the replay


def test_runs_of_a_deep_model_that_cannot_fit_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run itself and the few changes that are listed; no shorter sequence, of which one token is too large."""
    replays: list[RepeatAnalysis] = []
    overhead = RepeatAnalysis.allocator_overhead

    def counted(self: RepeatAnalysis, *arguments: Any) -> Any:
        replays.append(self)
        return overhead(self, *arguments)

    monkeypatch.setattr(RepeatAnalysis, "allocator_overhead", counted)
    fitting = fit(
        memory(load("smollm2-135m?num_hidden_layers=300").model, Settings(phase="training")), find_hardware("4GiB")
    )
    assert (fitting.fit.verdict, fitting.largest_batch, fitting.largest_seq) == ("no", 0, 0)
    assert len(replays) == 1
    assert len(fitting.changes) == MAX_CHANGES_OF_DEEP_MODEL
    assert len(replays) == 1 + MAX_CHANGES_OF_DEEP_MODEL


@pytest.mark.parametrize(
    ("hardware", "cache_format", "schemes"),
    [
        ("m4-max", "q8_0", ["q8_0", "q4_k_m"]),
        ("strix-halo", "q8_0", ["q8_0", "q4_k_m"]),
        ("h100", "fp8", ["fp8", "q8_0", "q4_k_m", "awq-int4-g128"]),
        ("t4", "", ["q8_0", "q4_k_m", "awq-int4-g128"]),
        ("v100-32gb", "", ["q8_0", "q4_k_m"]),
        ("rx-7900-xtx", "", ["q8_0", "q4_k_m", "awq-int4-g128"]),  # RDNA 3 multiplies no fp8, RDNA 4 does
        ("gaudi3", "fp8", ["fp8", "awq-int4-g128"]),  # llama.cpp runs on no Gaudi
        ("rx-9070", "fp8", ["fp8", "q8_0", "q4_k_m", "awq-int4-g128"]),
        ("24GiB", "fp8", ["fp8", "q8_0", "q4_k_m", "awq-int4-g128"]),
    ],
)
def test_advised_formats_are_those_of_the_engine_that_runs_there(
    hardware: str, cache_format: str, schemes: list[str]
) -> None:
    run = memory(load(SMALL).model, Settings(phase="inference", seq=256))
    formats = [*({"kv_dtype": name} for name in filter(None, [cache_format])), *({"quantize": s} for s in schemes)]
    advised = changes_with_more_devices(run, find_hardware(hardware), ())
    assert [change for change in advised if {"kv_dtype", "quantize"} & set(change)] == formats


@pytest.mark.parametrize(
    ("scheme", "narrower"), [("fp8", ["q4_k_m", "awq-int4-g128"]), ("awq-int4-g128", []), ("nf4", [])]
)
def test_quantized_weights_are_advised_in_formats_that_are_much_narrower(scheme: str, narrower: list[str]) -> None:
    run = memory(
        load("qwen3-0.6b?num_hidden_layers=2&vocab_size=256").model,
        Settings(phase="inference", seq=256, quantize=scheme),
    )
    changes = changes_with_more_devices(run, find_hardware("h100"), ())
    assert [change["quantize"] for change in changes if "quantize" in change] == narrower


def asked(run: Any, *words: str, code: int = 0) -> Any:
    return run("fit", *words, "--format", "json").document_with(code)


@pytest.mark.parametrize("phase", ["training", "inference"])
def test_the_largest_numbers_fit_and_the_next_ones_do_not(run: Any, phase: str) -> None:
    size = "2GiB"
    found = asked(run, SMALL, "--hardware", size, "--phase", phase, "--seq", "256")
    assert found["verdict"] == "fits"
    assert found["changes"] == []
    number = found["largest"]["users" if phase == "inference" else "batch"]
    assert found["largest"]["batch" if phase == "inference" else "users"] is None
    for settings in ({"batch": number}, {"seq": found["largest"]["seq"]}):
        ((name, most),) = settings.items()
        for value in (most, most + 1):
            words = {"seq": 256, **{name: value}}
            got, out, _ = run(
                "memory", SMALL, "--phase", phase, "--hardware", size, "--format", "json",
                *(word for option, number in words.items() for word in (f"--{option}", str(number))),
            )  # fmt: skip
            verdict = json.loads(out)["fits"][0]["verdict"]
            assert (verdict == "fits") == (value == most)
            assert got == (verdict == "no")


@pytest.mark.parametrize(
    ("words", "phase"),
    [
        ("", "inference"),
        ("--phase inference", "inference"),
        ("--users 2", "inference"),
        ("--phase decode", "decode"),
        ("--recompute full", "training"),
    ],
)
def test_many_devices_run_the_phase_that_is_asked_for(run: Any, words: str, phase: str) -> None:
    """Without one it is inference, or training where an option of training is given."""
    fit = asked(run, SMALL, "--hardware", "2GiB", "--devices", "2", "--seq", "64", *words.split())
    assert fit["workload"]["phase"] == phase


def test_recomputation_that_fits_without_fragmentation_alone_is_tight_as_memory_says(run: Any) -> None:
    """It was listed as no, with the share of its estimated fragmentation."""
    words = (
        "llama3-8b?num_hidden_layers=4",
        "--phase",
        "training",
        "--framework",
        "fsdp2",
        "--fsdp",
        "2",
        "--seq",
        "2k",
    )
    command = ("memory", *words, "--recompute", "full", "--hardware", "h100", "--format", "json")
    replayed = run(*command).document["memory"]
    required, peak = replayed["device_bytes"], replayed["peak_bytes"]
    size = f"{(required + peak) // 2**21}MiB"
    recomputed = asked(run, *words, "--devices", "2", "--hardware", size)["changes"][0]
    assert recomputed["option"].startswith("--recompute full")
    assert (recomputed["verdict"], recomputed["device_bytes"]) == ("tight", required)


@pytest.mark.parametrize("seq", [2048, 8192])
def test_much_shorter_sequences_are_not_advised(run: Any, seq: int) -> None:
    """Of 2,048 tokens half remain; of 8,192 less than an eighth would, which is another task."""
    found = asked(run, SMALL, "--hardware", "890MiB", "--users", "1", "--seq", str(seq), code=1)
    most = found["largest"]["seq"]
    assert 0 < most < seq
    advised = [change["option"] for change in found["changes"] if change["option"].startswith("--seq")]
    assert advised == ([f"--seq {most}"] if 8 * most >= seq else [])
    assert bool(advised) == (seq == 2048)


def test_users_are_sequences(run: Any) -> None:
    words = (SMALL, "--hardware", "2GiB", "--seq", "64")
    assert asked(run, *words, "--users", "3")["device_bytes"] == asked(run, *words, "--batch", "3")["device_bytes"]


def test_changes_are_ranked_and_each_makes_it_fit(run: Any) -> None:
    """Llama 3 8B does not train on an H100: changes that fit come first, and each is what `memory` says of it."""
    found = asked(run, "llama3-8b?num_hidden_layers=4", "--hardware", "24GiB", "--phase", "training", code=1)
    assert found["verdict"] == "no"
    assert found["largest"] == {"batch": 0, "seq": 0, "users": None}
    verdicts = [change["verdict"] for change in found["changes"]]
    assert verdicts == sorted(verdicts, key=lambda verdict: verdict == "no")
    assert verdicts[0] != "no"
    for change in found["changes"]:
        words = change["option"].split()
        _, out, _ = run(
            "memory", "llama3-8b?num_hidden_layers=4", "--phase", "training", *words, "--hardware", "24GiB",
            "--format", "json",
        )  # fmt: skip
        (one,) = json.loads(out)["fits"]
        assert (one["device_bytes"], one["verdict"]) == (change["device_bytes"], change["verdict"])


@pytest.mark.parametrize(
    ("hardware", "has_nf4", "has_8_bits", "has_devices"),
    [
        ("v100-32gb", True, True, True),
        ("gaudi2", True, False, True),
        ("tpu-v5e", False, False, True),
        ("m4-max-64gb", False, False, False),
    ],
)
def test_advised_training_is_what_runs_on_the_accelerator(
    hardware: str, has_nf4: bool, has_8_bits: bool, has_devices: bool, run: Any
) -> None:
    """bitsandbytes' installation guide names the accelerators; torch has no messages between Macs."""
    answer = asked(run, "llama3-8b", "--phase", "training", "--seq", "256", "--hardware", hardware, code=1)
    options = " ".join(change["option"] for change in answer["changes"])
    assert ("nf4" in options, "--devices" in options) == (has_nf4, has_devices)
    assert has_8_bits or "adamw-8bit" not in options


def test_experts_beside_weights_of_4_bits_are_advised_in_4_bits(run: Any) -> None:
    """transformers' fused experts stay in 16 bits under QLoRA, which the answer says, with what converts them."""
    qlora = ("--lora-rank", "8", "--base", "nf4", "--seq", "512", "--hardware", "24GiB")
    advised = asked(run, "mixtral-8x7b?num_hidden_layers=8", *qlora, code=0)
    assert not any("--quantized-experts" in change["option"] for change in advised["changes"])
    refused = asked(run, "mixtral-8x7b?num_hidden_layers=16", *qlora, code=1)
    fitting = [change["option"] for change in refused["changes"] if change["verdict"] != "no"]
    assert "--quantized-experts" in fitting
    for words, said in (((), True), (("--quantized-experts",), False)):
        out = run("memory", "mixtral-8x7b?num_hidden_layers=8", *qlora, *words, "--notes")[1]
        assert ("routed experts stay in 16 bits" in " ".join(out.split())) is said


@pytest.mark.parametrize("devices", [None, 1])
def test_the_verdict_is_there_before_the_changes(monkeypatch: pytest.MonkeyPatch, devices: int | None) -> None:
    """A program that asks for `.ok` of many models waits for no advice."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a change was tried")

    with monkeypatch.context() as patched:
        patched.setattr("llmcalc.studies.fit._evaluate_changes", refuse)
        answer = llmcalc.fit(SMALL, hardware="1GiB", users=512, devices=devices)
        assert not answer.ok
        with pytest.raises(AssertionError, match="a change was tried"):
            answer.report()
    assert answer.document["changes"]


def test_changes_are_joined_where_no_single_one_suffices() -> None:
    found = fit(memory(decoder(), Settings("training", batch=64, seq=64)), hardware(300 * 2**20))
    assert found.fit.verdict == "no"
    assert all(change.changed_fit.needed_bytes < found.fit.needed_bytes for change in found.changes)
    assert any(change.option.count("--") > 2 for change in found.changes)


def hardware(memory_bytes: int) -> Hardware:
    return find_hardware(f"{memory_bytes // 2**20}MiB")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gpt2", "--hardware", "h1000"), "no accelerator called 'h1000'"),
        (("gpt2", "--hardware", "h100", "--users", "2", "--batch", "2"), "--users: it is another name of --batch"),
        (("gpt2", "--hardware", "h100", "--users", "2", "--phase", "training"), "--users: training has no users"),
        (("gpt2", "--hardware", "h100", "--users", "0"), "--users: 0 is too small"),
    ],
)
def test_bad_words_exit_with_2(run: Any, words: tuple[str, ...], message: str) -> None:
    assert message in run("fit", *words).error


def test_the_screen_fits_eighty_columns(run: Any) -> None:
    code, out, _ = run("fit", "llama3-8b?num_hidden_layers=4", "--hardware", "24GiB", "--phase", "training")
    assert code == 1
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    assert "does not fit" in out.splitlines()[0]


def test_a_token_of_every_user_is_the_answer_of_time(run: Any) -> None:
    """Beside the largest number of users `fit` gives the time of a token: the same as `time`."""

    def document(*words: str) -> Any:
        return run(*words, "--format", "json").document

    load = ("llama3.1-8b", "--hardware", "h100", "--seq", "8k")
    fitted = document("fit", *load, "--users", "16", "--phase", "decode")
    assert [entry["users"] for entry in fitted["decoding"]] == [16, fitted["largest"]["users"]]
    for entry in fitted["decoding"]:
        timed = document("time", *load, "--phase", "decode", "--users", str(entry["users"]))
        assert entry["tpot"] == timed["seconds"]
        assert entry["tokens_per_second"] == pytest.approx(entry["users"] / timed["seconds"]["estimate"])
    assert document("fit", *load, "--phase", "prefill")["decoding"] == []
    training = run("fit", *load, "--phase", "training", "--format", "json").document_with(1)  # it does not fit
    assert training["decoding"] == []
    layouts = document("fit", *load, "--users", "16", "--phase", "decode", "--devices", "4")["layouts"]
    for entry in layouts:
        layout = [word for name in ("tp", "pp") for word in (f"--{name}", str(entry["layout"][name]))]
        timed = document("time", *load, "--phase", "decode", "--users", "16", *layout)["seconds"]
        assert entry["tpot"] == timed
        dp = entry["layout"]["dp"]
        assert entry["tokens_per_second"] == pytest.approx(16 * dp / timed["estimate"])


def test_a_model_published_in_float32_has_a_cache_of_its_activations(run: Any) -> None:
    """Its cache was counted in bfloat16 by `memory` and `fit`, and in float32 by `time`, which said that it is full."""
    words = ("t5-small", "--hardware", "l4", "--format", "json")
    users = str(run("fit", *words).document["largest"]["users"])
    timed = run("time", *words, "--users", users).document
    assert not any("do not fit" in note for note in timed["notes"])
    for phase in ("inference", "decode"):
        states = llmcalc.memory("t5-small", phase=phase).states
        assert (states.dtype, states.kv_dtype) == ("float32", "float32")


def test_a_model_published_in_float32_is_timed_as_its_engine_runs_it(run: Any) -> None:
    """Bytes are of the published format, times of the 16 bits in which vLLM runs it: `fit` says so, as `time` does."""
    load = ("santacoder", "--hardware", "h100", "--seq", "1k", "--phase", "decode")
    for words in ((), ("--dtype", "float32")):
        fitted = run("fit", *load, *words, "--format", "json").document
        timed = run("time", *load, *words, "--format", "json").document["seconds"]
        assert fitted["decoding"][0]["tpot"] == timed, words
        notes = " ".join(fitted["notes"])
        assert ("times are in 16 bits, in which vLLM loads weights published in float32" in notes) == (not words)
    shown = " ".join(run("fit", *load, "--devices", "2", "--notes").out.split())
    assert "times are in 16 bits" in shown


def test_layouts_that_do_not_fit_have_no_time(run: Any) -> None:
    words = ("fit", "llama3-70b", "--hardware", "h100", "--devices", "4", "--phase", "decode", "--seq", "8k")
    layouts = run(*words, "--format", "json").document["layouts"]
    assert {entry["tpot"] is None for entry in layouts if entry["verdict"] == "no"} == {True}
    assert {entry["tpot"] is None for entry in layouts if entry["verdict"] != "no"} == {False}


def test_fit_names_the_order_whose_first_layout_it_shows(run: Any) -> None:
    """It named the order of plan, which recomputes more where that is faster, and begins with another layout."""
    words = (SMALL, "--hardware", "h100", "--devices", "2", "--seq", "4k", "--phase", "training")
    for options, order in (((), "plan --recompute none"), (("--recompute", "full"), "plan")):
        document = run("fit", *words, *options, "--format", "json").document
        (note,) = [note for note in document["notes"] if "layouts in the order of" in note]
        assert note.endswith(f"layouts in the order of {order}")
        command = ("plan", *words[:-2], *order.split()[1:], *options, "--rows", "1", "--format", "json")
        assert run(*command).document["feasible"][0]["device_bytes"] == document["device_bytes"]


def test_fit_on_one_device_counts_the_framework_of_memory(run: Any) -> None:
    """Without a framework one accelerator runs torch; several run the usual framework of plans, which a note names."""
    words = ("smollm2-135m", "--phase", "training", "--hardware", "4GiB")
    fitted = shared_answer(" ".join(("fit", *words, "--devices 1")))
    on_one = run("memory", *words, "--devices", "1", "--format", "json").document_with(1)
    assert (fitted.code, fitted.document["framework"]) == (1, "torch")
    required = run("memory", *words, "--format", "json").document_with(1)["memory"]["device_bytes"]
    assert fitted.document["device_bytes"] == on_one["memory"]["device_bytes"] == required
    assert fitted.document["needed_devices"] == 2
    several = run("fit", *words, "--devices", "2", "--format", "json").document
    assert several["framework"] == "megatron"
    screen = fitted.screen
    assert "it does not fit on 1 × 4GiB under torch" in screen
    assert "1 device were tried, several under Megatron-Core" in screen
    assert (fitted.document["needed_framework"], several["needed_framework"]) == ("megatron", "megatron")
    assert fitted.document["changes"][-1]["option"].endswith(" --framework megatron")
    fitting = run("fit", *words[:3], "--hardware", "h100", "--devices", "1", "--format", "json").document
    assert (fitting["needed_devices"], fitting["needed_framework"]) == (1, "torch")
    assert "1 device under torch" in " ".join(run("memory", *words, "--devices", "1").out.split())


def test_separate_computers_without_a_link_have_replicas_alone() -> None:
    """Two boards, or two Macs on each of which the model fits; MLX divides a larger model among Macs."""
    for hardware in ("raspberry-pi-5", "m4-max"):
        document = command("fit", "llama3.1:8b", "--hardware", hardware, "--devices", "2", "--format", "json").document
        assert [option["layout"]["dp"] for option in document["layouts"]] == [2], hardware
