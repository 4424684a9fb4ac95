"""Ouro, Nanbeige 4.2 and LoopCoder: decoders that run all layers several times with the same parameters.

Ouro (Zhu et al. 2025, arXiv:2510.25741): each of the `total_ut_steps` steps runs all layers, and each of them caches
keys and values of its own in every step. The final norm ends each step, and a gate of one output may end them early.
Nanbeige 4.2 (2026, arXiv:2607.22083): Llama's layers in `num_loops` loops, with Ouro's caches, norms between loops and
no gate. LoopCoder (IQuest-Coder-V1 2026): the second step attends to the first one's keys and, nearby, to its own.

Sources: the modeling files in `Family.source`.
"""

from __future__ import annotations

from .....components.base import MAX_LAYERS
from .....components.stack import MAX_VARIANTS
from ...code_addresses import HUB
from ...config import Config
from ...family import Family
from ...parts import Table, attention, attention_biases, decoder, glu, layer_table, listed_kinds, rmsnorm, rope

OTHER_STRUCTURES = (
    "enable_double_loop_split",
    "loop_share_kv",
    "enable_depth_attention",
    "enable_hyper_connection",
    "enable_mhc",
    "qk_layernorm",
)
"""Fields of Nanbeige's code for structures that no published checkpoint has."""


def _read_ouro(config: Config) -> Table:
    """Reads Ouro with all steps for every token (no early exit)."""
    depth, loop_count = config.integer("num_hidden_layers"), config.integer("total_ut_steps")
    stack_fields = _looped_stack(config, loop_count)
    config.require("use_sliding_window", False)
    listed_kinds(config, "layer_types", {"full_attention": "full"}, ["full"] * depth)
    config.notes.append(
        f"total_ut_steps: the norm after each step but the last, and the gate that may end the steps "
        f"({config.integer('hidden_size') + 1} parameters), are not counted"
    )
    norm = rmsnorm(config.number("rms_norm_eps"))
    block = layer_table(attention(config), glu(config), norm, "sandwich")
    return decoder(config, block, norm, stack=stack_fields)


def _read_nanbeige(config: Config) -> Table:
    """Reads Nanbeige 4.2. Its loop count is the stated one, or the number of listed loss weights plus one."""
    for field_name in OTHER_STRUCTURES:
        config.require(field_name, False)
    for field_name in ("emb_neighbor_num", "insert_ngram_layer_idx"):
        config.require(field_name, None, 0, [])
    loss_weights: object = config.get("loop_loss_weights") or []
    if not isinstance(loss_weights, list):
        raise config.error("loop_loss_weights", loss_weights, "a list of numbers")
    loop_count = len(loss_weights) + 1 if loss_weights else config.integer("num_loops")
    config.fields_read.add("num_loops")
    if not config.flag("skip_loop_final_norm") and loop_count > 1:
        config.notes.append("num_loops: the norm after each loop but the last is not counted; it adds no parameters")
    norm = rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(config, **attention_biases(config))
    block = layer_table(attention_table, glu(config), norm)
    return decoder(config, block, norm, stack=_looped_stack(config, loop_count))


def _read_loopcoder(config: Config) -> Table:
    """Reads LoopCoder, whose class runs two loops."""
    config.require("loop_num", 2)
    head_count, hidden_size = config.integer("num_attention_heads"), config.integer("hidden_size")
    attention_table = {
        "type": "looped",
        "num_attention_heads": head_count,
        "num_key_value_heads": config.optional_integer("num_key_value_heads") or head_count,
        "head_dim": config.optional_integer("head_dim")
        or config.quotient("num_attention_heads", hidden_size, head_count),
        "loop_window_size": config.integer("loop_window_size"),
        "attention_bias": config.flag("attention_bias"),
        "position": rope(config),
    }
    norm, ffn = rmsnorm(config.number("rms_norm_eps")), glu(config, config.flag("mlp_bias"))
    block = {"type": "looped", "attention": attention_table, "feed_forward": ffn, "norm": norm}
    return decoder(config, block, norm, stack=_looped_stack(config, 2))


def _looped_stack(config: Config, loop_count: int) -> Table:
    """Returns a stack that runs all layers in each of `loop_count` loops with the same parameters."""
    depth = config.integer("num_hidden_layers")
    if depth > MAX_VARIANTS or depth * loop_count > MAX_LAYERS:
        raise config.error("num_hidden_layers", depth, f"at most {MAX_VARIANTS} layers")
    if depth == 1:
        return {"num_hidden_layers": loop_count, "shared_layers": ["block"]}
    layer_kinds = [f"layer_{layer_index}" for layer_index in range(depth)]
    return {
        "num_hidden_layers": depth * loop_count,
        "variants": {layer_kind: {} for layer_kind in layer_kinds},
        "first_layers": layer_kinds * loop_count,
        "pattern": layer_kinds[-1:],
        "shared_layers": layer_kinds,
    }


FAMILIES = {
    "ouro": Family(
        _read_ouro,
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
        source=f"{HUB}ByteDance/Ouro-1.4B modeling_ouro.py",
    ),
    "nanbeige": Family(
        _read_nanbeige,
        {
            "vocab_size": 166144,
            "hidden_size": 3072,
            "intermediate_size": 10752,
            "num_hidden_layers": 22,
            "num_attention_heads": 48,
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "num_loops": 2,
            "loop_loss_weights": None,
            "skip_loop_final_norm": False,
            "emb_neighbor_num": None,
            "insert_ngram_layer_idx": None,
            **dict.fromkeys(OTHER_STRUCTURES, False),
        },
        frozenset({"kv_channels"}),
        source=f"{HUB}Nanbeige/Nanbeige4.2-3B modeling_nanbeige.py",
    ),
    "iquestloopcoder": Family(
        _read_loopcoder,
        {
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "loop_num": 2,
            "loop_window_size": 64,
        },
        source=f"{HUB}IQuestLab/IQuest-Coder-V1-40B-Loop-Instruct modeling_iquestloopcoder.py",
    ),
}
