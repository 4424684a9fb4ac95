"""Builds the model spec that Megatron-LM's arguments describe.

Sources: megatron/core/models/{gpt,bert,T5,hybrid}, transformer/{attention,multi_latent_attention,mlp}.py,
transformer/moe/{router,experts,shared_experts}.py, ssm/mamba_mixer.py and transformer/multi_token_prediction.py at
commit d98e8a64. All models have the norm before each sublayer and one after the last layer.
"""

from __future__ import annotations

from typing import Any

from ...errors import InputError
from ...model import ModelSpec
from ...sources.files import validate
from ...sources.huggingface.parts import stack_of_kinds
from .arguments import flag_of_field
from .settings import MegatronSettings

Table = dict[str, Any]

NO_COMPONENT: Table = {"type": "none"}

MAMBA_CHUNK_TOKENS = 128
"""Number of tokens that a Mamba layer scans at once (mamba_mixer.py, `chunk_size`)."""

BERT_LABEL_COUNT = 2
"""Number of labels of BERT's head: whether the second text follows the first (bert_model.py, `binary_head`)."""

SEGMENT_COUNT = 2
"""Number of segment types of BERT's tokens."""

LAYER_KIND_BY_LETTER = {"M": "mamba", "*": "attention", "-": "dense", "E": "experts", "+": "latent"}
"""Letter of a hybrid pattern → kind of layer."""


def model_of_arguments(settings: MegatronSettings, model_origin: str) -> ModelSpec:
    """Returns the model spec that Megatron-LM's arguments describe. Raises `InputError` for unsupported arguments."""
    if settings.padded_vocabulary_size is None:
        raise InputError(
            f"--vocab-size: missing; the size of a {settings.tokenizer_kind} is in its files alone; expected "
            "--vocab-size or --padded-vocab-size too"
        )
    for argument_name in ("apply_residual_connection_post_layernorm", "fp32_residual_connection"):
        if getattr(settings, argument_name):
            raise InputError(f"{flag_of_field(argument_name)}: not supported; expected a residual stream without norms")
    spec_table: Table = {
        "vocab_size": settings.padded_vocabulary_size,
        "hidden_size": settings.hidden_size,
        "tie_word_embeddings": not settings.untie_embeddings_and_output_weights,
    }
    if settings.position_type != "learned_absolute" and settings.max_position_embeddings is not None:
        spec_table["max_position_embeddings"] = settings.max_position_embeddings
    build_fields = {"gpt": _gpt_fields, "bert": _bert_fields, "t5": _t5_fields, "hybrid": _hybrid_fields}[settings.kind]
    return validate(ModelSpec, {**spec_table, **build_fields(settings)}, model_origin)


def _norm_table(settings: MegatronSettings) -> Table:
    """Returns the norm of the layers as fields of a `ModelSpec` (`--normalization`, `--norm-epsilon`)."""
    return {"type": "rmsnorm" if settings.normalization == "RMSNorm" else "layernorm", "eps": settings.norm_epsilon}


def _rope_table(settings: MegatronSettings) -> Table | None:
    """Returns the model-spec table of rotary positions; None if the model has other positions."""
    if settings.position_type not in ("rope", "yarn", "mrope"):
        return None
    partial_rope_fields = {} if settings.rotary_percent >= 1 else {"partial_rotary_factor": settings.rotary_percent}
    return {"type": "rope", "rope_theta": float(settings.rotary_base), **partial_rope_fields}


def _position_fields(settings: MegatronSettings) -> Table:
    """Returns the model-spec fields of learned position embeddings, which are added to token embeddings."""
    if settings.position_type != "learned_absolute":
        return {}
    if settings.max_position_embeddings is None:
        raise InputError("--max-position-embeddings: missing; learned positions need it")
    return {"position": {"type": "learned", "max_position_embeddings": settings.max_position_embeddings}}


