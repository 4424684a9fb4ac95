"""X-MOD: RoBERTa with an adapter per language in every layer.

Pfeiffer et al. 2022 (arXiv:2205.06266). A sequence passes the adapters of its language alone; those of the other
languages are parameters that do not run. transformers: models/xmod.
"""

from __future__ import annotations

from dataclasses import replace

from ...config import Config
from ...family import EVERY_CLASS, Quirks
from ...field_writers import FieldWriters
from ...parts import Table, encoder, layernorm, pooler
from .bert import (
    BERT,
    ROBERTA_WRITERS,
    bert_activation,
    bert_block,
    bert_head,
    bert_stack,
    padded_positions,
    score_head_and_pooler,
)


def _read_xmod(config: Config) -> Table:
    hidden_size, is_pre_norm = config.integer("hidden_size"), config.flag("pre_norm")
    language_names = config.texts("languages")
    default_language = config.text("default_language") if config.has("default_language") else None
    if not language_names or len({*language_names}) < len(language_names):
        raise config.error("languages", language_names, "a list of different language codes, at least one")
    if default_language not in (None, *language_names):
        raise config.error("default_language", default_language, "one of languages")
    adapter_width = hidden_size // config.integer("adapter_reduction_factor")
    if not adapter_width:
        adapter_reduction_factor = config.integer("adapter_reduction_factor")
        raise config.error("adapter_reduction_factor", adapter_reduction_factor, f"at most {hidden_size}")
    shares_norm = config.flag("adapter_reuse_layer_norm")
    block = {
        **bert_block(config),
        "type": "adapter",
        "norm_placement": "pre" if is_pre_norm else "post",
        "adapter_size": adapter_width,
        "adapter_act": bert_activation(config),
        "languages": language_names,
        **({} if default_language is None else {"default_language": default_language}),
        "adapter_norm": "separate" if config.flag("adapter_layer_norm") else "shared" if shares_norm else None,
        "normed_residual": config.flag("ln_before_adapter"),
    }
    stack_fields = bert_stack(config, padded_positions(config))
    if is_pre_norm:
        stack_fields["final_norm"] = layernorm(config.number("layer_norm_eps"))
    score_head, has_pooler = score_head_and_pooler(config)
    return encoder(config, block, stack_fields, bert_head(config, "gelu"), score_head, **pooler(has_pooler))


FIELD_WRITERS: FieldWriters = {
    **ROBERTA_WRITERS,
    "pre_norm": lambda s: s.first_stack.block.norm_placement == "pre",
    "languages": lambda s: list(s.first_stack.block.languages),
    "default_language": lambda s: s.first_stack.block.default_language or s.first_stack.block.languages[0],
    "adapter_reduction_factor": lambda s: s.spec.hidden_size // s.first_stack.block.adapter_size,
    "adapter_layer_norm": lambda s: s.first_stack.block.adapter_norm == "separate",
    "adapter_reuse_layer_norm": lambda s: s.first_stack.block.adapter_norm == "shared",
    "ln_before_adapter": lambda s: s.first_stack.block.normed_residual,
}


FAMILIES = {
    "xmod": replace(
        BERT, read_model=_read_xmod, field_writers=FIELD_WRITERS, quirks=Quirks(value_reading_classes=EVERY_CLASS)
    )
}
