"""Domyn Edge: head sizes, windows and positions per layer, norms around sublayers, and QK-norm.

The norms of queries and keys have no weights. Sources: vLLM's file in `Family.source`, and its configuration class in
igeniusai/vllm-domyn-edge.
"""

from __future__ import annotations

from ...code_addresses import VLLM
from ...config import Config, is_json_integer
from ...family import Family
from ...parts import Table, attention, decoder, glu, layer_table, qk_norm_fields, rmsnorm, stack_of_layers

LOCAL_LAYER_FLAGS = [0, 0, *[1, 1, 1, 0] * 8, 0, 0]
"""1 for each layer with RoPE, a window and narrow heads of the default 36 layers, 0 for the others."""


def _read_domyn_edge(config: Config) -> Table:
    config.require("attention_bias", False)
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    position_kinds, windows, head_dims = config.texts("position_layers"), config.get("window_sizes"), _head_dims(config)
    if len(position_kinds) != depth or not {*position_kinds} <= {"rope", "nope"}:
        raise config.error("position_layers", position_kinds, f"{depth} times rope or nope, one for each layer")
    if not isinstance(windows, list | tuple) or len(windows) != depth or not all(map(_is_window, windows)):
        raise config.error("window_sizes", windows, f"{depth} pairs of -1 or the tokens before each token, and 0")
    if len(head_dims) != depth or 0 in head_dims:
        raise config.error("head_sizes", head_dims, f"{depth} positive whole numbers, one for each layer")
    attention_table = attention(config, **qk_norm_fields(rmsnorm(norm["eps"], weight=False)))
    layers: list[tuple[str, Table]] = []
    for position_kind, (tokens_before, _), head_dim in zip(position_kinds, windows, head_dims, strict=True):
        window_fields = {"sliding_window": tokens_before + 1} if tokens_before > 0 else {}
        changed_fields: Table = {
            "head_dim": head_dim,
            **window_fields,
            **({"position": "none"} if position_kind == "nope" else {}),
        }
        layers.append(
            (f"{'sliding' if window_fields else 'full'}_{position_kind}_{head_dim}", {"attention": changed_fields})
        )
    block = layer_table({**attention_table, "head_dim": head_dims[0]}, glu(config), norm, "sandwich")
    return decoder(config, block, norm, stack=stack_of_layers(layers))


def _is_window(config_value: object) -> bool:
    """Whether a value is a window `[tokens, 0]`: a number of earlier tokens, or -1 for all of them."""
    return (
        isinstance(config_value, list | tuple)
        and len(config_value) == 2
        and is_json_integer(config_value[0])
        and config_value[0] >= -1
        and config_value[1] == 0
    )


def _head_dims(config: Config) -> list[int]:
    """Returns each layer's head size, from a list or from fields of single layers."""
    if not config.has("per_layer_config"):
        return config.integers("head_sizes")
    return [
        Config(layer, {}, config.model_type, location=f"per_layer_config.{layer_index}.").integer("head_dim")
        for layer_index, layer in enumerate(config.layer_tables(config.integer("num_hidden_layers")))
    ]


FAMILIES = {
    "domynedge": Family(
        _read_domyn_edge,
        {
            "vocab_size": 115269,
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_act": "silu",
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "position_layers": ["rope" if is_local else "nope" for is_local in LOCAL_LAYER_FLAGS],
            "window_sizes": [[1024, 0] if is_local else [-1, 0] for is_local in LOCAL_LAYER_FLAGS],
            "head_sizes": [64 if is_local else 256 for is_local in LOCAL_LAYER_FLAGS],
        },
        frozenset({"head_dim", "head_sizes", "max_window_layers", "trained_vocab_size"}),
        source=f"{VLLM}domyn_edge.py",
    )
}
