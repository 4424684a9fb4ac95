"""Shapes of the families in `sources/huggingface/families/seq2seq/encoder_decoder.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {"model_type": "bert", **COMMON_SMALL, "max_position_embeddings": 90}
DECODER: dict[str, Any] = {**SMALL, "vocab_size": 80, "is_decoder": True, "add_cross_attention": True}

SHAPES = {
    "EncoderDecoderModel": [
        {"model_type": "encoder-decoder", "encoder": SMALL, "decoder": DECODER},
        {"model_type": "encoder-decoder", "encoder": {**SMALL, "hidden_size": 24}, "decoder": DECODER},
        {
            "model_type": "encoder-decoder",
            "encoder": {**SMALL, "model_type": "roberta", "type_vocab_size": 1},
            "decoder": {**DECODER, "tie_word_embeddings": False, "num_hidden_layers": 2},
        },
        {  # as google/bert2bert_L-24_wmt_en_de
            "model_type": "encoder-decoder",
            "encoder": {**SMALL, "model_type": "bert-generation"},
            "decoder": {**DECODER, "model_type": "bert-generation"},
        },
    ],
}
