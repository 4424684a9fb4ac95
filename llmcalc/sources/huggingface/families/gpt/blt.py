"""The byte latent transformer: a decoder of patches of bytes, between a local encoder and a local decoder of bytes.

Pagnoni et al. 2024 (arXiv:2412.09871). transformers: models/blt.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import EVERY_CLASS, Family, Quirks
from ...parts import Table, attention, decoder, glu, layer_table, rmsnorm


def _read_blt(config: Config) -> Table:
    global_config, encoder_config, decoder_config = (
        config.section(f"{name}_config", defaults) for name, defaults in SECTION_DEFAULTS.items() if name != "patcher"
    )
    hidden_size, vectors_per_patch = encoder_config.integer("hidden_size"), config.integer("cross_attn_k")
    for stack_config, field_name, expected_value in (
        (decoder_config, "hidden_size", hidden_size),
        (decoder_config, "hidden_size_global", global_config.integer("hidden_size")),
        (decoder_config, "cross_attn_k", vectors_per_patch),
        (encoder_config, "cross_attn_k", vectors_per_patch),
    ):
        if stack_config.integer(field_name) != expected_value:
            raise stack_config.error(
                field_name, stack_config.integer(field_name), f"{expected_value}, as the parts around it have"
            )
    if encoder_config.flag("cross_attn_all_layers") and encoder_config.integer("num_hidden_layers") > 1:
        raise encoder_config.error("cross_attn_all_layers", True, "false: of its layers the last one alone counts")
    window_size = config.optional_integer("local_attention_window_len")
    window_fields = {} if window_size is None else {"sliding_window": window_size}
    splits_by_entropy = config.text("patching_mode") == "entropy" and config.flag("patch_in_forward")
    if splits_by_entropy and config.optional_integer("max_patch_length") is not None:
        raise config.field_error("max_patch_length", "null: it splits patches by the text")
    residual_streams: Table = {
        "type": "byte_patches",
        "patch_size": config.integer("patch_size") if splits_by_entropy else 1,
        "local_size": hidden_size,
        "vectors": vectors_per_patch,
        "projected": vectors_per_patch * hidden_size != global_config.integer("hidden_size"),
        "hash_tables": len(config.integers("encoder_hash_byte_group_size"))
        * config.integer("encoder_hash_byte_group_nb_functions"),
        "hash_vocab_size": config.integer("encoder_hash_byte_group_vocab"),
        "encoder": _llama_layers(encoder_config, window_fields),
        "reads": _cross_attention(encoder_config),
        "decoder": _llama_layers(decoder_config, window_fields),
        "writes": _cross_attention(decoder_config),
        "writes_every_layer": decoder_config.flag("cross_attn_all_layers"),
        "norm": rmsnorm(decoder_config.number("rms_norm_eps")),
    }
    if config.flag("patch_in_forward"):
        patcher_config = config.section("patcher_config", SECTION_DEFAULTS["patcher"])
        patcher_window, vocab_size = patcher_config.optional_integer("sliding_window"), config.integer("vocab_size")
        if patcher_config.integer("vocab_size") < vocab_size:
            raise patcher_config.error(
                "vocab_size", patcher_config.integer("vocab_size"), f"at least {vocab_size}, the model's vocabulary"
            )
        residual_streams["patcher"] = {
            **_llama_layers(patcher_config, {} if patcher_window is None else {"sliding_window": patcher_window}),
            **patcher_config.integer_fields("vocab_size", "hidden_size"),
            "norm": rmsnorm(patcher_config.number("rms_norm_eps")),
        }
        residual_streams["patcher_runs"] = splits_by_entropy
        patcher_config.finish(frozenset(patcher_config.defaults) | DERIVED_FIELDS, config)
    if splits_by_entropy:
        config.notes.append(
            "patch_size: the lengths of a text's patches are not counted, but "
            f"{residual_streams['patch_size']} bytes for each patch"
        )
    config.fields_read.add("patcher_config")
    _check_vocabulary(config, encoder_config)
    stack_fields = _llama_layers(global_config)
    for stack_config in (global_config, encoder_config, decoder_config):
        stack_config.finish(frozenset(stack_config.defaults) | DERIVED_FIELDS, config)
    embedding_fields: Table = (
        {} if hidden_size == global_config.integer("hidden_size") else {"embedding_size": hidden_size}
    )
    stack = {**stack_fields, "streams": residual_streams, **({"input_size": hidden_size} if embedding_fields else {})}
    block = stack.pop("block")
    sized_config = config.with_fields(hidden_size=global_config.integer("hidden_size"))
    model_fields = decoder(sized_config, block, None, stack=stack, **embedding_fields)
    return {**model_fields, "max_position_embeddings": encoder_config.integer("max_position_embeddings")}


def _check_vocabulary(config: Config, encoder_config: Config) -> None:
    """Raises `InputError` if the embedding and the output head have different vocabularies."""
    local_vocab_size, vocab_size = encoder_config.integer("vocab_size"), config.integer("vocab_size")
    if local_vocab_size != vocab_size:
        raise encoder_config.error("vocab_size", local_vocab_size, f"{vocab_size}, the vocabulary of the head")


def _llama_layers(config: Config, attention_fields: Table | None = None) -> Table:
    """Returns Llama's layers. attention_fields: additional fields of their attention."""
    head_count, hidden_size = config.integer("num_attention_heads"), config.integer("hidden_size")
    head_size = config.quotient("num_attention_heads", hidden_size, head_count)
    if config.has("head_dim"):  # its class rotates so many numbers, and projects to head_size
        config.require("head_dim", head_size)
    config.require("dropout", 0, 0.0, None)
    ffn = glu(config, ffn_width=config.optional_integer("intermediate_size") or int(8 * hidden_size / 3))
    block = layer_table(attention(config, **(attention_fields or {})), ffn, rmsnorm(config.number("rms_norm_eps")))
    return {"num_hidden_layers": config.integer("num_hidden_layers"), "block": block}


