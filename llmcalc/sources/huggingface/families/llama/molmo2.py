"""The text model of Molmo 2: Qwen 3's layers, or OLMo 2's layers with norms after each sublayer.

The embedding has further rows for image tokens, which the head does not score.

transformers: models/molmo2.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import QKV_BIASES, Table, attention, attention_biases, decoder, glu, layer_table, qk_norm_fields, rmsnorm


def _read_molmo2_text(config: Config) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    norm_scope = config.choice({"qwen3": "head", "olmo": "projection"}, "qk_norm_type")
    attention_table = attention(config, **attention_biases(config, QKV_BIASES), **qk_norm_fields(norm, norm_scope))
    block = layer_table(attention_table, glu(config), norm, "output" if config.flag("norm_after") else "pre")
    extra_rows = config.count("additional_vocab_size") or None
    return decoder(config, block, norm, additional_vocab_size=extra_rows)


FAMILIES = {
    "molmo2": Family(
        None,
        text_type="molmo2_text",
        tying_source="never",
        uncounted_encoders={"vision_config": "molmo2_vision", "adapter_config": "molmo2_adapter"},
    ),
    "molmo2_text": Family(
        _read_molmo2_text,
        modules={"self_attn_post_norm": "input_layernorm", "mlp_post_norm": "post_attention_layernorm"},
        earlier_names={
            **{f"self_attn.{leaf}": "self_attn.att_proj" for leaf in ("q_proj", "k_proj", "v_proj")},
            "self_attn.o_proj": "self_attn.attn_out",
            "mlp.gate_proj": "mlp.ff_proj",
            "mlp.up_proj": "mlp.ff_proj",
            "mlp.down_proj": "mlp.ff_out",
        },
    ),
}
