"""RWKV-4: linear in the sequence length, without attention, with LayerNorm also after the embeddings.

transformers: models/rwkv.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import Table, decoder, layer_table, layernorm


def _read_rwkv(config: Config) -> Table:
    hidden_size, norm = config.integer("hidden_size"), layernorm(config.number("layer_norm_epsilon"))
    attention_hidden_size = config.optional_integer("attention_hidden_size") or hidden_size
    time_mixing = {"type": "rwkv_time_mix", "attention_hidden_size": attention_hidden_size}
    intermediate_size = config.optional_integer("intermediate_size") or 4 * hidden_size
    channel_mixing = {"type": "rwkv_channel_mix", "intermediate_size": intermediate_size}
    block: Table = layer_table(time_mixing, channel_mixing, norm)
    stack_fields = {"variants": {"first": {"input_norm": norm}}, "first_layers": ["first"], "pattern": ["block"]}
    return decoder(config, block, layernorm(), stack=stack_fields)


FAMILIES = {
    "rwkv": Family(
        _read_rwkv,
        aliases={"max_position_embeddings": "context_length"},
        field_writers={"intermediate_size": lambda s: s.networks[0].intermediate_size},
        dropout_fields={},
    )
}
