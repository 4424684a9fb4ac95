"""Computes the value of each config field from a spec, by field name.

A field with the same name in the spec is found by `ConfigValues.first_value` and is not listed. A wrong value here
cannot produce a wrong config: every proposed config is read back and compared with the spec.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...components.classifier import Classifier
from ...components.distance_bias import RelativeBias
from ...components.mixers.attention import Attention
from ...components.networks.moe import MoE
from ...components.networks.router import LinearRouter
from ..huggingface.absent_value import AbsentValue, require_present
from ..huggingface.field_writers import WRITTEN_ACTIVATIONS
from .config_values import ConfigValues


def _activation_name(model_values: ConfigValues) -> str:
    try:
        activation = model_values.network.hidden_act
    except AbsentValue:
        activation = model_values.first_value("hidden_act")
    return WRITTEN_ACTIVATIONS.get(activation, activation)


def _kv_heads(model_values: ConfigValues) -> int:
    """Returns the number of key/value heads; the number of query heads if the spec does not state it."""
    token_mixer = None
    if any(isinstance(mixer_part, Attention) for mixer_part in model_values.mixers):
        token_mixer = model_values.find_part(Attention)
    if token_mixer is None and not any(
        getattr(token_mixer, "type", "") == "mla" for token_mixer in model_values.mixers
    ):
        kv_heads = model_values.first_value("num_key_value_heads")
    else:
        kv_heads = getattr(token_mixer, "num_key_value_heads", None)
    heads: int = kv_heads or model_values.first_value("num_attention_heads")
    return heads


def _attention_bias(model_values: ConfigValues) -> bool:
    for token_mixer in model_values.mixers:
        for bias_field in ("q_bias", "attention_bias"):
            if hasattr(token_mixer, bias_field):
                return bool(getattr(token_mixer, bias_field))
    raise AbsentValue


def _mlp_bias(model_values: ConfigValues) -> bool:
    """Returns whether the dense FFN (else the shared expert or the experts) has a bias."""
    with suppress(AbsentValue):
        return model_values.dense_network.up_bias
    with suppress(AbsentValue):
        return model_values.shared_expert.up_bias
    return model_values.network.up_bias


def _shared_width(model_values: ConfigValues) -> int:
    return 0 if model_values.moe.shared_expert is None else model_values.moe.shared_expert.intermediate_size


def _shared_experts(model_values: ConfigValues) -> int | None:
    """Returns the shared expert's width divided by the width of a routed expert."""
    expert_count, remainder = divmod(_shared_width(model_values), model_values.moe.expert.intermediate_size)
    if remainder:
        raise AbsentValue
    return expert_count


def _label_count(model_values: ConfigValues) -> int:
    if isinstance(model_values.spec.head, Classifier):
        return model_values.spec.head.num_labels
    return require_present(require_present(model_values.spec.pooler).num_labels)


def _layers_before_window(model_values: ConfigValues) -> int | None:
    """Returns the number of layers before the first layer with a sliding window."""
    return next(
        (layer_index for layer_index, window_size in enumerate(model_values.windows) if window_size is not None),
        len(model_values.layers),
    )


def _is_bidirectional(model_values: ConfigValues) -> bool:
    if model_values.spec.kind == "decoder":
        raise AbsentValue
    return True


def _relative_bias(model_values: ConfigValues) -> RelativeBias:
    """Returns the relative position bias of the first stack, else of its first attention layer."""
    bias: RelativeBias = model_values.first_stack.relative_bias or model_values.part_of_type("relative_bias")
    return bias


VALUE_GETTERS: dict[str, Callable[[ConfigValues], Any]] = {
    "hidden_size": lambda s: s.spec.hidden_size,
    "vocab_size": lambda s: s.spec.vocab_size,
    "num_hidden_layers": lambda s: s.first_stack.num_hidden_layers,
    "max_position_embeddings": lambda s: s.position_rows,
    "n_positions": lambda s: s.spec.max_position_embeddings,
    "is_decoder": lambda s: s.spec.kind == "decoder",
    "type_vocab_size": lambda s: getattr(s.first_stack.token_types, "type_vocab_size", None) or 0,
    "embedding_size": lambda s: s.spec.embedding_size or s.spec.hidden_size,
    "num_labels": _label_count,
    "use_bidirectional_attention": _is_bidirectional,
    "num_nextn_predict_layers": lambda model_values: require_present(model_values.spec.mtp).num_nextn_predict_layers,
    # norms and activations
    "rms_norm_eps": lambda s: s.layers[0].norm.eps,
    "hidden_act": _activation_name,
    # attention
    "num_key_value_heads": _kv_heads,
    "num_kv_heads": _kv_heads,
    "head_dim": lambda s: s.head_dim,
    "attention_bias": _attention_bias,
    "qk_layernorm": lambda s: s.full_attention.qk_norm is not None,
    "multi_query": lambda s: _kv_heads(s) == 1,
    "rope_theta": lambda s: s.rotary_position.rope_theta,
    "partial_rotary_factor": lambda s: s.rotary_size / s.head_dim,
    "rotary_dim": lambda s: s.rotary_size,
    "sliding_window": lambda s: require_present(s.window),
    "use_sliding_window": lambda s: s.window is not None,
    "max_window_layers": _layers_before_window,
    "layer_types": lambda s: s.layer_kinds(),
    "no_rope_layers": lambda s: [int(position is not None) for position in s.positions],
    "relative_attention_num_buckets": lambda s: _relative_bias(s).relative_attention_num_buckets,
    "relative_attention_max_distance": lambda s: _relative_bias(s).relative_attention_max_distance,
    # feed-forward networks and experts
    "intermediate_size": lambda s: s.network.intermediate_size,
    "mlp_bias": _mlp_bias,
    "lm_head_bias": lambda s: getattr(s.spec.head, "bias", False),
    "num_experts": lambda s: s.moe.num_experts if any(isinstance(ffn, MoE) for ffn in s.networks) else 0,
    "zero_expert_num": lambda s: 0 if s.moe.identity_experts is None else s.moe.identity_experts.zero_expert_num,
    "router_bias": lambda s: s.find_part(LinearRouter).bias,
    "moe_intermediate_size": lambda s: s.moe.expert.intermediate_size,
    "n_shared_experts": _shared_experts,
    "shared_intermediate_size": _shared_width,
    "first_k_dense_replace": lambda s: s.layers_before_experts(),
    "mlp_only_layers": lambda s: s.dense_layers(),
    "decoder_sparse_step": lambda s: 1,
    "mlp_layer_types": lambda s: ["sparse" if isinstance(ffn, MoE) else "dense" for ffn in s.networks],
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

USUAL_NAME_BY_SYNONYM = {other: usual for usual, others in SYNONYMS.items() for other in others}

EXTRA_READ_FIELDS = (
    "rope_theta",
    "rotary_emb_base",
    "head_dim",
    "num_nextn_predict_layers",
    "num_labels",
    "max_position_embeddings",
)
"""Config fields that a reader may read without stating a default."""
