"""XLM and FlauBERT: BERT's layers with a position table, learned or sinusoidal, and language embeddings.

transformers: models/xlm, models/flaubert.
"""

from __future__ import annotations

from dataclasses import replace

from ...config import Config
from ...family import EVERY_CLASS, Family, Quirks, field_names, module_names
from ...parts import (
    MULTIPLE_CHOICE,
    QKVO_BIASES,
    Table,
    biases,
    class_name_of_config,
    encoder,
    layer_table,
    layernorm,
    learned_positions,
    mlp,
    question_answering_head,
    scores_sequences,
    token_types,
)


def _read_xlm(config: Config, norm_placement: str = "post") -> Table:
    config.require_fields(asm=False, is_encoder=True)
    norm = layernorm(config.number("layer_norm_eps"))
    head_count = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size")
    config.quotient("n_heads", hidden_size, head_count)
    language_count = config.count("n_langs")
    attention = {"num_attention_heads": head_count, **biases(True, *QKVO_BIASES)}
    feed_forward = mlp(4 * hidden_size, "gelu" if config.flag("gelu_activation") else "relu")
    block = layer_table(attention, feed_forward, norm, norm_placement)
    segment_type_count = language_count if language_count > 1 and config.flag("use_lang_emb") else 0
    stack_fields = {"position": learned_positions(config), "embedding_norm": norm, **token_types(segment_type_count)}
    score_head = _summary_classifier(config)
    model_fields = encoder(config, block, stack_fields, {"bias": True}, score_head, **question_answering_head(config))
    if config.flag("causal"):
        model_fields["decoder"] = model_fields.pop("encoder")
    return model_fields


def _summary_classifier(config: Config) -> Table | None:
    """Returns the classifier of a sequence's first token; None for the multiple-choice class's two-layer head."""
    if not scores_sequences(config) or class_name_of_config(config).endswith(MULTIPLE_CHOICE):
        return None
    config.require_fields(summary_use_proj=True, summary_proj_to_labels=True)
    return {}


def _read_flaubert(config: Config) -> Table:
    return _read_xlm(config, "pre" if config.flag("pre_norm") else "post")


ALIASES = {
    "hidden_size": "emb_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "n_words": "vocab_size",
}
IGNORED_FIELDS = field_names("""
    amp asm_cutoffs asm_div_value bos_index bptt clip_grad_norm encoder_only eos_index fp16 group_by_size id2lang
    lang2id langs lg_sampling_factor layerdrop max_batch_size max_vocab mlm_steps pad_index sample_alpha share_inout_emb
    word_blank word_dropout word_keep word_mask word_mask_keep_rand word_pred word_rand word_shuffle
    """)
DROPOUT_FIELDS = {
    "embedding": "dropout",
    "attention": "attention_dropout",
    "attention_output": "dropout",
    "feed_forward": "dropout",
}

XLM = Family(
    _read_xlm,
    ignored_fields=IGNORED_FIELDS,
    aliases=ALIASES,
    quirks=Quirks(value_reading_classes=EVERY_CLASS),
    modules=module_names("xlm"),
    dropout_fields=DROPOUT_FIELDS,
)

FAMILIES = {"xlm": XLM, "flaubert": replace(XLM, read_model=_read_flaubert)}
