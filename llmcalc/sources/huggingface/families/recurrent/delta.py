"""Linear attention with the delta rule, and some layers of full attention.

Qwen3-Next, Qwen3.5, OLMo Hybrid, Kimi Linear, Ling 3.

transformers: models/qwen3_next, models/qwen3_5, models/qwen3_5_moe, models/olmo_hybrid, models/kimi_linear,
    models/bailing_hybrid.
"""

from __future__ import annotations

from math import floor
from typing import Any

from .....components.base import LARGEST_SIZE
from ...absent_value import require_present
from ...config import Config
from ...family import Family, ModuleNames, field_names
from ...field_writers import NO_PADDING_WRITER, PARTIAL_ROTARY_WRITER, FieldWriters
from ...parts import (
    QKVO_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    decoder,
    dense_or_moe_kinds,
    float32_rmsnorm,
    gated_experts,
    glu,
    layer_table,
    listed_kinds,
    mtp_modules,
    note_uncounted_mtp,
    offset_rmsnorm,
    qk_norm_fields,
    rmsnorm,
    rope,
    stack_of_kinds,
)
from ..deepseek.deepseek import LATENT_WRITERS, SIGMOID_ROUTING, latent_attention
from .mamba import full_attention_layers, layer_interval

LINEAR_OR_FULL = {"linear_attention": "linear", "full_attention": "full"}


def gated_delta_net(config: Config, **mixer_fields: Any) -> Table:
    field_names = (
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )
    return {
        "type": "gated_delta_net",
        **{field_name: config.integer(field_name) for field_name in field_names if field_name not in mixer_fields},
        "norm_eps": config.number("rms_norm_eps"),
        **mixer_fields,
    }


def _qwen_decoder(config: Config, expert_flags: list[bool]) -> Table:
    """Returns the decoder of Qwen3-Next and Qwen3.5: layers with linear or full attention, dense or with experts.

    expert_flags: whether each layer has experts.
    """
    norm = offset_rmsnorm(config.number("rms_norm_eps"))
    depth = config.integer("num_hidden_layers")
    has_bias = config.flag("attention_bias")
    full_attention = attention(
        config,
        position=rope(config, 0.25),
        output_gate={"per": "element", "bias": has_bias},
        **biases(has_bias, *QKVO_BIASES),
        **qk_norm_fields(norm),
    )
    mixers: Table = {"linear": gated_delta_net(config), "full": {"type": "attention", **full_attention}}
    ffns_by_kind: Table = {}
    if not all(expert_flags):
        ffns_by_kind[""] = {"type": "mlp", **glu(config)}
    if any(expert_flags):
        shared_width = config.integer("shared_expert_intermediate_size")
        ffns_by_kind["_moe"] = gated_experts(config, shared_width=shared_width, shared_expert_gate=True)
    layer_configs = {
        mixer_kind + ffn_kind: layer_table(mixers[mixer_kind], ffns_by_kind[ffn_kind], norm)
        for mixer_kind in mixers
        for ffn_kind in ffns_by_kind
    }
    attention_period = config.integer("full_attention_interval")
    default_layer_kinds = ["linear" if (layer_index + 1) % attention_period else "full" for layer_index in range(depth)]
    mixer_kinds = listed_kinds(config, "layer_types", LINEAR_OR_FULL, default_layer_kinds)
    layer_kinds = [
        kind + ("_moe" if has_experts else "") for kind, has_experts in zip(mixer_kinds, expert_flags, strict=True)
    ]
    stack_fields = stack_of_kinds(layer_configs, layer_kinds)
    return decoder(config, stack_fields["block"], norm, stack=stack_fields, **_prediction_module(config, layer_kinds))


def _prediction_module(config: Config, layer_kinds: list[str]) -> Table:
    """Returns Qwen's multi-token-prediction module, which has one full-attention layer."""
    mtp_module_count = config.count("mtp_num_hidden_layers") if config.has("mtp_num_hidden_layers") else 0
    last_full_kind = next((layer_kind for layer_kind in reversed(layer_kinds) if layer_kind.startswith("full")), None)
    if mtp_module_count != 1 or last_full_kind is None or config.head_kind != "lm":
        return {}
    return {
        "mtp": {
            "num_nextn_predict_layers": 1,
            "norm": offset_rmsnorm(config.number("rms_norm_eps")),
            **({"layer": last_full_kind} if len(set(layer_kinds)) > 1 else {}),
        }
    }


