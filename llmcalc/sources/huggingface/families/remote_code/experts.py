"""Grouped-query attention with routed experts: DeepSeek-MoE, Ling and Ring, Hunyuan-Large, Grok, Arctic and others.

Sources: the modeling files of the models' repositories and vLLM's, in `Family.source` of each model type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...code_addresses import HUB, MLX, SGLANG, VLLM
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    QKV_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    decoder,
    decoder_of_kinds,
    full_rope,
    gated_experts,
    glu,
    layer_table,
    moe,
    note_uncounted_mtp,
    qk_norm_fields,
    rmsnorm,
    rope,
)
from ..deepseek.deepseek import LATENT_DEFAULTS, SIGMOID_ROUTING, deepseek_decoder, latent_attention, routed_experts
from ..deepseek.deepseek import ROUTING_FIELDS as DEEPSEEK_ROUTING_FIELDS
from ..experts.minimax import minimax_decoder


def _read_deepseek(config: Config) -> Table:
    """Reads DeepSeek-MoE 16B: DeepSeek-V2's experts with the attention of Llama."""
    depth = config.integer("num_hidden_layers")
    first_expert_layer = config.count("first_k_dense_replace") if config.get("n_routed_experts") is not None else depth
    layer_kinds = ["dense" if layer_index < first_expert_layer else "moe" for layer_index in range(depth)]
    attention_table = attention(config, **attention_biases(config))
    return deepseek_decoder(
        config, attention_table, routed_experts(config) if "moe" in layer_kinds else {}, layer_kinds
    )


def _read_bailing_moe(config: Config) -> Table:
    """Reads Ling and Ring, versions 1 and 2, with DeepSeek-V3's MTP modules in version 2."""
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    layer_kinds = [
        "dense" if layer_index < config.count("first_k_dense_replace") else "moe" for layer_index in range(depth)
    ]
    return deepseek_decoder(config, ling_attention(config, norm), ling_experts(config), layer_kinds)


def ling_attention(config: Config, qk_norm: Table) -> Table:
    """Returns Ling's grouped-query attention. qk_norm: the optional norm of queries and keys."""
    return attention(
        config,
        position=ling_rope(config),
        **biases(config.flag("use_qkv_bias"), *QKV_BIASES),
        **biases(config.flag("use_bias"), "o_bias"),
        **(qk_norm_fields(qk_norm) if config.flag("use_qk_norm") else {}),
    )


def ling_rope(config: Config) -> Table:
    position_encoding = {
        **rope(config),
        **({"rotary_dim": config.integer("rotary_dim")} if config.has("rotary_dim") else {}),
    }
    if config.has("rotary_dim"):
        position_encoding.pop("partial_rotary_factor", None)
    return position_encoding


def ling_experts(config: Config, shared_expert_count: int | None = None) -> Table:
    """Returns Ling's experts. shared_expert_count: default the config's number, or 0 if a flag disables them."""
    expert_width = config.integer("moe_intermediate_size")
    if shared_expert_count is None:
        moe_router_enable_shared_expert = config.flag("moe_router_enable_shared_expert")
        shared_expert_count = config.count("num_shared_experts") if moe_router_enable_shared_expert else 0
    moe_shared_expert_intermediate_size = config.optional_integer("moe_shared_expert_intermediate_size")
    shared_width = (moe_shared_expert_intermediate_size or expert_width) * shared_expert_count
    router: Table = SIGMOID_ROUTING if config.flag("moe_router_enable_expert_bias") else {}
    return gated_experts(config, expert_width, shared_width if shared_expert_count else None, **router)


def ling_lightning(config: Config, qk_norm: Table) -> Table:
    """Returns the lightning attention of Ring-linear and Ling 2.5. qk_norm: the optional norm of queries and keys."""
    head_count = config.integer("num_attention_heads")
    return {
        "type": "lightning",
        "num_attention_heads": head_count,
        "head_dim": config.quotient("num_attention_heads", config.integer("hidden_size"), head_count),
        "block_size": 64,
        "hidden_act": "silu" if config.flag("linear_silu") else "identity",
        "position": ling_rope(config),
        "qkv_bias": config.flag("use_qkv_bias"),
        "o_bias": config.flag("use_bias"),
        **({"qk_norm": qk_norm} if config.flag("use_qk_norm") else {}),
    }


