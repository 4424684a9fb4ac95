"""Multimodal wrappers of a text model; a remark names each encoder that is not counted.

transformers: the folders of `models` that the model types name.
"""

from __future__ import annotations

from ...family import Family

MOST_STAGES = 16
FLORENCE_MODULES = {
    **{f"towers.embedding_{stage_index}": f"convs.{stage_index}" for stage_index in range(MOST_STAGES)},
    **{f"towers.layers_{stage_index}": f"blocks.{stage_index}" for stage_index in range(MOST_STAGES)},
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

FAMILIES = {
    "vision-encoder-decoder": Family(
        None,
        text_type="bert",
        text_section="decoder",
        is_decoder=True,
        tying_source="text",
        tower_file="vit",
        uncounted_encoders={"encoder": "vit"},  # of other types
    ),
    "speech-encoder-decoder": Family(
        None,
        text_type="bert",
        text_section="decoder",
        is_decoder=True,
        tying_source="text",
        uncounted_encoders={"encoder": "wav2vec2"},
    ),
    "fast_vlm": Family(
        None, text_type="qwen2", tying_source="either", uncounted_encoders={"vision_config": "timm_wrapper"}
    ),
    "perception_lm": Family(None, text_type="llama", uncounted_encoders={"vision_config": "timm_wrapper"}),
    "florence2": Family(None, text_type="bart", tower_file="florence", modules=FLORENCE_MODULES),
    "blip-2": Family(
        None,
        ignored_fields=frozenset({"qformer_config"}),  # read with the vision encoder
        text_type="opt",
        tying_source="text",
        tower_file="blip",
        uncounted_classes=("ForImageTextRetrieval", "WithProjection", "Blip2QFormerModel"),
    ),
    **{
        kind: Family(
            None,
            ignored_fields=frozenset({"qformer_config"}),  # read with the vision encoder
            text_type="opt",
            tying_source="text",
            tower_file="blip",
        )
        for kind in ("instructblip", "instructblipvideo")
    },
}
