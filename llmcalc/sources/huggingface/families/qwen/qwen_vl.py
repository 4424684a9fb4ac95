"""The text models of Qwen2-VL to Qwen3-VL: Qwen2 and Qwen3 with three-axis RoPE, which has no parameters.

transformers: models/qwen2_vl, models/qwen2_5_vl, models/qwen3_vl, models/qwen3_vl_moe. Configs of the first two are
    flat on the hub.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import Family
from ...parts import QKV, QKVO, Table, attention, biases, qk_norm, rmsnorm
from ..experts.mixtral import NO_COUNT, OF_ABSENT_LAYERS, qwen_moe
from ..llama.llama import llama_like


def _qwen2_vl_text(config: Config) -> Table:
    """Reads Qwen2-VL's text model: the head size is hidden_size / num_attention_heads, regardless of `head_dim`."""
    return llama_like(config, attention(config, head_dim=None, **biases(True, *QKV)))


def _qwen3(config: Config) -> Table:
    return attention(
        config, **biases(config.flag("attention_bias"), *QKVO), **qk_norm(rmsnorm(config.number("rms_norm_eps")))
    )


def _qwen3_vl_text(config: Config) -> Table:
    return llama_like(config, _qwen3(config))


def qwen3_vl_moe_text(config: Config) -> Table:
    return qwen_moe(config, config.count("num_experts", "num_local_experts"), _qwen3(config), {})


QWEN2_VL: dict[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 80,
    "layer_types": None,
}

QWEN3_VL: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_act": "silu",
    "max_position_embeddings": 128000,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
}

OF_WRAPPER = frozenset(
    """
    image_token_id image_token_index video_token_id vision_config vision_end_token_id vision_start_token_id
    vision_token_id
    """.split()  # noqa: SIM905
)

FAMILIES = {
    "qwen2_vl": Family(None, {"tie_word_embeddings": False}, text="qwen2_vl_text", ties="either", tower_file="qwen"),
    "qwen2_vl_text": Family(_qwen2_vl_text, QWEN2_VL, OF_WRAPPER),
    "qwen2_5_vl": Family(
        None, {"tie_word_embeddings": False}, text="qwen2_5_vl_text", ties="either", tower_file="qwen"
    ),
    "qwen2_5_vl_text": Family(_qwen2_vl_text, QWEN2_VL, OF_WRAPPER),
    "qwen3_vl": Family(None, {"tie_word_embeddings": False}, text="qwen3_vl_text", tower_file="qwen"),
    "qwen3_vl_text": Family(
        _qwen3_vl_text,
        {
            **QWEN3_VL,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "tie_word_embeddings": False,
        },
    ),
    "qwen3_vl_moe": Family(None, {"tie_word_embeddings": False}, text="qwen3_vl_moe_text", tower_file="qwen"),
    "qwen3_vl_moe_text": Family(
        qwen3_vl_moe_text,
        {
            **QWEN3_VL,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": None,
            "tie_word_embeddings": True,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 1408,
            "num_experts_per_tok": 4,
            "num_experts": 60,
            "mlp_only_layers": None,
        },
        NO_COUNT | OF_ABSENT_LAYERS,
    ),
}
