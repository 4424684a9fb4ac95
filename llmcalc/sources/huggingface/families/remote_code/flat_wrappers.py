"""Multimodal wrappers with repository code whose configs have the text model's fields at the top level.

LLaVA's own classes, Bunny, MiniCPM-V and -o, dots.ocr, GOT-OCR, Keye-VL, Phi-4-multimodal, Moondream 2,
Isaac, Youtu-VL, Kimi-Audio. The text model is counted.

Sources: the modeling files of the models' repositories, in `Family.source` of each model type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...code_addresses import GITHUB, HUB, VLLM
from ...config import Config, is_number
from ...family import Family, field_names
from ...parts import Table
from ...registry import family_of, typed_config
from ..multimodal.multimodal import LLAVA_IGNORED_FIELDS, LLAVA_TOWERS
from .moondream3 import REGION_HEADS_NOTE, config_section

TEXT_TYPE_BY_VERSION = {2.0: "minicpm", 2.5: "llama", 2.6: "qwen2", 4.0: "llama", 4.5: "qwen3"}
"""Version of MiniCPM-V → the model type of its text model."""


def _read_minicpmv(config: Config) -> Table:
    """Reads MiniCPM-V: its version determines the text model, and the first two versions do not state it."""
    first_version = 2.0 if config.integer("hidden_size") == 2304 else 2.5
    return _minicpm_text_of_version(config, first_version)


def _read_minicpmo(config: Config) -> Table:
    """Reads MiniCPM-o, whose first version is 2.6."""
    return _minicpm_text_of_version(config, 2.6)


def _minicpm_text_of_version(config: Config, first_version: float) -> Table:
    stated_version = config.config_fields.get("version")
    config.fields_read.add("version")
    try:
        if isinstance(stated_version, str) or is_number(stated_version):
            version_number = float(stated_version)
        elif stated_version is None:
            version_number = first_version
        else:
            version_number = None
    except (ValueError, OverflowError):
        version_number = None
    if version_number not in TEXT_TYPE_BY_VERSION:
        raise config.error("version", stated_version, f"one of {', '.join(map(str, TEXT_TYPE_BY_VERSION))}")
    return _text_of_type(config, TEXT_TYPE_BY_VERSION[version_number], config.config_fields)


def _text_of_type(config: Config, model_type: str, text_fields: Mapping[str, Any]) -> Table:
    """Reads the text model from config fields as if they were a config of the given model type."""
    family = family_of(model_type)
    config_data = {**text_fields, "architectures": []}
    text_config = typed_config(config_data, model_type, family, config.head_kind, config.location)
    model_fields: Table = family.read_model(text_config) if family.read_model is not None else {}
    config.fields_read |= text_config.fields_read | family.ignored_fields
    config.notes += text_config.notes
    config.default_sizes |= text_config.default_sizes
    return model_fields


def _read_moondream(config: Config) -> Table:
    """Reads Moondream 2: Phi's layers, by default with the sizes of Phi 1.5."""
    config.notes.append(
        f"vision: {UNCOUNTED_ENCODER_NOTE}" if config.has("text_config") else f"region: {REGION_HEADS_NOTE}"
    )
    stated_fields = config.table("text_config") if config.has("text_config") else config.config_fields
    config_sections = config.table("config") if config.has("config") else {}
    config.fields_read.add("config")
    text_fields = config_section(config, config_sections, "text")
    unknown_names = sorted(text_fields.keys() - MOONDREAM_TEXT_NAMES.keys() - {"prefix_attn", "group_size"})
    if unknown_names:
        raise config.error(f"config.text.{unknown_names[0]}", text_fields[unknown_names[0]], "no such field")
    named_sizes = {
        usual_name: text_fields[name] for name, usual_name in MOONDREAM_TEXT_NAMES.items() if name in text_fields
    }
    return _text_of_type(config, "phi", {**stated_fields, **named_sizes})


MOONDREAM_TEXT_NAMES = {
    "dim": "hidden_size",
    "ff_dim": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "vocab_size": "vocab_size",
    "max_context": "max_position_embeddings",
}
"""Field of `config.text` of Moondream → its usual name."""

UNCOUNTED_ENCODER_NOTE = "its encoder is not counted"

