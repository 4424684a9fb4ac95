"""Vision encoders that map patches to probabilities of visual words with embeddings: Ovis 2.

Lu 2024 (arXiv:2405.20797, §3), Fini 2024 (AIMv2, arXiv:2411.14402). transformers: models/ovis2.
"""

from __future__ import annotations

from ..config import Config
from ..parts import QKVO, Table, biases, glu, layer_table, layernorm, rmsnorm
from .section import patches_per_side, projector, self_attention, vision_section, vit


def _read_ovis2(wrapper: Config, config: Config, width: int) -> Table:
    """Reads Ovis 2: AIMv2's gated layers, a head over visual words, and the visual embedding table.

    The class adds the positions after the norm of the patches, which changes no count.
    """
    wrapper.must("hidden_size", width)
    norm = rmsnorm(config.number("rms_norm_eps"))
    attention = self_attention(config, **biases(config.flag("qkv_bias"), *QKVO))
    tower = vit(
        config,
        layer_table(attention, glu(config, config.flag("mlp_bias")), norm),
        stack={"embedding_norm": norm, "final_norm": norm},
        patches={"num_channels": config.size("num_channels"), "bias": True},
        positions={"rows": patches_per_side(config) ** 2},
    )
    return {"vision_tower": tower, **visual_words(config, config.size("hidden_size"), width)}


def visual_words(config: Config, encoder_width: int, width: int) -> Table:
    """Returns the head over visual words and their embedding table, whose last rows mark images."""
    indicators = config.size("num_visual_indicator_tokens")
    words = config.size("vocab_size") - indicators
    if words < 1:
        raise config.wrong("vocab_size", config.size("vocab_size"), f"more than the {indicators} that mark images")
    head = projector(
        encoder_width, (words, False, "identity"), merge=config.size("hidden_stride"), out_norm=layernorm()
    )
    return {
        "visual_head": head,
        "visual_embeddings_table": projector(words, (width, False, "identity"), output_marks=indicators),
    }


AIMV2: Table = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 14,
    "rms_norm_eps": 1e-5,
    "qkv_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "vocab_size": 16384,
    "hidden_stride": 1,
    "num_visual_indicator_tokens": 5,
}

WRAPPERS = {
    "ovis2": vision_section(
        _read_ovis2,
        {"ovis2_vision": AIMV2},
        {"hidden_size": 1536},
        ignored=frozenset({"attention_dropout", "tokenize_function"}),
    ),
}
