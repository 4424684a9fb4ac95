"""Llama and models with other biases, QK-norm or a sliding window: llama, mistral, qwen2, qwen3, cwm.

transformers: models/llama, models/mistral, models/qwen2, models/qwen3, models/cwm.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, field_names
from ...field_writers import WINDOW_WRITER
from ...parts import (
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
    qk_norm_fields,
    rmsnorm,
    sliding_stack,
)


def llama_decoder(
    config: Config,
    token_mixer: Table,
    mlp_bias: bool = False,
    reads_layer_types: bool = False,
    ffn: Table | None = None,
) -> Table:
    """Returns a decoder of pre-norm RMSNorm layers with gated FFNs; some layers may have sliding windows.

    ffn: the FFN, by default with a bias if `mlp_bias`.
    reads_layer_types: whether `layer_types` counts although the family has no default for it.
    """
    norm = rmsnorm(config.number("rms_norm_eps"))
    block = layer_table(token_mixer, ffn or glu(config, mlp_bias), norm)
    return decoder(config, block, norm, stack=sliding_variants(config, reads_layer_types))


def sliding_variants(config: Config, reads_layer_types: bool = False) -> Table:
    """Returns the layer variants `sliding` and `full`, from `layer_types` or from Qwen2's sliding-window fields.

    A family whose class has no window has no `sliding_window` among its defaults; Llama's class attends to all tokens,
    whatever a config says.
    """
    if "sliding_window" not in config.defaults:
        return {}
    depth = config.integer("num_hidden_layers")
    uses_window = config.flag("use_sliding_window") if "use_sliding_window" in config.defaults else True
    window_size = (
        config.optional_integer("sliding_window") if uses_window else None
    )  # without windows also 0 in some files
    first_sliding_layer = config.count("max_window_layers") if "max_window_layers" in config.defaults else 0
    layer_kinds = ["full" if layer_index < first_sliding_layer else "sliding" for layer_index in range(depth)]
    if reads_layer_types or "layer_types" in config.defaults:
        layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, layer_kinds)
    if window_size is None:
        return {}
    layer_variants: Table = {"full": {}, "sliding": {"attention": {"sliding_window": window_size}}}
    variants = {name: variant for name, variant in layer_variants.items() if name in layer_kinds}
    return {"variants": variants, **layer_pattern(layer_kinds)}


def _read_llama(config: Config) -> Table:
    return llama_decoder(config, attention(config, **attention_biases(config)), config.flag("mlp_bias"))


def _read_mistral(config: Config) -> Table:
    """Reads Mistral. A config with `layer_types` is read as Ministral, as `AutoConfig` does."""
    reads_layer_types = config.config_fields.get("layer_types") is not None
    return llama_decoder(config, attention(config), reads_layer_types=reads_layer_types)


def _read_qwen2(config: Config) -> Table:
    return llama_decoder(config, attention(config, **biases(True, *QKV_BIASES)))


def _read_qwen3(config: Config) -> Table:
    attention_table = attention(
        config, **attention_biases(config), **qk_norm_fields(rmsnorm(config.number("rms_norm_eps")))
    )
    return llama_decoder(config, attention_table)


def _read_cwm(config: Config) -> Table:
    """Reads Code World Model, where every fourth layer from the first has full attention."""
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    block = layer_table(attention(config), glu(config, config.flag("mlp_bias")), norm)
    config.integer("sliding_window")
    stack_fields = sliding_stack(config, ["sliding" if layer_index % 4 else "full" for layer_index in range(depth)])
    return decoder(config, block, norm, stack=stack_fields)


FAMILIES = {
    "llama": Family(
        _read_llama,
        ignored_fields=field_names(
            "activation is_llama_config neftune_noise_alpha pixel_shuffle_factor rope_interleaved use_resampler"
        ),
    ),
    "mistral": Family(_read_mistral, field_writers=WINDOW_WRITER),
    "qwen2": Family(
        _read_qwen2, {"head_dim": None}, frozenset({"dual_chunk_attention_config", "is_causal", "use_mrope"})
    ),
    "qwen3": Family(_read_qwen3),
    "cwm": Family(_read_cwm),
}
