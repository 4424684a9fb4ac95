"""DPR's encoders of questions and passages: BERT without a pooler, read at the first token.

Karpukhin et al. 2020 (arXiv:2004.04906). transformers: models/dpr.
"""

from __future__ import annotations

from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import EVERY_CLASS, Family, Quirks, module_names
from ...parts import Table, class_name_of_config, encoder, layernorm, token_types
from .bert import OLD_FIELDS, bert_activation, bert_block, bert_head, bert_positions

READER_CLASS = "DPRReader"

NODES_OUTSIDE_LAYERS = ("layers", "embed_tokens", "embed_positions", "embed_types", "embed_norm")
"""Nodes outside of the layers, which are in BERT's module, a submodule of the encoder's module in the class."""


def _read_dpr(config: Config) -> Table:
    """Reads a DPR encoder. DPR's reader, which scores answers, is another class."""
    if class_name_of_config(config) == READER_CLASS:
        raise config.error(
            "architectures", READER_CLASS, "DPRQuestionEncoder or DPRContextEncoder, the encoders of texts"
        )
    config.require("projection_dim", 0)
    config.head_kind = "none"
    stack_fields = {
        "position": bert_positions(config),
        "embedding_norm": layernorm(config.number("layer_norm_eps")),
        **token_types(config.count("type_vocab_size")),
    }
    return encoder(config, bert_block(config), stack_fields, bert_head(config, bert_activation(config)), {})


FAMILIES = {
    "dpr": Family(
        _read_dpr,
        {"tie_word_embeddings": True},
        OLD_FIELDS,
        modules={
            **module_names("bert"),
            **{node_name: f"bert_model.{module_names('bert')[node_name]}" for node_name in NODES_OUTSIDE_LAYERS},
        },
        quirks=Quirks(mask_making_classes=EVERY_CLASS),
        dropout_fields=BERT_DROPOUT,
    )
}
