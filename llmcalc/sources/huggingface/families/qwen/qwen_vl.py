"""The text models of Qwen2-VL to Qwen3-VL: Qwen2 and Qwen3 with three-axis RoPE, which has no parameters.

transformers: models/qwen2_vl, models/qwen2_5_vl, models/qwen3_vl, models/qwen3_vl_moe. Configs of the first two are
    flat on the hub.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, field_names
from ...parts import QKV_BIASES, Table, attention, attention_biases, biases, qk_norm_fields, rmsnorm
from ..experts.mixtral import FIELDS_OF_ABSENT_LAYERS, IGNORED_FIELDS, qwen_moe_decoder
from ..llama.llama import llama_decoder


def _read_qwen2_vl_text(config: Config) -> Table:
    """Reads Qwen2-VL's text model, where the head size is hidden_size / num_attention_heads despite `head_dim`."""
    return llama_decoder(config, attention(config, head_dim=None, **biases(True, *QKV_BIASES)))


def _qwen3(config: Config) -> Table:
    return attention(config, **attention_biases(config), **qk_norm_fields(rmsnorm(config.number("rms_norm_eps"))))


def read_qwen3_vl_moe_text(config: Config) -> Table:
    return qwen_moe_decoder(config, config.count("num_experts", "num_local_experts"), _qwen3(config), {})


WRAPPER_FIELDS = field_names("""
    image_token_id image_token_index video_token_id vision_config vision_end_token_id vision_start_token_id
    vision_token_id
    """)

FAMILIES = {
    "qwen2_vl": Family(None, text_type="qwen2_vl_text", tying_source="either", tower_file="qwen"),
    "qwen2_vl_text": Family(_read_qwen2_vl_text, {"head_dim": None, "tie_word_embeddings": False}, WRAPPER_FIELDS),
    "qwen2_5_vl": Family(None, text_type="qwen2_5_vl_text", tying_source="either", tower_file="qwen"),
    "qwen2_5_vl_text": Family(_read_qwen2_vl_text, {"head_dim": None, "tie_word_embeddings": False}, WRAPPER_FIELDS),
    "qwen3_vl": Family(None, text_type="qwen3_vl_text", tower_file="qwen"),
    "qwen3_vl_text": Family(lambda config: llama_decoder(config, _qwen3(config)), {"tie_word_embeddings": False}),
    "qwen3_vl_moe": Family(None, text_type="qwen3_vl_moe_text", tower_file="qwen"),
    "qwen3_vl_moe_text": Family(
        read_qwen3_vl_moe_text, ignored_fields=IGNORED_FIELDS | FIELDS_OF_ABSENT_LAYERS | {"sliding_window"}
    ),
}
