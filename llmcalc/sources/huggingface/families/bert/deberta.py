"""DeBERTa, versions 1 to 3: deberta, deberta-v2.

transformers: models/deberta, models/deberta_v2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...absent_value import AbsentValue, require_present
from ...config import Config, is_json_integer
from ...dropout import BERT_DROPOUT
from ...family import EVERY_CLASS, Family, Quirks
from ...field_writers import FieldWriter, FieldWriters
from ...parts import ACTIVATIONS, Table, encoder, layernorm, token_types
from .bert import OLD_FIELDS, SECOND_BIAS, bert_activation, bert_block, bert_head, bert_positions, bert_score_head

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _read_deberta(config: Config) -> Table:
    """Reads DeBERTa 1: keys have no bias, and the position embedding has a row per distance.

    Only the distances in the sequence are projected.
    """
    config.require("talking_head", None, False)
    block, largest_distance = bert_block(config), _largest_distance(config)
    block["attention"].pop("k_bias")
    position_encoding = {"max_relative_positions": largest_distance, "key_bias": False, "within_sequence": True}
    return _deberta_model(config, block, largest_distance, position_encoding, None)


def _read_deberta_v2(config: Config) -> Table:
    block, largest_distance = bert_block(config), _largest_distance(config)
    if config.has("attention_head_size") and config.integer("attention_head_size") * config.integer(
        "num_attention_heads"
    ) != config.integer("hidden_size"):
        raise config.field_error("attention_head_size", "hidden_size / num_attention_heads")
    bucket_count = config.get("position_buckets")
    bucket_fields = {"position_buckets": bucket_count} if is_json_integer(bucket_count) and bucket_count > 0 else {}
    norm = layernorm(config.number("layer_norm_eps")) if "layer_norm" in _listed_names(config, "norm_rel_ebd") else None
    share_att_key = config.get("share_att_key") is True
    position_encoding: Table = {
        "max_relative_positions": largest_distance,
        **bucket_fields,
        "share_att_key": share_att_key,
    }
    position_buckets = bucket_fields.get("position_buckets", largest_distance)
    return _deberta_model(config, block, position_buckets, position_encoding, norm, _side_convolution(config))


def _side_convolution(config: Config) -> Table:
    """Returns DeBERTa 2's convolution parallel to the first layer; empty if the model has none."""
    if not config.has("conv_kernel_size") or config.count("conv_kernel_size") == 0:
        return {}
    norm = layernorm(config.number("layer_norm_eps"))
    conv_act = config.choice(ACTIVATIONS, "conv_act")
    convolution_fields = {**config.integer_fields("conv_kernel_size", "conv_groups"), "conv_act": conv_act}
    return {"side_convolution": {**convolution_fields, "norm": norm}}


def _deberta_model(
    config: Config,
    block: Table,
    largest_distance: int,
    position_encoding: Table,
    norm: Table | None,
    stack_fields: Table | None = None,
) -> Table:
    config.require("embedding_size", None, config.integer("hidden_size"))
    if config.has("pooler_hidden_size") and config.integer("pooler_hidden_size") != config.integer("hidden_size"):
        raise config.field_error("pooler_hidden_size", "hidden_size")
    block["attention"]["float32_softmax"] = False
    encoder_fields: Table = {"embedding_norm": layernorm(config.number("layer_norm_eps")), **(stack_fields or {})}
    if config.flag("position_biased_input"):
        encoder_fields["position"] = bert_positions(config)
    encoder_fields |= token_types(config.count("type_vocab_size"))
    if norm is not None and not config.flag("relative_attention"):
        raise config.field_error("norm_rel_ebd", "none without relative_attention")
    if config.flag("relative_attention"):
        encoder_fields["relative_embedding"] = {"span": largest_distance, **({"norm": norm} if norm else {})}
        position_terms = _listed_names(config, "pos_att_type")
        if set(position_terms) - {"c2p", "p2c"}:
            raise config.field_error("pos_att_type", "c2p, p2c or both")
        if position_encoding.get("share_att_key") and len({*position_terms}) < 2:
            raise config.field_error("pos_att_type", "c2p and p2c, where share_att_key is true")
        if position_terms or position_encoding.get("share_att_key"):
            block["attention"]["position"] = {
                "type": "disentangled",
                **position_encoding,
                "c2p": "c2p" in position_terms,
                "p2c": "p2c" in position_terms,
            }
    model_fields: Table = (
        {} if config.flag("legacy") else {"tie_word_embeddings": True}
    )  # the newer head always uses the embedding as its output projection
    position_biased_input = config.flag("position_biased_input")
    model_fields |= (
        {} if position_biased_input else {"max_position_embeddings": config.integer("max_position_embeddings")}
    )
    head_fields = bert_head(config, bert_activation(config))
    return encoder(config, block, encoder_fields, head_fields, bert_score_head("gelu"), **model_fields)


