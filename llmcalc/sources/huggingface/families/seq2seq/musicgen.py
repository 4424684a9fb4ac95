"""MusicGen: a decoder of an audio codec's tokens, with one embedding and one head for each codebook.

Copet et al. 2023 (arXiv:2306.05284). MusicGen's decoder attends to the output of a text encoder. MusicGen Melody's has
no cross-attention: the text and the chroma of a melody are tokens before those of the audio, so its text encoder is not
counted. The codec is not counted either.
transformers: models/musicgen, models/musicgen_melody.
"""

from __future__ import annotations

from ...config import Config
from ...dropout import BART_DROPOUT
from ...family import Family, ModuleNames, Quirks, module_names
from ...parts import ACTIVATIONS, IDLE_CROSS_ATTENTION_NOTE, Table, decoder, layer_table, layernorm, mlp
from .encoder_decoder import model_type_of, read_section_model
from .t5 import T5_MODULES


def _read_musicgen(config: Config) -> Table:
    """Reads MusicGen's decoder, and the text encoder whose output the decoder reads."""
    text_encoder, decoder_section = config.table("text_encoder"), config.table("decoder")
    text_model_type = model_type_of(config, "text_encoder", text_encoder)
    decoder_model_type = "musicgen_decoder"
    if decoder_section.get("model_type", decoder_model_type) != decoder_model_type:
        raise config.error("decoder.model_type", decoder_section["model_type"], f"'{decoder_model_type}'")
    encoder = read_section_model(
        config, "text_encoder", text_model_type, {**text_encoder, "architectures": ["EncoderModel"]}, "none"
    )
    section_fields = {**decoder_section, "architectures": ["MusicgenForCausalLM"]}
    model_fields = read_section_model(config, "decoder", decoder_model_type, section_fields)
    if "encoder" not in encoder or "decoder" in encoder:
        raise config.error("text_encoder", text_model_type, "the config of a text encoder, such as T5's")
    del model_fields["decoder"]["block"]["idle_cross_attention"]
    source_width = encoder["hidden_size"]
    stack_fields = {**encoder["encoder"], "vocab_size": encoder["vocab_size"], "hidden_size": source_width}
    if source_width != model_fields["hidden_size"] and decoder_section.get("cross_attention_hidden_size") is None:
        stack_fields["output_size"] = model_fields["hidden_size"]
    config.fields_read.add("audio_encoder")
    config.notes.append("its encoder is not counted: audio_encoder: the codec that turns audio into tokens and back")
    return {**model_fields, "encoder": stack_fields}


def _read_musicgen_decoder(config: Config) -> Table:
    """Reads MusicGen's decoder, which attends to the text."""
    model_fields = _read_melody_decoder(config)
    block = model_fields["decoder"]["block"]
    block |= {"cross_attention": block["attention"], "idle_cross_attention": True}
    config.notes.append(IDLE_CROSS_ATTENTION_NOTE)
    return model_fields


def _read_melody_decoder(config: Config) -> Table:
    """Reads a decoder whose embedding has, for each codebook, all tokens and a padding token."""
    norm, head_count, codebook_count = (
        layernorm(),
        config.integer("num_attention_heads"),
        config.integer("num_codebooks"),
    )
    config.quotient("num_attention_heads", config.integer("hidden_size"), head_count)
    ffn = mlp(config.integer("ffn_dim"), config.choice(ACTIVATIONS, "activation_function"), bias=False)
    model_fields = decoder(
        config,
        layer_table({"num_attention_heads": head_count}, ffn, norm),
        norm,
        stack={"position": {"type": "sinusoidal"}},
        tie_word_embeddings=False,  # its class ties nothing
        vocab_size=codebook_count * config.integer("vocab_size"),
        additional_vocab_size=codebook_count,
    )
    config.notes.append(
        f"num_codebooks: vocab_size is that of {codebook_count} codebooks; the embeddings of {codebook_count} tokens "
        "at each "
        "position are not counted in memory before their sum"
    )
    return model_fields


MODULES: ModuleNames = {**module_names("bart"), "embed_tokens": "embed_tokens", "lm_head": "lm_heads"}

MODULES_WITH_T5: ModuleNames = {
    **MODULES,
    **{f"encoder.{name}": module_name for name, module_name in T5_MODULES.items() if not name.startswith("decoder.")},
    **{
        name: f"{T5_MODULES[name]} | {MODULES.get(name, name)}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    },
    "encoder": "text_encoder.encoder",
    "encoder.embed_tokens": "text_encoder.shared",
    "decoder": "decoder.model.decoder",
    "embed_tokens": "decoder.model.decoder.embed_tokens",
    "output_proj": "enc_to_dec_proj",
    "lm_head": "decoder.lm_heads",
}
"""Module names for a T5 text encoder; with any other text encoder, only totals are compared."""

CODEBOOK_QUIRKS = Quirks(decoder_ids=lambda config, ids: ids.repeat_interleave(config.num_codebooks, 0))
"""Quirks of a decoder that takes the tokens of each codebook as a separate sequence."""

FAMILIES = {
    "musicgen": Family(
        _read_musicgen,
        ignored_fields=frozenset({"vocab_size"}),
        uncounted_modules="audio_encoder",
        modules=MODULES_WITH_T5,
        quirks=Quirks(decoder_ids=lambda config, ids: ids.repeat_interleave(config.decoder.num_codebooks, 0)),
    ),
    "musicgen_decoder": Family(
        _read_musicgen_decoder, modules=MODULES, quirks=CODEBOOK_QUIRKS, dropout_fields=BART_DROPOUT
    ),
    "musicgen_melody": Family(
        None,
        text_type="musicgen_melody_decoder",
        text_section="decoder",
        tying_source="never",
        uncounted_encoders={"audio_encoder": "encodec", "text_encoder": "t5"},
    ),
    "musicgen_melody_decoder": Family(
        _read_melody_decoder, modules=MODULES, quirks=CODEBOOK_QUIRKS, dropout_fields=BART_DROPOUT
    ),
}
