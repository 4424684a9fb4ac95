"""Moondream 3: a layer norm, then attention in parallel to a network or experts.

Source: the file in `Family.source`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...code_addresses import VLLM
from ...config import Config
from ...family import Family
from ...parts import QKVO_BIASES, Table, biases, decoder, layer_table, layernorm, moe, stack_of_combined_kinds

REGION_HEADS_NOTE = "the heads that choose points and sizes of objects are not counted"

TEXT_DEFAULTS = {
    "dim": 2048,
    "ff_dim": 8192,
    "n_layers": 24,
    "vocab_size": 51200,
    "max_context": 4096,
    "n_heads": 32,
    "n_kv_heads": 32,
    "moe": None,
}
EXPERT_DEFAULTS = {"start_layer": 4, "n_experts": 64, "n_experts_per_tok": 8, "expert_inner_dim": 1024}


def _read_moondream3(config: Config) -> Table:
    """Reads Moondream 3. Token-dependent scales of queries and values (`tau`) are not counted."""
    config_sections = config.table("config") if config.has("config") else {}
    config.fields_read.add("config")
    text_config = Config(
        config_section(config, config_sections, "text"), TEXT_DEFAULTS, config.model_type, location="config.text."
    )
    expert_table = text_config.table("moe") if text_config.has("moe") else {}
    expert_config = Config(expert_table, EXPERT_DEFAULTS, config.model_type, location="config.text.moe.")
    hidden_size, depth = text_config.integer("dim"), text_config.integer("n_layers")
    head_count, kv_head_count = text_config.integer("n_heads"), text_config.integer("n_kv_heads")
    head_size = text_config.quotient("n_heads", hidden_size, head_count)
    scale_params = depth * (2 * head_count * head_size * (head_count + 2 * kv_head_count) + head_count)
    config.notes += [
        f"tau: the scales of queries and values are not counted: {scale_params:,} parameters",
        f"region: {REGION_HEADS_NOTE}",
    ]
    norm = layernorm()
    attention_table: Table = {
        "num_attention_heads": head_count,
        **({} if kv_head_count == head_count else {"num_key_value_heads": kv_head_count}),
        "position": {"type": "rope", "rotary_dim": min(32, head_size)},
        **biases(True, *QKVO_BIASES),
    }
    routed_experts = moe(
        expert_config.integer("n_experts"),
        expert_config.integer("n_experts_per_tok"),
        {"intermediate_size": expert_config.integer("expert_inner_dim"), "hidden_act": "gelu", "gated": True},
        router={"bias": True},
    )
    ff_dim = text_config.integer("ff_dim")
    dense_ffn: Table = {"intermediate_size": ff_dim, "hidden_act": "gelu_tanh", **biases(True, "up_bias", "down_bias")}
    block = layer_table(attention_table, dense_ffn, norm, parallel="shared")
    first_expert_layer = expert_config.count("start_layer")
    layer_changes: Table = {"dense": {}, "moe": {"feed_forward": routed_experts}}
    layer_kinds = ["dense" if layer_index < first_expert_layer else "moe" for layer_index in range(depth)]
    config_fields = {
        "vocab_size": text_config.integer("vocab_size"),
        "hidden_size": hidden_size,
        "num_hidden_layers": depth,
        "max_position_embeddings": text_config.integer("max_context"),
        "tie_word_embeddings": False,
    }
    model_sizes = Config(config_fields, {}, config.model_type, "lm")
    return decoder(model_sizes, block, norm, {"bias": True}, stack_of_combined_kinds((layer_kinds, layer_changes)))


def config_section(config: Config, config_sections: Mapping[str, Any], section_name: str) -> Mapping[str, Any]:
    """Returns a table of the config; empty if missing. Raises `InputError` for a value that is not a table."""
    section_fields = config_sections.get(section_name)
    if section_fields is not None and not isinstance(section_fields, dict):
        raise config.error(f"config.{section_name}", section_fields, "a table of fields")
    return section_fields or {}


FAMILIES = {
    "moondream3": Family(
        _read_moondream3,
        generates_text=True,
        tower_class_prefixes="HfMoondream",
        tower_file="published_code",
        source=f"{VLLM}moondream3.py",
    )
}