LLAVA_FIELDS = LLAVA_IGNORED_FIELDS | field_names("""
    add_faster_video add_time_instruction bunny_model delay_load faster_token_stride force_sample
    freeze_mm_vision_resampler image_crop_resolution image_split_resolution max_image_length max_num_patches
    min_num_patches mm_newline_position mm_patch_merge_type mm_projector_lr mm_resampler_type mm_spatial_pool_mode
    mm_spatial_pool_stride mm_tunable_parts mm_vision_tower_lr pos_skipping_range tokenizer_model_max_length
    tokenizer_padding_side tune_mm_vision_resampler unfreeze_mm_vision_tower unfreeze_vision_tower use_pos_skipping
    use_s2 vision_tower_pretrained
    """)
"""Fields of LLaVA's encoder, projector and training."""

VIDEO_FIELDS = field_names("""
    frame_aspect_ratio frame_grid_pinpoints llm_compress_layer_list llm_compress_type llm_image_token_ratio_list
    max_num_pixels min_slow_num_frames mm_close_init mm_llm_compress mm_local_num_frames mm_num_compress_latents
    mm_num_compress_query_type mm_pos_num_frames vision_encode_type
    """)
"""Fields of VideoChat-Flash's encoder, and of the tokens of images that its layers drop, which text has none of."""

MINICPM_FIELDS = field_names("""
    audio_chunk_length audio_pool_step batch_3d_resampler batch_vision_input chunk_input drop_vision_last_layer
    max_slice_nums scale_resolution image_size init_audio init_tts init_vision listen_speak_type mm_use_im_start_end
    patch_size query_num slice_config slice_mode stream_input use_image_id vision_batch_size vision_encoder
    """)
"""Fields of the encoders and resamplers of MiniCPM-V and -o."""


def _llava_family(text_model_type: str, source_url: str) -> Family:
    """Returns the `Family` of a model class in LLaVA's code. text_model_type: the text model's type.

    VILA and NVILA, whose classes have LLaVA's names, have the text model in `llm_cfg`. Their `LlavaLlamaModel` has it
    with its head.
    """
    return Family(
        None,
        text_type=text_model_type,
        text_section="llm_cfg",
        tying_source="text",
        generates_text=True,
        uncounted_fields={
            **LLAVA_TOWERS,
            "vision_tower": LLAVA_TOWERS["mm_vision_tower"],
            "vision_tower_cfg": "its vision encoder is not counted",
        },
        ignored_fields=LLAVA_FIELDS,
        source=source_url,
    )


LLAVA = f"{GITHUB}haotian-liu/LLaVA/blob/main/llava/model/language_model/"
LLAVA_NEXT = f"{GITHUB}LLaVA-VL/LLaVA-NeXT/blob/main/llava/model/language_model/"
BUNNY = f"{GITHUB}BAAI-DCAI/Bunny/blob/main/bunny/model/language_model/"

