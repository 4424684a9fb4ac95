"""SmolLM3, Seed-OSS, Arcee, Apertus and Helium: Llama with small differences.

They have another bias or activation, or layers without positions.

transformers: models/smollm3, models/seed_oss, models/arcee, models/apertus, models/helium.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...field_writers import NO_PADDING_WRITER
from ...parts import (
    ACTIVATIONS,
    FULL_OR_SLIDING,
    QKV_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    decoder,
    glu,
    layer_pattern,
    layer_table,
    listed_kinds,
    mlp,
    qk_norm_fields,
    rmsnorm,
)


def _pre_norm_decoder(
    config: Config,
    token_mixer: Table,
    feed_forward: Table,
    stack_fields: Table | None = None,
    float32_product: bool = False,
) -> Table:
    """Returns a decoder with norms before attention and network. float32_product: as in `Norm`."""
    norm = rmsnorm(config.number("rms_norm_eps"), **biases(float32_product, "float32_product"))
    return decoder(config, layer_table(token_mixer, feed_forward, norm), norm, stack=stack_fields)


def _read_smollm3(config: Config) -> Table:
    depth = config.integer("num_hidden_layers")
    window_size = config.optional_integer("sliding_window")
    rope_flags = config.get("no_rope_layers")
    nope_period = config.integer("no_rope_layer_interval")
    if rope_flags is not None:
        rope_by_layer = config.integers("no_rope_layers")
    else:
        rope_by_layer = [int((layer_index + 1) % nope_period != 0) for layer_index in range(depth)]
    if len(rope_by_layer) < depth:
        raise config.error("no_rope_layers", rope_flags, f"{depth} times 0 or 1")
    uses_sliding_window = config.flag("use_sliding_window") and window_size is not None
    default_layer_kinds = [
        "full" if rope_by_layer[layer_index] or not uses_sliding_window else "sliding" for layer_index in range(depth)
    ]
    attention_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    layer_kinds, layer_variants = [], {}
    for layer_index, attention_kind in enumerate(attention_kinds):
        window_fields: Table = (
            {"sliding_window": window_size} if attention_kind == "sliding" and window_size is not None else {}
        )
        layer_kinds.append(
            f"{'sliding' if window_fields else 'full'}{'' if rope_by_layer[layer_index] else '_no_rope'}"
        )
        layer_variants[layer_kinds[-1]] = {
            "attention": {**window_fields, **({} if rope_by_layer[layer_index] else {"position": "none"})}
        }
    attention_table = attention(config, **attention_biases(config))
    return _pre_norm_decoder(
        config,
        attention_table,
        glu(config, config.flag("mlp_bias")),
        {"variants": layer_variants, **layer_pattern(layer_kinds)},
    )


def _read_seed_oss(config: Config) -> Table:
    has_biases = config.flag("attention_out_bias")
    attention_table = attention(config, **attention_biases(config, QKV_BIASES), **biases(has_biases, "o_bias"))
    return _pre_norm_decoder(config, attention_table, glu(config, config.flag("mlp_bias")))


def _read_arcee(config: Config) -> Table:
    activation = config.choice(ACTIVATIONS, "hidden_act")
    ffn_width = config.integer("intermediate_size")
    return _pre_norm_decoder(
        config, attention(config, **attention_biases(config)), mlp(ffn_width, activation, config.flag("mlp_bias"))
    )


def read_apertus(config: Config) -> Table:
    activation = config.choice({**ACTIVATIONS, "xielu": "xielu"}, "hidden_act")
    attention_table = attention(
        config, **attention_biases(config), **qk_norm_fields(rmsnorm(config.number("rms_norm_eps")))
    )
    return _pre_norm_decoder(config, attention_table, mlp(config.integer("intermediate_size"), activation, bias=False))


def _read_helium(config: Config) -> Table:
    """Reads Helium: the class's output projection is hidden_size × hidden_size, regardless of head_dim."""
    config.require(
        "head_dim",
        config.quotient("num_attention_heads", config.integer("hidden_size"), config.integer("num_attention_heads")),
    )
    attention_table = attention(config, **attention_biases(config, QKV_BIASES))
    return _pre_norm_decoder(config, attention_table, glu(config, config.flag("mlp_bias")), float32_product=True)


FAMILIES = {
    "smollm3": Family(_read_smollm3, ignored_fields=frozenset({"max_window_layers"}), field_writers=NO_PADDING_WRITER),
    "seed_oss": Family(
        _read_seed_oss,
        field_writers={"attention_out_bias": lambda s: s.full_attention.o_bias},
        dropout_fields={
            "attention": "attention_dropout",
            "attention_output": "residual_dropout",
            "feed_forward": "residual_dropout",
        },
    ),
    "arcee": Family(_read_arcee),
    "apertus": Family(read_apertus, ignored_fields=frozenset({"mlp_bias", "post_norm", "qk_norm"})),
    "helium": Family(_read_helium),
}
