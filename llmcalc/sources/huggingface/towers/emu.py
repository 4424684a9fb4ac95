"""Image tokenizers, VQ-VAEs: Emu 3 (Wang 2024, arXiv:2409.18869, §2.1), Janus (Wu 2024, arXiv:2410.13848), Chameleon.

transformers: models/emu3 (`Emu3VQVAE`), models/janus (`JanusVQVAE`; with the encoder of images that Janus reads),
    models/chameleon (`ChameleonVQVAE`).
"""

from __future__ import annotations

from math import log2

from ....components.base import LARGEST_SIZE
from ..class_defaults import class_defaults
from ..config import Config
from ..parts import ACTIVATIONS, QKV_BIASES, QKVO_BIASES, Table, attention_biases, biases, layer_table, layernorm, mlp
from .section import TowerSection, patches_per_side, projector, self_attention, vision_transformer

NORM_GROUPS = 32
"""The groups of channels of a norm in Emu 3's class."""


PIXELS_PER_TOKEN = 8
"""The pixels on each side of a token in Emu 3's processor."""

IMAGE_RULE: Table = {
    "type": "smart_resize",
    "merge": 1,
    "min_pixels": 512 * 512,
    "max_pixels": 1024 * 1024,
    "line_marks": True,
    "marks": 4,
}
"""The fields of the rule by which Emu 3's processor resizes an image, with two mark tokens before and two after it.

The processor also writes the number of lines and columns in digits, which count as text.
"""


