"""Fuyu's vision: one linear layer from the pixels of a patch to the text model's width, without an encoder.

Adept 2023 (Fuyu-8B). transformers: models/fuyu (`FuyuModel.vision_embed_tokens`).
"""

from __future__ import annotations

from ..config import Config
from ..parts import Table
from .section import TowerSection


def _read_fuyu(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    patch_fields = {**root_config.integer_fields("patch_size", "num_channels"), "bias": True}
    return {"vision_embed_tokens": {"type": "patches", "hidden_size": text_hidden_size, "patches": patch_fields}}


WRAPPERS = {"fuyu": {"vision_embed_tokens": TowerSection(_read_fuyu, {"patches": {}}, is_flat=True)}}
