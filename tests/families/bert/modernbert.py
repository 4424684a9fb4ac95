from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

IDS = {"pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1, "cls_token_id": 1, "sep_token_id": 1}
SMALL: dict[str, Any] = {**COMMON_SMALL, "num_hidden_layers": 4, "max_position_embeddings": 90}
MODERN: dict[str, Any] = {"model_type": "modernbert", **SMALL, **IDS, "local_attention": 16}
DECODER: dict[str, Any] = {"model_type": "modernbert-decoder", **SMALL, **IDS, "local_attention": 32}
EURO: dict[str, Any] = {
    "model_type": "eurobert",
    **SMALL,
    "pad_token_id": 1,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "mask_token_id": 2,
}
NOMIC: dict[str, Any] = {"model_type": "nomic_bert", **SMALL}
GTE: dict[str, Any] = {"model_type": "gte", **SMALL}
JINA: dict[str, Any] = {"model_type": "jina_embeddings_v3", **SMALL}
BIASED = {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True, "decoder_bias": False}
LISTED = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]

SHAPES = {
    "ModernBertForMaskedLM": [
        MODERN,
        {**MODERN, **BIASED, "global_attn_every_n_layers": 2, "tie_word_embeddings": False, "layer_types": None},
        {**MODERN, "layer_types": LISTED},
        {**MODERN, "num_hidden_layers": 1},
    ],
    "ModernBertModel": [MODERN],
    "ModernBertForSequenceClassification": [
        {**MODERN, "classifier_pooling": "mean"},
        {**MODERN, "classifier_bias": True, "num_labels": 3},
    ],
    "ModernBertForTokenClassification": [MODERN],
    "ModernBertDecoderForCausalLM": [
        DECODER,
        {**DECODER, **BIASED, "global_attn_every_n_layers": 1, "tie_word_embeddings": False},
    ],
    "ModernBertDecoderForSequenceClassification": [DECODER],
    "EuroBertForMaskedLM": [
        EURO,
        {
            **EURO,
            "num_key_value_heads": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "head_dim": 12,
        },
    ],
    "EuroBertForSequenceClassification": [EURO, {**EURO, "classifier_pooling": "mean"}],
    "EuroBertForTokenClassification": [EURO],
    "NomicBertForMaskedLM": [
        NOMIC,
        {**NOMIC, "head_dim": 12, "type_vocab_size": 3},
        {**NOMIC, "tie_word_embeddings": False},
    ],
    "NomicBertModel": [NOMIC],
    "GteForMaskedLM": [GTE, {**GTE, "head_dim": 12, "type_vocab_size": 0, "tie_word_embeddings": False}],
    "GteForSequenceClassification": [
        {**GTE, "num_labels": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    ],
    "GteForTokenClassification": [GTE],
    "GteModel": [{**GTE, "type_vocab_size": 2}],
    "JinaEmbeddingsV3ForMaskedLM": [
        JINA,
        {**JINA, "head_dim": 12, "type_vocab_size": 3, "hidden_act": "relu", "tie_word_embeddings": False},
    ],
    "JinaEmbeddingsV3ForSequenceClassification": [{**JINA, "num_labels": 3}],
    "JinaEmbeddingsV3Model": [JINA],
    "NomicBertForSequenceClassification": [NOMIC],
}
