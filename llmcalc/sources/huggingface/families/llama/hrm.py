"""HRM-Text: two stacks of gated layers that run alternately and repeatedly with the same parameters.

Wang et al. 2025 (arXiv:2506.21734): the low-level stack runs L_cycles times, then the high-level stack once, and all of
it H_cycles times. Every run of a layer has a cache of its own.

transformers: models/hrm_text.
"""

from __future__ import annotations

from .....components.base import MAX_LAYERS
from .....components.stack import MAX_VARIANTS
from ...config import Config
from ...family import Family
from ...parts import QKVO_BIASES, Table, attention, biases, decoder, glu, layer_table, rmsnorm


def _read_hrm_text(config: Config) -> Table:
    high_level_cycles, low_level_cycles = config.integer("H_cycles"), config.integer("L_cycles")
    depth = config.optional_integer("num_layers_per_stack") or config.integer("num_hidden_layers")
    if 2 * depth > MAX_VARIANTS or depth * high_level_cycles * (low_level_cycles + 1) > MAX_LAYERS:
        raise config.error("num_hidden_layers", depth, f"at most {MAX_VARIANTS // 2} layers of each stack")
    norm, has_bias = rmsnorm(config.number("rms_norm_eps"), weight=False), config.flag("attention_bias")
    output_gate = {"per": "element", "bias": has_bias}
    attention_table = attention(
        config, num_key_value_heads=None, output_gate=output_gate, **biases(has_bias, *QKVO_BIASES)
    )
    low_level_names = [f"low_{layer_index}" for layer_index in range(depth)]
    high_level_names = [f"high_{layer_index}" for layer_index in range(depth)]
    layer_kinds = [*low_level_names * low_level_cycles, *high_level_names] * high_level_cycles
    stack_fields = {
        "num_hidden_layers": len(layer_kinds),
        "variants": {layer_kind: {} for layer_kind in (*low_level_names, *high_level_names)},
        "first_layers": layer_kinds,
        "pattern": layer_kinds[-1:],
        "shared_layers": [*low_level_names, *high_level_names],
        "second_stream": {},
    }
    block = layer_table(attention_table, glu(config, config.flag("mlp_bias")), norm)
    return decoder(config, block, norm, stack=stack_fields)


FAMILIES = {
    "hrm_text": Family(
        _read_hrm_text,
        modules={"layers": "L_module.layers.* + H_module.layers.*", "second_stream": "z_L_init"},
        earlier_names={
            **{f"self_attn.{leaf}": "attn.gqkv_proj" for leaf in ("gate_proj", "q_proj", "k_proj", "v_proj")},
            "self_attn.o_proj": "attn.o_proj",
            "mlp.gate_proj": "mlp.gate_up_proj",
            "mlp.up_proj": "mlp.gate_up_proj",
        },
    )
}
