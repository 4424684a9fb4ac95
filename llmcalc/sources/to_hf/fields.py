"""Computes the value of each config field from a spec, by the field's name.

A field with the same name in the spec is found by `Facts.named` and is not listed. A wrong value here cannot produce a
wrong config: every proposed config is read back and compared with the spec.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...components.added_position import Learned
from ...components.classifier import Classifier
from ...components.distance import RelativeBias
from ...components.mixers.attention import Attention
from ...components.networks.moe import MoE
from ...components.networks.router import LinearRouter
from ..huggingface.absent import Absent, present
from ..huggingface.writes import WRITTEN_ACTIVATIONS
from .facts import Facts


def _position_rows(model_facts: Facts) -> int:
    """Returns the number of rows of the position embedding, or the context length."""
    if isinstance(model_facts.first.position, Learned):
        return model_facts.first.position.max_position_embeddings
    positions: int = present(model_facts.spec.max_position_embeddings)
    return positions


def _activation_name(model_facts: Facts) -> str:
    try:
        act = model_facts.network.hidden_act
    except Absent:
        act = model_facts.named("hidden_act")
    return WRITTEN_ACTIVATIONS.get(act, act)


def _kv_heads(model_facts: Facts) -> int:
    """Returns the number of key/value heads; the number of query heads if the spec does not state it."""
    mixer = model_facts.find(Attention) if any(isinstance(m, Attention) for m in model_facts.mixers) else None
    kv_heads = (
        model_facts.named("num_key_value_heads")
        if mixer is None and not _latent_width(model_facts)
        else getattr(mixer, "num_key_value_heads", None)
    )
    heads: int = kv_heads or model_facts.named("num_attention_heads")
    return heads


def _latent_width(model_facts: Facts) -> bool:
    return any(getattr(mixer, "type", "") == "mla" for mixer in model_facts.mixers)


def _attention_bias(model_facts: Facts) -> bool:
    for mixer in model_facts.mixers:
        for name in ("q_bias", "attention_bias"):
            if hasattr(mixer, name):
                return bool(getattr(mixer, name))
    raise Absent


def _mlp_bias(model_facts: Facts) -> bool:
    """Returns whether the dense FFN has a bias; without a dense FFN, the shared expert or the experts."""
    with suppress(Absent):
        return model_facts.dense.up_bias
    with suppress(Absent):
        return model_facts.shared.up_bias
    return model_facts.network.up_bias


def _expert_count(model_facts: Facts) -> int:
    return model_facts.moe.num_experts if any(isinstance(network, MoE) for network in model_facts.networks) else 0


def _shared_width(model_facts: Facts) -> int:
    return 0 if model_facts.moe.shared_expert is None else model_facts.moe.shared_expert.intermediate_size


def _shared_experts(model_facts: Facts) -> int | None:
    """Returns the width of the shared expert as a multiple of a routed expert's width."""
    expert_count, remainder = divmod(_shared_width(model_facts), model_facts.moe.expert.intermediate_size)
    if remainder:
        raise Absent
    return expert_count


def _identity_count(model_facts: Facts) -> int:
    return 0 if model_facts.moe.identity_experts is None else model_facts.moe.identity_experts.zero_expert_num


def _label_count(model_facts: Facts) -> int:
    if isinstance(model_facts.spec.head, Classifier):
        return model_facts.spec.head.num_labels
    labels: int = present(present(model_facts.spec.pooler).num_labels)
    return labels


def _layers_before_window(model_facts: Facts) -> int | None:
    """Returns the number of layers below the first layer with a window."""
    return next((i for i, window in enumerate(model_facts.windows) if window is not None), len(model_facts.layers))


def _is_bidirectional(model_facts: Facts) -> bool:
    if model_facts.spec.kind == "decoder":
        raise Absent
    return True


def _prediction_modules(model_facts: Facts) -> int:
    modules: int = present(model_facts.spec.mtp).num_nextn_predict_layers
    return modules


def _rope_base(model_facts: Facts) -> float:
    return model_facts.position.rope_theta


def _bucket_count(model_facts: Facts) -> RelativeBias:
    bias: RelativeBias = (
        model_facts.typed("relative_bias")
        if model_facts.first.relative_bias is None
        else model_facts.first.relative_bias
    )
    return bias


