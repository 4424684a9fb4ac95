from __future__ import annotations

BLOOM = {"vocab_size": 96, "hidden_size": 32, "n_layer": 3, "n_head": 4}
FALCON = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
MPT = {"vocab_size": 96, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 80}
MOSAIC = {
    "alibi": True,
    "alibi_bias_max": 8,
    "attn_impl": "torch",
    "attn_pdrop": 0,
    "attn_type": "multihead_attention",
    "attn_uses_sequence_id": False,
    "clip_qkv": None,
    "prefix_lm": False,
    "qk_ln": False,
    "softmax_scale": None,
}

SHAPES = {
    "BloomForCausalLM": [
        {"model_type": "bloom", **BLOOM},
        {
            "model_type": "bloom",
            "vocab_size": 96,
            "n_embed": 36,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "tie_word_embeddings": False,
            "apply_residual_connection_post_layernorm": True,
        },
    ],
    "BloomModel": [{"model_type": "bloom", **BLOOM}, {"model_type": "bloom", **BLOOM, "n_embed": 40}],
    "FalconForCausalLM": [
        {"model_type": "falcon", **FALCON},  # 7B
        {"model_type": "falcon", **FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},  # 40B
        {
            "model_type": "falcon",
            **FALCON,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "ffn_hidden_size": 40,
            "tie_word_embeddings": False,
        },  # Falcon2-11B
        # RW-1B
        {"model_type": "falcon", **FALCON, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
        {
            "model_type": "falcon",
            **FALCON,
            "multi_query": False,
            "num_kv_heads": None,
            "bias": None,
            "activation": "relu",
        },
        {"model_type": "falcon", **FALCON, "new_decoder_architecture": True},
        {"model_type": "falcon", **FALCON, "new_decoder_architecture": True, "num_kv_heads": 1},
    ],
    "FalconModel": [{"model_type": "falcon", **FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}],
    "MptForCausalLM": [
        {"model_type": "mpt", **MPT},
        {
            "model_type": "mpt",
            **MPT,
            "attn_config": MOSAIC,
            "emb_pdrop": 0,
            "embedding_fraction": 1.0,
            "expansion_ratio": 4,
            "init_config": {"name": "kaiming_normal_"},
            "init_device": "cpu",
            "learned_pos_emb": True,
            "logit_scale": None,
            "no_bias": True,
            "norm_type": "low_precision_layernorm",
            "resid_pdrop": 0,
            "tokenizer_name": "EleutherAI/gpt-neox-20b",
            "verbose": 0,
        },  # as in MPT-7B and MPT-30B
        {
            "model_type": "mpt",
            **MPT,
            "n_heads": 2,
            "attn_config": {"alibi": True, "clip_qkv": 6.0},
            "tie_word_embeddings": False,
        },
    ],
    "MptModel": [{"model_type": "mpt", **MPT, "attn_config": None}],
    "MptForTokenClassification": [{"model_type": "mpt", **MPT, "num_labels": 3}],
}
