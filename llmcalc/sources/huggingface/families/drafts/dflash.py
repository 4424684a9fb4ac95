"""DFlash 1 and 2, DSpark, Domino: drafts of a block of tokens per pass, with attention to the target's hidden states.

Sources: specforge/modeling/draft/dflash.py, dflash2.py, dspark.py and domino.py of sgl-project/SpecForge;
speculators/models/dflash and dspark of vllm-project/speculators. SpecForge's configs have a table `dflash_config`, and
those of speculators the same fields at the top.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import Family, field_names
from ...parts import FULL_OR_SLIDING, Table, combined_kinds, decoder, glu, layer_table, listed_kinds, rmsnorm, rope
from .eagle import COMMON, IGNORED


def _dflash(config: Config) -> Table:
    """Reads DFlash: Qwen3's layers, which also project the target's states to keys and values."""
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.size("num_hidden_layers")
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    mixer: Table = {
        "type": "context",
        "num_attention_heads": heads,
        "num_key_value_heads": config.optional_size("num_key_value_heads") or heads,
        "head_dim": config.optional_size("head_dim") or config.quotient("num_attention_heads", hidden, heads),
        "attention_bias": config.flag("attention_bias"),
        "norm": norm,
        "position": rope(config),
    }
    layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, ["full"] * depth)
    if "sliding" in layer_kinds:
        sliding_layer = {"attention": {"sliding_window": config.size("sliding_window")}}
        stack = combined_kinds((layer_kinds, {"full": {}, "sliding": sliding_layer}))
    else:
        config.fields_read.add("sliding_window")
        stack = {}
    listed_layers = config.get("target_layer_ids", "aux_hidden_state_layer_ids")
    state_count = (
        depth if listed_layers is None else len(config.sizes("target_layer_ids", "aux_hidden_state_layer_ids"))
    )
    stack["streams"] = {"type": "target_states", "start": "embedding", "states": state_count, "output_norm": norm}
    vocab = config.size("vocab_size")
    proposed_tokens = config.optional_size("draft_vocab_size") or vocab
    block = layer_table(mixer, glu(config), norm)
    return decoder(
        config,
        block,
        norm,
        {"draft_vocab_size": proposed_tokens} if proposed_tokens != vocab else None,
        stack,
        tie_word_embeddings=False,
        from_target=["embed_tokens", *(["lm_head"] if proposed_tokens == vocab else [])],
    )


def _dflash2(config: Config) -> Table:
    """Reads DFlash 2: convolutions around each sublayer of DFlash, and scores of pairs of the best tokens."""
    table = _dflash(config)
    convolution_fields = {name: config.size(name) for name in ("conv_kernel_size", "conv_group_size")}
    table["decoder"]["block"] |= {"type": "grouped_conv", **convolution_fields}
    table["proposal"] = {name: config.size(name) for name in ("selector_rank", "selector_top_k")}
    if table["hidden_size"] % convolution_fields["conv_group_size"]:
        raise config.error("conv_group_size", convolution_fields["conv_group_size"], "a divisor of hidden_size")
    return table


def _dspark(config: Config) -> Table:
    table = _dflash(config)
    proposal: Table = {}
    if config.count("markov_rank"):
        head_kinds = {name: name for name in ("vanilla", "gated", "rnn")}
        proposal |= {"markov_rank": config.size("markov_rank"), "markov": config.choice(head_kinds, "markov_head_type")}
    config.fields_read.update(("markov_rank", "markov_head_type"))
    alpha = config.number("confidence_head_alpha")
    if config.flag("enable_confidence_head") if config.get("enable_confidence_head") is not None else alpha > 0:
        proposal |= {"confidence": True, "confidence_reads_token": config.flag("confidence_head_with_markov")}
    config.fields_read.update(("enable_confidence_head", "confidence_head_with_markov"))
    return {**table, **({"proposal": proposal} if proposal else {})}


def _domino(config: Config) -> Table:
    return {
        **_dflash(config),
        "proposal": {"gru_size": config.size("gru_hidden_dim"), "gru_rank": config.size("emb_dim")},
    }


DFLASH: dict[str, Any] = {
    **COMMON,
    "draft_vocab_size": None,
    "layer_types": None,
    "target_layer_ids": None,
    "aux_hidden_state_layer_ids": None,
}
UNCOUNTED = (IGNORED - {"layer_types", "sliding_window"}) | field_names(
    """
    attention_backend attention_mode attention_modes loss_decay_gamma num_anchors projector_type pure_draft_prefix_len
    sample_from_anchor shift_label sliding_window_non_causal target_hidden_size
    """
)
SOURCE = "https://github.com/sgl-project/SpecForge/blob/main/specforge/modeling/draft/"

FAMILIES = {
    "dflash": Family(_dflash, DFLASH, UNCOUNTED, source=f"{SOURCE}dflash.py"),
    "dflash2": Family(
        _dflash2,
        DFLASH,
        UNCOUNTED | field_names("final_logit_softcapping input_embedding_scale is_causal output_multiplier"),
        source=f"{SOURCE}dflash2.py",
    ),
    "dspark": Family(
        _dspark,
        {
            **DFLASH,
            "markov_rank": 0,
            "markov_head_type": "vanilla",
            "enable_confidence_head": None,
            "confidence_head_alpha": 0.0,
            "confidence_head_with_markov": False,
        },
        UNCOUNTED,
        source=f"{SOURCE}dspark.py",
    ),
    "domino": Family(_domino, DFLASH, UNCOUNTED, source=f"{SOURCE}domino.py"),
}
