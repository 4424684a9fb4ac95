"""DeepSeek-OCR 2 and Unlimited-OCR, whose text models have DeepSeek's experts with multi-head attention.

transformers: models/deepseek_ocr2, models/unlimited_ocr.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, field_names
from ...parts import DENSE_OR_MOE, Table, attention, attention_biases, listed_kinds
from ..multimodal.multimodal import SAM_MODULES
from .deepseek import ROUTING_FIELDS, deepseek_decoder, routed_experts


def _routed_experts(config: Config, layer_kinds: list[str]) -> Table:
    has_bias = config.flag("mlp_bias")
    config.integer("n_shared_experts")
    attention_table = attention(config, head_dim=None, **attention_biases(config))
    return deepseek_decoder(config, attention_table, routed_experts(config, has_bias, ()), layer_kinds, has_bias)


def _read_deepseek_ocr2_text(config: Config) -> Table:
    depth = config.integer("num_hidden_layers")
    if config.get("mlp_layer_types") is None:
        raise config.error("mlp_layer_types", None, f"{depth} names, one for each layer; the class has no default")
    return _routed_experts(config, listed_kinds(config, "mlp_layer_types", DENSE_OR_MOE, ["moe"] * depth))


def _read_unlimited_ocr_text(config: Config) -> Table:
    """Reads Unlimited-OCR, whose layers attend to the whole prompt and to a window of generated tokens.

    A spec does not tell a prompt from the tokens after it, so that its layers attend to all of them; a remark says so.
    """
    depth, first_expert_layer = config.integer("num_hidden_layers"), config.count("first_k_dense_replace")
    window_size = config.integer("sliding_window")
    layer_kinds = config.get("layer_types")
    if layer_kinds is not None and len(config.texts("layer_types")) != depth:
        raise config.error("layer_types", layer_kinds, f"{depth} names, one for each layer")
    if layer_kinds is None or "reference_sliding_attention" in config.texts("layer_types"):
        config.notes.append(
            f"sliding_window: layers attend to the prompt and to the last {window_size} tokens after it; counted as "
            "attending to all tokens, which is exact for the prompt and the most for tokens after it"
        )
    default_layer_kinds = ["dense" if layer_index < first_expert_layer else "moe" for layer_index in range(depth)]
    return _routed_experts(config, listed_kinds(config, "mlp_layer_types", DENSE_OR_MOE, default_layer_kinds))


OCR_MODULES = {
    **SAM_MODULES,
    "towers.vision_tower": "vision_tower",
    "towers.patch_embedding": "sam_encoder.patch_embed.projection",
    "towers.vision_tower.position_embedding": "sam_encoder.pos_embed",
    "towers.vision_tower.layers": "sam_encoder.layers",
    "towers.neck": "sam_encoder.neck",
    "towers.halving_1": "sam_encoder.proj.conv1",
    "towers.halving_2": "sam_encoder.proj.conv2",
    "towers.up_proj": "lin1 | fc1 | up_proj",
    "towers.down_proj": "lin2 | fc2 | down_proj",
    "towers.reader": "vision_encoder + .query_1024_resolution + .query_768_resolution | vision_encoder",
    "towers.reader.query": ".query_1024_resolution",
    "towers.reader.other_query": ".query_768_resolution",
    "towers.reader.class_embedding": "embeddings.class_embedding",
    "towers.reader.position_embedding": "embeddings.position_embedding",
    "towers.reader.layers": "layers | encoder.layers",
    "towers.reader.embed_norm": "pre_layrnorm",
    "towers.map_1": "multi_modal_projector",
    "towers.output_marks": ".view_separator + .image_newline | .view_separator",
}
"""Node of DeepSeek-OCR's encoders → module of the class; the encoders are SAM and the layers that read its output."""

LATENT_FIELDS = field_names(
    "kv_lora_rank lm_head q_lora_rank qk_nope_head_dim qk_rope_head_dim rm_head use_mla v_head_dim"
)
"""Fields of DeepSeek-V2's latent attention in Unlimited-OCR's published config, which its class ignores."""

FAMILIES = {
    "deepseek_ocr2": Family(None, text_type="deepseek_ocr2_text", tower_file="sam", modules=OCR_MODULES),
    "deepseek_ocr2_text": Family(
        _read_deepseek_ocr2_text, {"moe_layer_freq": 1}, ROUTING_FIELDS | {"first_k_dense_replace"}
    ),
    "unlimited_ocr": Family(None, text_type="unlimited_ocr_text", tower_file="sam", modules=OCR_MODULES),
    "unlimited_ocr_text": Family(
        _read_unlimited_ocr_text, {"moe_layer_freq": 1, "first_k_dense_replace": 1}, ROUTING_FIELDS | LATENT_FIELDS
    ),
}
