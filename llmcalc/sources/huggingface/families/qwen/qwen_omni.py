"""Qwen2.5-Omni and Qwen3-Omni: the thinker's text model, with three-axis RoPE, which has no parameters.

The talker, which speaks, and the vocoder are not counted; a remark names them.

transformers: models/qwen2_5_omni, models/qwen3_omni_moe.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import QKV, QKVO, Table, attention, biases, qk_norm, rmsnorm
from ..experts.mixtral import NO_COUNT, OF_ABSENT_LAYERS, qwen_moe
from ..llama.llama import llama_like


def _qwen2_5_omni_text(config: Config) -> Table:
    return llama_like(config, attention(config, **biases(True, *QKV)))


def _qwen3_omni_moe_text(config: Config) -> Table:
    mixer = attention(
        config, **biases(config.flag("attention_bias"), *QKVO), **qk_norm(rmsnorm(config.number("rms_norm_eps")))
    )
    return qwen_moe(config, config.count("num_experts"), mixer, {})


OF_QWEN2_5 = {"vision_config": "qwen2_5_omni_vision_encoder", "audio_config": "qwen2_5_omni_audio_encoder"}
OF_QWEN3 = {"vision_config": "qwen3_omni_moe_vision_encoder", "audio_config": "qwen3_omni_moe_audio_encoder"}


def _of_thinker(encoders: dict[str, str], **other_models: str) -> dict[str, str]:
    """Returns the thinker's encoders and the other models, by their paths in the whole model's config."""
    return {**{f"thinker_config.{name}": encoder for name, encoder in encoders.items()}, **other_models}


FAMILIES = {
    "qwen2_5_omni": Family(
        None,
        text="qwen2_5_omni_thinker",
        text_section="thinker_config",
        uncounted_encoders=_of_thinker(
            OF_QWEN2_5, talker_config="qwen2_5_omni_talker", token2wav_config="qwen2_5_omni_token2wav"
        ),
    ),
    "qwen2_5_omni_thinker": Family(None, text="qwen2_5_omni_text", uncounted_encoders=OF_QWEN2_5),
    "qwen2_5_omni_text": Family(_qwen2_5_omni_text, {"head_dim": None}),
    "qwen3_omni_moe": Family(
        None,
        text="qwen3_omni_moe_thinker",
        text_section="thinker_config",
        uncounted_encoders=_of_thinker(
            OF_QWEN3, talker_config="qwen3_omni_moe_talker", code2wav_config="qwen3_omni_moe_code2wav"
        ),
    ),
    "qwen3_omni_moe_thinker": Family(None, text="qwen3_omni_moe_text", uncounted_encoders=OF_QWEN3),
    "qwen3_omni_moe_text": Family(
        _qwen3_omni_moe_text,
        {"head_dim": None, "tie_word_embeddings": False},
        NO_COUNT | OF_ABSENT_LAYERS,
    ),
}
