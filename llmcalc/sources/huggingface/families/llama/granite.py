"""Granite: Llama with multipliers, which have no parameters, and optionally with experts.

GraniteMoE has experts, GraniteMoEShared also a shared expert.

HyperCLOVA X also has norms on the sublayers' outputs. The SWA models have sliding windows, sinks and a base of RoPE per
layer.
transformers: models/granite, granitemoe, granitemoeshared, hyperclovax, granite_swa, granitemoe_swa, granite4_vision,
    granite_docling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .....components.base import LARGEST_SIZE
from .....components.rope import Rope
from ...config import Config, is_number
from ...family import EVERY_CLASS, Family, ModuleNames, Quirks, module_names
from ...field_writers import WINDOW_WRITER, FieldWriters
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    attention,
    attention_biases,
    decoder,
    gated_experts,
    glu,
    layer_table,
    listed_kinds,
    moe,
    rmsnorm,
    rope,
    stack_of_layers,
)

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _decoder_with_attention(
    config: Config,
    feed_forward: Table,
    norm_placement: str = "pre",
    stack_fields: Table | None = None,
    **attention_fields: Any,
) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(config, **attention_biases(config), **attention_fields)
    return decoder(config, layer_table(attention_table, feed_forward, norm, norm_placement), norm, stack=stack_fields)


def _read_granite(config: Config) -> Table:
    return _decoder_with_attention(config, glu(config, config.flag("mlp_bias")))


def _read_granitemoe(config: Config) -> Table:
    feed_forward = moe(config.integer("num_local_experts"), config.integer("num_experts_per_tok"), glu(config))
    return _decoder_with_attention(config, feed_forward)


def _shared_experts(config: Config) -> Table:
    shared_width = config.count("shared_intermediate_size")
    return gated_experts(config, config.integer("intermediate_size"), shared_width, ("num_local_experts",))


def _read_hyperclovax(config: Config) -> Table:
    feed_forward = glu(config, config.flag("mlp_bias"))
    return _decoder_with_attention(config, feed_forward, "sandwich" if config.flag("use_post_norm") else "pre")


def _sliding_decoder(config: Config, feed_forward: Table) -> Table:
    """Reads Granite SWA, where every fourth layer from the first has full attention.

    `layer_rope_theta` is the base of RoPE in each layer; 0 means no positions.
    """
    depth, window_size = config.integer("num_hidden_layers"), config.integer("sliding_window")
    default_layer_kinds = ["sliding" if layer_index % 4 else "full" for layer_index in range(depth)]
    layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    rope_bases = config.get("layer_rope_theta")
    if rope_bases is not None and (
        not isinstance(rope_bases, list)
        or len(rope_bases) < depth
        or any(not is_number(rope_base) or not 0 <= rope_base <= LARGEST_SIZE for rope_base in rope_bases)
    ):
        raise config.error("layer_rope_theta", rope_bases, f"{depth} bases of RoPE, 0 for a layer without positions")
    layers: list[tuple[str, Table]] = []
    for layer_kind, rope_base in zip(layer_kinds, rope_bases or [None] * depth, strict=False):
        if rope_base is None:
            position_encoding = {}
        else:
            position_encoding = {"position": {**rope(config), "rope_theta": float(rope_base)} if rope_base else "none"}
        layers.append(
            (
                layer_kind,
                {
                    "attention": {
                        **position_encoding,
                        **({"sliding_window": window_size} if layer_kind == "sliding" else {}),
                    }
                },
            )
        )
    return _decoder_with_attention(config, feed_forward, stack_fields=stack_of_layers(layers), sinks=True)


def _read_granitemoe_swa(config: Config) -> Table:
    return _sliding_decoder(config, _shared_experts(config))


def _rope_bases(model_values: ConfigValues) -> Any:
    """Returns RoPE's base in each layer, or 0 without positions."""
    return [position.rope_theta if isinstance(position, Rope) else 0 for position in model_values.positions]


ROPE_BASE_WRITERS: FieldWriters = {**WINDOW_WRITER, "layer_rope_theta": _rope_bases}


GRANITE_EARLIER_NAMES: ModuleNames = {
    "block_sparse_moe.router": "block_sparse_moe.router.layer",
    "block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.input_linear",
    "block_sparse_moe.experts.down_proj": "block_sparse_moe.output_linear",
}

DOCLING_MODULES = {
    **{
        f"towers.{name}": "vision_model.connector"
        for name in ("coarse_connector", "connector_output", "fine_connector")
    },
    "towers.coarse_connector.norm": "ln_in",
    "towers.coarse_connector.map_1": "coarse.projection",
    "towers.coarse_connector.out_norm": "ln_mid",
    "towers.connector_output.map_1": "mlp_fc2",
    "towers.connector_output.out_norm": "ln_out",
    "towers.fine_connector.map_1": "fine.projection",
    **{
        f"towers.{path}_vision_merger_{i}": f"vision_model.connector.{path}.deepstack_mergers.{i}"
        for path in ("coarse", "fine")
        for i in range(16)
    },
    "towers.norm": "layer_norm | post_layernorm",
    "towers.map_1": "linear_1",
    "towers.map_2": "linear_2",
    "towers.image_density_weights": "density_router",
    "towers.image_density_weights.map_1": "att",
    "towers.image_density_router": "density_router",
    "towers.image_density_router.norm": "norm",
    "towers.image_density_router.map_1": "fc1",
    "towers.image_density_router.map_2": "fc2",
}
"""Node of Granite-Docling's connectors → module of its class."""

FAMILIES = {
    "granite": Family(_read_granite),
    "granite4_vision": Family(
        None,
        text_type="granite4_vision_text",
        uncounted_encoders={"vision_config": "clip_vision_model", "qformer_config": "blip_2_qformer"},
    ),
    "granite4_vision_text": Family(_read_granite, quirks=Quirks(mask_making_classes=EVERY_CLASS)),
    "granite_docling": Family(None, text_type="granite_docling_text", tower_file="llava", modules=DOCLING_MODULES),
    "granite_docling_text": Family(_read_granite),
    "granitemoe": Family(_read_granitemoe, earlier_names=GRANITE_EARLIER_NAMES),
    "granitemoeshared": Family(
        lambda config: _decoder_with_attention(config, _shared_experts(config)),
        modules=module_names("granitemoe"),
        earlier_names=GRANITE_EARLIER_NAMES,
    ),
    "hyperclovax": Family(
        _read_hyperclovax, modules={"self_attn_post_norm": "post_norm1", "mlp_post_norm": "post_norm2"}
    ),
    "granite_swa": Family(
        lambda config: _sliding_decoder(config, glu(config, config.flag("mlp_bias"))), field_writers=ROPE_BASE_WRITERS
    ),
    "granitemoe_swa": Family(_read_granitemoe_swa, field_writers=ROPE_BASE_WRITERS, modules=module_names("granitemoe")),
}
