"""Small shapes of every wrapper with supported vision or audio encoders, and their modules in its class."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_DEPTH, COMMON_VISION

SIGLIP: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    **COMMON_VISION,
    "image_size": 24,
    "vision_use_head": False,
}
SIGLIP2 = {
    **{k: v for k, v in SIGLIP.items() if k != "image_size"},
    "model_type": "siglip2_vision_model",
    "num_patches": 30,
}
CLIP = {**{k: v for k, v in SIGLIP.items() if k != "vision_use_head"}, "model_type": "clip_vision_model"}
PADDLEOCR: dict[str, Any] = {
    **{k: v for k, v in SIGLIP.items() if k != "vision_use_head"},
    "model_type": "paddleocr_vl_vision",
}
EDGE: dict[str, Any] = {"model_type": "cosmos3_edge_vision", **COMMON_VISION, "num_patches": 36}
PIXTRAL: dict[str, Any] = {"model_type": "pixtral", **COMMON_VISION, "num_attention_heads": 2, "image_size": 28}
QWEN: dict[str, Any] = {**COMMON_DEPTH, "num_position_embeddings": 16, "out_hidden_size": 32}
GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_vision",
    **COMMON_VISION,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "position_embedding_size": 50,
}
UNIFIED: dict[str, Any] = {
    "model_type": "gemma4_unified_vision",
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "mm_embed_dim": 24,
    "mm_posemb_size": 9,
    "output_proj_dims": 24,
}
GEMMA4_AUDIO: dict[str, Any] = {
    "model_type": "gemma4_audio",
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "subsampling_conv_channels": [10, 6],
    "output_proj_dims": 28,
}
LLAMA4: dict[str, Any] = {
    "model_type": "llama4_vision_model",
    **COMMON_VISION,
    "intermediate_size": 96,
    "image_size": 24,
    "projector_input_dim": 40,
    "projector_output_dim": 40,
    "vision_output_dim": 40,
}
KIMI: dict[str, Any] = {
    "model_type": "kimi_k25_vision",
    **COMMON_VISION,
    "num_attention_heads": 2,
    "pos_emb_height": 6,
    "pos_emb_width": 6,
}
LFM3: dict[str, Any] = {**COMMON_VISION, "num_hidden_layers": 5, "num_key_value_heads": 2}
HUNYUAN: dict[str, Any] = {**COMMON_VISION, "max_image_size": 32}
OVIS: dict[str, Any] = {"model_type": "ovis2_vision", **COMMON_VISION, "image_size": 24, "vocab_size": 50}
ERNIE: dict[str, Any] = {"depth": 2, "hidden_size": 24, "intermediate_size": 20, "num_heads": 2, "patch_size": 4}
MINIMAX: dict[str, Any] = {**COMMON_VISION, "num_attention_heads": 2}
PHI4_VISION: dict[str, Any] = {**COMMON_VISION, "image_size": 24}
PHI4_AUDIO: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 20, "num_blocks": 2, "num_attention_heads": 4, "ext_pw_out_channel": 24,
    "depthwise_separable_out_channel": 24, "nemo_conv_channels": 6, "bias_max_distance": 9, "input_size": 21,
}  # fmt: skip

EMU3: dict[str, Any] = {
    "codebook_size": 40, "embed_dim": 4, "latent_channels": 4, "base_channels": 32, "channel_multiplier": [1, 2],
    "num_res_blocks": 1, "attn_resolutions": [1], "hidden_size": 64,
}  # fmt: skip
VOCABULARY_MAP = {"<image>": 9, "<|extra_200|>": 10, **{f"<|visual token {i:06}|>": 11 + i for i in range(40)}}

MUSE: dict[str, Any] = {**COMMON_VISION, "num_hidden_layers": 5, "pos_emb_height": 3, "pos_emb_width": 3}
MUSE_PROJECTOR = {"out_hidden_size": 96, "projector_hidden_size": 40}
MUSE_PLACES = {name: (name,) for name in ("vision_tower", "vision_adapter", "vision_projection")}

BOXES: dict[str, Any] = {"coordinate_size": 6, "shape_size": 4, "rel_pos_bins": 8, "num_key_value_heads": None}

GLM: dict[str, Any] = {**COMMON_DEPTH, "image_size": 24, "out_hidden_size": 32}
GLM_PLACES = {"visual": ("visual", "visual_downsample", "visual_merger", "visual_network")}
GLM_SHAPES: list[dict[str, Any]] = [
    {"vision_config": GLM},
    {
        "vision_config": {
            **GLM,
            "attention_bias": True,
            "in_channels": 1,
            "spatial_merge_size": 3,
            "temporal_patch_size": 1,
        }
    },
]

QWEN_2_5 = {k: v for k, v in QWEN.items() if k != "num_position_embeddings"}
OMNI_AUDIO: dict[str, Any] = {
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "num_mel_bins": 9,
    "output_dim": 32,
}
QWEN3_AUDIO = {**OMNI_AUDIO, "n_window_infer": 200, "downsample_hidden_size": 6}
"""Its class requires chunks of 100 frames, the default of `n_window`."""
VIDEO_LLAMA = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 4,
}
INTERNVL = {**COMMON_VISION, "image_size": 24}
WHISPER = {
    "hidden_size": 24,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_mel_bins": 10,
    "max_source_positions": 12,
}
GLMASR = {name: size for name, size in WHISPER.items() if name != "max_source_positions"}
RADIO: dict[str, Any] = {
    **{name: size for name, size in COMMON_VISION.items() if name != "intermediate_size"},
    "max_img_size": 24,
    "video_temporal_patch_size": 2,
}
PARAKEET: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "num_mel_bins": 16,
    "subsampling_conv_channels": 6, "projection_hidden_size": 20, "projection_bias": False,
}  # fmt: skip
CHAMELEON: dict[str, Any] = {
    "embed_dim": 8, "num_embeddings": 12, "latent_channels": 6, "resolution": 16, "base_channels": 32,
    "channel_multiplier": [1, 1], "num_res_blocks": 1,
}  # fmt: skip
CHAMELEON_WORDS = {
    "<image>": 7,
    **{f"IMGIMG{''.join('ABCDEFGHIJ'[int(digit)] for digit in str(code))}Z": 8 + code for code in range(12)},
}
"""A word of the vocabulary for each code, whose letters are its decimal digits."""
JANUS: dict[str, Any] = {
    **{name: size for name, size in COMMON_VISION.items() if name != "intermediate_size"},
    "image_size": 24, "projection_dim": 32, "num_image_tokens": 36,
}  # fmt: skip
JANUS_TOKENIZER: dict[str, Any] = {
    "num_embeddings": 40, "embed_dim": 4, "latent_channels": 6, "base_channels": 32,
    "channel_multiplier": [1, 1, 1, 1, 2], "num_res_blocks": 1, "projection_dim": 32, "image_token_embed_dim": 32,
}  # fmt: skip
SAM: dict[str, Any] = {
    **{name: size for name, size in COMMON_VISION.items() if name != "intermediate_size"},
    "num_attention_heads": 2, "image_size": 24, "mlp_dim": 20, "output_channels": 6, "window_size": 4,
    "global_attn_indexes": [1],
}  # fmt: skip
DOCLING: dict[str, Any] = {
    **COMMON_VISION, "image_size": 48, "out_hidden_size": 32, "scale_factor": 2, "deepstack_visual_indexes": [0, 1],
}  # fmt: skip
PAGE: dict[str, Any] = {
    "hidden_size": 24, "patch_embed_hidden_size": 12, "intermediate_size": 20, "head_dim": 6, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_num_patches": 9,
}  # fmt: skip
PIX2STRUCT: dict[str, Any] = {
    "hidden_size": 32, "patch_embed_hidden_size": 12, "d_ff": 20, "d_kv": 6, "num_hidden_layers": 2,
    "num_attention_heads": 4, "seq_len": 9,
}  # fmt: skip
DAVIT: dict[str, Any] = {
    "model_type": "florence_vision", "depths": [1, 2], "patch_size": [7, 3], "patch_stride": [4, 2],
    "patch_padding": [3, 1], "patch_prenorm": [False, True], "embed_dim": [8, 12], "num_heads": [2, 3],
    "num_groups": [4, 2], "window_size": 4, "projection_dim": 32, "max_position_embeddings": 100,
    "max_temporal_embeddings": 5,
}  # fmt: skip
FORMULA = {**SAM, "post_conv_in_channels": 6, "post_conv_mid_channels": 8, "post_conv_out_channels": 10} | {
    "decoder_hidden_size": 32
}
OCR_SAM = {**SAM, "image_size": 32, "downsample_channels": [10, 24]}
OCR_CLIP: dict[str, Any] = {**CLIP, "model_type": "unlimited_ocr_vision_encoder"}
OCR_QUERIES = {name: size for name, size in COMMON_VISION.items() if name != "patch_size"} | {"num_key_value_heads": 2}
SAM_OF_MODEL = {**SAM, "model_type": "sam_vision_model", "qkv_bias": False}
IDEFICS2 = {name: size for name, size in CLIP.items() if name != "model_type"}
PERCEIVER = {
    "hidden_size": 32, "resampler_n_latents": 3, "resampler_depth": 2, "resampler_n_heads": 4,
    "resampler_head_dim": 6, "num_key_value_heads": 2,
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "input_dim": 8, "num_layers": 3, "hidden_dim": 24, "num_heads": 2, "feedforward_mult": 2, "output_dim": 7,
    "context_size": 10, "max_pos_emb": 12, "conv_kernel_size": 5,
}  # fmt: skip
QFORMER: dict[str, Any] = {
    "hidden_size": 20, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 12,
    "encoder_hidden_size": 24, "model_type": "blip_2_qformer",
}  # fmt: skip
QFORMER_OF_TEXT = {name: size for name, size in QFORMER.items() if name != "model_type"}
GIT = {"max_position_embeddings": 64, "num_key_value_heads": None}
BLIP = {**COMMON_VISION, "model_type": "blip_2_vision_model"}
BLIP_1 = {"model_type": "blip_vision_model", "image_size": 16}
GRANITE_PLACES = {"encoder": ("audio_encoder",), "projector": ("projector",)}
GRANITE_SHAPES: list[dict[str, Any]] = [
    {"encoder_config": GRANITE, "projector_config": QFORMER},
    {
        "encoder_config": {**GRANITE, "num_layers": 1, "conv_kernel_size": 4, "dim_head": 5},
        "projector_config": {**QFORMER, "cross_attention_frequency": 1, "num_hidden_layers": 1},
        "window_size": 6,
        "downsample_rate": 2,
    },
]
MINICPM: dict[str, Any] = {**COMMON_VISION, "image_size": 24}
FUN_ASR: dict[str, Any] = {
    "num_mel_bins": 4, "num_stacked_frames": 3, "hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 20,
    "num_hidden_layers": 4, "num_timestamp_prediction_layers": 2,
}  # fmt: skip
ADAPTOR: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2,
    "projector_hidden_size": 20,
}  # fmt: skip
CONVNEXT: dict[str, Any] = {
    "hidden_size": 10, "kernel_size": 3, "num_filters": 4, "downsampling_ratios": [2, 3], "depths": [1, 2, 1],
    "ffn_expansion": 2, "model_type": "vibevoice_acoustic_tokenizer_encoder",
}  # fmt: skip
DIFFUSION_HEAD = {"num_hidden_layers": 2, "intermediate_size": 20, "frequency_embedding_size": 6}


def transcribe_sections(num_speakers: int, upsampling_factor: int) -> dict[str, Any]:
    """Returns the sections of Nemotron 3.5 Transcribe's encoders."""
    layers = {"intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "num_mel_bins": 6}
    head = {"hidden_size": 12, "num_speakers": num_speakers, "audio_hidden_size": 16, "subsampling_factor": 4}
    diarization = {
        "audio_config": {**layers, "hidden_size": 16, "subsampling_factor": 4},
        "head_config": head,
        "streaming_config": {"num_speakers": num_speakers, "subsampling_factor": 4},
    }
    speech = {**layers, "hidden_size": 32, "subsampling_factor": 4}
    timestamps = {**layers, "hidden_size": 32, "vocab_size": 40, "blank_token_id": 39, "num_hidden_layers": 1}
    del timestamps["num_mel_bins"]
    return {
        "audio_config": {"asr_config": speech, "diarization_config": diarization},
        "word_timestamp_config": {**timestamps, "upsampling_factor": upsampling_factor},
    }


WHISPER_NAMES = {"d_model": 32, "encoder_ffn_dim": 20, "encoder_layers": 1, "encoder_attention_heads": 2}
AUDIO_AND_PROJECTOR = {"audio_tower": ("audio_tower",), "multi_modal_projector": ("multi_modal_projector",)}
TOWER_AND_PROJECTOR = {"vision_tower": ("vision_tower",), "multi_modal_projector": ("multi_modal_projector",)}
VISUAL = {"visual": ("visual", "visual_merger")}
SEEN_AND_HEARD = {
    "vision_tower": ("vision_tower",),
    "embed_vision": ("embed_vision",),
    "audio_tower": ("audio_tower",),
    "embed_audio": ("embed_audio",),
}

Shapes = tuple[str, dict[str, tuple[str, ...]], list[dict[str, Any]]]

WRAPPERS: dict[str, Shapes] = {
    "gemma3": (
        "Gemma3ForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {"vision_config": SIGLIP, "mm_tokens_per_image": 9},
            {
                "vision_config": {**SIGLIP, "vision_use_head": True, "num_channels": 1, "num_hidden_layers": 3},
                "mm_tokens_per_image": 4,
            },
            {"vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 1}, "mm_tokens_per_image": 49},
        ],
    ),
    "shieldgemma2": (
        "Gemma3ForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {"vision_config": SIGLIP, "mm_tokens_per_image": 9},
            {"vision_config": {**SIGLIP, "hidden_size": 32}, "mm_tokens_per_image": 4},
        ],
    ),
    "paligemma": (
        "PaliGemmaForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {"vision_config": SIGLIP, "projection_dim": 32},
            {"vision_config": {**SIGLIP, "hidden_size": 32, "patch_size": 8}, "projection_dim": 40},
        ],
    ),
    "aya_vision": (
        "AyaVisionForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {"vision_config": SIGLIP},
            {
                "vision_config": SIGLIP,
                "downsample_factor": 3,
                "alignment_intermediate_size": 44,
                "adapter_layer_norm_eps": 1e-5,
            },
        ],
    ),
    "cohere2_vision": (
        "Cohere2VisionForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {"vision_config": {**SIGLIP, "vision_use_head": True}, "alignment_intermediate_size": 44},
            {"vision_config": SIGLIP, "alignment_intermediate_size": 38, "downsample_factor": 1},
        ],
    ),
    "lfm2_vl": (
        "Lfm2VlForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {"vision_config": SIGLIP2, "projector_hidden_size": 44},
            {
                "vision_config": {**SIGLIP2, "vision_use_head": True},
                "projector_hidden_size": 30,
                "projector_use_layernorm": False,
                "projector_bias": False,
                "downsample_factor": 3,
            },
        ],
    ),
    "gemma4": (
        "Gemma4ForConditionalGeneration",
        SEEN_AND_HEARD,
        [
            {"vision_config": GEMMA4, "audio_config": None},
            {"vision_config": {**GEMMA4, "use_clipped_linears": True, "standardize": True, "head_dim": 4}},
            {"vision_config": GEMMA4, "audio_config": GEMMA4_AUDIO},
            {
                "vision_config": None,
                "audio_config": {
                    **GEMMA4_AUDIO,
                    "use_clipped_linears": False,
                    "conv_kernel_size": 3,
                    "hidden_act": "gelu",
                },
            },
        ],
    ),
    "embedding_gemma2": (
        "EmbeddingGemma2Model",
        SEEN_AND_HEARD,
        [
            {"vision_config": GEMMA4, "audio_config": GEMMA4_AUDIO},
            {"vision_config": {**GEMMA4, "standardize": True, "head_dim": 4}, "audio_config": None},
        ],
    ),
    "diffusion_gemma": (
        "DiffusionGemmaForBlockDiffusion",
        {"encoder.vision_tower": ("vision_tower",), "encoder.embed_vision": ("embed_vision",)},
        [{"vision_config": GEMMA4}, {"vision_config": {**GEMMA4, "standardize": True, "head_dim": 4}}],
    ),
    "gemma4_unified": (
        "Gemma4UnifiedForConditionalGeneration",
        {"embed_vision": ("vision_embedder", "embed_vision"), "embed_audio": ("embed_audio",)},
        [
            {"vision_config": UNIFIED, "audio_config": None},
            {
                "vision_config": {**UNIFIED, "pooling_kernel_size": 1, "mm_embed_dim": 28, "output_proj_dims": 28},
                "audio_config": {"model_type": "gemma4_unified_audio", "audio_embed_dim": 26},
            },
        ],
    ),
    "fuyu": (
        "FuyuForCausalLM",
        {"vision_embed_tokens": ("vision_embed_tokens",)},
        [{"patch_size": 4}, {"patch_size": 6, "num_channels": 1}],
    ),
    "layoutlmv3": (
        "LayoutLMv3Model",
        {"patch_embed + cls_token + pos_embed + norm + LayerNorm": ("vision_embeddings",)},
        [
            {**BOXES, "patch_size": 4, "input_size": 16},
            {**BOXES, "patch_size": 6, "input_size": 20, "num_channels": 1},
        ],
    ),
    "mistral3": (
        "Mistral3ForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {"vision_config": PIXTRAL},
            {
                "vision_config": {**PIXTRAL, "num_channels": 1},
                "multimodal_projector_bias": True,
                "spatial_merge_size": 3,
            },
        ],
    ),
    "mistral_large4": (
        "MistralLarge4ForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [{"vision_config": PIXTRAL}, {"vision_config": {**PIXTRAL, "num_channels": 1}, "spatial_merge_size": 3}],
    ),
    "llama4": (
        "Llama4ForConditionalGeneration",
        {"vision_model": ("vision_model", "vision_adapter"), "multi_modal_projector": ("multi_modal_projector",)},
        [
            {"vision_config": LLAMA4},
            {
                "vision_config": {
                    **LLAMA4,
                    "image_size": 16,
                    "num_channels": 1,
                    "pixel_shuffle_ratio": 0.25,
                    "intermediate_size": 384,
                }
            },
        ],
    ),
    "lfm3_vl": (
        "Lfm3VlForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {"vision_config": LFM3, "projector_hidden_size": 44},
            {
                "vision_config": {
                    **LFM3,
                    "layer_types": ["full_attention", "conv", "conv", "full_attention", "conv"],
                    "conv_kernel_size": 5,
                    "in_channels": 1,
                },
                "projector_hidden_size": 44,
                "projector_bias": False,
            },
            {
                "vision_config": {
                    **LFM3,
                    "layer_types": ["conv"] * 5,
                    "temporal_patch_size": 1,
                    "spatial_merge_size": 3,
                },
                "projector_hidden_size": 30,
            },
        ],
    ),
    "hunyuan_vl": (
        "HunYuanVLForConditionalGeneration",
        {"vision_tower": ("vision_tower", "vision_merger", "vision_projector")},
        [
            {"vision_config": HUNYUAN},
            {"vision_config": {**HUNYUAN, "spatial_merge_size": 3, "num_channels": 1, "max_image_size": 31}},
        ],
    ),
    "qwen2_vl": (
        "Qwen2VLForConditionalGeneration",
        VISUAL,
        [
            {"vision_config": {"depth": 2, "embed_dim": 24, "hidden_size": 32, "num_heads": 2, "patch_size": 4}},
            {
                "vision_config": {
                    "model_type": "qwen2_vl",
                    "depth": 3,
                    "embed_dim": 36,
                    "hidden_size": 40,
                    "num_heads": 3,
                    "patch_size": 4,
                    "mlp_ratio": 2,
                    "in_channels": 1,
                    "spatial_merge_size": 3,
                }
            },
        ],
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLForConditionalGeneration",
        VISUAL,
        [
            {"vision_config": {k: v for k, v in QWEN.items() if k != "num_position_embeddings"}},
            {
                "vision_config": {
                    "model_type": "qwen2_5_vl",
                    **{k: v for k, v in QWEN.items() if k != "num_position_embeddings"},
                    "out_hidden_size": 40,
                    "fullatt_block_indexes": [1],
                    "window_size": 16,
                    "temporal_patch_size": 1,
                }
            },
        ],
    ),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        {"visual": ("visual", "visual_merger", "visual_deepstack_0", "visual_deepstack_1")},
        [
            {"vision_config": {**QWEN, "deepstack_visual_indexes": [0, 1]}},
            {"vision_config": {**QWEN, "depth": 3, "deepstack_visual_indexes": []}},
        ],
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoeForConditionalGeneration",
        {"visual": ("visual", "visual_merger", "visual_deepstack_0", "visual_deepstack_1")},
        [
            {"vision_config": {**QWEN, "deepstack_visual_indexes": [0, 1]}},
            {"vision_config": {**QWEN, "deepstack_visual_indexes": [1], "in_channels": 1}},
        ],
    ),
    "cohere_compass": (
        "CohereCompassForConditionalGeneration",
        {"visual": ("visual", "visual_merger", "visual_deepstack_0", "visual_deepstack_1")},
        [
            {"vision_config": {**QWEN, "deepstack_visual_indexes": [0, 1]}},
            {
                "vision_config": {
                    **QWEN,
                    "model_type": "cohere_compass",
                    "depth": 3,
                    "in_channels": 1,
                    "deepstack_visual_indexes": [],
                }
            },
        ],
    ),
    "qwen3_5": (
        "Qwen3_5ForConditionalGeneration",
        VISUAL,
        [
            {"vision_config": {"model_type": "qwen3_5", **QWEN}},
            {
                "vision_config": {
                    **QWEN,
                    "in_channels": 1,
                    "temporal_patch_size": 1,
                    "spatial_merge_size": 3,
                    "depth": 1,
                }
            },
        ],
    ),
    "qwen3_5_moe": (
        "Qwen3_5MoeForConditionalGeneration",
        VISUAL,
        [
            {"vision_config": {"model_type": "qwen3_5_moe", **QWEN}},
            {"vision_config": {**QWEN, "out_hidden_size": 40, "deepstack_visual_indexes": []}},
        ],
    ),
    "qwen4_exp": (
        "Qwen4ExpForConditionalGeneration",
        VISUAL,
        [
            {"vision_config": {"model_type": "qwen4_exp_vision", **QWEN}},
            {"vision_config": {**QWEN, "out_hidden_size": 40}},
        ],
    ),
    "kimi_k25": (
        "Kimi_K25ForConditionalGeneration",
        {"vision_tower": ("vision_tower",), "mm_projector": ("mm_projector",)},
        [
            {"vision_config": KIMI, "projection_hidden_size": 24},
            {"vision_config": {**KIMI, "merge_kernel_size": [3, 3], "pos_emb_width": 5}, "projection_hidden_size": 24},
        ],
    ),
    "ernie4_5_vl_moe": (
        "Ernie4_5_VLMoeForConditionalGeneration",
        {
            "vision_tower": ("vision_tower",),
            "resampler_model": ("resampler_spatial", "resampler_temporal", "resampler_out"),
        },
        [
            {"vision_config": ERNIE},
            {"vision_config": {**ERNIE, "spatial_merge_size": 3, "in_channels": 1, "rms_norm_eps": 1e-5}},
        ],
    ),
    "minimax_m3_vl": (
        "MiniMaxM3SparseForConditionalGeneration",
        {"vision_tower": ("vision_tower",), "multi_modal_projector": ("multi_modal_projector", "multi_modal_merger")},
        [
            {"vision_config": MINIMAX, "projector_hidden_size": 44},
            {
                "vision_config": {**MINIMAX, "num_channels": 1, "spatial_merge_size": 3, "temporal_patch_size": 1},
                "projector_hidden_size": 30,
            },
            {
                "vision_config": {
                    **MINIMAX,
                    "model_type": "clip_vision_model",
                    "rope_mode": "3d",
                    "img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2},
                },
            },
        ],
    ),
    "glm4v": ("Glm4vForConditionalGeneration", GLM_PLACES, GLM_SHAPES),
    "glm_ocr": ("GlmOcrForConditionalGeneration", GLM_PLACES, GLM_SHAPES),
    "glm5_next": (
        "Glm5NextForConditionalGeneration",
        GLM_PLACES,
        [{"vision_config": {**shape["vision_config"], "projection_intermediate_size": 10}} for shape in GLM_SHAPES],
    ),
    "glm4v_moe": ("Glm4vMoeForConditionalGeneration", GLM_PLACES, GLM_SHAPES),
    "llava": (
        "LlavaForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {"vision_config": CLIP, "vision_feature_layer": [-2, 0]},
            {"vision_config": PIXTRAL, "multimodal_projector_bias": False},
            {"vision_config": {**SIGLIP, "vision_use_head": True}},
        ],
    ),
    "llava_next": (
        "LlavaNextForConditionalGeneration",
        {"vision_tower": ("vision_tower",), "multi_modal_projector + image_newline": ("multi_modal_projector",)},
        [
            {"vision_config": CLIP},
            {"vision_config": {**CLIP, "num_channels": 1, "patch_size": 8}, "multimodal_projector_bias": False},
        ],
    ),
    "llava_onevision": (
        "LlavaOnevisionForConditionalGeneration",
        {"vision_tower": ("vision_tower",), "multi_modal_projector + image_newline": ("multi_modal_projector",)},
        [{"vision_config": SIGLIP}, {"vision_config": CLIP}],
    ),
    "idefics2": (
        "Idefics2ForConditionalGeneration",
        {"vision_model": ("vision_model",), "connector": ("connector_projection", "connector")},
        [
            {"vision_config": IDEFICS2, "perceiver_config": PERCEIVER},
            {
                "vision_config": {**IDEFICS2, "num_channels": 1, "hidden_act": "relu"},
                "perceiver_config": {**PERCEIVER, "num_key_value_heads": 4, "resampler_depth": 1},
            },
        ],
    ),
    "idefics3": (
        "Idefics3ForConditionalGeneration",
        {"vision_model": ("vision_model",), "connector": ("connector",)},
        [
            {"vision_config": {**CLIP, "model_type": "idefics3"}, "scale_factor": 3},
            {"vision_config": {**CLIP, "model_type": "idefics3_vision"}},
        ],
    ),
    "aria": (
        "AriaForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {
                "vision_config": {**CLIP, "model_type": "idefics3_vision"},
                "projector_patch_to_query_dict": {"9": 3, "36": 5},
            },
            {"vision_config": {**CLIP, "model_type": "idefics3_vision", "num_channels": 1, "hidden_act": "relu"}},
        ],
    ),
    "emu3": (
        "Emu3ForConditionalGeneration",
        {"vqmodel": ("image_tokenizer",)},
        [
            {"vocabulary_map": VOCABULARY_MAP, "vq_config": EMU3},
            {
                "vocabulary_map": VOCABULARY_MAP,
                "vq_config": {**EMU3, "channel_multiplier": [1, 1, 2], "attn_resolutions": [5], "in_channels": 1}
                | {"num_res_blocks": 2, "temporal_downsample_factor": 2, "num_attention_heads": 2},
            },
        ],
    ),
    "janus": (
        "JanusForConditionalGeneration",
        {
            "vision_model": ("vision_model",),
            "aligner": ("aligner",),
            "vqmodel + generation_embeddings + generation_aligner + generation_head": ("image_tokenizer",),
        },
        [
            {"vision_config": JANUS, "vq_config": JANUS_TOKENIZER},
            {
                "vision_config": {**JANUS, "attention_bias": False, "mlp_ratio": 2.5, "depth": 3, "num_channels": 1},
                "vq_config": {**JANUS_TOKENIZER, "channel_multiplier": [1], "num_res_blocks": 2, "in_channels": 1}
                | {"num_hidden_layers": 3},
            },
        ],
    ),
    "chameleon": (
        "ChameleonForConditionalGeneration",
        {"vqmodel": ("image_tokenizer",)},
        [
            {"vq_config": CHAMELEON, "vocabulary_map": CHAMELEON_WORDS},
            {
                "vq_config": {**CHAMELEON, "channel_multiplier": [1, 2], "in_channels": 1, "attn_resolutions": [8]},
                "vocabulary_map": CHAMELEON_WORDS,
            },
        ],
    ),
    "muse_glimmer": (
        "MuseGlimmerForConditionalGeneration",
        MUSE_PLACES,
        [
            {"vision_config": MUSE, **MUSE_PROJECTOR},
            {
                "vision_config": {
                    **MUSE,
                    "num_hidden_layers": 3,
                    "patch_temporal": 1,
                    "merge_size": 1,
                    "layer_types": ["full_attention", "window_attention", "window_attention"],
                },
                "out_hidden_size": 24,
                "projector_hidden_act": "silu",
            },
        ],
    ),
    **{
        kind: (
            f"{name}ForMaskedLM",
            {"vision_model": ("vision_model",), "connector": ("connector",)},
            [
                {"vision_config": SIGLIP, "pixel_shuffle_factor": 2},
                {"vision_config": {**SIGLIP, "vision_use_head": True, "num_hidden_layers": 3}},
            ],
        )
        for kind, name in (("modernvbert", "ModernVBert"), ("ultravbert", "UltraVBert"))
    },
    "mllama": (
        "MllamaForConditionalGeneration",
        {"vision_model": ("vision_model",), "multi_modal_projector": ("multi_modal_projector",)},
        [
            {
                "vision_config": {
                    **COMMON_VISION,
                    "image_size": 24,
                    "num_global_layers": 3,
                    "intermediate_layers_indices": [0, 1],
                    "vision_output_dim": 72,
                }
            },
            {
                "vision_config": {
                    **COMMON_VISION,
                    "image_size": 24,
                    "num_hidden_layers": 3,
                    "num_channels": 1,
                    "num_global_layers": 1,
                    "intermediate_layers_indices": [2],
                    "vision_output_dim": 48,
                    "max_num_tiles": 2,
                    "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
                }
            },
        ],
    ),
    "step3p7": (
        "Step3p7ForConditionalGeneration",
        {
            "vision_model": ("vision_model", "vision_downsampler"),
            "multi_modal_projector": ("multi_modal_projector",),
        },
        [
            {"vision_config": {**COMMON_VISION, "image_size": 24}},
            {
                "vision_config": {"width": 24, "layers": 3, "heads": 2, "mlp_ratio": 1.5, "image_size": 56},
                "projector_bias": True,
            },
        ],
    ),
    "smolvlm": (
        "SmolVLMForConditionalGeneration",
        {"vision_model": ("vision_model",), "connector": ("connector",)},
        [
            {"vision_config": {**CLIP, "model_type": "smolvlm_vision"}, "scale_factor": 4},
            {"vision_config": {**CLIP, "model_type": "smolvlm"}},
        ],
    ),
    "internvl": (
        "InternVLForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {"vision_config": {**COMMON_VISION, "image_size": [24, 24], "patch_size": [4, 4]}},
            {
                "vision_config": {
                    **COMMON_VISION,
                    "image_size": 24,
                    "attention_bias": True,
                    "use_qk_norm": True,
                    "norm_type": "rms_norm",
                    "use_mean_pooling": False,
                    "use_absolute_position_embeddings": False,
                },
                "downsample_ratio": 0.25,
            },
        ],
    ),
    "qwen2_audio": (
        "Qwen2AudioForConditionalGeneration",
        {"audio_tower": ("audio_tower",), "multi_modal_projector": ("multi_modal_projector",)},
        [
            {
                "audio_config": {
                    "d_model": 24,
                    "encoder_ffn_dim": 20,
                    "encoder_layers": 2,
                    "encoder_attention_heads": 4,
                    "num_mel_bins": 10,
                    "max_source_positions": 12,
                }
            },
            {
                "audio_config": {
                    "model_type": "qwen2_audio_encoder",
                    "d_model": 32,
                    "encoder_ffn_dim": 20,
                    "encoder_layers": 1,
                    "encoder_attention_heads": 2,
                }
            },
        ],
    ),
    "voxtral": (
        "VoxtralForConditionalGeneration",
        {"audio_tower": ("audio_tower",), "multi_modal_projector": ("multi_modal_projector",)},
        [
            {
                "audio_config": {
                    "hidden_size": 24,
                    "intermediate_size": 96,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "num_mel_bins": 10,
                    "max_source_positions": 12,
                }
            },
            {
                "audio_config": {
                    "hidden_size": 32,
                    "intermediate_size": 64,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                }
            },
        ],
    ),
    "llava_next_video": (
        "LlavaNextVideoForConditionalGeneration",
        {"vision_tower": ("vision_tower",), "multi_modal_projector + image_newline": ("multi_modal_projector",)},
        [{"vision_config": CLIP}, {"vision_config": SIGLIP, "multimodal_projector_bias": False}],
    ),
    "video_llava": (
        "VideoLlavaForConditionalGeneration",
        {
            "image_tower": ("image_tower",),
            "video_tower": ("video_tower",),
            "multi_modal_projector": ("multi_modal_projector",),
        },
        [{"vision_config": CLIP}, {"vision_config": {**CLIP, "patch_size": 8}, "multimodal_projector_bias": False}],
    ),
    "vipllava": (
        "VipLlavaForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {"vision_config": CLIP, "vision_feature_layer": [-2, -1, 1]},
            {"vision_config": SIGLIP, "vision_feature_layer": -1},
        ],
    ),
    "deepseek_vl": (
        "DeepseekVLForConditionalGeneration",
        {"vision_model": ("vision_model",), "aligner": ("aligner",)},
        [{"vision_config": SIGLIP}, {"vision_config": {**SIGLIP, "vision_use_head": True, "num_channels": 1}}],
    ),
    "ovis2": (
        "Ovis2ForConditionalGeneration",
        {
            "vision_tower": ("vision_tower", "visual_head"),
            "visual_embeddings_table": ("visual_embeddings_table",),
        },
        [
            {"hidden_size": 32, "vocab_size": 96, "vision_config": {**OVIS, "hidden_stride": 2}},
            {
                "hidden_size": 32,
                "vocab_size": 96,
                "vision_config": {**OVIS, "qkv_bias": True, "mlp_bias": True, "num_visual_indicator_tokens": 3},
            },
        ],
    ),
    "qianfan_ocr": (
        "QianfanOCRForConditionalGeneration",
        TOWER_AND_PROJECTOR,
        [
            {"vision_config": {**INTERNVL, "image_size": [24, 24], "patch_size": [4, 4]}},
            {
                "vision_config": {**INTERNVL, "attention_bias": False, "use_qk_norm": True, "use_mean_pooling": False},
                "downsample_ratio": 0.25,
            },
        ],
    ),
    "paddleocr_vl": (
        "PaddleOCRVLForConditionalGeneration",
        {"visual": ("visual",), "projector": ("projector",)},
        [
            {"vision_config": PADDLEOCR},
            {"vision_config": {**PADDLEOCR, "model_type": "paddleocr_vl", "spatial_merge_size": 3, "num_channels": 1}},
        ],
    ),
    "video_llama_3": (
        "VideoLlama3ForConditionalGeneration",
        {"vision_model": ("vision_model",), "projector": ("projector",)},
        [
            {"vision_config": VIDEO_LLAMA},
            {"vision_config": {**VIDEO_LLAMA, "num_hidden_layers": 3, "num_channels": 1, "patch_size": 8}},
        ],
    ),
    "lighton_ocr": (
        "LightOnOcrForConditionalGeneration",
        {"vision_encoder": ("vision_encoder",), "vision_projection": ("vision_projection",)},
        [{"vision_config": PIXTRAL}, {"vision_config": {**PIXTRAL, "num_channels": 1}, "spatial_merge_size": 3}],
    ),
    "exaone4_5": (
        "Exaone4_5_ForConditionalGeneration",
        VISUAL,
        [
            {"vision_config": {**QWEN_2_5, "num_key_value_heads": 1}},
            {"vision_config": {**QWEN_2_5, "num_key_value_heads": 2, "out_hidden_size": 40, "spatial_merge_size": 3}},
        ],
    ),
    "hyperclovax_vision_v2": (
        "HyperCLOVAXVisionV2ForConditionalGeneration",
        {"vision_model": ("vision_model", "vision_merger"), "projector": ("projector",)},
        [
            {"vision_config": {"model_type": "qwen2_5_vl_vision", **QWEN_2_5, "out_hidden_size": 40}},
            {"vision_config": {"model_type": "qwen2_5_vl", **QWEN_2_5, "in_channels": 1, "depth": 3}},
        ],
    ),
    "cosmos3_edge": (
        "Cosmos3EdgeForConditionalGeneration",
        {"visual": ("visual",), "projector": ("projector",)},
        [
            {"vision_config": EDGE, "projector_hidden_size": 20},
            {
                "vision_config": {**EDGE, "num_channels": 1, "spatial_merge_size": 3, "hidden_act": "relu"},
                "projector_hidden_size": 12,
            },
        ],
    ),
    "cosmos3_omni": (
        "Cosmos3OmniForConditionalGeneration",
        {"visual": ("visual", "visual_merger", "visual_deepstack_0", "visual_deepstack_1")},
        [
            {"vision_config": {**QWEN, "deepstack_visual_indexes": [0, 1]}},
            {"vision_config": {"model_type": "qwen3_vl", **QWEN, "depth": 3, "deepstack_visual_indexes": []}},
        ],
    ),
    "glm46v": ("Glm46VForConditionalGeneration", GLM_PLACES, GLM_SHAPES),
    "glmga": ("Glm46VForConditionalGeneration", GLM_PLACES, GLM_SHAPES),
    "audioflamingo3": (
        "AudioFlamingo3ForConditionalGeneration",
        AUDIO_AND_PROJECTOR,
        [{"audio_config": WHISPER}, {"audio_config": WHISPER_NAMES, "projector_bias": False}],
    ),
    "musicflamingo": (
        "MusicFlamingoForConditionalGeneration",
        AUDIO_AND_PROJECTOR,
        [
            {"audio_config": {"model_type": "audioflamingo3_encoder", **WHISPER}},
            {"audio_config": {"model_type": "musicflamingo_encoder", **WHISPER_NAMES}, "projector_bias": False},
        ],
    ),
    "moss_transcribe_diarize": (
        "MossTranscribeDiarizeForConditionalGeneration",
        AUDIO_AND_PROJECTOR,
        [{"audio_config": WHISPER}, {"audio_config": WHISPER_NAMES, "projector_bias": False, "audio_merge_size": 3}],
    ),
    "qwen2_5_omni_thinker": (
        "Qwen2_5OmniThinkerForConditionalGeneration",
        {"visual": ("visual", "visual_merger"), "audio_tower": ("audio_tower", "audio_projector")},
        [
            {
                "vision_config": {**QWEN_2_5, "window_size": 16, "fullatt_block_indexes": [1]},
                "audio_config": {**OMNI_AUDIO, "max_source_positions": 50, "n_window": 5},
            },
            {
                "vision_config": {**QWEN_2_5, "window_size": 16},
                "audio_config": {**OMNI_AUDIO, "max_source_positions": 100, "activation_function": "relu"},
            },
        ],
    ),
    "qwen3_omni_moe_thinker": (
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        {
            "visual": ("visual", "visual_merger", "visual_deepstack_0"),
            "audio_tower": ("audio_tower", "audio_projector"),
        },
        [
            {"vision_config": {**QWEN, "deepstack_visual_indexes": [0]}, "audio_config": QWEN3_AUDIO},
            {
                "vision_config": {**QWEN, "in_channels": 1, "deepstack_visual_indexes": [1]},
                "audio_config": {**QWEN3_AUDIO, "num_mel_bins": 12, "encoder_attention_heads": 3},
            },
        ],
    ),
    "qwen3_asr": (
        "Qwen3ASRForConditionalGeneration",
        {"audio_tower": ("audio_tower",), "multi_modal_projector": ("audio_projector",)},
        [{"audio_config": QWEN3_AUDIO}, {"audio_config": {**QWEN3_AUDIO, "activation_function": "relu"}}],
    ),
    "glmasr": (
        "GlmAsrForConditionalGeneration",
        AUDIO_AND_PROJECTOR,
        [
            {"audio_config": GLMASR},
            {"audio_config": {**GLMASR, "intermediate_size": 48, "num_key_value_heads": 2, "hidden_act": "silu"}},
        ],
    ),
    "voxtral_realtime": (
        "VoxtralRealtimeForConditionalGeneration",
        AUDIO_AND_PROJECTOR,
        [
            {"audio_config": {**GLMASR, "head_dim": 6}},
            {"audio_config": {**GLMASR, "head_dim": 8}, "downsample_factor": 2},
        ],
    ),
    "nemotron_h_omni": (
        "NemotronH_Omni_Reasoning_V3",
        {"vision_model": ("vision_model",), "multi_modal_projector": ("multi_modal_projector",)}
        | {"audio_tower": ("audio_tower",), "embed_audio": ("embed_audio",)},
        [
            {
                "vision_config": RADIO,
                "vision_hidden_size": 24,
                "audio_config": {**PARAKEET, "attention_bias": True, "projection_bias": True},
            },
            {"vision_config": RADIO, "audio_config": PARAKEET, "vision_hidden_size": 24, "projector_hidden_size": 20},
            {
                "vision_config": {**RADIO, "num_channels": 1, "qkv_bias": False, "mlp_ratio": 2.5, "num_registers": 0}
                | {"video_temporal_patch_size": 3},
                "vision_hidden_size": 24,
                "video_temporal_patch_size": 3,
                "downsample_ratio": 0.25,
            },
        ],
    ),
    **{
        kind: (
            "GotOcr2ForConditionalGeneration",
            {"vision_tower + multi_modal_projector": ("vision_tower", "multi_modal_projector")},
            [
                {"vision_config": {**SAM, "image_size": 256}},
                {"vision_config": {**SAM, "qkv_bias": False, "use_abs_pos": False, "num_channels": 1}},
                {"vision_config": {**SAM, "use_rel_pos": False, "global_attn_indexes": [], "window_size": 2}},
            ],
        )
        for kind in ("got_ocr2", "pp_chart2table")
    },
    "pp_formulanet": (
        "PPFormulaNetForConditionalGeneration",
        {"encoder": ("vision_tower", "multi_modal_projector")},
        [
            {"vision_config": {**FORMULA, "image_size": 32}},
            {"vision_config": {**FORMULA, "qkv_bias": False, "use_rel_pos": False, "post_conv_mid_channels": 5}},
        ],
    ),
    "deepseek_ocr2": (
        "DeepseekOcr2ForConditionalGeneration",
        {"vision_tower + multi_modal_projector + view_separator": ("vision_tower", "multi_modal_projector")},
        [
            {"vision_config": {"sam_config": OCR_SAM, "encoder_config": OCR_QUERIES}},
            {
                "vision_config": {
                    "sam_config": {**OCR_SAM, "mlp_dim": None, "mlp_ratio": 2.5, "global_attn_indexes": []},
                    "encoder_config": {**OCR_QUERIES, "num_key_value_heads": 4},
                }
            },
        ],
    ),
    "unlimited_ocr": (
        "UnlimitedOcrForConditionalGeneration",
        {
            "vision_tower + multi_modal_projector + view_separator + image_newline": (
                "vision_tower",
                "multi_modal_projector",
            )
        },
        [
            {"vision_config": {"sam_config": OCR_SAM, "encoder_config": OCR_CLIP}},
            {
                "vision_config": {
                    "sam_config": {**OCR_SAM, "qkv_bias": False},
                    "encoder_config": {**OCR_CLIP, "image_size": 16},
                }
            },
        ],
    ),
    "granite_docling": (
        "GraniteDoclingForConditionalGeneration",
        {
            "vision_model + density_router": (
                *("vision_model", "coarse_connector", "connector_output", "fine_connector"),
                *(f"{path}_vision_merger_{i}" for path in ("coarse", "fine") for i in range(2)),
                *("image_density_weights", "image_density_router"),
            )
        },
        [
            {"vision_config": DOCLING, "density_router_hidden_size": 5},
            {"vision_config": {**DOCLING, "scale_factor": 3, "use_fine_route": False, "num_channels": 1}},
        ],
    ),
    "kosmos-2": (
        "Kosmos2ForConditionalGeneration",
        {
            "vision_model": ("vision_model",),
            "image_to_text_projection": ("image_projection", "image_to_text_projection"),
        },
        [
            {"vision_config": {**CLIP, "model_type": "kosmos_2_vision_model"}, "latent_query_num": 5},
            {"vision_config": {**CLIP, "model_type": "kosmos_2_vision_model", "num_channels": 1}},
        ],
    ),
    "kosmos-2.5": (
        "Kosmos2_5ForConditionalGeneration",
        {
            "vision_model": ("vision_model",),
            "image_to_text_projection": ("image_projection", "image_to_text_projection"),
        },
        [{"vision_config": PAGE, "latent_query_num": 5}, {"vision_config": {**PAGE, "head_dim": 7}}],
    ),
    "pix2struct": (
        "Pix2StructForConditionalGeneration",
        {"encoder": ("vision_model",)},
        [{"vision_config": PIX2STRUCT}, {"vision_config": {**PIX2STRUCT, "d_kv": 7, "seq_len": 11}}],
    ),
    "florence2": (
        "Florence2ForConditionalGeneration",
        {name: (name,) for name in ("vision_tower", "multi_modal_projector")},
        [
            {"vision_config": DAVIT},
            {
                "vision_config": {
                    **DAVIT,
                    "embed_dim": [8, 18],
                    "num_groups": [1, 6],
                    "qkv_bias": False,
                    "mlp_ratio": 2.5,
                    "in_channels": 1,
                    "patch_prenorm": [False, False],
                    "activation_function": "relu",
                }
            },
        ],
    ),
    "deepseek_vl_hybrid": (
        "DeepseekVLHybridForConditionalGeneration",
        {
            "vision_model": ("vision_model",),
            "aligner": ("vision_aligner", "high_res_vision_aligner", "aligner"),
            "high_res_vision_model + high_res_vision_neck + high_res_vision_proj + high_res_vision_alpha": (
                "high_res_vision_model",
            ),
        },
        [
            {"vision_config": SIGLIP, "high_res_vision_config": SAM},
            {"vision_config": SIGLIP, "high_res_vision_config": {**SAM_OF_MODEL, "mlp_ratio": 2.5, "mlp_dim": None}},
        ],
    ),
    "granite_speech": ("GraniteSpeechForConditionalGeneration", GRANITE_PLACES, GRANITE_SHAPES),
    **{
        kind: (
            f"{name}Model",
            {"vision_model": ("vision_model",), "visual_projection": ("visual_projection",)},
            [
                {"vision_config": {**CLIP, "model_type": f"{kind}_vision_model"}, "projection_dim": 12},
                {"vision_config": {**CLIP, "model_type": f"{kind}_vision_model", "image_size": 16}},
            ],
        )
        for kind, name in (("clip", "CLIP"), ("metaclip_2", "MetaClip2"))
    },
    **{
        vision["model_type"].removesuffix("_vision_model"): (
            f"{name}Model",
            {"vision_model": ("vision_model",)},
            [{"vision_config": vision}, {"vision_config": {**vision, "vision_use_head": True, "num_channels": 1}}],
        )
        for vision, name in ((SIGLIP, "Siglip"), (SIGLIP2, "Siglip2"))
    },
    "git": (
        "GitForCausalLM",
        {"git.image_encoder": ("image_encoder",), "git.visual_projection": ("visual_projection",)},
        [
            {**GIT, "vision_config": {**CLIP, "model_type": "git_vision_model"}},
            {
                **GIT,
                "vision_config": {**CLIP, "model_type": "git_vision_model", "image_size": 16, "num_channels": 1},
                "tie_word_embeddings": True,
            },
        ],
    ),
    "blip": (
        "BlipForConditionalGeneration",
        {"vision_model": ("vision_model",)},
        [
            {"vision_config": {**BLIP, **BLIP_1, "image_size": 24}, "tie_word_embeddings": True},
            {"vision_config": {**BLIP, **BLIP_1, "hidden_act": "relu"}, "tie_word_embeddings": True},
        ],
    ),
    "blip-2": (
        "Blip2ForConditionalGeneration",
        {"vision_model": ("vision_model",), "query_tokens + qformer + language_projection": ("projector",)},
        [
            {"vision_config": {**BLIP, "image_size": 24}, "qformer_config": QFORMER, "num_query_tokens": 5},
            {
                "vision_config": {**BLIP, "image_size": 16, "qkv_bias": False},
                "qformer_config": {**QFORMER, "cross_attention_frequency": 1, "num_hidden_layers": 2},
            },
        ],
    ),
    **{
        kind: (
            f"{name}ForConditionalGeneration",
            {"vision_model": ("vision_model",), "query_tokens + qformer + language_projection": ("projector",)},
            [
                {
                    "vision_config": {**BLIP, "model_type": f"{kind}_vision_model", "image_size": 24},
                    "qformer_config": {**QFORMER_OF_TEXT, "vocab_size": 30},
                },
                {
                    "vision_config": {
                        **BLIP,
                        "model_type": f"{kind}_vision_model",
                        "image_size": 16,
                        "qkv_bias": False,
                    },
                    "qformer_config": {**QFORMER_OF_TEXT, "cross_attention_frequency": 1, "max_position_embeddings": 7},
                    "num_query_tokens": 5,
                },
            ],
        )
        for kind, name in (("instructblip", "InstructBlip"), ("instructblipvideo", "InstructBlipVideo"))
    },
    "granite_speech_plus": (
        "GraniteSpeechPlusForConditionalGeneration",
        GRANITE_PLACES,
        [
            GRANITE_SHAPES[0],
            {
                "encoder_config": {**GRANITE, "cat_hidden_layers": [0, 2]},
                "projector_config": {**QFORMER, "encoder_hidden_size": 72},
            },
        ],
    ),
    **{
        kind: (
            f"MiniCPM{name}ForConditionalGeneration",
            {"vision_tower": ("vision_tower",), "merger": ("vision_merger_0", "vision_merger_1")},
            [
                {"vision_config": MINICPM, "insert_layer_id": 0},
                {
                    "vision_config": {**MINICPM, "num_hidden_layers": 4, "num_channels": 1, "hidden_act": "relu"},
                    "insert_layer_id": 1,
                    "merger_times": 2,
                },
            ],
        )
        for kind, name in (("minicpmv4_6", "V4_6"), ("minicpmv4_7", "V4_7"), ("minicpm_ocr", "Ocr"))
    },
    "fun_asr_nano": (
        "FunAsrNanoForConditionalGeneration",
        AUDIO_AND_PROJECTOR,
        [
            {"audio_config": FUN_ASR, "adaptor_config": ADAPTOR},
            {
                "audio_config": {**FUN_ASR, "num_stacked_frames": 6, "num_hidden_layers": 1, "fsmn_kernel_size": 4}
                | {"num_timestamp_prediction_layers": 0, "hidden_act": "gelu"},
                "adaptor_config": {**ADAPTOR, "num_hidden_layers": 1, "projector_hidden_act": "silu"},
            },
        ],
    ),
    "vibevoice_asr": (
        "VibeVoiceAsrForConditionalGeneration",
        {
            **{f"{name}_tokenizer_encoder": (f"{name}_audio_encoder",) for name in ("acoustic", "semantic")},
            "multi_modal_projector": tuple(
                f"{name}_audio_{part}" for name in ("acoustic", "semantic") for part in ("projector", "projection")
            ),
        },
        [
            {"acoustic_tokenizer_encoder_config": CONVNEXT, "semantic_tokenizer_encoder_config": CONVNEXT},
            {
                "acoustic_tokenizer_encoder_config": {**CONVNEXT, "hidden_act": "relu", "kernel_size": 5},
                "semantic_tokenizer_encoder_config": {**CONVNEXT, "ffn_expansion": 3, "hidden_size": 12},
            },
        ],
    ),
    "nemo_speechlm": (
        "Nemotron3_5TranscribeForConditionalGeneration",
        {
            "audio_tower + word_timestamp_encoder + word_timestamp_head": ("audio_tower",),
            "multi_modal_projector": ("multi_modal_projector",),
        },
        [
            transcribe_sections(num_speakers=8, upsampling_factor=2),
            transcribe_sections(num_speakers=3, upsampling_factor=3),
        ],
    ),
    "vibevoice": (
        "VibeVoiceForConditionalGeneration",
        {
            "audio_tower + diffusion_head + latent_scaling_factor + latent_bias_factor": ("acoustic_audio_encoder",),
            "multi_modal_projector": ("acoustic_audio_projector", "acoustic_audio_projection"),
            "semantic_tokenizer_encoder": ("semantic_audio_encoder",),
            "semantic_connector": ("semantic_audio_projector", "semantic_audio_projection"),
        },
        [
            {
                "audio_config": {**CONVNEXT, "model_type": "vibevoice_acoustic_tokenizer"},
                "semantic_model_config": CONVNEXT,
                "diffusion_head_config": DIFFUSION_HEAD,
            },
            {
                "audio_config": {**CONVNEXT, "model_type": "vibevoice_acoustic_tokenizer", "depths": [2, 1, 3]},
                "semantic_model_config": {**CONVNEXT, "hidden_size": 12},
                "diffusion_head_config": {**DIFFUSION_HEAD, "num_hidden_layers": 1, "mlp_bias": True},
            },
        ],
    ),
    "phi4_multimodal": (
        "Phi4MultimodalForCausalLM",
        {
            "embed_tokens_extend.image_embed": ("image_processor", "image_projector"),
            "embed_tokens_extend.audio_embed": ("audio_encoder", "audio_projector", "audio_vision_projector"),
        },
        [
            {"vision_config": PHI4_VISION, "audio_config": PHI4_AUDIO},
            {
                "vision_config": {**PHI4_VISION, "num_channels": 1, "patch_size": 8},
                "audio_config": {
                    **PHI4_AUDIO,
                    "bias_symmetric": True,
                    "time_reduction": 4,
                    "depthwise_multiplier": 2,
                    "kernel_size": 5,
                    "downsample_rate": 3,
                },
            },
        ],
    ),
}
"""Wrapper → (its class, module or parameter of the class for each encoder, shapes)."""
