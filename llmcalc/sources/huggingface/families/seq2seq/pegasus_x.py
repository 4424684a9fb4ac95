"""PEGASUS-X: PEGASUS whose encoder attends within blocks and to global tokens.

Phang et al. 2022 (arXiv:2208.04347). transformers: models/pegasus_x.
"""

from __future__ import annotations

from ...absent_value import require_present
from ...config import Config
from ...dropout import BART_DROPOUT
from ...family import Family, module_names
from ...field_writers import FieldWriters
from ...parts import Table, layer_pattern
from .bart import ALIASES, IGNORED_FIELDS, STACK_WRITERS, bart_model


def _read_pegasus_x(config: Config) -> Table:
    model_fields = bart_model(config, "pre", {"type": "sinusoidal"}, bias=False)
    if "encoder" not in model_fields:
        raise config.error("architectures", config.config_fields.get("architectures"), "a class of both stacks")
    block_fields = config.integer_fields("num_global_tokens", "block_size")
    has_staggered_blocks, encoder = config.flag("stagger_local_blocks"), model_fields["encoder"]
    if has_staggered_blocks and block_fields["block_size"] % 2:
        raise config.error("block_size", block_fields["block_size"], "an even number, or stagger_local_blocks = false")
    head_count = encoder["block"]["attention"]["num_attention_heads"]
    attention = {"type": "global_local", "num_attention_heads": head_count, **block_fields}
    encoder["block"] |= {"type": "global_local", "attention": attention}
    encoder["streams"] = {"type": "global_tokens", **block_fields}
    depth = encoder["num_hidden_layers"]
    if has_staggered_blocks and depth > 1:
        layer_kinds = ["staggered" if layer_index % 2 else "block" for layer_index in range(depth)]
        encoder |= {"variants": {"staggered": {"attention": {"staggered": True}}}, **layer_pattern(layer_kinds)}
    return model_fields


FIELD_WRITERS: FieldWriters = {
    **STACK_WRITERS,
    "num_global_tokens": lambda s: require_present(s.first_stack.streams).num_global_tokens,
    "block_size": lambda s: require_present(s.first_stack.streams).block_size,
    "stagger_local_blocks": lambda s: any(
        layer.attention.staggered for layer in s.first_stack.layers_by_kind().values()
    ),
}


FAMILIES = {
    "pegasus_x": Family(
        _read_pegasus_x,
        ignored_fields=IGNORED_FIELDS,
        aliases=ALIASES,
        field_writers=FIELD_WRITERS,
        modules={
            **module_names("bart"),
            "global_tokens": "embed_global",
            "global_pre_norm": "global_self_attn_layer_norm",
        },
        dropout_fields=BART_DROPOUT,
    )
}
