"""DFlash 1 and 2, DSpark, Domino: drafts of a block of tokens per pass, with attention to the target's hidden states.

The attention has grouped queries, or is latent (`attention_mode`).

Sources: specforge/modeling/draft/dflash.py, dflash2.py, dspark.py and domino.py of sgl-project/SpecForge;
speculators/models/dflash and dspark of vllm-project/speculators. SpecForge's configs have a table `dflash_config`, and
those of speculators the same fields at the top. NVIDIA's drafts (Nemotron 3.5 Lightning's, whose config and tensors a
loader reads in public code) may have an embedding and a head of their own, and sinks.
"""

from __future__ import annotations

from typing import Any

from ...code_addresses import SPECFORGE
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    clamped_swiglu,
    decoder,
    glu,
    layer_table,
    listed_kinds,
    moe,
    rmsnorm,
    rope,
    stack_of_combined_kinds,
)  # fmt: skip
from .eagle import COMMON_DEFAULTS, IGNORED_FIELDS, LATENT_SIZES


def _read_dflash(config: Config) -> Table:
    """Reads DFlash: Qwen3's layers, which also project the target's states to keys and values."""
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    hidden_size, attention_table = config.integer("hidden_size"), _attention(config, norm)
    default_kind = "sliding" if config.flag("use_swa") else "full"
    layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, [default_kind] * depth)
    if "sliding" in layer_kinds:
        sliding_layer = {"attention": {"sliding_window": config.integer("sliding_window", "swa_window_size")}}
        stack_fields = stack_of_combined_kinds((layer_kinds, {"full": {}, "sliding": sliding_layer}))
    else:
        config.fields_read.update(("sliding_window", "swa_window_size"))
        stack_fields = {}
    state_count = depth if config.get(*STATE_LAYERS) is None else len(config.integers(*STATE_LAYERS))
    target_width = config.optional_integer("target_hidden_size") or hidden_size
    stack_fields["streams"] = {
        "type": "target_states", "start": "embedding", "states": state_count, "output_norm": norm,
        **({"size": target_width} if target_width != hidden_size else {}),
    }  # fmt: skip
    vocab_size = config.integer("vocab_size")
    draft_vocab_size = config.optional_integer("draft_vocab_size") or vocab_size
    block = layer_table(attention_table, _layer_ffn(config), norm)
    head_fields = {"draft_vocab_size": draft_vocab_size} if draft_vocab_size != vocab_size else None
    from_target = _parts_of_target(config, target_width == hidden_size, draft_vocab_size == vocab_size)
    return decoder(config, block, norm, head_fields, stack_fields, tie_word_embeddings=False, from_target=from_target)


def _parts_of_target(config: Config, has_target_width: bool, has_target_vocab: bool) -> list[str]:
    """Returns the embedding and the head if the draft model uses those of its target model.

    Drafts of NVIDIA's Model Optimizer say whether their own embedding and head are in the checkpoint
    (`has_embed_tokens`, `has_lm_head`); others have neither, unless their width or vocabulary is not the target's.
    """
    lm_head = has_target_width and has_target_vocab and not config.flag("has_lm_head")
    shared_flags = {"embed_tokens": has_target_width and not config.flag("has_embed_tokens"), "lm_head": lm_head}
    return [module_name for module_name, is_shared in shared_flags.items() if is_shared]


def _attention(config: Config, norm: Table) -> Table:
    """Returns grouped-query attention, or latent attention if `attention_mode` is `mla`."""
    head_count, hidden_size = config.integer("num_attention_heads"), config.integer("hidden_size")
    shared_fields: Table = {
        "num_attention_heads": head_count,
        "attention_bias": config.flag("attention_bias"),
        "norm": norm,
        "position": rope(config),
    }
    if config.get("attention_mode") != "mla":
        return {
            "type": "context",
            **shared_fields,
            **({"sinks": True} if config.flag("attention_sink_bias") else {}),
            "num_key_value_heads": config.optional_integer("num_key_value_heads") or head_count,
            "head_dim": config.optional_integer("head_dim")
            or config.quotient("num_attention_heads", hidden_size, head_count),
        }
    config.require("mla_use_output_gate", None, False)
    config.require("attention_sink_bias", None, False)
    config.fields_read.update(("num_key_value_heads", "head_dim", "rope_interleave", "mla_rope_interleaved"))
    q_lora_rank = config.optional_integer("q_lora_rank")
    return {
        "type": "latent_context",
        **shared_fields,
        **{field_name: config.integer(field_name) for field_name in LATENT_SIZES if field_name != "q_lora_rank"},
        **({} if q_lora_rank is None else {"q_lora_rank": q_lora_rank}),
    }


