"""Module names of vision and audio encoders and their projectors in the classes of `transformers`.

Wrappers share encoders, so these names are not by family. Names of only one wrapper are in its record, after `towers.`.
"""

from __future__ import annotations

from ..family import ModuleNames

TOWER_MODULES: ModuleNames = {
    "layers": "encoder.layers | encoder.layer | transformer.layers | blocks | layers | encoders",
    "patch_embedding": "embeddings.patch_embedding | embeddings.patch_embeddings.projection | patch_embed.proj | "
    "patch_embed | patch_conv | patch_embedding.linear | patch_embedder.input_proj | "
    "patch_embedder.patch_embedding | embeddings.proj | patch_dense",
    "position_embedding": "embeddings.position_embedding | embeddings.position_embeddings | pos_embed | "
    "patch_embed.pos_emb.position_embeddings | patch_embedder.position_embedding_table | positional_embedding_vlm | "
    "pos_embedding | gated_positional_embedding.embedding",
    "pre_tile_embedding": "pre_tile_positional_embedding",
    "post_tile_embedding": "post_tile_positional_embedding",
    "tile_positions": "gated_positional_embedding - gated_positional_embedding.embedding",
    "tile_positions.embedding": "tile_embedding",
    "class_embedding": "embeddings.class_embedding | embeddings.cls_token",
    "embed_norm": "pre_layrnorm | pre_layernorm | layernorm_pre | ln_pre | embedding_norm | post_conv_layernorm",
    "norm": "post_layernorm | layernorm_post | ln_post | final_layernorm | layernorm | layer_norm | ln",
    "self_attn": "self_attn | attention | attn",
    "q_proj": "q_proj | qkv/3 | q",
    "k_proj": "k_proj | qkv/3 | k",
    "v_proj": "v_proj | qkv/3 | v",
    "o_proj": "o_proj | out_proj | proj | projection_layer | post",
    "self_attn_pre_norm": "layer_norm1 | norm1 | input_layernorm | layernorm_before | attention_norm | operator_norm | "
    "self_attn_layer_norm | norm_pre_attn | layer_norm_att",
    "self_attn_post_norm": "post_attention_layernorm | norm_post_attn",
    "self_attn_out_scale": "lambda_1",
    "self_attn_out_gate": "gate_attn",
    "mlp_out_gate": "gate_ffn",
    "conv_pre_norm": "operator_norm",
    "conv.conv": "spatial_conv",
    "mlp": "mlp | feed_forward | fc1 + fc2",
    "gate_proj": "gate_proj | w1 | gate_up_proj/2",
    "up_proj": "up_proj | fc1 | linear_fc1 | w3 | gate_up_proj/2 | .fc1",
    "down_proj": "down_proj | fc2 | linear_fc2 | w2 | .fc2",
    "mlp_pre_norm": "layer_norm2 | norm2 | pre_feedforward_layernorm | post_attention_layernorm | layernorm_after | "
    "ffn_norm | final_layer_norm",
    "mlp_post_norm": "post_feedforward_layernorm",
    "mlp_out_scale": "lambda_2",
    "pooling": "head",
    "pooling.norm": "layernorm",
    "pooling.attention.q_proj": "in_proj_weight + in_proj_bias/3",
    "pooling.attention.k_proj": "in_proj_weight + in_proj_bias/3",
    "pooling.attention.v_proj": "in_proj_weight + in_proj_bias/3",
    "stem": "conv1 + conv2",
    "stem.conv1": ".conv1",
    "stem.conv2": ".conv2",
    "multi_modal_projector.norm": "layer_norm | layernorm | norm | mm_soft_emb_norm",
    "mm_projector.norm": "pre_norm",
    "map_1": "linear_1 | linear | linear_fc1 | in_proj | mlp.0 | mm_input_projection_weight | embedding_projection | "
    "modality_projection.proj | modality_projection | fc1",
    "map_2": "linear_2 | linear_fc2 | out_proj | mlp.2 | fc2",
    "visual_merger": "visual.merger",
    "visual_merger.norm": "norm | ln_q",
    "visual_deepstack_0": "visual.deepstack_merger_list.0",
    "visual_deepstack_1": "visual.deepstack_merger_list.1",
    "visual_deepstack_2": "visual.deepstack_merger_list.2",
    "output_marks": ".image_newline",
    "visual_downsample": "visual",
    "visual_downsample.map_1": "downsample",
    "visual_network": "visual.merger",
    "visual_network.map_1": "gate_proj + up_proj",
    "visual_network.map_2": "down_proj",
    "visual_merger.map_1": "mlp.0 | linear_fc1 | proj",
    "visual_merger.out_norm": "post_projection_norm",
}
