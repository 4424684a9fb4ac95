from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_DEPTH, COMMON_GROUPED, COMMON_VISION

SMALL: dict[str, Any] = {**COMMON_GROUPED, "max_position_embeddings": 64}
DEEPSEEK_EXPERTS: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 8,
    "q_lora_rank": None,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}

EXPERTS: dict[str, Any] = {**SMALL, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}

SIGLIP: dict[str, Any] = {**COMMON_VISION, "num_attention_heads": 2, "image_size": 24}
RICE: dict[str, Any] = {"model_type": "rice_vit", **COMMON_DEPTH, "text_hidden_size": 32}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "InternVLChatModel": [
        {"model_type": "internvl_chat", "llm_config": {"model_type": kind, **SMALL, **fields}}
        for kind, fields in (("internlm2", {"bias": False}), ("qwen2", {}), ("qwen3", {"head_dim": 8}))
    ],
    "KimiVLForConditionalGeneration": [
        {
            "model_type": "kimi_vl",
            "text_config": {"model_type": "deepseek_v3", **DEEPSEEK_EXPERTS, **LATENT, "n_group": 1, "topk_group": 1},
        },
    ],
    "DeepseekVLV2ForCausalLM": [
        {
            "model_type": "deepseek_vl_v2",
            "language_config": {"model_type": "deepseek_v2", **DEEPSEEK_EXPERTS, **LATENT},
        },
        {
            "model_type": "deepseek_vl_v2",
            "language_config": {
                "model_type": "deepseek_v2",
                **DEEPSEEK_EXPERTS,
                "use_mla": False,
                "kv_lora_rank": None,
                "q_lora_rank": None,
                "qk_nope_head_dim": 0,
                "qk_rope_head_dim": 0,
                "v_head_dim": 0,
            },
        },
    ],
    "Ovis": [
        {
            "model_type": "ovis",
            "llm_config": {"model_type": "gemma2", **SMALL, "head_dim": 8},
            "visual_tokenizer_config": {
                "model_type": "siglip_visual_tokenizer",
                "vocab_size": 50,
                "hidden_stride": 2,
                "backbone_config": {"model_type": "siglip_vision_model", **SIGLIP},
            },
        },
        {
            "model_type": "ovis",
            "llm_config": {"model_type": "qwen2", **SMALL},
            "visual_tokenizer_config": {
                "model_type": "aimv2_visual_tokenizer",
                "vocab_size": 40,
                "backbone_config": {"model_type": "aimv2", **SIGLIP, "use_bias": True},
            },
        },
    ],
    "MultiModalityCausalLM": [{"model_type": "multi_modality", "language_config": {"model_type": "llama", **SMALL}}],
    "InternS1ForConditionalGeneration": [
        {"model_type": "interns1", "text_config": {"model_type": "qwen3", **SMALL, "head_dim": 8}}
    ],
    "InternS1ProForConditionalGeneration": [
        {
            "model_type": "interns1_pro",
            "text_config": {"model_type": "interns1_pro_text", **EXPERTS, "head_dim": 8, "router_n_groups": 2},
        },
        {
            "model_type": "interns1_pro",
            "text_config": {
                "model_type": "interns1_pro_text",
                **EXPERTS,
                "decoder_sparse_step": 2,
                "rope_scaling": {"rope_type": "default", "fope_init_factor": 0.5, "fope_sep_head": True},
            },
            "vision_config": {
                "model_type": "interns1_pro_vision",
                "depth": 2,
                "hidden_size": 16,
                "intermediate_size": 24,
                "num_heads": 2,
                "patch_size": 4,
                "out_hidden_size": 32,
                "num_position_embeddings": 16,
            },
        },
    ],
    "InternS1ProForCausalLM": [
        {"model_type": "interns1_pro_text", **EXPERTS, "head_dim": 8, "router_n_groups": 2},
        {"model_type": "interns1_pro_text", **EXPERTS, "mlp_only_layers": [0], "tie_word_embeddings": True},
    ],
    "InternS2PreviewForConditionalGeneration": [
        {
            "model_type": "intern_s2_preview",
            "text_config": {
                "model_type": "qwen3_5_moe_text",
                **EXPERTS,
                "head_dim": 8,
                "shared_expert_intermediate_size": 12,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 8,
                "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            },
        }
    ],
    "MageVLForConditionalGeneration": [
        {"model_type": "mage_vl", "text_config": {"model_type": "qwen3", **SMALL, "head_dim": 8}}
    ],
    "MossAudioModel": [
        {
            "model_type": "moss_audio",
            "language_config": {"model_type": "qwen3", **SMALL, "head_dim": 8},
            "audio_config": {"d_model": 24},
            "adapter_hidden_size": 48,
            "deepstack_num_inject_layers": 3,
        }
    ],
    "LlmJpVLForConditionalGeneration": [{"model_type": "llmjpvl", "text_config": {"model_type": "llama", **SMALL}}],
    "LocateAnythingForConditionalGeneration": [
        {
            "model_type": "locateanything",
            "text_config": {"model_type": "qwen2", **SMALL},
            "vision_config": {"model_type": "moonvit", **SIGLIP, "init_pos_emb_height": 4, "init_pos_emb_width": 4},
        }
    ],
    "MiniMaxVL01ForConditionalGeneration": [
        {
            "model_type": "minimax_vl_01",
            "text_config": {
                "model_type": "minimax_text_01",
                **SMALL,
                "num_local_experts": 4,
                "attn_type_list": [0, 0, 1],
                "postnorm": True,
            },
        }
    ],
    "Eagle2_5_VLForConditionalGeneration": [
        {"model_type": "eagle_2_5_vl", "text_config": {"model_type": "qwen2", **SMALL}}
    ],
    "Ovis2_5": [
        {
            "model_type": "ovis2_5",
            "llm_config": {"model_type": "qwen3", **SMALL, "head_dim": 8},
            "visual_vocab_size": 40,
            "vit_config": {"model_type": "siglip2_navit", **SIGLIP, **vit},
        }
        for vit in ({}, {"preserve_original_pe": False, "hidden_stride": 1}, {"num_patches": 9, "use_rope": False})
    ],
    "NVLM_D_Model": [{"model_type": "NVLM_D", "llm_config": {"model_type": "qwen2", **SMALL}}],
    "H2OVLChatModel": [{"model_type": "h2ovl_chat", "llm_config": {"model_type": "mistral", **SMALL}}],
    "SkyworkChatModel": [{"model_type": "skywork_chat", "llm_config": {"model_type": "qwen2", **SMALL}}],
    "Eagle2ChatModel": [{"model_type": "eagle_chat", "llm_config": {"model_type": "qwen2", **SMALL}}],
    "Llama_Nemotron_Nano_VL": [
        {"model_type": "Llama_Nemotron_Nano_VL", "llm_config": {"model_type": "llama", **SMALL}}
    ],
    "NemotronH_Nano_VL_V2": [
        {
            "model_type": "NemotronH_Nano_VL_V2",
            "llm_config": {
                "model_type": "nemotron_h",
                **SMALL,
                "head_dim": 8,
                "hybrid_override_pattern": "M*-",
                "mamba_num_heads": 8,
                "mamba_head_dim": 8,
                "n_groups": 2,
                "ssm_state_size": 16,
            },
        }
    ],
    "LLaVAOneVision1_5_ForConditionalGeneration": [
        {"model_type": "llavaonevision1_5", "text_config": {"model_type": "LLaVAOneVision1_5_text", **SMALL}},
        {"model_type": "llavaonevision1_5", "text_config": {**SMALL, "head_dim": 16}, "vision_config": RICE},
    ],
    "UltravoxModel": [
        {"model_type": "ultravox", "text_config": {"model_type": kind, **SMALL}, "audio_config": {"d_model": 24}}
        for kind in ("llama", "mistral")
    ],
    "TinyLlavaForConditionalGeneration": [
        {"model_type": "tinyllava", "text_config": {"model_type": kind, **SMALL}} for kind in ("phi", "qwen2")
    ],
    "OpenVLAForActionPrediction": [
        {
            "model_type": "openvla",
            "text_config": {"model_type": "llama", **SMALL},
            "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
            "image_sizes": [28, 42],
        },
        {
            "model_type": "openvla",
            "text_config": {"model_type": "llama", **SMALL},
            "use_fused_vision_backbone": False,
            "timm_model_ids": ["vit_so400m_patch14_siglip_224"],
            "image_sizes": [28],
        },
    ],
    "HCXVisionForCausalLM": [{"model_type": "hyperclovax_vlm", "text_config": {"model_type": "llama", **SMALL}}],
    **{
        cls: [{"model_type": kind, "text_config": {"model_type": text, **SMALL}}]
        for cls, kind, text in (
            ("KananaVForConditionalGeneration", "kanana-1.5-v", "llama"),
            ("RForConditionalGeneration", "R", "qwen3"),
            ("BeeForConditionalGeneration", "bee", "qwen3"),
            ("OpenCUAForConditionalGeneration", "opencua", "qwen2"),
            ("AndesVLForConditionalGeneration", "andesvl-aimv2-qwen3", "qwen3"),
            ("StepVLForConditionalGeneration", "step_robotics", "qwen3"),
            ("LlavaOnevision2ForConditionalGeneration", "llava_onevision2", "qwen3"),
            ("Sarashina2VisionForCausalLM", "sarashina2_vision", "llama"),
            ("MiDashengLMModel", "midashenglm", "qwen2_5_omni_text"),
            ("NVILAForConditionalGeneration", "nvila", "qwen2"),
            ("NVILALiteForConditionalGeneration", "nvila_lite", "qwen2"),
            ("FunAudioChatForConditionalGeneration", "funaudiochat", "qwen2"),
            ("MERaLiON2ForConditionalGeneration", "meralion2", "gemma2"),
        )
    },
    "BailingMMNativeForConditionalGeneration": [
        {"model_type": "bailingmm", "llm_config": {"model_type": "bailing_moe", **EXPERTS, "num_shared_experts": 1}}
    ],
    "Lfm2AudioForConditionalGeneration": [
        {
            "model_type": "lfm2_audio",
            "lfm": {"model_type": "lfm2", **SMALL, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
            "encoder": {"d_model": 24},
        }
    ],
    "POINTSV15ChatModel": [{"model_type": "pointsv1.5_chat", "llm_config": {"model_type": "qwen2", **SMALL}}],
    "DotsVLMForCausalLM": [
        {"model_type": "dots_vlm", **DEEPSEEK_EXPERTS, **LATENT, "n_group": 1, "topk_group": 1},
    ],
    "Plamo2VLForConditionalGeneration": [
        {
            "model_type": "plamo2vl",
            "text_config": {
                "model_type": "plamo2",
                **SMALL,
                "hidden_size_per_head": 8,
                "mamba_num_heads": 4,
                "mamba_d_state": 8,
                "mamba_d_conv": 4,
                "mamba_step": 2,
            },
        }
    ],
    "BailingMoeV3VLForConditionalGeneration": [
        {
            "model_type": "bailing_moe_v3_vl",
            "text_config": {
                "model_type": "bailing_hybrid",
                **SMALL,
                "num_key_value_heads": 4,
                **LATENT,
                "q_lora_rank": rank,
                "head_dim": 8,
                "moe_intermediate_size": 16,
                "moe_shared_expert_intermediate_size": 16,
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "num_shared_experts": 1,
                "first_k_dense_replace": 1,
                "layer_group_size": 3,
            },
        }
        for rank in (None, 12)
    ],
    "MolmoPointForConditionalGeneration": [
        {"model_type": "molmo_point", "text_config": {"model_type": "molmo2_text", **SMALL, "head_dim": 8}}
    ],
    "Alpamayo2Super": [
        {
            "model_type": "alpamayo2_super",
            "vlm_config": {
                "model_type": "qwen3_vl",
                "text_config": {"model_type": "qwen3_vl_text", **SMALL, "head_dim": 8},
                "vision_config": {"depth": 2},
            },
            "expert_config": {"hidden_size": 16},
        }
    ],
    "Phi3VForCausalLM": [{"model_type": "phi3_v", **SMALL}],
}
