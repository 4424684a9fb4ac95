"""Chameleon: Llama's layers with a LayerNorm per head on queries and keys, and pre-norm or post-norm sublayers.

Images are tokens of the vocabulary, which a VQ-VAE beside the text model makes of them.

transformers: models/chameleon.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import (
    QKVO_BIASES,
    Table,
    attention,
    biases,
    decoder,
    glu,
    layer_table,
    layernorm,
    qk_norm_fields,
    rmsnorm,
)
from ..multimodal.multimodal import JANUS_TOKENIZER


def _read_chameleon(config: Config) -> Table:
    config.quotient("num_attention_heads", config.integer("hidden_size"), config.integer("num_attention_heads"))
    norm = rmsnorm(config.number("rms_norm_eps"))
    has_biases = config.get("attention_bias") is True
    attention_table = attention(
        config, head_dim=None, **biases(has_biases, *QKVO_BIASES), **qk_norm_fields(layernorm(), "per_head")
    )
    norm_placement = "output" if config.get("swin_norm") is True else "pre"
    block = layer_table(attention_table, glu(config, config.flag("mlp_bias")), norm, norm_placement)
    return decoder(config, block, norm)


FAMILIES = {
    "chameleon": Family(
        _read_chameleon,
        ignored_fields=frozenset({"image_token_id", "vq_config"}),
        tower_class_prefixes="Chameleon",
        tower_file="emu",
        modules={
            "self_attn_post_norm": "input_layernorm",
            "mlp_post_norm": "post_attention_layernorm",
            **{f"towers.{node_name}": module_name for node_name, module_name in JANUS_TOKENIZER.items()},
            "towers.decoder": "post_quant_conv",
            "towers.o_proj": "proj_out",
        },
    )
}
