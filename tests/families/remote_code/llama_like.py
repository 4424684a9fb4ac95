from __future__ import annotations

from tests.families.sizes import COMMON_SMALL

SMALL = {**COMMON_SMALL, "max_position_embeddings": 64}
GROUPED = {**SMALL, "num_key_value_heads": 2}

SHAPES = {
    "InternLMForCausalLM": [
        {"model_type": "internlm", **SMALL, "bias": True, "tie_word_embeddings": False},
        {"model_type": "internlm", **SMALL, "bias": False, "tie_word_embeddings": True},
    ],
    "InternLM2ForCausalLM": [
        {"model_type": "internlm2", **GROUPED, "bias": False},
        {"model_type": "internlm2", **GROUPED, "bias": True, "tie_word_embeddings": True},
    ],
    "PanguEmbeddedForCausalLM": [
        {"model_type": "PanguEmbedded", **GROUPED, "bias": True},
        {"model_type": "PanguEmbedded", **GROUPED, "bias": False},
    ],
    "BaichuanForCausalLM": [
        {"model_type": "baichuan", **SMALL},
        {
            "model_type": "baichuan",
            **{name: size for name, size in SMALL.items() if name != "max_position_embeddings"},
            "model_max_length": 64,
        },
    ],
    "MiniCPMForCausalLM": [
        {"model_type": "minicpm", **GROUPED, "scale_depth": 1.4, "scale_emb": 12, "dim_model_base": 16},
        {"model_type": "minicpm", **SMALL, "tie_word_embeddings": False},
        {"model_type": "minicpm", **GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
        {"model_type": "minicpm", **GROUPED, "sparse_config": {"topk": 64, "dense_len": 8192}},
    ],
    "LayerWiseMiniCPMForCausalLM": [
        {"model_type": "minicpm", **SMALL, "start_layer": 2, "head_type": "simple", "head_multi": True},
    ],
    "TeleFLMForCausalLM": [
        {"model_type": "teleflm", **SMALL, "use_mup": True, "mup_scale_factor": 16.0},
        {"model_type": "teleflm", **GROUPED, "attention_bias": True, "mlp_bias": True},
    ],
    "MaincoderForCausalLM": [
        {"model_type": "maincoder", **GROUPED, "head_dim": 16},
        {"model_type": "maincoder", **SMALL, "attention_bias": True, "tie_word_embeddings": True},
    ],
    "TalkieForCausalLM": [
        {
            "model_type": "talkie",
            "n_embd": 48,
            "n_head": 4,
            "n_layer": 3,
            "head_dim": 12,
            "vocab_size": 96,
            "max_position_embeddings": 64,
        },
        {"model_type": "talkie", "n_embd": 32, "n_head": 2, "n_layer": 2, "head_dim": 16, "vocab_size": 80},
    ],
    "InstellaForCausalLM": [
        {"model_type": "instella", **SMALL},
        {"model_type": "instella", **GROUPED, "attention_bias": True, "tie_word_embeddings": True},
    ],
    "ZhinaoForCausalLM": [
        {"model_type": "zhinao", **GROUPED},
        {"model_type": "zhinao", **SMALL, "tie_word_embeddings": True},
    ],
    "JiutianForCausalLM": [
        {"model_type": "jiutian", **GROUPED},
        {"model_type": "jiutian", **SMALL, "qkv_bias": False, "tie_word_embeddings": True},
    ],
    "WeDLMForCausalLM": [
        {"model_type": "wedlm", **GROUPED, "head_dim": 16, "qk_norm": True, "attention_bias": False},
        {"model_type": "wedlm", **SMALL},
    ],
    "GPTRefactForCausalLM": [
        {
            "model_type": "gpt_refact",
            "vocab_size": 96,
            "n_embd": 96,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "layer_norm_epsilon": 1e-5,
            "multi_query": True,
        },
        {
            "model_type": "gpt_refact",
            "vocab_size": 96,
            "n_embd": 128,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 64,
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
        },
    ],
    "BlueLMForCausalLM": [
        {"model_type": "BlueLM", **GROUPED, "use_stable_embedding": True},
        {"model_type": "BlueLM", **SMALL, "use_stable_embedding": False},
    ],
    "IndexForCausalLM": [
        {"model_type": "index", **SMALL, "norm_head": True, "rope_ratio": 32},
        {"model_type": "index", **SMALL, "norm_head": False, "tie_word_embeddings": True},
    ],
    "AprielForCausalLM": [
        {"model_type": "apriel", **GROUPED, "head_dim": 16},
        {"model_type": "apriel", **GROUPED, "attention_bias": True, "mlp_bias": True},
    ],
    "KORMoForCausalLM": [
        {"model_type": "kormo", **GROUPED, "mask_type": None},
        {"model_type": "kormo", **SMALL, "mask_type": None, "tie_word_embeddings": True},
    ],
    "PLMForCausalLM": [
        {
            "model_type": "plm",
            **SMALL,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "hidden_act": "relu2",
        },
        {
            "model_type": "plm",
            **SMALL,
            "kv_lora_rank": 12,
            "qk_nope_head_dim": 4,
            "qk_rope_head_dim": 8,
            "v_head_dim": 4,
            "hidden_act": "relu2",
        },
    ],
    "LilleForCausalLM": [
        {
            "model_type": "lille-130m",
            "vocab_size": 96,
            "n_embd": 96,
            "n_layer": 2,
            "n_head": 4,
            "n_kv_heads": 2,
            "block_size": 64,
            "layer_norm_eps": 1e-5,
        },
        {
            "model_type": "lille-130m",
            "vocab_size": 96,
            "n_embd": 64,
            "n_layer": 3,
            "n_head": 4,
            "n_kv_heads": 4,
            "block_size": 64,
            "layer_norm_eps": 1e-5,
        },
    ],
    "OrionForCausalLM": [
        {"model_type": "orion", **GROUPED},
        {"model_type": "orion", **SMALL, "tie_word_embeddings": True},
    ],
    "TelechatForCausalLM": [
        {
            "model_type": "telechat",
            "vocab_size": 96,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "ffn_hidden_size": 48,
            "num_key_value_heads": kv_heads,
            "seq_length": 64,
        }
        for kv_heads in (4, 2)
    ],
    "ExaoneForCausalLM": [
        {
            "model_type": "exaone",
            "vocab_size": 96,
            "hidden_size": 32,
            "num_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
            "activation_function": "silu",
            "tie_word_embeddings": tied,
        }
        for tied in (True, False)
    ],
    "Step1ForCausalLM": [
        {"model_type": "step1", **SMALL, "num_attention_groups": 2},
        {"model_type": "step1", **SMALL, "num_attention_groups": 1, "attention_bias": True, "mlp_bias": True},
    ],
    "TeleChat3ForCausalLM": [
        {"model_type": "telechat3", **GROUPED},
        {"model_type": "telechat3", **SMALL, "head_dim": 16, "attention_bias": True, "mlp_bias": True},
    ],
    "MobileLLMForCausalLM": [
        {"model_type": "mobilellm", **GROUPED, "share_embedding": True, "layer_sharing": False},
        {"model_type": "mobilellm", **SMALL, "head_dim": 16, "share_embedding": False},
    ],
    "SolarForCausalLM": [
        {"model_type": "solar", **GROUPED, "sliding_window": 8, "bskcn_1": [0], "bskcn_3": [2], "bskcn_tv": [0.9, 0.8]},
        {"model_type": "solar", **SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ],
    "CogVLMForCausalLM": [
        {"model_type": "cogvlm", **SMALL, "vision_config": {"hidden_size": 24}, "template_version": "chat"},
        {"model_type": "cogvlm", **SMALL, "num_multi_query_heads": 2},
    ],
    "PlamoForCausalLM": [
        {"model_type": "plamo", **SMALL, "n_shared_head": 2},
        {"model_type": "plamo", **SMALL, "n_shared_head": 4, "tie_word_embeddings": True},
    ],
    "XverseForCausalLM": [
        {"model_type": "xverse", **SMALL},
        {"model_type": "xverse", **GROUPED, "tie_word_embeddings": True},
        {"model_type": "xverse", **SMALL, "num_experts": 4, "moe_top_k": 2, "num_shared_experts": 2},
        {"model_type": "xverse", **SMALL, "num_experts": 4, "moe_top_k": 1, "num_shared_experts": None},
    ],
    "SkyworkForCausalLM": [
        {"model_type": "skywork", **SMALL},
        {"model_type": "skywork", **GROUPED, "rope_theta": 500000, "rope_scaling": None},
    ],
    "AquilaForCausalLM": [
        {"model_type": "aquila", **SMALL},
        {"model_type": "aquila", **GROUPED},
    ],
    "YiForCausalLM": [
        {"model_type": "Yi", **GROUPED},
        {"model_type": "Yi", **SMALL, "tie_word_embeddings": True},
    ],
}
