"""Florence-2: BART whose encoder reads image vectors before the text tokens.

Xiao 2023 (arXiv:2311.06242, §4.1). transformers: models/florence2; modeling_florence2.py of microsoft/Florence-2-large.
"""

from __future__ import annotations

from .....components.towers.davit import MAX_STAGES
from ...family import Family

MODULES = {
    **{f"towers.embedding_{stage_index}": f"convs.{stage_index}" for stage_index in range(MAX_STAGES)},
    **{f"towers.layers_{stage_index}": f"blocks.{stage_index}" for stage_index in range(MAX_STAGES)},
    "towers.window_block": "spatial_block",
    "towers.self_attn": "window_attn | channel_attn",
    "towers.o_proj": "proj",
    "towers.conv_1": "conv1",
    "towers.conv_2": "conv2",
    "towers.self_attn_pre_norm": "norm1",
    "towers.mlp_pre_norm": "norm2",
    "towers.mlp": "ffn",
    "towers.up_proj": "fc1",
    "towers.down_proj": "fc2",
    "towers.map_1": "image_projection",
    "towers.out_norm": "image_proj_norm",
    "towers.row_positions": "image_position_embed.row_embeddings",
    "towers.column_positions": "image_position_embed.column_embeddings",
}
"""Node of Florence-2's encoder and projector → module of its class."""

FAMILIES = {"florence2": Family(None, text_type="bart", tower_file="florence", modules=MODULES)}
