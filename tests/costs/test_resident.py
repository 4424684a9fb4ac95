"""The memory required, the accelerators that it fits on, and the command `memory`."""

from __future__ import annotations

import json
from typing import Any

import numpy
import pytest
import sympy

import llmcalc
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mtp import MultiTokenPrediction
from llmcalc.components.networks.moe import MoE
from llmcalc.costs import optimizers as training_memory
from llmcalc.costs.cache import kv
from llmcalc.costs.optimizers import OPTIMIZERS
from llmcalc.costs.params import params
from llmcalc.costs.resident import MemoryUse, Setup, fits, memory
from llmcalc.errors import InputError
from llmcalc.hardware import Hardware
from llmcalc.model import ModelSpec
from llmcalc.sources.hardware import COMMON_HARDWARE, load_hardware
from llmcalc.sources.preset import Preset
from llmcalc.views.memory import report
from tests.contracts.test_parts import FEED_FORWARD, decoder

CORRECTED = next(example for example in MoE.examples() if getattr(example.router, "score_correction", None) == "buffer")
MIXTURE = decoder(
    feed_forward=CORRECTED, tie_word_embeddings=True, mtp=MultiTokenPrediction(num_nextn_predict_layers=2)
)
WITH_MTP = frozenset({"mtp"})


def test_llama3_8b_by_hand() -> None:
    n, tensors = 8_030_261_248, 3 + 32 * 9  # embedding, final norm, head; q, k, v, o, gate, up, down, two norms a layer
    plain = llmcalc.memory(llmcalc.load("llama3-8b"), "training", precision="bf16")
    assert plain.parts == {
        "weights": 2 * n,
        "gradients": 2 * n,
        "master_weights": 0,
        "optimizer": 4 * n + 4 * tensors,
        "kv_cache": 0,
    }
    mixed = llmcalc.memory(llmcalc.load("llama3-8b"), "training")
    assert mixed.parts == {
        "weights": 2 * n,
        "gradients": 2 * n,
        "master_weights": 4 * n,
        "optimizer": 8 * n + 4 * tensors,
        "kv_cache": 0,
    }
    assert mixed.total_bytes == 16 * n + 4 * tensors  # ZeRO's 16 bytes per parameter, and the step counts
    wide = llmcalc.memory(
        llmcalc.load("llama3-8b"), "training", master_weights="fp32", grad_dtype="fp32", optimizer_dtype="bf16"
    )
    assert wide.parts["gradients"] == 4 * n
    assert wide.parts["optimizer"] == 4 * n + 4 * tensors
    in_use = llmcalc.memory(llmcalc.load("llama3-8b"), batch=2, seq=8192)
    assert (
        in_use.parts["kv_cache"] == 2 * 8192 * 32 * 2 * 8 * 128 * 2
    )  # batch · seq · layers · (K, V) · heads · head_dim · bf16
    assert in_use.total_bytes == 2 * n + in_use.kv_cache


def test_four_bits_are_half_a_byte() -> None:
    spec = llmcalc.load("gpt-oss-20b").model
    assert memory(spec, published="float4").weights == (params(spec).total + 1) // 2


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "deepseek-v3", "gpt-oss-20b"])
def test_the_cache_is_that_of_llmcalc_kv(name: str) -> None:
    spec = llmcalc.load(name).model
    assert memory(spec, Setup(batch=3, seq=300)).kv_cache == kv(spec, 3, 300).bytes
    assert memory(spec, Setup(batch=3, seq=300, kv_dtype="fp8")).kv_cache == kv(spec, 3, 300, "fp8").bytes


def test_prediction_modules_count_when_asked_for() -> None:
    plain, full = memory(MIXTURE, Setup(seq=8)), memory(MIXTURE, Setup(seq=8), include=WITH_MTP)
    assert full.weights - plain.weights == 2 * params(MIXTURE).left_out["mtp"]
    assert full.kv_cache == 2 * plain.kv_cache  # two layers, and two modules of one layer each
    assert any("mtp" in text for text in plain.not_counted)
    assert not any("mtp" in text for text in full.not_counted)


def test_a_model_published_in_fp8_is_trained_in_bf16() -> None:
    spec = decoder()
    assert memory(spec, published="float8").dtype == "float8"
    assert memory(spec, Setup("training"), published="float8").dtype == "bfloat16"
    assert memory(spec, Setup("training", dtype="fp8"), published="float8").dtype == "float8"


