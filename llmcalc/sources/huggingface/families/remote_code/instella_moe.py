"""Instella-MoE: DeepSeek-V3's layers with an output gate, whose sublayers run side by side (FarSkip).

Its configs state the model type of DeepSeek-V3. In a layer with FarSkip the network reads the layer's input, without
what the attention adds to it; the attention reads it without what the routed experts of the layer below added.

Sources: modeling_instella_moe.py of the model's repository; arXiv:2511.11505.
"""

from __future__ import annotations

from ...class_defaults import class_defaults, class_fields
from ...code_addresses import HUB
from ...config import Config
from ...family import Family
from ...parts import Table, decoder_of_kinds, dense_or_moe_kinds, glu, layer_table, rmsnorm
from ..deepseek.deepseek import ROUTING_FIELDS, SIGMOID_ROUTING, latent_attention, routed_experts


def _read_instella_moe(config: Config) -> Table:
    """Reads Instella-MoE. FarSkip changes which tensors sublayers read, but no parameter, product or cache."""
    config.require("moe_layer_freq", 1)
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    output_gate: Table = {"output_gate": {"per": "element"}} if config.flag("gated_attention") else {}
    ffn_kinds = dense_or_moe_kinds(config, depth, config.count("first_k_dense_replace"))
    experts = routed_experts(config, **SIGMOID_ROUTING) if "moe" in ffn_kinds else {}
    attention_table = latent_attention(config, **output_gate)
    block = layer_table(attention_table, glu(config) if "dense" in ffn_kinds else experts, norm)
    first_skipping_layer = config.count("farskip_start_idx")
    last_skipping_layer = config.count("farskip_end_idx") if config.has("farskip_end_idx") else depth - 1
    is_parallel = config.flag("farskip") and not config.flag("attn_only_farskip")
    residual_kinds = [
        "parallel" if is_parallel and first_skipping_layer <= layer_index <= last_skipping_layer else "order"
        for layer_index in range(depth)
    ]
    if set(residual_kinds) == {"parallel"}:
        block, residual_kinds = {**block, "parallel": "separate"}, ["order"] * depth
    if config.flag("farskip"):
        config.notes.append(
            "farskip: memory is counted without the second residual stream, which the routed experts do not add to"
        )
    ffn_changes: Table = {"dense": {}, "moe": {"feed_forward": experts} if "dense" in ffn_kinds else {}}
    residual_changes: Table = {"order": {}, "parallel": {"parallel": "separate"}}
    return decoder_of_kinds(config, block, norm, (ffn_kinds, ffn_changes), (residual_kinds, residual_changes))


FAMILIES = {
    "instella_moe": Family(
        _read_instella_moe,
        {
            **class_defaults("deepseek_v3"),
            "moe_layer_freq": 1,
            "gated_attention": False,
            "farskip": False,
            "farskip_start_idx": 0,
            "farskip_end_idx": None,
            "attn_only_farskip": False,
            "mlp_only_farskip": False,
        },
        ROUTING_FIELDS
        | class_fields("deepseek_v3")
        | {"mlp_only_farskip", "num_nextn_predict_layers", "pretraining_tp", "qk_layernorm"},
        source=f"{HUB}amd/Instella-MoE-16B-A3B-Think modeling_instella_moe.py",
    )
}
