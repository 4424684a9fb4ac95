"""CLIP and SigLIP: the text encoder alone (as in image-generation pipelines) or with the image encoder.

Radford et al. 2021 (arXiv:2103.00020), Zhai et al. 2023 (arXiv:2303.15343), Tschannen et al. 2025 (arXiv:2502.14786),
Chuang et al. 2025 (arXiv:2507.22062). transformers: models/clip, siglip, siglip2 and metaclip_2.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import EVERY_CLASS, Family, Quirks
from ...parts import (
    QKVO_BIASES,
    Table,
    biases,
    class_name_of_config,
    decoder,
    layer_table,
    layernorm,
    learned_positions,
)
from ..gpt.gpt import full_width_heads, non_gated_ffn

MODULES = {
    "embed_tokens": "embeddings.token_embedding",
    "embed_positions": "embeddings.position_embedding",
    "layers": "encoder.layers",
    "norm": "final_layer_norm",
    "self_attn_pre_norm": "layer_norm1",
    "mlp_pre_norm": "layer_norm2",
    "o_proj": "out_proj",
    "up_proj": "fc1",
    "down_proj": "fc2",
}

DUAL_ENCODERS = ("CLIPModel", "MetaClip2Model", "SiglipModel", "Siglip2Model")
"""Classes with a text and an image encoder, and a learned scale (SigLIP: also a bias) of their similarity."""

SINGLE_ENCODER_ENDINGS = ("TextModel", "TextModelWithProjection", "VisionModel", "VisionModelWithProjection")
"""Class-name suffixes of the classes that build only the text or only the image encoder, from a section of the config.
"""


def _read_text_encoder(config: Config) -> Table:
    """Reads pre-norm layers with biases and learned positions, whose last norm is followed by no output head."""
    norm = layernorm(config.number("layer_norm_eps"))
    token_mixer = full_width_heads(config, **biases(True, *QKVO_BIASES))
    block = layer_table(token_mixer, non_gated_ffn(config, "intermediate_size", "hidden_act"), norm)
    config.head_kind = "none"
    return decoder(config, block, norm, stack={"position": learned_positions(config)})


def _read_clip_text(config: Config) -> Table:
    """Reads CLIP's text encoder, whose attention is causal.

    `WithProjection` and the class of both encoders project the vector of the last token.
    """
    class_name = class_name_of_config(config)
    model_fields = _read_text_encoder(config)
    if class_name.endswith(("WithProjection", *DUAL_ENCODERS)):
        model_fields["head"] = {
            "type": "classification",
            "num_labels": config.integer("projection_dim"),
            "bias": False,
            "similarity_numbers": int(class_name in DUAL_ENCODERS),
        }
    return model_fields


def _read_siglip_text(config: Config) -> Table:
    """Reads SigLIP's text encoder, whose attention is bidirectional and whose last token is projected."""
    model_fields = _read_text_encoder(config)
    vector_size = config.optional_integer("projection_size") or config.integer("hidden_size")
    similarity_numbers = 2 if class_name_of_config(config) in DUAL_ENCODERS else 0
    model_fields["head"] = {
        "type": "classification",
        "num_labels": vector_size,
        "similarity_numbers": similarity_numbers,
    }
    model_fields["encoder"] = model_fields.pop("decoder")
    return model_fields


def _clip_text_family() -> Family:
    return Family(
        _read_clip_text,
        {"tie_word_embeddings": True},
        ignored_fields=frozenset({"dropout", "initializer_factor", "projection_dim"}),
        modules={**MODULES, "classifier.out_proj": ".text_projection"},
        quirks=Quirks(mask_making_classes=EVERY_CLASS),
    )


def _siglip_text_family() -> Family:
    defaults = {"tie_word_embeddings": True}
    modules = {**MODULES, "classifier.out_proj": ".head"}
    return Family(_read_siglip_text, defaults, modules=modules, quirks=Quirks(mask_making_classes=EVERY_CLASS))


def _dual_encoder_family(text_model_type: str, class_name: str, **root_fields: Any) -> Family:
    """Returns the family of a class with a text encoder and an image encoder, such as `CLIPModel`."""
    return Family(
        None,
        text_type=text_model_type,
        tying_source="text",
        tower_file="siglip",
        uncounted_classes=("ForImageClassification", *SINGLE_ENCODER_ENDINGS),
        ignored_fields=frozenset({"initializer_factor", "logit_scale_init_value"}),
        text_fields_from_sections={"architectures": ("", "architectures", [class_name]), **root_fields},
    )


PROJECTION_SECTION_FIELDS = {"projection_dim": ("", "projection_dim", 512)}

FAMILIES = {
    "clip_text_model": _clip_text_family(),
    "metaclip_2_text_model": _clip_text_family(),
    "siglip_text_model": _siglip_text_family(),
    "siglip2_text_model": _siglip_text_family(),
    "clip": _dual_encoder_family("clip_text_model", "CLIPModel", **PROJECTION_SECTION_FIELDS),
    "metaclip_2": _dual_encoder_family("metaclip_2_text_model", "MetaClip2Model", **PROJECTION_SECTION_FIELDS),
    "siglip": _dual_encoder_family("siglip_text_model", "SiglipModel"),
    "siglip2": _dual_encoder_family("siglip2_text_model", "Siglip2Model"),
}
