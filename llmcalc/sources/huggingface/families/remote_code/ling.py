"""Ling 2.5, Ring 2.5 and Ling 3 with query compression: layers of latent attention and layers of linear attention.

All of them state the model type `bailing_hybrid`, whose class in transformers is Ling 3's without that low rank.

Sources: vLLM's files in `Family.source` of each model type.
"""

from __future__ import annotations

from dataclasses import replace

from ...class_defaults import class_defaults
from ...code_addresses import VLLM
from ...config import Config
from ...family import Family, field_names
from ...parts import Table, decoder_of_kinds, dense_or_moe_kinds, glu, layer_table, note_uncounted_mtp, rmsnorm
from ..deepseek.deepseek import LATENT_DEFAULTS, latent_attention
from ..recurrent import delta
from .experts import LING_DEFAULTS, LING_IGNORED_FIELDS, ling_experts, ling_lightning


def _read_ling_2_5(config: Config) -> Table:
    """Reads Ling 2.5 and 2.6: groups of lightning-attention layers, each ended by a latent-attention layer."""
    note_uncounted_mtp(config)
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    group_size = config.integer("layer_group_size")
    mixer_kinds = ["linear" if (layer_index + 1) % group_size else "full" for layer_index in range(depth)]
    ffn_kinds = dense_or_moe_kinds(config, depth, config.count("first_k_dense_replace"))
    has_bias = config.flag("use_bias")
    block = layer_table(ling_lightning(config, norm), ling_experts(config), norm)
    mixer_changes: Table = {"linear": {}, "full": {"attention": latent_attention(config)}}
    ffn_changes: Table = {"moe": {}, "dense": {"feed_forward": {"type": "mlp", **glu(config, has_bias)}}}
    return decoder_of_kinds(config, block, norm, (mixer_kinds, mixer_changes), (ffn_kinds, ffn_changes))


FAMILIES = {
    "bailing_moe_v2_5": Family(
        _read_ling_2_5,
        {**LING_DEFAULTS, **LATENT_DEFAULTS, "q_lora_rank": None, "layer_group_size": 1, "linear_silu": False},
        (LING_IGNORED_FIELDS - {"intermediate_size"})
        | field_names("""
            gated_attention_proj_granularity_type group_norm_size head_dim linear_rope num_key_value_heads
            num_nextn_predict_layers qk_head_dim rope_interleave rotary_dim
            """),
        aliases={"linear_silu": "use_linear_silu"},
        has_grouped_router=True,
        source=f"{VLLM}bailing_moe_linear.py",
    ),
    "bailing_moe_v3": replace(
        delta.FAMILIES["bailing_hybrid"],
        read_model=delta.read_ling_3,
        defaults={**class_defaults("bailing_hybrid"), **delta.FAMILIES["bailing_hybrid"].defaults},
        has_grouped_router=True,
        source=f"{VLLM}bailing_moe_v3.py",
        field_writers={},
        modules={},
    ),
}
