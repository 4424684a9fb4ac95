"""ConvBERT: ELECTRA's layers with convolutions in place of a part of the attention heads.

Jiang et al. 2020 (arXiv:2008.02496). transformers: models/convbert.
"""

from __future__ import annotations

from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import EVERY_CLASS, Family, Quirks
from ...field_writers import FieldWriters
from ...parts import MULTIPLE_CHOICE, Table, class_name_of_config, encoder, layer_table, layernorm, mlp
from .bert import OLD_FIELDS, bert_activation, bert_head, bert_score_head, bert_stack, embedding_size, input_size


def _read_convbert(config: Config) -> Table:
    hidden_size, head_ratio = config.integer("hidden_size"), config.integer("head_ratio")
    for field_name in ("is_decoder", "add_cross_attention"):
        config.require(field_name, False)
    if class_name_of_config(config).endswith(MULTIPLE_CHOICE):
        raise config.error("architectures", class_name_of_config(config), "a class that scores tokens or one text")
    head_count = max(1, config.integer("num_attention_heads") // head_ratio)
    config.quotient("num_attention_heads", hidden_size, 2 * head_count)
    kernel_size = config.integer("conv_kernel_size")
    if kernel_size % 2 == 0:
        raise config.error("conv_kernel_size", kernel_size, "an odd number: the class adds as many rows as it reads")
    attention = {"type": "span_convolution", "num_attention_heads": head_count, "conv_kernel_size": kernel_size}
    feed_forward = _grouped_ffn(config, hidden_size)
    block = layer_table(attention, feed_forward, layernorm(config.number("layer_norm_eps")), "post")
    model_fields = embedding_size(config)
    stack_fields = {**bert_stack(config), **input_size(model_fields)}
    head_fields = bert_head(config, "gelu")
    return encoder(config, block, stack_fields, head_fields, bert_score_head(bert_activation(config)), **model_fields)


def _grouped_ffn(config: Config, hidden_size: int) -> Table:
    """Returns the feed-forward network, whose two projections are split into `num_groups` groups."""
    ffn_width, group_count = config.integer("intermediate_size"), config.integer("num_groups")
    if group_count == 1:
        return mlp(ffn_width, bert_activation(config))
    for input_width in (hidden_size, ffn_width):
        config.quotient("num_groups", input_width, group_count)
    activation = bert_activation(config)
    return {
        "type": "grouped_mlp",
        "intermediate_size": ffn_width,
        "hidden_act": activation,
        "up_groups": group_count,
        "down_groups": group_count,
    }


FIELD_WRITERS: FieldWriters = {
    "head_ratio": lambda _: 1,
    "conv_kernel_size": lambda s: s.first_stack.block.attention.conv_kernel_size,
    "num_groups": lambda s: getattr(s.first_stack.block.feed_forward, "up_groups", 1),
}


FAMILIES = {
    "convbert": Family(
        _read_convbert,
        ignored_fields=OLD_FIELDS | {"summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"},
        field_writers=FIELD_WRITERS,
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        dropout_fields=BERT_DROPOUT,
    )
}
