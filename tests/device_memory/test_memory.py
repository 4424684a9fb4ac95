"""`llmcalc memory`: its document, its tables and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.cache import kv
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.errors import InputError
from llmcalc.simulator.meter import MEMORY_KINDS
from llmcalc.sources.hardware import COMMON_HARDWARE, load_hardware
from tests.contracts.test_parts import decoder
from tests.samples import in_one_test

SMALL, OLDER = "smollm2-135m?num_hidden_layers=2", "gpt2?num_hidden_layers=2"

PHASES = ("training", "prefill", "decode", "inference")

RUNS: dict[str, tuple[str, ...]] = {
    "training": ("--phase", "training", "--seq", "64", "--micro-batch", "2"),
    "adapters": ("--phase", "training", "--seq", "64", "--lora-rank", "4", "--base", "nf4-dq"),
    "accumulated": ("--phase", "training", "--seq", "64", "--num-microbatches", "3", "--zero-grad", "zeros"),
    "sums": ("--phase", "training", "--seq", "64", "--grad-dtype", "fp32", "--optimizer-dtype", "bf16"),
    "8-bit": ("--phase", "training", "--seq", "64", "--optimizer", "adam8bit", "--recompute", "full"),
    "compiled": ("--phase", "training", "--seq", "64", "--compile", "--cross-entropy", "chunked"),
    "prefill": ("--phase", "prefill", "--seq", "64", "--chunk", "16"),
    "decode": ("--phase", "decode", "--seq", "64"),
    "inference": ("--seq", "64", "--batch", "3"),
    "copies": (
        *("--phase", "training", "--seq", "64", "--lora-rank", "4", "--modules-to-save", "embed_tokens,lm_head"),
        *("--lora-library", "torchtune", "--fused-qkv", "--lora-targets", "all-linear"),
    ),
    "litgpt": (
        *("--phase", "training", "--seq", "64", "--lora-rank", "4", "--lora-library", "litgpt", "--base", "nf4"),
        *("--quantized-head", "--bitsandbytes", "0.41.1", "--cross-entropy", "split", "--loss-chunk", "16"),
    ),
    "spared": ("--phase", "training", "--seq", "64", "--offload-activations", "--optimizer-in-backward"),
    "quantised": ("--seq", "64", "--quantize", "q4_k_m", "--kv-dtype", "fp8"),
}


def asked(run: Any, *words: str) -> Any:
    return run("memory", *words, "--format", "json").document


@pytest.mark.parametrize("target", [SMALL, OLDER])
@pytest.mark.parametrize("words", RUNS.values(), ids=list(RUNS))
def test_the_document_adds_up(run: Any, target: str, words: tuple[str, ...]) -> None:
    document = asked(run, target, *words, "--hardware", "24GiB")
    found = document["memory"]
    numbers = ("exact_bytes", "peak_bytes", "after_step_bytes", "reserved_bytes", "device_bytes", "total_bytes")
    assert all(type(found[key]) is int for key in numbers)
    assert list(found["by_kind"]) == list(MEMORY_KINDS)
    assert sum(found["by_kind"].values()) == found["peak_bytes"]
    assert sum(term["bytes"] for term in found["terms"]) == found["device_bytes"]
    assert {term["status"] for term in found["terms"]} <= {"exact", "source", "estimate"}  # nothing is untested
    assert found["exact_bytes"] <= found["peak_bytes"] <= found["reserved_bytes"] < found["device_bytes"]
    assert found["after_step_bytes"] <= found["peak_bytes"]
    most = max(found["timeline"], key=lambda point: point["bytes"])
    rounding = sum(term["bytes"] for term in found["terms"] if term["name"] == "rounding to blocks")
    assert most["bytes"] == found["peak_bytes"] - rounding
    at = {(point["phase"], point["node"]) for point in found["timeline"] if point["bytes"] == most["bytes"]}
    assert (found["peak_at"]["phase"], found["peak_at"]["node"]) in at
    assert all(min(kinds.values()) >= 0 for kinds in found["by_phase"].values())
    assert max(sum(kinds.values()) for kinds in found["by_phase"].values()) == most["bytes"]
    (fit,) = document["fits"]
    assert fit["usable_bytes"] == 24 * 2**30
    assert fit["device_bytes"] == found["device_bytes"]
    assert fit["left_bytes"] == fit["usable_bytes"] - fit["device_bytes"]


@pytest.mark.parametrize("name", ["weights", "master_weights", "kv_cache"])
@pytest.mark.parametrize("phase", PHASES)
def test_what_stays_is_in_the_run_as_the_closed_forms_have_it(run: Any, phase: str, name: str) -> None:
    eager = ("--attn", "eager")  # with sdpa the peak of decoding is where a layer's cache is copied
    found = asked(run, SMALL, "--phase", phase, "--seq", "64", *(eager if phase == "decode" else ()))["memory"]
    kind = {"weights": "weights", "master_weights": "optimizer", "kv_cache": "cache"}[name]
    states = found["optimizer"]["bytes"]  # a fused step has its counts on the device
    assert found["by_kind"][kind] == found[name] + (states if name == "master_weights" else 0)


@pytest.mark.parametrize("run_name", [name for name, words in RUNS.items() if words[1] == "training"])
def test_training_holds_the_states_of_the_closed_forms(run: Any, run_name: str) -> None:
    """At the peak, and after the step; step counts are on the host unless the step is fused."""
    document = asked(run, SMALL, *RUNS[run_name])
    found = document["memory"]
    state = found["optimizer"]
    fused = document["execution"]["optimizer_impl"] == "fused"
    states = state["bytes"] - (0 if fused else state["states"].get("step", 0))
    assert found["by_kind"]["weights"] == found["weights"]
    assert found["by_kind"]["optimizer"] == states + found["master_weights"]
    at_step = found["by_phase"].get("step", found["by_phase"]["backward"])
    assert at_step["gradients"] <= found["gradients"]
    if run_name != "spared":
        assert at_step["gradients"] == found["gradients"]


def test_a_training_step_ends_with_weights_and_states(run: Any) -> None:
    found = asked(run, SMALL, "--phase", "training", "--seq", "64")["memory"]
    states = (
        found["weights"] + found["master_weights"] + found["optimizer"]["bytes"] - found["optimizer"]["states"]["step"]
    )
    (workspaces,) = (term["bytes"] for term in found["terms"] if term["name"] == "cuBLAS workspaces")
    assert 0 <= found["after_step_bytes"] - states - workspaces < 2**22
    kept = asked(run, SMALL, "--phase", "training", "--seq", "64", "--zero-grad", "zeros")["memory"]
    assert 0 <= kept["after_step_bytes"] - found["after_step_bytes"] - found["gradients"] < 2**22


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--attn-implementation", "flash"),
        ("--norm", "fused"),
        ("--logits-dtype", "bf16"),
        ("--cross-entropy", "fused"),
        ("--cross-entropy", "chunked"),
        ("--recompute", "full"),
        ("--recompute", "attention"),
        ("--recompute", "attention+matmuls"),
        ("--recompute", "every:2"),
        ("--recompute", "nodes:mlp"),
        ("--optimizer", "adafactor"),
        ("--optimizer-impl", "fused"),
        ("--precision", "bf16"),
        ("--seq", "128"),
        ("--micro-batch", "1"),
        ("--lora-rank", "4"),
        ("--compile", ""),
    ],
)
def test_every_option_of_training_saves_something(run: Any, option: str, value: str) -> None:
    """Compared with a run at whose peak activations stand."""
    words = (SMALL, "--phase", "training", "--seq", "512", "--batch", "8")
    if (option, value) == ("--optimizer-impl", "fused") or option == "--optimizer":
        words = (SMALL, "--phase", "training", "--seq", "16", "--batch", "1")
    older = {"--optimizer-impl": "foreach", "--attn-implementation": "eager"}
    plain = asked(run, *words, *((option, older[option]) if option in older else ()))["memory"]
    less = asked(run, *words, option, *([value] if value else []))["memory"]
    assert less["exact_bytes"] < plain["exact_bytes"]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--phase", "prefill", "--chunk", "16"), "exact_bytes"),
        (("--phase", "prefill", "--attn-implementation", "flash"), "exact_bytes"),
        (("--kv-dtype", "fp8"), "exact_bytes"),
        (("--quantize", "q4_k_m"), "exact_bytes"),
        (("--cublas-workspace", ":16:8"), "peak_bytes"),
    ],
)
def test_every_option_of_inference_saves_something(run: Any, words: tuple[str, ...], option: str) -> None:
    given = dict(zip(words[::2], words[1::2], strict=True))
    base = (SMALL, "--seq", "256", "--phase", given.pop("--phase", "inference"), "--attn", "eager")
    plain = asked(run, *base)["memory"]
    less = asked(run, *base, *(word for pair in given.items() for word in pair))["memory"]
    assert less[option] < plain[option]


def test_a_capacity_bounds_the_rows_of_experts(run: Any) -> None:
    words = ("mixtral-8x7b?num_hidden_layers=1", "--phase", "training", "--seq", "512", "--optimizer-impl", "fused")
    kept = [
        asked(run, *words, "--moe", moe)["memory"]["by_phase"]["forward"]["activations"]
        for moe in ("dropless", "capacity:1", "capacity:2")
    ]
    assert len(set(kept)) == 3
    assert kept[1] < kept[2]


def test_blocks_of_the_cache_waste_what_is_not_filled(run: Any) -> None:
    spec = llmcalc.load("smollm2-135m", num_hidden_layers=2).model
    for block, tokens in ((16, 80), (64, 128)):
        found = asked(run, SMALL, "--seq", "65", "--kv-block", str(block))["memory"]
        assert found["by_kind"]["cache"] == kv(spec, 1, tokens).bytes
        assert found["kv_cache"] == kv(spec, 1, 65).bytes


def test_encoders_of_images_count_their_weights(run: Any) -> None:
    words = ("gemma3-4b?decoder.num_hidden_layers=6", "--phase", "training", "--seq", "64")
    plain, full = asked(run, *words), asked(run, *words, "--with-towers")
    towers = full["memory"]["parameters"] - plain["memory"]["parameters"]
    assert towers > 0
    more = full["memory"]["after_step_bytes"] - plain["memory"]["after_step_bytes"]
    assert more // towers == 14  # weights in bf16, master weights and two states in fp32
    assert any("activations of the vision" in text for text in full["memory"]["not_counted"])


def test_an_encoder_alone_reads_and_learns_but_does_not_decode(run: Any) -> None:
    found = asked(run, "bert-base", "--seq", "64")["memory"]
    assert found["by_kind"]["cache"] == 0
    assert found["kv_cache"] == 0
    code, _, err = run("memory", "bert-base", "--phase", "decode")
    assert (code, err.count("\n")) == (2, 1)


# What is refused


@in_one_test
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings("training", chunk=8), "--chunk: it is not for the phase training"),
        (Settings("decode", chunk=8), "--chunk: a decoding step"),
        (Settings("prefill", recompute="full"), "--recompute: it is not for the phase prefill"),
        (Settings("training", recompute="some"), "--recompute some: not known"),
        (Settings("training", optimizer="adafactor", optimizer_impl="fused"), "--optimizer-impl fused: adafactor has"),
        (Settings("training", dtype="fp8"), "--dtype fp8: no pass computes in it"),
        (Settings("training", cross_entropy="chunked", logits_dtype="bf16"), "--logits-dtype: a chunked"),
        (Settings("training", lora_dropout=True), "--lora-dropout: it means nothing without --lora-rank"),
        (Settings("training", lora_rank=2, bitsandbytes="new"), "--bitsandbytes new: not a version"),
        (Settings("training", torch="2"), "--torch 2: not a version"),
        (Settings("training", moe="capacity:0"), "--moe 'capacity:0': not known; expected dropless"),
        (Settings("training", moe="capacity:2"), "--moe: the model has no experts"),
        *(
            (Settings("training", batch=2, seq=1, cross_entropy=loss), f"--seq 1: a {loss} cross-entropy is of each")
            for loss in ("recomputed", "selective", "selective-chunked")
        ),
        (Settings("training", loss_chunk=8), "--loss-chunk: it is for --cross-entropy split, recomputed and chunked"),
        (Settings("training", optimizer_in_backward=True, num_microbatches=2), "--optimizer-in-backward: it takes one"),
        (Settings("decode", kv_dtype="fp8", kv_block=0), "--kv-dtype fp8: a cache that grows"),
        (Settings(batch=0), "--batch: 0 is too small"),
        (Settings("training", num_microbatches=-1), "--num-microbatches: -1 is too small"),
        (Settings("training", attn_implementation="quick"), "--attn-implementation: 'quick'"),  # type: ignore[arg-type]
        (Settings(source=8), "--source: only applies"),
    ],
)
def test_settings_that_contradict_are_refused(settings: Settings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _ = memory(decoder(), settings).device


def test_the_api_refuses_an_unknown_setting() -> None:
    with pytest.raises(InputError, match="recompte: there is no such option"):
        llmcalc.memory("gpt2", "training", recompte="full")


# The command


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--phase", "training"), 0),  # no accelerator named: nothing can fail
        (("--phase", "training", "--hardware", "b300"), 0),
        (("--phase", "training", "--hardware", "rtx-4090"), 1),
        (("--phase", "training", "--hardware", "rtx-4090", "--hardware", "b300"), 0),
        (("--phase", "training", "--precision", "bf16", "--optimizer-impl", "fused", "--hardware", "h200"), 0),
        (("--precision", "bf16"), 0),  # an option of training asks for it
        (("--precision", "bf16", "--phase", "inference"), 2),
        (("--hardware", "no-such"), 2),
        (("--grad-dtype", "fp32", "--users", "2"), 2),
        (("--cublas-workspace", "8MiB"), 2),
    ],
)
def test_exit_codes(run: Any, words: tuple[str, ...], code: int) -> None:
    got, out, err = run("memory", "llama3-8b", *words, "--format", "json")
    assert got == code, err
    if code == 2:
        assert not out
        assert err.startswith("error: ")
        assert err.count("\n") == 1
    else:
        named = words.count("--hardware")
        assert len(json.loads(out)["fits"]) == (named or len(COMMON_HARDWARE))


def test_common_accelerators_are_listed_where_none_is_named(run: Any) -> None:
    document = asked(run, "gpt2")
    assert {one["hardware"] for one in document["fits"]} == set(COMMON_HARDWARE)
    for one in document["fits"]:
        # llama.cpp's buffers where it usually runs the weights, as on a Mac
        assert one["engine"] in (None, "llama.cpp")
        assert (one["device_bytes"] == document["memory"]["device_bytes"]) == (one["engine"] is None)
        assert one["usable_bytes"] == one["usable_memory_bytes"] or load_hardware(one["hardware"]).memory_bytes


def test_the_runtime_is_that_of_the_accelerator(run: Any) -> None:
    """Two workspaces of 32 MiB on an H100 and an RTX 5090, of 8.125 MiB on an A100, none on a Mac."""
    words = (OLDER, "--phase", "training", "--seq", "64")
    found = {
        name: asked(run, *words, "--hardware", name)["memory"]["terms"][1]["bytes"]
        for name in ("h100", "rtx-5090", "a100", "m4-max")
    }
    assert found == {"h100": 2 * 32 * 2**20, "rtx-5090": 2 * 32 * 2**20, "a100": 2 * 8_519_680, "m4-max": 0}


@pytest.mark.parametrize("words", [("llama3-8b",), ("deepseek-v3", "--phase", "training", "--optimizer", "muon")])
def test_the_table_says_it_in_eighty_columns(run: Any, words: tuple[str, ...]) -> None:
    _, out, _ = run("memory", *words, "--notes")
    lines = out.splitlines()
    assert "GiB required" in lines[0]
    assert all(len(line) <= 80 for line in lines)
    assert "before activations" not in out
    assert "without activations" not in out
    assert any(line.split()[0] == "mi300x" and line.split()[-1].endswith("*") for line in lines if line.split())


@pytest.mark.parametrize(
    ("words", "weights", "gradients", "master", "states"),
    [
        ((), 2, 2, 4, 8),
        (("--precision", "bf16-master"), 2, 2, 4, 8),
        (("--precision", "bf16"), 2, 2, 0, 4),
        (("--precision", "autocast"), 4, 4, 0, 8),
        (("--precision", "fp32"), 4, 4, 0, 8),
        (("--dtype", "fp16"), 2, 2, 4, 8),
        (("--dtype", "fp32"), 4, 4, 0, 8),
        (("--precision", "bf16", "--master-weights", "fp32"), 2, 2, 4, 8),
        (("--grad-dtype", "fp32"), 2, 4, 4, 8),
    ],
)
def test_a_precision_says_how_it_is_trained(
    run: Any, words: tuple[str, ...], weights: int, gradients: int, master: int, states: int
) -> None:
    """Bytes per parameter; other options refine the precision."""
    found = asked(run, SMALL, "--phase", "training", "--seq", "16", *words)["memory"]
    n = found["parameters"]
    assert [found[key] / n for key in ("weights", "gradients", "master_weights")] == [weights, gradients, master]
    assert found["optimizer"]["bytes"] // n == states
    assert found["by_kind"]["optimizer"] // n == master + states


def test_what_fits_by_little_is_tight(run: Any) -> None:
    """Tight is what fits without the estimated fragmentation: exit code 0, and a warning."""
    found = asked(run, OLDER, "--seq", "64")["memory"]
    needed = found["device_bytes"] // 2**20
    least = (found["device_bytes"] - (found["reserved_bytes"] - found["peak_bytes"])) // 2**20
    assert least < needed
    for size, code, verdict in ((least, 1, "no"), (least + 1, 0, "tight"), (needed + 1, 0, "fits")):
        got, out, err = run("memory", OLDER, "--seq", "64", "--hardware", f"{size}MiB", "--format", "json")
        assert (got, json.loads(out)["fits"][0]["verdict"]) == (code, verdict)
        assert (": tight: " in err) == (verdict == "tight")
    got, out, err = run("memory", "llama3-8b", "--hardware", "mi300x")
    assert (got, err) == (0, "")
    assert "fits*" in out


def test_layers_are_recomputed_beside_a_base_in_few_bits() -> None:
    """PEFT's prepare_model_for_kbit_training turns gradient checkpointing on; other libraries leave it off."""

    def execution(**options: Any) -> tuple[str, int]:
        document = llmcalc.memory("gpt2", lora_rank=4, seq=64, **options).document
        return document["execution"]["recompute"], document["memory"]["device_bytes"]

    usual = execution(base="nf4")
    assert usual == execution(base="nf4", recompute="full")
    assert usual[1] < execution(base="nf4", recompute="none")[1]
    assert execution()[0] == execution(base="nf4", lora_library="litgpt")[0] == "none"
    notes = llmcalc.memory("gpt2", lora_rank=4, base="nf4").document["notes"]
    assert any("--base nf4 every layer is recomputed by default" in note for note in notes)