def _read_bailing_linear(config: Config) -> Table:
    """Reads Ring-linear: groups of lightning-attention layers, each ended by a softmax-attention layer.

    The layers after the last whole group have softmax attention, too.
    """
    note_uncounted_mtp(config)
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    group_size, linear_attention = config.integer("layer_group_size"), ling_lightning(config, norm)
    full_attention = {"type": "attention", **ling_attention(config, norm)}
    first_expert_layer, experts = config.count("first_k_dense_replace"), ling_experts(config)
    ffn_kinds = ["dense" if layer_index < first_expert_layer else "moe" for layer_index in range(depth)]
    mixer_kinds = [
        "full" if (layer_index + 1) % group_size == 0 or layer_index >= depth // group_size * group_size else "linear"
        for layer_index in range(depth)
    ]
    block = layer_table(linear_attention, experts, norm)
    mixer_changes: Table = {"linear": {}, "full": {"attention": full_attention}}
    ffn_changes: Table = {"moe": {}, "dense": {"feed_forward": {"type": "mlp", **glu(config)}}}
    return decoder_of_kinds(config, block, norm, (mixer_kinds, mixer_changes), (ffn_kinds, ffn_changes))


def _read_klear(config: Config) -> Table:
    """Reads Klear: Qwen3's layers, whose experts and shared expert are mixed with learned weights."""
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    attention_table = attention(config, **attention_biases(config), **qk_norm_fields(norm))
    dense_indices = set(config.integers("mlp_only_layers")) if config.get("mlp_only_layers") else set()
    expert_interval, expert_width = config.integer("decoder_sparse_step"), config.integer("moe_intermediate_size")
    layer_kinds = [
        "dense" if layer_index in dense_indices or (layer_index + 1) % expert_interval else "moe"
        for layer_index in range(depth)
    ]
    shared_width = expert_width * config.integer("n_shared_experts")
    experts = gated_experts(config, expert_width, shared_width, shared_expert_mix=True, **SIGMOID_ROUTING)
    block = layer_table(attention_table, experts, norm)
    dense_layer_fields = {"feed_forward": {"type": "mlp", **glu(config)}} if "dense" in layer_kinds else {}
    layer_configs: Table = {"moe": {}, "dense": dense_layer_fields}
    config.fields_read.add("intermediate_size")
    return decoder_of_kinds(config, block, norm, (layer_kinds, layer_configs))


def _read_hunyuan(config: Config) -> Table:
    """Reads Hunyuan-Large: with `use_cla`, only every `cla_share_factor`-th layer computes keys and values."""
    norm = rmsnorm(config.number("rms_norm_eps"))
    depth = config.integer("num_hidden_layers")
    ffn_width = config.integer("intermediate_size")
    qk_norms = qk_norm_fields(norm, norm_order="after_rope") if config.flag("use_qk_norm") else {}
    attention_table = attention(config, **attention_biases(config), **qk_norms)
    sharing_period = config.integer("cla_share_factor") if config.flag("use_cla") else 1
    if sharing_period > 1 and qk_norms:
        config.notes.append("use_cla: the norm of the keys in layers that share them (head_dim weights) is not counted")
    ffn: Table = glu(config)
    if config.integer("num_experts") > 1:
        expert_width = ffn_width
        if config.has("moe_intermediate_size"):
            expert_width = _size_in_all_layers(config, "moe_intermediate_size", depth)
        shared_ffn = glu(config, ffn_width=ffn_width * _size_in_all_layers(config, "num_shared_expert", depth))
        ffn = moe(
            config.integer("num_experts"),
            _size_in_all_layers(config, "moe_topk", depth),
            glu(config, ffn_width=expert_width),
            shared_ffn if config.flag("use_mixed_mlp_moe") else None,
        )
    layer_changes: Table = {"computed": {}, "shared": {"attention": {"kv_shared": True}}}
    layer_kinds = ["shared" if layer_index % sharing_period else "computed" for layer_index in range(depth)]
    block = layer_table(attention_table, ffn, norm)
    return decoder_of_kinds(config, block, norm, (layer_kinds, layer_changes))


def _size_in_all_layers(config: Config, field_name: str, depth: int) -> int:
    """Returns a size that is the same in all layers. Raises `InputError` for a list with different values."""
    layer_values = config.get(field_name)
    if not isinstance(layer_values, list):
        return config.integer(field_name)
    if (
        len(layer_values) < depth
        or len({*layer_values[:depth]}) != 1
        or type(layer_values[0]) is not int
        or layer_values[0] < 1
    ):
        raise config.error(field_name, layer_values, f"a positive whole number, or {depth} equal ones")
    return layer_values[0]


