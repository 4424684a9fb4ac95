"""Every wrapper whose encoders are read: `--image` and `--audio` answer, or the wrapper is listed with the reason.

Wrappers whose encoders are not read at all are those of tests/witnesses/test_uncounted_encoders.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.costs.encoders import encoded_inputs
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.registry import family_of, model_types
from llmcalc.workload.inputs import Inputs
from tests.components.towers.test_towers import wrapped
from tests.components.towers.tower_shapes import WRAPPERS
from tests.families import shapes_of

UNKNOWN_RULES: dict[str, set[str]] = {
    "image": {
        *("isaac", "llavaonevision1_5", "locateanything"),  # their own code
        "Keye",  # Qwen2-VL's rule, but the limits of pixels of its published processor are in no file that was read
        "cosmos3_edge",  # likewise, with GLM-4.1V's rule
        *("moondream1", "moondream3"),  # tiles that overlap, averaged beside the whole image
        *("openvla", "deepseek_vl_hybrid"),  # two encoders read an image
        "paddleocr_vl",  # the limits of pixels of its published processors are in no file that was read
        "idefics2",  # its published processor may cut an image into four, which its class's default does not
        *("minicpmv4_6", "minicpmv4_7", "minicpm_ocr"),  # slices of other sizes than the whole image, not padded
        "fuyu",  # its processor's cuts of an image are in no description
        "git",  # CLIP's processor, whose crop and mean of frames are in no description
        "emu3",  # its small encoders have other tokens than the 8 × 8 pixels of its processor
        "lfm3_vl",  # no published processor was found
        *("instructblip", "instructblipvideo"),  # their queries read an instruction, too
        *("granite_docling", "kosmos-2", "kosmos-2.5", "pix2struct"),  # no rule is stated for their images
        *("deepseek_ocr2", "unlimited_ocr"),  # a whole image and slices, of two sizes
        *(
            "blip",
            "clip",
            "layoutlmv3",
            "metaclip_2",
            "pp_formulanet",
            "siglip",
            "siglip2",
        ),  # an image is no tokens of the counted text
        *("muse_glimmer", "muse_spark", "step_robotics", "step3p7"),  # likewise
        *("mllama", "modernvbert", "ultravbert"),  # tiles on a canvas of a listed aspect ratio, or of an equal size
        *("florence2", "t5gemma2"),  # their images are tokens of the encoder's text
        "video_llava",  # two encoders, of images and of frames
    },
    "audio": {
        "moss_transcribe_diarize",  # lengths in chunks of Whisper's encoder
        "voxtral_realtime",  # a recording arrives in parts
        "vibevoice_asr",  # two encoders read a recording
        "nemo_speechlm",  # recordings in chunks that see their neighbours, and a second encoder
        "vibevoice",  # of its two encoders one reads recordings, the other one generated speech
    },
}
"""Option → wrappers whose processor's rule is not stated, with the reason."""

WITHOUT_SMALL_CONFIG = {
    *("NVLM_D", "chatglm", "deepseek_v41", "deepseek_vl_v2", "dots_ocr", "dots_vlm", "eagle_2_5_vl", "h2ovl_chat"),
    *("interns1", "internvl_chat", "kimi_k3", "minicpmo", "minicpmv", "moondream2", "qwen", "skywork_chat"),
    "vision-encoder-decoder",
}
"""Wrappers whose small configs have no encoder; tests/sources/test_published_configs.py has their published ones."""


def _models_of(kind: str) -> list[ModelSpec]:
    """Returns the small models of a wrapper that have encoders."""
    shapes = [wrapped(kind, shape) for shape in WRAPPERS[kind][2]] if kind in WRAPPERS else shapes_of(kind)
    configs: list[dict[str, Any]] = shapes or [wrapped(kind, {})]
    models = (ModelSpec.model_validate(read_config(config)[0]) for config in configs)
    return [model for model in models if model.towers]


def _state_of(models: list[ModelSpec], inputs: Inputs) -> str:
    """Returns `answered` if any model answers, else what its error says."""
    words = set[str]()
    for model in models:
        try:
            encoded_inputs(model, inputs)
        except InputError as error:
            words.add(next((word for word in ("is not known", "no encoder") if word in str(error)), str(error)))
        else:
            return "answered"
    return ", ".join(sorted(words))


def test_images_and_audio_are_answered_or_have_a_reason() -> None:
    inputs = {"image": Inputs(image="640x400"), "audio": Inputs(audio=0.2)}
    unknown: dict[str, set[str]] = {"image": set(), "audio": set()}
    without_encoders = set()
    for kind in model_types():
        if not family_of(kind).tower_file:
            continue
        models = _models_of(kind)
        states = {option: _state_of(models, given_inputs) for option, given_inputs in inputs.items()}
        if not models:
            without_encoders.add(kind)
            continue
        assert set(states.values()) != {"no encoder"}, kind
        for option, state in states.items():
            assert state in ("answered", "no encoder", "is not known"), (kind, state)
            unknown[option] |= {kind} if state == "is not known" else set()
    assert unknown == UNKNOWN_RULES
    assert without_encoders == WITHOUT_SMALL_CONFIG


def test_a_wrapper_without_a_rule_says_what_to_do() -> None:
    with pytest.raises(InputError, match="is not known; expected no --image, and its tokens in --seq"):
        encoded_inputs(_models_of("lfm3_vl")[0], Inputs(image="64x64"))
