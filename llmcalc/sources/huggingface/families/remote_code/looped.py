"""Ouro: a decoder whose layers run several times, with the same parameters in every step.

Zhu et al. 2025 (arXiv:2510.25741): each of the `total_ut_steps` steps runs all layers, and each of them caches keys and
values of its own in every step. The final norm ends each step, and a gate of one output may end them early.

Source: the modeling file in `Family.code`.
"""

from __future__ import annotations

from .....components.base import MOST_LAYERS
from .....components.stack import MOST_KINDS
from ...config import Config
from ...family import Family
from ...parts import Table, attention, decoder, glu, listed_kinds, rmsnorm


def _ouro(config: Config) -> Table:
    """Reads Ouro with all steps for every token (no early exit)."""
    depth, loop_count = config.size("num_hidden_layers"), config.size("total_ut_steps")
    if depth > MOST_KINDS or depth * loop_count > MOST_LAYERS:
        raise config.wrong("num_hidden_layers", depth, f"at most {MOST_KINDS} layers")
    config.must("use_sliding_window", False)
    listed_kinds(config, "layer_types", {"full_attention": "full"}, ["full"] * depth)
    config.notes.append(
        f"total_ut_steps: the norm after each step but the last, and the gate that may end the steps "
        f"({config.size('hidden_size') + 1} parameters), are not counted"
    )
    norm, names = rmsnorm(config.number("rms_norm_eps")), [f"layer_{i}" for i in range(depth)]
    stack = {
        "num_hidden_layers": depth * loop_count,
        "variants": {name: {} for name in names},
        "first_layers": names * loop_count,
        "pattern": names[-1:],
        "shared_layers": names,
    }
    block = {"attention": attention(config), "feed_forward": glu(config), "norm": norm, "norm_placement": "sandwich"}
    return decoder(config, block, norm, stack=stack)


FAMILIES = {
    "ouro": Family(
        _ouro,
        {
            "vocab_size": 151936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": None,
            "hidden_act": "silu",
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "layer_types": None,
            "total_ut_steps": 4,
        },
        frozenset({"early_exit_step", "early_exit_threshold", "chunk_size", "max_window_layers", "sliding_window"}),
        code="https://huggingface.co/ByteDance/Ouro-1.4B modeling_ouro.py",
    ),
}
