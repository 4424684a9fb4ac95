"""MobileBERT: narrow layers with several networks each, and a projection of three neighbouring embeddings.

Sun et al. 2020 (arXiv:2004.02984). transformers: models/mobilebert.
"""

from __future__ import annotations

from dataclasses import replace

from ...config import Config
from ...field_writers import FieldWriters
from ...parts import QKVO_BIASES, Table, biases, encoder, layernorm, mlp, pooler, scores_sequences, token_types
from .bert import BERT, bert_activation, bert_head, bert_positions, has_pretraining_head


def _read_mobilebert(config: Config) -> Table:
    config.require_fields(use_bottleneck=True, use_bottleneck_attention=False, key_query_shared_bottleneck=True)
    hidden_size = config.integer("hidden_size")
    bottleneck_width = config.integer("intra_bottleneck_size")
    config.require_if_present("true_hidden_size", bottleneck_width)
    head_count = config.integer("num_attention_heads")
    norm_tables = {"no_norm": {"type": "affine"}, "layer_norm": layernorm(config.number("layer_norm_eps"))}
    norm, embedding_size = config.choice(norm_tables, "normalization_type"), config.integer("embedding_size")
    if embedding_size > hidden_size:
        raise config.error("embedding_size", embedding_size, f"at most hidden_size ({hidden_size})")
    head_dim = config.quotient("num_attention_heads", bottleneck_width, head_count)
    block = {
        "type": "bottleneck",
        "attention": {"num_attention_heads": head_count, "head_dim": head_dim, **biases(True, *QKVO_BIASES)},
        "feed_forward": mlp(config.integer("intermediate_size"), bert_activation(config)),
        "norm": norm,
        "norm_placement": "post",
        "bottleneck_size": bottleneck_width,
        "num_feedforward_networks": config.integer("num_feedforward_networks"),
    }
    stack_fields = {
        "position": bert_positions(config),
        "embedding_norm": norm,
        **token_types(config.count("type_vocab_size")),
    }
    has_trigrams = config.flag("trigram_input")
    model_fields: Table = {}
    if has_trigrams or embedding_size != hidden_size:
        kernel_size = 3 if has_trigrams else 1
        model_fields = {
            "embedding_size": embedding_size,
            "embedding_projection_bias": True,
            "embedding_kernel": kernel_size,
        }
    head_fields = {**bert_head(config, bert_activation(config)), **biases(embedding_size < hidden_size, "more_columns")}
    scores_pretraining = has_pretraining_head(config)
    has_dense_layer = config.flag("classifier_activation")
    has_pooler = config.head_kind == "none" or scores_sequences(config) or scores_pretraining
    if scores_pretraining and not has_dense_layer:
        raise config.error("classifier_activation", False, "true with a head for pretraining")
    is_present = has_pooler and has_dense_layer
    score_count = 2 if scores_pretraining else None
    return encoder(config, block, stack_fields, head_fields, {}, **model_fields, **pooler(is_present, score_count))


FIELD_WRITERS: FieldWriters = {
    "trigram_input": lambda s: s.spec.embedding_kernel == 3,
    "intra_bottleneck_size": lambda s: s.first_stack.block.bottleneck_size,
    "num_feedforward_networks": lambda s: s.first_stack.block.num_feedforward_networks,
    "normalization_type": lambda s: "no_norm" if s.first_stack.block.norm.type == "affine" else "layer_norm",
    "classifier_activation": lambda s: s.spec.pooler is not None,
}

FAMILIES = {"mobilebert": replace(BERT, read_model=_read_mobilebert, field_writers=FIELD_WRITERS)}
