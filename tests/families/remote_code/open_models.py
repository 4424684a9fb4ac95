from __future__ import annotations

from tests.families.sizes import COMMON_GROUPED

OLMO = {
    "model_type": "hf_olmo",
    "vocab_size": 90,
    "embedding_size": 96,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 3,
    "mlp_hidden_size": 96,
    "max_sequence_length": 64,
    "rope": True,
    "weight_tying": False,
    "include_bias": False,
    "layer_norm_with_affine": False,
}
MOLMO = {
    "model_type": "molmo",
    **COMMON_GROUPED,
    "vocab_size": 90,
    "embedding_size": 96,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "layer_norm_type": "rms",
    "qkv_bias": True,
}
ARGUMENTS = {"vocab_size": 96, "dim": 32, "n_heads": 4, "n_layers": 3, "seq_len": 64}
OPEN_LM = {"model_type": "openlm", **ARGUMENTS}

SHAPES = {
    "OLMoForCausalLM": [
        OLMO,
        {**OLMO, "include_bias": True, "layer_norm_with_affine": True, "attention_layer_norm": True, "n_kv_heads": 2},
        {**OLMO, "rope": False, "alibi": True, "multi_query_attention": True, "activation_type": "gelu"},
        {**OLMO, "rope": False, "weight_tying": True, "include_bias": True, "bias_for_layer_norm": False},
        {**OLMO, "layer_norm_type": "rms", "layer_norm_with_affine": True, "norm_after": True},
        {**OLMO, "mlp_hidden_size": None, "embedding_size": None, "embedding_layer_norm": True},
    ],
    "MolmoForCausalLM": [
        MOLMO,
        {**MOLMO, "qkv_bias": False, "attention_layer_norm": True, "norm_after": True, "num_key_value_heads": 4},
    ],
    "OpenLMForCausalLM": [
        {**OPEN_LM, "model_norm": "gain_only_lp_layer_norm", "apply_qk_norm": True, "ffn_type": "swiglu_torch"},
        {**OPEN_LM, "model_norm": "rms_norm", "ffn_type": "gelu", "positional_embedding_type": "none"},
        {**OPEN_LM, "ffn_type": "gemma_geglu", "weight_tying": True, "post_embed_norm": True},
        {
            "model_type": "openlm",
            "params_args_dict": {name: size for name, size in OPEN_LM.items() if name != "model_type"},
        },
    ],
}