def test_buffers_and_activations_are_said_not_to_be_counted() -> None:
    texts = memory(MIXTURE).not_counted
    assert "activations" in texts
    assert "buffers: 16 elements" in texts  # 8 experts' score corrections in each of 2 layers
    assert any("fp8" in text for text in memory(MIXTURE, Setup(dtype="fp8")).not_counted)


# The same code on arrays and symbols


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_arrays_give_what_integers_give(name: str) -> None:
    setup = Setup("training", optimizer=name, momentum=True if name == "sgd" else None, master_weights="fp32")
    widths = numpy.array([24, 48, 480, 4800])
    swept = memory(resized(widths), setup).total_bytes
    assert swept.tolist() == [memory(resized(int(h)), setup).total_bytes for h in widths]


def resized(hidden: Any) -> ModelSpec:
    return decoder().model_copy(update={"hidden_size": hidden})


def test_symbols_print_their_own_formula() -> None:
    h, vocab = sympy.symbols("h V", integer=True, positive=True)
    block = decoder(
        attention=Attention(num_attention_heads=4),
        feed_forward=FEED_FORWARD.model_copy(update={"intermediate_size": 4 * h}),
    )
    spec = block.model_copy(update={"hidden_size": h, "vocab_size": vocab})
    use = memory(spec, Setup("training", precision="bf16", optimizer="sgd", momentum=True))
    n = 2 * vocab * h + 2 * (4 * h**2 + 12 * h**2 + 2 * h)  # two layers: 4h² + 3 · 4h·h + two norms; no final norm
    assert sympy.expand(use.total_bytes - (2 + 2 + 2) * n) == 0


# What fits


def accelerator(memory_bytes: int, name: str = "it") -> Hardware:
    source = {"url": "https://example.com/it", "gives": "all", "checked": "2026-11-21"}
    return Hardware.model_validate(
        {
            "name": name,
            "title": "It",
            "vendor": "V",
            "released": "2026",
            "memory_bytes": memory_bytes,
            "memory_bandwidth": 1,
            "sources": [source],
        }
    )


def test_it_fits_to_the_last_byte() -> None:
    use = memory(decoder())
    need = use.total_bytes
    small, exact, large = fits(use, [accelerator(need + 5, "c"), accelerator(need - 1, "a"), accelerator(need, "b")])
    assert [f.hardware.name for f in (small, exact, large)] == ["a", "b", "c"]
    assert [f.verdict for f in (small, exact, large)] == ["no", "tight", "tight"]
    assert fits(use, [accelerator(2 * need)])[0].verdict == "fits"
    assert [f.left_bytes for f in (small, exact, large)] == [-1, 0, 5]
    assert exact.share == 1


def document(use: MemoryUse, hardware: list[Hardware]) -> Any:
    return report(Preset(name="x", model=use.count.spec), use, fits(use, hardware)).document()


@pytest.mark.parametrize(
    "setup", [Setup(batch=2, seq=9), Setup("training"), Setup("training", optimizer="adam8bit", master_weights="fp32")]
)
def test_the_document_is_whole_numbers_that_add_up(setup: Setup) -> None:
    got = document(memory(MIXTURE, setup), [accelerator(10**6)])
    found = got["memory"]
    assert all(type(found[key]) is int for key in ("total_bytes", "weights", "gradients", "master_weights", "kv_cache"))
    assert (
        found["total_bytes"]
        == sum(found[k] for k in ("weights", "gradients", "master_weights", "kv_cache")) + found["optimizer"]["bytes"]
    )
    assert found["optimizer"]["bytes"] == sum(found["optimizer"]["states"].values())
    assert got["fits"] == [
        {
            "hardware": "it",
            "memory_bytes": 10**6,
            "usable_memory_bytes": None,
            "needed_bytes": found["total_bytes"],
            "left_bytes": 10**6 - found["total_bytes"],
            "verdict": "fits",
        }
    ]
    assert "activations" in found["not_counted"]