def _largest_distance(config: Config) -> int:
    """Returns the largest relative distance that has a separate embedding."""
    max_distance = config.get("max_relative_positions")
    if is_json_integer(max_distance) and max_distance > 0:
        return max_distance
    return config.integer("max_position_embeddings")


def _listed_names(config: Config, field_name: str) -> list[str]:
    """Reads a list of strings, or a string of names separated by bars."""
    stated_names = config.get(field_name)
    if stated_names is None:
        return []
    if isinstance(stated_names, str):
        listed_names = [position_part.strip() for position_part in stated_names.lower().split("|")]
    else:
        listed_names = config.texts(field_name)
    return [listed_name for listed_name in listed_names if listed_name not in ("", "none")]


IGNORED_FIELDS = OLD_FIELDS | {
    "conv_act",
    "conv_groups",
    "cls_dropout",
    "model_name",
    "padding_idx",
    "z_steps",
    "cls_token_id",
}


def _disentangled_position(model_values: ConfigValues) -> Any:
    return model_values.part_of_type("disentangled")


def _position_terms(model_values: ConfigValues) -> list[str]:
    try:
        disentangled_scores = _disentangled_position(model_values)
    except AbsentValue:
        return []
    return [score_term for score_term in ("c2p", "p2c") if getattr(disentangled_scores, score_term)]


def _side_convolution_field(field_name: str) -> FieldWriter:
    return lambda model_values: getattr(require_present(model_values.first_stack.side_convolution), field_name)


DEBERTA_WRITERS: FieldWriters = {
    "relative_attention": lambda s: s.first_stack.relative_embedding is not None,
    "position_biased_input": lambda s: s.first_stack.position is not None,
    "max_relative_positions": lambda s: _disentangled_position(s).max_relative_positions,
    "pos_att_type": _position_terms,
}


FAMILIES = {
    "deberta": Family(
        _read_deberta,
        {"embedding_size": None, "talking_head": None},
        IGNORED_FIELDS,
        field_writers=DEBERTA_WRITERS,
        deviations=(SECOND_BIAS,),
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        dropout_fields=BERT_DROPOUT,
    ),
    "deberta-v2": Family(
        _read_deberta_v2,
        {
            "embedding_size": None,
            "position_buckets": None,
            "norm_rel_ebd": None,
            "share_att_key": None,
            "attention_head_size": None,
            "conv_kernel_size": None,
            "conv_groups": 1,
            "conv_act": "tanh",
        },
        IGNORED_FIELDS,
        field_writers={
            **DEBERTA_WRITERS,
            "position_buckets": lambda s: _disentangled_position(s).position_buckets or -1,
            "share_att_key": lambda s: _disentangled_position(s).share_att_key,
            "norm_rel_ebd": lambda s: (
                "none" if require_present(s.first_stack.relative_embedding).norm is None else "layer_norm"
            ),
            **{field: _side_convolution_field(field) for field in ("conv_kernel_size", "conv_groups", "conv_act")},
        },
        deviations=(SECOND_BIAS,),
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        dropout_fields=BERT_DROPOUT,
    ),
}
