"""A `config.json` on disk, or in a folder, as a description."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ...errors import InputError, one_line
from ..files import read_text, require_shallow
from .config import HeadKind
from .registry import family_of, read_config, text_of

LARGEST_CONFIG = 5_000_000
"""Bytes. Published ones are under 200 000, label tables included."""


LONGEST_NAME = 200
"""Characters of the name that a config gives itself."""

MADE_OF: dict[str, tuple[str, ...]] = {
    "dtype": ("torch_dtype",),
    "eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon", "layernorm_epsilon"),
    "num_hidden_layers": ("num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_decoder_layers", "num_blocks"),
    "num_attention_heads": ("num_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads", "num_attention_heads_per_layer"),
    "num_key_value_heads": ("num_kv_heads", "kv_n_heads"),
    "hidden_size": ("d_model", "n_embd", "n_embed", "dim"),
    "head_dim": ("d_kv", "rotary_dim", "rotary_pct", "partial_rotary_factor", "global_head_dim", "attention_head_dim", "mamba_expand", "hidden_size"),
    "position": ("pos_att_type",),
    "intermediate_size": (
        "d_ff", "n_inner", "ffn_dim", "encoder_ffn_dim", "block_ff_dim", "block_ffn_dim_multiplier", "ffn_proj_factor", "expand", "mamba_expand",
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "moe_intermediate_size", "hidden_size",
    ),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k"),
    "n_groups": ("mamba_n_groups", "mamba_ngroups"),
    "num_heads": ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads"),
    "kv_shared": ("num_kv_shared_layers", "layer_types", "num_hidden_layers"),
    "block_indexer": ("sparse_index_dim", "sparse_num_index_heads"),
    "index_local_blocks": ("sparse_local_block",),
    "index_topk_blocks": ("sparse_topk_blocks",),
    "qk_rope_head_dim": ("index_head_dim",),
    "linear_key_head_dim": ("hidden_size", "linear_num_key_heads"),
    "qk_head_dim": ("qk_dim_factor",),
    "v_head_dim": ("v_dim_factor",),
    "rope_theta": ("rotary_emb_base",),
}  # fmt: skip
"""Field of a description → what it is made of in configs, beside the field of its own name and the family's aliases."""


def fields_behind(config: dict[str, Any], message: str) -> str:
    """` (…)` with the fields of a config that those which a message names were made of; empty where they are called the same."""
    try:
        where, inner, kind = text_of(config)
        aliases = family_of(kind, where).aliases
    except InputError:  # of a .toml that holds something else under that name
        return ""
    words = dict.fromkeys(re.findall(r"\w+", message.partition("; expected")[0]))
    behind = [own for word in words for own in (*MADE_OF.get(word, ()), aliases.get(word, "")) if own in inner and own not in words]
    return f" (in the config: {', '.join(where + own for own in dict.fromkeys(behind))})" if behind else ""


def read_json(path: Path, limit: int = LARGEST_CONFIG) -> dict[str, Any]:
    """Raises `InputError` for a file that is too large, no text, no JSON or no object, or nested past all sense."""
    text = read_text(path, limit)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except (RecursionError, ValueError):
        raise InputError(f"{path}: nested too deeply, or with a number of thousands of digits; expected a config.json") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds no object; expected a config.json of a transformers model")
    require_shallow(data, str(path))
    return data


def describe_config(path: Path, head: HeadKind | None = None) -> tuple[str, dict[str, Any]]:
    """(a name for the model, its description: the `model` table, the config it was read from, remarks).

    Raises `InputError` for a config that is not understood, naming the field.
    """
    data = read_json(path)
    try:
        model, notes = read_config(data, head)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    given = data.get("_name_or_path")
    name = one_line(given)[:LONGEST_NAME] if isinstance(given, str) and given else (path.parent.name if path.name == "config.json" else path.stem)
    dtype = data.get("dtype") or data.get("torch_dtype")
    description: dict[str, Any] = {"model": model, "config": data, "notes": [one_line(note) for note in notes]}
    if isinstance(dtype, str):
        description["dtype"] = dtype
    return name or path.stem, description
