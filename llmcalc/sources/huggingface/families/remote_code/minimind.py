"""MiniMind in its three versions: Llama's layer, since 2026 with norms on queries and keys.

Its configuration class saves every field, so those of experts tell the versions apart. The first used Meta's names
(`dim`, `n_layers`). All classes are called `minimind`.

Source: model/model_minimind.py of github.com/jingyaogong/minimind; the earlier versions are the file of the same name
at github.com/linquanzhi/minimind, and model.py at github.com/HYanChen/MiniMind2.
"""

from __future__ import annotations

from math import ceil, pi

from .....algebra import ceil_div
from ...code_addresses import GITHUB
from ...config import Config
from ...family import Family, field_names
from ...parts import Table, attention, decoder, glu, layer_table, moe, qk_norm_fields, rmsnorm


def _read_minimind(config: Config) -> Table:
    is_later_version = config.has("num_experts")
    if is_later_version == config.has("n_routed_experts"):
        num_experts = config.config_fields.get("num_experts")
        raise config.error("num_experts", num_experts, "either num_experts (since 2026) or n_routed_experts (before)")
    return _read_later_version(config) if is_later_version else _read_earlier_version(config)


def _read_later_version(config: Config) -> Table:
    """Reads the version of 2026, which has no shared experts, and whose config states whether the head is tied."""
    norm, hidden_size = rmsnorm(config.number("rms_norm_eps")), config.integer("hidden_size")
    ffn_width = config.optional_integer("intermediate_size") or 64 * ceil(hidden_size * pi / 64)
    ffn = glu(config, ffn_width=ffn_width)
    if config.flag("use_moe"):
        expert = glu(config, ffn_width=config.optional_integer("moe_intermediate_size") or ffn_width)
        ffn = moe(config.integer("num_experts"), config.integer("num_experts_per_tok"), expert)
    return decoder(config, layer_table(attention(config, **qk_norm_fields(norm)), ffn, norm), norm)


def _read_earlier_version(config: Config) -> Table:
    """Reads the versions of 2024 and 2025, whose head is always tied to the embedding.

    In the first, any value of `n_shared_experts` but null means one shared expert; in the second it is their number.
    """
    config = config.with_fields(tie_word_embeddings=True)
    config.require("scoring_func", "softmax")
    norm, hidden_size = rmsnorm(config.number("rms_norm_eps")), config.integer("hidden_size")
    ffn_width = config.optional_integer("intermediate_size")
    if ffn_width is None:
        width_multiple = config.integer("multiple_of")
        ffn_width = width_multiple * ceil_div(8 * hidden_size // 3, width_multiple)
    ffn = glu(config, ffn_width=ffn_width)
    if config.flag("use_moe"):
        has_params_json_names = "dim" in config.config_fields
        has_shared_expert = config.get("n_shared_experts") is not None
        shared_count = int(has_shared_expert) if has_params_json_names else config.count("n_shared_experts")
        shared_ffn = glu(config, ffn_width=ffn_width * shared_count) if shared_count else None
        ffn = moe(config.integer("n_routed_experts"), config.integer("num_experts_per_tok"), ffn, shared_ffn)
    return decoder(config, layer_table(attention(config), ffn, norm), norm)


FAMILIES = {
    "minimind": Family(
        _read_minimind,
        {
            "hidden_act": "silu",
            "intermediate_size": None,
            "moe_intermediate_size": None,
            "multiple_of": 64,
            "n_shared_experts": 1,
            "num_key_value_heads": None,
            "rms_norm_eps": 1e-6,
            "scoring_func": "softmax",
            "tie_word_embeddings": True,
            "use_moe": False,
        },
        field_names("""
            aux_loss_alpha flash_attn inference_rope_scaling moe_intermediate_size multiple_of n_routed_experts
            n_shared_experts norm_topk_prob num_experts num_experts_per_tok scoring_func seq_aux
            """),
        aliases={
            "hidden_size": "dim",
            "intermediate_size": "hidden_dim",
            "max_position_embeddings": "max_seq_len",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
            "num_key_value_heads": "n_kv_heads",
            "rms_norm_eps": "norm_eps",
        },
        source=f"{GITHUB}jingyaogong/minimind/blob/master/model/model_minimind.py",
    )
}
