"""EncoderDecoderModel: an encoder and a decoder of other model types, joined by cross-attention (BERT2BERT).

Rothe et al. 2020 (arXiv:1907.12461). The decoder is the causal language model of its type. The encoder keeps the pooler
of its class, and has a projection to the decoder's width if the two widths differ and the decoder's cross-attention
states no width of its own.
transformers: models/encoder_decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .....components.head_kind import HeadKind
from ...config import Config
from ...dropout import dropout_of
from ...family import Family, module_names
from ...parts import IDLE_CROSS_ATTENTION_NOTE, Table
from ...registry import causal_class, family_of, typed_config, usual_name
from ..bert.bert import SECOND_BIAS


def _read_encoder_decoder(config: Config) -> Table:
    config.fields_read.add("tie_word_embeddings")  # each of the two models ties by its own config
    config_sections: dict[str, Mapping[str, Any]] = {name: config.table(name) for name in ("encoder", "decoder")}
    model_types = {name: model_type_of(config, name, fields) for name, fields in config_sections.items()}
    decoder_class = causal_class(model_types["decoder"], "decoder.", config.config_fields)
    encoder = read_section_model(
        config, "encoder", model_types["encoder"], {**config_sections["encoder"], "architectures": ["Model"]}, "none"
    )
    decoder = read_section_model(
        config, "decoder", model_types["decoder"], {**config_sections["decoder"], "architectures": [decoder_class]}
    )
    if "encoder" not in encoder or "decoder" in encoder:
        raise config.error("encoder", model_types["encoder"], "the config of an encoder (is_decoder = false)")
    block = decoder["decoder"]["block"] if "decoder" in decoder and "encoder" not in decoder else {}
    if not block.get("idle_cross_attention"):
        raise config.error(
            "decoder",
            model_types["decoder"],
            "the config of a decoder with is_decoder = true and add_cross_attention = true",
        )
    del block["idle_cross_attention"]
    hidden_size, source_width = decoder["hidden_size"], encoder["hidden_size"]
    stack_fields = {**encoder["encoder"], "vocab_size": encoder["vocab_size"], "hidden_size": source_width}
    if "pooler" in encoder:
        stack_fields["pooler"] = encoder["pooler"]
    if source_width != hidden_size and config_sections["decoder"].get("cross_attention_hidden_size") is None:
        stack_fields["output_size"] = hidden_size
    return {**decoder, "encoder": stack_fields}


def model_type_of(config: Config, section_name: str, section_fields: Mapping[str, Any]) -> str:
    """Returns the model type in a config section that is the config of a whole model."""
    model_type = section_fields.get("model_type")
    if not isinstance(model_type, str):
        raise config.error(section_name, model_type, "a table of fields with the model_type of that model")
    return usual_name(model_type)


def read_section_model(
    config: Config, section_name: str, model_type: str, section_fields: Mapping[str, Any], head: HeadKind = "lm"
) -> Table:
    """Returns the model that a section of the config describes."""
    family = family_of(model_type, f"{section_name}.", section_fields)
    if family.read_model is None:
        raise config.error(section_name, model_type, "a model of text, not a wrapper")
    section_config = typed_config(section_fields, model_type, family, head, f"{section_name}.")
    model_fields = family.read_model(section_config)
    model_fields |= dropout_of(section_config, family)
    section_config.finish(family.ignored_fields, config)
    config.notes += [note for note in section_config.notes if note != IDLE_CROSS_ATTENTION_NOTE]
    return model_fields


FAMILIES = {
    "encoder-decoder": Family(
        _read_encoder_decoder,
        ignored_fields=frozenset({"vocab_size"}),
        generates_text=True,
        modules=module_names("encoder_decoder"),
        deviations=(SECOND_BIAS,),
    )
}
