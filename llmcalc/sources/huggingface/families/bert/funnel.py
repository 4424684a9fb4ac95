"""Funnel Transformer: blocks of layers that halve the number of tokens, and a decoder at full length.

Dai et al. 2020 (arXiv:2006.03236). Classes that score a whole sequence have no decoder. transformers: models/funnel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .....components.base import MAX_LAYERS
from ...config import Config
from ...dropout import WAV2VEC_DROPOUT
from ...family import Family
from ...field_writers import FieldWriters
from ...parts import (
    ACTIVATIONS,
    MULTIPLE_CHOICE,
    Table,
    class_name_of_config,
    encoder,
    layernorm,
    mlp,
    scores_sequences,
)
from .bert import has_pretraining_head

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues

MAX_BLOCKS = 8


def _read_funnel(config: Config) -> Table:
    config.require("attention_type", "relative_shift")
    block_sizes, block_repeats = config.integers("block_sizes"), _block_repeats(config)
    head_count, norm = config.integer("num_attention_heads"), layernorm(config.number("layer_norm_eps"))
    separates_cls, decoder_depth = config.flag("separate_cls"), config.count("num_decoder_layers")
    class_name, activation = class_name_of_config(config), config.choice(ACTIVATIONS, "hidden_act")
    if class_name.endswith("BaseModel") or scores_sequences(config):
        decoder_depth = 0
    block = {
        "type": "funnel",
        "attention": {"type": "funnel", "num_attention_heads": head_count, "head_dim": config.integer("d_head")},
        "feed_forward": mlp(config.integer("d_inner"), activation),
        "norm": norm,
        "separate_cls": separates_cls,
        "truncate_seq": config.flag("truncate_seq"),
    }
    halves_keys = not config.flag("pool_q_only")
    stack_fields = {"embedding_norm": norm, **_stack_of_blocks(block_sizes, block_repeats, decoder_depth, halves_keys)}
    config.fields_read.add("pooling_type")
    score_head: Table = {"over": "token"}
    if scores_sequences(config) or class_name.endswith(MULTIPLE_CHOICE):
        score_head = {"transform": {"hidden_act": "tanh", "norm": None}}
    model_fields: Table = {}
    if has_pretraining_head(config):  # the discriminator, which classifies each token as original or replaced
        transform = {"hidden_act": activation, "norm": None}
        model_fields = {"head": {"type": "classification", "num_labels": 1, "over": "token", "transform": transform}}
    return encoder(config, block, stack_fields, {"bias": True}, score_head, **model_fields)


def _block_repeats(config: Config) -> list[int]:
    """Returns how many times each layer of a block runs."""
    block_sizes = config.integers("block_sizes")
    block_repeats = [1] * len(block_sizes) if config.get("block_repeats") is None else config.integers("block_repeats")
    if not 1 <= len(block_sizes) <= MAX_BLOCKS:
        raise config.error("block_sizes", block_sizes, f"one to {MAX_BLOCKS} numbers")
    if len(block_repeats) != len(block_sizes):
        raise config.error("block_repeats", block_repeats, f"{len(block_sizes)} numbers, as in block_sizes")
    if sum(count * repeat_count for count, repeat_count in zip(block_sizes, block_repeats, strict=True)) > MAX_LAYERS:
        raise config.error("block_repeats", block_repeats, f"at most {MAX_LAYERS} layers")
    return block_repeats


def _stack_of_blocks(block_sizes: list[int], block_repeats: list[int], decoder_depth: int, halves_keys: bool) -> Table:
    """Returns the stack fields of the layers of all blocks and of the decoder, with a variant for each layer kind."""
    layer_kinds: list[str] = []
    shared_layers: list[str] = []
    layer_variants: Table = {}
    for block_index, (layer_count, repeat_count) in enumerate(zip(block_sizes, block_repeats, strict=True)):
        for layer_index in range(layer_count):
            layer_changes: Table = {"halvings": block_index} if block_index else {}
            layer_kind = f"block{block_index}"
            if layer_index == 0 and block_index:
                layer_kind, layer_changes = f"{layer_kind}_first", {"halves": True, "halvings": block_index - 1}
                layer_changes |= {"halves_keys": True} if halves_keys else {}
            if layer_index == layer_count - 1 and block_index == 0 and decoder_depth:
                layer_kind, layer_changes = f"{layer_kind}_last", {"ends_first_block": True}
            if repeat_count > 1:
                layer_kind = f"{layer_kind}_{layer_index}"
                shared_layers.append(layer_kind)
            layer_variants[layer_kind] = layer_changes
            layer_kinds += [layer_kind] * repeat_count
    for layer_index in range(decoder_depth):
        layer_changes = {"lengthens": True, "halvings": len(block_sizes) - 1} if layer_index == 0 else {}
        layer_kind = "decoder_first" if layer_index == 0 else "decoder"
        layer_variants[layer_kind] = layer_changes
        layer_kinds.append(layer_kind)
    return {
        "num_hidden_layers": len(layer_kinds),
        "variants": layer_variants,
        "first_layers": layer_kinds,
        "pattern": layer_kinds[-1:],
        "shared_layers": shared_layers,
    }


def _layers_by_block(model_values: ConfigValues) -> list[list[tuple[str, Any]]]:
    """Returns the layers of each block with their names, without the decoder's layers."""
    layers_by_block: list[list[tuple[str, Any]]] = [[]]
    layer_kinds = model_values.first_stack.layer_names()
    layers_by_kind: dict[str, Any] = {**model_values.first_stack.layers_by_kind()}
    for layer_index, layer_kind in enumerate(layer_kinds):
        if layers_by_kind[layer_kind].lengthens:
            break
        if layers_by_kind[layer_kind].halves and (layer_index == 0 or layer_kinds[layer_index - 1] != layer_kind):
            layers_by_block.append([])
        layers_by_block[-1].append((layer_kind, layers_by_kind[layer_kind]))
    return layers_by_block


