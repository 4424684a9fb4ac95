"""Moshi (speech dialogue) and Kyutai's speech to text: decoders that read tokens of text and of audio.

Défossez et al. 2024 (arXiv:2410.00037); Zeghidour et al. 2025 (arXiv:2509.08753). The audio codec is not counted, nor
is Moshi's depth decoder, which generates the audio's tokens of a time step.
transformers: models/moshi, models/kyutai_speech_to_text.
"""

from __future__ import annotations

from ...config import Config
from ...family import EVERY_CLASS, Family, Quirks, module_names
from ...parts import ACTIVATIONS, Table, attention, class_name_of_config, decoder, float32_rmsnorm, layer_table


def _read_moshi(config: Config) -> Table:
    """Reads Moshi's main decoder, whose untied embedding table has one token more than the output head."""
    config.fields_read.add("tie_word_embeddings")
    if not class_name_of_config(config).endswith(("ForCausalLM", "MoshiModel")):
        config.notes.append("num_codebooks: the embeddings of the audio's tokens are not counted")
    return {**_sliding_decoder(config), "tie_word_embeddings": False, "additional_vocab_size": 1}


def _read_kyutai_speech_to_text(config: Config) -> Table:
    """Reads Kyutai's decoder, whose embedding table has text tokens, all codebooks' tokens, and a padding token."""
    config.require("tie_word_embeddings", False)
    codebook_count = config.integer("num_codebooks")
    config.notes.append(
        f"num_codebooks: the embeddings of {codebook_count} tokens of audio at each position are not counted in memory "
        "before their sum"
    )
    additional_vocab_size = codebook_count * config.integer("codebook_vocab_size") + 1
    return {**_sliding_decoder(config), "additional_vocab_size": additional_vocab_size}


def _sliding_decoder(config: Config) -> Table:
    """Returns the decoder: Llama's layers with a sliding window; half of `ffn_dim` is the FFN's gate."""
    norm, ffn_width = float32_rmsnorm(config.number("rms_norm_eps")), config.integer("ffn_dim")
    config.quotient("num_attention_heads", config.integer("hidden_size"), config.integer("num_attention_heads"))
    if ffn_width % 2:
        raise config.error("ffn_dim", ffn_width, "an even number")
    window_size = config.optional_integer("sliding_window")
    block = layer_table(
        attention(config, sliding_window=window_size),
        {"intermediate_size": ffn_width // 2, "hidden_act": config.choice(ACTIVATIONS, "hidden_act"), "gated": True},
        norm,
    )
    return decoder(config, block, norm)


FAMILIES = {
    "moshi": Family(
        _read_moshi,
        tower_class_prefixes="MoshiForConditionalGeneration",
        uncounted_encoders={"audio_encoder_config": "mimi", "depth_decoder_config": "moshi_depth"},
        uncounted_modules="embed_tokens.* + audio_encoder + depth_decoder",
        quirks=Quirks(mask_making_classes=EVERY_CLASS),
    ),
    "kyutai_speech_to_text": Family(
        _read_kyutai_speech_to_text,
        ignored_fields=frozenset({"frame_size"}),
        tower_class_prefixes="KyutaiSpeechToTextForConditionalGeneration",
        uncounted_encoders={"codec_config": "mimi"},
        uncounted_modules="codec_model",
        quirks=Quirks(
            mask_making_classes=EVERY_CLASS,
            decoder_ids=lambda config, ids: ids[..., None].expand(-1, -1, 1 + config.num_codebooks),
        ),
        modules={**module_names("moshi"), "embed_tokens": "embed_tokens.embed_tokens"},
    ),
}
