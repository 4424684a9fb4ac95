"""The text model of Cosmos 3 Edge: Llama's layers with a squared-ReLU network without a gate.

transformers: models/cosmos3_edge.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import ACTIVATIONS, Table, attention, attention_biases, mlp
from .llama import llama_decoder


def _read_cosmos3_edge_text(config: Config) -> Table:
    ffn = mlp(config.integer("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act"), config.flag("mlp_bias"))
    return llama_decoder(config, attention(config, **attention_biases(config)), ffn=ffn)


FAMILIES = {
    "cosmos3_edge": Family(
        None,
        text_type="cosmos3_edge_text",
        tying_source="never",
        tower_file="siglip",
        modules={"towers.map_1": "linear_fc1", "towers.map_2": "linear_fc2"},
    ),
    "cosmos3_edge_text": Family(_read_cosmos3_edge_text, modules={"up_proj": "fc1", "down_proj": "fc2"}),
}
