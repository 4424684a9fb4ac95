"""Gemma 1 to 3, and VaultGemma: gated GELU, and a head size independent of hidden_size.

Gemma 2 and 3 have a norm before and after each sublayer.

transformers: models/gemma, models/gemma2, models/gemma3, models/vaultgemma. A bidirectional model (EmbeddingGemma) is
    an encoder here.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import Family, Quirks
from ...field_writers import FieldWriters
from ...parts import (
    Table,
    attention,
    attention_biases,
    bidirectional_stack,
    decoder,
    glu,
    kinds_with_nth_full,
    layer_table,
    offset_rmsnorm,
    qk_norm_fields,
    rope,
    sliding_stack,
)
from ...written_towers import gemma3_sections, paligemma_sections


def gemma_decoder(
    config: Config,
    token_mixer: Table,
    norm_placement: str,
    stack: Table | None = None,
    activation: str = "hidden_activation",
) -> Table:
    norm = offset_rmsnorm(config.number("rms_norm_eps"))
    block = layer_table(token_mixer, glu(config, activation_field=activation), norm, norm_placement)
    model_fields = decoder(config, block, norm, stack=stack)
    if "use_bidirectional_attention" not in config.defaults or config.get("use_bidirectional_attention") is None:
        return model_fields
    if config.flag("use_bidirectional_attention"):
        model_fields["encoder"] = bidirectional_stack(model_fields.pop("decoder"), lambda window: window // 2)
    return model_fields


def _gemma_attention(config: Config, **attention_fields: Any) -> Table:
    return attention(config, **attention_biases(config), **attention_fields)


def score_cap_fields(config: Config) -> Table:
    """Returns the soft cap of attention scores, if the config sets one."""
    if config.get("attn_logit_softcapping") is None:
        return {}
    return {"attn_logit_softcapping": config.number("attn_logit_softcapping")}


def _read_gemma(config: Config) -> Table:
    return gemma_decoder(config, _gemma_attention(config), "pre", activation="hidden_act")


def read_gemma2(config: Config) -> Table:
    """Reads Gemma 2: norms before and after each sublayer, and windows in every second layer."""
    return _decoder_with_windows(config, "sandwich")


def _decoder_with_windows(config: Config, norm_placement: str) -> Table:
    """Returns a decoder with capped attention scores and windows in every second layer."""
    stack_fields = sliding_stack(config, kinds_with_nth_full(config.integer("num_hidden_layers"), 2))
    return gemma_decoder(config, _gemma_attention(config, **score_cap_fields(config)), norm_placement, stack_fields)


def local_theta(config: Config) -> float:
    """Returns RoPE's base (theta) in sliding-window layers."""
    rope_parameters = config.config_fields.get("rope_parameters")
    sliding_rope = rope_parameters.get("sliding_attention") if isinstance(rope_parameters, dict) else None
    if isinstance(sliding_rope, dict):
        rope_base = sliding_rope.get("rope_theta")
    else:
        rope_base = config.config_fields.get("rope_local_base_freq")
    return float(rope_base) if isinstance(rope_base, int | float) and rope_base > 0 else 10_000.0


def _read_gemma3(config: Config) -> Table:
    norm = offset_rmsnorm(config.number("rms_norm_eps"))
    attention_table = _gemma_attention(
        config, position={"rope_theta": 1_000_000.0, **rope(config)}, **qk_norm_fields(norm)
    )
    depth = config.integer("num_hidden_layers")
    layer_kinds = kinds_with_nth_full(depth, config.optional_integer("sliding_window_pattern") or 6)
    stack_fields = sliding_stack(config, layer_kinds, sliding_fields={"position": {"rope_theta": local_theta(config)}})
    return gemma_decoder(config, attention_table, "sandwich", stack_fields)


IGNORED_FIELDS = frozenset({"cache_implementation", "rope_local_base_freq", "sliding_window_size", "num_image_tokens"})

LOCAL_THETA_WRITERS: FieldWriters = {"rope_local_base_freq": lambda s: s.sliding_mixer.position.rope_theta}


FAMILIES = {
    "gemma": Family(_read_gemma, ignored_fields=frozenset({"hidden_activation", "num_image_tokens"})),
    "gemma2": Family(read_gemma2, ignored_fields=IGNORED_FIELDS | {"hidden_act"}),
    "vaultgemma": Family(
        lambda config: _decoder_with_windows(config, "pre"), ignored_fields=IGNORED_FIELDS | {"hidden_act"}
    ),
    "gemma3_text": Family(
        _read_gemma3, {"sliding_window_pattern": 6}, IGNORED_FIELDS | {"hidden_act"}, field_writers=LOCAL_THETA_WRITERS
    ),
    "gemma3": Family(None, text_type="gemma3_text", tower_file="siglip", write_tower_sections=gemma3_sections),
    "shieldgemma2": Family(None, text_type="gemma3_text", tying_source="either", tower_file="siglip"),
    "paligemma": Family(
        None,
        text_type="gemma",
        # its class sets true for a prefix of image and prompt; the answer after it is causal, with a cache
        text_fields_from_sections={"use_bidirectional_attention": ("", "use_bidirectional_attention", None)},
        quirks=Quirks(mask_making_classes=("ForConditionalGeneration",)),
        tower_file="siglip",
        write_tower_sections=paligemma_sections,
    ),
}
