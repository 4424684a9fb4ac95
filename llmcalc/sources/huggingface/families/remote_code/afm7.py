"""AFM-7, Apple's text model: Llama's layers with QK-norm; the last layers share one lower layer's keys and values.

Source: the class in `Family.source`.
"""

from __future__ import annotations

from .....components.base import LARGEST_SIZE
from ...code_addresses import MLX
from ...config import Config
from ...family import Family
from ...parts import Table, attention, decoder, layer_table, qk_norm_fields, rmsnorm, stack_of_layers


def _read_afm7(config: Config) -> Table:
    """Reads AFM-7. The norms of queries and keys follow RoPE, and the output head is tied to the embedding."""
    depth, reusing_layer_count = config.integer("num_hidden_layers"), config.count("num_kv_reuse_layers")
    if reusing_layer_count >= depth:
        raise config.error("num_kv_reuse_layers", reusing_layer_count, f"fewer than the {depth} layers of the model")
    head_count = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size")
    width_factor = _ffn_width_factor(config)
    head_dim = config.quotient("num_heads", hidden_size, head_count)
    attention_table = attention(config, head_dim=head_dim, **qk_norm_fields(rmsnorm(1e-5), norm_order="after_rope"))
    ffn = {"intermediate_size": int(hidden_size * width_factor), "hidden_act": "silu", "gated": True}
    norm = rmsnorm(config.number("rms_norm_eps"))
    block = layer_table(attention_table, ffn, norm)
    config.notes.append("quantization of keys and values: its two scales in each layer that caches are not counted")
    layers: list[tuple[str, Table]] = [
        ("own", {}) if layer_index < depth - reusing_layer_count else ("shared", {"attention": {"kv_shared": True}})
        for layer_index in range(depth)
    ]
    return decoder(config, block, norm, stack=stack_of_layers(layers) if reusing_layer_count else None)


def _ffn_width_factor(config: Config) -> float:
    """Returns the FFN width divided by the hidden size."""
    field_name = "hidden_dim_scale_factor"
    width_factor, hidden_size = config.number(field_name), config.integer("hidden_size")
    if not 1 <= hidden_size * width_factor <= LARGEST_SIZE:
        raise config.error(field_name, width_factor, "a number that gives the network a width")
    return width_factor


FAMILIES = {
    "afm7": Family(
        _read_afm7,
        {"hidden_dim_scale_factor": 3.25, "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "tie_word_embeddings": True},
        aliases={
            "hidden_size": "hidden_dim",
            "num_hidden_layers": "num_layers",
            "num_attention_heads": "num_heads",
            "num_key_value_heads": "num_kv_heads",
        },
        modules={"embed_tokens": "embedding", "norm": "output_norm", "o_proj": "out_proj"},
        source=f"{MLX}afm7.py",
    )
}
