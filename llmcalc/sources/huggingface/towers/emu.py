"""Emu 3's image tokenizer, a VQ-VAE (Wang 2024, arXiv:2409.18869, §2.1).

transformers: models/emu3 (`Emu3VQVAE`).
"""

from __future__ import annotations

from math import log2

from ....components.base import LARGEST
from ..config import Config
from ..parts import QKVO, Table, biases, layernorm
from .section import Section, self_attention

GROUPS = 32
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
"""How Emu 3's processor resizes an image, and its marks: two before and two after the tokens.

The processor also writes the number of lines and columns in digits, which count as text.
"""


def _read_emu3(wrapper: Config, config: Config, width: int) -> Table:
    """Reads the tokenizer, all of whose levels with attention have hidden_size channels."""
    config.require("double_latent", False)
    base_channels, multipliers = config.size("base_channels"), _read_numbers(config, "channel_multiplier", least=1)
    attended_levels = _read_numbers(config, "attn_resolutions", least=0)
    hidden = config.size("hidden_size")
    for multiple in multipliers:
        if base_channels * multiple % GROUPS:
            raise config.error("channel_multiplier", multiple, f"a number that makes a multiple of {GROUPS} channels")
    for level in {*(level for level in attended_levels if level < len(multipliers)), len(multipliers) - 1}:
        if base_channels * multipliers[level] != hidden:
            raise config.error(
                "hidden_size", hidden, f"{base_channels * multipliers[level]}, the channels of level {level}"
            )
    tokenizer = {
        "type": "image_tokenizer",
        "in_channels": config.size("in_channels"),
        "out_channels": config.size("out_channels"),
        "base_channels": base_channels,
        "channel_multiplier": multipliers,
        "num_res_blocks": config.size("num_res_blocks"),
        "attn_resolutions": [level for level in attended_levels if level < len(multipliers)],
        "attention": self_attention(config, **biases(True, *QKVO)),
        "latent_channels": config.size("latent_channels"),
        "embed_dim": config.size("embed_dim"),
        "codebook_size": config.size("codebook_size"),
        "temporal_levels": int(log2(config.size("temporal_downsample_factor"))),
        "norm": layernorm(1e-6),
        "norm_groups": GROUPS,
    }
    if 2 ** (len(multipliers) - 1) == PIXELS_PER_TOKEN:
        tokenizer["image"] = IMAGE_RULE
    return {"image_tokenizer": tokenizer}


def _read_numbers(config: Config, name: str, least: int) -> list[int]:
    """Reads a list of whole numbers of at least `least`."""
    numbers = config.get(name)
    if not isinstance(numbers, list | tuple) or any(
        type(number) is not int or not least <= number <= LARGEST for number in numbers
    ):
        raise config.error(name, numbers, f"a list of whole numbers of at least {least}")
    if least and not numbers:
        raise config.error(name, numbers, "one number or more")
    return list(numbers)


EMU3: Table = {
    "codebook_size": 32768,
    "embed_dim": 4,
    "latent_channels": 4,
    "double_latent": False,
    "in_channels": 3,
    "out_channels": 3,
    "temporal_downsample_factor": 4,
    "base_channels": 256,
    "channel_multiplier": (1, 2, 2, 4),
    "num_res_blocks": 2,
    "attn_resolutions": (3,),
    "hidden_size": 1024,
    "num_attention_heads": 1,
}

WRAPPERS = {
    "emu3": {"vq_config": Section(_read_emu3, {"emu3_vqgan": EMU3}, ignored_fields=frozenset({"attention_dropout"}))}
}
