"""The text model of Phi-4-multimodal: Phi-3's layers, three quarters of a head turned. Its adapters are not counted.

transformers: models/phi4_multimodal.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import Table, attention
from .llama import llama_like


def _phi4_multimodal(c: Config) -> Table:
    return llama_like(c, attention(c))


FAMILIES = {
    "phi4_multimodal": Family(
        _phi4_multimodal,
        {
            "vocab_size": 200064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "head_dim": None,
            "sliding_window": None,
        },
        frozenset(
            """
            attention_bias audio_config audio_processor embd_layer full_attn_mod img_processor interpolate_factor
            lm_head_bias mlp_bias original_max_position_embeddings speech_lora vision_config vision_lora
            """.split()  # noqa: SIM905
        ),
        towers="Phi4Multimodal",
        alone=False,
    ),
}
