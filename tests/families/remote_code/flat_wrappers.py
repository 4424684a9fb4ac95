from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

from .moondream3 import VISION as MOONDREAM_VISION

SMALL: dict[str, Any] = {**COMMON_GROUPED, "max_position_embeddings": 64}
LLAVA: dict[str, Any] = {
    **SMALL,
    "mm_hidden_size": 24,
    "mm_vision_tower": "openai/clip-vit-large-patch14-336",
    "mm_projector_type": "mlp2x_gelu",
    "image_aspect_ratio": "pad",
}
MINICPM: dict[str, Any] = {**SMALL, "query_num": 64, "image_size": 448, "vision_config": {"hidden_size": 24}}

MOONDREAM_TEXT = {"dim": 32, "ff_dim": 48, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 96}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "LlavaLlamaForCausalLM": [
        {"model_type": "llava_llama", **LLAVA},
        {"model_type": "llava_llama", "llm_cfg": {"model_type": "qwen2", **SMALL}},
    ],
    "LogicsForConditionalGeneration": [
        {"model_type": "logics", **LLAVA, "head_dim": 8, "siglip_config": {"hidden_size": 24}}
    ],
    "LlavaMistralForCausalLM": [{"model_type": "llava_mistral", **LLAVA}],
    "LlavaMptForCausalLM": [
        {"model_type": "llava_mpt", "vocab_size": 96, "d_model": 32, "n_layers": 3, "n_heads": 4, "mm_hidden_size": 24}
    ],
    "LlavaQwenForCausalLM": [{"model_type": "llava_qwen", **LLAVA}],
    "VideoChatFlashQwenForCausalLM": [{"model_type": "videochat_flash_qwen", **LLAVA, "mm_llm_compress": False}],
    "LlavaGemmaForCausalLM": [{"model_type": "llava_gemma", **LLAVA, "head_dim": 8}],
    "BunnyPhiForCausalLM": [{"model_type": "bunny-phi", **LLAVA}],
    "BunnyPhi3ForCausalLM": [{"model_type": "bunny-phi3", **LLAVA}],
    "Phi4ForCausalLMV": [{"model_type": "phi4-siglip", **LLAVA, "min_num_patches": 256, "max_num_patches": 3600}],
    "BunnyLlamaForCausalLM": [{"model_type": "bunny-llama", **LLAVA}],
    "BunnyQwenForCausalLM": [{"model_type": "bunny-qwen2", **LLAVA}],
    "MiniCPMV": [
        {"model_type": "minicpmv", **MINICPM},
        {"model_type": "minicpmv", **MINICPM, "version": 2.6},
        {"model_type": "minicpmv", **MINICPM, "version": "4.0"},
        {"model_type": "minicpmv", **MINICPM, "version": 4.5, "head_dim": 16},
        {"model_type": "minicpmv", **MINICPM, "version": 2.0, "scale_emb": 12, "scale_depth": 1.4},
    ],
    "MiniCPMO": [
        {"model_type": "minicpmo", **MINICPM, "audio_config": {"d_model": 24}, "tts_config": {"num_vq": 4}},
        {"model_type": "minicpmo", **MINICPM, "version": "4.5", "head_dim": 16},
    ],
    "HfMoondream": [
        {"model_type": "moondream1", **SMALL, "config": {"vision": MOONDREAM_VISION}},
        {"model_type": "moondream1", "config": {"text": MOONDREAM_TEXT, "vision": MOONDREAM_VISION}},
    ],
    "Moondream": [{"model_type": "moondream1", "text_config": {"model_type": "phi", **SMALL}}],
    "Moondream2": [
        {"model_type": "moondream2", "text_config": SMALL, "vision_config": {"hidden_size": 24}},
        {"model_type": "moondream2", "text_config": {**SMALL, "num_key_value_heads": 4}},
    ],
    "IsaacForConditionalGeneration": [
        {"model_type": "isaac", **SMALL, "vision_config": {"hidden_size": 24}, "vision_max_num_patches": 6144}
    ],
    "YoutuVLForConditionalGeneration": [
        {
            "model_type": "youtu_vl",
            **SMALL,
            "num_key_value_heads": 4,
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "vision_config": {"hidden_size": 24},
        }
    ],
    "MoonshotKimiaForCausalLM": [
        {"model_type": "kimi_audio", **SMALL, "kimia_mimo_layers": 2, "kimia_adaptor_input_dim": 20}
    ],
    "DotsOCRForCausalLM": [{"model_type": "dots_ocr", **SMALL, "vision_config": {"embed_dim": 24}}],
    "GOTQwenForCausalLM": [{"model_type": "GOT", **SMALL, "vision_tower": "vit", "image_token_len": 256}],
    "KeyeForConditionalGeneration": [{"model_type": "Keye", **SMALL, "head_dim": 16, "vision_config": {}}],
    "KeyeVL1_5ForConditionalGeneration": [{"model_type": "KeyeVL1_5", **SMALL, "head_dim": 16, "vision_config": {}}],
    "Videollama3Qwen2ForCausalLM": [
        {
            "model_type": "videollama3_qwen2",
            **SMALL,
            "mm_projector_type": "mlp2x_gelu",
            "use_token_compression": True,
            "vision_encoder_config": {"hidden_size": 24},
        }
    ],
    "Phi4MMForCausalLM": [
        {"model_type": "phi4mm", **SMALL, "vision_lora": {"r": 256}, "speech_lora": {"r": 320}, "audio_processor": {}}
    ],
}
