from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {**COMMON_SMALL, "max_position_embeddings": 64}
JINA: dict[str, Any] = {"model_type": "jina_bert", **SMALL}
MOSAIC: dict[str, Any] = {"model_type": "mosaic_bert", **SMALL, "alibi_starting_size": 64}
NUCLEOTIDE: dict[str, Any] = {
    "model_type": "nucleotide_transformer_v2",
    **SMALL,
    "position_embedding_type": "rotary",
    "add_bias_fnn": False,
    "tie_word_embeddings": False,
    "pad_token_id": 1,
}
NEOBERT: dict[str, Any] = {
    "model_type": "neobert",
    **{name: size for name, size in SMALL.items() if name != "max_position_embeddings"},
    "max_length": 64,
    "norm_eps": 1e-5,
}
LLAMA: dict[str, Any] = {"model_type": "llama_bidirec", **SMALL, "num_key_value_heads": 2, "pooling": "avg"}
NEW: dict[str, Any] = {"model_type": "new", **SMALL, "type_vocab_size": 0, "pack_qkv": True, "rope_theta": 160000}

COST_WISE: dict[str, Any] = {"model_type": "cost_wise_gemma", **SMALL, "head_dim": 8, "sliding_window": 16}

NOMIC: dict[str, Any] = {
    "model_type": "nomic_bert_moe",
    "vocab_size": 96,
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 4,
    "n_inner": 48,
    "n_positions": 64,
    "num_experts": 4,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "JinaBertForMaskedLM": [
        JINA,
        {**JINA, "type_vocab_size": 1, "feed_forward_type": "reglu"},
        {**JINA, "auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}},
    ],
    "JinaBertModel": [JINA],
    "JinaBertForSequenceClassification": [{**JINA, "num_labels": 3}],
    "BertForMaskedLM": [MOSAIC],
    "BertForSequenceClassification": [{**MOSAIC, "num_labels": 3}],
    "EsmForMaskedLM": [NUCLEOTIDE, {**NUCLEOTIDE, "add_bias_fnn": True, "position_embedding_type": "absolute"}],
    "NeoBERTLMHead": [NEOBERT, {**NEOBERT, "intermediate_size": 100}],
    "NeoBERT": [NEOBERT],
    "NeoBERTForSequenceClassification": [{**NEOBERT, "num_labels": 3}],
    "LlamaBidirectionalModel": [LLAMA],
    "LlamaBidirectionalForSequenceClassification": [{**LLAMA, "num_labels": 1}],
    "NVEmbedModel": [
        {
            "model_type": "nvembed",
            "latent_attention_config": {
                **{"model_type": "latent_attention", "num_latents_value": 6, "num_cross_heads": 2},
                **{"cross_dim_head": 8, "latent_dim": 32, "hidden_dim": 32, "output_normalize": True},
            },
            "text_config": {"model_type": "bidir_mistral", **SMALL, "num_key_value_heads": 2},
        }
    ],
    "BidirectionalMistralModel": [
        {"model_type": "bidir_mistral", **SMALL, "num_key_value_heads": 2, "head_dim": 16},
        {"model_type": "bidir_mistral", **SMALL, "num_key_value_heads": 4},
    ],
    "NomicBertModel": [
        {**NOMIC, "moe_every_n_layers": 2},
        {**NOMIC, "moe_every_n_layers": 3, "moe_top_k": 1, "qkv_proj_bias": False, "mlp_fc1_bias": False},
    ],
    "XLMRobertaModel": [
        {
            "model_type": "xlm_roberta_flash",
            **SMALL,
            "type_vocab_size": 1,
            "lora_rank": 4,
            "position_embedding_type": "rotary",
            "rotary_emb_base": 20000.0,
        }
    ],
    "CostWiseGemmaForCausalLM": [
        {**COST_WISE, "layer_wise": True, "start_layer": 1, "layer_sep": 2},
        {**COST_WISE, "start_layer": 1},
    ],
    "NewModel": [NEW],
    "NewForMaskedLM": [{**NEW, "type_vocab_size": 2}],
    "NewForSequenceClassification": [{**NEW, "num_labels": 1}],
}
