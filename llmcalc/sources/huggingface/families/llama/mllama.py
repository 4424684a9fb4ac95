"""Llama 3.2 Vision (mllama): Llama's layers, interleaved with layers that attend to the image.

A pass over text alone skips the latter, and so do its counts: their parameters are counted, and no FLOPs and no cache.

transformers: models/mllama.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import Table, attention, decoder, glu, layer_pattern, layer_table, qk_norm_fields, rmsnorm

EXTRA_EMBEDDING_ROWS = 8
"""Rows of the embedding beyond the vocabulary, which the class adds."""


def _read_mllama_text_model(config: Config) -> Table:
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    listed_layers = config.get("cross_attention_layers")
    cross_layers = (
        {3, 8, 13, 18, 23, 28, 33, 38} if listed_layers is None else {*config.integers("cross_attention_layers")}
    )
    attention_table = attention(config, head_dim=None)
    layer: Table = layer_table(attention_table, glu(config), norm)
    image_layer: Table = {"type": "gated_cross", "attention": {"position": "none", **qk_norm_fields(norm)}}
    layer_kinds = ["image" if layer_index in cross_layers else "block" for layer_index in range(depth)]
    if "image" in layer_kinds:
        config.notes.append(
            "cross_attention_layers: their parameters are counted; their products with the image are not counted"
        )
    stack_fields = {"variants": {"image": image_layer}, **layer_pattern(layer_kinds)} if "image" in layer_kinds else {}
    return decoder(config, layer, norm, stack=stack_fields, additional_vocab_size=EXTRA_EMBEDDING_ROWS)


FAMILIES = {
    "mllama": Family(
        None,
        text_type="mllama_text_model",
        tying_source="never",
        tower_file="mllama",
        modules={
            "towers.vision_model.layers": "transformer.layers",
            "towers.vision_model.upper.layers": "global_transformer.layers",
            "towers.multi_modal_projector.map_1": "multi_modal_projector",
        },
    ),
    "mllama_text_model": Family(_read_mllama_text_model, dropout_fields={"attention": "dropout"}),
}