def _read_grok(config: Config) -> Table:
    """Reads Grok-1 in the hub's form: experts in every layer, norms before and after each sublayer."""
    norm = rmsnorm(config.number("rms_norm_eps"))
    num_experts = config.integer("num_experts")
    experts = moe(num_experts, config.integer("num_experts_per_tok"), {**glu(config), "hidden_act": "gelu_tanh"})
    attention_table = attention(config, attn_logit_softcapping=config.number("attn_logit_softcapping"))
    block = layer_table(attention_table, experts, norm, "sandwich")
    return decoder(config, block, norm)


def _read_arctic(config: Config) -> Table:
    """Reads Snowflake Arctic: experts in every `moe_layer_frequency`-th layer; `use_residual` adds a dense FFN.

    That network is as wide as the layer.
    """
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    expert_period, has_residual_network = config.integer("moe_layer_frequency"), config.flag("use_residual")
    layer_kinds = ["moe" if (layer_index + 1) % expert_period == 0 else "dense" for layer_index in range(depth)]
    experts = moe(config.integer("num_local_experts"), config.integer("num_experts_per_tok"), glu(config))
    expert_layer: Table = {"feed_forward": experts}
    if has_residual_network:
        expert_layer |= {"type": "dense_residual", "dense": glu(config, ffn_width=config.integer("hidden_size"))}
    dense_ffn = {"type": "mlp", **glu(config)}
    block = {"attention": attention(config), "norm": norm, "norm_placement": "pre"}
    layer_configs: Table = {"moe": expert_layer, "dense": {"feed_forward": dense_ffn}}
    if {*layer_kinds} == {"moe"}:
        return decoder(config, {**block, **expert_layer}, norm)
    return decoder_of_kinds(config, {**block, "feed_forward": dense_ffn}, norm, (layer_kinds, layer_configs))


def _read_grok_2(config: Config) -> Table:
    """Reads Grok-2; `residual_moe` adds a dense FFN that reads the experts' input."""
    norm, has_residual_network = rmsnorm(config.number("rms_norm_eps")), config.flag("residual_moe")
    expert_width = config.optional_integer("moe_intermediate_size") or config.integer("intermediate_size")
    config.fields_read.add("intermediate_size")
    ffn = {"hidden_act": "gelu_tanh", "gated": True}
    experts = moe(
        config.integer("num_local_experts"),
        config.integer("num_experts_per_tok"),
        {**ffn, "intermediate_size": expert_width},
        {**ffn, "intermediate_size": config.integer("intermediate_size")} if has_residual_network else None,
    )
    logit_cap = config.number("attn_logit_softcapping")
    attention_table = attention(config, **({"attn_logit_softcapping": logit_cap} if logit_cap else {}))
    block = layer_table(attention_table, experts, norm, "sandwich")
    return decoder(config, block, norm)


def _read_minimax_m1(config: Config) -> Table:
    """Reads MiniMax-Text-01 and M1, whose layer list has 0 for lightning attention and 1 for softmax attention."""
    config.require("postnorm", True)
    depth, attention_flags = config.integer("num_hidden_layers"), config.integers("attn_type_list")
    if len(attention_flags) != depth or not {*attention_flags} <= {0, 1}:
        raise config.error("attn_type_list", attention_flags, f"{depth} times 0 or 1, one for each layer")
    position_encoding = full_rope(config)
    if config.has("rotary_dim"):
        position_encoding["rotary_dim"] = config.integer("rotary_dim")
    layer_kinds = ["full" if attention_flag else "linear" for attention_flag in attention_flags]
    return minimax_decoder(config, layer_kinds, position_encoding)


def _read_sarvam_mla(config: Config) -> Table:
    """Reads Sarvam 105B: DeepSeek-V3 with Ling's field names, by default without query compression."""
    depth, first_expert_layer = config.integer("num_hidden_layers"), config.count("first_k_dense_replace")
    layer_kinds = ["dense" if layer_index < first_expert_layer else "moe" for layer_index in range(depth)]
    experts = ling_experts(config, config.count("num_shared_experts"))
    return deepseek_decoder(config, latent_attention(config), experts, layer_kinds)


