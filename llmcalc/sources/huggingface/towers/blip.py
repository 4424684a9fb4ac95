"""BLIP: a vision transformer (Li 2022, arXiv:2201.12086). BLIP-2: also a Q-Former (Li 2023, arXiv:2301.12597).

InstructBLIP (Dai 2023, arXiv:2305.06500, §2.2). transformers: models/blip (`BlipVisionModel`), blip_2
(`Blip2VisionModel`, `Blip2QFormerModel`), instructblip, instructblipvideo.
"""

from __future__ import annotations

from ..class_defaults import class_defaults
from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, QKV_BIASES, Table, biases, layer_table, layernorm, mlp
from .granite import QFORMER_DEFAULTS, qformer
from .section import patches_per_side, projector, self_attention, vision_section, vision_transformer


def _image_encoder(config: Config, has_qkv_bias: bool = True) -> Table:
    """Returns the encoder of images of all BLIP's classes: a vision transformer with a class vector."""
    norm = layernorm(config.number("layer_norm_eps"))
    attention = self_attention(config, o_bias=True, **biases(has_qkv_bias, *QKV_BIASES))
    ffn = mlp(config.integer("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act"))
    return vision_transformer(
        config,
        layer_table(attention, ffn, norm),
        stack={"final_norm": norm},
        patch_fields={"bias": True},
        positions={"rows": patches_per_side(config) ** 2 + 1},
        class_embedding=True,
    )


def _read_blip(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    return {"vision_model": _image_encoder(config)}


def _read_instruct_blip(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads InstructBLIP; its queries also read the instruction, so an image alone determines no FLOPs."""
    qformer_type = f"{root_config.model_type}_qformer"
    text_fields = {"vocab_size": 30522, "max_position_embeddings": 512, "model_type": qformer_type}
    return _encoder_with_qformer(
        root_config, config, text_hidden_size, {**QFORMER_DEFAULTS, **text_fields}, qformer_type
    )


def _read_blip_2(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    towers = _encoder_with_qformer(root_config, config, text_hidden_size, QFORMER_DEFAULTS)
    query_count = root_config.integer("num_query_tokens")
    towers["vision_model"]["image"] = {"type": "fixed", "size": config.integer("image_size"), "tokens": query_count}
    return towers


def _encoder_with_qformer(
    root_config: Config, config: Config, text_hidden_size: int, qformer_defaults: Table, text_model_type: str = ""
) -> Table:
    """Reads the image encoder and its Q-Former. text_model_type: the model type of the text model."""
    hidden_size, query_count = config.integer("hidden_size"), root_config.integer("num_query_tokens")
    section = root_config.section("qformer_config", qformer_defaults)
    resampler = qformer(section, hidden_size, query_count, None, config, text_model_type)
    linear_layer = (text_hidden_size, True, "identity")
    return {
        "vision_model": _image_encoder(config, config.flag("qkv_bias")),
        "projector": projector(hidden_size, linear_layer, resampler=resampler, reads_class_embedding=True),
    }


VISION_DEFAULTS: Table = class_defaults("blip_2_vision_model")

BLIP_VISION_DEFAULTS: Table = class_defaults("blip_vision_model")
BLIP_FIELDS = field_names("dropout initializer_factor num_channels")

WRAPPERS = {
    "blip": vision_section(_read_blip, {"blip_vision_model": BLIP_VISION_DEFAULTS}, ignored_fields=BLIP_FIELDS),
    "blip-2": vision_section(_read_blip_2, {"blip_2_vision_model": VISION_DEFAULTS}, ignored_fields=BLIP_FIELDS),
    **{
        kind: vision_section(
            _read_instruct_blip,
            {f"{kind}_vision_model": VISION_DEFAULTS},
            ignored_fields=BLIP_FIELDS,
        )
        for kind in ("instructblip", "instructblipvideo")
    },
}
