from __future__ import annotations

from typing import NamedTuple

from ..seq2seq.musicgen import CODEC, T5

SHAPES: dict[str, list[dict[str, object]]] = {}
"""Wrappers: their text models are in other files."""


class UncountedModules(NamedTuple):
    """The class of a wrapper and the modules of its encoders, which are not counted.

    fields: further fields of the small config, which the class compares with those of its text model.
    text_model: the module that is run for FLOPs and cache; the class itself if empty.
    runs: whether it runs without values; otherwise only the class of the text model alone is run (test_families.py).
    """

    class_name: str
    modules: str
    fields: dict[str, object] = {}
    text_model: str = ""
    runs: bool = True


VISION = {"hidden_size": 24, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
BLIP = "vision_model + qformer + language_projection + query_tokens"

VIT: dict[str, object] = {"model_type": "vit", **VISION, "image_size": 16, "patch_size": 8}
WAV2VEC2: dict[str, object] = {
    "model_type": "wav2vec2",
    **VISION,
    "conv_dim": [8],
    "conv_kernel": [4],
    "conv_stride": [2],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}

WRAPPERS = {
    "vision-encoder-decoder": UncountedModules(
        "VisionEncoderDecoderModel", "encoder + enc_to_dec_proj", {"encoder": VIT}, text_model="decoder"
    ),
    "speech-encoder-decoder": UncountedModules(
        "SpeechEncoderDecoderModel", "encoder + enc_to_dec_proj", {"encoder": WAV2VEC2}, text_model="decoder"
    ),
    "musicgen_melody": UncountedModules(
        "MusicgenMelodyForConditionalGeneration",
        "text_encoder + audio_encoder + enc_to_dec_proj + audio_enc_to_dec_proj",
        {"text_encoder": T5, "audio_encoder": CODEC},
        text_model="decoder",
    ),
    "qwen2_5_omni": UncountedModules(
        "Qwen2_5OmniForConditionalGeneration",
        "thinker.model.visual + thinker.model.audio_tower + talker + token2wav",
        text_model="thinker",
    ),
    "qwen3_omni_moe": UncountedModules(
        "Qwen3OmniMoeForConditionalGeneration",
        "thinker.model.visual + thinker.model.audio_tower + talker + code2wav",
        {"talker_config": {"spatial_merge_size": 2, "text_config": {"shared_expert_intermediate_size": 16}}},
        text_model="thinker",
    ),
    "granite4_vision": UncountedModules(
        "Granite4VisionForConditionalGeneration",
        "vision_tower + layerwise_projectors + spatial_projectors + image_newline",
        {"deepstack_layer_map": [[-1, 0]], "downsample_rate": "1/4", "spatial_target_layers": [1]},
    ),
    "molmo2": UncountedModules("Molmo2ForConditionalGeneration", "vision_tower + multi_modal_projector"),
    "muse_spark": UncountedModules(
        "MuseSparkForConditionalGeneration",
        "vision_tower + audio_tower + vision_adapter + vision_projection",
        {"audio_config": {"out_hidden_size": 32}},
    ),
    "dots3_note": UncountedModules(
        "Dots3NoteForConditionalGeneration",
        "vision_tower + audio_tower",
        {"vision_config": {"adapter_out_dim": 32}, "audio_config": {"adapter_out_dim": 32}},
    ),
    "inkling2": UncountedModules(
        "Inkling2ForConditionalGeneration",
        "vision_tower",
        {"vision_config": {**VISION, "model_type": "inkling2_vision", "text_hidden_size": 32}},
        runs=False,
    ),
    "inkling_mm_model": UncountedModules("InklingForConditionalGeneration", "vision_tower + audio_tower", runs=False),
}
"""Wrapper → its class and the modules of its encoders."""

UNBUILT = {
    **dict.fromkeys(("fast_vlm", "perception_lm"), "its class needs timm"),
    **dict.fromkeys(
        (
            *("funaudiochat", "lfm2_audio", "meralion2", "midashenglm", "moss_audio", "multi_modality"),
            *("alpamayo2_super", "bailingmm", "molmo_point", "youtu_vl"),
        ),
        "its class is code of its repository",
    ),
    **dict.fromkeys(("apertus1p5", "hy_v4_vl"), "its class is of transformers after 5.23"),
}
"""Wrapper → the reason why its class is not compared."""
