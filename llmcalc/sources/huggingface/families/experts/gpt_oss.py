"""gpt-oss: every second layer has a sliding window, each head has a sink, and all linear layers have biases.

The experts and the router have biases too. The privacy filter is an encoder of such layers, all with a window, which
classifies every token.

transformers: models/gpt_oss, models/openai_privacy_filter.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import EVERY_CLASS, Family, Quirks, module_names
from ...parts import (
    Table,
    attention,
    attention_biases,
    biases,
    clamped_gpt_oss_ffn,
    decoder,
    float32_rmsnorm,
    glu,
    kinds_with_nth_full,
    layer_table,
    moe,
    sliding_stack,
)


def _read_gpt_oss(config: Config) -> Table:
    block = _gpt_oss_layer(config, clamped_gpt_oss_ffn(glu(config, bias=True)), float32_softmax=False)
    stack_fields = sliding_stack(config, kinds_with_nth_full(config.integer("num_hidden_layers"), 2))
    return decoder(config, block, block["norm"], stack=stack_fields)


def _gpt_oss_layer(config: Config, expert: Table, **attention_fields: Any) -> Table:
    """Returns a layer of gpt-oss. attention_fields: additional fields of the layer's attention."""
    num_local_experts = config.integer("num_local_experts", "num_experts")
    experts = moe(num_local_experts, config.integer("num_experts_per_tok"), expert, router={"bias": True})
    attention_table = attention(config, sinks=True, **attention_biases(config), **attention_fields)
    norm = float32_rmsnorm(config.number("rms_norm_eps"))
    return layer_table(attention_table, experts, norm)


def _read_privacy_filter(config: Config) -> Table:
    """Reads the privacy filter, whose window is symmetric around each token."""
    ffn_width = config.integer("intermediate_size")
    expert = {
        "intermediate_size": ffn_width,
        "hidden_act": "silu",
        "gated": True,
        **biases(True, "gate_bias", "up_bias", "down_bias"),
    }
    block = _gpt_oss_layer(config, clamped_gpt_oss_ffn(expert), sliding_window=2 * config.integer("sliding_window") + 1)
    model_fields = decoder(config, block, block["norm"])
    model_fields["encoder"] = model_fields.pop("decoder")
    return model_fields


FAMILIES = {
    "gpt_oss": Family(_read_gpt_oss, ignored_fields=frozenset({"initial_context_length", "experts_per_token"})),
    "openai_privacy_filter": Family(
        _read_privacy_filter,
        {"num_labels": 33},
        frozenset({"initial_context_length", "experts_per_token"}),
        modules=module_names("gpt_oss"),
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
    ),
}
