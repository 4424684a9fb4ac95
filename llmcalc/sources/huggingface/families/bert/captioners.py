"""Caption decoders with BERT's layers: GIT, which reads image features as tokens, and BLIP's text decoder.

BLIP's decoder attends to the image by cross-attention, which does not run on text alone.

transformers: models/git, models/blip.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import Family, module_names
from ...head_kinds import architecture_of
from ...parts import IDLE_CROSS_ATTENTION_NOTE, QKVO_BIASES, Table, biases, decoder, layernorm, pooler
from .bert import SECOND_BIAS, bert_activation, bert_block, bert_head, bert_positions


def _caption_decoder(config: Config, head_fields: Table, **cross_fields: Any) -> Table:
    stack_fields = {"position": bert_positions(config), "embedding_norm": layernorm(config.number("layer_norm_eps"))}
    has_pooler = architecture_of(config.config_fields) == "BlipTextModel"
    return decoder(
        config, {**bert_block(config), **cross_fields}, None, head_fields, stack_fields, **pooler(has_pooler)
    )


def _read_blip_text_model(config: Config) -> Table:
    config.require("is_decoder", True)
    config.notes.append(IDLE_CROSS_ATTENTION_NOTE)
    attention = {"num_attention_heads": config.integer("num_attention_heads"), **biases(True, *QKVO_BIASES)}
    encoder_width, hidden_size = config.integer("encoder_hidden_size"), config.integer("hidden_size")
    return _caption_decoder(
        config,
        bert_head(config, bert_activation(config)),
        cross_attention=attention,
        idle_cross_attention=True,
        **({} if encoder_width == hidden_size else {"idle_source_size": encoder_width}),
    )


FAMILIES = {
    "git": Family(
        lambda config: _caption_decoder(config, {"bias": True}),
        ignored_fields=frozenset({"vision_config"}),  # read with the encoder
        tower_class_prefixes="Git",
        tower_file="siglip",
        uncounted_modules="git.img_temporal_embedding",
        modules={
            **module_names("bert"),
            "lm_head": "output",
            "towers.image_encoder": "image_encoder.vision_model",
            "towers.visual_projection": "visual_projection",
            "towers.visual_projection.map_1": "visual_projection.0",
            "towers.visual_projection.out_norm": "visual_projection.1",
        },
        dropout_fields=BERT_DROPOUT,
    ),
    "blip": Family(
        None,
        text_type="blip_text_model",
        tying_source="either",
        uncounted_classes=(
            "ForQuestionAnswering",
            "ForImageTextRetrieval",
            "BlipModel",
            "TextModel",
            "TextLMHeadModel",
            "VisionModel",
        ),
        text_fields_from_sections={"encoder_hidden_size": ("vision_config", "hidden_size", 768)},
        tower_file="blip",
    ),
    "blip_text_model": Family(
        _read_blip_text_model, deviations=(SECOND_BIAS,), modules=module_names("bert"), dropout_fields=BERT_DROPOUT
    ),
}
