"""The vision transformer and DeiT as encoders of images before a text decoder (TrOCR, captions by ViT and GPT-2).

Dosovitskiy et al. 2020 (arXiv:2010.11929), Touvron et al. 2020 (arXiv:2012.12877). transformers: models/vit, deit and
vision_encoder_decoder.
"""

from __future__ import annotations

from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, QKV_BIASES, Table, biases, layer_table, layernorm, mlp
from .section import TowerSection, patches_per_side, projector, self_attention, vision_transformer


def _read_vit(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads ViT or DeiT; DeiT has a second learned vector in addition to the class vector.

    The pooler, a linear layer on the class vector that nothing reads, and the projection to the decoder's width, if
    the two widths differ and the decoder's cross-attention states no width of its own, are encoders of their own.
    """
    norm, hidden_size = layernorm(config.number("layer_norm_eps")), config.integer("hidden_size")
    attention = self_attention(config, o_bias=True, **biases(config.flag("qkv_bias"), *QKV_BIASES))
    ffn = mlp(config.integer("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act"))
    register_count = 1 if config.model_type == "deit" else 0
    encoder = vision_transformer(
        config,
        layer_table(attention, ffn, norm),
        stack={"final_norm": norm},
        patch_fields={"num_channels": config.integer("num_channels"), "bias": True},
        positions={"rows": patches_per_side(config) ** 2 + 1 + register_count},
        class_embedding=True,
        registers=register_count,
    )
    pooler_size = config.optional_integer("pooler_output_size") or hidden_size
    towers = {"vision_encoder": encoder, "vision_pooler": projector(hidden_size, (pooler_size, True, "tanh"))}
    decoder_fields = root_config.get("decoder")
    if hidden_size != text_hidden_size and decoder_fields.get("cross_attention_hidden_size") is None:
        towers["enc_to_dec_projector"] = projector(hidden_size, (text_hidden_size, True, "identity"))
    return towers


VIT_DEFAULTS: Table = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
    "pooler_output_size": None,
}

WRAPPERS = {
    "vision-encoder-decoder": {
        "encoder": TowerSection(
            _read_vit,
            {"vit": VIT_DEFAULTS, "deit": VIT_DEFAULTS},
            default_section=None,
            ignored_fields=field_names("attention_probs_dropout_prob encoder_stride hidden_dropout_prob pooler_act"),
        )
    }
}
