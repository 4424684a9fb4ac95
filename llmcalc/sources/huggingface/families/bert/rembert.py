"""BERT variants with other embeddings, positions or heads: bert-generation, rembert, roformer.

transformers: models/bert_generation, models/rembert, models/roformer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .....components.mixers.attention import Attention
from ...absent_value import require_present
from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import EVERY_CLASS, Deviation, Family, Quirks, field_names, module_names
from ...parts import MULTIPLE_CHOICE, QUESTION_ANSWERING, Table, class_name_of_config, encoder, pooler, scores_sequences
from .bert import OLD_FIELDS, SECOND_BIAS, bert_activation, bert_block, bert_head, bert_score_head, bert_stack

if TYPE_CHECKING:
    from .....algebra import Number
    from .....model import ModelSpec


def _read_bert_generation(config: Config) -> Table:
    """Reads BERT generation: a plain output projection, and no segment embedding."""
    stack_fields = bert_stack(config)
    stack_fields.pop("token_types", None)  # its configs may have segments
    return encoder(config, bert_block(config), stack_fields, {"bias": True})


def _read_rembert(config: Config) -> Table:
    """Reads RemBERT, whose input embedding is narrower than the output embedding and never tied."""
    embedding_width = config.integer("input_embedding_size")
    config.fields_read.add("tie_word_embeddings")
    head_fields = bert_head(config, bert_activation(config))
    head_fields["transform"]["size"] = config.integer("output_embedding_size")
    is_present = config.head_kind == "none" or scores_sequences(config)
    model_fields: Table = {"embedding_size": embedding_width, "tie_word_embeddings": False, **pooler(is_present)}
    stack_fields = {**bert_stack(config), "input_size": embedding_width}
    return encoder(config, bert_block(config), stack_fields, head_fields, {}, **model_fields)


def _read_roformer(config: Config) -> Table:
    """Reads RoFormer: rotary positions, whose sines and cosines are stored in a table of the class."""
    if class_name_of_config(config).endswith(MULTIPLE_CHOICE):
        config.require("summary_use_proj", None, False)
    block, stack_fields, embedding_width = (
        bert_block(config),
        bert_stack(config),
        config.optional_integer("embedding_size"),
    )
    block["attention"]["position"] = {"type": "rope"}
    del stack_fields["position"]
    model_fields: Table = {"max_position_embeddings": config.integer("max_position_embeddings")}
    if embedding_width not in (None, config.integer("hidden_size")):
        model_fields["embedding_size"] = stack_fields["input_size"] = embedding_width
    if class_name_of_config(config).endswith(QUESTION_ANSWERING):  # start and end scores, whatever num_labels is
        model_fields["head"] = {"type": "classification", "num_labels": 2, "over": "token"}
    score_head = (
        {} if class_name_of_config(config).endswith(MULTIPLE_CHOICE) else bert_score_head(bert_activation(config))
    )
    return encoder(config, block, stack_fields, bert_head(config, bert_activation(config)), score_head, **model_fields)


def _sinusoid_elements(spec: ModelSpec) -> Number:
    """Returns the number of elements of the sine and cosine table: a row of a head's width per position."""
    token_mixer = spec.main.block.attention
    if isinstance(token_mixer, Attention) and spec.max_position_embeddings:
        return spec.max_position_embeddings * token_mixer.sizes(spec.hidden_size)[2]
    return 0


HOLDS_SINES = Deviation(
    "RoFormer's sines",
    "the sines and cosines of RoPE are a frozen table among its parameters",
    "parameters",
    further_quantity=_sinusoid_elements,
)

MASK_QUIRKS = Quirks(value_reading_classes=("ForMultipleChoice",), mask_making_classes=EVERY_CLASS)


FAMILIES = {
    "bert-generation": Family(
        _read_bert_generation,
        {"type_vocab_size": 2},
        OLD_FIELDS,
        deviations=(SECOND_BIAS,),
        modules={**module_names("bert"), "lm_head": "lm_head.decoder + lm_head.bias"},
        dropout_fields=BERT_DROPOUT,
    ),
    "rembert": Family(
        _read_rembert,
        ignored_fields=OLD_FIELDS | {"embedding_size"},
        field_writers={
            "input_embedding_size": lambda s: s.spec.embedding_size,
            "output_embedding_size": lambda s: require_present(s.head.transform).size,
        },
        quirks=MASK_QUIRKS,
        dropout_fields=BERT_DROPOUT,
    ),
    "roformer": Family(
        _read_roformer,
        {"summary_use_proj": None},
        OLD_FIELDS
        | field_names("""
            summary_activation summary_first_dropout summary_last_dropout summary_proj_to_labels summary_type
            summary_use_proj
            """),
        quirks=MASK_QUIRKS,
        deviations=(SECOND_BIAS, HOLDS_SINES),
        modules={**module_names("bert"), "input_proj": "embeddings_project"},
        dropout_fields=BERT_DROPOUT,
    ),
}
