"""OLMo 1 to 3 and its mixtures of experts (OLMoE, FlexOlmo).

LayerNorms without weights (1), norms on the outputs and QK-norm over all heads (2, 3), sliding windows (3).

transformers: models/olmo, models/olmo2, models/olmo3, models/olmoe, models/flex_olmo.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...field_writers import NO_PADDING_WRITER
from ...parts import (
    Table,
    attention,
    attention_biases,
    biases,
    decoder,
    glu,
    kinds_with_nth_full,
    layer_table,
    layernorm,
    moe,
    qk_norm_fields,
    rmsnorm,
    sliding_stack,
)


def _read_olmo(config: Config) -> Table:
    norm = layernorm(1e-5, weight=False, float32_product=True)
    attention_table = attention(config, **attention_biases(config))
    return decoder(config, layer_table(attention_table, glu(config), norm), norm)


def _decoder_with_qk_norm(
    config: Config,
    feed_forward: Table,
    norm_placement: str,
    stack_fields: Table | None = None,
    float32_product: bool = True,
) -> Table:
    """Returns a decoder with RMSNorm and a QK-norm over all heads at once. float32_product: as in `Norm`."""
    norm = rmsnorm(config.number("rms_norm_eps"), **biases(float32_product, "float32_product"))
    attention_table = attention(config, **attention_biases(config), **qk_norm_fields(norm, "projection"))
    return decoder(config, layer_table(attention_table, feed_forward, norm, norm_placement), norm, stack=stack_fields)


def _read_olmo3(config: Config) -> Table:
    stack_fields = sliding_stack(config, kinds_with_nth_full(config.integer("num_hidden_layers"), 4))
    return _decoder_with_qk_norm(config, glu(config), "output", stack_fields)


def _routed_experts(config: Config) -> Table:
    return moe(config.integer("num_experts", "num_local_experts"), config.integer("num_experts_per_tok"), glu(config))


def _read_olmoe(config: Config) -> Table:
    return _decoder_with_qk_norm(config, _routed_experts(config), "pre", float32_product=False)


def _read_flex_olmo(config: Config) -> Table:
    return _decoder_with_qk_norm(config, _routed_experts(config), "output")


IGNORED_FIELDS = frozenset({"clip_qkv", "norm_topk_prob"})

FAMILIES = {
    "olmo": Family(_read_olmo, ignored_fields=IGNORED_FIELDS),
    "olmo2": Family(lambda config: _decoder_with_qk_norm(config, glu(config), "output"), ignored_fields=IGNORED_FIELDS),
    "olmo3": Family(_read_olmo3, ignored_fields=IGNORED_FIELDS),
    "olmoe": Family(_read_olmoe, ignored_fields=IGNORED_FIELDS),
    "flex_olmo": Family(_read_flex_olmo, ignored_fields=IGNORED_FIELDS, field_writers=NO_PADDING_WRITER),
}
