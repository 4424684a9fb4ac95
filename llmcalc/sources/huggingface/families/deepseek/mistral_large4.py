"""Mistral Large 4: latent attention on selected tokens, without query compression; some layers lack positions.

The indexer reads the layer's input, each head scales its queries by position, and layers may use the latents of a lower
layer. transformers: models/mistral_large4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .....components.mixers.mla import MLA
from ...config import Config
from ...family import Family, ModuleNames
from ...parts import Table, decoder_of_kinds, dense_or_moe_kinds, glu, layer_table, layernorm, rmsnorm
from .deepseek import LATENT_WRITERS, ROUTING_FIELDS, latent_attention, routed_experts
from .dsa import DSA_MODULES, indexer_kinds

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _read_mistral_large4_text(config: Config) -> Table:
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    rotary_dim = config.integer("qk_rope_head_dim")
    indexer_table = {
        **config.integer_fields("index_n_heads", "index_head_dim", "index_topk"),
        "input_norm": layernorm(1e-6),
        "position_scale": True,
    }
    attention_table = latent_attention(config, q_lora_rank=None, norm=norm, position_scale=True, indexer=indexer_table)
    position_kinds = _position_kinds(config, depth)
    qk_nope_head_dim = config.integer("qk_nope_head_dim") + rotary_dim
    nope_layer_fields = {"mla_use_nope": True, "qk_rope_head_dim": 0, "qk_nope_head_dim": qk_nope_head_dim}
    position_changes: Table = {"rope": {}, "nope": nope_layer_fields}
    layer_indexers = indexer_kinds(config, depth)
    latent_kinds = _latent_layer_kinds(config, position_kinds)
    ffn_kinds = dense_or_moe_kinds(config, depth, config.count("first_k_dense_replace"))
    experts = routed_experts(config, expert_count_names=("num_experts", "num_local_experts"))
    block = layer_table(attention_table, glu(config) if "dense" in ffn_kinds else experts, norm)
    combined_kinds = list(zip(position_kinds, layer_indexers, latent_kinds, strict=True))
    layer_configs: Table = {}
    for position_kind, indexer_kind, latent_kind in combined_kinds:
        attention = {
            **position_changes[position_kind],
            **({"indexer": {"shared": True}} if indexer_kind == "shared" else {}),
            **({"kv_shared": True} if latent_kind == "shared" else {}),
        }
        layer_configs["_".join((position_kind, indexer_kind, latent_kind))] = {"attention": attention}
    layer_kinds = ["_".join(kinds) for kinds in combined_kinds]
    ffn_changes: Table = {"dense": {}, "moe": {"feed_forward": experts}}
    return decoder_of_kinds(config, block, norm, (layer_kinds, layer_configs), (ffn_kinds, ffn_changes))


def _position_kinds(config: Config, depth: int) -> list[str]:
    """Returns for each layer `rope`, or `nope` for a layer without positions."""
    nope_interval = config.integer("no_rope_layer_interval") if config.has("no_rope_layer_interval") else 4
    if not config.has("no_rope_layers"):
        return ["rope" if (layer_index + 1) % nope_interval else "nope" for layer_index in range(depth)]
    position_flags = config.integers("no_rope_layers")
    if len(position_flags) < depth:
        raise config.error("no_rope_layers", position_flags, f"{depth} numbers, 1 for a layer with RoPE")
    return ["rope" if has_position else "nope" for has_position in position_flags[:depth]]


def _latent_layer_kinds(config: Config, position_kinds: list[str]) -> list[str]:
    """Returns `computed` for each layer with separate latents, and `shared` for layers with a lower layer's latents."""
    if not config.has("kv_source_layers"):
        return ["computed"] * len(position_kinds)
    source_layers = config.integers("kv_source_layers")
    expected_text = f"{len(position_kinds)} indices of layers, each its own or that of a lower layer that has its own"
    if len(source_layers) != len(position_kinds) or any(
        source_layer > layer_index or source_layers[source_layer] != source_layer
        for layer_index, source_layer in enumerate(source_layers)
    ):
        raise config.error("kv_source_layers", source_layers, expected_text)
    latent_sources = [source_layer for source_layer in {*source_layers} if source_layers.count(source_layer) > 1]
    for layer_index, source_layer in enumerate(source_layers):
        if source_layer != layer_index and not any(
            earlier_layer < layer_index and position_kinds[earlier_layer] == position_kinds[layer_index]
            for earlier_layer in latent_sources
        ):
            raise config.error(
                "kv_source_layers",
                source_layers,
                f"{expected_text}, and with RoPE as layer {layer_index} has it or not",
            )
    return ["computed" if source_layer == index else "shared" for index, source_layer in enumerate(source_layers)]


def _rotary_attention(model_values: ConfigValues) -> Any:
    """Returns the attention of a layer with RoPE."""
    return model_values.find_part(MLA, matches_part=lambda spec_part: not spec_part.mla_use_nope)


def _latent_source_layers(model_values: ConfigValues) -> list[int]:
    """Returns, for each layer, the index of the layer that computes its latents."""
    source_by_nope: dict[bool, int] = {}
    source_layers = []
    for layer_index, token_mixer in enumerate(model_values.mixers):
        if not token_mixer.kv_shared:
            source_by_nope[token_mixer.mla_use_nope] = layer_index
        source_layers.append(source_by_nope[token_mixer.mla_use_nope])
    return source_layers


MODULES: ModuleNames = {
    **DSA_MODULES,
    "position_scale": "softmax_scaling",
    "position_scale.scale": "softmax_scaling.scale",
    "position_scale.bias": "softmax_scaling.bias",
    "indexer.input_norm": "q_input_norm",
}


FAMILIES = {
    "mistral_large4_text": Family(
        _read_mistral_large4_text,
        {"index_topk_freq": 1, "index_skip_topk_offset": 2},
        ROUTING_FIELDS | {"index_skip_topk_offset", "index_topk_freq", "index_topk_pattern", "no_rope_layer_interval"},
        field_writers={
            **LATENT_WRITERS,
            "qk_nope_head_dim": lambda s: _rotary_attention(s).qk_nope_head_dim,
            "qk_rope_head_dim": lambda s: _rotary_attention(s).qk_rope_head_dim,
            "no_rope_layers": lambda s: [0 if mixer.mla_use_nope else 1 for mixer in s.mixers],
            "kv_source_layers": _latent_source_layers,
            "indexer_types": lambda s: ["shared" if mixer.indexer.shared else "full" for mixer in s.mixers],
        },
        modules=MODULES,
        earlier_names={
            "self_attn.q_proj": "self_attn.wq",
            "kv_a_proj_with_mqa": "wkv_a_with_mqa",
            "kv_b_proj": "wkv_b",
            "kv_a_layernorm": "kv_a_norm",
            "softmax_scaling.scale": "ssmax_scaling.s",
            "softmax_scaling.bias": "ssmax_scaling.b",
            "self_attn": "attention",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
            "mlp.gate": "gate",
            "mlp.experts": "experts",
            "mlp.shared_experts": "shared_experts",
            "mlp": "feed_forward",
        },
    ),
    "mistral_large4": Family(
        None,
        text_type="mistral_large4_text",
        modules={"towers.map_1": "patch_merger.merging_layer", "towers.map_2": "linear_1", "towers.map_3": "linear_2"},
        tower_file="pixtral",
    ),
}
