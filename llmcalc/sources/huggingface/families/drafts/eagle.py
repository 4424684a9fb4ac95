"""EAGLE 1 to 3.1 and P-EAGLE: layers of Llama or of another model that read the hidden states of a target model.

Sources: eagle/model/cnets1.py and cnets.py of SafeAILab/EAGLE; specforge/modeling/draft/llama3_eagle.py and peagle.py
of sgl-project/SpecForge; speculators/models/eagle.py, eagle3 and peagle of vllm-project/speculators; llama_eagle.py and
llama_eagle3.py of vLLM. EAGLE-3's layer with DeepSeek's latent attention: deepseek_eagle3.py of vLLM and of SpecForge;
with Qwen3's or gpt-oss's experts: qwen3_moe_eagle.py and gpt_oss_eagle.py of SpecForge. The sizes of 13 published EAGLE
drafts are in the README of SafeAILab/EAGLE.
"""

from __future__ import annotations

from typing import Any

from ...class_defaults import class_defaults
from ...code_addresses import SPECFORGE
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    QKV_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    clamped_gpt_oss_ffn,
    decoder,
    glu,
    layer_table,
    moe,
    qk_norm_fields,
    rmsnorm,
)
from ..deepseek.deepseek import latent_attention

HIDDEN_STATE_COUNT = 3
"""The number of hidden states that EAGLE-3 reads unless the config lists their layers (ModelOpt lists none)."""


def _read_eagle(config: Config) -> Table:
    """Reads EAGLE, EAGLE-2 and HASS: embedding and target state are projected; the first norm is left out.

    Those of speculators may have all norms, also of the embedding and of the output.
    """
    norm = rmsnorm(config.number("rms_norm_eps"))
    has_bias = config.flag("attention_bias")
    attention_table = attention(
        config, **biases(config.flag("qkv_bias") or has_bias, *QKV_BIASES), **biases(has_bias, "o_bias")
    )
    block = layer_table(attention_table, glu(config), norm)
    bias_field = "bias" if config.get("fusion_bias") is None else "fusion_bias"
    config.fields_read.update(("bias", "fusion_bias"))
    target_states = {"type": "target_states", "start": "joined", "states": 1, "bias": config.flag(bias_field)}
    stack_fields: Table = {"streams": target_states}
    has_norms = config.flag("layernorms")
    if has_norms:
        stack_fields["embedding_norm"] = norm
    else:
        stack_fields |= {
            "variants": {"first": {"without_norms": ["self_attn_pre_norm"]}, "later": {}},
            "first_layers": ["first"],
            "pattern": ["first" if config.integer("num_hidden_layers") == 1 else "later"],
        }
    from_target = ["embed_tokens", "lm_head"]
    final_norm = norm if has_norms else None
    return decoder(config, block, final_norm, stack=stack_fields, tie_word_embeddings=False, from_target=from_target)


def _read_eagle3(config: Config) -> Table:
    """Reads EAGLE-3, and P-EAGLE, which has a learned vector for tokens that are not verified yet."""
    return _draft_of_hidden_states(config, _attention(config, config.flag("use_qk_norm")), glu(config))


def _read_eagle3_deepseek(config: Config) -> Table:
    """Reads EAGLE-3 with DeepSeek's latent attention, whose class always has a dense network and no biases."""
    config.require("attention_bias", False)
    norm = rmsnorm(config.number("rms_norm_eps"))
    return _draft_of_hidden_states(config, latent_attention(config, norm=norm), glu(config))


def _read_eagle3_qwen3_moe(config: Config) -> Table:
    """Reads EAGLE-3 with Qwen3's experts; its class adds attention to the normalized states."""
    ffn = glu(config, ffn_width=config.integer("moe_intermediate_size"))
    experts = moe(config.integer("num_experts"), config.integer("num_experts_per_tok"), ffn)
    return _draft_of_hidden_states(config, _attention(config, has_qk_norm=True), experts, norm_before_residual=True)


def _read_eagle3_gpt_oss(config: Config) -> Table:
    """Reads EAGLE-3 with gpt-oss's experts and Llama's attention."""
    expert = clamped_gpt_oss_ffn(glu(config, bias=True))
    num_local_experts = config.integer("num_local_experts")
    experts = moe(num_local_experts, config.integer("num_experts_per_tok"), expert, router={"bias": True})
    return _draft_of_hidden_states(config, _attention(config, has_qk_norm=False), experts)


def _attention(config: Config, has_qk_norm: bool) -> Table:
    """Returns the draft's grouped-query attention with an explicit head size, as the layer's input is wider."""
    hidden_size, head_count = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.optional_integer("head_dim") or config.quotient("num_attention_heads", hidden_size, head_count)
    qk_norms = qk_norm_fields(rmsnorm(config.number("rms_norm_eps"))) if has_qk_norm else {}
    return attention(config, head_dim=head_dim, **attention_biases(config), **qk_norms)


