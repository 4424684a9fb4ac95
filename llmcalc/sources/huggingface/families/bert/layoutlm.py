"""Encoders of document pages and tables: BERT's layers with additional embeddings.

LayoutLM embeds coordinates on a page, TAPAS columns and rows.

transformers: models/layoutlm, models/tapas.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import EVERY_CLASS, Family, Quirks, module_names
from ...parts import QUESTION_ANSWERING, Table, class_name_of_config, encoder, layernorm, pooler, scores_sequences
from .bert import OLD_FIELDS, SECOND_BIAS, bert_activation, bert_block, bert_head, bert_positions

BOX_COORDINATES = ("x", "y", "h", "w")
"""The coordinates of a word on its page: corners of its box, height and width."""


def _with_embedding_tables(config: Config, embedding_tables: Table, **model_fields: Any) -> Table:
    embedding_norm = layernorm(config.number("layer_norm_eps"))
    stack = {"position": bert_positions(config), "embedding_norm": embedding_norm, "token_types": embedding_tables}
    return encoder(config, bert_block(config), stack, bert_head(config, bert_activation(config)), {}, **model_fields)


def _read_layoutlm(config: Config) -> Table:
    other_vocab_sizes = [config.integer("max_2d_position_embeddings")] * len(BOX_COORDINATES)
    embedding_tables = {"type_vocab_size": config.integer("type_vocab_size"), "other_vocab_sizes": other_vocab_sizes}
    return _with_embedding_tables(config, embedding_tables, **pooler(True))


def _read_tapas(config: Config) -> Table:
    """Reads TAPAS, whose question-answering class scores cells, columns and aggregations."""
    vocab_sizes = config.integers("type_vocab_sizes")
    if not 1 <= len(vocab_sizes) <= 64 or 0 in vocab_sizes:
        raise config.error("type_vocab_sizes", vocab_sizes, "from 1 to 64 positive whole numbers")
    answers_questions = class_name_of_config(config).endswith(QUESTION_ANSWERING)
    aggregation_count = config.count("num_aggregation_labels") if answers_questions else 0
    has_pooler = config.head_kind == "none" or scores_sequences(config) or answers_questions
    embedding_tables = {"other_vocab_sizes": vocab_sizes}
    model_fields = _with_embedding_tables(config, embedding_tables, **pooler(has_pooler, aggregation_count or None))
    if answers_questions:  # cells and columns
        model_fields["head"] = {"type": "classification", "num_labels": 2, "over": "token"}
    return model_fields


FAMILIES = {
    "layoutlm": Family(
        _read_layoutlm,
        ignored_fields=OLD_FIELDS,
        deviations=(SECOND_BIAS,),
        modules={
            **module_names("bert"),
            **{f"embed_other_{i}": f"embeddings.{axis}_position_embeddings" for i, axis in enumerate(BOX_COORDINATES)},
        },
        dropout_fields=BERT_DROPOUT,
    ),
    "tapas": Family(
        _read_tapas,
        ignored_fields=OLD_FIELDS | frozenset({"softmax_temperature", "type_vocab_size"}),
        deviations=(SECOND_BIAS,),
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        modules={
            **module_names("bert"),
            **{f"embed_other_{i}": f"embeddings.token_type_embeddings_{i}" for i in range(7)},
            "pooler.out_proj": "aggregation_classifier",
        },
        dropout_fields=BERT_DROPOUT,
    ),
}