def _attention_table(settings: MegatronSettings, rope_table: Table | None, is_cross_attention: bool = False) -> Table:
    """Returns the model-spec table of attention. is_cross_attention: whether keys are the encoder's, ungrouped."""
    has_bias = not settings.disable_bias_linear
    has_qkv_bias = has_bias or settings.add_qkv_bias
    attention_table: Table = {
        "num_attention_heads": settings.num_attention_heads,
        "num_key_value_heads": settings.num_attention_heads if is_cross_attention else settings.query_group_count,
        "head_dim": settings.head_dim,
        "q_bias": has_qkv_bias,
        "k_bias": has_qkv_bias,
        "v_bias": has_qkv_bias,
        "o_bias": has_bias,
    }
    if rope_table is not None:
        attention_table["position"] = rope_table
    if settings.attention_output_gate and not is_cross_attention:
        attention_table["output_gate"] = {"per": "element", "bias": has_qkv_bias}
    if settings.qk_l2_norm and not is_cross_attention:
        attention_table["qk_norm"] = {"norm": {"type": "rmsnorm", "weight": False, "eps": 1e-6}}
    elif settings.qk_layernorm and not is_cross_attention:
        attention_table["qk_norm"] = {"norm": _norm_table(settings)}
    return attention_table


def _gated_delta_net_table(settings: MegatronSettings) -> Table:
    """Returns the model-spec table of Gated DeltaNet (ssm/gated_delta_net), whose linear layers have no bias."""
    if settings.transformer_impl != "transformer_engine":
        raise InputError(
            f"--transformer-impl {settings.transformer_impl}: has no gated DeltaNet; expected transformer_engine"
        )
    key_head_count, value_head_count = settings.linear_num_key_heads, settings.linear_num_value_heads
    if value_head_count % key_head_count:
        raise InputError(
            f"--linear-num-key-heads: {key_head_count}; expected a divisor of {value_head_count} heads of values"
        )
    return {
        "type": "gated_delta_net",
        "linear_num_key_heads": key_head_count,
        "linear_num_value_heads": value_head_count,
        "linear_key_head_dim": settings.linear_key_head_dim,
        "linear_value_head_dim": settings.linear_value_head_dim,
        "linear_conv_kernel_dim": settings.linear_conv_kernel_dim,
        "norm_type": _norm_table(settings)["type"],
        "norm_eps": settings.norm_epsilon,
    }


def _indexer_table(settings: MegatronSettings) -> Table:
    """Returns the model-spec table of sparse attention's indexer (experimental_attention_variant/dsa.py)."""
    indexer_table = {
        "index_n_heads": settings.dsa_indexer_n_heads,
        "index_head_dim": settings.dsa_indexer_head_dim,
        "index_topk": settings.dsa_indexer_topk,
    }
    for argument_name, argument_value in indexer_table.items():
        if argument_value is None:
            raise InputError(f"{flag_of_field(argument_name.replace('index', 'dsa_indexer'))}: missing; dsa needs it")
    if not settings.disable_bias_linear:
        raise InputError("--disable-bias-linear: missing; dsa needs it")
    return indexer_table


def _latent_attention_table(settings: MegatronSettings) -> Table:
    """Returns the model-spec table of multi-latent attention."""
    optional_fields: Table = {} if settings.q_lora_rank is None else {"q_lora_rank": settings.q_lora_rank}
    if settings.experimental_attention_variant == "dsa":
        optional_fields["indexer"] = _indexer_table(settings)
    return {
        "type": "mla",
        "num_attention_heads": settings.num_attention_heads,
        **optional_fields,
        "kv_lora_rank": settings.kv_lora_rank,
        "qk_nope_head_dim": settings.qk_head_dim,
        "qk_rope_head_dim": settings.qk_pos_emb_head_dim,
        "v_head_dim": settings.v_head_dim,
        "o_bias": not settings.disable_bias_linear,
        "norm": _norm_table(settings) if settings.qk_layernorm else None,
        "position": {"type": "rope", "rope_theta": float(settings.rotary_base)},
    }


