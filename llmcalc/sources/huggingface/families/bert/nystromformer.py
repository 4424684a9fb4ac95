"""BERT with approximations of attention for long sequences: Nyströmformer, YOSO and MRA.

Nyströmformer (Xiong 2021, arXiv:2102.03902) attends through landmarks where there are fewer of them than tokens, YOSO
(Zeng 2021, arXiv:2111.09714) by hashes; by default both compute all scores. A convolution of the values stands beside.
MRA (Zeng 2022, arXiv:2207.10284) computes the blocks of scores that matter most.

transformers: models/nystromformer, models/yoso, models/mra.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .....ops import SampledBlockAttentionCore
from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import EVERY_CLASS, Deviation, Family, Quirks, module_names
from ...field_writers import FieldWriters
from ...parts import Table, encoder
from .bert import BERT, OLD_FIELDS, SECOND_BIAS, bert_activation, bert_block, bert_head, bert_score_head, bert_stack

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _read_nystromformer(config: Config) -> Table:
    if config.integer("num_landmarks") != config.integer("segment_means_seq_len"):
        config.notes.append(
            "num_landmarks: attention through landmarks is not counted: every token attends to all, as where there are "
            "as many landmarks as tokens"
        )
    config.require("inv_coeff_init_option", False)
    return _bert_with_convolution(config, "conv_kernel_size")


def _read_yoso(config: Config) -> Table:
    if not config.flag("use_expectation"):
        config.notes.append("use_expectation: attention by hashes is not counted: every token attends to all")
    return _bert_with_convolution(config, "conv_window")


MRA_BLOCK = 32
"""The number of queries, and of keys, in a block of MRA's scores."""


def _read_mra(config: Config) -> Table:
    """Reads MRA. The longest sequence determines the number of exact blocks."""
    block, block_rows = bert_block(config), config.integer("max_position_embeddings") // MRA_BLOCK
    config.require("add_cross_attention", False)
    if not block_rows:
        max_position_embeddings = config.integer("max_position_embeddings")
        raise config.error("max_position_embeddings", max_position_embeddings, f"at least {MRA_BLOCK}")
    block["attention"] = {
        "type": "sampled_blocks",
        "num_attention_heads": config.integer("num_attention_heads"),
        "block_size": MRA_BLOCK,
        "blocks": min(block_rows * config.integer("block_per_row"), block_rows**2),
        "approximated": config.choice({"full": True, "sparse": False}, "approx_mode"),
    }
    position_encoding = {
        "type": "learned",
        "max_position_embeddings": config.integer("max_position_embeddings"),
        "offset": 2,
    }
    activation = bert_activation(config)
    stack_fields = bert_stack(config, position_encoding)
    return encoder(
        config, block, stack_fields, bert_head(config, activation), bert_score_head(activation), label_count=2
    )


NO_KERNEL = Deviation(
    "MRA without its kernels",
    "without CUDA kernels of its own, its class returns zeros in the place of attention",
    "forward_flops",
    class_op=lambda op: replace(op, heads=0) if isinstance(op, SampledBlockAttentionCore) else op,
)


def _bert_with_convolution(config: Config, field_name: str) -> Table:
    """Reads BERT without a pooler, with a convolution of the values. field_name: the kernel size's config field.

    A question-answering head has two scores, whatever the number of labels.
    """
    block = bert_block(config)
    kernel_size = config.optional_integer(field_name)
    if kernel_size is not None:
        if kernel_size % 2 == 0:
            raise config.error(field_name, kernel_size, "an odd number: the class adds as many rows as it reads")
        block["attention"]["value_convolution"] = {"conv_kernel_size": kernel_size}
    position_rows = config.integer("max_position_embeddings")
    position_encoding = {"type": "learned", "max_position_embeddings": position_rows, "offset": 2}
    activation = bert_activation(config)
    stack_fields, head_fields = bert_stack(config, position_encoding), bert_head(config, activation)
    return encoder(config, block, stack_fields, head_fields, bert_score_head(activation), label_count=2)


def _kernel_writer(field_name: str) -> FieldWriters:
    return {field_name: lambda s: getattr(s.first_stack.block.attention.value_convolution, "conv_kernel_size", None)}


def _mra_blocks_per_row(model_values: ConfigValues) -> int:
    """Returns the number of blocks of exact scores per block of queries in MRA, for the longest sequence."""
    block_rows = max(1, model_values.position_rows // MRA_BLOCK)
    block_count: int = model_values.first_stack.block.attention.blocks
    return -(-block_count // block_rows)


FAMILIES = {
    "nystromformer": replace(
        BERT,
        read_model=_read_nystromformer,
        field_writers=_kernel_writer("conv_kernel_size"),
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
    ),
    "yoso": replace(
        BERT,
        read_model=_read_yoso,
        field_writers=_kernel_writer("conv_window"),
        quirks=Quirks(value_reading_classes=EVERY_CLASS, bfloat16_refusing_classes=EVERY_CLASS),
        modules=module_names("nystromformer"),
    ),
    "mra": Family(
        _read_mra,
        ignored_fields=OLD_FIELDS,
        field_writers={
            "block_per_row": _mra_blocks_per_row,
            "approx_mode": lambda s: "full" if s.first_stack.block.attention.approximated else "sparse",
        },
        deviations=(SECOND_BIAS, NO_KERNEL),
        quirks=Quirks(value_reading_classes=EVERY_CLASS, bfloat16_refusing_classes=EVERY_CLASS),
        modules=module_names("nystromformer"),
        dropout_fields=BERT_DROPOUT,
    ),
}
