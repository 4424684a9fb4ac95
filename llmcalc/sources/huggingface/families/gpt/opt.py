"""Decoders of fairseq, with biases everywhere and two rows before the first position: opt, xglm, biogpt.

transformers: models/opt, models/xglm, models/biogpt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...config import Config
from ...dropout import BART_DROPOUT, BERT_DROPOUT
from ...family import Family, module_names
from ...parts import QKVO_BIASES, Table, biases, decoder, layer_table, layernorm, learned_positions
from .gpt import full_width_heads, non_gated_ffn

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _read_opt(config: Config) -> Table:
    has_bias = config.flag("enable_bias")
    is_pre_norm = config.flag("do_layer_norm_before")
    hidden_size = config.integer("hidden_size")
    norm = layernorm(weight=config.flag("layer_norm_elementwise_affine"))
    feed_forward = non_gated_ffn(config, "ffn_dim", "activation_function", has_bias)
    attention = full_width_heads(config, **biases(has_bias, *QKVO_BIASES))
    block = layer_table(attention, feed_forward, norm, "pre" if is_pre_norm else "post")
    embedding_width = config.optional_integer("word_embed_proj_dim") or hidden_size
    final_norm = norm if is_pre_norm and not config.flag("_remove_final_layer_norm") else None
    embedding_fields: Table = {} if embedding_width == hidden_size else {"embedding_size": embedding_width}
    return decoder(config, block, final_norm, stack={"position": learned_positions(config, 2)}, **embedding_fields)


def _read_xglm(config: Config) -> Table:
    config.require("add_cross_attention", False)
    return _fairseq_decoder(
        config, "ffn_dim", "activation_function", {"type": "sinusoidal"}, float32_softmax=False, floors_scores=True
    )


def _fairseq_decoder(
    config: Config, width_field: str, activation: str, position_encoding: Table, **softmax_fields: bool
) -> Table:
    """Returns the decoder of a fairseq model. softmax_fields: additional fields of its attention."""
    norm = layernorm()
    attention = full_width_heads(config, **softmax_fields, **biases(True, *QKVO_BIASES))
    block = layer_table(attention, non_gated_ffn(config, width_field, activation), norm)
    return decoder(config, block, norm, stack={"position": position_encoding})


IGNORED_FIELDS = frozenset({"activation_dropout", "learned_embeddings", "scale_embedding", "scale_embeddings"})


def _has_pre_norm(model_values: ConfigValues) -> bool:
    return model_values.layers[0].norm_placement == "pre"


FAMILIES = {
    "opt": Family(
        _read_opt,
        ignored_fields=IGNORED_FIELDS,
        field_writers={
            "do_layer_norm_before": _has_pre_norm,
            "_remove_final_layer_norm": lambda s: _has_pre_norm(s) and s.main_stack.final_norm is None,
            "layer_norm_elementwise_affine": lambda s: s.layers[0].norm.weight,
            "enable_bias": lambda s: s.network.up_bias,
        },
        modules={**module_names("opt"), "": "decoder", "embed_proj": "project_in", "head_proj": "project_out"},
        dropout_fields={"attention": "attention_dropout", "attention_output": "dropout", "feed_forward": "dropout"},
    ),
    "xglm": Family(
        _read_xglm,
        ignored_fields=IGNORED_FIELDS,
        aliases={"hidden_size": "d_model", "num_hidden_layers": "num_layers", "num_attention_heads": "attention_heads"},
        modules={**module_names("opt"), "norm": "layer_norm", "lm_head": "lm_head | output_projection"},
        dropout_fields=BART_DROPOUT,
    ),
    "biogpt": Family(
        lambda config: _fairseq_decoder(config, "intermediate_size", "hidden_act", learned_positions(config, 2)),
        ignored_fields=IGNORED_FIELDS,
        modules={**module_names("opt"), "norm": "layer_norm", "lm_head": "lm_head | output_projection"},
        dropout_fields={**BERT_DROPOUT, "activation": "activation_dropout"},
    ),
}
