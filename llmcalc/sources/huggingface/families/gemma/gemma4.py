"""Gemma 4: sliding and full layers with different head sizes, and experts in parallel with a dense FFN.

It has per-layer embeddings, and layers that share keys and values.

transformers: models/gemma4, models/gemma4_unified (without experts and per-layer embeddings). The last
    `num_kv_shared_layers` layers use the keys and values of the nearest earlier layer of their kind. A model that is
    bidirectional in all layers is an encoder here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .....components.mixers.attention import Attention
from ...absent_value import require_present
from ...config import Config, is_json_integer
from ...family import Family, Quirks, field_names, module_names
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    attention,
    attention_biases,
    bidirectional_stack,
    check_shared_layers,
    decoder,
    float32_rmsnorm,
    glu,
    kinds_with_nth_full,
    listed_kinds,
    moe,
    qk_norm_fields,
    rmsnorm,
    stack_of_layers,
)
from ...written_towers import gemma4_sections
from .gemma import LOCAL_THETA_WRITERS, local_theta
from .gemma3n import shared_layer_count

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _full_attention_head_fields(config: Config, layer_kinds: list[str]) -> list[Table]:
    """Returns, for each layer, the head sizes that differ from the common ones: `global_` fields in full layers."""
    kv_head_count = config.optional_integer("num_global_key_value_heads") if config.flag("attention_k_eq_v") else None
    head_dim = config.integer("global_head_dim")
    full_fields: Table = {
        "head_dim": head_dim,
        **({} if kv_head_count is None else {"num_key_value_heads": kv_head_count}),
    }
    return head_sizes(config, layer_kinds, full_fields)


def head_sizes(config: Config, layer_kinds: list[str], full_fields: Table) -> list[Table]:
    """Returns, for each layer, the head sizes that differ from the common ones (`per_layer_config`).

    full_fields: those of the full layers without `per_layer_config`.
    """
    if not config.has("per_layer_config"):
        return [full_fields if layer_kind == "full" else {} for layer_kind in layer_kinds]
    allowed_fields = {"head_dim", "num_key_value_heads"}
    layers = [dict(layer) for layer in config.layer_tables(len(layer_kinds))]
    if not all(
        set(layer) <= allowed_fields and all(is_json_integer(value) and value > 0 for value in layer.values())
        for layer in layers
    ):
        raise config.error("per_layer_config", layers, f"{' and '.join(sorted(allowed_fields))} of some layers")
    return layers


def _layer_fields_and_kinds(config: Config, layer_kinds: list[str], wider_ffn_field: str) -> Table:
    """Returns the stack's fields with layer variants, and the name of each layer's variant.

    wider_ffn_field: the FFN of twice the width in layers with shared keys and values.
    """
    depth = config.integer("num_hidden_layers")
    window_size = config.integer("sliding_window")
    shared_layer_count = config.count("num_kv_shared_layers")
    check_shared_layers(config, layer_kinds, shared_layer_count)
    has_double_wide_mlp = config.flag("use_double_wide_mlp")
    layers: list[tuple[str, Table]] = []
    layer_head_sizes = _full_attention_head_fields(config, layer_kinds)
    for layer_index, layer_kind in enumerate(layer_kinds):
        token_mixer: Table = dict(layer_head_sizes[layer_index])
        if layer_kind == "sliding":
            position_encoding = {"type": "rope", "rope_theta": local_theta(config), "partial_rotary_factor": None}
            token_mixer |= {"sliding_window": window_size, "position": position_encoding}
        elif config.flag("attention_k_eq_v"):
            token_mixer["attention_k_eq_v"] = True
        layer: Table = {"attention": token_mixer}
        if shared_layer_count and layer_index >= depth - shared_layer_count:
            token_mixer["kv_shared"] = True
            if has_double_wide_mlp:
                layer[wider_ffn_field] = {"intermediate_size": 2 * config.integer("intermediate_size")}
        layers.append((f"{layer_kind}_shared" if "kv_shared" in token_mixer else layer_kind, layer))
    return stack_of_layers(layers)


def _read_gemma4(config: Config) -> Table:
    has_experts = config.flag("enable_moe_block")
    return _gemma4_decoder(config, has_experts, config.get("hidden_size_per_layer_input") not in (None, 0))


def gemma4_attention(config: Config) -> tuple[Table, list[str], Table]:
    """Returns the norm, each layer's kind, and the attention of layers without a window."""
    norm = float32_rmsnorm(config.number("rms_norm_eps"))
    default_layer_kinds = kinds_with_nth_full(config.integer("num_hidden_layers"), 6)
    layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    layer_kinds[-1] = "full"
    rope_fields = {"type": "rope", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.25}
    v_norm = rmsnorm(norm["eps"], weight=False)
    attention_table = attention(
        config, position=rope_fields, v_norm=v_norm, **attention_biases(config), **qk_norm_fields(norm)
    )
    return norm, layer_kinds, attention_table


