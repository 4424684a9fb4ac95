"""XLNet: an encoder with Transformer-XL's positions, trained by predicting tokens in permuted order.

transformers: models/xlnet. The cached states of earlier segments (`mems`) are not counted.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import (
    ACTIVATIONS,
    SIMPLE_QUESTION_ANSWERING,
    Table,
    class_name_of_config,
    encoder,
    layer_table,
    layernorm,
    mlp,
    question_answering_head,
    scores_sequences,
)


def _read_xlnet(config: Config) -> Table:
    head_count, norm = config.integer("num_attention_heads"), layernorm(config.number("layer_norm_eps"))
    model_fields = question_answering_head(config)
    config.require_fields(attn_type="bi", bi_data=False)
    head_dim = config.quotient("n_head", config.integer("hidden_size"), head_count)
    if config.optional_integer("d_head") not in (None, head_dim):
        raise config.field_error("d_head", f"d_model / n_head ({head_dim})")
    attention_table = {"type": "relative", "num_attention_heads": head_count, "head_dim": head_dim}
    ffn = mlp(config.integer("d_inner"), config.choice(ACTIVATIONS, "ff_activation"))
    block = layer_table(attention_table, ffn, norm, "post")
    return encoder(config, block, {"second_stream": {}}, {"bias": True}, _summary_classifier(config), **model_fields)


def _summary_classifier(config: Config) -> Table:
    """Returns a classifier of one token, with an optional linear layer before it."""
    if (
        not scores_sequences(config)
        or class_name_of_config(config).endswith(SIMPLE_QUESTION_ANSWERING)
        or not config.flag("summary_use_proj")
    ):
        return {}
    config.require("summary_proj_to_labels", None, False)
    return {"transform": {"hidden_act": "tanh", "norm": None}}


IGNORED_FIELDS = frozenset({"summary_proj_to_labels", "untie_r"})
ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "vocab_size": "n_token",
}

FAMILIES = {
    "xlnet": Family(
        _read_xlnet,
        {"summary_proj_to_labels": None},
        IGNORED_FIELDS,
        aliases=ALIASES,
        dropout_fields=dict.fromkeys(
            ("embedding", "attention", "attention_output", "activation", "feed_forward", "final"), "dropout"
        ),
    )
}