FIELDS: dict[str, Callable[[Facts], Any]] = {
    "hidden_size": lambda s: s.spec.hidden_size,
    "vocab_size": lambda s: s.spec.vocab_size,
    "num_hidden_layers": lambda s: s.first.num_hidden_layers,
    "max_position_embeddings": _position_rows,
    "n_positions": lambda s: s.spec.max_position_embeddings,
    "is_decoder": lambda s: s.spec.kind == "decoder",
    "type_vocab_size": lambda s: 0 if s.first.token_types is None else s.first.token_types.type_vocab_size or 0,
    "embedding_size": lambda s: s.spec.embedding_size or s.spec.hidden_size,
    "num_labels": _label_count,
    "use_bidirectional_attention": _is_bidirectional,
    "num_nextn_predict_layers": _prediction_modules,
    # norms and activations
    "rms_norm_eps": lambda s: s.layers[0].norm.eps,
    "hidden_act": _activation_name,
    # attention
    "num_key_value_heads": _kv_heads,
    "num_kv_heads": _kv_heads,
    "head_dim": lambda s: s.head_dim,
    "attention_bias": _attention_bias,
    "qk_layernorm": lambda s: s.full.qk_norm is not None,
    "multi_query": lambda s: _kv_heads(s) == 1,
    "rope_theta": _rope_base,
    "partial_rotary_factor": lambda s: s.rotary_size / s.head_dim,
    "rotary_dim": lambda s: s.rotary_size,
    "sliding_window": lambda s: present(s.window),
    "use_sliding_window": lambda s: s.window is not None,
    "max_window_layers": _layers_before_window,
    "layer_types": lambda s: s.kinds(),
    "no_rope_layers": lambda s: [int(position is not None) for position in s.positions],
    "relative_attention_num_buckets": lambda s: _bucket_count(s).relative_attention_num_buckets,
    "relative_attention_max_distance": lambda s: _bucket_count(s).relative_attention_max_distance,
    # feed-forward networks and experts
    "intermediate_size": lambda s: s.network.intermediate_size,
    "mlp_bias": _mlp_bias,
    "lm_head_bias": lambda s: getattr(s.spec.head, "bias", False),
    "num_experts": _expert_count,
    "zero_expert_num": _identity_count,
    "router_bias": lambda s: s.find(LinearRouter).bias,
    "moe_intermediate_size": lambda s: s.moe.expert.intermediate_size,
    "n_shared_experts": _shared_experts,
    "shared_intermediate_size": _shared_width,
    "first_k_dense_replace": lambda s: s.layers_before_experts(),
    "mlp_only_layers": lambda s: s.dense_layers(),
    "decoder_sparse_step": lambda s: 1,
    "mlp_layer_types": lambda s: ["sparse" if isinstance(network, MoE) else "dense" for network in s.networks],
    "use_parallel_residual": lambda s: s.layers[0].parallel is not None,
}  # fmt: skip
"""Usual name of a field → the function that gets its value."""

SYNONYMS = {
    "rms_norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
    "hidden_act": ("hidden_activation", "activation_function", "activation", "afn", "mlp_hidden_act", "dense_act_fn"),
    "attention_bias": ("qkv_bias", "use_qkv_bias", "use_bias"),
    "qk_layernorm": ("use_qk_norm",),
    "partial_rotary_factor": ("rotary_pct",),
    "rope_theta": ("rotary_emb_base",),
    "intermediate_size": (
        "ffn_dim",
        "ffn_hidden_size",
        "n_inner",
        "hidden_dim",
        "intermediate_size_mlp",
        "dense_intermediate_size",
    ),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k", "moe_topk", "top_k_experts"),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts"),
    "shared_intermediate_size": ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    "first_k_dense_replace": ("num_dense_layers",),
    "num_hidden_layers": ("encoder_layers",),
    "embedding_size": ("word_embed_proj_dim",),
}
"""Usual name of a field → other names for it."""

USUAL = {other: usual for usual, others in SYNONYMS.items() for other in others}

ALSO = (
    "rope_theta",
    "rotary_emb_base",
    "head_dim",
    "num_nextn_predict_layers",
    "num_labels",
    "max_position_embeddings",
)
"""Fields that a reader may read without a default of its own."""
