"""Memory with images and audio in the prompt: tokens, the encoders' weights, and the peak of their layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

from llmcalc import cost, fit, flops, kv, load, memory, time
from llmcalc.costs.encoders import encoded_inputs
from llmcalc.device_memory.encoders import encoder_peaks, unreplayed_encoders
from llmcalc.errors import InputError
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.workload.inputs import Inputs
from tests.builders import spec_of
from tests.components.towers.test_towers import wrapped
from tests.components.towers.tower_shapes import WRAPPERS

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
    assert few.device.peak_at.module_path != "towers.visual"
    assert many.device.peak_at.module_path == "towers.visual"
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
    (peak,) = encoder_peaks(spec, inputs, "bfloat16", KernelChoices(attention="flash"))
    # at least the residual stream, the norm and both sides of the network of one layer, in bf16
    assert peak.name == "audio_tower"
    assert 2 * 15_000 * (2 * 1280 + 2 * 5120) < peak.bytes < 2 * 15_000 * 20 * 1280
    named = str(memory("gemma4-e2b", seq=100, audio=30).document)
    assert "activations of audio_tower, whose layers are not replayed" in named


def test_whisper_reads_one_clip() -> None:
    counted = flops("whisper-large-v3", seq=100, audio="30s")
    assert counted.total == flops("whisper-large-v3", seq=100).total
    assert counted.document["inputs"] == {"image_tokens": 0, "audio_tokens": 1500}
    with pytest.raises(InputError, match="the encoder reads clips of 30 seconds"):
        flops("whisper-large-v3", audio=31)


@pytest.mark.parametrize(
    ("model", "settings", "says"),
    [
        ("llama3-8b", {"image": "8x8"}, "--image: no encoder of images is counted beside the text model"),
        ("deepseek-v4.1-flash", {"image": "8x8"}, "--image: how the model's processor cuts images is not known"),
        ("gemma4-e2b", {"audio": 31}, "--audio 31: the model reads at most 30 seconds of a recording"),
        ("gemma4-e2b", {"audio": 1e-4}, "shorter than a frame of 321 samples; expected more"),
        (MODEL, {"image": "8"}, "is not the size of an image; expected WIDTHxHEIGHT"),
        (MODEL, {"image": "0x8"}, "is not the size of an image"),
        (MODEL, {"image": "99999x8"}, "with sides of at most 65,536"),
        (MODEL, {"images": 2}, "--images: it means nothing without --image"),
        (MODEL, {"audio": 0}, "expected a duration such as 8.1s"),
        (MODEL, {"audio": "20d"}, "expected a duration such as 8.1s"),
        (MODEL, {"audio": "300h"}, "not a length of audio"),
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


def _bytes_held_by_class(run: Callable[[], Any]) -> int:
    """Returns the most bytes that a pass of a class holds beside its input, without gradients."""
    with torch.profiler.profile(profile_memory=True) as profile, torch.no_grad():
        run()
    events = sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


VIT = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4}
WHISPER = {"d_model": 64, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 160}


@pytest.mark.parametrize(
    ("kind", "class_name", "sizes", "seen"),
    [
        ("llava", "CLIPVisionModel", {**VIT, "image_size": 56, "patch_size": 7}, {"image": "56x56"}),
        ("gemma3", "SiglipVisionModel", {**VIT, "image_size": 56, "patch_size": 7}, {"image": "56x56"}),
        (
            "qwen2_audio",
            "Qwen2AudioEncoder",
            {**WHISPER, "num_mel_bins": 10, "max_source_positions": 150},
            {"audio": 3},
        ),
    ],
)
def test_the_peak_of_an_encoder_is_that_of_its_class(
    kind: str, class_name: str, sizes: dict[str, int], seen: dict[str, Any]
) -> None:
    """The layers of CLIP, SigLIP and Whisper on the CPU, by the events of its allocator, with fused attention."""
    import transformers

    encoder_class = getattr(transformers, class_name)
    settings = encoder_class.config_class(**sizes, attn_implementation="sdpa")
    encoder, section = encoder_class(settings).eval(), next(iter(seen)).replace("image", "vision")
    more = {"mm_tokens_per_image": 16} if kind == "gemma3" else {}
    spec = spec_of(wrapped(kind, {f"{section}_config": {"model_type": settings.model_type, **sizes}, **more}))
    encoded = encoded_inputs(spec, Inputs(**seen))
    (peak,) = encoder_peaks(spec, encoded, "float32", KernelChoices(attention="flash"))
    if section == "audio":
        vectors = torch.zeros(1, 10, 300)
        held_bytes = _bytes_held_by_class(lambda: encoder(vectors))
    else:
        vectors = torch.zeros(1, 8 * 8 + (kind == "llava"), 64)
        layers = getattr(encoder, "vision_model", encoder).encoder
        held_bytes = _bytes_held_by_class(lambda: layers(inputs_embeds=vectors))
    assert peak.bytes == held_bytes + vectors.nbytes


@pytest.mark.parametrize(
    ("kind", "class_name", "sizes", "index_bytes"),
    [
        # row and column of a patch (−8 for the one of the replay), the order of 16 windows and their ends
        ("qwen2_5_vl", "Qwen2_5_VisionTransformerPretrainedModel", {}, 64 * 8 + 144),
        # the same, and four neighbours in the table of positions with their weights
        ("qwen3_5", "Qwen3_5VisionModel", {"num_position_embeddings": 64}, 64 * (8 + 4 * 8 + 4 * 4) + 8),
        # the same: what the mergers of lower layers give is replayed
        *(
            (
                "qwen3_vl",
                "Qwen3VLVisionModel",
                {"num_position_embeddings": 64, "deepstack_visual_indexes": layers},
                3592,
            )
            for layers in ([0, 1], [1, 2], [])
        ),
    ],
)
def test_the_first_input_of_an_encoder_stays_where_its_class_holds_it(
    kind: str, class_name: str, sizes: dict[str, int], index_bytes: int
) -> None:
    """Qwen2.5-VL's loop gives each layer's output the input's name; Qwen3.5's pass holds the positions beside it.

    Only the indices that the class computes from the grid of patches are missing.
    """
    import transformers

    encoder_class = getattr(transformers, class_name)
    sizes = {
        **{"hidden_size": 64, "intermediate_size": 640, "depth": 3, "num_heads": 4},
        **{"patch_size": 7, "out_hidden_size": 64},
        **sizes,
    }
    settings = encoder_class.config_class(**sizes, attn_implementation="sdpa")
    encoder = encoder_class(settings).eval()
    spec = spec_of(wrapped(kind, {"vision_config": {"model_type": settings.model_type, **sizes}}))
    (peak,) = encoder_peaks(
        spec, encoded_inputs(spec, Inputs(image="56x56")), "float32", KernelChoices(attention="flash")
    )
    pixels, grid = torch.zeros(8 * 8, 3 * 2 * 7 * 7), torch.tensor([[1, 8, 8]])
    assert _bytes_held_by_class(lambda: encoder(pixels, grid)) - peak.bytes == index_bytes


def test_what_has_no_replay_is_named_and_a_projector_with_layers_is_no_encoder() -> None:
    """SAM's windows and SAN-M's memory are not replayed; Fun-ASR's projector has layers too."""
    for kind, name, inputs in (
        ("got_ocr2", "vision_tower", Inputs(image="30x20")),
        ("fun_asr_nano", "audio_tower", Inputs(audio=1.0)),
    ):
        spec = spec_of(wrapped(kind, WRAPPERS[kind][2][0]))
        encoded = encoded_inputs(spec, inputs)
        assert unreplayed_encoders(spec, encoded) == [name]
        assert encoder_peaks(spec, encoded, "float32", KernelChoices()) == []


def test_tokens_of_images_of_an_encoder_decoder_are_those_of_its_encoder(tmp_path: Path) -> None:
    """Florence-2 reads images in its encoder, so that they are no tokens of the decoder's sequence."""
    text = {"model_type": "bart", "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 99}
    text |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 128}
    text |= {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    vision = {"model_type": "florence_vision", "projection_dim": 64}
    config = {"model_type": "florence2", "text_config": text, "vision_config": vision}
    config_file = tmp_path / "config.json"
    config_file.write_text(json.dumps({**config, "architectures": ["Florence2ForConditionalGeneration"]}))
    with pytest.raises(InputError, match="expected no --image, and its tokens in --source"):
        kv(str(config_file), image="768x768")
