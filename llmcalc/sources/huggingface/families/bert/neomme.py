"""NeoMME, an encoder of text and image patches: exclusive attention, value embeddings, a factorized embedding.

transformers: models/neomme. The first and the last layer with full attention add value embeddings. Sliding layers have
a short and a long window in turn.
"""

from __future__ import annotations

from ...config import Config, is_json_integer
from ...family import Family
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    class_name_of_config,
    encoder,
    listed_kinds,
    mlp,
    rmsnorm,
    rope,
    stack_of_layers,
)

LONG_WINDOW = 1024
"""The distance that every second sliding layer attends to, unless the config lists windows."""


def _read_neomme(config: Config) -> Table:
    norm = rmsnorm(config.number("norm_eps"), weight=False)
    depth, head_count = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    kv_head_count, head_dim = config.integer("num_key_value_heads"), config.integer("head_dim")
    if head_count % kv_head_count:
        raise config.error("num_key_value_heads", kv_head_count, f"a divisor of num_attention_heads ({head_count})")
    default_layer_kinds = [
        "full" if (layer_index + 1) % 6 == 0 or layer_index == depth - 1 else "sliding" for layer_index in range(depth)
    ]
    layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    if "full" not in layer_kinds:
        raise config.field_error("layer_types", "at least one full_attention")
    full_layers = [layer_index for layer_index, layer_kind in enumerate(layer_kinds) if layer_kind == "full"]
    full = _rotary_positions(config, "full", 0.25, 1e6)
    position_by_kind = {"full": full, "sliding": _rotary_positions(config, "sliding", 1.0, 1e4)}
    layers: list[tuple[str, Table]] = []
    for layer_index, (layer_kind, window_distance) in enumerate(
        zip(layer_kinds, _window_distances(config, layer_kinds), strict=True)
    ):
        token_mixer: Table = {"position": position_by_kind[layer_kind]}
        layer_variant = layer_kind
        if window_distance is not None:
            layer_variant = f"sliding_{window_distance}"
            token_mixer["sliding_window"] = 2 * window_distance + 1
        elif layer_index in (full_layers[0], full_layers[-1]):
            layer_variant, token_mixer["adds_embeddings"] = "full_with_embeddings", True
        layers.append((layer_variant, {"attention": token_mixer}))
    attention = {
        "type": "exclusive",
        "num_attention_heads": head_count,
        "num_key_value_heads": kv_head_count,
        "head_dim": head_dim,
        "attention_bias": config.flag("attention_bias"),
        "norm": norm,
    }
    has_bias = config.flag("mlp_bias")
    ffn = mlp(config.integer("intermediate_size"), "relu2", has_bias)
    config.require("hidden_act", "relu2")
    block = {"type": "initial_states", "attention": attention, "feed_forward": ffn, "norm": norm}
    vocab_size = config.integer("vocab_size")
    value_embedding = {"vocab_size": vocab_size, "num_key_value_heads": kv_head_count, "head_dim": head_dim}
    streams = {"type": "value_embeddings", **value_embedding}
    stack_fields = {**stack_of_layers(layers), "streams": streams, "embedding_norm": norm, "final_norm": norm}
    is_tied = config.flag("tie_word_embeddings")
    config.notes.append("patch_size: the projection of images' patches is not counted")
    vector_size = config.integer("embedding_dim")
    is_retrieval_model = config.head_kind == "lm" and class_name_of_config(config).endswith("ForRetrieval")
    config.head_kind = "none" if is_retrieval_model else config.head_kind
    model_fields = encoder(config, block, stack_fields, {}, embedding_size=config.integer("embedding_rank"))
    if is_retrieval_model:
        model_fields["head"] = {"type": "projection", "size": vector_size}
    return {**model_fields, "tied_projection": is_tied or model_fields["head"]["type"] != "lm"}


def _rotary_positions(config: Config, layer_kind: str, rotary_fraction: float, rope_base: float) -> Table:
    """Returns the RoPE of one kind of layer, with angles alternately for image rows and columns."""
    rope_fields = {
        "type": "rope",
        "rope_theta": rope_base,
        **rope(config, rotary_fraction, layer_kind=f"{layer_kind}_attention"),
    }
    rotary_dim = int(config.integer("head_dim") * rope_fields.get("partial_rotary_factor", 1.0))
    if rotary_dim < 4 or rotary_dim % 4:
        raise config.error(
            "head_dim",
            config.integer("head_dim"),
            f"a size of which {layer_kind}_attention rotates a multiple of 4 (partial_rotary_factor)",
        )
    return rope_fields


def _window_distances(config: Config, layer_kinds: list[str]) -> list[int | None]:
    """Returns each layer's window: the number of tokens on either side; None for all tokens."""
    short_distance = config.optional_integer("sliding_window")
    has_layer_table = config.has("per_layer_config")
    layer_configs = config.layer_tables(len(layer_kinds)) if has_layer_table else []
    if any(set(layer) - {"sliding_window"} for layer in layer_configs):
        raise config.error("per_layer_config", layer_configs, "the sliding_window of some layers")
    window_distances: list[int | None] = []
    sliding_count = 0
    for layer_index, layer_kind in enumerate(layer_kinds):
        is_long = layer_kind == "sliding" and sliding_count % 2 == 1
        default_distance = None if layer_kind == "full" else LONG_WINDOW if is_long else short_distance
        sliding_count += layer_kind == "sliding"
        window_distance = (
            layer_configs[layer_index].get("sliding_window", short_distance) if has_layer_table else default_distance
        )
        if (window_distance is None) != (layer_kind == "full") or (
            window_distance is not None and not (is_json_integer(window_distance) and window_distance > 0)
        ):
            field_name = "per_layer_config" if has_layer_table else "sliding_window"
            raise config.error(
                field_name,
                layer_configs or short_distance,
                "a whole number above 0 for sliding layers, null for full ones",
            )
        window_distances.append(window_distance)
    return window_distances


FAMILIES = {"neomme": Family(_read_neomme, uncounted_modules="model.patch_embeddings + patch_embeddings")}
