"""Multimodal wrappers with an uncounted encoder and a counted text model; a remark names each encoder.

transformers: the folders of `models` that the model types name.
"""

from __future__ import annotations

from ...family import Family

FAMILIES = {
    "vision-encoder-decoder": Family(
        None,
        text_type="bert",
        text_section="decoder",
        is_decoder=True,
        tying_source="text",
        uncounted_encoders={"encoder": "vit"},
    ),
    "speech-encoder-decoder": Family(
        None,
        text_type="bert",
        text_section="decoder",
        is_decoder=True,
        tying_source="text",
        uncounted_encoders={"encoder": "wav2vec2"},
    ),
    "got_ocr2": Family(None, text_type="qwen2", uncounted_encoders={"vision_config": "got_ocr2_vision"}),
    "pp_chart2table": Family(None, text_type="qwen2", uncounted_encoders={"vision_config": "pp_chart2table_vision"}),
    "fast_vlm": Family(
        None, text_type="qwen2", tying_source="either", uncounted_encoders={"vision_config": "timm_wrapper"}
    ),
    "perception_lm": Family(None, text_type="llama", uncounted_encoders={"vision_config": "timm_wrapper"}),
    "janus": Family(
        None, text_type="llama", uncounted_encoders={"vision_config": "janus_vision_model", "vq_config": "janus_vqgan"}
    ),
    "deepseek_vl_hybrid": Family(
        None,
        text_type="llama",
        uncounted_encoders={"vision_config": "siglip_vision_model", "high_res_vision_config": "sam_vision_model"},
    ),
    "idefics2": Family(
        None,
        text_type="mistral",
        uncounted_encoders={"vision_config": "idefics2_vision", "perceiver_config": "idefics2_perceiver"},
    ),
    "minicpmv4_6": Family(None, text_type="qwen3_5_text", uncounted_encoders={"vision_config": "minicpmv4_6_vision"}),
    "minicpmv4_7": Family(None, text_type="qwen3_5_text", uncounted_encoders={"vision_config": "minicpmv4_7_vision"}),
    "minicpm_ocr": Family(None, text_type="qwen3_5_text", uncounted_encoders={"vision_config": "minicpm_ocr_vision"}),
    "nemotron_h_omni": Family(
        None, text_type="nemotron_h", tying_source="text", uncounted_encoders={"vision_config": "radio"}
    ),
    "nemo_speechlm": Family(
        None,
        text_type="nemotron_h",
        tying_source="never",
        uncounted_encoders={
            "audio_config": "nemotron3_5_transcribe_audio",
            "word_timestamp_config": "nemotron3_5_transcribe_word_timestamp",
        },
    ),
    "granite_speech": Family(
        None,
        text_type="granite",
        uncounted_encoders={"encoder_config": "granite_speech_encoder", "projector_config": "blip_2_qformer"},
    ),
    "granite_speech_plus": Family(
        None,
        text_type="granite",
        uncounted_encoders={"encoder_config": "granite_speech_plus_encoder", "projector_config": "blip_2_qformer"},
    ),
    "glmasr": Family(
        None,
        text_type="llama",
        text_defaults={
            "vocab_size": 59264,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        ignored_fields=frozenset({"rope_dim", "text_config.rope_dim"}),  # of its own code, which rotates whole heads
        uncounted_encoders={"audio_config": "glmasr_encoder"},
    ),
    "fun_asr_nano": Family(
        None,
        text_type="qwen3",
        uncounted_encoders={"audio_config": "fun_asr_nano_encoder", "adaptor_config": "fun_asr_nano_adaptor"},
    ),
    "vibevoice": Family(
        None,
        {"tie_word_embeddings": False},
        text_type="qwen2",
        tying_source="text",
        uncounted_encoders={
            "audio_config": "vibevoice_acoustic_tokenizer",
            "semantic_model_config": "vibevoice_acoustic_tokenizer_encoder",
            "diffusion_head_config": "vibevoice_diffusion",
        },
    ),
    "vibevoice_asr": Family(
        None,
        text_type="qwen2",
        tying_source="never",
        uncounted_encoders={
            "acoustic_tokenizer_encoder_config": "vibevoice_acoustic_tokenizer_encoder",
            "semantic_tokenizer_encoder_config": "vibevoice_acoustic_tokenizer_encoder",
        },
    ),
    "fuyu": Family(
        None,
        text_type="persimmon",
        tower_class_prefixes="Fuyu",
        uncounted_encoders={"vision_embed_tokens": "a projection of patches"},
    ),
    "modernvbert": Family(None, text_type="modernbert", uncounted_encoders={"vision_config": "siglip_vision_model"}),
    "florence2": Family(None, text_type="bart", uncounted_encoders={"vision_config": "florence_vision"}),
    "blip-2": Family(
        None,
        text_type="opt",
        tying_source="text",
        uncounted_encoders={"vision_config": "blip_2_vision_model", "qformer_config": "blip_2_qformer"},
    ),
    "instructblip": Family(
        None,
        text_type="opt",
        tying_source="text",
        uncounted_encoders={"vision_config": "instructblip_vision_model", "qformer_config": "instructblip_qformer"},
    ),
    "instructblipvideo": Family(
        None,
        text_type="opt",
        tying_source="text",
        uncounted_encoders={
            "vision_config": "instructblipvideo_vision_model",
            "qformer_config": "instructblipvideo_qformer",
        },
    ),
}
