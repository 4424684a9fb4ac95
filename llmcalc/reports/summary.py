"""A one-line summary of a model, and the `model` entry of documents."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from ..components.base import Component, Part, TokenMixer
from ..components.layers.block import Layer
from ..model import ModelSpec
from ..sources.preset import Preset
from ..studies.distinct_layers import distinct_layers


def headline(spec: ModelSpec) -> str:
    """Returns a model in one line: `decoder, 32 layers, hidden 4096, GQA 32/8 × 128, SwiGLU 14336, RMSNorm (pre)`."""
    draft_heads = getattr(spec.head, "draft_heads", None)
    if draft_heads is not None:
        return f"{spec.kind}, {draft_heads.describe()}, hidden {spec.hidden_size}"
    depth_text = " + ".join(str(stack.num_hidden_layers) for _, stack in spec.stacks())
    layer_specs = distinct_layers(spec)
    summary_parts = [spec.kind, f"{depth_text} layer{'s' * (depth_text != '1')}", f"hidden {spec.hidden_size}"]
    # those beside the others after the others
    ffn_texts = zip_longest(*(layer_spec.networks() for layer_spec in layer_specs))
    for model_parts in ([layer_block.attention for layer_block in layer_specs], *ffn_texts):
        part_texts = unique_texts(describe_part(model_part, spec.hidden_size) for model_part in model_parts)
        summary_parts += _merge_texts(part_texts)
    summary_parts += unique_texts(norm_style(layer_block) for layer_block in layer_specs)
    summary_parts += unique_texts(position_encodings(spec))
    return ", ".join(summary_parts)


def _merge_texts(phrases: list[str]) -> list[str]:
    """Merges texts that differ only by an added phrase: `GQA 16/8 × 256 with and without window 4096`."""
    added_phrases = {
        longer_phrase: longer_phrase.removeprefix(f"{shorter_phrase}, ")
        for shorter_phrase in phrases
        for longer_phrase in phrases
        if longer_phrase.startswith(f"{shorter_phrase}, ")
    }
    additions_by_phrase = {
        longer_phrase: [
            added_phrase
            for extended_phrase, added_phrase in added_phrases.items()
            if extended_phrase == f"{longer_phrase}, {added_phrase}"
        ]
        for longer_phrase in phrases
    }
    return [
        f"{longer_phrase} with and without {added_texts[0]}" if len(added_texts) == 1 else longer_phrase
        for longer_phrase, added_texts in additions_by_phrase.items()
        if longer_phrase not in added_phrases or len(added_phrases) > 1
    ]


def describe_part(model_part: Part | None, hidden_size: int) -> str:
    """Describes a component of the model in a few words; empty for None."""
    return model_part.describe(hidden_size) if isinstance(model_part, Component) else ""


def unique_texts(phrases: Iterable[str]) -> list[str]:
    """Returns the texts in order, without empty and repeated texts."""
    return list(dict.fromkeys(unique_text for unique_text in phrases if unique_text))


def norm_name(layer: Layer) -> str:
    """Returns `RMSNorm` or `LayerNorm`."""
    return "RMSNorm" if layer.norm.type == "rmsnorm" else "LayerNorm"


def norm_placement_of(layer: Layer) -> str:
    """Returns the norm placement, such as `pre` or `parallel, shared`."""
    return f"parallel, {layer.parallel}" if layer.parallel else layer.norm_placement


def norm_style(layer: Layer) -> str:
    """Returns the kind and placement of a layer's norms as text, such as `RMSNorm (pre)`."""
    return f"{norm_name(layer)} ({norm_placement_of(layer)})"


def position_encodings(spec: ModelSpec) -> list[str]:
    """Returns a model's position encodings as text: `RoPE`, `learned 1024`, `ALiBi`, or `no positions`."""
    encoding_names: list[str] = []
    for _, stack in spec.stacks():
        if stack.position is not None:
            encoding_names.append(stack.position.describe(spec.hidden_size))
        if stack.relative_bias is not None:
            encoding_names.append("relative bias")
    for layer in distinct_layers(spec):
        attention = layer.attention
        score_position_encoding = attention.score_position_encoding() if isinstance(attention, TokenMixer) else None
        encoding_names.append("" if score_position_encoding is None else score_position_encoding.label)
    return unique_texts(encoding_names) or ["no positions"]


def model_data(preset: Preset) -> dict[str, Any]:
    """Returns the entry `model` of a JSON document: the model's name, title, kind and changes."""
    return {
        "name": preset.name,
        "target": preset.target,
        "title": preset.display,
        "kind": preset.model.kind,
        "changes": list(preset.changes),
    }
