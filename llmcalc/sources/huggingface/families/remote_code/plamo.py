"""PLaMo 2 and 3: norms before and after each sublayer; PLaMo 2 also has state-space layers.

Sources: the files of vLLM in `Family.source` of each model type.
"""

from __future__ import annotations

from ...code_addresses import VLLM
from ...config import Config
from ...family import Family
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    attention,
    decoder_of_kinds,
    glu,
    layer_table,
    listed_kinds,
    offset_rmsnorm,
    qk_norm_fields,
    rmsnorm,
    rope,
)


def _read_plamo2(config: Config) -> Table:
    """Reads PLaMo 2: every `mamba_step`-th layer has attention; `full_attention_idx` lists layers without a window."""
    eps = config.number("rms_norm_eps")
    depth = config.integer("num_hidden_layers")
    mamba_period = config.integer("mamba_step")
    norm = offset_rmsnorm(eps)
    head_count = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size_per_head")
    window_size, full_layers = config.optional_integer("attention_window_size"), config.get("full_attention_idx")
    full_attention_indices = set() if full_layers is None else set(config.integers("full_attention_idx"))
    attention_table = {
        "num_attention_heads": head_count,
        "num_key_value_heads": config.integer("num_key_value_heads"),
        "head_dim": hidden_size,
        "position": rope(config),
        **qk_norm_fields(rmsnorm(eps), "per_head"),
    }
    sliding_attention = attention_table if window_size is None else {**attention_table, "sliding_window": window_size}
    mamba: Table = {
        "type": "selective_mamba2",
        "num_heads": config.integer("mamba_num_heads"),
        "head_dim": hidden_size,
        "state_size": config.integer("mamba_d_state"),
        "time_step_rank": max(64, config.integer("hidden_size") // 16),
        "conv_kernel": config.integer("mamba_d_conv"),
        "chunk_size": config.integer("mamba_chunk_size"),
        "norm": rmsnorm(eps),
    }
    block = layer_table(sliding_attention, glu(config), norm, "sandwich")
    layer_changes: Table = {"sliding": {}, "full": {"attention": attention_table}, "mamba": {"attention": mamba}}
    layer_kinds = [
        "mamba"
        if _is_mamba(config, layer_index, depth, mamba_period)
        else "full"
        if window_size is None or layer_index in full_attention_indices
        else "sliding"
        for layer_index in range(depth)
    ]
    return decoder_of_kinds(config, block, norm, (layer_kinds, layer_changes))


def _is_mamba(config: Config, layer_index: int, depth: int, mamba_period: int) -> bool:
    """Whether a layer is a state-space mixer: all but one layer per period; in a shallow model all but the last."""
    if not config.flag("mamba_enabled"):
        return False
    if mamba_period < 2:
        raise config.error("mamba_step", mamba_period, "2 or more")
    return layer_index != depth - 1 if depth <= mamba_period // 2 else layer_index % mamba_period != mamba_period // 2


def _read_plamo3(config: Config) -> Table:
    """Reads PLaMo 3: every `sliding_window_pattern`-th layer attends to all tokens."""
    norm, depth = offset_rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    window = config.optional_integer("window_size", "sliding_window")
    windows = config.config_fields.get("interleaved_sliding_window")
    full_period = config.integer("sliding_window_pattern")
    config.fields_read.add("interleaved_sliding_window")
    default_layer_kinds = ["sliding" if (layer_index + 1) % full_period else "full" for layer_index in range(depth)]
    if isinstance(windows, list):
        window_sizes = [window_size for window_size in windows if window_size is not None]
        if (
            len(windows) != depth
            or not all(type(window_size) is int and window_size > 0 for window_size in window_sizes)
            or len(set(window_sizes)) > 1
        ):
            raise config.error("interleaved_sliding_window", windows, f"{depth} times null or one size of a window")
        default_layer_kinds = ["full" if window_size is None else "sliding" for window_size in windows]
        window = next(iter(window_sizes), window)
    layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    attention_table = attention(config, **qk_norm_fields(norm))
    block = layer_table(attention_table, glu(config), norm, "sandwich")
    sliding_layer: Table = {} if window is None else {"attention": {"sliding_window": window}}
    return decoder_of_kinds(config, block, norm, (layer_kinds, {"full": {}, "sliding": sliding_layer}))


FAMILIES = {
    "plamo2": Family(
        _read_plamo2,
        {
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "hidden_size_per_head": 128,
            "intermediate_size": 13312,
            "vocab_size": 32000,
            "max_position_embeddings": 2048,
            "attention_window_size": 2048,
            "full_attention_idx": None,
            "mamba_enabled": True,
            "mamba_d_state": 64,
            "mamba_d_conv": 4,
            "mamba_num_heads": 64,
            "mamba_step": 2,
            "mamba_chunk_size": 256,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        },
        frozenset({"capacity_factor", "eval_attention_n_bit", "eval_mlp_n_bit", "head_dim", "rope_local_theta"})
        | {"expert_dropout", "group_size", "k_expert", "linear_type", "n_expert", "sparse_intermediate_size"}
        | {"sparse_step", "shared_intermediate_size", "use_predefined_initial_state"},
        source=f"{VLLM}plamo2.py",
    ),
    "plamo3": Family(
        _read_plamo3,
        {
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "sliding_window": None,
            "sliding_window_pattern": 8,
            "layer_types": None,
            "tie_word_embeddings": False,
        },
        frozenset({"initial_context_length", "rope_local_theta", "rope_scaling_factor"}),
        source=f"{VLLM}plamo3.py",
    ),
}
