"""EXAONE 4 and EXAONE MoE: QK-norm per head; full-attention layers between sliding layers have no positions.

transformers: models/exaone4, models/exaone_moe.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, field_names
from ...field_writers import WINDOW_WRITER
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    add_mtp_modules,
    attention,
    decoder,
    gated_experts,
    glu,
    layer_pattern,
    layer_table,
    listed_kinds,
    note_uncounted_mtp,
    qk_norm_fields,
    rmsnorm,
    sliding_stack,
)

PATTERN_LETTERS = {"L": "sliding", "G": "full"}
"""Letters of `sliding_window_pattern` as a string of local and global layers, which repeats."""


def _attention_kinds(config: Config) -> list[str]:
    """Returns each layer's default kind, `full` or `sliding`, for a config without `layer_types`."""
    depth, kind_pattern = config.integer("num_hidden_layers"), config.get("sliding_window_pattern")
    if config.optional_integer("sliding_window") is None or kind_pattern in (None, 0):
        return ["full"] * depth
    if isinstance(kind_pattern, str) and kind_pattern and set(kind_pattern) <= set(PATTERN_LETTERS):
        return [PATTERN_LETTERS[kind_pattern[layer_index % len(kind_pattern)]] for layer_index in range(depth)]
    full_period = config.integer("sliding_window_pattern")
    return ["sliding" if (layer_index + 1) % full_period else "full" for layer_index in range(depth)]


def _read_exaone4(config: Config) -> Table:
    note_uncounted_mtp(config)
    norm = rmsnorm(config.number("rms_norm_eps"))
    block = layer_table(attention(config, **qk_norm_fields(norm)), glu(config), norm, "output")
    stack_fields = sliding_stack(config, _attention_kinds(config), full_fields={"position": "none"})
    return decoder(config, block, norm, stack=stack_fields)


def _read_exaone_moe(config: Config) -> Table:
    """Reads K-EXAONE, whose modules of multi-token prediction have a dense layer.

    Source of the modules: vLLM, models/exaone_moe_mtp.py; SGLang, models/exaone_moe.py (`is_mtp`).
    """
    norm = rmsnorm(config.number("rms_norm_eps"))
    depth = config.integer("num_hidden_layers")
    window_size = config.optional_integer("sliding_window")
    dense_layer_count = config.count("first_k_dense_replace")
    default_layer_kinds = ["dense" if layer_index < dense_layer_count else "sparse" for layer_index in range(depth)]
    ffn_kinds = listed_kinds(config, "mlp_layer_types", {"dense": "dense", "sparse": "sparse"}, default_layer_kinds)
    if config.has("is_moe_layer") and config.get("is_moe_layer") != [ffn_kind == "sparse" for ffn_kind in ffn_kinds]:
        raise config.field_error("is_moe_layer", "the same layers as mlp_layer_types or first_k_dense_replace")
    attention_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, _attention_kinds(config))
    expert_width, shared_expert_count = config.integer("moe_intermediate_size"), config.count("num_shared_experts")
    router = {"score_correction": "buffer", "scoring_func": "sigmoid"}
    experts = gated_experts(config, expert_width, expert_width * shared_expert_count, router=router)
    sliding_layer_fields = {} if window_size is None else {"sliding_window": window_size}
    attention_changes: Table = {
        "sliding": sliding_layer_fields,
        "full": {} if window_size is None else {"position": "none"},
    }
    dense_network: Table = {"feed_forward": {"type": "mlp", **glu(config)}}
    layer_variants: Table = {}
    for attention_kind, network_kind in dict.fromkeys(zip(attention_kinds, ffn_kinds, strict=True)):
        layer_variants[f"{network_kind}_{attention_kind}"] = {
            "attention": attention_changes[attention_kind],
            **(dense_network if network_kind == "dense" else {}),
        }
    kind_pattern = layer_pattern(
        [f"{ffn_kind}_{attention_kind}" for attention_kind, ffn_kind in zip(attention_kinds, ffn_kinds, strict=True)]
    )
    block = layer_table(attention(config, **qk_norm_fields(norm)), experts, norm)
    stack_fields: Table = {"variants": layer_variants, **kind_pattern}
    module_kinds = config.texts("mtp_layer_types")[:1] if config.has("mtp_layer_types") else []
    module_attention = FULL_OR_SLIDING.get(module_kinds[0], "full") if module_kinds else attention_kinds[0]
    layer_changes = {"attention": attention_changes[module_attention], **dense_network}
    mtp_fields = add_mtp_modules(config, stack_fields, "mtp", layer_changes, norm)
    return decoder(config, block, norm, stack=stack_fields, **mtp_fields)


IGNORED_FIELDS = field_names("""
    mtp_loss_scaling_factor mtp_share_layers mtp_sliding_windows scoring_func topk_method n_group topk_group
    norm_topk_prob routed_scaling_factor cache_implementation
    """)

FAMILIES = {
    "exaone4": Family(_read_exaone4, ignored_fields=IGNORED_FIELDS, field_writers=WINDOW_WRITER),
    "exaone_moe": Family(_read_exaone_moe, ignored_fields=IGNORED_FIELDS | {"first_last_k_dense_replace"}),
}
