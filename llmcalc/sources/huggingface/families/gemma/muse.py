"""The text model of Muse Glimmer: Gemma 2's norms, gated attention, QK-norm and embeddings normalised without weights.

A full-attention layer has no positions.

transformers: models/muse_glimmer.
"""

from __future__ import annotations

from typing import Any

from .....components.base import LARGEST
from ...config import Config, is_number
from ...family import Family
from ...parts import (
    FULL_OR_SLIDING,
    QKVO,
    Table,
    attention,
    biases,
    decoder,
    glu,
    listed_kinds,
    offset_rmsnorm,
    qk_norm,
    rmsnorm,
    rope,
    stack_of_layers,
)


def _muse_glimmer_text(config: Config) -> Table:
    depth, eps = config.size("num_hidden_layers"), config.number("rms_norm_eps")
    unweighted = rmsnorm(eps, weight=False)
    mixer = attention(
        config,
        output_gate={"per": "element"},
        **biases(config.flag("attention_bias"), *QKVO),
        **qk_norm(unweighted),
    )
    # Counted from the last layer down, every fourth has full attention and no positions.
    full = [(depth - 1 - i) % 4 == 0 for i in range(depth)]
    kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, ["full" if last else "sliding" for last in full])
    block = {
        "attention": mixer,
        "feed_forward": glu(config, act="hidden_activation"),
        "norm": offset_rmsnorm(eps),
        "norm_placement": "sandwich",
    }
    layers = [
        (kind, {"attention": {**position, **_window(config, kind)}})
        for kind, position in zip(kinds, _positions(config, full), strict=True)
    ]
    stack = {**stack_of_layers(layers), "embedding_norm": unweighted}
    return decoder(config, block, offset_rmsnorm(eps), stack=stack)


def _positions(config: Config, full: list[bool]) -> list[Table]:
    """Returns the changed position of each layer; a base of 0 in `layer_rope_theta` means none."""
    bases = config.get("layer_rope_theta")
    if bases is None:
        return [{"position": "none"} if last else {} for last in full]
    if (
        not isinstance(bases, list)
        or len(bases) != len(full)
        or any(not is_number(base) or not 0 <= base <= LARGEST for base in bases)
    ):
        raise config.wrong("layer_rope_theta", bases, f"{len(full)} bases of RoPE, 0 for a layer without positions")
    turned = rope(config)
    return [{"position": {**turned, "rope_theta": float(base)} if base else "none"} for base in bases]


def _window(config: Config, kind: str) -> Table:
    return {"sliding_window": config.size("sliding_window")} if kind == "sliding" else {}


NO_COUNT = frozenset({"final_logit_softcapping", "output_multiplier", "post_norm_eps", "qk_scale_factor"})
DEFAULTS: dict[str, Any] = {
    "vocab_size": 202048,
    "hidden_size": 6656,
    "intermediate_size": 19968,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_activation": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "sliding_window": 2048,
    "layer_types": None,
    "layer_rope_theta": None,
    "tie_word_embeddings": False,
}

FAMILIES = {
    "muse_glimmer": Family(None, text="muse_glimmer_text", uncounted_encoders={"vision_config": "muse_glimmer_vision"}),
    "muse_glimmer_text": Family(_muse_glimmer_text, DEFAULTS, NO_COUNT),
}
