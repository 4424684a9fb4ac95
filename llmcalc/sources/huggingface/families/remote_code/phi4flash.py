"""Phi-4-mini-flash: Mamba and differential attention, then layers that reuse a recurrence and cached keys.

SambaY (Ren et al. 2025, arXiv:2507.06607): the first half has Mamba and sliding differential attention in turn. One
Mamba layer and one full attention follow; the layers above them read that recurrence, and those keys and values. No
layer encodes positions. Sources: the modeling file in `Family.source`, and
tensorrt_llm/_torch/auto_deploy/models/custom of NVIDIA/TensorRT-LLM.
"""

from __future__ import annotations

from .....components.base import LARGEST_SIZE
from ...code_addresses import HUB
from ...config import Config, is_json_integer
from ...family import Family
from ...parts import Table, decoder, glu, layer_table, layernorm, stack_of_combined_kinds
from ..recurrent.mamba import step_rank


def _read_phi4flash(config: Config) -> Table:
    config.require("mb_per_layer", 2)
    depth, hidden_size = config.integer("num_hidden_layers"), config.integer("hidden_size")
    head_count, channel_count = config.integer("num_attention_heads"), config.integer("mamba_expand") * hidden_size
    if depth % 4:
        raise config.error("num_hidden_layers", depth, "a multiple of 4")
    has_projection_bias, norm = config.flag("mamba_proj_bias"), layernorm(config.number("layer_norm_eps"))
    mamba: Table = {
        "type": "mamba",
        "intermediate_size": channel_count,
        "state_size": config.integer("mamba_d_state"),
        "time_step_rank": step_rank(config, "mamba_dt_rank"),
        "conv_kernel": config.integer("mamba_d_conv"),
        "use_conv_bias": config.flag("mamba_conv_bias"),
        "use_bias": has_projection_bias,
    }
    attention: Table = {
        "type": "differential",
        "num_attention_heads": head_count,
        "num_key_value_heads": config.optional_integer("num_key_value_heads") or head_count,
        "head_dim": config.quotient("num_attention_heads", hidden_size, head_count),
        "attention_bias": True,
        "norm_weight": True,
        "position": None,
    }
    window_size = _window_size(config)
    layer_changes: Table = {
        "mamba": {},
        "sliding": {"attention": attention if window_size is None else {**attention, "sliding_window": window_size}},
        "memory": {"attention": {**mamba, "lends_output": True}},
        "full": {"attention": attention},
        "gate": {
            "attention": {"type": "memory_gate", "intermediate_size": channel_count, "use_bias": has_projection_bias}
        },
        "shared": {"attention": {**attention, "kv_shared": True}},
    }
    half_depth = depth // 2
    layer_kinds = [
        *["mamba", "sliding"] * (half_depth // 2),
        "memory",
        "full",
        *["gate", "shared"] * ((half_depth - 2) // 2),
    ]
    ffn = glu(config, config.flag("mlp_bias"))
    block = layer_table(mamba, ffn, norm)
    head_fields = {"bias": True} if config.flag("lm_head_bias") else None
    layer_changes = {kind: fields for kind, fields in layer_changes.items() if kind in layer_kinds}
    return decoder(config, block, norm, head_fields, stack_of_combined_kinds((layer_kinds, layer_changes)))


def _window_size(config: Config) -> int | None:
    """Returns the window size in the lower half's attention, which the config states once or per layer."""
    stated_window = config.get("sliding_window")
    if not isinstance(stated_window, list):
        return config.optional_integer("sliding_window")
    window_sizes = {window_size for window_size in stated_window if window_size is not None}
    if len(window_sizes) > 1 or not all(is_json_integer(size) and 0 < size <= LARGEST_SIZE for size in window_sizes):
        raise config.error(
            "sliding_window", stated_window, "one positive whole number, and null for layers without a window"
        )
    config.fields_read.add("sliding_window")
    return next(iter(window_sizes), None)


FAMILIES = {
    "phi4flash": Family(
        _read_phi4flash,
        {
            "vocab_size": 51200,
            "hidden_size": 2560,
            "intermediate_size": 9216,
            "num_hidden_layers": 32,
            "num_attention_heads": 40,
            "num_key_value_heads": 4,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "sliding_window": 2047,
            "mb_per_layer": 2,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": "auto",
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
            "mlp_bias": False,
            "lm_head_bias": False,
        },
        frozenset({"mamba_inner_layernorms"}),
        dropout_fields={"embedding": "embd_pdrop", "attention": "attention_dropout"},
        source=f"{HUB}microsoft/Phi-4-mini-flash-reasoning modeling_phi4flash.py",
    )
}
