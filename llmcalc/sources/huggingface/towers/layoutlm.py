"""LayoutLMv3's embeddings of page-image patches, which its layers read after the embeddings of words.

Huang et al. 2022 (arXiv:2204.08387), §2.1. transformers: models/layoutlmv3 (`LayoutLMv3Model.forward_image`).
"""

from __future__ import annotations

from ..config import Config
from ..parts import Table, layernorm
from .section import TowerSection


def _read_patches(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    if not root_config.flag("visual_embed"):
        return {}
    side = root_config.integer("input_size") // root_config.integer("patch_size")
    return {
        "vision_embeddings": {
            "type": "patches",
            "hidden_size": text_hidden_size,
            "patches": {**root_config.integer_fields("patch_size", "num_channels"), "bias": True},
            "class_embedding": True,
            "positions": {"rows": side * side + 1},
            "out_norms": [layernorm(1e-6), layernorm(root_config.number("layer_norm_eps"))],
        }
    }


WRAPPERS = {"layoutlmv3": {"vision_embeddings": TowerSection(_read_patches, {"patches": {}}, is_flat=True)}}
