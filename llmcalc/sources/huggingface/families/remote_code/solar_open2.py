"""Solar Open 2: Kimi delta attention, gated attention without positions in each fourth layer, and DeepSeek's experts.

Sources: vLLM's file in `Family.source` and its configuration class; models/solar_open2 of transformers after 5.23.
"""

from __future__ import annotations

from ...code_addresses import VLLM
from ...config import Config
from ...family import Family
from ...parts import (
    QKV_BIASES,
    Table,
    attention,
    attention_biases,
    decoder_of_kinds,
    dense_or_moe_kinds,
    glu,
    layer_table,
    listed_kinds,
    qk_norm_fields,
    rmsnorm,
)
from ..deepseek.deepseek import ROUTING_FIELDS, SIGMOID_ROUTING, routed_experts
from ..recurrent.delta import KDA_MODULES, LINEAR_OR_FULL, kda, linear_attention_config


def _read_solar_open2(config: Config) -> Table:
    """Reads Solar Open 2; the attention's o_proj has no bias, regardless of attention_bias."""
    config.require_if_present("hc_rate", 0)
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    full_attention = attention(
        config,
        **attention_biases(config, QKV_BIASES),
        **(qk_norm_fields(norm) if config.flag("use_qk_norm") else {}),
        **_output_gate(config),
    )
    if not config.flag("use_rope"):
        del full_attention["position"]
    ffn_kinds = dense_or_moe_kinds(config, depth, config.count("first_k_dense_replace"))
    experts = routed_experts(config, **SIGMOID_ROUTING) if "moe" in ffn_kinds else {}
    block = layer_table(_linear_attention(config), glu(config) if "dense" in ffn_kinds else experts, norm)
    mixer_changes: Table = {"linear": {}, "full": {"attention": {"type": "attention", **full_attention}}}
    ffn_changes: Table = {"dense": {}, "moe": {"feed_forward": experts}}
    return decoder_of_kinds(config, block, norm, (_mixer_kinds(config, depth), mixer_changes), (ffn_kinds, ffn_changes))


def _output_gate(config: Config) -> Table:
    """Returns the elementwise gate on the output of the attention; empty if the config has no gate."""
    if not config.flag("use_gqa_gate"):
        return {}
    return {"output_gate": {"per": "element", **({"bias": True} if config.flag("use_gqa_gate_bias") else {})}}


def _linear_attention(config: Config) -> Table:
    """Returns Kimi delta attention with as many heads of keys as of queries."""
    linear_config = linear_attention_config(config, {"num_kv_heads": None})
    linear_config.require("num_kv_heads", None, linear_config.integer("num_heads"))
    linear_attention = kda(config, linear_config, low_rank_gates=not config.flag("kda_use_full_proj"))
    linear_config.finish(frozenset(), config)
    return linear_attention


def _mixer_kinds(config: Config, depth: int) -> list[str]:
    """Returns each layer's mixer: from `layer_types` or `gqa_layers`, else full attention first in every period."""
    if config.has("gqa_layers"):
        full_layers = set(config.integers("gqa_layers"))
        if full_layers and max(full_layers) >= depth:
            raise config.field_error("gqa_layers", f"layers from 0 to {depth - 1}")
    else:
        full_layers = set(range(0, depth, config.integer("gqa_interval") + 1))
    default_kinds = ["full" if layer_index in full_layers else "linear" for layer_index in range(depth)]
    return listed_kinds(config, "layer_types", LINEAR_OR_FULL, default_kinds)


FAMILIES = {
    "solar_open2": Family(
        _read_solar_open2,
        {
            "vocab_size": 196608,
            "hidden_size": 4096,
            "intermediate_size": 10240,
            "moe_intermediate_size": 1280,
            "num_hidden_layers": 48,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 1048576,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "n_routed_experts": 320,
            "first_k_dense_replace": 0,
            "use_qk_norm": False,
            "use_rope": False,
            "use_gqa_gate": True,
            "use_gqa_gate_bias": False,
            "gqa_interval": 3,
            "gqa_layers": None,
            "layer_types": None,
            "kda_use_full_proj": False,
            "linear_num_heads": 64,
            "linear_head_dim": 128,
            "linear_conv_kernel_dim": 4,
        },
        ROUTING_FIELDS | {"gqa_interval", "kda_allow_neg_eigval"},
        modules={**KDA_MODULES, "linear_attn.norm": "o_norm", "self_attn.gate_proj": "g_proj"},
        source=f"{VLLM}solar_open2.py",
    )
}