def _network_table(settings: MegatronSettings, inner_width: int, has_bias: bool) -> Table:
    """Returns the model-spec table of a feed-forward network."""
    if settings.swiglu:
        activation_name = "silu"
    elif settings.squared_relu:
        activation_name = "relu2"
    elif settings.openai_gelu:
        activation_name = "gelu_tanh"
    else:
        activation_name = "gelu"
    gate_fields = {"gate_bias": has_bias} if settings.has_gate else {}
    return {
        "type": "mlp",
        "intermediate_size": inner_width,
        "hidden_act": activation_name,
        "gated": settings.has_gate,
        "up_bias": has_bias,
        "down_bias": has_bias,
        **gate_fields,
    }


def _experts_table(settings: MegatronSettings) -> Table:
    """Returns the model-spec table of a mixture of experts. Shared experts never have a bias."""
    has_bias = not settings.disable_bias_linear
    router_table: Table = {"type": "linear", "bias": has_bias, "scoring_func": settings.moe_router_score_function}
    if settings.moe_router_enable_expert_bias:
        router_table["score_correction"] = "buffer"
    if settings.moe_router_num_groups not in (None, 1):
        router_table |= {"n_group": settings.moe_router_num_groups, "topk_group": settings.moe_router_group_topk or 1}
    shared_width = settings.moe_shared_expert_intermediate_size
    experts_table: Table = {
        "type": "moe",
        "num_experts": settings.num_experts,
        "num_experts_per_tok": settings.moe_router_topk,
        "expert": _network_table(settings, settings.expert_ffn_width, has_bias),
        "router": router_table,
    }
    if shared_width is not None:
        experts_table |= {
            "shared_expert": _network_table(settings, shared_width, has_bias=False),
            "shared_expert_gate": settings.moe_shared_expert_gate,
        }
    if settings.moe_latent_size is not None:
        experts_table["latent"] = {"moe_latent_size": settings.moe_latent_size}
    return experts_table


def _mamba_table(settings: MegatronSettings) -> Table:
    """Returns the model-spec table of a Mamba-2 mixer."""
    inner_width, head_dim = settings.mamba_inner_width, settings.mamba_head_dim
    if inner_width % head_dim:
        raise InputError(
            f"--mamba-head-dim: {head_dim} does not divide the inner width {inner_width}; expected a divisor"
        )
    if inner_width // head_dim % settings.mamba_num_groups:
        raise InputError(
            f"--mamba-num-groups: {settings.mamba_num_groups}; expected a divisor of {inner_width // head_dim} heads"
        )
    if settings.mamba_num_groups % settings.tp:  # core/ssm/mamba_mixer.py: ranks have no copies of a group
        raise InputError(f"--mamba-num-groups: {settings.mamba_num_groups}; expected a multiple of --tp {settings.tp}")
    return {
        "type": "mamba2",
        "num_heads": inner_width // head_dim,
        "head_dim": head_dim,
        "state_size": settings.mamba_state_dim,
        "n_groups": settings.mamba_num_groups,
        "chunk_size": MAMBA_CHUNK_TOKENS,
        "norm": {"type": "rmsnorm", "eps": settings.norm_epsilon},
    }


def _layer_table(settings: MegatronSettings, mixer_table: Table, mlp_table: Table) -> Table:
    """Returns the model-spec table of a layer with pre-norms."""
    return {"attention": mixer_table, "feed_forward": mlp_table, "norm": _norm_table(settings), "norm_placement": "pre"}


def _mixer_table(settings: MegatronSettings, has_rotary_positions: bool = True) -> Table:
    """Returns the model-spec table of a layer's attention."""
    if settings.has_latent_attention:
        return _latent_attention_table(settings)
    return _attention_table(settings, _rope_table(settings) if has_rotary_positions else None)


def _layers_without_rope(settings: MegatronSettings) -> list[bool]:
    """Returns one flag per layer: whether the layer has no rotary positions (with a frequency N, every N-th)."""
    no_rope_frequency = settings.no_rope_freq
    if no_rope_frequency is None or _rope_table(settings) is None:
        return [False] * settings.layer_count
    if isinstance(no_rope_frequency, int):
        return [no_rope_frequency > 0 and (i + 1) % no_rope_frequency == 0 for i in range(settings.layer_count)]
    if len(no_rope_frequency) != settings.layer_count:
        raise InputError(
            f"--no-rope-freq: a pattern of {len(no_rope_frequency)} layers; expected one of {settings.layer_count}"
        )
    return list(map(bool, no_rope_frequency))