# Rejected settings


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (Setup("training", seq=8), "--seq: training keeps no KV cache"),
        (Setup("training", batch=8), "--batch: training"),
        (Setup("training", kv_dtype="fp8"), "--kv-dtype: training"),
        (Setup(optimizer="sgd"), "--optimizer: inference keeps no"),
        (Setup(grad_dtype="fp32"), "--grad-dtype: inference"),
        (Setup(master_weights="none"), "--master-weights: inference"),
        (Setup(momentum=True), "--momentum: inference"),
        (Setup(optimizer_dtype="fp32"), "--optimizer-dtype: inference"),
        (Setup(dtype="bf17"), "unknown dtype 'bf17'"),
        (Setup("training", dtype="int8"), "--dtype int8: integers take no gradient"),
        (Setup("training", optimizer="lion"), "--optimizer lion: not known; expected one of adamw"),
        (Setup("training", optimizer="adamw", momentum=True), "--momentum: for --optimizer sgd, not adamw"),
        (
            Setup("training", optimizer="adam8bit", optimizer_dtype="fp32"),
            "--optimizer-dtype: not for --optimizer adam8bit",
        ),
        (Setup("training", optimizer="sgd", optimizer_dtype="fp32"), "--optimizer-dtype: not for --optimizer sgd"),
        (Setup("training", master_weights="fp64"), "--master-weights fp64: not known"),
        (Setup("training", dtype="fp32", master_weights="fp32"), "the weights are fp32 already"),
        (Setup("serving"), "--phase: 'serving' is not known"),  # type: ignore[arg-type]
    ],
)
def test_what_a_phase_has_no_use_for_is_refused(setup: Setup, message: str) -> None:
    with pytest.raises(InputError, match=message):
        memory(decoder(), setup)


def test_an_encoder_keeps_no_cache() -> None:
    spec = decoder()
    encoder = spec.model_copy(update={"encoder": spec.decoder, "decoder": None})
    assert memory(encoder).parts["kv_cache"] == 0
    assert memory(encoder).total_bytes == memory(encoder).weights
    with pytest.raises(InputError, match="--seq: an encoder-only model keeps no cache"):
        memory(encoder, Setup(seq=8))


# The command


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--phase", "training"), 0),  # no accelerator named: nothing can fail
        (("--phase", "training", "--hardware", "h200"), 0),
        (("--phase", "training", "--hardware", "rtx-4090"), 1),
        (("--phase", "training", "--hardware", "rtx-4090", "--hardware", "h200"), 0),
        (("--phase", "training", "--hardware", "h100"), 1),
        (("--phase", "training", "--precision", "bf16", "--hardware", "h100"), 0),
        (("--precision", "bf16"), 2),
        (("--hardware", "no-such"), 2),
        (("--grad-dtype", "fp32"), 2),
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
    _, out, _ = run("memory", "gpt2", "--format", "json")
    listed = json.loads(out)["fits"]
    assert {one["hardware"] for one in listed} == set(COMMON_HARDWARE)
    assert all(
        one["left_bytes"]
        == (one["usable_memory_bytes"] or load_hardware(one["hardware"]).memory_bytes)
        - 4 * 124_439_808
        - 1024 * 2 * 12 * 2 * 768
        for one in listed
    )


@pytest.mark.parametrize("words", [("llama3-8b",), ("deepseek-v3", "--phase", "training", "--optimizer", "muon")])
def test_the_table_says_it_in_eighty_columns(run: Any, words: tuple[str, ...]) -> None:
    _, out, _ = run("memory", *words)
    lines = out.splitlines()
    assert "GiB required" in lines[0]
    assert all(len(line) <= 80 for line in lines)
    assert "not counted: activations" in out
    assert any(
        line.split()[0] == "h200" and line.rstrip().endswith("(of the nominal memory)")
        for line in lines
        if line.split()
    )


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
    found = json.loads(run("memory", "llama3-8b", "--phase", "training", *words, "--format", "json").out)["memory"]
    n = found["parameters"]
    assert [found[key] / n for key in ("weights", "gradients", "master_weights")] == [weights, gradients, master]
    assert found["optimizer"]["bytes"] // n == states


def test_what_fits_by_little_is_tight(run: Any) -> None:
    """Exit code 0, and a warning about memory that is not counted; usable memory is used if it is known."""
    got, _, err = run("memory", "llama3-70b", "--hardware", "h200")
    assert (got, err) == (0, "warning: h200: tight: 95.0 % of its nominal memory, and activations come on top\n")
    got, out, err = run("memory", "llama3-70b", "--hardware", "m4-max", "--format", "json")
    (fit,) = json.loads(out)["fits"]
    assert (got, err, fit["verdict"]) == (1, "", "no")
    assert fit["usable_memory_bytes"] == 96 * 2**30 < fit["needed_bytes"]
    got, out, err = run("memory", "llama3-8b", "--hardware", "h200")
    assert (got, err) == (0, "")
    assert "fits (of the nominal memory)" in out


def test_every_name_of_an_optimizer_has_states() -> None:
    assert tuple(training_memory._STATES) == OPTIMIZERS
