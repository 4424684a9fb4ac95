"""CTRL: GPT's layers with sinusoidal positions and a bias on the output projection (Keskar 2019, arXiv:1909.05858).

transformers: models/ctrl.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, field_names
from ...parts import QKVO_BIASES, Table, biases, decoder, layer_table, layernorm, mlp
from .gpt import ALIASES, full_width_heads


def _read_ctrl(config: Config) -> Table:
    norm = layernorm(1e-6)
    attention = full_width_heads(config, **biases(True, *QKVO_BIASES))
    block = layer_table(attention, mlp(config.integer("dff"), "relu"), norm)
    final_norm = layernorm(config.number("layer_norm_epsilon"))
    return decoder(config, block, final_norm, head={"bias": True}, stack={"position": {"type": "sinusoidal"}})


FAMILIES = {
    "ctrl": Family(
        _read_ctrl,
        ignored_fields=field_names(
            "n_ctx summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj"
        ),
        aliases=ALIASES,
        field_writers={"dff": lambda s: s.network.intermediate_size},
        dropout_fields={"embedding": "embd_pdrop", "attention_output": "resid_pdrop", "feed_forward": "resid_pdrop"},
    )
}