def _cross_attention(config: Config) -> Table:
    """Returns cross-attention whose norms of queries and keys precede the projections."""
    token_mixer = {name: value for name, value in attention(config).items() if name != "position"}
    return {"attention": token_mixer, "norm": rmsnorm(config.number("rms_norm_eps"))}


SHARED_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-5,
    "dropout": 0.0,
    "hidden_act": "silu",
    "rope_parameters": None,
}
LOCAL_DEFAULTS: dict[str, Any] = {
    **SHARED_DEFAULTS,
    "vocab_size": 260,
    "cross_attn_k": 2,
    "hidden_size_global": 2048,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "max_position_embeddings": 24576,
    "sliding_window": None,
}
DERIVED_FIELDS = frozenset({"encoder_cross_output_size", "tie_word_embeddings"})
"""Fields of the parts that the class computes from other parts' sizes, or saves and does not use."""

SECTION_DEFAULTS: dict[str, dict[str, Any]] = {
    "global": {
        **SHARED_DEFAULTS,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_hidden_layers": 25,
        "max_position_embeddings": 4096,
        "intermediate_size": 5632,
    },
    "encoder": {**LOCAL_DEFAULTS, "cross_attn_all_layers": False, "num_hidden_layers": 1, "intermediate_size": None},
    "decoder": {**LOCAL_DEFAULTS, "cross_attn_all_layers": True, "num_hidden_layers": 9, "intermediate_size": 2816},
    "patcher": {
        **SHARED_DEFAULTS,
        "vocab_size": 260,
        "hidden_size": 768,
        "num_hidden_layers": 14,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
        "intermediate_size": 2048,
        "sliding_window": 512,
    },
}
"""The defaults of the classes of the sections."""

FAMILIES = {
    "blt": Family(
        _read_blt,
        defaults={"encoder_hash_byte_group_size": [3, 4, 5, 6, 7, 8]},
        ignored_fields=frozenset({"max_position_embeddings"}),
        quirks=Quirks(value_reading_classes=EVERY_CLASS, counted_field_values={"use_cache": False}),
    )
}
