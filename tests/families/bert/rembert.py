from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {**COMMON_SMALL, "max_position_embeddings": 90}
GENERATION = {"model_type": "bert-generation", **SMALL}
REM = {
    "model_type": "rembert",
    **SMALL,
    "input_embedding_size": 12,
    "output_embedding_size": 40,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
RO = {"model_type": "roformer", **SMALL}

SHAPES = {
    "BertGenerationDecoder": [
        {**GENERATION, "is_decoder": True},
        {**GENERATION, "is_decoder": True, "tie_word_embeddings": False, "hidden_act": "relu"},
        GENERATION,
    ],
    "BertGenerationEncoder": [GENERATION, {**GENERATION, "is_decoder": True}],
    "RemBertForMaskedLM": [
        REM,
        {**REM, "input_embedding_size": 32, "type_vocab_size": 3, "hidden_act": "relu", "tie_word_embeddings": True},
    ],
    "RemBertForCausalLM": [{**REM, "is_decoder": True}],
    "RemBertForSequenceClassification": [{**REM, "num_labels": 3}],
    "RemBertModel": [REM],
    "RoFormerForMaskedLM": [
        RO,
        {**RO, "embedding_size": 12, "tie_word_embeddings": False},
        {**RO, "embedding_size": 32, "rotary_value": True},
    ],
    "RoFormerForCausalLM": [{**RO, "is_decoder": True, "embedding_size": 12}],
    "RoFormerForSequenceClassification": [{**RO, "num_labels": 3, "hidden_act": "relu"}],
    "RoFormerModel": [{**RO, "embedding_size": 12, "type_vocab_size": 3}],
}
