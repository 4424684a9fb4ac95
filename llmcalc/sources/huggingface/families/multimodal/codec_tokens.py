"""CSM and Higgs Audio v2: decoders that read text and audio-codec tokens, and generate audio-codec tokens.

CSM's depth decoder, which generates all but the first codebook's token of a frame, is not counted, nor is the codec of
either. Higgs Audio's layers have a second network and norms for tokens of sound.
transformers: models/csm, models/higgs_audio_v2.
"""

from __future__ import annotations

from ...config import Config
from ...family import EVERY_CLASS, Family, Quirks
from ...parts import Table, attention, attention_biases, class_name_of_config, decoder, glu, layer_table, rmsnorm


def _read_csm(config: Config) -> Table:
    """Reads CSM's backbone, whose head scores the tokens of the first codebook."""
    class_name = class_name_of_config(config)
    if class_name and not class_name.endswith("ForConditionalGeneration"):
        raise config.error("architectures", class_name, "CsmForConditionalGeneration, the class of the whole model")
    return _codec_decoder(config, config.integer("vocab_size"), config.integer("text_vocab_size"))


def _read_higgs_audio_v2(config: Config) -> Table:
    """Reads Higgs Audio v2, whose head scores the tokens of all codebooks, and no text tokens."""
    codebook_size, text_vocab_size = config.integer("codebook_size"), config.integer("vocab_size")
    model_fields = _codec_decoder(config, codebook_size, text_vocab_size)
    other_network = glu(config, config.flag("mlp_bias"))
    model_fields["decoder"]["block"] |= {"type": "paired", "other_feed_forward": other_network, "other_norms": True}
    config.notes.append(
        "tokens of sound use a network and norms of their own, whose products are not counted: passes are those of text"
    )
    head_parameters = text_vocab_size * config.integer("hidden_size")
    config.notes.append(
        f"text_lm_head: the head of text in released weights, {head_parameters:,} parameters, which its class does not "
        "build, is not counted"
    )
    codebook_count = config.integer("num_codebooks")
    rows = {"vocab_size": codebook_count * codebook_size, "additional_vocab_size": text_vocab_size}
    return {**model_fields, **rows}


def _codec_decoder(config: Config, codebook_size: int, text_vocab_size: int) -> Table:
    """Returns Llama's layers with untied embeddings of text and codebooks, and a head for one codebook's tokens."""
    config.fields_read.add("tie_word_embeddings")
    codebook_count = config.integer("num_codebooks")
    config.notes.append(
        f"num_codebooks: the embeddings of {codebook_count} tokens of a frame are not counted in memory before their "
        "sum"
    )
    norm = rmsnorm(config.number("rms_norm_eps"))
    layer = layer_table(attention(config, **attention_biases(config)), glu(config, config.flag("mlp_bias")), norm)
    return decoder(
        config,
        layer,
        norm,
        tie_word_embeddings=False,
        vocab_size=codebook_size,
        additional_vocab_size=(codebook_count - 1) * codebook_size + text_vocab_size,
    )


FAMILIES = {
    "csm": Family(
        _read_csm,
        {"tie_word_embeddings": True},
        tower_class_prefixes="CsmForConditionalGeneration",
        uncounted_encoders={"codec_config": "mimi", "depth_decoder_config": "csm_depth_decoder_model"},
        uncounted_modules="codec_model + depth_decoder",
        quirks=Quirks(mask_making_classes=EVERY_CLASS),
        modules={
            "embed_tokens": "embed_text_tokens + backbone_model.embed_tokens",
            "layers": "backbone_model.layers",
            "norm": "backbone_model.norm",
        },
    ),
    "higgs_audio_v2": Family(
        _read_higgs_audio_v2,
        quirks=Quirks(
            value_reading_classes=EVERY_CLASS, decoder_ids=lambda config, ids: ids.remainder(config.vocab_size)
        ),
        modules={
            "embed_tokens": "embed_tokens + embed_audio_tokens",
            "lm_head": "audio_lm_head",
            "other": "audio_mlp + audio_input_layernorm + audio_post_attention_layernorm",
            "other.self_attn_pre_norm": ".audio_input_layernorm",
            "other.mlp_pre_norm": ".audio_post_attention_layernorm",
            "other.mlp": ".audio_mlp",
        },
    ),
}
