"""EmbeddingGemma 2: an encoder of Gemma 4's layers, with per-layer vectors projected from the token embedding.

The hidden state of every token is projected to the size of the sentence embedding.

transformers: models/embedding_gemma2.
"""

from __future__ import annotations

from ...absent_value import require_present
from ...config import Config
from ...family import Family, module_names
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    attention,
    attention_biases,
    bidirectional_stack,
    decoder,
    float32_rmsnorm,
    glu,
    kinds_with_nth_full,
    listed_kinds,
    qk_norm_fields,
    rmsnorm,
    stack_of_layers,
)
from .gemma import LOCAL_THETA_WRITERS, local_theta
from .gemma4 import full_attention, head_sizes, sliding_attention


def _read_embedding_gemma2(config: Config) -> Table:
    norm, depth = float32_rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    default_layer_kinds = kinds_with_nth_full(depth, config.optional_integer("sliding_window_pattern") or 6)
    layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    layer_kinds[-1] = "full"
    position_encoding = {"type": "rope", "rope_theta": 1_000_000.0}
    v_norm = rmsnorm(norm["eps"], weight=False)
    attention_table = attention(
        config, position=position_encoding, v_norm=v_norm, **attention_biases(config), **qk_norm_fields(norm)
    )
    ffn = glu(config, activation_field="hidden_activation")
    per_layer_width = config.integer("hidden_size_per_layer_input")
    block: Table = {
        "type": "gemma4",
        "attention": attention_table,
        "feed_forward": ffn,
        "norm": norm,
        "per_layer_input": {"hidden_size_per_layer_input": per_layer_width, "hidden_act": ffn["hidden_act"]},
    }
    full_head_sizes = {
        "head_dim": config.optional_integer("global_head_dim") or 512,
        "num_key_value_heads": config.optional_integer("num_global_key_value_heads") or 1,
    }
    sliding_window = config.integer("sliding_window")
    window_fields = {"sliding_window": sliding_window, "position": {"type": "rope", "rope_theta": local_theta(config)}}
    layer_head_sizes = head_sizes(config, layer_kinds, full_head_sizes)
    layers = [
        (layer_kind, {"attention": {**head_dim, **(window_fields if layer_kind == "sliding" else {})}})
        for layer_kind, head_dim in zip(layer_kinds, layer_head_sizes, strict=True)
    ]
    stack_fields = bidirectional_stack({"block": block, **stack_of_layers(layers)}, lambda radius: radius)
    stack_fields["per_layer_embedding"] = {"hidden_size_per_layer_input": per_layer_width, "norm": norm}
    model_fields = decoder(config, block, norm, stack=stack_fields)
    model_fields["encoder"] = model_fields.pop("decoder")
    return {**model_fields, "head": {"type": "projection", "size": config.integer("embedding_dim")}}


FAMILIES = {
    "embedding_gemma2_text": Family(
        _read_embedding_gemma2,
        {
            "global_head_dim": None,
            "num_global_key_value_heads": None,
            "sliding_window_pattern": None,
            "tie_word_embeddings": False,
        },
        frozenset({"global_head_dim", "num_global_key_value_heads", "sliding_window_pattern"}),
        field_writers={
            **LOCAL_THETA_WRITERS,
            "head_dim": lambda s: sliding_attention(s)[2],
            "num_key_value_heads": lambda s: sliding_attention(s)[1],
            "global_head_dim": lambda s: full_attention(s).sizes(s.spec.hidden_size)[2],
            "num_global_key_value_heads": lambda s: full_attention(s).sizes(s.spec.hidden_size)[1],
            "hidden_size_per_layer_input": lambda s: (
                require_present(s.first_stack.per_layer_embedding).hidden_size_per_layer_input
            ),
            "embedding_dim": lambda s: s.spec.head.size,
            "sliding_window": lambda s: (require_present(s.window) - 1) // 2,
        },
    ),
    "embedding_gemma2": Family(
        None,
        {"tie_word_embeddings": False},
        text_type="embedding_gemma2_text",
        modules=module_names("gemma4_tower"),
        tower_file="gemma",
    ),
}