def _layer_ffn(config: Config) -> Table:
    """Returns the layers' FFN: dense, or experts with the routing of the family named by `moe_preset`.

    The first version had DeepSeek-V4's routing alone and no `moe_preset`.
    """
    if not config.count("n_routed_experts"):
        config.fields_read.update((*EXPERT_FIELDS, "moe_preset"))
        return glu(config)
    if config.get("moe_preset") is None:
        config.require("scoring_func", "sqrtsoftplus")
    config.require("moe_router_center", None, "none")
    config.fields_read.add("intermediate_size")
    moe_preset = config.choice(MOE_PRESETS, "moe_preset") if config.has("moe_preset") else MOE_PRESETS["deepseek_v4"]
    stated_fields = {field_name: config.get(field_name) for field_name in EXPERT_FIELDS if config.has(field_name)}
    moe_config = Config({**moe_preset, **stated_fields}, {}, config.model_type, location=config.location)
    expert_width = moe_config.integer("moe_intermediate_size")
    clamp_function = clamped_swiglu if moe_config.number("swiglu_limit") else dict
    scoring_func = moe_config.choice({field_name: field_name for field_name in SCORING_FUNCTIONS}, "scoring_func")
    router: Table = {"scoring_func": scoring_func}
    if moe_config.choice({"noaux_tc": True, "aux_loss": False, "none": False}, "balance"):
        router["score_correction"] = "buffer"
    shared_ffn: Table | None = None
    if moe_config.count("n_shared_experts"):
        moe_config.require("n_shared_experts", 1)
        ffn_width = moe_config.optional_integer("shared_expert_intermediate_size") or expert_width
        shared_ffn = clamp_function(glu(config, ffn_width=ffn_width))
    is_gated = moe_config.choice({"none": False, "sigmoid": True}, "shared_expert_gate")
    return moe(
        moe_config.integer("n_routed_experts"),
        moe_config.integer("num_experts_per_tok"),
        clamp_function(glu(config, ffn_width=expert_width)),
        shared_ffn,
        router=router,
        **({"shared_expert_gate": True} if is_gated and shared_ffn is not None else {}),
    )


def _read_dflash2(config: Config) -> Table:
    """Reads DFlash 2: convolutions around each sublayer of DFlash, and scores of pairs of the best tokens."""
    model_fields = _read_dflash(config)
    convolution_fields = config.integer_fields("conv_kernel_size", "conv_group_size")
    model_fields["decoder"]["block"] |= {"type": "grouped_conv", **convolution_fields}
    model_fields["proposal"] = config.integer_fields("selector_rank", "selector_top_k")
    if model_fields["hidden_size"] % convolution_fields["conv_group_size"]:
        raise config.error("conv_group_size", convolution_fields["conv_group_size"], "a divisor of hidden_size")
    return model_fields


def _read_dspark(config: Config) -> Table:
    model_fields = _read_dflash(config)
    proposal_fields: Table = {}
    if config.count("markov_rank"):
        head_kinds = {head_kind: head_kind for head_kind in ("vanilla", "gated", "rnn")}
        markov_rank = config.integer("markov_rank")
        proposal_fields |= {"markov_rank": markov_rank, "markov": config.choice(head_kinds, "markov_head_type")}
    config.require("dspark_fixup_head_type", None, "markov")
    config.fields_read.update(("markov_rank", "markov_head_type"))
    confidence_alpha = config.number("confidence_head_alpha")
    enable_confidence_head = config.get("enable_confidence_head")
    if config.flag("enable_confidence_head") if enable_confidence_head is not None else confidence_alpha > 0:
        proposal_fields |= {"confidence": True, "confidence_reads_token": config.flag("confidence_head_with_markov")}
    config.fields_read.update(("enable_confidence_head", "confidence_head_with_markov"))
    return {**model_fields, **({"proposal": proposal_fields} if proposal_fields else {})}


