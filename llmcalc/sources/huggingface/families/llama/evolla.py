"""Evolla, which answers questions about proteins: Llama's decoder with adapters that attend to a protein.

The adapters have parameters and do not run on text alone; the protein's encoder is not counted.
transformers: models/evolla.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import (
    IDLE_CROSS_ATTENTION_NOTE,
    Table,
    attention,
    attention_biases,
    biases,
    decoder,
    glu,
    layer_table,
    layernorm,
    mlp,
    rmsnorm,
)


def _read_evolla(config: Config) -> Table:
    config.fields_read.add("tie_word_embeddings")  # the class ties nothing
    norm = rmsnorm(config.number("rms_norm_eps"))
    hidden_size = config.integer("hidden_size")
    depth = config.integer("num_hidden_layers")
    head_count = config.integer("num_attention_heads")
    config.quotient("num_attention_heads", hidden_size, head_count)
    block = layer_table(attention(config, **attention_biases(config)), glu(config, config.flag("mlp_bias")), norm)
    cross_attention = {
        "num_attention_heads": head_count,
        **biases(True, "q_bias", "k_bias", "v_bias"),
        **biases(config.flag("aligner_enable_bias"), "o_bias"),
    }
    adapter_table = {
        "attention": cross_attention,
        "feed_forward": mlp(config.integer("aligner_ffn_mult") * hidden_size, "gelu", bias=False),
        "norm": norm,
        "feed_forward_norm": layernorm(),
    }
    config.notes.append(IDLE_CROSS_ATTENTION_NOTE)
    adapter_interval = max(depth // config.integer("aligner_num_add_layers"), 1)
    adapted_layer = {"type": "adapted", "adapter": {"type": "gated_cross", **adapter_table}}
    stack_fields: Table = {
        "variants": {"adapted": adapted_layer},
        "pattern": [*["block"] * (adapter_interval - 1), "adapted"],
    }
    return {**decoder(config, block, norm, stack=stack_fields), "tie_word_embeddings": False}


FAMILIES = {
    "evolla": Family(
        _read_evolla,
        ignored_fields=frozenset(
            {
                "aligner_attention_probs_dropout_prob",
                *(f"resampler_{name}" for name in ("depth", "dim_head", "heads", "num_latents", "ff_mult")),
            }
        ),
        tower_class_prefixes="Evolla",
        uncounted_encoders={"protein_encoder_config": "SaProt"},
        uncounted_modules="protein_encoder + model.protein_encoder",
    )
}
