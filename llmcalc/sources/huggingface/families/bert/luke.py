"""LUKE: RoBERTa with embeddings of named entities in addition to the words.

Yamada et al. 2020 (arXiv:2010.01057). Plain text has no entities, so their tables, their head, and the projections of
queries between words and entities are parameters that do not run. The head of words has a weight of its own.
transformers: models/luke.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...absent_value import require_present
from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import EVERY_CLASS, Deviation, Family, Quirks
from ...field_writers import FieldWriters
from ...parts import QUESTION_ANSWERING, TOKEN_CLASSIFIER, Table, class_name_of_config, encoder, layernorm, pooler
from .bert import OLD_FIELDS, ROBERTA_WRITERS, bert_block, bert_head, bert_stack, padded_positions

if TYPE_CHECKING:
    from .....model import ModelSpec

ENTITY_AWARE_PROJECTIONS = ("word_entity_proj", "entity_word_proj", "entity_entity_proj")
"""Query projections for pairs with an entity: word to entity, entity to word, entity to entity."""

ENTITY_CLASS_ENDINGS = ("ForEntityClassification", "ForEntityPairClassification", "ForEntitySpanClassification")


def _read_luke(config: Config) -> Table:
    class_name = class_name_of_config(config)
    if class_name.endswith(ENTITY_CLASS_ENDINGS):
        raise config.error(
            "architectures", class_name, "a class that reads text without entities, such as LukeForMaskedLM"
        )
    block, norm = bert_block(config), layernorm(config.number("layer_norm_eps"))
    if config.flag("use_entity_aware_attention"):
        block["attention"]["idle_projections"] = ENTITY_AWARE_PROJECTIONS
    entity_width, is_tied = config.integer("entity_emb_size"), config.flag("tie_word_embeddings")
    entities_table: Table = {
        **config.integer_fields("entity_vocab_size", "max_position_embeddings", "type_vocab_size"),
        "norm": norm,
        **({} if entity_width == config.integer("hidden_size") else {"entity_emb_size": entity_width}),
    }
    if config.head_kind == "lm":
        entities_table["prediction"] = "tied" if is_tied else "own"
    config.notes.append(
        "entities: their parameters are counted; their products are not counted, as plain text has none"
    )
    stack_fields = {**bert_stack(config, padded_positions(config)), "entities": entities_table}
    has_pooler = not class_name.endswith((TOKEN_CLASSIFIER, QUESTION_ANSWERING))
    head_fields = bert_head(config, "gelu")
    return encoder(config, block, stack_fields, head_fields, {}, **pooler(has_pooler), tie_word_embeddings=False)


def _has_second_bias(spec: ModelSpec) -> bool:
    entities_table = spec.main.entities
    return entities_table is not None and entities_table.prediction == "own"


SECOND_BIAS = Deviation(
    "LUKE's untied head",
    "its output projection has a second, unused bias; tying merges the two",
    "parameters",
    applies_to=_has_second_bias,
    further_quantity=lambda spec: spec.vocab_size,
    node_path="lm_head.decoder",
)

FIELD_WRITERS: FieldWriters = {
    **ROBERTA_WRITERS,
    "entity_vocab_size": lambda s: require_present(s.first_stack.entities).entity_vocab_size,
    "entity_emb_size": lambda s: require_present(s.first_stack.entities).entity_emb_size or s.spec.hidden_size,
    "use_entity_aware_attention": lambda s: bool(s.first_stack.block.attention.idle_projections),
    "tie_word_embeddings": lambda s: require_present(s.first_stack.entities).prediction != "own",
}

FAMILIES = {
    "luke": Family(
        _read_luke,
        ignored_fields=OLD_FIELDS | {"bert_model_name", "cls_entity_prediction"},
        field_writers=FIELD_WRITERS,
        deviations=(SECOND_BIAS,),
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        dropout_fields=BERT_DROPOUT,
    )
}
