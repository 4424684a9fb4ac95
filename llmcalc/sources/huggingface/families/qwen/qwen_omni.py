"""Qwen2.5-Omni and Qwen3-Omni: the thinker, whose text model has three-axis RoPE without parameters, and Qwen3-ASR.

The talker, which speaks, and the vocoder are not counted; a remark names them.

transformers: models/qwen2_5_omni, models/qwen3_omni_moe, models/qwen3_asr.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import QKV_BIASES, Table, attention, attention_biases, biases, qk_norm_fields, rmsnorm
from ..experts.mixtral import FIELDS_OF_ABSENT_LAYERS, IGNORED_FIELDS, qwen_moe_decoder
from ..llama.llama import llama_decoder


def _read_qwen3_omni_moe_text(config: Config) -> Table:
    """Reads Qwen3-Omni's thinker, whose sliding window is not supported."""
    config.require("sliding_window", None)
    attention_table = attention(
        config, **attention_biases(config), **qk_norm_fields(rmsnorm(config.number("rms_norm_eps")))
    )
    return qwen_moe_decoder(config, config.count("num_experts"), attention_table, {})


QWEN2_5_ENCODERS = {
    "towers.audio_projector": "audio_tower",
    "towers.audio_projector.norm": "ln_post",
    "towers.audio_projector.map_1": "proj",
    "towers.audio_projector.output_marks": "audio_bos_eos_token",
}
SPECTRUM_ENCODER = {
    "towers.audio_tower.norm": "ln_post",
    "towers.stem": "conv2d1 + conv2d2 + conv2d3 + conv_out",
    "towers.subsampling": "conv2d1 + conv2d2 + conv2d3 + conv_out",
    **{f"towers.subsampling.conv_{i}": f".conv2d{i}" for i in (1, 2, 3)},
    "towers.subsampling.proj": ".conv_out",
}
QWEN3_ENCODERS = {
    **SPECTRUM_ENCODER,
    "towers.audio_projector": "audio_tower",
    "towers.audio_projector.map_1": "proj1",
    "towers.audio_projector.map_2": "proj2",
    **{f"towers.visual_deepstack_{i}": f"visual.merger_list.{i}" for i in range(3)},
    **{f"towers.visual_deepstack_{i}.norm": "ln_q" for i in range(3)},
    **{f"towers.visual_deepstack_{i}.map_1": "mlp.0" for i in range(3)},
    **{f"towers.visual_deepstack_{i}.map_2": "mlp.2" for i in range(3)},
}

FAMILIES = {
    "qwen3_asr": Family(
        None,
        text_type="qwen3",
        tower_file="omni",
        text_fields_from_sections={"token_classification_bias": ("", "token_classification_bias", False)},
        modules={**SPECTRUM_ENCODER, "towers.audio_projector": "multi_modal_projector"},
    ),
    "qwen2_5_omni": Family(
        None,
        text_type="qwen2_5_omni_thinker",
        text_section="thinker_config",
        uncounted_encoders={"talker_config": "qwen2_5_omni_talker", "token2wav_config": "qwen2_5_omni_token2wav"},
    ),
    "qwen2_5_omni_thinker": Family(None, text_type="qwen2_5_omni_text", tower_file="omni", modules=QWEN2_5_ENCODERS),
    "qwen2_5_omni_text": Family(
        lambda config: llama_decoder(config, attention(config, **biases(True, *QKV_BIASES))), {"head_dim": None}
    ),
    "qwen3_omni_moe": Family(
        None,
        text_type="qwen3_omni_moe_thinker",
        text_section="thinker_config",
        uncounted_encoders={"talker_config": "qwen3_omni_moe_talker", "code2wav_config": "qwen3_omni_moe_code2wav"},
    ),
    "qwen3_omni_moe_thinker": Family(None, text_type="qwen3_omni_moe_text", tower_file="omni", modules=QWEN3_ENCODERS),
    "qwen3_omni_moe_text": Family(
        _read_qwen3_omni_moe_text,
        {"head_dim": None, "tie_word_embeddings": False},
        IGNORED_FIELDS | FIELDS_OF_ABSENT_LAYERS,
    ),
}
