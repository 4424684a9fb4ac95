"""Longformer: RoBERTa with windowed attention, and separate projections for global attention.

Beltagy et al. 2020 (arXiv:2004.05150). Tokens with global attention attend to all tokens by projections of their own;
plain text has no such tokens, so these are parameters that do not run.
transformers: models/longformer.
"""

from __future__ import annotations

from dataclasses import fields

from .....ops import Op
from .....ops.attention import AttentionCore, OverlappingChunkAttentionCore
from ...config import Config, is_json_integer
from ...dropout import BERT_DROPOUT
from ...family import EVERY_CLASS, Deviation, Family, Quirks
from ...field_writers import FieldWriters
from ...parts import Table, encoder, layer_pattern, pooler
from .bert import (
    OLD_FIELDS,
    ROBERTA_WRITERS,
    SECOND_BIAS,
    bert_block,
    bert_head,
    bert_score_head,
    bert_stack,
    padded_positions,
)

GLOBAL_PROJECTIONS = ("q_global_proj", "k_global_proj", "v_global_proj")
"""The projections of tokens with global attention."""

GLOBAL_NOTE = "global attention: its projections are counted; its products are not counted, as plain text has none"


def _read_longformer(config: Config) -> Table:
    position_encoding = padded_positions(config)
    stack_fields = {
        **bert_stack(config, position_encoding),
        **window_stack(config, config.integer("num_hidden_layers")),
    }
    block = bert_block(config)
    block["attention"]["idle_projections"] = GLOBAL_PROJECTIONS
    config.notes.append(GLOBAL_NOTE)
    head_fields = bert_head(config, "gelu")
    return encoder(
        config, block, stack_fields, head_fields, bert_score_head("tanh"), **pooler(config.head_kind == "none")
    )


def window_stack(config: Config, depth: int) -> Table:
    """Returns the stack fields of layers that attend to a window of `attention_window` tokens centred on each token.

    The field is one even number, or a list with one for each of the `depth` layers.
    """
    window_sizes = config.get("attention_window")
    window_sizes = window_sizes if isinstance(window_sizes, list | tuple) else [window_sizes] * depth
    if len(window_sizes) != depth or any(
        not is_json_integer(window_size) or window_size <= 0 or window_size % 2 for window_size in window_sizes
    ):
        window_in_config = config.get("attention_window")
        raise config.error(
            "attention_window", window_in_config, f"a positive even number, or a list of {depth} of them"
        )
    layer_kinds = [f"window{window_size}" for window_size in window_sizes]
    layer_variants = {
        f"window{window_size}": {"attention": {"sliding_window": window_size + 1}} for window_size in window_sizes
    }
    return {"variants": layer_variants, **layer_pattern(layer_kinds)}


def _with_chunked_attention(op: Op) -> Op:
    if not isinstance(op, AttentionCore) or op.window is None:
        return op
    return OverlappingChunkAttentionCore(*(getattr(op, field.name) for field in fields(op)))


CHUNKED_SCORES = Deviation(
    "Longformer's chunks",
    "its class computes the scores of a window in chunks that overlap",
    "forward_flops",
    class_op=_with_chunked_attention,
)

WINDOW_WRITERS: FieldWriters = {
    "attention_window": lambda s: [window - 1 for window in s.windows if window is not None]
}


FAMILIES = {
    "longformer": Family(
        _read_longformer,
        ignored_fields=OLD_FIELDS | {"attention_mode", "ignore_attention_mask"},
        field_writers={**ROBERTA_WRITERS, **WINDOW_WRITERS},
        deviations=(SECOND_BIAS, CHUNKED_SCORES),
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        dropout_fields=BERT_DROPOUT,
    )
}