def _read_qwen3_next(config: Config) -> Table:
    dense_indices, expert_interval = config.get("mlp_only_layers"), config.integer("decoder_sparse_step")
    dense_layers = set() if dense_indices is None else set(config.integers("mlp_only_layers"))
    has_experts = config.count("num_experts") > 0
    expert_flags = [
        has_experts and layer_index not in dense_layers and (layer_index + 1) % expert_interval == 0
        for layer_index in range(config.integer("num_hidden_layers"))
    ]
    return _qwen_decoder(config, expert_flags)


def _read_qwen3_5(config: Config) -> Table:
    return _qwen_decoder(config, [False] * config.integer("num_hidden_layers"))


TOP_LEVEL_NAMES = {
    "num_heads": "linear_num_heads",
    "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
"""Field of Kimi Linear's table `linear_attn_config` → its name outside the table, used if the table does not have it.
"""


def linear_attention_config(config: Config, field_defaults: Table | None = None) -> Config:
    """Returns Kimi Linear's table `linear_attn_config`; missing entries come from the top-level fields of other names.

    field_defaults: the defaults of further fields.
    """
    stated_config = config.table("linear_attn_config") if config.has("linear_attn_config") else {}
    config.fields_read.update(TOP_LEVEL_NAMES.values())
    outer_fields = {
        field: config.integer(name) for field, name in TOP_LEVEL_NAMES.items() if field not in stated_config
    }
    field_path_prefix = f"{config.location}linear_attn_config."
    defaults = {**outer_fields, **(field_defaults or {})}
    return Config(stated_config, defaults, config.model_type, location=field_path_prefix)


def _read_kimi_linear(config: Config) -> Table:
    config.require("moe_layer_freq", 1)
    linear_config = linear_attention_config(config)
    mixer_kinds = kimi_mixers(config, linear_config, config.integer("num_hidden_layers"))
    linear_attention = kda(config, linear_config)
    model_fields = latent_decoder(config, linear_attention, latent_attention(config, mla_use_nope=True), mixer_kinds)
    linear_config.finish(frozenset(), config)
    return {**model_fields, **mtp_modules(config)}


def _read_bailing_hybrid(config: Config) -> Table:
    """Reads Ling 3 as in transformers, without query compression."""
    config.require("q_lora_rank", None)
    return read_ling_3(config)


def read_ling_3(config: Config) -> Table:
    """Reads Ling 3: full-rank gates, and groups of layers that end in a layer of gated latent attention.

    Linear attention has the sizes of the model, unless the config has separate fields for them.
    """
    linear_fields = {
        "num_heads": config.integer("linear_num_heads", "num_attention_heads"),
        "head_dim": config.integer("linear_head_dim", "head_dim"),
        "short_conv_kernel_size": config.integer("linear_conv_kernel_dim", "short_conv_kernel_size"),
    }
    attention_period = config.integer("layer_group_size")
    if config.flag("kda_safe_gate"):
        lower_bound_fields = {"kda_lower_bound": config.number("kda_lower_bound", minimum=-LARGEST_SIZE)}
    else:
        lower_bound_fields = {}
    linear_attention = kda(
        config, Config(linear_fields, {}, config.model_type), low_rank_gates=False, **lower_bound_fields
    )
    default_layer_kinds = [
        "linear" if (layer_index + 1) % attention_period else "full"
        for layer_index in range(config.integer("num_hidden_layers"))
    ]
    mixer_kinds = listed_kinds(config, "layer_types", LINEAR_OR_FULL, default_layer_kinds)
    full_attention = latent_attention(config, output_gate={"per": "head"})
    model_fields = latent_decoder(config, linear_attention, full_attention, mixer_kinds)
    return {**model_fields, **_latent_mtp_fields(config, model_fields["decoder"])}


def _latent_mtp_fields(config: Config, stack_fields: Table) -> Table:
    """Returns Ling 3's multi-token-prediction modules, whose layer has latent attention and experts.

    Source: vLLM, models/bailing_moe_v3_mtp.py (`BailingMoeV3MultiTokenPredictorLayer`).
    """
    full_kind = "full_moe"
    if full_kind not in (*stack_fields.get("pattern", ()), *stack_fields.get("first_layers", ())):
        note_uncounted_mtp(config)
        return {}
    mtp_fields = mtp_modules(config)
    if mtp_fields:
        mtp_fields["mtp"]["layer"] = full_kind
    return mtp_fields


def kda(config: Config, linear_fields: Config, **mixer_fields: Any) -> Table:
    """Returns Kimi delta attention. linear_fields: the config's table of sizes.

    mixer_fields: further fields of the component.
    """
    return {
        "type": "kimi_delta_attention",
        "linear_num_heads": linear_fields.integer("num_heads"),
        "linear_head_dim": linear_fields.integer("head_dim"),
        "linear_conv_kernel_dim": linear_fields.integer("short_conv_kernel_size"),
        "norm_eps": config.number("rms_norm_eps"),
        **mixer_fields,
    }


def latent_decoder(config: Config, linear_attention: Table, full_attention: Table, mixer_kinds: list[str]) -> Table:
    """Returns a decoder whose layers have linear or latent attention, and experts after the first layers.

    Its class never ties the head.
    """
    config.require("num_key_value_heads", None, config.integer("num_attention_heads"))
    norm = rmsnorm(config.number("rms_norm_eps"))
    block: Table = {"norm": norm, "norm_placement": "pre"}
    mixers = {"linear": {**block, "attention": linear_attention}, "full": {**block, "attention": full_attention}}
    expert_width, shared_expert_count = config.integer("moe_intermediate_size"), config.count("n_shared_experts")
    shared_width, count_fields = expert_width * shared_expert_count, ("num_local_experts",)
    experts = gated_experts(config, expert_width, shared_width, count_fields, **SIGMOID_ROUTING)
    layer_kinds = dense_or_moe_kinds(config, config.integer("num_hidden_layers"), config.count("first_k_dense_replace"))
    ffns_by_kind: Table = {
        "moe": experts,
        **({"dense": {"type": "mlp", **glu(config)}} if "dense" in layer_kinds else {}),
    }
    layer_configs = {
        f"{mixer_kind}_{ffn_kind}": {**token_mixer, "feed_forward": ffn}
        for mixer_kind, token_mixer in mixers.items()
        for ffn_kind, ffn in ffns_by_kind.items()
    }
    stack_fields = stack_of_kinds(
        layer_configs,
        [f"{mixer_kind}_{ffn_kind}" for mixer_kind, ffn_kind in zip(mixer_kinds, layer_kinds, strict=True)],
    )
    return {**decoder(config, stack_fields["block"], norm, stack=stack_fields), "tie_word_embeddings": False}


def kimi_mixers(config: Config, linear_config: Config, depth: int) -> list[str]:
    """Returns each layer's mixer, from `layer_types` or from two lists of layer numbers that start at 1.

    Without either, each fourth layer has full attention.
    """
    default_layer_kinds = ["full" if layer_index and layer_index % 4 == 0 else "linear" for layer_index in range(depth)]
    if linear_config.has("full_attn_layers") and linear_config.has("kda_layers"):
        full_layers, linear_layers = linear_config.integers("full_attn_layers"), linear_config.integers("kda_layers")
        if sorted({*full_layers, *linear_layers}) != list(range(1, depth + 1)) or set(full_layers) & set(linear_layers):
            raise linear_config.error(
                "full_attn_layers", full_layers, f"with kda_layers each layer from 1 to {depth} once"
            )
        default_layer_kinds = ["full" if layer_index + 1 in full_layers else "linear" for layer_index in range(depth)]
    return listed_kinds(config, "layer_types", LINEAR_OR_FULL, default_layer_kinds)


def _read_olmo_hybrid(config: Config) -> Table:
    """Reads OLMo Hybrid: full-attention layers have OLMo 3's norms, linear-attention layers pre-norms."""
    depth = config.integer("num_hidden_layers")
    norm = float32_rmsnorm(config.number("rms_norm_eps"))
    head_count = config.integer("num_attention_heads")
    key_head_count = config.optional_integer("linear_num_key_heads") or head_count
    value_head_count = config.optional_integer("linear_num_value_heads") or head_count
    key_dim = config.optional_integer("linear_key_head_dim") or floor(
        config.integer("hidden_size") * 0.75 / key_head_count
    )
    linear_attention = gated_delta_net(
        config,
        linear_num_key_heads=key_head_count,
        linear_num_value_heads=value_head_count,
        linear_key_head_dim=key_dim,
        linear_value_head_dim=config.optional_integer("linear_value_head_dim") or 2 * key_dim,
        linear_allow_neg_eigval=config.flag("linear_allow_neg_eigval"),
    )
    full_attention = attention(config, **attention_biases(config), **qk_norm_fields(norm, norm_scope="projection"))
    if not _has_rope(config):
        del full_attention["position"]
    common_fields: Table = {"feed_forward": glu(config), "norm": norm}
    layer_configs: dict[str, Table] = {
        "linear": {**common_fields, "attention": linear_attention, "norm_placement": "pre"},
        "full": {**common_fields, "attention": {"type": "attention", **full_attention}, "norm_placement": "output"},
    }
    default_layer_kinds = ["full" if layer_index % 4 == 3 else "linear" for layer_index in range(depth)]
    if "full" not in default_layer_kinds:
        default_layer_kinds[-1] = "full"
    stack_fields = stack_of_kinds(
        layer_configs, listed_kinds(config, "layer_types", LINEAR_OR_FULL, default_layer_kinds)
    )
    return decoder(config, stack_fields["block"], norm, stack=stack_fields)


def _has_rope(config: Config) -> bool:
    """Whether the config sets a base of RoPE. Released checkpoints set none, and so have no positions."""
    parameters = config.config_fields.get("rope_parameters")
    return (
        parameters.get("rope_theta") if isinstance(parameters, dict) else config.config_fields.get("rope_theta")
    ) is not None


IGNORED_FIELDS = field_names("""
    attn_output_gate mamba_ssm_dtype mlp_only_layers mtp_use_dedicated_embeddings norm_topk_prob output_gate_type
    partial_rotary_factor
    """)

ROUTING_FIELDS = field_names("""
    head_dim intermediate_size mla_use_nope moe_renormalize moe_router_activation_func n_group norm_topk_prob
    num_expert_group partial_rotary_factor routed_scaling_factor topk_group use_grouped_topk
    """)
"""Fields that choose the experts, and fields that Kimi Linear ignores."""

LING_FIELDS = field_names("""
    embedding_dropout gated_attention_proj_granularity_type group_norm_size linear_silu max_window_layers
    moe_router_enable_expert_bias moe_shared_expert_intermediate_size no_kda_lora num_nextn_predict_layers qk_head_dim
    rope_interleave rotary_dim router_dtype score_function sliding_window use_bias use_qk_norm use_qkv_bias use_rmsnorm
    use_sliding_window
    """)
"""Fields of Ling's checkpoints that its class does not have."""

KIMI_NAMES = {
    "max_position_embeddings": "model_max_length",
    "num_local_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}

KIMI_LINEAR_DEFAULTS: dict[str, Any] = {
    "vocab_size": 163840,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "n_shared_experts": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "num_experts_per_tok": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "num_local_experts": 256,
    "mlp_layer_types": None,
    "layer_types": None,
    "linear_head_dim": 128,
    "linear_num_heads": 32,
    "linear_conv_kernel_dim": 4,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}

QWEN_WRITERS: FieldWriters = {
    "full_attention_interval": lambda s: layer_interval(s, full_attention_layers(s)),
    "mtp_num_hidden_layers": "num_nextn_predict_layers",
}


GATED_Q_MODULES: ModuleNames = {"self_attn.q_proj": "q_proj/2", "self_attn.gate_proj": "q_proj/2"}

KDA_MODULES: ModuleNames = {
    "linear_attn": "self_attn",
    **{f"linear_attn.{x}": f"forget_gate.{x}" for x in ("A_log", "dt_bias", "f_a_proj", "f_b_proj", "f_proj")},
}

QWEN3_5_MODULES: ModuleNames = {
    **GATED_Q_MODULES,
    **{f"linear_attn.{x}_proj": "in_proj_qkv" for x in "qkv"},
    "linear_attn.g_proj": "in_proj_z",
    "linear_attn.a_proj": "in_proj_a",
    "linear_attn.b_proj": "in_proj_b",
    "linear_attn.o_proj": "out_proj",
}

FAMILIES = {
    "qwen3_next": Family(
        _read_qwen3_next,
        {"full_attention_interval": 4},
        IGNORED_FIELDS | {"use_sliding_window"},
        field_writers={**QWEN_WRITERS, **PARTIAL_ROTARY_WRITER},
        modules={
            **GATED_Q_MODULES,
            **{f"linear_attn.{x}_proj": "in_proj_qkvz" for x in "qkvg"},
            "linear_attn.a_proj": "in_proj_ba/2",
            "linear_attn.b_proj": "in_proj_ba/2",
            "linear_attn.o_proj": "out_proj",
        },
    ),
    "qwen3_5_text": Family(
        _read_qwen3_5,
        {"full_attention_interval": 4},
        IGNORED_FIELDS,
        field_writers={**QWEN_WRITERS, **PARTIAL_ROTARY_WRITER},
        modules=QWEN3_5_MODULES,
    ),
    "qwen3_5": Family(None, text_type="qwen3_5_text", tower_file="qwen"),
    "qwen3_5_moe_text": Family(
        lambda config: _qwen_decoder(config, [True] * config.integer("num_hidden_layers")),
        {"full_attention_interval": 4},
        IGNORED_FIELDS | {"mlp_only_layers", "intermediate_size"},
        field_writers={**QWEN_WRITERS, **PARTIAL_ROTARY_WRITER},
        modules=QWEN3_5_MODULES,
    ),
    "qwen3_5_moe": Family(None, text_type="qwen3_5_moe_text", tower_file="qwen"),
    "kimi_linear": Family(
        _read_kimi_linear,
        {"first_k_dense_replace": 1, "moe_layer_freq": 1},
        ROUTING_FIELDS | {"qk_head_dim"},  # the class derives it from its two parts
        aliases=KIMI_NAMES,
        field_writers={**LATENT_WRITERS, **NO_PADDING_WRITER},
        modules=KDA_MODULES,
        earlier_names={
            "forget_gate.f_a_proj": "f_a_proj",
            "forget_gate.f_b_proj": "f_b_proj",
            "mlp": "block_sparse_moe",
        },
    ),
    "bailing_hybrid": Family(
        _read_bailing_hybrid,
        {"q_lora_rank": None},
        ROUTING_FIELDS | LING_FIELDS,
        aliases=KIMI_NAMES,
        field_writers={
            **LATENT_WRITERS,
            "head_dim": lambda s: s.first_value("linear_head_dim"),
            "short_conv_kernel_size": lambda s: s.first_value("linear_conv_kernel_dim"),
            "kda_safe_gate": lambda s: s.first_value("kda_lower_bound") is not None,
            "kda_lower_bound": lambda s: require_present(s.first_value("kda_lower_bound")),
            **NO_PADDING_WRITER,
        },
        modules={**KDA_MODULES, "self_attn.gate_proj": "g_proj"},
        earlier_names={"self_attn": "attention", "forget_gate.f_proj": "f_proj", "attention.o_proj": "attention.dense"},
    ),
    "olmo_hybrid": Family(
        _read_olmo_hybrid, ignored_fields=frozenset({"partial_rotary_factor"}), field_writers=NO_PADDING_WRITER
    ),
}