def _draft_of_hidden_states(
    config: Config, token_mixer: Table, ffn: Table, norm_before_residual: bool = False
) -> Table:
    """Returns an EAGLE-3 draft model from the attention and the FFN of its layers.

    norm_before_residual: whether the residual is normalized even if the config does not say so.
    """
    _require_state_projection(config)
    hidden_size, norm = config.integer("hidden_size"), rmsnorm(config.number("rms_norm_eps"))
    block: Table = layer_table(token_mixer, ffn, norm)
    residual_is_normalized = config.flag("norm_before_residual") or norm_before_residual
    first_layer_fields: Table = {"type": "draft", "norm_before_residual": residual_is_normalized}
    target_width = config.optional_integer("target_hidden_size") or hidden_size
    listed_layers = config.get("eagle_aux_hidden_state_layer_ids")
    target_states = {
        "type": "target_states",
        "states": len(config.integers("eagle_aux_hidden_state_layer_ids")) if listed_layers else HIDDEN_STATE_COUNT,
        "masked": config.model_type == "peagle",
        **({"size": target_width} if target_width != hidden_size else {}),
        **({"state_norm": norm} if config.flag("fc_norm") else {}),
        **({"joined_norm": norm} if config.flag("norm_before_fc") else {}),
    }
    draft_vocab_size = config.optional_integer("draft_vocab_size") or config.integer("vocab_size")
    stack_fields: Table = {"streams": target_states}
    if config.integer("num_hidden_layers") == 1:
        block |= first_layer_fields
    else:
        variants = {"first": first_layer_fields, "later": {}}
        stack_fields |= {"variants": variants, "first_layers": ["first"], "pattern": ["later"]}
    head_fields = {"draft_vocab_size": draft_vocab_size}
    from_target = ["embed_tokens"] if target_width == hidden_size else []
    return decoder(config, block, norm, head_fields, stack_fields, tie_word_embeddings=False, from_target=from_target)


def _require_state_projection(config: Config) -> None:
    """Raises `InputError` for a draft model that does not project the target model's states."""
    if config.has("use_aux_hidden_state") and not config.flag("use_aux_hidden_state"):
        raise config.error("use_aux_hidden_state", False, "true: a draft of EAGLE-3 projects hidden states")


COMMON_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": None,
    "head_dim": None,
    "attention_bias": False,
    "num_hidden_layers": 1,
    "max_position_embeddings": None,
    "tie_word_embeddings": False,
}
IGNORED_FIELDS = field_names("""
    block_size eagle_config embed_requires_grad has_no_defaults_at_init layer_types max_window_layers normalize_output
    num_target_layers parallel_drafting ptd_token_id sliding_window speculators_config speculators_model_type
    speculators_version target_model_type use_sliding_window
    """)
EAGLE3_DEFAULTS: dict[str, Any] = {
    **COMMON_DEFAULTS,
    "draft_vocab_size": None,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": None,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "use_qk_norm": False,
}

LATENT_SIZES = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
EXPERT_SIZES = ("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size")


def _class_defaults_of_fields(model_type: str, *fields: str) -> dict[str, Any]:
    """Returns EAGLE-3's defaults, in which some fields have the defaults of another configuration class."""
    return {
        **EAGLE3_DEFAULTS,
        **{name: default_value for name, default_value in class_defaults(model_type).items() if name in fields},
    }


FAMILIES = {
    "eagle": Family(
        _read_eagle,
        {**COMMON_DEFAULTS, "bias": True, "fusion_bias": None, "qkv_bias": False, "layernorms": False},
        IGNORED_FIELDS | {"transformer_layer_architecture"},
        source="https://github.com/SafeAILab/EAGLE/blob/main/eagle/model/cnets1.py",
    ),
    "eagle3": Family(
        _read_eagle3,
        EAGLE3_DEFAULTS,
        IGNORED_FIELDS,
        source="https://github.com/SafeAILab/EAGLE/blob/main/eagle/model/cnets.py",
    ),
    "eagle3_deepseek": Family(
        _read_eagle3_deepseek,
        _class_defaults_of_fields("deepseek_v3", *LATENT_SIZES),
        IGNORED_FIELDS
        | field_names("""
            aux_loss_alpha ep_size first_k_dense_replace head_dim moe_intermediate_size moe_layer_freq n_group
            n_routed_experts n_shared_experts norm_topk_prob num_experts_per_tok num_key_value_heads
            num_nextn_predict_layers rope_interleave routed_scaling_factor scoring_func seq_aux topk_group topk_method
            use_qk_norm
            """),
        source="https://github.com/vllm-project/vllm/blob/main/vllm/model_executor/models/deepseek_eagle3.py",
    ),
    "eagle3_qwen3_moe": Family(
        _read_eagle3_qwen3_moe,
        _class_defaults_of_fields("qwen3_moe", *EXPERT_SIZES),
        IGNORED_FIELDS
        | field_names("decoder_sparse_step intermediate_size mlp_only_layers norm_topk_prob use_qk_norm"),
        source=f"{SPECFORGE}qwen3_moe_eagle.py",
    ),
    "eagle3_gpt_oss": Family(
        _read_eagle3_gpt_oss,
        _class_defaults_of_fields("gpt_oss", *EXPERT_SIZES),
        IGNORED_FIELDS | field_names("experts_per_token swiglu_limit use_qk_norm"),
        source=f"{SPECFORGE}gpt_oss_eagle.py",
    ),
    "peagle": Family(_read_eagle3, EAGLE3_DEFAULTS, IGNORED_FIELDS, source=f"{SPECFORGE}peagle.py"),
}
