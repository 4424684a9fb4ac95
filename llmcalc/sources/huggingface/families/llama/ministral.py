"""Ministral: Mistral with sliding windows in some layers. Mistral 3: a Mistral with a vision encoder.

transformers: models/ministral, models/ministral3, models/mistral3.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import Table, attention, decoder, glu, layer_table, rmsnorm, sliding_stack


def _read_ministral(config: Config) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    block = layer_table(attention(config), glu(config), norm)
    return decoder(config, block, norm, stack=sliding_stack(config, ["sliding"] * config.integer("num_hidden_layers")))


FAMILIES = {
    "ministral": Family(_read_ministral),
    "ministral3": Family(_read_ministral, {"layer_types": None}),
    "mistral3": Family(
        None,
        text_type="mistral",
        modules={"towers.map_1": "patch_merger.merging_layer", "towers.map_2": "linear_1", "towers.map_3": "linear_2"},
        tower_file="pixtral",
    ),
}
