from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4}
T5, MT5, UMT5 = ({"model_type": kind, **SMALL} for kind in ("t5", "mt5", "umt5"))
LONGT5: dict[str, Any] = {**SMALL, "model_type": "longt5", "local_radius": 11, "global_block_size": 7}
SUMMING = {**LONGT5, "encoder_attention_type": "transient-global"}

PIANO: dict[str, Any] = {**SMALL, "model_type": "pop2piano", "composer_vocab_size": 5}

SHAPES = {
    "Pop2PianoForConditionalGeneration": [
        PIANO,
        {**PIANO, "d_kv": 12, "num_decoder_layers": 2, "feed_forward_proj": "relu", "composer_vocab_size": 9},
    ],
    "T5ForConditionalGeneration": [
        T5,
        {**T5, "d_kv": 12, "num_decoder_layers": 2, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {
            **T5,
            "relative_attention_num_buckets": 16,
            "relative_attention_max_distance": 20,
            "feed_forward_proj": "gated-silu",
        },
    ],
    "T5EncoderModel": [T5],
    "T5ForSequenceClassification": [T5],
    "T5Model": [T5],
    "T5ForTokenClassification": [{**T5, "num_labels": 5}],
    "MT5ForConditionalGeneration": [MT5, {**MT5, "tie_word_embeddings": False, "feed_forward_proj": "relu"}],
    "MT5EncoderModel": [MT5],
    "UMT5ForConditionalGeneration": [UMT5, {**UMT5, "tie_word_embeddings": False, "num_decoder_layers": 1}],
    "UMT5EncoderModel": [{**UMT5, "d_kv": 12}],
    "LongT5ForConditionalGeneration": [
        LONGT5,
        {
            **LONGT5,
            "d_kv": 12,
            "num_decoder_layers": 2,
            "local_radius": 127,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
        SUMMING,
        {
            **SUMMING,
            "d_kv": 12,
            "global_block_size": 40,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            "num_decoder_layers": 1,
        },
        {
            **SUMMING,
            "local_radius": 1,
            "global_block_size": 1,
            "relative_attention_num_buckets": 16,
            "feed_forward_proj": "gated-silu",
        },
    ],
    "LongT5Model": [LONGT5, SUMMING],
    "LongT5EncoderModel": [{**LONGT5, "d_kv": 12}, {**SUMMING, "num_layers": 1, "feed_forward_proj": "gated-gelu"}],
}
