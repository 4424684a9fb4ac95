"""Kimi K3: Kimi Linear's layers with block attention residuals, latent experts and gated latent attention.

Kimi Team 2026 (arXiv:2607.24653). Source: the modeling files of moonshotai/Kimi-K3, whose modules are listed in
https://github.com/ai-dynamo/aiconfigurator (model_configs) and in the support of vLLM and SGLang.
"""

from __future__ import annotations

from typing import NamedTuple

from .....algebra import ceil_div
from ...code_addresses import HUB
from ...config import Config
from ...family import Family
from ...parts import Table, decoder, dense_or_moe_kinds, gated_experts, glu, layer_table, rmsnorm, stack_of_layers
from ..deepseek.deepseek import SIGMOID_ROUTING, latent_attention
from ..recurrent.delta import (
    KDA_MODULES,
    KIMI_LINEAR_DEFAULTS,
    KIMI_NAMES,
    ROUTING_FIELDS,
    kda,
    kimi_mixers,
    linear_attention_config,
)


def _read_kimi_k3(config: Config) -> Table:
    config.require("moe_layer_freq", 1)
    config.require("num_key_value_heads", None, config.integer("num_attention_heads"))
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    mixers = _attention_mixers(config, depth)
    experts, block_size = _latent_experts(config), config.optional_integer("attn_res_block_size")
    base_layer: Table = layer_table(mixers.linear_attention, experts, norm)
    full_layer_fields = {"attention": mixers.full_attention}
    dense_layer_fields = {"feed_forward": {"type": "mlp", **glu(config)}}
    layer_changes: dict[str, Table] = {"linear": {}, "full": full_layer_fields, "moe": {}, "dense": dense_layer_fields}
    ffn_kinds = dense_or_moe_kinds(config, depth, config.count("first_k_dense_replace"))
    layers = [
        (f"{mixer_kind}_{ffn_kind}", {**layer_changes[mixer_kind], **layer_changes[ffn_kind]})
        for mixer_kind, ffn_kind in zip(mixers.layer_kinds, ffn_kinds, strict=True)
    ]
    if block_size is None:
        return decoder(config, base_layer, norm, stack=stack_of_layers(layers))
    return block_residual_decoder(config, base_layer, layers, block_size, first_is_idle=True)


def block_residual_decoder(
    config: Config, base_layer: Table, layers: list[tuple[str, Table]], block_size: int, *, first_is_idle: bool = False
) -> Table:
    """Returns a decoder with block attention residuals: sublayers read the sums of earlier blocks of layers.

    base_layer: the layer that the others differ from.
    layers: the kind of each layer and its changes.
    first_is_idle: whether the first layer holds the weights with which attention reads finished blocks, of which it has
        none.
    """
    layer_variants = []
    for layer_index, (layer_kind, layer_changes) in enumerate(layers):
        finished_blocks, starts_block = ceil_div(layer_index, block_size), layer_index % block_size == 0
        residual_fields = {
            "attention_blocks": finished_blocks,
            "feed_forward_blocks": finished_blocks + starts_block,
            "starts_block": starts_block,
        }
        variant_name = f"{layer_kind}_{finished_blocks}" + ("_start" if starts_block else "")
        idle_fields = {"idle_residual": True} if first_is_idle and not layer_index else {}
        layer_variants.append((variant_name, {**layer_changes, **residual_fields, **idle_fields}))
    block = {
        **base_layer,
        "type": "block_residual",
        "attention_blocks": 1,
        "feed_forward_blocks": 1,
        "starts_block": False,
    }
    blocks = ceil_div(len(layers), block_size)
    residual_streams = {"type": "block_residual", "blocks": blocks, "norm": base_layer["norm"]}
    stack_fields = {**stack_of_layers(layer_variants), "streams": residual_streams}
    return decoder(config, block, base_layer["norm"], stack=stack_fields)


class _LayerMixers(NamedTuple):
    """The token mixers of a model: one for each kind of layer, and each layer's kind.

    linear_attention: the table of Kimi delta attention.
    full_attention: the table of latent attention.
    layer_kinds: which of the two each layer has.
    """

    linear_attention: Table
    full_attention: Table
    layer_kinds: list[str]


def _attention_mixers(config: Config, depth: int) -> _LayerMixers:
    """Returns the table of each attention (Kimi delta and latent), and each layer's kind."""
    linear_config = linear_attention_config(config, {"gate_lower_bound": None, "use_full_rank_gate": False})
    stated_bound = linear_config.get("gate_lower_bound")
    lower_bound_fields: Table = {}
    if stated_bound is not None:
        lower_bound_fields = {"kda_lower_bound": linear_config.number("gate_lower_bound", minimum=-1000.0)}
        if lower_bound_fields["kda_lower_bound"] >= 0:
            raise linear_config.error("gate_lower_bound", stated_bound, "a number below 0")
    full_rank_output_gate = linear_config.flag("use_full_rank_gate")
    linear_attention = kda(config, linear_config, full_rank_output_gate=full_rank_output_gate, **lower_bound_fields)
    output_gate: Table = {"output_gate": {"per": "element"}} if config.flag("mla_use_output_gate") else {}
    full_attention = latent_attention(config, mla_use_nope=config.flag("mla_use_nope"), **output_gate)
    layer_kinds = kimi_mixers(config, linear_config, depth)
    linear_config.finish(frozenset(), config)
    return _LayerMixers(linear_attention, full_attention, layer_kinds)


def _latent_experts(config: Config) -> Table:
    """Returns routed experts that work on a latent width, with all shared experts as one network."""
    expert_width, shared_expert_count = config.integer("moe_intermediate_size"), config.count("n_shared_experts")
    latent_width, eps = config.optional_integer("routed_expert_hidden_size"), config.number("rms_norm_eps")
    output_norm = {"output_norm": rmsnorm(eps)} if config.flag("latent_moe_use_norm") else {}
    latent_fields: Table = {} if latent_width is None else {"latent": {"moe_latent_size": latent_width, **output_norm}}
    shared_width, count_fields = expert_width * shared_expert_count, ("num_local_experts",)
    return gated_experts(config, expert_width, shared_width, count_fields, **latent_fields, **SIGMOID_ROUTING)


FAMILIES = {
    "kimi_k3": Family(
        None,
        {"tie_word_embeddings": False},
        text_type="kimi_k3_text",
        source=f"{HUB}moonshotai/Kimi-K3 modeling_kimi_k3.py",
        tower_file="published_code",
    ),
    "kimi_k3_text": Family(
        _read_kimi_k3,
        {
            **KIMI_LINEAR_DEFAULTS,
            "hidden_act": "situ",
            "mla_use_nope": True,
            "mla_use_output_gate": False,
            "attn_res_block_size": None,
            "routed_expert_hidden_size": None,
            "latent_moe_use_norm": False,
        },
        (ROUTING_FIELDS - {"mla_use_nope"})
        | {"activation_situ_beta", "activation_situ_linear_beta", "num_nextn_predict_layers", "topk_method"},
        aliases=KIMI_NAMES,
        modules={**KDA_MODULES, "latent_in": "routed_expert_down_proj", "latent_out": "routed_expert_up_proj"},
        earlier_names={"mlp": "block_sparse_moe"},
        unconverted_modules=(r"re:.*routed_expert_(down|up)_proj",),
        source=f"{HUB}moonshotai/Kimi-K3 modeling_kimi_linear.py",
    ),
}
