"""Speech encoder-decoders whose encoder length depends on the audio: Speech2Text and Moonshine.

Wang et al. 2020 (arXiv:2010.05171); Jeffries et al. 2024 (arXiv:2410.15608).
transformers: models/speech_to_text, models/moonshine.
"""

from __future__ import annotations

from ...absent_value import require_present
from ...config import Config, is_json_integer
from ...dropout import BART_DROPOUT
from ...family import Family, module_names
from ...parts import (
    ACTIVATIONS,
    QKV_BIASES,
    Table,
    attention_biases,
    biases,
    head_table,
    layer_table,
    layernorm,
    mlp,
    rope,
)
from .bart import ALIASES, IGNORED_FIELDS, STACK_WRITERS, bart_model


def _read_speech_to_text(config: Config) -> Table:
    kernel_sizes, convolution_count = config.integers("conv_kernel_sizes"), config.integer("num_conv_layers")
    if len(kernel_sizes) != convolution_count or any(kernel_size % 2 == 0 for kernel_size in kernel_sizes):
        raise config.error("conv_kernel_sizes", kernel_sizes, f"num_conv_layers ({convolution_count}) odd numbers")
    channel_count = config.integer("conv_channels")
    if channel_count % 2:
        raise config.error("conv_channels", channel_count, "an even number")
    stem_table = {
        "type": "subsampling",
        "num_mel_bins": config.integer("input_feat_per_channel") * config.integer("input_channels"),
        "conv_channels": channel_count,
        "conv_kernel_sizes": kernel_sizes,
    }
    config.fields_read.add("max_source_positions")
    return bart_model(config, "pre", {"type": "sinusoidal"}, encoder={"stem": stem_table})


def _read_moonshine(config: Config) -> Table:
    config.require("is_encoder_decoder", True)
    norm, hidden_size = layernorm(1e-5, bias=False), config.integer("hidden_size")
    ffn_width = config.integer("intermediate_size")
    is_tied = config.flag("tie_word_embeddings")
    if is_json_integer(config.get("pad_head_dim_to_multiple_of")):
        config.notes.append("pad_head_dim_to_multiple_of: the zeros that fill up each head are not counted")
    mixer_by_stack = {name: _attention_of_stack(config, name, hidden_size) for name in ("encoder", "decoder")}
    attention = {**mixer_by_stack["encoder"], "position": rope(config, 0.9)}
    encoder = {
        "num_hidden_layers": config.integer("encoder_num_hidden_layers"),
        "stem": {"type": "waveform"},
        "block": layer_table(attention, mlp(ffn_width, config.choice(ACTIVATIONS, "encoder_hidden_act")), norm),
        "final_norm": norm,
    }
    ffn = {"intermediate_size": ffn_width, "hidden_act": config.choice(ACTIVATIONS, "hidden_act"), "gated": True}
    block = layer_table(
        {**mixer_by_stack["decoder"], "position": rope(config, 0.9)},
        {**ffn, **biases(True, "gate_bias", "up_bias", "down_bias")},
        norm,
        cross_attention=mixer_by_stack["decoder"],
    )
    decoder = {"num_hidden_layers": config.integer("num_hidden_layers"), "block": block, "final_norm": norm}
    return {
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": hidden_size,
        "tie_word_embeddings": is_tied,
        "max_position_embeddings": config.integer("max_position_embeddings"),
        "encoder": encoder,
        "decoder": decoder,
        "head": head_table(config),
    }


def _attention_of_stack(config: Config, stack_name: str, hidden_size: int) -> Table:
    """Returns the attention of a stack, with as many key/value heads as query heads."""
    head_count = config.integer(f"{stack_name}_num_attention_heads")
    kv_head_count = config.optional_integer(f"{stack_name}_num_key_value_heads")
    if kv_head_count not in (None, head_count):
        raise config.error(
            f"{stack_name}_num_key_value_heads",
            kv_head_count,
            f"{head_count}: the class splits queries into as many heads as keys",
        )
    config.quotient(f"{stack_name}_num_attention_heads", hidden_size, head_count)
    return {"num_attention_heads": head_count, **attention_biases(config, QKV_BIASES)}


FAMILIES = {
    "speech_to_text": Family(
        _read_speech_to_text,
        ignored_fields=IGNORED_FIELDS,
        aliases={**ALIASES, "max_position_embeddings": "max_target_positions"},
        field_writers={
            **STACK_WRITERS,
            "num_conv_layers": lambda s: len(require_present(s.first_stack.stem).conv_kernel_sizes),
            "conv_kernel_sizes": lambda s: list(require_present(s.first_stack.stem).conv_kernel_sizes),
            "conv_channels": lambda s: require_present(s.first_stack.stem).conv_channels,
            "input_feat_per_channel": lambda s: require_present(s.first_stack.stem).num_mel_bins,
        },
        dropout_fields=BART_DROPOUT,
    ),
    "moonshine": Family(
        _read_moonshine,
        field_writers={
            "encoder_num_hidden_layers": lambda s: s.first_stack.num_hidden_layers,
            "decoder_num_hidden_layers": lambda s: require_present(s.spec.decoder).num_hidden_layers,
            "encoder_num_attention_heads": lambda s: s.first_stack.block.attention.num_attention_heads,
            "decoder_num_attention_heads": lambda s: (
                require_present(s.spec.decoder).block.attention.num_attention_heads
            ),
            "encoder_hidden_act": lambda s: s.first_stack.block.feed_forward.hidden_act,
            "decoder_hidden_act": lambda s: require_present(s.spec.decoder).block.feed_forward.hidden_act,
            "intermediate_size": lambda s: s.first_stack.block.feed_forward.intermediate_size,
            "partial_rotary_factor": "partial_rotary_factor",
        },
        modules={
            "stem": "conv1 + conv2 + conv3 + groupnorm",
            "stem.conv1": ".conv1",
            "stem.conv2": ".conv2",
            "stem.conv3": ".conv3",
            "stem.groupnorm": ".groupnorm",
            **module_names("moonshine"),
            "encoder.norm": "layer_norm",
        },
    ),
}