def _read_smallthinker(config: Config) -> Table:
    """Reads SmallThinker: experts with ReLU in every layer, whose router reads the layer's input.

    `rope_layout` and `sliding_window_layout` have 1 for each layer with rotary positions, or with a window.
    """
    depth = config.integer("num_hidden_layers")
    rope_flags, window_flags = (
        _layer_flags(config, field_name, depth, default_flag) for field_name, default_flag in LAYOUT_DEFAULTS.items()
    )
    window_size = config.optional_integer("sliding_window_size") if any(window_flags) else None
    config.fields_read.add("sliding_window_size")
    ffn = {"intermediate_size": config.integer("moe_ffn_hidden_size"), "hidden_act": "relu", "gated": True}
    experts = moe(config.integer("moe_num_primary_experts"), config.integer("moe_num_active_primary_experts"), ffn)
    norm, layer_kinds, layer_configs = rmsnorm(config.number("rms_norm_eps")), [], {}
    for has_rope, is_windowed in zip(rope_flags, window_flags, strict=True):
        attention_fields: Table = {} if has_rope else {"position": "none"}
        attention_fields |= {"sliding_window": window_size} if is_windowed and window_size else {}
        layer_kinds.append(f"{'sliding' if is_windowed else 'full'}{'' if has_rope else '_no_rope'}")
        layer_configs[layer_kinds[-1]] = {"attention": attention_fields} if attention_fields else {}
    block = layer_table(attention(config), experts, norm)
    return decoder_of_kinds(config, block, norm, (layer_kinds, layer_configs))


LAYOUT_DEFAULTS = {"rope_layout": 1, "sliding_window_layout": 0}
"""Config field with a flag per layer of SmallThinker → the flag of every layer if the field is missing."""


def _layer_flags(config: Config, field_name: str, depth: int, default_flag: int) -> list[int]:
    """Returns 0 or 1 for each layer from a config's list; without the list `default_flag` for all."""
    layer_flags = config.integers(field_name) if config.has(field_name) else [default_flag] * depth
    if len(layer_flags) != depth or not {*layer_flags} <= {0, 1}:
        raise config.error(field_name, layer_flags, f"{depth} times 0 or 1, one for each layer")
    return layer_flags


COMMON_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": None,
    "head_dim": None,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "moe_layer_freq": 1,
}
ROUTING_FIELDS = field_names(
    "aux_loss_alpha ep_size n_group norm_topk_prob routed_scaling_factor scoring_func seq_aux topk_group topk_method"
)

LING_DEFAULTS: dict[str, Any] = {
    **COMMON_DEFAULTS,
    "use_bias": False,
    "use_qkv_bias": False,
    "use_qk_norm": False,
    "num_shared_experts": 0,
    "moe_shared_expert_intermediate_size": None,
    "moe_router_enable_expert_bias": False,
    "moe_router_enable_shared_expert": True,
    "first_k_dense_replace": 0,
}
LING_IGNORED_FIELDS = ROUTING_FIELDS | field_names("""
    embedding_dropout intermediate_size max_window_layers moe_router_enable_routed_scaling
    moe_router_topk_scaling_factor mtp_loss_scaling_factor norm_head norm_softmax output_dropout router_dtype
    score_function sliding_window use_rmsnorm use_sliding_window
    """)