def _gpt_fields(settings: MegatronSettings) -> Table:
    """Returns the model-spec fields of a GPT."""
    layer_tables, layer_names = {}, []
    for has_experts, has_no_rope, has_delta_rule in zip(
        settings.has_experts_by_layer, _layers_without_rope(settings), settings.has_delta_rule_by_layer, strict=True
    ):
        layer_name = ("experts" if has_experts else "dense") + (
            "_delta" if has_delta_rule else "_unrotated" if has_no_rope else ""
        )
        if layer_name not in layer_tables:
            if has_experts:
                network_table = _experts_table(settings)
            else:
                network_table = _network_table(settings, settings.ffn_width, not settings.disable_bias_linear)
            layer_tables[layer_name] = _layer_table(
                settings,
                _gated_delta_net_table(settings) if has_delta_rule else _mixer_table(settings, not has_no_rope),
                network_table,
            )
        layer_names.append(layer_name)
    return _decoder_fields(settings, layer_tables, layer_names, settings.mtp_layer_count, None)


def _hybrid_fields(settings: MegatronSettings) -> Table:
    """Returns the model-spec fields of a hybrid decoder of Mamba, attention and feed-forward layers."""
    pattern_letters = "".join(settings.pattern_segments)
    unknown_letters = sorted(set(pattern_letters) - set(LAYER_KIND_BY_LETTER))
    if unknown_letters or not pattern_letters:
        problem_text = f"a layer {unknown_letters[0]}" if unknown_letters else "no layers"
        raise InputError(
            f"--hybrid-layer-pattern: {problem_text} is not supported; "
            f"expected letters {', '.join(LAYER_KIND_BY_LETTER)}"
        )
    table_builders = {
        "mamba": lambda: _layer_table(settings, _mamba_table(settings), NO_COMPONENT),
        "attention": lambda: _layer_table(settings, _attention_table(settings, _rope_table(settings)), NO_COMPONENT),
        "latent": lambda: _layer_table(settings, _latent_attention_table(settings), NO_COMPONENT),
        "dense": lambda: _layer_table(
            settings, NO_COMPONENT, _network_table(settings, settings.ffn_width, not settings.disable_bias_linear)
        ),
        "experts": lambda: _layer_table(settings, NO_COMPONENT, _experts_table(settings)),
    }
    layer_names = [LAYER_KIND_BY_LETTER[layer_letter] for layer_letter in pattern_letters]
    layer_tables = {layer_name: table_builders[layer_name]() for layer_name in dict.fromkeys(layer_names)}
    mtp_layer = _mtp_layer_table(settings)
    return _decoder_fields(settings, layer_tables, layer_names, settings.mtp_layer_count, mtp_layer)


def _mtp_layer_table(settings: MegatronSettings) -> Table | None:
    """Returns the model-spec table of a multi-token-prediction module's layer; None without such modules."""
    if not settings.mtp_layer_count:
        return None
    mtp_patterns = (settings.hybrid_layer_pattern or "").split("/")[1:] or [settings.mtp_hybrid_override_pattern or ""]
    mtp_letters = mtp_patterns[0]
    if len(set(mtp_patterns)) > 1 or len(mtp_letters) not in (1, 2) or set(mtp_letters) - set(LAYER_KIND_BY_LETTER):
        raise InputError(
            f"--hybrid-layer-pattern: '{'/'.join(mtp_patterns)[:40]}' after the slash is not supported; expected one "
            "mixer and at most one network, such as /*E"
        )
    mixer_builders = {
        "M": _mamba_table,
        "*": lambda settings: _attention_table(settings, _rope_table(settings)),
        "+": _latent_attention_table,
    }
    network_builders = {
        "-": lambda settings: _network_table(settings, settings.ffn_width, not settings.disable_bias_linear),
        "E": _experts_table,
    }
    if mtp_letters[0] in mixer_builders and (len(mtp_letters) == 1 or mtp_letters[1] in network_builders):
        return _layer_table(
            settings,
            mixer_builders[mtp_letters[0]](settings),
            network_builders[mtp_letters[1]](settings) if len(mtp_letters) == 2 else NO_COMPONENT,
        )
    if len(mtp_letters) == 1:
        return _layer_table(settings, NO_COMPONENT, network_builders[mtp_letters](settings))
    raise InputError(f"--hybrid-layer-pattern: /{mtp_letters}: not supported; expected a mixer before a network")