def _read_domino(config: Config) -> Table:
    proposal = {"gru_size": config.integer("gru_hidden_dim"), "gru_rank": config.integer("emb_dim")}
    return {**_read_dflash(config), "proposal": proposal}


SCORING_FUNCTIONS = ("softmax", "sigmoid", "sqrtsoftplus")
MOE_PRESETS: dict[str, Table] = {
    "deepseek_v4": {
        "scoring_func": "sqrtsoftplus", "balance": "noaux_tc", "n_shared_experts": 1, "swiglu_limit": 10.0,
        "shared_expert_gate": "none",
    },
    "qwen3_5_moe": {
        "scoring_func": "softmax", "balance": "aux_loss", "n_shared_experts": 1, "swiglu_limit": 0.0,
        "shared_expert_gate": "sigmoid",
    },
}  # fmt: skip
"""Name of a `moe_preset` → the config fields that it sets (specforge/modeling/draft/moe/presets.py of SpecForge)."""

EXPERT_FIELDS = (
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "scoring_func"),
    *("shared_expert_intermediate_size", "swiglu_limit", "balance", "shared_expert_gate"),
)
"""Config fields of experts that override the fields of the `moe_preset`."""

STATE_LAYERS = ("target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
"""Config fields that list the target layers whose states the draft reads, in SpecForge, speculators and vLLM."""

DFLASH_DEFAULTS: dict[str, Any] = {
    **COMMON_DEFAULTS,
    "has_embed_tokens": False,
    "has_lm_head": False,
    "attention_sink_bias": False,
    "use_swa": False,
    "swa_window_size": None,
    "attention_mode": None,
    "q_lora_rank": None,
    "mla_use_output_gate": None,
    "n_routed_experts": 0,
    "moe_preset": None,
    "moe_router_center": None,
    "target_hidden_size": None,
    "draft_vocab_size": None,
    "layer_types": None,
    "target_layer_ids": None,
    "aux_hidden_state_layer_ids": None,
    "eagle_aux_hidden_state_layer_ids": None,
}
DFLASH_IGNORED_FIELDS = (IGNORED_FIELDS - {"layer_types", "sliding_window"}) | field_names("""
    attention_backend attention_modes causal dflash_query_causal dspark_bonus_anchor experts_backend
    loss_decay_gamma moe_aux_loss_coeff moe_bias_update_rate moe_dispatch moe_freeze_experts moe_grouped_dispatch
    moe_router_center_momentum moe_router_init_std moe_router_noise_std moe_router_z_loss_coeff n_group
    norm_topk_prob num_anchors num_aux_layers pard_token projector_type pure_draft_prefix_len routed_scaling_factor
    router sample_from_anchor shared_expert shift_label sliding_window_non_causal target_num_hidden_layers
    topk_group train_embed_tokens
    """)

FAMILIES = {
    "dflash": Family(_read_dflash, DFLASH_DEFAULTS, DFLASH_IGNORED_FIELDS, source=f"{SPECFORGE}dflash.py"),
    "dflash2": Family(
        _read_dflash2,
        DFLASH_DEFAULTS,
        DFLASH_IGNORED_FIELDS
        | field_names("final_logit_softcapping input_embedding_scale is_causal output_multiplier"),
        source=f"{SPECFORGE}dflash2.py",
    ),
    "dspark": Family(
        _read_dspark,
        {
            **DFLASH_DEFAULTS,
            "markov_rank": 0,
            "dspark_fixup_head_type": None,
            "markov_head_type": "vanilla",
            "enable_confidence_head": None,
            "confidence_head_alpha": 0.0,
            "confidence_head_with_markov": False,
        },
        DFLASH_IGNORED_FIELDS,
        aliases={"markov_rank": "dspark_markov_rank"},
        source=f"{SPECFORGE}dspark.py",
    ),
    "domino": Family(_read_domino, DFLASH_DEFAULTS, DFLASH_IGNORED_FIELDS, source=f"{SPECFORGE}domino.py"),
}
