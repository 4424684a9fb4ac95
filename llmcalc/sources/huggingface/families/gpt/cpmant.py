"""CPM-Ant: a decoder with a learned prompt, bidirectional attention in the prompt and T5's relative biases.

OpenBMB 2022. Biases between tokens of two segments are in the same table as those of distances within one.
transformers: models/cpmant.
"""

from __future__ import annotations

from ...absent_value import require_present
from ...config import Config
from ...family import Family
from ...field_writers import FieldWriters
from ...parts import Table, decoder, layer_table, rmsnorm

FEWEST_PROMPTS = 3
"""The least number of prompts, because the class reads the third prompt."""

MAX_SEGMENTS = 2**20
"""The largest number of segments."""


def _read_cpmant(config: Config) -> Table:
    norm = rmsnorm(config.number("eps"))
    head_count = config.integer("num_attention_heads")
    segment_type_count = config.integer("segment_types")
    if segment_type_count > MAX_SEGMENTS:
        raise config.error(
            "segment_types", segment_type_count, f"at most {MAX_SEGMENTS}, as its table has a row for each pair"
        )
    prompt_type_count = config.integer("prompt_types")
    if prompt_type_count < FEWEST_PROMPTS:
        raise config.error(
            "prompt_types", prompt_type_count, f"at least {FEWEST_PROMPTS}: the class reads the third prompt"
        )
    attention = {"num_attention_heads": head_count, "head_dim": config.integer("dim_head"), "whole_pass": True}
    feed_forward = {"intermediate_size": config.integer("dim_ff"), "hidden_act": "gelu", "gated": True}
    block = layer_table(attention, feed_forward, norm)
    streams = {
        "type": "prompt_tokens",
        "prompt_types": prompt_type_count,
        "prompt_length": config.integer("prompt_length"),
    }
    relative_bias = {
        "num_attention_heads": head_count,
        "relative_attention_num_buckets": config.integer("position_bias_num_buckets"),
        "relative_attention_max_distance": config.integer("position_bias_max_distance"),
        "other_buckets": [segment_type_count**2],
    }
    stack_fields = {
        "streams": streams,
        "token_types": {"type_vocab_size": segment_type_count},
        "relative_bias": relative_bias,
    }
    model_fields = decoder(config, block, norm, stack=stack_fields)
    return {**model_fields, "tie_word_embeddings": False}  # its class ties nothing, whatever the config says


FIELD_WRITERS: FieldWriters = {
    "dim_head": lambda s: s.first_stack.block.attention.head_dim,
    "prompt_types": lambda s: require_present(s.first_stack.streams).prompt_types,
    "prompt_length": lambda s: require_present(s.first_stack.streams).prompt_length,
    "segment_types": lambda s: require_present(s.first_stack.token_types).type_vocab_size,
    "position_bias_num_buckets": lambda s: require_present(s.first_stack.relative_bias).relative_attention_num_buckets,
    "position_bias_max_distance": lambda s: (
        require_present(s.first_stack.relative_bias).relative_attention_max_distance
    ),
}

FAMILIES = {
    "cpmant": Family(
        _read_cpmant,
        field_writers=FIELD_WRITERS,
        dropout_fields=dict.fromkeys(("attention", "attention_output", "activation", "feed_forward"), "dropout_p"),
    )
}
