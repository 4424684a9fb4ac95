"""The memory required, the accelerators that it fits on, and the command `memory`."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import sympy

import llmcalc
from llmcalc.accelerator import Hardware, MemoryFit
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.multi_token_prediction import MultiTokenPrediction
from llmcalc.components.networks.moe import MoE
from llmcalc.costs.cache import kv
from llmcalc.costs.params import params
from llmcalc.device_memory.optimizers.registry import OPTIMIZER_NAMES
from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.static import memory
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from tests.contracts.test_parts import FEED_FORWARD, decoder
from tests.samples import in_one_test

CORRECTED = next(example for example in MoE.examples() if getattr(example.router, "score_correction", None) == "buffer")
MIXTURE = decoder(
    feed_forward=CORRECTED, tie_word_embeddings=True, mtp=MultiTokenPrediction(num_nextn_predict_layers=2)
)
WITH_MTP = frozenset({"mtp"})


def test_llama3_8b_by_hand() -> None:
    n, tensors = 8_030_261_248, 3 + 32 * 9  # embedding, final norm, head; q, k, v, o, gate, up, down, two norms a layer
    spec = llmcalc.load("llama3-8b").model
    plain = memory(spec, Settings("training", precision="bf16"))
    assert plain.parts == {
        "weights": 2 * n,
        "gradients": 2 * n,
        "master_weights": 0,
        "optimizer": 4 * n + 4 * tensors,
        "kv_cache": 0,
    }
    mixed = memory(spec, Settings("training"))
    assert mixed.parts == {
        "weights": 2 * n,
        "gradients": 2 * n,
        "master_weights": 4 * n,
        "optimizer": 8 * n + 4 * tensors,
        "kv_cache": 0,
    }
    assert mixed.total_bytes == 16 * n + 4 * tensors  # ZeRO's 16 bytes per parameter, and the step counts
    wide = memory(spec, Settings("training", master_weights="fp32", grad_dtype="fp32", optimizer_dtype="bf16"))
    assert wide.parts["gradients"] == 4 * n
    assert wide.parts["optimizer"] == 4 * n + 4 * tensors
    in_use = memory(spec, Settings(batch=2, seq=8192))
    assert (
        in_use.parts["kv_cache"] == 2 * 8192 * 32 * 2 * 8 * 128 * 2
    )  # batch · seq · layers · (K, V) · heads · head_dim · bf16
    assert in_use.total_bytes == 2 * n + in_use.kv_cache


def test_four_bits_are_half_a_byte() -> None:
    spec = llmcalc.load("gpt-oss-20b").model
    assert memory(spec, published_dtype="float4").weights == (params(spec).total + 1) // 2


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "deepseek-v3", "gpt-oss-20b"])
def test_the_cache_is_that_of_llmcalc_kv(name: str) -> None:
    spec = llmcalc.load(name).model
    assert memory(spec, Settings(batch=3, seq=300)).kv_cache == kv(spec, 3, 300).bytes
    assert memory(spec, Settings(batch=3, seq=300, kv_dtype="fp8")).kv_cache == kv(spec, 3, 300, "fp8").bytes
    typed_format = memory(spec, Settings(batch=3, seq=300, dtype="fp32"))  # not bf16 beside activations in fp32
    assert typed_format.kv_cache == kv(spec, 3, 300, "fp32").bytes


def test_prediction_modules_count_when_asked_for() -> None:
    plain, full = memory(MIXTURE, Settings(seq=8)), memory(MIXTURE, Settings(seq=8), extra_parts=WITH_MTP)
    assert full.weights - plain.weights == 2 * params(MIXTURE).left_out["mtp"]
    assert full.kv_cache == 2 * plain.kv_cache  # two layers, and two modules of one layer each
    assert any("mtp" in text for text in plain.uncounted_memory_notes)
    assert not any("mtp" in text for text in full.uncounted_memory_notes)


def test_a_model_published_in_fp8_is_trained_in_bf16() -> None:
    spec = decoder()
    assert memory(spec, published_dtype="float8").dtype == "float8"
    assert memory(spec, Settings("training"), published_dtype="float8").dtype == "bfloat16"
    assert memory(spec, Settings("training", dtype="fp8"), published_dtype="float8").dtype == "float8"


def test_narrow_weights_are_said_to_lack_their_scales() -> None:
    assert any("fp8" in text for text in memory(MIXTURE, Settings(dtype="fp8")).uncounted_memory_notes)


@pytest.mark.parametrize("base", ["none", "nf4", "nf4-dq"])
def test_adapters_by_hand(base: str) -> None:
    """Llama 3 8B with rank 8 on queries and values: A [8, 4096] and B [4096 or 1024, 8] in each of 32 layers."""
    spec, n = llmcalc.load("llama3-8b").model, 8_030_261_248
    use = memory(spec, Settings("training", lora_rank=8, base=base))
    trained = 32 * 8 * (4096 + 4096 + 4096 + 1024)
    assert use.trained_parameters == trained
    assert use.parts["gradients"] == 4 * trained
    assert use.parts["optimizer"] == 2 * 4 * trained + 4 * 32 * 4
    assert use.parts["master_weights"] == 0
    layers = 32 * [4096 * 4096, 1024 * 4096, 1024 * 4096, 4096 * 4096, *3 * [14336 * 4096]]
    frozen = {
        "none": 2 * sum(layers),
        "nf4": sum(w // 2 + 64 + 4 * (w // 64) for w in layers),
        "nf4-dq": sum(w // 2 + 64 + w // 64 + 4 * (w // 64 // 256) + 1028 for w in layers),
    }
    assert use.weights == 2 * (n - sum(layers)) + frozen[base] + 4 * trained


def test_all_linear_layers_of_the_layers_have_adapters() -> None:
    spec = llmcalc.load("llama3-8b").model
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    every = memory(spec, Settings("training", lora_rank=4, lora_targets=("all-linear",)))
    assert (
        every.trained_parameters
        == memory(spec, Settings("training", lora_rank=4, lora_targets=names)).trained_parameters
    )
    assert every.adapters is not None
    assert every.adapters.target_names == frozenset(names)


# The same code on arrays and symbols


@in_one_test
@pytest.mark.parametrize("name", OPTIMIZER_NAMES)
def test_arrays_give_what_integers_give(name: str) -> None:
    setup = Settings("training", optimizer=name, momentum=True if name == "sgd" else None, master_weights="fp32")
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
    use = memory(spec, Settings("training", precision="bf16", optimizer="sgd", momentum=True))
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
    need = 1000
    small, exact, large = (MemoryFit(accelerator(capacity), need) for capacity in (need - 1, need, need + 5))
    assert [f.verdict for f in (small, exact, large)] == ["no", "fits", "fits"]
    assert [MemoryFit(accelerator(capacity), need, 3).verdict for capacity in (need - 4, need - 3)] == ["no", "tight"]
    assert [f.left_bytes for f in (small, exact, large)] == [-1, 0, 5]
    assert exact.used_fraction == 1


@pytest.mark.parametrize(
    ("hardware", "precision"), [("v100-32gb", "fp16-master"), ("t4", "fp16-master"), ("a100", "bf16-master")]
)
def test_training_is_in_the_16_bits_that_an_accelerator_has(hardware: str, precision: str) -> None:
    stated, usual = (
        llmcalc.memory("gpt2", phase="training", hardware=hardware, seq=256, precision=name).document["memory"]
        for name in (precision, None)
    )
    assert stated == usual


# Rejected settings


@in_one_test
@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (Settings("training", base="nf4"), "--base: it means nothing without --lora-rank"),
        (Settings("training", lora_rank=4, lora_targets=("w_proj",)), "--lora-targets w_proj: no linear layer"),
        (Settings("training", lora_rank=4, base="int2"), "--base: 'int2' is not known"),
        (Settings("training", lora_rank=4, lora_library="lora"), "--lora-library: 'lora' is not known"),
        (Settings("training", lora_rank=4, modules_to_save=("head",)), "--modules-to-save head: no such module"),
        (Settings("training", lora_rank=4, master_weights="fp32"), "--master-weights: adapters"),
        (Settings(lora_rank=4), "--lora-rank: it is not for the phase inference; expected --phase training"),
        (
            Settings("training", kv_dtype="fp8"),
            "--kv-dtype: it is not for the phase training; expected --phase inference",
        ),
        (
            Settings("training", kv_dtype="fp8", lora_rank=4),
            "--kv-dtype: it is not for the phase training, and --lora-rank is for training only; "
            "expected --phase inference or decode or prefill without --lora-rank",
        ),
        (Settings(optimizer="sgd"), "--optimizer: it is not for the phase inference"),
        (Settings(grad_dtype="fp32"), "--grad-dtype: it is not for the phase inference"),
        (Settings(master_weights="none"), "--master-weights: it is not for the phase inference"),
        (Settings(momentum=True), "--momentum: it is not for the phase inference"),
        (Settings(optimizer_dtype="fp32"), "--optimizer-dtype: it is not for the phase inference"),
        (Settings(dtype="bf17"), "unknown dtype 'bf17'"),
        (Settings("training", dtype="int8"), "--dtype int8: integers take no gradient"),
        (Settings("training", grad_dtype="fp64"), "--grad-dtype fp64: no framework sums gradients in it"),
        (Settings("training", grad_dtype="fp8"), "--grad-dtype fp8: no framework sums gradients in it"),
        (Settings("training", optimizer="shampoo"), "--optimizer: 'shampoo' is not known; expected one of adamw"),
        (Settings("training", optimizer="adamw", momentum=True), "--momentum: for --optimizer sgd, not adamw"),
        (
            Settings("training", optimizer="adam8bit", optimizer_dtype="fp32"),
            "--optimizer-dtype: not for --optimizer adamw-8bit",
        ),
        (Settings("training", optimizer="sgd", optimizer_dtype="fp32"), "--optimizer-dtype: not for --optimizer sgd"),
        (Settings("training", master_weights="fp64"), "--master-weights: 'fp64' is not known"),
        (Settings("training", dtype="fp32", master_weights="fp32"), "the weights are fp32 already"),
        (Settings("serving"), "--phase: 'serving' is not known"),  # type: ignore[arg-type]
    ],
)
def test_what_a_phase_has_no_use_for_is_refused(setup: Settings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        memory(decoder(), setup)


def test_an_encoder_keeps_no_cache() -> None:
    spec = decoder()
    encoder = spec.model_copy(update={"encoder": spec.decoder, "decoder": None})
    assert memory(encoder).parts["kv_cache"] == 0
    assert memory(encoder).total_bytes == memory(encoder).weights
    with pytest.raises(InputError, match="--kv-dtype: an encoder-only model keeps no cache"):
        memory(encoder, Settings(kv_dtype="fp8"))
