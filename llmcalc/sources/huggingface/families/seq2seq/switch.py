"""Encoder-decoders with experts in some layers: switch_transformers (T5's layers), nllb-moe (BART's layers).

transformers: models/switch_transformers, models/nllb_moe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .....components.networks.moe import MoE
from .....components.networks.router import LinearRouter
from ...absent_value import require_present
from ...config import Config
from ...dropout import BART_DROPOUT, T5_DROPOUT
from ...family import EVERY_CLASS, Deviation, Family, Quirks, field_names, op_of_all_experts
from ...parts import ACTIVATIONS, Table, biases, layer_pattern, mlp, moe
from . import bart, t5
from .bart import STACK_WRITERS
from .t5 import T5_MODULES, T5_WRITERS

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _read_switch(config: Config) -> Table:
    """Reads Switch Transformers without expert capacities: every token reaches its expert.

    In the class, `expert_capacity` drops the tokens beyond an expert's capacity.
    """
    config.require("tie_word_embeddings", True)
    config.integer("expert_capacity")
    intermediate_size = config.integer("intermediate_size")
    dense_ffn = {"intermediate_size": intermediate_size, "hidden_act": config.choice(ACTIVATIONS, "dense_act_fn")}
    experts = moe(config.integer("num_experts"), 1, dense_ffn, router=_router(config), expert_loop=True)
    sparse_depths = {
        "encoder": config.integer_by_name("num_layers"),
        "decoder": t5.decoder_depth(config),
    }  # the number of layers, whatever num_hidden_layers says
    model_fields = t5.t5_model(config, t5.t5_block(config, dense_ffn), t5.shared_position_bias(config))
    for stack_name, expert_interval in {
        stack_name: _expert_interval(config, stack_name, depth) for stack_name, depth in sparse_depths.items()
    }.items():
        if stack_name in model_fields:
            expert_flags = [
                _has_experts(layer_index, expert_interval)
                for layer_index in range(model_fields[stack_name]["num_hidden_layers"])
            ]
            model_fields[stack_name] |= _sparse_stack(expert_flags, experts)
    return model_fields


def _router(config: Config) -> Table:
    """Returns a router that computes in `router_dtype` (default float32)."""
    dtype = config.choice({"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}, "router_dtype")
    return {**biases(config.flag("router_bias"), "bias"), **biases(dtype == "float32", "float32_product")}


def _expert_interval(config: Config, stack_name: str, depth: int) -> int:
    """Returns the interval between layers with experts, from the number of such layers."""
    sparse_layer_count = config.count(f"num_sparse_{stack_name}_layers")
    if config.has(f"{stack_name}_sparse_step"):
        return config.count(f"{stack_name}_sparse_step")
    return depth // sparse_layer_count if sparse_layer_count else depth


def _has_experts(layer_index: int, expert_interval: int) -> bool:
    return expert_interval > 0 and (layer_index % expert_interval == 1 or expert_interval == 1)


def _read_nllb_moe(config: Config) -> Table:
    model_fields = bart.bart_model(config, "pre", {"type": "sinusoidal"})
    activation = config.choice(ACTIVATIONS, "activation_function")
    for stack_name in (stack_name for stack_name in ("encoder", "decoder") if stack_name in model_fields):
        expert_interval = config.count(f"{stack_name}_sparse_step")
        depth = model_fields[stack_name]["num_hidden_layers"]
        ffn_width = config.integer(f"{stack_name}_ffn_dim")
        num_experts = config.integer("num_experts")
        experts = moe(num_experts, 2, mlp(ffn_width, activation), router=_router(config), expert_loop=True)
        model_fields[stack_name] |= _sparse_stack(
            [expert_interval > 0 and (layer_index + 1) % expert_interval == 0 for layer_index in range(depth)], experts
        )
    return model_fields


def _sparse_stack(expert_flags: list[bool], experts: Table) -> Table:
    """Returns stack fields with experts in the layers whose entry in `expert_flags` is true."""
    if not any(expert_flags):
        return {}
    layer_kinds = ["sparse" if has_experts else "block" for has_experts in expert_flags]
    return {"variants": {"sparse": {"feed_forward": experts}}, **layer_pattern(layer_kinds)}


EXPERT_FIELDS = field_names("""
    add_router_probs batch_prioritized_routing moe_eval_capacity_token_fraction moe_token_dropout
    normalize_router_prob_before_dropping router_type second_expert_policy feed_forward_proj is_gated_act
    num_selected_experts
    """)


def _expert_layers(model_values: ConfigValues, stack_name: str) -> list[int]:
    """Returns the indices of the encoder's or decoder's layers that have experts."""
    stack = require_present(getattr(model_values.spec, stack_name))
    return [
        layer_index
        for layer_index, layer_name in enumerate(stack.layer_names())
        if isinstance(stack.layer(layer_name).feed_forward, MoE)
    ]


def _written_router_dtype(model_values: ConfigValues) -> str:
    """Returns the number format of routers for a config; a spec does not distinguish 16-bit formats."""
    return "float32" if model_values.find_part(LinearRouter).float32_product else "bfloat16"


def _written_expert_interval(model_values: ConfigValues, stack_name: str) -> int:
    """Returns the interval of layers with experts for a config; 0 without experts."""
    sparse_layers = _expert_layers(model_values, stack_name)
    return sparse_layers[0] + 1 if sparse_layers else 0


EVERY_EXPERT = Deviation(
    "NLLB-MoE's experts",
    "the class uses the router's mask as expert indices: each token runs once per expert",
    "forward_flops",
    class_op=op_of_all_experts,
)


FAMILIES = {
    "switch_transformers": Family(
        _read_switch,
        {"n_positions": None},
        t5.IGNORED_FIELDS | EXPERT_FIELDS,
        aliases=t5.ALIASES,
        unread_aliases=t5.UNREAD_ALIASES | {"head_dim"},
        field_writers={
            **T5_WRITERS,
            "num_sparse_encoder_layers": lambda s: len(_expert_layers(s, "encoder")),
            "num_sparse_decoder_layers": lambda s: len(_expert_layers(s, "decoder")),
            "dense_act_fn": lambda s: s.network.hidden_act,
            "router_dtype": _written_router_dtype,
        },
        quirks=Quirks(value_reading_classes=EVERY_CLASS, cache_refusing_classes=EVERY_CLASS),
        modules={
            **T5_MODULES,
            "router": "router.classifier",
            "experts.up_proj": "expert_*.wi",
            "experts.down_proj": "expert_*.wo",
            "mlp": "layer.1.mlp",
            "decoder.mlp": "layer.2.mlp",
        },
        dropout_fields=T5_DROPOUT,
    ),
    "nllb-moe": Family(
        _read_nllb_moe,
        ignored_fields=bart.IGNORED_FIELDS | EXPERT_FIELDS,
        aliases=bart.ALIASES,
        field_writers={
            **STACK_WRITERS,
            "router_dtype": _written_router_dtype,
            "encoder_sparse_step": lambda s: _written_expert_interval(s, "encoder"),
            "decoder_sparse_step": lambda s: _written_expert_interval(s, "decoder"),
        },
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        deviations=(EVERY_EXPERT,),
        dropout_fields=BART_DROPOUT,
    ),
}