def _read_emu3(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Emu 3's image tokenizer. Its levels with attention must have hidden_size channels."""
    base_channels, channel_multipliers = _read_channels(config)
    attended_levels = _read_numbers(config, "attn_resolutions", minimum=0)
    hidden_size = config.integer("hidden_size")
    for channel_level in {
        *(level for level in attended_levels if level < len(channel_multipliers)),
        len(channel_multipliers) - 1,
    }:
        if base_channels * channel_multipliers[channel_level] != hidden_size:
            raise config.error(
                "hidden_size",
                hidden_size,
                f"{base_channels * channel_multipliers[channel_level]}, the channels of level {channel_level}",
            )
    tokenizer = _image_tokenizer_fields(config, base_channels, channel_multipliers) | {
        "attn_resolutions": [level for level in attended_levels if level < len(channel_multipliers)],
        "attention": self_attention(config, **biases(True, *QKVO_BIASES)),
        "out_channels": config.integer("out_channels"),
        "codebook_size": config.integer("codebook_size"),
        "temporal_levels": int(log2(config.integer("temporal_downsample_factor"))),
    }
    if 2 ** (len(channel_multipliers) - 1) == PIXELS_PER_TOKEN:
        tokenizer["image"] = IMAGE_RULE
    return {"image_tokenizer": tokenizer}


def _read_channels(config: Config) -> tuple[int, list[int]]:
    """Returns the channels of the tokenizer's first level, and each level's multiple of them."""
    config.require("double_latent", False)
    base_channels = config.integer("base_channels")
    channel_multipliers = _read_numbers(config, "channel_multiplier", minimum=1)
    for multiplier in channel_multipliers:
        if base_channels * multiplier % NORM_GROUPS:
            raise config.error(
                "channel_multiplier", multiplier, f"a number that makes a multiple of {NORM_GROUPS} channels"
            )
    return base_channels, channel_multipliers


def _image_tokenizer_fields(config: Config, base_channels: int, channel_multipliers: list[int]) -> Table:
    """Returns the fields that the image tokenizers share."""
    return {
        "type": "image_tokenizer",
        "in_channels": config.integer("in_channels"),
        "base_channels": base_channels,
        "channel_multiplier": channel_multipliers,
        **config.integer_fields("num_res_blocks", "latent_channels", "embed_dim"),
        "norm": layernorm(1e-6),
        "norm_groups": NORM_GROUPS,
    }


def _read_janus_tokenizer(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Janus's image tokenizer, and the weights with which the text model generates images."""
    base_channels, channel_multipliers = _read_channels(config)
    projection_width, code_count = config.integer("projection_dim"), config.integer("num_embeddings")
    activation = config.choice(ACTIVATIONS, "hidden_act")
    head = [{"size": projection_width, "bias": True, "hidden_act": activation}, {"size": code_count, "bias": True}]
    maps = _aligner_layers(config.integer("num_hidden_layers"), projection_width, activation)
    tokenizer = _image_tokenizer_fields(config, base_channels, channel_multipliers) | {
        "attn_resolutions": [len(channel_multipliers) - 1],
        "attention": {"num_attention_heads": 1, **biases(True, *QKVO_BIASES)},
        "out_channels": config.integer("out_channels"),
        "codebook_size": code_count,
        "over_frames": False,
        "generation": {"maps": maps, "head_input_size": config.integer("image_token_embed_dim"), "head": head},
    }
    return {"image_tokenizer": tokenizer}


def _read_chameleon_tokenizer(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Chameleon's image tokenizer, whose class has only the first convolution of its decoder.

    `attn_resolutions` lists the sides of the grids whose levels have attention.
    """
    config.require("attn_type", "vanilla")
    base_channels, channel_multipliers = _read_channels(config)
    side = config.integer("resolution")
    attended_sides = _read_numbers(config, "attn_resolutions", minimum=0) if config.has("attn_resolutions") else []
    level_count = len(channel_multipliers)
    tokenizer = _image_tokenizer_fields(config, base_channels, channel_multipliers) | {
        "attn_resolutions": [level for level in range(level_count) if side // 2**level in attended_sides],
        "attention": {"num_attention_heads": 1, **biases(True, *QKVO_BIASES)},
        "codebook_size": config.integer("num_embeddings"),
        "over_frames": False,
        "has_decoder": False,
    }
    if side % 2 ** (level_count - 1) == 0:
        tokens = (side // 2 ** (level_count - 1)) ** 2
        tokenizer["image"] = {"type": "fixed", "size": side, "tokens": tokens, "marks": 2}
    return {"image_tokenizer": tokenizer}


def _aligner_layers(layer_count: int, text_hidden_size: int, activation: str) -> list[Table]:
    """Returns linear layers of equal width, with an activation between each two."""
    linear_layer = {"size": text_hidden_size, "bias": True}
    return [{**linear_layer, "hidden_act": activation}] * (layer_count - 1) + [linear_layer]


def _read_janus(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Janus's encoder for image understanding: SigLIP (attention with or without biases), and linear layers."""
    config.require("use_qk_norm", False)
    hidden_size, activation = config.integer("hidden_size"), config.choice(ACTIVATIONS, "hidden_act")
    image_tokens, norm = config.integer("num_image_tokens"), layernorm(config.number("layer_norm_eps"))
    attention = self_attention(config, o_bias=True, **attention_biases(config, QKV_BIASES))
    tower = vision_transformer(
        config,
        layer_table(attention, mlp(int(hidden_size * config.number("mlp_ratio")), activation), norm),
        stack={"final_norm": norm},
        patch_fields={"num_channels": config.integer("num_channels"), "bias": True},
        positions={"rows": patches_per_side(config) ** 2},
    )
    if image_tokens == patches_per_side(config) ** 2:
        tower["image"] = {"type": "fixed", "size": config.integer("image_size"), "tokens": image_tokens, "marks": 2}
    linear_layers = _aligner_layers(config.integer("depth"), config.integer("projection_dim"), activation)
    return {"vision_model": tower, "aligner": {**projector(hidden_size), "maps": linear_layers}}


def _read_numbers(config: Config, field_name: str, minimum: int) -> list[int]:
    """Reads a list of whole numbers of at least `minimum`."""
    listed_numbers = config.get(field_name)
    if not isinstance(listed_numbers, list | tuple) or any(
        type(number) is not int or not minimum <= number <= LARGEST_SIZE for number in listed_numbers
    ):
        raise config.error(field_name, listed_numbers, f"a list of whole numbers of at least {minimum}")
    if minimum and not listed_numbers:
        raise config.error(field_name, listed_numbers, "one number or more")
    return list(listed_numbers)


EMU3_DEFAULTS: Table = class_defaults("emu3_vqgan")

JANUS_VISION_DEFAULTS: Table = class_defaults("janus_vision_model")
JANUS_TOKENIZER_DEFAULTS: Table = class_defaults("janus_vqgan")

CHAMELEON_DEFAULTS: Table = class_defaults("chameleon_vqgan")

WRAPPERS = {
    "chameleon": {"vq_config": TowerSection(_read_chameleon_tokenizer, {"chameleon_vqgan": CHAMELEON_DEFAULTS})},
    "janus": {
        "vision_config": TowerSection(
            _read_janus,
            {"janus_vision_model": JANUS_VISION_DEFAULTS},
            ignored_fields=frozenset({"hidden_dropout_rate", "projection_dropout"}),
        ),
        "vq_config": TowerSection(
            _read_janus_tokenizer, {"janus_vqgan": JANUS_TOKENIZER_DEFAULTS}, ignored_fields=frozenset({"num_patches"})
        ),
    },
    "emu3": {
        "vq_config": TowerSection(
            _read_emu3, {"emu3_vqgan": EMU3_DEFAULTS}, ignored_fields=frozenset({"attention_dropout"})
        )
    },
}
