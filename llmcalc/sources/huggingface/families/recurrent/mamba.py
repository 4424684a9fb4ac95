"""Stacks of state-space mixers alone: mamba, falcon_mamba, mamba2.

transformers: models/mamba, models/falcon_mamba, models/mamba2.
"""

from __future__ import annotations

from typing import Any

from ...config import Config, Family
from ...parts import ACTIVATIONS, Table, decoder, rmsnorm

NONE: Table = {"type": "none"}


def step_rank(c: Config, name: str) -> int:
    """Width that Δ is projected through; `auto` is a 16th of the model's, rounded up."""
    return -(-c.size("hidden_size") // 16) if c.get(name) == "auto" else c.size(name)


def _alone(c: Config, mixer: Table) -> Table:
    norm = rmsnorm(c.number("layer_norm_epsilon"))
    return decoder(c, {"attention": mixer, "feed_forward": NONE, "norm": norm, "norm_placement": "pre"}, norm)


def _mamba(c: Config, **fields: Any) -> Table:
    expanded = c.size("expand") * c.size("hidden_size")
    inner = c.maybe("intermediate_size") or expanded
    mixer = {
        "type": "mamba",
        "intermediate_size": inner,
        "state_size": c.size("state_size"),
        "time_step_rank": step_rank(c, "time_step_rank"),
    }
    rest = {
        "conv_kernel": c.size("conv_kernel"),
        "use_bias": c.flag("use_bias"),
        "use_conv_bias": c.flag("use_conv_bias"),
    }
    return _alone(c, {**mixer, **rest, "hidden_act": c.choice(ACTIVATIONS, "hidden_act"), **fields})


def _falcon_mamba(c: Config) -> Table:
    return _mamba(c, norm=rmsnorm(c.number("mixer_rms_eps"), weight=False))


def _mamba2(c: Config) -> Table:
    heads, head_dim, width = c.size("num_heads"), c.size("head_dim"), c.size("expand") * c.size("hidden_size")
    if heads * head_dim != width:
        raise c.wrong("num_heads", heads, f"expand × hidden_size / head_dim = {width} / {head_dim}")
    mixer = {
        "type": "mamba2",
        "num_heads": heads,
        "head_dim": head_dim,
        "state_size": c.size("state_size"),
        "n_groups": c.size("n_groups"),
    }
    biased = {"use_bias": c.flag("use_bias"), "out_bias": c.flag("use_bias"), "use_conv_bias": c.flag("use_conv_bias")}
    rest = {
        "conv_kernel": c.size("conv_kernel"),
        "chunk_size": c.size("chunk_size"),
        "hidden_act": c.choice(ACTIVATIONS, "hidden_act"),
    }
    return _alone(c, {**mixer, **biased, **rest, "norm": rmsnorm(c.number("layer_norm_epsilon"))})


COMMON: Table = {
    "layer_norm_epsilon": 1e-5,
    "expand": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
}
MAMBA: Table = {
    **COMMON,
    "vocab_size": 50280,
    "hidden_size": 768,
    "num_hidden_layers": 32,
    "state_size": 16,
    "time_step_rank": "auto",
    "tie_word_embeddings": True,
}
IGNORED = frozenset(
    """
    time_step_rank time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor time_step_limit
    rescale_prenorm_residual residual_in_fp32 use_mambapy use_falcon_mambapy use_associative_scan rms_norm
    norm_before_gate fused_add_norm pad_vocab_size_multiple ssm_cfg d_inner d_model n_layer intermediate_size
    use_mamba_kernels mamba_dt_min mamba_dt_max mamba_dt_limit mamba_dt_init_floor num_logits_to_keep
    """.split()  # noqa: SIM905
)
"""Initialisation, clamps of Δ and choices of a kernel;
and names of other implementations, which the classes do not read.
"""

FAMILIES = {
    "mamba": Family(_mamba, MAMBA, IGNORED),
    "falcon_mamba": Family(_falcon_mamba, {**MAMBA, "mixer_rms_eps": 1e-6}, IGNORED),
    "mamba2": Family(
        _mamba2,
        {
            **COMMON,
            "vocab_size": 32768,
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "state_size": 128,
            "num_heads": 128,
            "head_dim": 64,
            "n_groups": 8,
            "chunk_size": 256,
            "tie_word_embeddings": False,
        },
        IGNORED,
    ),
}