FAMILIES = {
    "llava_llama": _llava_family("llama", f"{LLAVA}llava_llama.py"),
    "llava_mistral": _llava_family("mistral", f"{LLAVA}llava_mistral.py"),
    "llava_mpt": _llava_family("mpt", f"{LLAVA}llava_mpt.py"),
    "llava_qwen": _llava_family("qwen2", f"{LLAVA_NEXT}llava_qwen.py"),
    "videochat_flash_qwen": replace(
        _llava_family("qwen2", f"{HUB}OpenGVLab/VideoChat-Flash-Qwen2-7B_res448 modeling_videochat_flash.py"),
        ignored_fields=LLAVA_FIELDS | VIDEO_FIELDS,
    ),
    "llava_gemma": _llava_family("gemma", f"{LLAVA_NEXT}llava_gemma.py"),
    "bunny-phi": _llava_family("phi", f"{BUNNY}bunny_phi.py"),
    "bunny-phi3": _llava_family("phi3", f"{BUNNY}bunny_phi3.py"),
    "bunny-llama": _llava_family("llama", f"{BUNNY}bunny_llama.py"),
    "bunny-qwen2": _llava_family("qwen2", f"{BUNNY}bunny_qwen.py"),
    "logics": replace(
        _llava_family("qwen3", f"{HUB}Logics-MLLM/Logics-Thinking-8B modeling_logics.py"),
        generates_text=True,
        ignored_fields=LLAVA_FIELDS | {"siglip_config", "sliding_window", "max_window_layers", "use_sliding_window"},
    ),
    "phi4-siglip": replace(
        _llava_family("phi3", f"{GITHUB}Blaizzy/mlx-vlm/blob/main/mlx_vlm/models/phi4_siglip/language.py"),
        generates_text=True,
    ),
    "minicpmv": Family(
        _read_minicpmv,
        ignored_fields=MINICPM_FIELDS | {"vision_config"},
        tower_class_prefixes="MiniCPMV",
        tower_file="published_code",
        source=f"{VLLM}minicpmv.py",
    ),
    "minicpmo": Family(
        _read_minicpmo,
        uncounted_fields={"tts_config": "its speech decoder is not counted"},
        ignored_fields=MINICPM_FIELDS | {"vision_config", "audio_config"},
        tower_class_prefixes="MiniCPMO",
        tower_file="published_code",
        source=f"{VLLM}minicpmo.py",
    ),
    "dots_ocr": Family(
        None,
        text_type="qwen2",
        tying_source="text",
        ignored_fields=frozenset({"attention_bias", "vision_config"}),
        tower_class_prefixes="DotsOCR",
        tower_file="published_code",
        source=f"{VLLM}dots_ocr.py",
    ),
    "GOT": Family(
        None,
        text_type="qwen2",
        tying_source="text",
        uncounted_fields={"vision_tower": f"{UNCOUNTED_ENCODER_NOTE}: {{}}"},
        ignored_fields=frozenset({"image_token_len", "freeze_vision_tower", "use_im_start_end", "vision_select_layer"})
        | {"im_end_token", "im_patch_token", "im_start_token"},
        source=f"{GITHUB}Ucas-HaoranWei/GOT-OCR2.0/blob/main/GOT-OCR-2.0-master/GOT/model/GOT_ocr_2_0.py",
    ),
    **{
        kind: Family(
            None,
            text_type="qwen3",
            tying_source="text",
            ignored_fields=frozenset({"attention_bias", "vision_config"}),
            tower_file="published_code",
            source=f"{VLLM}{file}",
        )
        for kind, file in (("Keye", "keye.py"), ("KeyeVL1_5", "keye_vl1_5.py"))
    },
    "videollama3_qwen2": Family(
        None,
        text_type="qwen2",
        tying_source="text",
        uncounted_fields={"vision_encoder": f"{UNCOUNTED_ENCODER_NOTE}: {{}}"},
        tower_class_prefixes="Videollama3",
        tower_file="siglip",
        ignored_fields=LLAVA_FIELDS
        | field_names("mm_hidden_size image_size is_alignment mm_attn_implementation num_frames use_token_compression"),
        source=f"{GITHUB}DAMO-NLP-SG/VideoLLaMA3/blob/main/videollama3/model/videollama3_qwen2.py",
    ),
    **{
        kind: Family(
            _read_moondream,
            {"config": None, "text_config": None},
            ignored_fields=frozenset({"vision_config"}),
            generates_text=True,
            tower_class_prefixes="HfMoondream",
            tower_file="published_code",
            source=f"{GITHUB}vikhyat/moondream/blob/main/moondream/torch/text.py",
        )
        for kind in ("moondream1", "moondream2")
    },
    "isaac": Family(
        None,
        text_type="qwen3",
        tying_source="text",
        tower_file="published_code",
        ignored_fields=field_names("""
            pixel_shuffle_scale video_patch_size vision_attn_implementation vision_config vision_max_num_patches
            vision_min_num_patches vision_patch_size vision_rescale_factor vision_token
            """),
        source=f"{VLLM}isaac.py",
    ),
    "youtu_vl": Family(
        None,
        text_type="youtu",
        tying_source="text",
        uncounted_encoders={"vision_config": "siglip2"},
        source=f"{GITHUB}Blaizzy/mlx-vlm/blob/main/mlx_vlm/models/youtu_vl/language.py",
    ),
    "kimi_audio": Family(
        None,
        text_type="qwen2",
        tying_source="text",
        uncounted_fields={
            "kimia_mimo_layers": "the {} layers that give audio tokens, and their head, are not counted",
            "kimia_adaptor_input_dim": UNCOUNTED_ENCODER_NOTE,
        },
        ignored_fields=field_names("""
            kimia_audio_output_vocab kimia_media_begin kimia_media_end kimia_mimo_audiodelaytokens
            kimia_mimo_transformer_from_layer_index kimia_text_output_vocab kimia_token_offset num_audio_special_tokens
            num_base_tokens use_whisper_feature
            """),
        source=f"{GITHUB}MoonshotAI/Kimi-Audio modeling_moonshot_kimia.py",
    ),
    "phi4mm": Family(
        None,
        text_type="phi4_multimodal",
        tying_source="text",
        uncounted_fields={
            **dict.fromkeys(("img_processor", "audio_processor", "embd_layer"), UNCOUNTED_ENCODER_NOTE),
            **dict.fromkeys(("vision_lora", "speech_lora"), "its low-rank adapter is not counted"),
        },
        source=f"{HUB}microsoft/Phi-4-multimodal-instruct modeling_phi4mm.py",
    ),
}
