"""T5Gemma: an encoder and a decoder of Gemma 2's layers, with separate token embeddings.

transformers: models/t5gemma, models/t5gemma2. Without `is_encoder_decoder` it is the encoder alone. T5Gemma 2 has Gemma
    3's layers, one attention over the decoder's own tokens and the encoder's output, and a vision encoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .....components.mixers.attention import Attention
from ...absent_value import require_present
from ...config import Config
from ...dropout import T5_DROPOUT
from ...family import CLASSIFIER_ENDINGS, Family, Quirks, field_names
from ...parts import (
    QKVO_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    bidirectional_stack,
    class_name_of_config,
    glu,
    head_table,
    kinds_with_nth_full,
    layer_table,
    offset_rmsnorm,
    qk_norm_fields,
    rope,
    sliding_stack,
)
from .gemma import local_theta, score_cap_fields

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _read_stack_config(config: Config, section_name: str, has_cross_attention: bool = False) -> tuple[Config, Table]:
    """Returns config and stack of the encoder or decoder; for a missing section with the class's defaults."""
    stack_config = config.section(section_name, STACK_DEFAULTS)
    norm = offset_rmsnorm(stack_config.number("rms_norm_eps"))
    attention_table = attention(stack_config, **score_cap_fields(stack_config), **attention_biases(stack_config))
    block: Table = layer_table(
        attention_table, glu(stack_config, activation_field="hidden_activation"), norm, "sandwich"
    )
    if has_cross_attention:
        block["cross_attention"] = {name: value for name, value in attention_table.items() if name != "position"}
    depth = stack_config.integer("num_hidden_layers")
    stack_fields: Table = {
        "num_hidden_layers": depth,
        "block": block,
        "final_norm": norm,
        **sliding_stack(stack_config, kinds_with_nth_full(depth, 2)),
    }
    stack_fields = stack_fields if has_cross_attention else bidirectional_stack(stack_fields, lambda window: window)
    stack_config.finish(SECTION_IGNORED_FIELDS, config)
    return stack_config, stack_fields


def _read_t5gemma(config: Config) -> Table:
    encoder_config, encoder = _read_stack_config(config, "encoder")
    if not config.flag("is_encoder_decoder"):
        class_name = class_name_of_config(config)
        if class_name in ("T5GemmaForConditionalGeneration", "T5GemmaModel"):
            raise config.error("is_encoder_decoder", False, f"true, as {class_name} has both stacks")
        model_sizes = encoder_config.integer_fields("vocab_size", "hidden_size")
        config.fields_read.update(("decoder", "tie_word_embeddings"))
        head_fields = _token_classifier(config) if config.head_kind == "classification" else {"type": "none"}
        return {**model_sizes, "tie_word_embeddings": False, "encoder": encoder, "head": head_fields}
    decoder_config, decoder = _read_stack_config(config, "decoder", has_cross_attention=True)
    hidden_size, vocab_size = encoder_config.integer("hidden_size"), encoder_config.integer("vocab_size")
    encoder |= {
        "vocab_size": vocab_size,
        **({} if hidden_size == decoder_config.integer("hidden_size") else {"hidden_size": hidden_size}),
    }
    model_sizes = decoder_config.integer_fields("vocab_size", "hidden_size", "max_position_embeddings")
    return {
        **model_sizes,
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
        "encoder": encoder,
        "decoder": decoder,
        "head": _token_classifier(config),
    }


def _read_t5gemma2(config: Config) -> Table:
    config.require("is_encoder_decoder", True)
    encoder_wrapper = config.section("encoder", {"text_config": None})
    encoder_config = encoder_wrapper.section("text_config", TEXT_DEFAULTS)
    decoder_config = config.section("decoder", TEXT_DEFAULTS)
    for field_name in ("hidden_size", "vocab_size"):
        if encoder_config.integer(field_name) != decoder_config.integer(field_name):
            raise decoder_config.error(
                field_name,
                decoder_config.integer(field_name),
                f"{encoder_config.integer(field_name)}, which is the encoder's",
            )
    is_tied, hidden_size = config.flag("tie_word_embeddings"), decoder_config.integer("hidden_size")
    encoder = _stack_fields(encoder_config)
    decoder = _stack_fields(decoder_config, has_merged_attention=True)
    from ...towers import read_towers

    root_config = {**encoder_wrapper.config_fields, "tie_word_embeddings": is_tied}
    towers, notes = read_towers("t5gemma2", FAMILIES["t5gemma2"], root_config, hidden_size, {})
    for section_config, ignored_fields in (
        (encoder_wrapper, IMAGE_FIELDS),
        (encoder_config, SECTION_IGNORED_FIELDS),
        (decoder_config, SECTION_IGNORED_FIELDS),
    ):
        section_config.finish(ignored_fields, config)
    config.notes += notes
    model_sizes = decoder_config.integer_fields("vocab_size", "hidden_size", "max_position_embeddings")
    model_fields: Table = {
        **model_sizes,
        "tie_word_embeddings": is_tied,
        "encoder": encoder,
        "decoder": decoder,
        "head": _token_classifier(config),
    }
    if not is_tied:
        encoder["vocab_size"] = encoder_config.integer("vocab_size")
    return {**model_fields, "towers": towers} if towers else model_fields