FAMILIES = {
    "deepseek": Family(
        _read_deepseek,
        {**COMMON_DEFAULTS, "n_routed_experts": None, "n_shared_experts": None, "first_k_dense_replace": 0},
        ROUTING_FIELDS | {"intermediate_size"},
        source=f"{HUB}deepseek-ai/deepseek-moe-16b-base modeling_deepseek.py",
    ),
    "bailing_moe": Family(
        _read_bailing_moe,
        LING_DEFAULTS,
        LING_IGNORED_FIELDS,
        uncounted_fields={
            "multi_gate": "the two routers of each layer for tokens of images and of sound are not counted"
        },
        has_grouped_router=True,
        source="https://github.com/inclusionAI/Ming-UniAudio/blob/main/modeling_bailing_moe.py",
    ),
    "bailing_moe_linear": Family(
        _read_bailing_linear,
        {**LING_DEFAULTS, "layer_group_size": 1, "linear_silu": False},
        LING_IGNORED_FIELDS | {"group_norm_size", "num_nextn_predict_layers"},
        has_grouped_router=True,
        source=f"{MLX}bailing_moe_linear.py",
    ),
    "Klear": Family(
        _read_klear,
        {**COMMON_DEFAULTS, "mlp_only_layers": None, "decoder_sparse_step": 1, "n_shared_experts": 1},
        ROUTING_FIELDS | {"moe_aux_loss_coeff", "sliding_window", "use_sliding_window"},
        source=f"{MLX}Klear.py",
    ),
    "hunyuan": Family(
        _read_hunyuan,
        {
            **COMMON_DEFAULTS,
            "use_qk_norm": False,
            "use_cla": False,
            "cla_share_factor": 1,
            "num_experts": 1,
            "num_shared_expert": 1,
            "use_mixed_mlp_moe": False,
            "moe_topk": 1,
        },
        ROUTING_FIELDS
        | {"use_rotary_pos_emb", "org_vocab_size", "add_classification_head", "class_num"}
        | {"moe_topk", "num_shared_expert", "use_mixed_mlp_moe", "moe_intermediate_size", "cla_share_factor"},
        aliases={"head_dim": "attention_head_dim"},
        source=f"{MLX}hunyuan.py",
    ),
    "grok-1": Family(
        _read_grok,
        {
            **COMMON_DEFAULTS,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "attn_logit_softcapping": 30.0,
            "tie_word_embeddings": True,
        },
        field_names("attn_output_multiplier embedding_multiplier_scale max_attn_value output_multiplier_scale"),
        source=f"{VLLM}grok1.py",
    ),
    "arctic": Family(
        _read_arctic,
        {
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "num_local_experts": 8,
            "num_experts_per_tok": 1,
            "moe_layer_frequency": 2,
            "use_residual": False,
            "tie_word_embeddings": False,
        },
        field_names("""
            enable_expert_tensor_parallelism moe_eval_capacity_factor moe_min_capacity moe_token_dropping
            moe_train_capacity_factor parallel_attn_mlp_res sliding_window
            """),
        source=f"{VLLM}arctic.py",
    ),
    "grok-2": Family(
        _read_grok_2,
        {
            **COMMON_DEFAULTS,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": None,
            "residual_moe": False,
            "attn_logit_softcapping": 30.0,
        },
        field_names("""
            attn_output_multiplier attn_temperature_len embedding_multiplier_scale final_logit_softcapping
            global_attn_every_n merge_gate_up output_multiplier_scale replicate_embedding replicate_lm_head rope_type
            router_logit_softcapping sliding_window_size
            """),
        source=f"{SGLANG}grok.py",
    ),
    "sarvam_mla": Family(
        _read_sarvam_mla,
        {
            **COMMON_DEFAULTS,
            **LATENT_DEFAULTS,
            "q_lora_rank": None,
            "num_shared_experts": 0,
            "moe_shared_expert_intermediate_size": None,
            "moe_router_enable_expert_bias": True,
            "first_k_dense_replace": 0,
        },
        DEEPSEEK_ROUTING_FIELDS
        | frozenset({"embedding_dropout", "moe_router_enable_routed_scaling", "output_dropout", "router_dtype"})
        | {"q_head_dim", "score_function", "use_qk_norm"},
        source=f"{VLLM}sarvam.py",
    ),
    "smallthinker": Family(
        _read_smallthinker,
        {**COMMON_DEFAULTS, "rope_layout": None, "sliding_window_layout": None, "sliding_window_size": 4096},
        field_names("""
            model_name moe_enable_early_router moe_enable_secondary_experts moe_primary_router_apply_softmax
            moe_secondary_expert_size moe_num_secondary_experts norm_topk_prob sliding_window
            """),
        source="https://github.com/SJTU-IPADS/SmallThinker sglang/srt/models/smallthinker.py",
    ),
    "minimax_m1": Family(
        _read_minimax_m1,
        {
            "num_key_value_heads": 8,
            "head_dim": None,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "sliding_window": None,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "block_size": 256,
            "postnorm": False,
            "shared_intermediate_size": None,
        },
        frozenset(
            f"layernorm_{part}_{factor}"
            for part in ("full_attention", "linear_attention", "mlp")
            for factor in ("alpha", "beta")
        )
        | {"shared_moe_mode"},
        aliases={"num_local_experts": "num_experts"},
        source=f"{HUB}MiniMaxAI/MiniMax-Text-01 modeling_minimax_text_01.py",
    ),
}
FAMILIES["bailing_moe_v2"] = FAMILIES["bailing_moe"]
FAMILIES |= {
    kind: replace(FAMILIES["bailing_moe"], source=f"{VLLM}{file}")
    for kind, file in (("sarvam_moe", "sarvam.py"), ("param2moe", "param2moe.py"))
}
FAMILIES["minimax_text_01"] = FAMILIES["minimax_m1"]
