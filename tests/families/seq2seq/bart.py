from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 90,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
}
LOPSIDED = {
    **SMALL,
    "encoder_layers": 3,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 40,
    "activation_function": "relu",
}


def _both(kind: str) -> list[dict[str, Any]]:
    return [
        {"model_type": kind, **SMALL},
        {"model_type": kind, **LOPSIDED},
        {"model_type": kind, **SMALL, "tie_word_embeddings": False},
    ]


def _alone(kind: str) -> list[dict[str, Any]]:
    """The decoder alone, with and without the config field that states it."""
    return [
        {"model_type": kind, **LOPSIDED, "is_encoder_decoder": False, "is_decoder": True},
        {"model_type": kind, **SMALL, "tie_word_embeddings": False},
    ]


FSMT = {
    "model_type": "fsmt",
    **{k: v for k, v in SMALL.items() if k != "vocab_size"},
    "src_vocab_size": 96,
    "tgt_vocab_size": 96,
}
MARIAN = {"model_type": "marian", **SMALL, "share_encoder_decoder_embeddings": False}


SHAPES = {
    "BartForConditionalGeneration": _both("bart"),
    "BigBirdPegasusForConditionalGeneration": [
        {**shape, "attention_type": "original_full"} for shape in _both("bigbird_pegasus")
    ]
    + [{"model_type": "bigbird_pegasus", **SMALL, "attention_type": "original_full", "use_bias": True}],
    "PPFormulaNetTextModel": [
        {"model_type": "pp_formulanet_text", **SMALL},
        {"model_type": "pp_formulanet_text", **LOPSIDED},
    ],
    "BartForSequenceClassification": [
        {"model_type": "bart", **SMALL},
        {"model_type": "bart", **SMALL, "id2label": {"0": "a", "1": "b"}},
    ],
    "BartForQuestionAnswering": [{"model_type": "bart", **SMALL}],
    "BartModel": [{"model_type": "bart", **SMALL}, {"model_type": "bart", **SMALL, "tie_word_embeddings": False}],
    "MBartForConditionalGeneration": _both("mbart"),
    "M2M100ForConditionalGeneration": _both("m2m_100"),
    "MarianMTModel": [
        *_both("marian"),
        MARIAN,
        {**MARIAN, "decoder_vocab_size": 80, "tie_word_embeddings": False},
    ],
    "MarianModel": [{**MARIAN, "decoder_vocab_size": 80}],
    "PegasusForConditionalGeneration": _both("pegasus"),
    "BlenderbotForConditionalGeneration": _both("blenderbot"),
    "BlenderbotSmallForConditionalGeneration": _both("blenderbot-small"),
    "PLBartForConditionalGeneration": _both("plbart"),
    "FSMTForConditionalGeneration": [
        FSMT,
        {
            **FSMT,
            "tgt_vocab_size": 80,
            "encoder_layers": 3,
            "decoder_layers": 1,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 40,
        },
        {**FSMT, "tie_word_embeddings": True, "pad_token_id": 0},
    ],
    "FSMTModel": [FSMT],
    "MvpForConditionalGeneration": _both("mvp"),
    "MvpForSequenceClassification": [{"model_type": "mvp", **SMALL}],
    "MvpModel": [{"model_type": "mvp", **SMALL, "prompt_length": 7}],
    "MvpForCausalLM": _alone("mvp"),
    "BartForCausalLM": _alone("bart"),
    "MBartForCausalLM": _alone("mbart"),
    "MarianForCausalLM": _alone("marian"),
    "PegasusForCausalLM": _alone("pegasus"),
    "BlenderbotForCausalLM": _alone("blenderbot"),
    "BlenderbotSmallForCausalLM": _alone("blenderbot-small"),
    "PLBartForCausalLM": _alone("plbart"),
}
