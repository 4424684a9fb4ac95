"""RoCBERT: BERT with additional embeddings of each character's shape and pronunciation.

Su et al. 2022 (ACL, "RoCBert: Robust Chinese Bert with Multimodal Contrastive Pretraining"). transformers:
models/roc_bert.
"""

from __future__ import annotations

from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import Family
from ...field_writers import FieldWriters
from ...parts import Table
from .bert import OLD_FIELDS, SECOND_BIAS, has_pretraining_head, read_bert

CHARACTER_FEATURES = ("shape", "pronunciation")


def _read_roc_bert(config: Config) -> Table:
    config.require("concat_input", True)
    model_fields = read_bert(config)
    for feature_name in CHARACTER_FEATURES:
        config.require(f"enable_{feature_name}", True)
    if has_pretraining_head(config):  # the head of masked tokens alone, beside the pooler
        model_fields["pooler"] = {"dense": True}
    stack_fields = model_fields["encoder"] if "encoder" in model_fields else model_fields["decoder"]
    stack_fields["input_features"] = {
        "vocab_sizes": [config.integer(f"{feature_name}_vocab_size") for feature_name in CHARACTER_FEATURES],
        "embedding_sizes": [config.integer(f"{feature_name}_embed_dim") for feature_name in CHARACTER_FEATURES],
    }
    return model_fields


def _feature_value_writer(feature_index: int, feature_name: str) -> FieldWriters:
    return {
        f"{feature_name}_vocab_size": lambda s: s.first_stack.input_features.vocab_sizes[feature_index],
        f"{feature_name}_embed_dim": lambda s: s.first_stack.input_features.embedding_sizes[feature_index],
    }


FAMILIES = {
    "roc_bert": Family(
        _read_roc_bert,
        ignored_fields=OLD_FIELDS,
        field_writers={**_feature_value_writer(0, "shape"), **_feature_value_writer(1, "pronunciation")},
        deviations=(SECOND_BIAS,),
        dropout_fields=BERT_DROPOUT,
    )
}
