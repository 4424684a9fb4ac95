"""Nemotron-H-Puzzle: Nemotron-H with sizes per layer (Nemotron 3 Puzzle 75B A9B).

Sources: the modeling file in `Family.source`, and its ports in vLLM and SGLang (models/nemotron_h.py).
"""

from __future__ import annotations

from dataclasses import replace

from ...class_defaults import class_defaults, class_fields
from ...code_addresses import HUB
from ...config import Config
from ...parts import Table
from ..recurrent.nemotron import FAMILIES as NEMOTRON_FAMILIES
from ..recurrent.nemotron import KIND_BY_LAYER_NAME, layer_kinds, single_sublayer_model


def _read_puzzle(config: Config) -> Table:
    """Reads Nemotron-H-Puzzle: `block_configs` has each layer's kind and sizes, which replace the model's sizes."""
    block_configs = config.get("block_configs")
    if not isinstance(block_configs, list) or not all(isinstance(block_config, dict) for block_config in block_configs):
        raise config.error("block_configs", block_configs, "a list with a table of fields for each layer")
    layers = []
    for layer_index, block_config in enumerate(block_configs):
        defaults = {**config.defaults, **config.config_fields}
        location = f"{config.location}block_configs[{layer_index}]."
        layer_config = Config(block_config, defaults, config.model_type, location=location, aliases=config.aliases)
        type_by_kind = {name: kind for name, kind in KIND_BY_LAYER_NAME.items() if name == kind}
        layer_kind = layer_config.choice(type_by_kind, "block_type")
        layers.append((layer_kind, layer_config if len(block_config) > 1 else config))
    variant_kinds = [variant_kind for variant_kind, _ in layers]
    layer_list_fields = ("layer_types", "layers_block_type", "hybrid_override_pattern")
    if any(config.has(field_name) for field_name in layer_list_fields) and layer_kinds(config) != variant_kinds:
        raise config.error("block_configs", variant_kinds, "the kinds of layers that the config lists elsewhere, too")
    model_fields = single_sublayer_model(config, layers)
    for _, layer_config in layers:
        if layer_config is not config:
            layer_config.default_sizes.clear()
            config.fields_read |= layer_config.fields_read - layer_config.config_fields.keys()
            layer_config.finish(frozenset(), config)
    return model_fields


FAMILIES = {
    "nemotron_h_puzzle": replace(
        NEMOTRON_FAMILIES["nemotron_h"],
        read_model=_read_puzzle,
        defaults={**class_defaults("nemotron_h"), **NEMOTRON_FAMILIES["nemotron_h"].defaults},
        ignored_fields=NEMOTRON_FAMILIES["nemotron_h"].ignored_fields
        | class_fields("nemotron_h")
        | {"mtp_block_configs"},
        source=f"{HUB}nvidia/NVIDIA-Nemotron-Labs-3-Puzzle-75B-A9B-NVFP4 modeling_nemotron_h_puzzle.py",
    )
}
