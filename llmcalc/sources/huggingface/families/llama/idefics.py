"""IDEFICS: Llama's layers, with a layer that attends to images before every N-th layer.

Laurençon et al. 2023 (arXiv:2306.16527), after Flamingo. Its class runs the layers for images on text too: a pass over
text alone has queries without keys there. transformers: models/idefics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...config import Config
from ...family import EVERY_CLASS, Family, Quirks
from ...field_writers import FieldWriters
from ...parts import Table, attention, decoder, glu, layer_pattern, layer_table, qk_norm_fields, rmsnorm

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues

IMAGE_WIDTH = 768
"""The default of `embed_dim` of the image encoder."""


def _read_idefics(config: Config) -> Table:
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    image_interval = config.integer("cross_layer_interval")
    config.quotient("cross_layer_interval", depth, image_interval)
    vision_config = Config(config.table("vision_config") if config.has("vision_config") else {}, {}, "idefics_vision")
    image_width = vision_config.integer("embed_dim") if vision_config.has("embed_dim") else IMAGE_WIDTH
    block = layer_table(attention(config), glu(config), norm)
    image_layer: Table = {
        "type": "gated_cross_text",
        "attention": {"position": "none", **(qk_norm_fields(norm) if config.flag("qk_layer_norms") else {})},
        "gate_per_feature": config.choice({"vector": True, "float": False}, "alpha_type"),
        **({} if image_width == config.integer("hidden_size") else {"source_size": image_width}),
    }
    config.notes.append("cross_layer_interval: text alone is counted; its products with images are not counted")
    layer_kinds = (["image"] + ["block"] * image_interval) * (depth // image_interval)
    stack_fields = {
        "variants": {"image": image_layer},
        "num_hidden_layers": len(layer_kinds),
        **layer_pattern(layer_kinds),
    }
    vocab_size = config.integer("vocab_size") + config.count("additional_vocab_size")
    return {**decoder(config, block, norm, stack=stack_fields), "vocab_size": vocab_size}


def _empty_image_arguments(config: Any) -> dict[str, tuple[int | str, ...]]:
    """Returns the forward arguments for a text without an image."""
    argument_name = "perceiver_embeddings" if config.use_resampler else "image_encoder_embeddings"
    return {argument_name: ("batch", 1, 0, config.vision_config.embed_dim), "image_attention_mask": ("batch", "seq", 1)}


def _image_layer(model_values: ConfigValues) -> Any:
    """Returns the layer that attends to images."""
    return model_values.first_stack.variants["image"]


def _image_layer_interval(model_values: ConfigValues) -> int:
    """Returns the number of Llama's layers between layers that attend to images."""
    layer_kinds = model_values.first_stack.layer_names()
    return layer_kinds.count("block") // max(1, layer_kinds.count("image"))


FIELD_WRITERS: FieldWriters = {
    "num_hidden_layers": lambda s: s.first_stack.layer_names().count("block"),
    "cross_layer_interval": _image_layer_interval,
    "alpha_type": lambda s: "vector" if _image_layer(s).gate_per_feature else "float",
    "qk_layer_norms": lambda s: _image_layer(s).attention.qk_norm is not None,
    "vision_config": lambda s: {"embed_dim": _image_layer(s).source_size or s.spec.hidden_size},
}

FAMILIES = {
    "idefics": Family(
        _read_idefics,
        tower_class_prefixes="Idefics",
        uncounted_encoders={"vision_config": "idefics_vision", "perceiver_config": "idefics_perciever"},
        uncounted_modules="model.vision_model + model.perceiver_resampler + vision_model + perceiver_resampler",
        field_writers=FIELD_WRITERS,
        quirks=Quirks(value_reading_classes=EVERY_CLASS, further_inputs=_empty_image_arguments),
        dropout_fields={"attention": "dropout", "attention_output": "dropout", "feed_forward": "dropout"},
    )
}
