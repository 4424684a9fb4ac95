"""Ultrabert: an encoder of Llama's layers, two of three with a sliding window, and a bottleneck head.

UltraVBERT adds an encoder of images, which is not counted.

transformers: models/ultrabert, models/ultravbert.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    attention,
    attention_biases,
    bidirectional_stack,
    encoder,
    glu,
    kinds_with_nth_full,
    layer_pattern,
    layer_table,
    listed_kinds,
    rmsnorm,
    rope,
)


def _read_ultrabert(config: Config) -> Table:
    config.quotient("num_attention_heads", config.integer("hidden_size"), config.integer("num_attention_heads"))
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    config.choice({"cls": "sequence", "mean": "sequence"}, "classifier_pooling")
    attention_table = attention(config, position=rope(config, layer_kind="full_attention"), **attention_biases(config))
    layer_kinds, window = _layer_kinds_and_distance(config, depth)
    window_fields = {"position": rope(config, layer_kind="sliding_attention"), "sliding_window": window}
    block = layer_table(attention_table, glu(config, config.flag("mlp_bias")), norm)
    layer_variants: Table = {"full": {}, "sliding": {"attention": window_fields}}
    used_variants = {layer_kind: layer_variants[layer_kind] for layer_kind in dict.fromkeys(layer_kinds)}
    stack_fields = bidirectional_stack(
        {"block": block, "variants": used_variants, **layer_pattern(layer_kinds)}, lambda distance: distance
    )
    bottleneck_size = config.integer("prediction_head_size")
    head_fields = {
        "transform": {"bottleneck_size": bottleneck_size, "hidden_act": "gelu_tanh", "bias": False, "norm": None}
    }
    return encoder(config, block, {**stack_fields, "final_norm": norm}, head_fields, {}, label_count=2)


def _layer_kinds_and_distance(config: Config, depth: int) -> tuple[list[str], int]:
    """Returns each layer's kind and the distance to which windows reach, from either form of the config."""
    layer_kinds, window_distance = kinds_with_nth_full(depth, 3), config.integer("sliding_window")
    if config.get("attention_windows") is not None:
        windows = config.integers("attention_windows")
        if len(windows) != depth:
            raise config.error("attention_windows", windows, f"{depth} whole numbers, 0 for a layer without a window")
        layer_kinds = ["sliding" if window else "full" for window in windows]
        window_distance = next((window for window in windows if window), window_distance)
    return listed_kinds(config, "layer_types", FULL_OR_SLIDING, layer_kinds), window_distance


FAMILIES = {
    "ultrabert": Family(
        _read_ultrabert,
        {"attention_windows": None},
        modules={"lm_head": "head", "lm_head.bottleneck": "linear1", "lm_head.dense": "linear2"},
        earlier_names={"model": "ultrabert", "head.decoder": "cls"},
    ),
    "ultravbert": Family(
        None,
        text_type="ultrabert",
        tower_file="siglip",
        modules={
            "lm_head": "projection_head + lm_head",
            "lm_head.decoder": ".lm_head",
            "towers.connector.out_norm": "norm",
        },
    ),
}
