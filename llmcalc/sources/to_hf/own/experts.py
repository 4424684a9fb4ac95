"""Mixtures of experts, and latent attention."""

from __future__ import annotations

from typing import Any

from ....components.mixers.attention import Attention
from ..facts import Absent, Facts, present
from ..fields import FIELDS, Value


def _heads(s: Facts) -> Any:
    return s.named("num_attention_heads")


def _dense_width(s: Facts) -> int:
    return s.dense.intermediate_size


def _each_top_k(s: Facts) -> Any:
    many = [network.num_experts_per_tok for network in s.networks]
    return many if len({*many}) > 1 else many[0]


def _interval(s: Facts) -> int:
    found = s.with_experts()
    return found[1] - found[0] if len(found) > 1 else 1


def _start(s: Facts) -> int:
    return s.with_experts()[0]


def _end(s: Facts) -> int:
    return s.with_experts()[-1]


def _each_heads(s: Facts) -> list[int]:
    return [mixer.num_attention_heads for mixer in s.mixers]


def _of_sliding(field: str) -> Value:
    return lambda s: getattr(s.sliding, field)


def _own_norm(s: Facts) -> float:
    """Given only where the norm is an RMSNorm: that is what makes it one."""
    if s.layers[0].norm.type != "rmsnorm":
        raise Absent
    return s.layers[0].norm.eps


def _sights(s: Facts) -> list[str]:
    """MiniMax-M3: layers that choose blocks, and layers that see everything."""
    return ["full_attention" if mixer.block_indexer is None else "minimax_m3_sparse" for mixer in s.mixers]


def _compressed(s: Facts) -> list[str]:
    """DeepSeek-V4's kinds of attention."""
    kinds = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")
    return [kinds[0] if m.compress_rate is None else kinds[1] if m.indexer is not None else kinds[2] for m in s.mixers]


def _rates(s: Facts) -> dict[str, int]:
    """Tokens of an entry, for each kind of layer that has some."""
    kinds = zip(_compressed(s), s.mixers, strict=True)
    return {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128} | {
        kind: m.compress_rate for kind, m in kinds if m.compress_rate is not None
    }


def _choices(s: Facts) -> list[str]:
    return ["shared" if mixer.indexer.shared else "full" for mixer in s.mixers]


def _qk_normed(s: Facts) -> bool:
    return any(isinstance(mixer, Attention) and mixer.qk_norm is not None for mixer in s.mixers)


def _ratio(field: str) -> Value:
    return lambda s: getattr(s.named("block_indexer"), field)


UNGROUPED: dict[str, Value] = {"n_group": lambda s: 1, "topk_group": lambda s: 1}
"""Experts are chosen among all, for the spec says nothing of groups."""

UNBOUNDED = 1e9
"""DBRX bounds queries, keys and values in any case: so far out that it never does."""

LATENT: dict[str, Value] = {"num_key_value_heads": _heads}

DEEPSEEK: dict[str, Value] = {**LATENT, **UNGROUPED}

OWN: dict[str, dict[str, Value]] = {
    **dict.fromkeys(("minicpm3", "youtu", "kimi_linear", "axk2"), LATENT),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "axk1", "mistral4", "deepseek_v32"), DEEPSEEK),
    "glm4_moe_lite": {**DEEPSEEK, "mlp_layer_types": FIELDS["mlp_layer_types"]},
    "bailing_hybrid": {
        **DEEPSEEK,
        "head_dim": lambda s: s.named("linear_head_dim"),
        "short_conv_kernel_size": lambda s: s.named("linear_conv_kernel_dim"),
        "kda_safe_gate": lambda s: s.named("kda_lower_bound") is not None,
        "kda_lower_bound": lambda s: present(s.named("kda_lower_bound")),
    },
    "glm_moe_dsa": {**DEEPSEEK, "indexer_types": _choices},
    **dict.fromkeys(("dots1", "exaone_moe", "glm4_moe", "solar_open"), UNGROUPED),
    "cohere2_moe": {
        "rms_norm_eps": _own_norm,
        "expert_selection_fn": lambda s: s.moe.router.scoring_func,
        "prefix_dense_intermediate_size": _dense_width,
        "intermediate_size": lambda s: s.moe.expert.intermediate_size,
    },
    "hunyuan_v1_moe": {"moe_topk": _each_top_k},
    "ernie4_5_moe": {"moe_layer_start_index": _start, "moe_layer_end_index": _end, "moe_layer_interval": _interval},
    "laguna": {
        "gating": lambda s: {"element": "per-element", "head": True}[present(s.full.output_gate).per],
        "num_attention_heads_per_layer": _each_heads,
        "mlp_layer_types": FIELDS["mlp_layer_types"],
    },
    "mimo_v2_flash": {
        **{
            f"swa_{field}": _of_sliding(field)
            for field in ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
        },
        "num_key_value_heads": lambda s: s.full.num_key_value_heads or s.full.num_attention_heads,
    },
    "longcat_flash": {
        **LATENT,
        "head_dim": lambda s: s.mla.qk_rope_head_dim,
        "num_hidden_layers": lambda s: 2 * len(s.layers),
        "num_layers": lambda s: len(s.layers),
    },
    "doge": {"is_moe": lambda s: bool(getattr(s.networks[0], "num_experts", 0))},
    "llama4_text": {
        "intermediate_size": lambda s: s.moe.expert.intermediate_size,
        "intermediate_size_mlp": lambda s: s.network.intermediate_size,
        "moe_layers": lambda s: s.with_experts(),
        "use_qk_norm": _qk_normed,
    },
    "minimax_m3_vl_text": {
        "layer_types": _sights,
        "intermediate_size": lambda s: s.moe.expert.intermediate_size,
        "dense_intermediate_size": _dense_width,
        **{
            field: _ratio(field)
            for field in (
                "index_n_heads",
                "index_head_dim",
                "index_block_size",
                "index_topk_blocks",
                "index_local_blocks",
            )
        },
    },
    "deepseek_v4": {
        "layer_types": _compressed,
        "mlp_layer_types": lambda s: ["hash_moe" if n.router.reads_token_ids else "moe" for n in s.networks],
        "partial_rotary_factor": lambda s: s.named("qk_rope_head_dim") / s.named("head_dim"),
        "compress_rates": _rates,
    },
    "jetmoe": {
        "kv_channels": lambda s: s.named("head_dim"),
        "num_key_value_heads": lambda s: s.named("num_key_value_heads"),
    },
    "dbrx": {
        "attn_config": lambda s: {
            "kv_n_heads": FIELDS["num_key_value_heads"](s),
            "rope_theta": s.position.rope_theta,
            "clip_qkv": UNBOUNDED,
        },
        "ffn_config": lambda s: {
            "ffn_hidden_size": s.moe.expert.intermediate_size,
            "moe_num_experts": s.moe.num_experts,
            "moe_top_k": s.moe.num_experts_per_tok,
            "ffn_act_fn": {"name": s.moe.expert.hidden_act},
        },
    },
}