def _repeats_of_blocks(model_values: ConfigValues) -> list[int]:
    return [
        sum(layer_kind == block[0][0] for layer_kind, _ in block) if _are_shared(model_values, block) else 1
        for block in _layers_by_block(model_values)
    ]


def _are_shared(model_values: ConfigValues, layers: list[tuple[str, Any]]) -> bool:
    return layers[0][0] in model_values.first_stack.shared_layers


FIELD_WRITERS: FieldWriters = {
    "block_sizes": lambda s: [
        len(block) // times for block, times in zip(_layers_by_block(s), _repeats_of_blocks(s), strict=True)
    ],
    "block_repeats": _repeats_of_blocks,
    "num_decoder_layers": lambda s: s.first_stack.num_hidden_layers - sum(map(len, _layers_by_block(s))),
    "d_head": lambda s: s.first_stack.block.attention.head_dim,
    "separate_cls": lambda s: s.first_stack.block.separate_cls,
    "truncate_seq": lambda s: s.first_stack.block.truncate_seq,
    "pool_q_only": lambda s: (
        not any(getattr(layer, "halves_keys", False) for layer in s.first_stack.layers_by_kind().values())
    ),
}


def _layer_list_paths() -> str:
    """Returns the paths of the layer lists, with and without a decoder, for each number of blocks."""
    block_paths = [f"encoder.blocks.{block_index}" for block_index in range(MAX_BLOCKS)]
    block_counts = range(MAX_BLOCKS, 0, -1)
    layer_lists = [" + ".join([*block_paths[:block_count], "decoder.layers"]) for block_count in block_counts]
    return " | ".join([*layer_lists, *(" + ".join(block_paths[:block_count]) for block_count in block_counts)])


FAMILIES = {
    "funnel": Family(
        _read_funnel,
        ignored_fields=frozenset({"type_vocab_size", "max_position_embeddings", "rel_attn_type"}),
        aliases={"hidden_size": "d_model", "num_attention_heads": "n_head"},
        field_writers=FIELD_WRITERS,
        modules={
            "embed_tokens": "embeddings.word_embeddings",
            "embed_norm": "embeddings.layer_norm",
            "layers": _layer_list_paths(),
            "self_attn": "attention - attention.layer_norm",
            "q_proj": "q_head",
            "k_proj": "k_head",
            "v_proj": "v_head",
            "r_proj": "r_kernel",
            "o_proj": "post_proj",
            "content_bias": "r_w_bias",
            "position_bias": "r_r_bias",
            "segment_bias": "r_s_bias",
            "segments": "seg_embed",
            "self_attn_post_norm": "attention.layer_norm",
            "mlp": "ffn - ffn.layer_norm",
            "up_proj": "linear_1",
            "down_proj": "linear_2",
            "mlp_post_norm": "ffn.layer_norm",
            "classifier.dense": "linear_hidden | dense",
            "classifier.out_proj": "linear_out | dense_prediction | .classifier | .qa_outputs",
            "classifier": "classifier | discriminator_predictions | qa_outputs",
        },
        dropout_fields=WAV2VEC_DROPOUT,
    )
}
