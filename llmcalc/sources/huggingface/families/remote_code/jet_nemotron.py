"""Jet-Nemotron: Qwen2's layers, most of them with linear attention (JetBlock) instead of softmax attention.

Gu et al. 2025 (arXiv:2508.15884). Sources: the modeling file in `Family.source`, and SGLang's models/jet_nemotron.py.
"""

from __future__ import annotations

from math import isclose
from typing import Any

from .....components.base import LARGEST_SIZE
from ...config import Config
from ...family import Family
from ...parts import QKV_BIASES, Table, attention, biases, decoder_of_kinds, glu, layer_table, listed_kinds, rmsnorm

LAYER_KINDS = {"attn": "full", "swa": "sliding", "jet": "linear"}
JET_DEFAULTS: dict[str, Any] = {
    "mode": "chunk",
    "expand_v": 2.0,
    "num_heads": 6,
    "head_dim": 256,
    "norm_eps": 1e-5,
    "conv_size": 4,
    "dconv_generator_reduction": 8,
    "dconv_implementation": "triton",
}
"""Fields of the source's `JetBlockConfig` and their defaults."""
MIXER_SECTION = "efficient_attention_config"


def _read_jet_nemotron(config: Config) -> Table:
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    head_count = config.integer("num_attention_heads")
    head_dim = config.quotient("num_attention_heads", config.integer("hidden_size"), head_count)
    attention_table = attention(config, head_dim=head_dim, **biases(True, *QKV_BIASES))
    if not config.has("layer_types"):
        expected_text = f"a list with the kind of each of {depth} layers ({', '.join(LAYER_KINDS)})"
        raise config.error("layer_types", config.config_fields.get("layer_types"), expected_text)
    layer_kinds = listed_kinds(config, "layer_types", LAYER_KINDS, ["full"] * depth)
    layer_changes: Table = {}
    if "full" in layer_kinds:
        layer_changes["full"] = {"attention": attention_table}
    if "sliding" in layer_kinds:
        window_size = _mixer_config(config, "swa", {}).integer("window_size")
        layer_changes["sliding"] = {"attention": {**attention_table, "sliding_window": window_size}}
    if "linear" in layer_kinds:
        layer_changes["linear"] = {"attention": _jet_block(config, _mixer_config(config, "jet", JET_DEFAULTS))}
    config.fields_read.add(MIXER_SECTION)
    block = layer_table(attention_table, glu(config), norm)
    return decoder_of_kinds(config, block, norm, (layer_kinds, layer_changes))


def _mixer_config(config: Config, section_name: str, field_defaults: dict[str, Any]) -> Config:
    """Returns the table of one kind of layer in `efficient_attention_config`."""
    field_path_prefix = f"{config.location}{MIXER_SECTION}."
    config_fields = config.table(MIXER_SECTION)
    mixer_section = Config(config_fields, {}, config.model_type, location=field_path_prefix).table(section_name)
    return Config(mixer_section, field_defaults, config.model_type, location=f"{field_path_prefix}{section_name}.")


def _jet_block(config: Config, block_config: Config) -> Table:
    head_count = block_config.integer("num_heads")
    key_dim = block_config.integer("head_dim")
    value_expansion = block_config.number("expand_v")
    value_dim, unrounded_value_dim = int(key_dim * value_expansion), key_dim * value_expansion
    if not isclose(value_dim, unrounded_value_dim, rel_tol=1e-5) or not 1 <= value_dim <= LARGEST_SIZE:
        raise block_config.error("expand_v", value_expansion, f"a multiple of 1 / head_dim ({key_dim})")
    value_width, generator_reduction = head_count * value_dim, block_config.integer("dconv_generator_reduction")
    if generator_reduction > value_width:
        raise block_config.error(
            "dconv_generator_reduction", generator_reduction, f"at most {value_width}, the width of all values"
        )
    return {
        "type": "jet_block",
        "linear_num_value_heads": head_count,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": value_dim,
        "generator_size": value_width // generator_reduction,
        "linear_conv_kernel_dim": block_config.integer("conv_size"),
        "norm_eps": _norm_epsilon(block_config),
    }


def _norm_epsilon(block_config: Config) -> float:
    """Returns the ε of the norm, which published configs may write as a text."""
    norm_eps = block_config.get("norm_eps")
    try:
        config_fields = {"norm_eps": float(norm_eps)}
        return Config(config_fields, {}, block_config.model_type, location=block_config.location).number("norm_eps")
    except (TypeError, ValueError):
        raise block_config.error("norm_eps", norm_eps, "a number") from None


FAMILIES = {
    "jet_nemotron": Family(
        _read_jet_nemotron,
        {
            "vocab_size": 151936,
            "hidden_act": "silu",
            "num_key_value_heads": None,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
        },
        frozenset({"max_window_layers", "use_mrope"}),
        source="https://github.com/NVlabs/Jet-Nemotron/blob/main/jetai/modeling/hf/modeling_jet_nemotron.py",
    )
}
