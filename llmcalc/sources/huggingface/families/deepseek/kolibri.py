"""Aleph Alpha's Kolibri 1 and Flint: sliding-window layers with RoPE, full layers without positions.

QK-norm is per head; routing uses sigmoids.

transformers: models/kolibri1 (a norm before and after each sublayer), models/flint (sinks, dense layers at the bottom).
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    attention,
    attention_biases,
    decoder,
    float32_rmsnorm,
    gated_experts,
    glu,
    kinds_with_nth_full,
    layer_table,
    listed_kinds,
    qk_norm_fields,
    rmsnorm,
    sliding_stack,
)
from ..experts.mixtral import qwen_moe_decoder
from ..glm.glm import GLM4_MODULES
from .deepseek import SIGMOID_ROUTING

NO_POSITIONS: Table = {"position": "none"}


def _read_kolibri1(config: Config) -> Table:
    config.integer("sliding_window")
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    shared_width = config.integer("shared_expert_intermediate_size")
    experts = gated_experts(config, shared_width=shared_width, **SIGMOID_ROUTING)
    block = layer_table(attention(config, **qk_norm_fields(norm)), experts, norm, "sandwich")
    stack_fields = sliding_stack(config, kinds_with_nth_full(depth, 5), full_fields=NO_POSITIONS)
    return decoder(config, block, norm, stack=stack_fields)


def _read_flint(config: Config) -> Table:
    norm, depth = float32_rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    if config.get("mlp_only_layers") is None:  # the class replaces null by its default
        config.config_fields = {
            name: value for name, value in config.config_fields.items() if name != "mlp_only_layers"
        }
    default_layer_kinds = [
        "full" if layer_index < 2 or layer_index % 4 == 1 or layer_index == depth - 1 else "sliding"
        for layer_index in range(depth)
    ]
    attention_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    sliding_layer_fields = {"attention": {"sliding_window": config.integer("sliding_window")}}
    kinds_and_changes = (attention_kinds, {"full": {"attention": NO_POSITIONS}, "sliding": sliding_layer_fields})
    attention_fields = {"sinks": True, "float32_scores": True}
    attention_table = attention(config, **attention_fields, **attention_biases(config), **qk_norm_fields(norm))
    shared_expert = glu(config, ffn_width=config.integer("shared_expert_intermediate_size"))
    expert_fields = {"shared_expert": shared_expert, "router": {"scoring_func": "sigmoid"}}
    expert_count = config.count("num_experts")
    return qwen_moe_decoder(
        config, expert_count, attention_table, expert_fields, kinds_and_changes, float32_product=True
    )


FAMILIES = {
    "kolibri1": Family(_read_kolibri1, aliases={"num_experts": "num_local_experts"}, modules=GLM4_MODULES),
    "flint": Family(_read_flint, {"mlp_only_layers": [0, 1]}),
}
