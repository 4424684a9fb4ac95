"""The text models of Aria (experts in every layer) and of Emu 3 (Llama's layers).

The encoder of images of Emu 3 is not counted.

transformers: models/aria (`AriaTextForCausalLM`), models/emu3 (`Emu3ForCausalLM`).
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import QKVO, Table, attention, biases, decoder, glu, layer_table, moe, rmsnorm


def _pre_norm(config: Config, feed_forward: Table) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    mixer = attention(config, **biases(config.flag("attention_bias"), *QKVO))
    return decoder(config, layer_table(mixer, feed_forward, norm), norm)


def _aria(config: Config) -> Table:
    """Reads Aria: routed experts have SwiGLU and no biases; hidden_act and mlp_bias apply to shared experts."""
    is_published_code = config.data.get("model_type") == "aria_moe_lm"  # whose class names the experts' width apart
    name = "moe_intermediate_size" if is_published_code and config.has("moe_intermediate_size") else "intermediate_size"
    config.fields_read.add("intermediate_size")
    width, shared_count = config.size(name), config.size("moe_num_shared_experts")
    expert = {"intermediate_size": width, "hidden_act": "silu", "gated": True}
    return _pre_norm(
        config,
        moe(
            config.size("moe_num_experts"),
            config.size("moe_topk"),
            expert,
            glu(config, config.flag("mlp_bias"), width * shared_count),
        ),
    )


def _emu3(config: Config) -> Table:
    return _pre_norm(config, glu(config, config.flag("mlp_bias")))


FAMILIES = {
    "aria": Family(None, text="aria_text", tower_file="llava"),
    "emu3": Family(
        None,
        text="emu3_text_model",
        uncounted_encoders={"vq_config": "emu3_vqgan"},  # images as tokens
    ),
    "aria_text": Family(
        _aria,
        ignored=frozenset({"num_experts_per_tok"}),
        earlier={"experts.gate_up_proj": "experts.fc1", "experts.down_proj": "experts.fc2"},
    ),
    "emu3_text_model": Family(
        _emu3,
        {"head_dim": None, "attention_bias": False, "mlp_bias": False},
        alone=False,
        dropout={"attention": "attention_dropout"},
    ),
}
