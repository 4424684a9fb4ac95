"""The text model of Dots 3: latent attention with a gate per head; some layers are sparse, others windowed.

Layers with a window have sizes of their own. Queries and latents are scaled, which has no parameters.

transformers: models/dots3_note. Published configs are flat, with the names of the window's sizes after `swa_`.
"""

from __future__ import annotations

from dataclasses import replace

from .....ops import KVCache
from ...config import Config
from ...family import Deviation, Family
from ...parts import DENSE_OR_MOE, Table, decoder_of_kinds, gated_experts, glu, layer_table, listed_kinds, rmsnorm
from .deepseek import ROUTING_FIELDS, SIGMOID_ROUTING, latent_attention
from .dsa import DSA_MODULES

LATENT_SIZES = (
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
"""The sizes of latent attention that windowed layers can state separately."""

KIND_BY_LAYER_TYPE = {"indexed_attention": "indexed", "full_attention": "full", "sliding_attention": "sliding"}


def _read_dots3_note_text(config: Config) -> Table:
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    indexer_table = config.integer_fields("index_n_heads", "index_head_dim", "index_topk")
    config.integer("q_lora_rank")
    attention_table = latent_attention(config, output_gate={"per": "head"}, key_norm=True, norm=norm)
    shared_width = config.integer("shared_experts_intermediate_size", "moe_shared_expert_intermediate_size")
    shared_width *= config.integer("n_shared_experts")
    experts = gated_experts(config, None, shared_width, ("n_routed_experts",), **SIGMOID_ROUTING)
    sliding_layer_fields = {"attention": {**_window_sizes(config), "sliding_window": _window_size(config)}}
    layer_changes: Table = {
        "full": {},
        "indexed": {"attention": {"indexer": indexer_table}},
        "sliding": sliding_layer_fields,
    }
    block = layer_table(attention_table, glu(config), norm)
    ffn_kinds: Table = {"dense": {}, "moe": {"feed_forward": experts}}
    return decoder_of_kinds(
        config, block, norm, (_attention_kinds(config, depth), layer_changes), (_ffn_kinds(config, depth), ffn_kinds)
    )


def _attention_kinds(config: Config, depth: int) -> list[str]:
    """Returns each layer's attention: to selected tokens (`indexed`), within a window or to all tokens."""
    selects_keys = config.get("use_dsa")
    full_kind = "full" if selects_keys is False else "indexed"
    has_windows = config.flag("use_sliding_window")
    default_layer_kinds = [
        full_kind if not has_windows or layer_index < 2 or layer_index % 4 == 1 else "sliding"
        for layer_index in range(depth)
    ]
    layer_kinds = listed_kinds(config, "layer_types", KIND_BY_LAYER_TYPE, default_layer_kinds)
    if selects_keys is None and config.has("per_layer_config"):
        return layer_kinds
    return [layer_kind if layer_kind == "sliding" else full_kind for layer_kind in layer_kinds]


def _ffn_kinds(config: Config, depth: int) -> list[str]:
    """Returns each layer's kind of network; `moe_layer_freq` is an interval or a list with a number per layer."""
    first_expert_layer, expert_interval = config.count("first_k_dense_replace"), config.get("moe_layer_freq")
    expert_flags = config.integers("moe_layer_freq") if isinstance(expert_interval, list) else None
    if expert_flags is not None and len(expert_flags) < depth:
        raise config.error("moe_layer_freq", expert_interval, f"an interval, or {depth} whole numbers")
    expert_period = config.integer("moe_layer_freq") if expert_flags is None else 1
    layer_has_experts = [
        bool(expert_flags[flag_index]) if expert_flags is not None else flag_index % expert_period == 0
        for flag_index in range(depth)
    ]
    default_layer_kinds = [
        "moe" if layer_index >= first_expert_layer and layer_has_experts[layer_index] else "dense"
        for layer_index in range(depth)
    ]
    return listed_kinds(config, "mlp_layer_types", DENSE_OR_MOE, default_layer_kinds)


def _window_size(config: Config) -> int:
    return config.optional_integer("sliding_window") or config.integer("sliding_window_size")


def _window_sizes(config: Config) -> Table:
    """Returns latent attention's sizes in layers with a window, from either form of the config."""
    per_layer_config = config.get("per_layer_config")
    if per_layer_config is not None:
        layer_tables = config.table("per_layer_config")
        first_layer_fields = next((fields for fields in layer_tables.values() if isinstance(fields, dict)), {})
        location = f"{config.location}per_layer_config."
        window_config = Config(first_layer_fields, {}, config.model_type, location=location)
        return {
            name: window_config.integer(name) if window_config.has(name) else config.integer(name)
            for name in LATENT_SIZES
        }
    latent_sizes = {name: config.integer(f"swa_{name}") for name in LATENT_SIZES if name != "qk_rope_head_dim"}
    rotary_dim = config.optional_integer("swa_qk_rope_head_dim")
    if rotary_dim is None:
        rotary_dim = config.integer("swa_head_dim") - latent_sizes["qk_nope_head_dim"]
    return {**latent_sizes, "qk_rope_head_dim": rotary_dim}


FLOAT32_KEYS = Deviation(
    "Dots 3's indexer",
    "its keys are cached in float32, because they are rotated by angles in float32",
    "cache_bytes",
    class_op=lambda op: (
        replace(op, width=2 * op.width) if isinstance(op, KVCache) and op.cache_kind == "indexer" else op
    ),
)

IGNORED_FIELDS = ROUTING_FIELDS | {"swa_num_key_value_heads", "swa_rope_theta", "swa_head_dim", "per_layer_config"}

FAMILIES = {
    "dots3_note": Family(
        None,
        text_type="dots3_note_text",
        uncounted_encoders={"vision_config": "dots3_note_vision_encoder", "audio_config": "dots3_note_audio_encoder"},
    ),
    "dots3_note_text": Family(
        _read_dots3_note_text,
        {
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "use_dsa": None,
            "use_sliding_window": True,
            "sliding_window_size": 512,
            "per_layer_config": None,
            "swa_num_attention_heads": 64,
            "swa_q_lora_rank": 1024,
            "swa_kv_lora_rank": 1024,
            "swa_head_dim": 256,
            "swa_qk_nope_head_dim": 192,
            "swa_v_head_dim": 128,
        },
        IGNORED_FIELDS,
        deviations=(FLOAT32_KEYS,),
        modules={**DSA_MODULES, "self_attn.gate_proj": "g_proj", "k_rope_norm": "k_rope_only_layernorm"},
    ),
}