def _stack_fields(config: Config, has_merged_attention: bool = False) -> Table:
    """Returns the table of the encoder's or the decoder's stack.

    has_merged_attention: whether attention also covers the encoder's output.
    """
    norm = offset_rmsnorm(config.number("rms_norm_eps"))
    depth = config.integer("num_hidden_layers")
    has_bias = config.flag("attention_bias")
    position_field = {"position": {"rope_theta": 1_000_000.0, **rope(config, layer_kind="full_attention")}}
    if has_merged_attention:
        head_fields = config.integer_fields("num_attention_heads", "num_key_value_heads", "head_dim")
        token_mixer: Table = {
            "type": "merged",
            **head_fields,
            "attention_bias": has_bias,
            "norm": norm,
            **position_field,
            **score_cap_fields(config),
        }
    else:
        token_mixer = attention(
            config,
            **position_field,
            **score_cap_fields(config),
            **qk_norm_fields(norm),
            **biases(has_bias, *QKVO_BIASES),
        )
    block: Table = layer_table(token_mixer, glu(config, activation_field="hidden_activation"), norm, "sandwich")
    layer_kinds = kinds_with_nth_full(depth, config.optional_integer("sliding_window_pattern") or 6)
    local_attention_fields = {"position": {"rope_theta": local_theta(config)}}
    return {
        "num_hidden_layers": depth,
        "block": block,
        "final_norm": norm,
        **sliding_stack(config, layer_kinds, sliding_fields=local_attention_fields),
    }


def _token_classifier(config: Config) -> Table:
    """Returns a classifier that scores every token, with a bias."""
    return head_table(config, None, {"over": "token"})


STACK_DEFAULTS: dict[str, Any] = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "sliding_window": 4096,
    "layer_types": None,
    "attn_logit_softcapping": 50.0,
}
"""Defaults of the config sections of T5Gemma's encoder and decoder."""

IGNORED_FIELDS = field_names("""
    query_pre_attn_scalar final_logit_softcapping cache_implementation hidden_act vocab_size hidden_size
    max_position_embeddings
    """)
SECTION_IGNORED_FIELDS = IGNORED_FIELDS | {"dropout_rate", "tie_word_embeddings"}
"""Ignored fields of a section; the class uses the whole model's dropout and weight tying for encoder and decoder."""

TEXT_DEFAULTS: dict[str, Any] = {
    **STACK_DEFAULTS,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "attn_logit_softcapping": None,
    "sliding_window_pattern": 6,
}
IMAGE_FIELDS = field_names("""
    boi_token_index boi_token_id eoi_token_index eoi_token_id image_token_index image_token_id mm_tokens_per_image
    vision_config text_config tie_word_embeddings
    """)


def _stack_config(model_values: ConfigValues, stack_name: str) -> dict[str, Any]:
    """Returns the config of the encoder or of the decoder for a model's description."""
    stack = require_present(getattr(model_values.spec, stack_name))
    stack_values = model_values.of_spec(model_values.spec.model_copy(update={"encoder": None, "decoder": stack}))
    field_names = (
        "num_hidden_layers",
        "intermediate_size",
        "head_dim",
        "num_key_value_heads",
        "layer_types",
        "rms_norm_eps",
    )
    field_values = {field_name: stack_values.usual_value(field_name) for field_name in field_names}
    token_mixer, context_length = stack_values.find_part(Attention), model_values.spec.max_position_embeddings
    field_values |= {
        "hidden_activation": stack_values.usual_value("hidden_act"),
        "attention_bias": token_mixer.q_bias,
        "attn_logit_softcapping": token_mixer.attn_logit_softcapping,
    }
    field_values |= {} if stack_values.window is None else {"sliding_window": stack_values.window}
    field_values |= {} if context_length is None else {"max_position_embeddings": context_length}
    vocab_size = stack.vocab_size or model_values.spec.vocab_size
    model_sizes = {"vocab_size": vocab_size, "hidden_size": stack.hidden_size or model_values.spec.hidden_size}
    return {
        **model_sizes,
        "num_attention_heads": token_mixer.num_attention_heads,
        **field_values,
        "rope_theta": stack_values.rotary_position.rope_theta,
    }


FAMILIES = {
    "t5gemma": Family(
        _read_t5gemma,
        ignored_fields=IGNORED_FIELDS,
        field_writers={
            "encoder": lambda s: _stack_config(s, "encoder"),
            "decoder": lambda s: _stack_config(s, "decoder"),
            "is_encoder_decoder": lambda s: s.spec.kind == "encoder-decoder",
        },
        quirks=Quirks(
            CLASSIFIER_ENDINGS, ("ForConditionalGeneration", "GemmaModel", "EncoderModel"), CLASSIFIER_ENDINGS
        ),
        dropout_fields={**T5_DROPOUT, "attention": "attention_dropout"},
    ),
    "t5gemma2": Family(
        _read_t5gemma2,
        ignored_fields=IGNORED_FIELDS,
        quirks=Quirks(value_reading_classes=CLASSIFIER_ENDINGS, cache_refusing_classes=CLASSIFIER_ENDINGS),
        tower_file="siglip",
        dropout_fields={**T5_DROPOUT, "attention": "attention_dropout"},
    ),
}
