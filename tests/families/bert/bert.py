from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {**COMMON_SMALL, "max_position_embeddings": 90}
BERT = {"model_type": "bert", **SMALL}
ROBERTA = {"model_type": "roberta", **SMALL}
XLM = {"model_type": "xlm-roberta", **SMALL}
FNET = {"model_type": "fnet", **{name: size for name, size in SMALL.items() if name != "num_attention_heads"}}
BIG_BIRD = {"model_type": "big_bird", **SMALL, "attention_type": "original_full"}
IBERT = {"model_type": "ibert", **SMALL}
ERNIE = {"model_type": "ernie", **SMALL}
MEGATRON = {"model_type": "megatron-bert", **SMALL}
PRE = {"model_type": "roberta-prelayernorm", **SMALL}
XL = {"model_type": "xlm-roberta-xl", **SMALL}
DATA2VEC = {"model_type": "data2vec-text", **SMALL}
DISTIL = {
    "model_type": "distilbert",
    "vocab_size": 96,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 90,
}
ELECTRA = {"model_type": "electra", **SMALL, "embedding_size": 12}
ALBERT = {"model_type": "albert", **SMALL, "embedding_size": 12}
MPNET = {"model_type": "mpnet", **SMALL}

SHAPES = {
    "BertForMaskedLM": [BERT, {**BERT, "type_vocab_size": 5, "tie_word_embeddings": False, "hidden_act": "gelu_new"}],
    "BertForPreTraining": [BERT],
    "BertModel": [BERT],
    "BertLMHeadModel": [{**BERT, "is_decoder": True}],
    "BertForSequenceClassification": [{**BERT, "id2label": {"0": "a", "1": "b", "2": "c"}}, BERT],
    "BertForTokenClassification": [BERT],
    "BertForNextSentencePrediction": [{**BERT, "num_labels": 3}],
    "RobertaForMaskedLM": [ROBERTA, {**ROBERTA, "type_vocab_size": 1, "pad_token_id": 0}],
    "RobertaForSequenceClassification": [{**ROBERTA, "num_labels": 5}],
    "RobertaModel": [ROBERTA],
    "RobertaForCausalLM": [{**ROBERTA, "is_decoder": True, "tie_word_embeddings": False}],
    "XLMRobertaForMaskedLM": [XLM, {**XLM, "tie_word_embeddings": False}],
    "XLMRobertaForSequenceClassification": [XLM],
    "XLMRobertaModel": [XLM],
    "CamembertForMaskedLM": [
        {"model_type": "camembert", **SMALL},
        {"model_type": "camembert", **SMALL, "type_vocab_size": 1},
    ],
    "FNetForMaskedLM": [FNET, {**FNET, "type_vocab_size": 2, "tie_word_embeddings": False, "hidden_act": "relu"}],
    "FNetForSequenceClassification": [{**FNET, "num_labels": 5}],
    "FNetModel": [FNET],
    "BigBirdForMaskedLM": [BIG_BIRD, {**BIG_BIRD, "use_bias": False, "tie_word_embeddings": False}],
    "BigBirdForCausalLM": [
        {**BIG_BIRD, "is_decoder": True},
        {**BIG_BIRD, "is_decoder": True, "add_cross_attention": True, "use_bias": False},
    ],
    "BigBirdForSequenceClassification": [{**BIG_BIRD, "num_labels": 5}],
    "BigBirdModel": [BIG_BIRD],
    "IBertForMaskedLM": [IBERT, {**IBERT, "type_vocab_size": 1, "pad_token_id": 0}],
    "IBertForSequenceClassification": [{**IBERT, "num_labels": 5}],
    "ErnieForMaskedLM": [
        {**ERNIE, "use_task_id": True},
        {**ERNIE, "use_task_id": True, "task_type_vocab_size": 16, "tie_word_embeddings": False},
    ],
    "ErnieForSequenceClassification": [{**ERNIE, "num_labels": 3, "type_vocab_size": 4}],
    "ErnieModel": [{**ERNIE, "task_type_vocab_size": 16}],
    "ErnieForCausalLM": [{**ERNIE, "is_decoder": True}],
    "MegatronBertForMaskedLM": [
        MEGATRON,
        {**MEGATRON, "tie_word_embeddings": False, "hidden_act": "relu", "num_attention_heads": 2},
    ],
    "MegatronBertForPreTraining": [MEGATRON],
    "MegatronBertForCausalLM": [{**MEGATRON, "is_decoder": True}],
    "MegatronBertModel": [{**MEGATRON, "type_vocab_size": 3}],
    "RobertaPreLayerNormForMaskedLM": [
        PRE,
        {**PRE, "tie_word_embeddings": False, "type_vocab_size": 1, "pad_token_id": 0},
    ],
    "RobertaPreLayerNormForSequenceClassification": [{**PRE, "num_labels": 3}],
    "RobertaPreLayerNormForCausalLM": [{**PRE, "is_decoder": True}],
    "RobertaPreLayerNormModel": [PRE],
    "XLMRobertaXLForMaskedLM": [XL, {**XL, "tie_word_embeddings": False, "type_vocab_size": 3, "pad_token_id": 0}],
    "XLMRobertaXLForSequenceClassification": [{**XL, "num_labels": 3}],
    "XLMRobertaXLForCausalLM": [{**XL, "is_decoder": True}],
    "XLMRobertaXLModel": [XL],
    "Data2VecTextForMaskedLM": [DATA2VEC, {**DATA2VEC, "tie_word_embeddings": False, "type_vocab_size": 1}],
    "Data2VecTextForSequenceClassification": [{**DATA2VEC, "num_labels": 3}],
    "Data2VecTextForCausalLM": [{**DATA2VEC, "is_decoder": True}],
    "Data2VecTextModel": [DATA2VEC],
    "DistilBertForMaskedLM": [DISTIL, {**DISTIL, "sinusoidal_pos_embds": True, "tie_word_embeddings": False}],
    "DistilBertForSequenceClassification": [DISTIL],
    "DistilBertForQuestionAnswering": [DISTIL],
    "DistilBertModel": [DISTIL],
    "ElectraForPreTraining": [ELECTRA, {**ELECTRA, "embedding_size": 32}],
    "ElectraForMaskedLM": [ELECTRA, {**ELECTRA, "tie_word_embeddings": False}],
    "ElectraForSequenceClassification": [ELECTRA],
    "ElectraModel": [ELECTRA],
    "AlbertForMaskedLM": [
        ALBERT,
        {**ALBERT, "num_hidden_groups": 2, "inner_group_num": 2, "tie_word_embeddings": False},
        {**ALBERT, "num_hidden_layers": 1},
    ],
    "AlbertForPreTraining": [ALBERT],
    "AlbertForSequenceClassification": [{**ALBERT, "num_labels": 3}],
    "AlbertModel": [{**ALBERT, "embedding_size": 32}],
    "MPNetForMaskedLM": [MPNET, {**MPNET, "tie_word_embeddings": False, "relative_attention_num_buckets": 16}],
    "MPNetForSequenceClassification": [MPNET],
    "MPNetModel": [MPNET],
}
