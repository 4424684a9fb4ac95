"""Reformer: reversible layers whose attention is local, or sorted by hashes.

Kitaev et al. 2020 (arXiv:2001.04451). transformers: models/reformer.
"""

from __future__ import annotations

from math import lcm

from ...config import Config, is_json_integer
from ...family import EVERY_CLASS, Family, Quirks, field_names
from ...parts import ACTIVATIONS, Table, class_name_of_config, decoder, layer_pattern, layernorm, learned_positions, mlp

HASHED_BY_ATTENTION_KIND = {"local": False, "lsh": True}


def _read_reformer(config: Config) -> Table:
    class_name = class_name_of_config(config)
    if class_name.endswith(("ForSequenceClassification", "ForQuestionAnswering")):
        raise config.error("architectures", class_name, "ReformerModelWithLMHead, ReformerForMaskedLM or ReformerModel")
    listed_kinds = config.texts("attn_layers")
    if not listed_kinds or not HASHED_BY_ATTENTION_KIND.keys() >= {*listed_kinds}:
        raise config.error("attn_layers", listed_kinds, "a list of 'local' and 'lsh'")
    if config.has("num_hidden_layers") and config.integer("num_hidden_layers") != len(listed_kinds):
        num_hidden_layers = config.integer("num_hidden_layers")
        raise config.error("num_hidden_layers", num_hidden_layers, f"{len(listed_kinds)} (attn_layers)")
    norm = layernorm(config.number("layer_norm_eps"))
    layer_kinds = dict.fromkeys(listed_kinds)
    layers_by_kind = {layer_kind: {"attention": _attention(config, layer_kind)} for layer_kind in layer_kinds}
    block = {
        "type": "reversible",
        **layers_by_kind[listed_kinds[0]],
        "feed_forward": mlp(config.integer("feed_forward_size"), config.choice(ACTIVATIONS, "hidden_act")),
        "norm": norm,
        "norm_placement": "pre",
    }
    chunk_lengths = [
        config.integer(f"{'lsh' if HASHED_BY_ATTENTION_KIND[attention_kind] else 'local'}_attn_chunk_length")
        for attention_kind in layers_by_kind
    ]
    streams = {"type": "reversible", "block": lcm(*chunk_lengths), "least": min(chunk_lengths), "norm": norm}
    stack_fields: Table = {"num_hidden_layers": len(listed_kinds), "position": _position(config), "streams": streams}
    if len(layers_by_kind) > 1:
        stack_fields |= {"variants": layers_by_kind, **layer_pattern(listed_kinds)}
    config.fields_read.add("tie_word_embeddings")  # a row of the head is twice as wide as one of the embedding
    config.notes.append("reversible layers: training computes each layer again, which is not counted")
    model_fields = decoder(config, block, None, {"bias": True}, stack_fields, tie_word_embeddings=False)
    if not config.flag("is_decoder"):
        model_fields["encoder"] = model_fields.pop("decoder")
    return model_fields


def _attention(config: Config, attention_kind: str) -> Table:
    is_hashed = HASHED_BY_ATTENTION_KIND[attention_kind]
    field_prefix = "lsh" if is_hashed else "local"
    attention_fields: Table = {
        "type": "chunked",
        "num_attention_heads": config.integer("num_attention_heads"),
        "head_dim": config.integer("attention_head_size"),
        "chunk_length": config.integer(f"{field_prefix}_attn_chunk_length"),
        "chunks_before": config.count(f"{field_prefix}_num_chunks_before"),
        "chunks_after": config.count(f"{field_prefix}_num_chunks_after"),
    }
    if not is_hashed:
        return {**attention_fields, "num_hashes": None}  # a block whose first layer is hashed states a number
    bucket_counts = config.get("num_buckets")
    listed_buckets = bucket_counts if isinstance(bucket_counts, list) else [bucket_counts]
    if not listed_buckets or not all(
        is_json_integer(bucket_count) and bucket_count > 0 and bucket_count % 2 == 0 for bucket_count in listed_buckets
    ):
        expected_text = (
            "an even number, or a list of even numbers; its class chooses one by the length of the first text"
        )
        raise config.error("num_buckets", bucket_counts, expected_text)
    return {**attention_fields, "num_hashes": config.integer("num_hashes"), "directions": sum(listed_buckets) // 2}


def _position(config: Config) -> Table:
    if not config.flag("axial_pos_embds"):
        return learned_positions(config)
    axial_shape = config.integers("axial_pos_shape")
    axial_widths = config.integers("axial_pos_embds_dim")
    hidden_size = config.integer("hidden_size")
    if len(axial_shape) != 2 or 0 in axial_shape:
        raise config.error("axial_pos_shape", axial_shape, "two positive whole numbers")
    if len(axial_widths) != 2 or sum(axial_widths) != hidden_size or 0 in axial_widths:
        raise config.error(
            "axial_pos_embds_dim", axial_widths, f"two positive whole numbers whose sum is {hidden_size}"
        )
    return {
        "type": "axial",
        "rows": axial_shape[0],
        "columns": axial_shape[1],
        "row_size": axial_widths[0],
        "column_size": axial_widths[1],
    }


FAMILIES = {
    "reformer": Family(
        _read_reformer,
        ignored_fields=field_names("intermediate_size num_chunks_after num_chunks_before"),  # of a published config
        defaults={"attn_layers": ["local", "lsh"] * 3, "axial_pos_shape": [64, 64], "axial_pos_embds_dim": [64, 192]},
        quirks=Quirks(value_reading_classes=EVERY_CLASS, counted_field_values={"use_cache": False}),
        dropout_fields={},
    )
}
