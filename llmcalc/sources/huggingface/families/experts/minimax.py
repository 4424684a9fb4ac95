"""MiniMax-01 (Text-01, M1): lightning attention, softmax attention in some layers, and experts in all layers.

transformers: models/minimax. The class normalises the input of each sublayer and adds the sublayer's output to the
    normalised input. The spec describes this as a norm on the embeddings and a norm after each addition; the last one
    is the model's final norm.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import ACTIVATIONS, Table, attention, decoder, glu, listed_kinds, moe, rmsnorm, rope, stack_of_kinds


def _read_minimax(config: Config) -> Table:
    num_hidden_layers = config.integer("num_hidden_layers")
    default_layer_kinds = ["linear" if layer_index % 2 else "full" for layer_index in range(num_hidden_layers)]
    kind_by_type = {"linear_attention": "linear", "full_attention": "full"}
    return minimax_decoder(config, listed_kinds(config, "layer_types", kind_by_type, default_layer_kinds), rope(config))


def minimax_decoder(config: Config, layer_kinds: list[str], position_encoding: Table) -> Table:
    """Returns MiniMax-01's decoder. layer_kinds: `linear` or `full` for each layer.

    position_encoding: position encoding of softmax attention.
    """
    config.require("sliding_window", None)
    config.require("shared_intermediate_size", None, 0)
    head_count, norm = config.integer("num_attention_heads"), rmsnorm(config.number("rms_norm_eps"))
    lightning_fields = {
        "type": "lightning",
        "num_attention_heads": head_count,
        "head_dim": config.optional_integer("head_dim")
        or config.quotient("num_attention_heads", config.integer("hidden_size"), head_count),
        "block_size": config.integer("block_size"),
        "hidden_act": config.choice(ACTIVATIONS, "hidden_act"),
    }
    feed_forward = moe(config.integer("num_local_experts"), config.integer("num_experts_per_tok"), glu(config))
    block: Table = {"feed_forward": feed_forward, "norm": norm, "norm_placement": "post"}
    full_layer_fields = {**block, "attention": {"type": "attention", **attention(config, position=position_encoding)}}
    layer_configs = {"linear": {**block, "attention": lightning_fields}, "full": full_layer_fields}
    stack_fields = stack_of_kinds(layer_configs, layer_kinds)
    return decoder(config, stack_fields["block"], None, stack={**stack_fields, "embedding_norm": norm})


FAMILIES = {
    "minimax": Family(
        _read_minimax,
        {"shared_intermediate_size": None},
        frozenset(
            f"{part}_{factor}_factor" for part in ("full_attn", "linear_attn", "mlp") for factor in ("alpha", "beta")
        )
        | {"postnorm", "rotary_dim", "shared_moe_mode"},
        aliases={"num_local_experts": "num_experts"},
        has_older_aliases=True,
        earlier_names={"mlp": "block_sparse_moe"},
    )
}
