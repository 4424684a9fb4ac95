"""The text model of Phi-4-multimodal: Phi-3's layers with RoPE on three quarters of a head.

Its adapters are not counted.

transformers: models/phi4_multimodal.
"""

from __future__ import annotations

from ...family import Family, field_names
from ...parts import attention, fused_glu
from .llama import llama_decoder

FAMILIES = {
    "phi4_multimodal": Family(
        lambda config: llama_decoder(config, attention(config, fused_qkv=True), ffn=fused_glu(config)),
        {"head_dim": None},
        field_names("""
            attention_bias audio_config audio_processor embd_layer full_attn_mod img_processor interpolate_factor
            lm_head_bias mlp_bias speech_lora vision_config vision_lora
            """),
        tower_class_prefixes="Phi4Multimodal",
        has_text_class=False,
        tower_file="audio",
    )
}
