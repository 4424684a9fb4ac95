"""SqueezeBERT: BERT whose projections are split into groups.

Iandola et al. 2020 (arXiv:2006.11316). transformers: models/squeezebert.
"""

from __future__ import annotations

from dataclasses import replace

from ...config import Config
from ...family import EVERY_CLASS, Quirks
from ...field_writers import FieldWriters
from ...parts import Table, encoder, layer_table, layernorm, pooler
from .bert import BERT, bert_activation, bert_head, bert_stack

GROUP_FIELDS = ("q_groups", "k_groups", "v_groups", "post_attention_groups", "intermediate_groups", "output_groups")


def _read_squeezebert(config: Config) -> Table:
    hidden_size = config.integer("hidden_size")
    ffn_width = config.integer("intermediate_size")
    head_count = config.integer("num_attention_heads")
    config.require("embedding_size", hidden_size)
    config.quotient("num_attention_heads", hidden_size, head_count)
    group_counts = {field_name: config.integer(field_name) for field_name in GROUP_FIELDS}
    for field_name, group_count in group_counts.items():
        config.quotient(field_name, hidden_size, group_count)
        if field_name in ("intermediate_groups", "output_groups"):
            config.quotient(field_name, ffn_width, group_count)
    attention = {
        "type": "grouped_projections",
        "num_attention_heads": head_count,
        **{field_name: group_counts[field_name] for field_name in GROUP_FIELDS[:3]},
        "o_groups": group_counts["post_attention_groups"],
    }
    feed_forward = {
        "type": "grouped_mlp",
        "intermediate_size": ffn_width,
        "hidden_act": bert_activation(config),
        "up_groups": group_counts["intermediate_groups"],
        "down_groups": group_counts["output_groups"],
    }
    block = layer_table(attention, feed_forward, layernorm(1e-12), "post")
    return encoder(config, block, bert_stack(config), bert_head(config, bert_activation(config)), {}, **pooler(True))


FIELD_WRITERS: FieldWriters = {
    "q_groups": lambda s: s.first_stack.block.attention.q_groups,
    "k_groups": lambda s: s.first_stack.block.attention.k_groups,
    "v_groups": lambda s: s.first_stack.block.attention.v_groups,
    "post_attention_groups": lambda s: s.first_stack.block.attention.o_groups,
    "intermediate_groups": lambda s: s.first_stack.block.feed_forward.up_groups,
    "output_groups": lambda s: s.first_stack.block.feed_forward.down_groups,
    "embedding_size": lambda s: s.spec.hidden_size,
}

FAMILIES = {
    "squeezebert": replace(
        BERT,
        read_model=_read_squeezebert,
        field_writers=FIELD_WRITERS,
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
    )
}
