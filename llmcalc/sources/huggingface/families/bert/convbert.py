"""ConvBERT: ELECTRA whose layers have convolutions beside half as many heads of attention.

Jiang et al. 2020 (arXiv:2008.02496). transformers: models/convbert.
"""

from __future__ import annotations

from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import EVERY, Family, Quirks
from ...parts import OF_CHOICES, Table, architecture, encoder, layer_table, layernorm, mlp
from ...writes import Writes
from .bert import (
    BERT_MODULES,
    OLD,
    bert_act,
    bert_head,
    bert_score,
    bert_stack,
    embedding_size,
    input_size,
)


def _convbert(config: Config) -> Table:
    hidden, ratio = config.size("hidden_size"), config.size("head_ratio")
    for name in ("is_decoder", "add_cross_attention"):
        config.must(name, False)
    if architecture(config).endswith(OF_CHOICES):
        raise config.wrong("architectures", architecture(config), "a class that scores tokens or one text")
    heads = max(1, config.size("num_attention_heads") // ratio)
    config.divided("num_attention_heads", hidden, 2 * heads)
    kernel = config.size("conv_kernel_size")
    if kernel % 2 == 0:
        raise config.wrong("conv_kernel_size", kernel, "an odd number: the class adds as many rows as it reads")
    block = layer_table(
        {"type": "span_convolution", "num_attention_heads": heads, "conv_kernel_size": kernel},
        _grouped_network(config, hidden),
        layernorm(config.number("layer_norm_eps")),
        "post",
    )
    model = embedding_size(config)
    stack = {**bert_stack(config), **input_size(model)}
    return encoder(config, block, stack, bert_head(config, "gelu"), bert_score(bert_act(config)), **model)


def _grouped_network(config: Config, hidden: int) -> Table:
    """Returns the feed-forward network, whose two projections are split into `num_groups` groups."""
    width, groups = config.size("intermediate_size"), config.size("num_groups")
    if groups == 1:
        return mlp(width, bert_act(config))
    for input_width in (hidden, width):
        config.divided("num_groups", input_width, groups)
    act = bert_act(config)
    return {
        "type": "grouped_mlp",
        "intermediate_size": width,
        "hidden_act": act,
        "up_groups": groups,
        "down_groups": groups,
    }


WRITES: Writes = {
    "head_ratio": lambda _: 1,
    "conv_kernel_size": lambda s: s.first.block.attention.conv_kernel_size,
    "num_groups": lambda s: getattr(s.first.block.feed_forward, "up_groups", 1),
}


FAMILIES = {
    "convbert": Family(
        _convbert,
        ignored=OLD | {"summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"},
        writes=WRITES,
        quirks=Quirks(reads_values=EVERY),
        modules={
            **BERT_MODULES,
            "input_proj": "embeddings_project",
            "span_conv": "key_conv_attn_layer.depthwise",
            "span_proj": "key_conv_attn_layer.pointwise + key_conv_attn_layer.bias",
            "filter_proj": "conv_kernel_layer",
            "conv_v_proj": "conv_out_layer",
            "lm_head": "generator_predictions + generator_lm_head",
            "lm_head.dense": ".generator_predictions.dense",
            "lm_head.norm": ".generator_predictions.LayerNorm",
            "lm_head.decoder": ".generator_lm_head",
            "classifier.dense": "dense",
            "classifier.out_proj": "out_proj | .qa_outputs | .classifier",
        },
        dropout=BERT_DROPOUT,
    ),
}