def _gemma4_decoder(config: Config, has_experts: bool, has_layer_inputs: bool) -> Table:
    norm, layer_kinds, token_mixer = gemma4_attention(config)
    dense_ffn = glu(config, activation_field="hidden_activation")
    block: Table = {"type": "gemma4", "attention": token_mixer, "feed_forward": dense_ffn, "norm": norm}
    if has_experts:
        expert = glu(config, ffn_width=config.integer("moe_intermediate_size"), activation_field="hidden_activation")
        router = {"norm": rmsnorm(norm["eps"]), "expert_scale": True}
        feed_forward = moe(config.integer("num_experts"), config.integer("top_k_experts"), expert, router=router)
        block |= {"feed_forward": feed_forward, "dense": dense_ffn}
    stack_fields = _layer_fields_and_kinds(config, layer_kinds, "dense" if has_experts else "feed_forward")
    if has_layer_inputs:
        per_layer_width = config.integer("hidden_size_per_layer_input")
        block["per_layer_input"] = {
            "hidden_size_per_layer_input": per_layer_width,
            "hidden_act": dense_ffn["hidden_act"],
        }
        per_layer_vocab_size = config.integer("vocab_size_per_layer_input")
        stack_fields["per_layer_embedding"] = {
            "vocab_size_per_layer_input": per_layer_vocab_size,
            "hidden_size_per_layer_input": per_layer_width,
            "norm": norm,
        }
    model_fields = decoder(config, block, norm, stack=stack_fields)
    config.require("use_bidirectional_attention", None, "all", "vision")
    if config.get("use_bidirectional_attention") == "all":
        model_fields["encoder"] = bidirectional_stack(model_fields.pop("decoder"), lambda window: window // 2 + 1)
    return model_fields


IGNORED_FIELDS = field_names("""
    hidden_act cache_implementation is_causal vocab_size_per_layer_input global_head_dim num_global_key_value_heads
    num_experts top_k_experts moe_intermediate_size expert_intermediate_size
    """)


def full_attention(model_values: ConfigValues) -> Any:
    """Returns the attention of a layer without a window."""
    return model_values.find_part(Attention, matches_part=lambda spec_part: spec_part.sliding_window is None)


def sliding_attention(model_values: ConfigValues) -> Any:
    """Returns the attention of the first layer with a window, else of the first layer."""
    return (
        model_values.part_of_type("attention") if model_values.window is None else model_values.sliding_mixer
    ).sizes(model_values.spec.hidden_size)


def _full_attention_kv_heads(model_values: ConfigValues) -> int | None:
    """Returns the key/value heads of full-attention layers if their number differs from sliding layers'."""
    kv_head_count: int | None = full_attention(model_values).num_key_value_heads
    return kv_head_count if kv_head_count != model_values.mixers[0].num_key_value_heads else None


def _per_layer_input_width(model_values: ConfigValues) -> int:
    try:
        per_layer_width: int = require_present(model_values.first_stack.per_layer_embedding).hidden_size_per_layer_input
    except LookupError:
        return 0
    return per_layer_width


def _has_wider_ffn(model_values: ConfigValues) -> bool:
    """Whether layers with shared keys and values have a wider FFN."""
    ffns: list[Any] = [layer.networks()[-1] for layer in model_values.layers]
    return len({ffn.intermediate_size for ffn in ffns}) > 1


FAMILIES = {
    "gemma4_text": Family(
        _read_gemma4,
        {"global_head_dim": 512, "num_global_key_value_heads": None},
        IGNORED_FIELDS,
        field_writers={
            **LOCAL_THETA_WRITERS,
            "head_dim": lambda s: sliding_attention(s)[2],
            "num_key_value_heads": lambda s: sliding_attention(s)[1],
            "global_head_dim": lambda s: full_attention(s).sizes(s.spec.hidden_size)[2],
            "num_global_key_value_heads": _full_attention_kv_heads,
            "attention_k_eq_v": lambda s: full_attention(s).attention_k_eq_v,
            "num_kv_shared_layers": shared_layer_count,
            "use_double_wide_mlp": _has_wider_ffn,
            "hidden_size_per_layer_input": _per_layer_input_width,
            "enable_moe_block": lambda s: bool(s.expert_layers()),
            "use_bidirectional_attention": lambda s: "all" if s.spec.kind == "encoder" else None,
        },
    ),
    "gemma4": Family(
        None,
        text_type="gemma4_text",
        quirks=Quirks(mask_making_classes=("ForConditionalGeneration",)),
        modules=module_names("gemma4_tower"),
        tower_file="gemma",
        write_tower_sections=gemma4_sections,
    ),
    "gemma4_unified_text": Family(
        lambda config: _gemma4_decoder(config, has_experts=False, has_layer_inputs=False),
        {"global_head_dim": 512, "num_global_key_value_heads": None},
        IGNORED_FIELDS | {"hidden_size_per_layer_input", "enable_moe_block"},
    ),
    "gemma4_unified": Family(
        None,
        text_type="gemma4_unified_text",
        quirks=Quirks(mask_making_classes=("ForConditionalGeneration",)),
        tower_file="gemma",
    ),
}
