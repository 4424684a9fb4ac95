"""Memory with images and audio in the prompt: tokens, the encoders' weights, and the peak of their layers."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc import cost, fit, flops, kv, load, memory, time
from llmcalc.costs.encoders import encoded_inputs
from llmcalc.device_memory.encoders import encoder_peaks
from llmcalc.errors import InputError
from llmcalc.simulator.choices import Choices
from llmcalc.workload.inputs import Inputs

MODEL = "qwen2.5-vl-3b"


def test_tokens_of_images_are_those_of_the_prompt_everywhere() -> None:
    """1024 × 768 pixels are 36 × 28 pixels wide and high to the nearest 28: 37 · 27 = 999 tokens."""
    seen: dict[str, Any] = {"image": "1024x768", "images": 2}
    cache, plain = kv(MODEL, seq=100, **seen), kv(MODEL, seq=100 + 2 * 999)
    assert cache.bytes == plain.bytes
    assert cache.document["inputs"] == {"image_tokens": 2 * 999, "audio_tokens": 0}
    counted = flops(MODEL, seq=100, phase="prefill", **seen)
    text = flops(MODEL, seq=100 + 2 * 999, phase="prefill")
    assert counted.total == text.total + counted.by_component["towers"]
    assert counted.document["tree"]["flops"] == counted.total
    used = memory(MODEL, seq=100, **seen).document
    assert used["inputs"] == cache.document["inputs"]
    assert used["workload"]["seq"] == 100 + 2 * 999


def test_decoding_reads_the_cache_of_the_images_and_runs_no_encoder() -> None:
    counted = flops(MODEL, context=100, phase="decode", image="1024x768")
    assert counted.total == flops(MODEL, context=100 + 999, phase="decode").total
    assert "towers" not in counted.by_component


def test_each_sequence_has_its_images() -> None:
    two, single = (flops(MODEL, batch, 10, phase="prefill", image="640x480") for batch in (2, 1))
    assert two.by_component["towers"] == 2 * single.by_component["towers"]


def test_the_peak_is_that_of_an_encoder_where_images_are_many() -> None:
    """The encoder runs beside weights and cache: 4096 × 4096 pixels are 85,264 patches (292²)."""
    few: Any = memory(MODEL, seq=100, image="28x56")
    many: Any = memory(MODEL, seq=100, image="4096x4096")
    assert few.device.peak_at.node != "towers.visual"
    assert many.device.peak_at.node == "towers.visual"
    weights = many.states.parts["weights"]
    assert many.device.by_kind["weights"] == weights
    # at least the residual stream, the norm and the gated network's two inputs of one layer, in bf16
    patches, width, intermediate = 256 * 256, 1280, 3420
    assert many.device.by_kind["temporary"] > 2 * patches * (2 * width + 2 * intermediate)
    tensors = next(term for term in many.device.terms if term.name == "tensors")
    assert tensors.status == "untested"


def test_encoders_add_their_weights() -> None:
    with_images: Any = memory(MODEL, seq=100, image="640x480")
    with_towers: Any = memory(MODEL, seq=100, with_towers=True)
    assert with_images.states.parts["weights"] == with_towers.states.parts["weights"]


def test_the_peak_of_an_encoder_of_sound_is_replayed_or_named() -> None:
    """300 seconds are 15,000 positions of 1,280 elements; a conformer's layers are not replayed."""
    whole: Any = memory("qwen2.5-omni-7b", seq=100, audio=300)
    assert whole.document["inputs"] == {"image_tokens": 0, "audio_tokens": 7500}
    spec = load("qwen2.5-omni-7b").model
    inputs = encoded_inputs(spec, Inputs(audio=300))
    (peak,) = encoder_peaks(spec, inputs, "bfloat16", Choices(attention="flash"))
    # at least the residual stream, the norm and both sides of the network of one layer, in bf16
    assert peak.name == "audio_tower"
    assert 2 * 15_000 * (2 * 1280 + 2 * 5120) < peak.bytes < 2 * 15_000 * 20 * 1280
    named = str(memory("gemma4-e2b", seq=100, audio=30).document)
    assert "activations of audio_tower, whose layers are not replayed" in named


def test_whisper_reads_one_clip() -> None:
    counted = flops("whisper-large-v3", seq=100, audio=30)
    assert counted.total == flops("whisper-large-v3", seq=100).total
    assert counted.document["inputs"] == {"image_tokens": 0, "audio_tokens": 1500}
    with pytest.raises(InputError, match="the encoder reads clips of 30 seconds"):
        flops("whisper-large-v3", audio=31)


@pytest.mark.parametrize(
    ("model", "settings", "says"),
    [
        ("llama3-8b", {"image": "8x8"}, "--image: no encoder of images is counted beside the text model"),
        ("kimi-k3", {"image": "8x8"}, "--image: how the model's processor cuts images is not known"),
        ("gemma4-e2b", {"audio": 31}, "--audio 31: the model reads at most 30 seconds of a recording"),
        ("gemma4-e2b", {"audio": 1e-4}, "shorter than a frame of 321 samples; expected more"),
        (MODEL, {"image": "8"}, "is not the size of an image; expected WIDTHxHEIGHT"),
        (MODEL, {"image": "0x8"}, "is not the size of an image"),
        (MODEL, {"image": "99999x8"}, "with sides of at most 65,536"),
        (MODEL, {"images": 2}, "--images: it means nothing without --image"),
        (MODEL, {"audio": 0}, "not a length of audio"),
        (MODEL, {"image": "10x9000"}, "sides differ by a factor of at most 200"),
    ],
)
def test_images_and_audio_that_cannot_be(model: str, settings: dict[str, Any], says: str) -> None:
    for ask in (flops, kv, memory):
        with pytest.raises(InputError, match=says):
            ask(load(model), **settings)


def test_encoders_are_counted_in_inference_of_a_whole_model() -> None:
    with pytest.raises(InputError, match="--image: encoders are counted in inference"):
        flops(MODEL, image="8x8", phase="training")
    with pytest.raises(InputError, match="--image: encoders are counted beside a whole model"):
        kv(MODEL, image="8x8", tp=2)
    with pytest.raises(InputError, match="--image: it is not for the phase training; expected the tokens of images"):
        memory(MODEL, image="8x8", phase="training")


def test_commands_that_count_no_encoder_refuse_images() -> None:
    with pytest.raises(InputError, match="--image: fit does not count encoders; expected the tokens in --seq"):
        fit(MODEL, hardware="h100", image="8x8")
    with pytest.raises(InputError, match="--audio: time does not count encoders"):
        time(MODEL, hardware="h100", phase="prefill", audio=3)
    with pytest.raises(InputError, match="--image: cost does not count encoders"):
        cost(MODEL, hardware="h100", requests="1M", image="8x8")
