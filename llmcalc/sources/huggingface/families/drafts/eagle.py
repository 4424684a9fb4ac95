"""EAGLE 1 to 3.1 and P-EAGLE: Llama's layers that read the hidden states of a target model.

Sources: eagle/model/cnets1.py and cnets.py of SafeAILab/EAGLE; specforge/modeling/draft/llama3_eagle.py and peagle.py
of sgl-project/SpecForge; speculators/models/eagle.py, eagle3 and peagle of vllm-project/speculators; llama_eagle.py and
llama_eagle3.py of vLLM. The sizes of 13 published EAGLE drafts are in the README of SafeAILab/EAGLE.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import Family, field_names
from ...parts import QKV, QKVO, Table, attention, biases, decoder, glu, layer_table, qk_norm, rmsnorm

STATES = 3
"""The number of hidden states that EAGLE-3 reads unless the config lists their layers (ModelOpt lists none)."""


def _eagle(config: Config) -> Table:
    """Reads EAGLE, EAGLE-2 and HASS: a projection of embedding and target state, and layers without the first norm.

    Those of speculators may have all norms, also of the embedding and of the output.
    """
    norm = rmsnorm(config.number("rms_norm_eps"))
    bias = config.flag("attention_bias")
    mixer = attention(config, **biases(config.flag("qkv_bias") or bias, *QKV), **biases(bias, "o_bias"))
    block = layer_table(mixer, glu(config), norm)
    bias_field = "bias" if config.get("fusion_bias") is None else "fusion_bias"
    config.fields_read.update(("bias", "fusion_bias"))
    states = {"type": "target_states", "start": "joined", "states": 1, "bias": config.flag(bias_field)}
    stack: Table = {"streams": states}
    has_norms = config.flag("layernorms")
    if has_norms:
        stack["embedding_norm"] = norm
    else:
        stack |= {
            "variants": {"first": {"without_norms": ["self_attn_pre_norm"]}, "later": {}},
            "first_layers": ["first"],
            "pattern": ["first" if config.size("num_hidden_layers") == 1 else "later"],
        }
    from_target = ["embed_tokens", "lm_head"]
    return decoder(
        config, block, norm if has_norms else None, stack=stack, tie_word_embeddings=False, from_target=from_target
    )


def _eagle3(config: Config) -> Table:
    """Reads EAGLE-3, and P-EAGLE, which has a learned vector for tokens that are not verified yet."""
    _require_states(config)
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    norm, bias = rmsnorm(config.number("rms_norm_eps")), config.flag("attention_bias")
    head_dim = config.optional_size("head_dim") or config.quotient("num_attention_heads", hidden, heads)
    qk_norms = qk_norm(norm) if config.flag("use_qk_norm") else {}
    mixer = attention(config, head_dim=head_dim, **biases(bias, *QKVO), **qk_norms)
    block: Table = layer_table(mixer, glu(config), norm)
    first_layer_fields: Table = {"type": "draft", "norm_before_residual": config.flag("norm_before_residual")}
    target_width = config.optional_size("target_hidden_size") or hidden
    listed_layers = config.get("eagle_aux_hidden_state_layer_ids")
    states = {
        "type": "target_states",
        "states": len(config.sizes("eagle_aux_hidden_state_layer_ids")) if listed_layers else STATES,
        "masked": config.model_type == "peagle",
        **({"size": target_width} if target_width != hidden else {}),
        **({"state_norm": norm} if config.flag("fc_norm") else {}),
        **({"joined_norm": norm} if config.flag("norm_before_fc") else {}),
    }
    proposed_tokens = config.optional_size("draft_vocab_size") or config.size("vocab_size")
    stack: Table = {"streams": states}
    if config.size("num_hidden_layers") == 1:
        block |= first_layer_fields
    else:
        stack |= {
            "variants": {"first": first_layer_fields, "later": {}},
            "first_layers": ["first"],
            "pattern": ["later"],
        }
    return decoder(
        config,
        block,
        norm,
        {"draft_vocab_size": proposed_tokens},
        stack,
        tie_word_embeddings=False,
        from_target=["embed_tokens"] if target_width == hidden else [],
    )


def _require_states(config: Config) -> None:
    """Raises `InputError` for a draft model without the projection of target states."""
    if config.has("use_aux_hidden_state") and not config.flag("use_aux_hidden_state"):
        raise config.error("use_aux_hidden_state", False, "true: a draft of EAGLE-3 projects hidden states")


COMMON: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": None,
    "head_dim": None,
    "attention_bias": False,
    "num_hidden_layers": 1,
    "max_position_embeddings": None,
    "tie_word_embeddings": False,
}
IGNORED = field_names(
    """
    block_size eagle_config embed_requires_grad has_no_defaults_at_init layer_types max_window_layers norm_output
    num_target_layers parallel_drafting ptd_token_id sliding_window speculators_config speculators_model_type
    speculators_version target_model_type use_sliding_window
    """
)
EAGLE3: dict[str, Any] = {
    **COMMON,
    "draft_vocab_size": None,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": None,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "use_qk_norm": False,
}

FAMILIES = {
    "eagle": Family(
        _eagle,
        {**COMMON, "bias": True, "fusion_bias": None, "qkv_bias": False, "layernorms": False},
        IGNORED | {"transformer_layer_architecture"},
        source="https://github.com/SafeAILab/EAGLE/blob/main/eagle/model/cnets1.py",
    ),
    "eagle3": Family(
        _eagle3, EAGLE3, IGNORED, source="https://github.com/SafeAILab/EAGLE/blob/main/eagle/model/cnets.py"
    ),
    "peagle": Family(
        _eagle3,
        EAGLE3,
        IGNORED,
        source="https://github.com/sgl-project/SpecForge/blob/main/specforge/modeling/draft/peagle.py",
    ),
}
