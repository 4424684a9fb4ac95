"""Encoders of document pages and tables: BERT's layers with additional embeddings.

LayoutLM embeds coordinates on a page, TAPAS columns and rows. LayoutLMv3 (Huang et al. 2022, arXiv:2204.08387) has
biases by distances in the text and on the page too, and reads the patches of the page's image behind the words.

transformers: models/layoutlm, models/layoutlmv3, models/tapas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...absent_value import require_present
from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import EVERY_CLASS, Family, Quirks, module_names
from ...parts import (
    QUESTION_ANSWERING,
    TOKEN_CLASSIFIER,
    Table,
    class_count,
    class_name_of_config,
    encoder,
    layernorm,
    pooler,
    scores_sequences,
)
from .bert import (
    OLD_FIELDS,
    ROBERTA_WRITERS,
    SECOND_BIAS,
    bert_activation,
    bert_block,
    bert_head,
    bert_positions,
    bert_score_head,
    bert_stack,
    padded_positions,
)

if TYPE_CHECKING:
    from .....components.token_types import Boxes
    from ....to_hf.config_values import ConfigValues

BOX_COORDINATES = ("x", "y", "h", "w")
"""The coordinates of a word on its page: corners of its box, height and width."""


def _with_embedding_tables(config: Config, embedding_tables: Table, **model_fields: Any) -> Table:
    embedding_norm = layernorm(config.number("layer_norm_eps"))
    stack_fields = {
        "position": bert_positions(config),
        "embedding_norm": embedding_norm,
        "token_types": embedding_tables,
    }
    return encoder(
        config, bert_block(config), stack_fields, bert_head(config, bert_activation(config)), {}, **model_fields
    )


def _read_layoutlm(config: Config) -> Table:
    other_vocab_sizes = [config.integer("max_2d_position_embeddings")] * len(BOX_COORDINATES)
    embedding_tables = {"type_vocab_size": config.integer("type_vocab_size"), "other_vocab_sizes": other_vocab_sizes}
    return _with_embedding_tables(config, embedding_tables, **pooler(True))


LARGEST_PLAIN_LABEL_COUNT = 9
"""The largest number of labels for which LayoutLMv3's token classifier has one linear layer; for more it has two."""


def _read_layoutlmv3(config: Config) -> Table:
    """Reads LayoutLMv3 without its image; the table `towers` has the embeddings of image patches."""
    config.require("text_embed", True)
    box_sizes = config.integer_fields("coordinate_size", "shape_size")
    hidden_size = config.integer("hidden_size")
    if 4 * box_sizes["coordinate_size"] + 2 * box_sizes["shape_size"] != hidden_size:
        raise config.field_error("coordinate_size", f"4 · coordinate_size + 2 · shape_size = hidden_size {hidden_size}")
    stack_fields = bert_stack(config, padded_positions(config))
    boxes = {"num_positions": config.integer("max_2d_position_embeddings"), **box_sizes}
    stack_fields["token_types"] = {**stack_fields.get("token_types", {}), "boxes": boxes}
    has_page_bias = config.flag("has_spatial_attention_bias")
    if config.flag("has_relative_attention_bias"):
        stack_fields["relative_bias"] = {
            "num_attention_heads": config.integer("num_attention_heads"),
            "relative_attention_num_buckets": config.integer("rel_pos_bins"),
            "relative_attention_max_distance": config.integer("max_rel_pos"),
            "other_buckets": [config.integer("rel_2d_pos_bins")] * (2 * has_page_bias),
        }
    elif has_page_bias:
        raise config.field_error("has_relative_attention_bias", "true: its class adds no bias of the page alone")
    score_head, class_name = bert_score_head("tanh"), class_name_of_config(config)
    if config.head_kind == "lm":
        if class_name:
            raise config.error("architectures", class_name, "LayoutLMv3Model, or its class with a classifier")
        config.head_kind = "none"
    model_fields = encoder(config, bert_block(config), stack_fields, {}, score_head)
    has_two_layers = class_count(config) > LARGEST_PLAIN_LABEL_COUNT
    if class_name.endswith(QUESTION_ANSWERING) or (class_name.endswith(TOKEN_CLASSIFIER) and has_two_layers):
        model_fields["head"] |= score_head
    if config.flag("visual_embed"):
        config.notes.append(
            "input_size: the patches of a page's image, read behind the words, are not counted in passes"
        )
    return model_fields


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


def _boxes(model_values: ConfigValues) -> Boxes:
    return require_present(require_present(model_values.first_stack.token_types).boxes)


def _page_buckets(model_values: ConfigValues) -> tuple[int, ...]:
    """Returns the bucket counts of the biases for distances between positions on the page."""
    relative_bias = model_values.first_stack.relative_bias
    return () if relative_bias is None else relative_bias.other_buckets


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
    "layoutlmv3": Family(
        _read_layoutlmv3,
        {"tie_word_embeddings": False},
        ignored_fields=OLD_FIELDS | {"max_rel_2d_pos", "second_input_size"},
        tower_class_prefixes="LayoutLMv3",
        tower_file="layoutlm",
        quirks=Quirks(mask_making_classes=EVERY_CLASS),
        field_writers={
            **ROBERTA_WRITERS,
            "max_2d_position_embeddings": lambda s: _boxes(s).num_positions,
            "coordinate_size": lambda s: _boxes(s).coordinate_size,
            "shape_size": lambda s: _boxes(s).shape_size,
            "has_relative_attention_bias": lambda s: s.first_stack.relative_bias is not None,
            "has_spatial_attention_bias": lambda s: bool(_page_buckets(s)),
            "rel_2d_pos_bins": lambda s: _page_buckets(s)[0] if _page_buckets(s) else None,
        },
        modules={
            **module_names("roberta"),
            **{f"box_{name}": f"embeddings.{name[0]}_position_embeddings" for name in ("x", "y", "height", "width")},
            "relative_bias": " + ".join(f"encoder.rel_pos_{axis}bias" for axis in ("", "x_", "y_"))
            + " | encoder.rel_pos_bias",
            "relative_bias.other_0": ".encoder.rel_pos_x_bias",
            "relative_bias.other_1": ".encoder.rel_pos_y_bias",
            "towers.vision_embeddings": "patch_embed + cls_token + pos_embed + norm + LayerNorm",
            "towers.patch_embedding": ".patch_embed.proj",
            "towers.class_embedding": ".cls_token",
            "towers.position_embedding": ".pos_embed",
            "towers.out_norm_0": ".norm",
            "towers.out_norm_1": ".LayerNorm",
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
