"""Image encoders for a text decoder: ViT and DeiT (TrOCR, captions by GPT-2), Swin (Donut, Nougat).

Dosovitskiy et al. 2020 (arXiv:2010.11929), Touvron et al. 2020 (arXiv:2012.12877), Liu et al. 2021 (arXiv:2103.14030).
transformers: models/vit, deit, swin, donut and vision_encoder_decoder.
"""

from __future__ import annotations

from math import prod

from ..class_defaults import class_defaults
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
    return towers | _projector_to_decoder(root_config, hidden_size, text_hidden_size)


def _projector_to_decoder(root_config: Config, hidden_size: int, text_hidden_size: int) -> Table:
    """Returns the projection to the decoder's width; empty if none is needed."""
    decoder_fields = root_config.table("decoder")
    if hidden_size != text_hidden_size and decoder_fields.get("cross_attention_hidden_size") is None:
        return {"enc_to_dec_projector": projector(hidden_size, (text_hidden_size, True, "identity"))}
    return {}


def _read_swin(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Swin, or Donut's Swin, which has no final norm and one more row in its position table."""
    is_donut = config.model_type == "donut-swin"
    first_width, depths, head_counts = (
        config.integer("embed_dim"),
        config.integers("depths"),
        config.integers("num_heads"),
    )
    if not depths or 0 in depths:
        raise config.error("depths", depths, "a positive number of layers per stage")
    if len(head_counts) != len(depths) or 0 in head_counts:
        raise config.error("num_heads", head_counts, f"{len(depths)} positive numbers, one per stage of depths")
    activation, ratio = config.choice(ACTIVATIONS, "hidden_act"), config.number("mlp_ratio")
    patch_size = config.integer("patch_size")
    encoder: Table = {
        "type": "swin",
        "hidden_size": first_width,
        "first_patches": {"patch_size": patch_size, "num_channels": config.integer("num_channels"), "bias": True},
        "stages": [
            {
                "num_hidden_layers": layer_count,
                "num_attention_heads": head_count,
                "feed_forward": mlp(int(ratio * first_width * 2**stage_index), activation),
            }
            for stage_index, (layer_count, head_count) in enumerate(zip(depths, head_counts, strict=True))
        ],
        "window_size": config.integer("window_size"),
        "qkv_bias": config.flag("qkv_bias"),
        "norm": layernorm(config.number("layer_norm_eps")),
        "final_norm": not is_donut,
    }
    if config.flag("use_absolute_embeddings"):
        is_square = not isinstance(config.get("image_size"), list | tuple)
        sides = [config.integer("image_size")] * 2 if is_square else config.integers("image_size")
        if len(sides) != 2 or min(sides) < patch_size:
            raise config.field_error("image_size", f"a height and a width of at least patch_size, {patch_size}")
        encoder["positions"] = {"rows": prod(side // patch_size for side in sides) + is_donut}
    output_width = first_width * 2 ** (len(depths) - 1)
    config.require_if_present("hidden_size", output_width)
    return {"vision_encoder": encoder} | _projector_to_decoder(root_config, output_width, text_hidden_size)


def _read_encoder(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    read_tower = _read_swin if config.model_type in ("donut-swin", "swin") else _read_vit
    return read_tower(root_config, config, text_hidden_size)


VIT_DEFAULTS: Table = class_defaults("vit")
SWIN_DEFAULTS: Table = class_defaults("donut-swin")

WRAPPERS = {
    "vision-encoder-decoder": {
        "encoder": TowerSection(
            _read_encoder,
            {"vit": VIT_DEFAULTS, "deit": VIT_DEFAULTS, "donut-swin": SWIN_DEFAULTS, "swin": SWIN_DEFAULTS},
            default_section=None,
            ignored_fields=field_names("""
                add_final_layer_norm attention_probs_dropout_prob drop_path_rate encoder_stride hidden_dropout_prob
                num_layers out_features out_indices path_norm pooler_act stage_names tie_word_embeddings
                """),
        )
    }
}
