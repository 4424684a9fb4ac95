"""The text model of Phi-4-multimodal: Phi-3's layers with RoPE on three quarters of a head.

Its adapters are not counted.

transformers: models/phi4_multimodal.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, field_names
from ...parts import Table, attention, fused_glu
from ..gpt.phi import PHI3_MODULES
from .llama import llama_like


def _phi4_multimodal(config: Config) -> Table:
    return llama_like(config, attention(config, fused_qkv=True), network=fused_glu(config))


FAMILIES = {
    "phi4_multimodal": Family(
        _phi4_multimodal,
        {"head_dim": None},
        field_names(
            """
            attention_bias audio_config audio_processor embd_layer full_attn_mod img_processor interpolate_factor
            lm_head_bias mlp_bias speech_lora vision_config vision_lora
            """
        ),
        tower_class_prefixes="Phi4Multimodal",
        has_text_class=False,
        modules={
            **PHI3_MODULES,
            "towers.image_processor": "embed_tokens_extend.image_embed.img_processor",
            "towers.image_projector": "embed_tokens_extend.image_embed",
            "towers.image_projector.map_1": "img_projection_up",
            "towers.image_projector.map_2": "img_projection_down",
            "towers.image_projector.input_marks": "global_img_feature_extensor + sub_img_feature_extensor",
            "towers.audio_projector": "embed_tokens_extend.audio_embed",
            "towers.audio_projector.map_1": "up_proj_for_speech",
            "towers.audio_projector.map_2": "down_proj_for_speech",
            "towers.audio_vision_projector": "embed_tokens_extend.audio_embed",
            "towers.audio_vision_projector.map_1": "up_proj_for_vision_speech",
            "towers.audio_vision_projector.map_2": "down_proj_for_vision_speech",
            "towers.audio_encoder": "embed_tokens_extend.audio_embed.encoder",
            "towers.audio_encoder.norm": "layer_norm",
            "towers.subsampling": "embed",
            "towers.subsampling.conv_1": "conv.0",
            "towers.depthwise_2": "conv.2",
            "towers.pointwise_2": "conv.3",
            "towers.depthwise_3": "conv.5",
            "towers.pointwise_3": "conv.6",
            "towers.subsampling.proj": "out",
            "towers.relative_bias": "relative_attention_bias_layer",
            "towers.mlp_1": "feed_forward_in - feed_forward_in.layer_norm",
            "towers.mlp_1_pre_norm": "feed_forward_in.layer_norm",
            "towers.mlp_2": "feed_forward_out - feed_forward_out.layer_norm",
            "towers.mlp_2_pre_norm": "feed_forward_out.layer_norm",
            "towers.convolution": "conv - conv.layer_norm",
            "towers.convolution_pre_norm": "conv.layer_norm",
            "towers.convolution.conv": "dw_sep_conv_1d.dw_conv",
            "towers.convolution.pointwise": "dw_sep_conv_1d.pw_conv",
            "towers.convolution.in_proj": "glu.ext_pw_conv_1d",
            "towers.convolution.gate_bias": "glu.b1 + glu.b2",
            "towers.convolution.out_proj": "ext_pw_conv_1d",
        },
        tower_file="audio",
    )
}
