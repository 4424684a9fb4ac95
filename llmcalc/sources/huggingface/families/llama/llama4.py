"""Llama 4: chunked-attention layers with RoPE, and full-attention layers without positions.

Some or all layers have experts with a shared expert.

transformers: models/llama4 (the text model; `llama4` adds a vision encoder).
"""

from __future__ import annotations

from .....components.mixers.attention import Attention
from ...config import Config
from ...family import Deviation, Family, op_of_all_experts
from ...parts import (
    Table,
    attention,
    attention_biases,
    decoder_of_kinds,
    glu,
    layer_table,
    listed_kinds,
    moe,
    qk_norm_fields,
    rmsnorm,
)

KIND_BY_LAYER_TYPE = {"chunked_attention": "chunked", "full_attention": "full"}


def _read_llama4_text(config: Config) -> Table:
    """Reads Llama 4's text model: QK-norm has no weights and exists only in layers with RoPE."""
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(config, **attention_biases(config))
    rope_fields: Table = {"position": attention_table.pop("position")}
    if config.flag("use_qk_norm"):
        rope_fields |= qk_norm_fields(rmsnorm(config.number("rms_norm_eps"), weight=False), norm_order="after_rope")
    position_kinds = ["rope" if has_rope else "nope" for has_rope in _rope_flags(config, depth)]
    default_layer_kinds = ["chunked" if position_kind == "rope" else "full" for position_kind in position_kinds]
    attention_kinds = listed_kinds(config, "layer_types", KIND_BY_LAYER_TYPE, default_layer_kinds)
    if config.optional_integer("attention_chunk_size") is None:
        chunk_field = {}
    else:
        chunk_field = {"attention_chunk_size": config.integer("attention_chunk_size")}
    attention_fields: Table = {"chunked": chunk_field, "full": {}, "rope": rope_fields, "nope": {}}
    attention_changes = {
        f"{attention_range}_{kind}": {"attention": {**attention_fields[attention_range], **attention_fields[kind]}}
        for attention_range in KIND_BY_LAYER_TYPE.values()
        for kind in ("rope", "nope")
    }
    if config.get("moe_layers") is None:
        expert_interval = config.integer("interleave_moe_layer_step")
        expert_layers = {*range(expert_interval - 1, depth, expert_interval)}
    else:
        config.fields_read.add("interleave_moe_layer_step")
        expert_layers = {*config.integers("moe_layers")}
    if expert_layers:
        num_local_experts = config.integer("num_local_experts")
        router = {"scoring_func": "sigmoid"}
        experts = moe(num_local_experts, config.integer("num_experts_per_tok"), glu(config), glu(config), router=router)
    else:
        experts = {}
    ffn_kinds = ["moe" if layer_index in expert_layers else "dense" for layer_index in range(depth)]
    block = layer_table(attention_table, glu(config, ffn_width=config.integer("intermediate_size_mlp")), norm)
    layer_kinds = [
        f"{attention_range}_{kind}" for attention_range, kind in zip(attention_kinds, position_kinds, strict=True)
    ]
    return decoder_of_kinds(
        config,
        block,
        norm,
        (layer_kinds, attention_changes),
        (ffn_kinds, {"dense": {}, "moe": {"feed_forward": experts}}),
    )


def _rope_flags(config: Config, depth: int) -> list[int]:
    """Returns 1 for each layer with RoPE and 0 for each layer without it, from the config's list or the default."""
    stated_flags, nope_interval = config.get("no_rope_layers"), config.integer("no_rope_layer_interval")
    if stated_flags:
        rope_flags = config.integers("no_rope_layers")
    else:
        rope_flags = [int((layer_index + 1) % nope_interval != 0) for layer_index in range(depth)]
    if len(rope_flags) != depth:
        raise config.error("no_rope_layers", stated_flags, f"{depth} times 0 or 1 (the list has {len(rope_flags)})")
    return rope_flags


EVERY_EXPERT = Deviation(
    "Llama 4's experts",
    "every expert runs on every token, with zeros for tokens that are not routed to it",
    "forward_flops",
    class_op=op_of_all_experts,
)


FAMILIES = {
    "llama4_text": Family(
        _read_llama4_text,
        ignored_fields=frozenset({"for_llm_compressor"}),
        field_writers={
            "intermediate_size": lambda s: s.moe.expert.intermediate_size,
            "intermediate_size_mlp": lambda s: s.network.intermediate_size,
            "moe_layers": lambda s: s.expert_layers(),
            "use_qk_norm": lambda s: any(
                isinstance(mixer, Attention) and mixer.qk_norm is not None for mixer in s.mixers
            ),
        },
        deviations=(EVERY_EXPERT,),
        modules={"mlp": "feed_forward"},
    ),
    "llama4": Family(None, text_type="llama4_text", tying_source="text", tower_file="pixtral"),
}
