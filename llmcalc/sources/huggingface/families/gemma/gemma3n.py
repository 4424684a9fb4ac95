"""Gemma 3n: parallel residual streams (AltUp), a low-rank path (LAuReL) and per-layer embeddings.

The last layers share keys and values.

transformers: models/gemma3n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...config import Config
from ...family import Family
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    attention,
    attention_biases,
    check_shared_layers,
    decoder,
    float32_rmsnorm,
    glu,
    kinds_with_nth_full,
    listed_kinds,
    qk_norm_fields,
    rmsnorm,
    rope,
    stack_of_layers,
)
from .gemma import LOCAL_THETA_WRITERS, local_theta

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _ffn_widths(config: Config, depth: int) -> list[int]:
    """Returns the FFN width of each layer."""
    field_value = config.get("intermediate_size")
    if not isinstance(field_value, list):
        return [config.integer("intermediate_size")] * depth
    ffn_widths = config.integers("intermediate_size")
    if len(ffn_widths) != depth or 0 in ffn_widths:
        raise config.error("intermediate_size", field_value, f"one width, or {depth} of them")
    return ffn_widths


def _read_gemma3n(config: Config) -> Table:
    depth = config.integer("num_hidden_layers")
    window_size = config.integer("sliding_window")
    shared_layer_count = config.count("num_kv_shared_layers")
    norm = float32_rmsnorm(config.number("rms_norm_eps"))
    per_layer_width = config.integer("hidden_size_per_layer_input")
    stream_count = config.integer("altup_num_inputs")
    layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, kinds_with_nth_full(depth, 5))
    check_shared_layers(config, layer_kinds, shared_layer_count)
    layers: list[tuple[str, Table]] = []
    for layer_index, (layer_kind, ffn_width) in enumerate(zip(layer_kinds, _ffn_widths(config, depth), strict=True)):
        local_attention_fields: Table = (
            {"sliding_window": window_size, "position": {"rope_theta": local_theta(config)}}
            if layer_kind == "sliding"
            else {}
        )
        reuses_keys = shared_layer_count > 0 and layer_index >= depth - shared_layer_count
        token_mixer = {**local_attention_fields, "kv_shared": True} if reuses_keys else local_attention_fields
        layers.append(
            (
                f"{layer_kind}_shared" if reuses_keys else layer_kind,
                {"attention": token_mixer, "feed_forward": {"intermediate_size": ffn_width}},
            )
        )
    token_mixer = attention(
        config, position={"rope_theta": 1_000_000.0, **rope(config)}, v_norm=rmsnorm(norm["eps"], weight=False),
        **attention_biases(config), **qk_norm_fields(norm),
    )  # fmt: skip
    feed_forward = glu(
        config, ffn_width=layers[0][1]["feed_forward"]["intermediate_size"], activation_field="hidden_activation"
    )
    per_layer_gate = {"hidden_size_per_layer_input": per_layer_width, "hidden_act": feed_forward["hidden_act"]}
    block = {
        "type": "altup",
        "attention": token_mixer,
        "feed_forward": feed_forward,
        "norm": norm,
        "per_layer_input": per_layer_gate,
        "laurel_rank": config.integer("laurel_rank"),
        "altup_num_inputs": stream_count,
    }
    per_layer_vocab_size = config.integer("vocab_size_per_layer_input")
    per_layer_embedding = {
        "vocab_size_per_layer_input": per_layer_vocab_size,
        "hidden_size_per_layer_input": per_layer_width,
        "norm": norm,
    }
    streams = {"type": "altup", "altup_num_inputs": stream_count}
    stack_fields = {**stack_of_layers(layers), "per_layer_embedding": per_layer_embedding, "streams": streams}
    return decoder(config, block, norm, stack=stack_fields)


IGNORED_FIELDS = frozenset(
    {"hidden_act", "rope_local_base_freq", "query_pre_attn_scalar", "cache_implementation", "altup_lr_multiplier"}
)


def shared_layer_count(model_values: ConfigValues) -> int:
    """Returns the number of layers that reuse an earlier layer's keys and values."""
    return sum(bool(token_mixer.kv_shared) for token_mixer in model_values.mixers)


def _widths_of_layers(model_values: ConfigValues) -> Any:
    ffn_widths = [ffn.intermediate_size for ffn in model_values.networks]
    return ffn_widths if len({*ffn_widths}) > 1 else ffn_widths[0]


FAMILIES = {
    "gemma3n_text": Family(
        _read_gemma3n,
        ignored_fields=IGNORED_FIELDS,
        field_writers={
            **LOCAL_THETA_WRITERS,
            "num_kv_shared_layers": shared_layer_count,
            "intermediate_size": _widths_of_layers,
        },
    ),
    "gemma3n": Family(None, text_type="gemma3n_text", tower_file="gemma"),
}
