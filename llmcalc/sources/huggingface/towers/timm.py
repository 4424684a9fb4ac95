"""Encoders that a wrapper's config states by a model name of the timm library: OpenVLA and the Prismatic models.

DINOv2 (Oquab 2023, arXiv:2304.07193) with registers (Darcet 2023, arXiv:2309.16588) and SigLIP (Zhai 2023,
arXiv:2303.15343), side by side (Karamcheti 2024, arXiv:2402.07865, §4.2).

Sources: prismatic/extern/hf/modeling_prismatic.py of openvla/openvla; timm/models/vision_transformer.py of
huggingface/pytorch-image-models.
"""

from __future__ import annotations

from typing import Any

from ..config import Config
from ..parts import Table, layernorm
from .section import LinearLayer, TowerSection, biased_layer, projector, two_linear_layers, vision_transformer

DINOV2_L: Table = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
SO400M: Table = {"hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16, "intermediate_size": 4304}
SIZES_BY_TIMM_MODEL: dict[str, Table] = {
    "vit_large_patch14_reg4_dinov2": {**DINOV2_L, "registers": 4},
    "vit_so400m_patch14_siglip": SO400M,
}
"""Prefix of a model's name in timm → the model's sizes. A model without registers has a pooling head."""

PATCH_SIZE = 14


def _timm_encoder(root_config: Config, model_id: Any, image_size: Any) -> Table:
    """Returns an encoder of images of `image_size` pixels. Raises `InputError` for a model that is not supported."""
    encoder_sizes = next(
        (
            sizes
            for prefix, sizes in SIZES_BY_TIMM_MODEL.items()
            if isinstance(model_id, str) and model_id.startswith(prefix)
        ),
        None,
    )
    if encoder_sizes is None:
        raise root_config.error("timm_model_ids", model_id, f"names that start with {' or '.join(SIZES_BY_TIMM_MODEL)}")
    if type(image_size) is not int or image_size < PATCH_SIZE or image_size % PATCH_SIZE:
        raise root_config.error("image_sizes", image_size, f"multiples of {PATCH_SIZE}, one for each of timm_model_ids")
    config = Config({**encoder_sizes, "patch_size": PATCH_SIZE, "hidden_act": "gelu"}, {}, "timm")
    norm = layernorm(1e-6)
    block = biased_layer(config, norm)
    encoder_fields: Table = {"positions": {"rows": (image_size // PATCH_SIZE) ** 2}}
    if "registers" in encoder_sizes:
        block = {**block, "residual_scale": "output"}
        encoder_fields |= {"class_embedding": True, "registers": config.integer("registers")}
    else:
        encoder_fields["pooling"] = {
            "attention": block["attention"],
            "feed_forward": block["feed_forward"],
            "norm": norm,
        }
    return vision_transformer(config, block, stack={"final_norm": norm}, patch_fields={"bias": True}, **encoder_fields)


def _read_openvla(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads OpenVLA: one or two encoders, and a projector of two or three layers that reads all their outputs."""
    encoder_names, image_sizes = root_config.get("timm_model_ids"), root_config.get("image_sizes")
    is_fused = root_config.flag("use_fused_vision_backbone")
    encoder_count = 2 if is_fused else 1
    for field_name, listed_entries in (("timm_model_ids", encoder_names), ("image_sizes", image_sizes)):
        if not isinstance(listed_entries, list | tuple) or len(listed_entries) != encoder_count:
            raise root_config.error(
                field_name, listed_entries, f"a list of {encoder_count}, as use_fused_vision_backbone says"
            )
    encoder_and_sizes = zip(encoder_names, image_sizes, strict=True)
    encoder_tables = [_timm_encoder(root_config, *encoder_and_size) for encoder_and_size in encoder_and_sizes]
    encoder_width = sum(encoder["hidden_size"] for encoder in encoder_tables)
    linear_layers: tuple[LinearLayer, ...] = two_linear_layers(text_hidden_size)
    if is_fused:
        linear_layers = (
            (4 * encoder_width, True, "gelu"),
            (text_hidden_size, True, "gelu"),
            (text_hidden_size, True, "identity"),
        )
    towers = dict(zip(("vision_featurizer", "vision_fused_featurizer"), encoder_tables, strict=False))
    return {**towers, "projector": projector(encoder_width, *linear_layers, encoders=encoder_count)}


WRAPPERS = {
    "openvla": {
        "vision_backbone": TowerSection(
            _read_openvla,
            {"vision_backbone": {}},
            {"use_fused_vision_backbone": True, "timm_model_ids": None, "image_sizes": None},
            is_flat=True,
        )
    }
}