def _decoder_fields(
    settings: MegatronSettings,
    layer_tables: dict[str, Table],
    layer_names: list[str],
    mtp_depth: int,
    mtp_layer: Table | None,
) -> Table:
    """Returns the model-spec fields of a decoder, from the tables of its layers."""
    stack_table = {
        **stack_of_kinds(layer_tables, layer_names),
        "num_hidden_layers": len(layer_names),
        "final_norm": _norm_table(settings),
        **_position_fields(settings),
    }
    if not mtp_depth:
        return {"decoder": stack_table}
    mtp_table: Table = {
        "num_nextn_predict_layers": mtp_depth,
        "repeated": settings.mtp_use_repeated_layer,
        "norm": _norm_table(settings),
    }
    if mtp_layer is not None:
        stack_table["variants"] = {**stack_table["variants"], "later": mtp_layer}
        mtp_table["layer"] = "later"
    else:
        last_layer_name = layer_names[-1]
        mtp_table["layer"] = last_layer_name if last_layer_name in stack_table["variants"] else "block"
    return {"decoder": stack_table, "mtp": mtp_table}


def _bert_fields(settings: MegatronSettings) -> Table:
    """Returns the model-spec fields of a BERT."""
    if settings.pp > 1 and settings.mtp_num_layers:
        raise InputError("--mtp-num-layers: BERT has none; expected none")
    layer_table = _layer_table(
        settings,
        _attention_table(settings, _rope_table(settings)),
        _network_table(settings, settings.ffn_width, not settings.disable_bias_linear),
    )
    has_binary_head = not settings.bert_no_binary_head
    stack_table: Table = {
        "num_hidden_layers": settings.layer_count,
        "block": layer_table,
        "final_norm": _norm_table(settings),
        **_position_fields(settings),
    }
    if has_binary_head:
        stack_table["token_types"] = {"type_vocab_size": SEGMENT_COUNT}
    head_transform = {"hidden_act": "gelu", "norm": {"type": "layernorm", "eps": settings.norm_epsilon}}
    decoder_table: Table = {"encoder": stack_table, "head": {"type": "lm", "bias": True, "transform": head_transform}}
    return {**decoder_table, "pooler": {"num_labels": BERT_LABEL_COUNT}} if has_binary_head else decoder_table


def _t5_fields(settings: MegatronSettings) -> Table:
    """Returns the model-spec fields of a T5."""
    network_table = _network_table(settings, settings.ffn_width, not settings.disable_bias_linear)
    decoder_layer_table = _layer_table(settings, _attention_table(settings, _rope_table(settings)), network_table)
    relative_bias_table: Table = {}
    if settings.position_type == "relative":
        relative_bias_table = {
            "relative_bias": {
                "relative_attention_num_buckets": settings.relative_attention_num_buckets,
                "relative_attention_max_distance": settings.relative_attention_max_distance,
            }
        }
    stack_fields: Table = {"final_norm": _norm_table(settings), **relative_bias_table}
    return {
        "encoder": {
            "num_hidden_layers": settings.layer_count,
            "block": decoder_layer_table,
            **stack_fields,
            **_position_fields(settings),
        },
        "decoder": {
            "num_hidden_layers": settings.decoder_layer_count,
            "block": {
                **decoder_layer_table,
                "cross_attention": _attention_table(settings, None, is_cross_attention=True),
            },
            **stack_fields,
            **_position_fields(settings),
        },
        "head": {"type": "lm", "bias": True},
        "shared_positions": bool(_position_fields(settings)),
    }
