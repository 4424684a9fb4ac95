"""ChatGLM-6B, whose residual branch adds to the normalised input; ChatGLM2, ChatGLM3 and GLM-4-9B with RMSNorm.

Source: modeling_chatglm.py of THUDM/chatglm-6b and THUDM/chatglm3-6b. The first one adds the output of a sublayer to
its normalised input, which is a norm on the embeddings and one after each addition; the last one is the final norm.
"""

from __future__ import annotations

from ...code_addresses import HUB
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    QKV_BIASES,
    QKVO_BIASES,
    Table,
    biases,
    class_name_of_config,
    decoder,
    layer_table,
    layernorm,
    mlp,
    rmsnorm,
    rope,
)


def _read_chatglm(config: Config) -> Table:
    if config.has("inner_hidden_size"):
        return _read_chatglm1(config)
    if class_name_of_config(config) == "ChatGLMModel":  # which has the output projection, as `output_layer`
        config.head_kind = "lm"
    return _read_chatglm2(config)


def _read_chatglm1(config: Config) -> Table:
    """Reads ChatGLM-6B, which rotates the halves of each head by two positions."""
    norm = layernorm(config.number("layernorm_epsilon"))
    num_attention_heads = config.integer("num_attention_heads")
    attention_table = {
        "num_attention_heads": num_attention_heads,
        "position": {"type": "rope"},
        **biases(True, *QKVO_BIASES),
    }
    block = layer_table(attention_table, mlp(config.integer("inner_hidden_size"), "gelu_tanh"), norm, "post")
    return decoder(config, block, None, stack={"embedding_norm": norm})


def _read_chatglm2(config: Config) -> Table:
    """Reads ChatGLM2 and later: half of each head is rotary, and one projection computes the FFN's gate and values."""
    eps = config.number("layernorm_epsilon")
    head_count = config.integer("num_attention_heads")
    has_bias = config.flag("add_bias_linear")
    norm = rmsnorm(eps) if config.flag("rmsnorm") else layernorm(eps)
    attention_table = {
        "num_attention_heads": head_count,
        "head_dim": config.integer("head_dim"),
        "position": rope(config, 0.5),
        **biases(has_bias or config.flag("add_qkv_bias"), *QKV_BIASES),
        **biases(has_bias, "o_bias"),
    }
    if config.flag("multi_query_attention"):
        attention_table["num_key_value_heads"] = config.integer("num_key_value_heads")
    ffn = {
        "intermediate_size": config.integer("intermediate_size"),
        "hidden_act": "silu",
        "gated": True,
        **biases(has_bias, "gate_bias", "up_bias", "down_bias"),
    }
    final_norm = norm if config.flag("post_layer_norm") else None
    return decoder(config, layer_table(attention_table, ffn, norm), final_norm)


FAMILIES = {
    "chatglm": Family(
        _read_chatglm,
        {
            "layernorm_epsilon": 1e-5,
            "rmsnorm": True,
            "add_bias_linear": False,
            "add_qkv_bias": False,
            "multi_query_attention": False,
            "multi_query_group_num": 1,
            "kv_channels": 128,
            "post_layer_norm": True,
            "tie_word_embeddings": False,
        },
        field_names("""
            add_qkv_bias apply_query_key_layer_scaling apply_residual_connection_post_layernorm bias_dropout_fusion
            fp32_residual_connection gmask_token_id interleaved_qkv multi_query_group_num original_rope
            position_encoding_2d prefix_projection quantization_bit rope_ratio seq_length boi_token_id
            eoi_token_id vision_config
            """),
        uncounted_fields={"pre_seq_len": "the weights of a trained prefix of {} tokens are not counted"},
        tower_class_prefixes="ChatGLM",
        tower_file="published_code",
        aliases={
            "num_hidden_layers": "num_layers",
            "intermediate_size": "ffn_hidden_size",
            "num_key_value_heads": "multi_query_group_num",
            "head_dim": "kv_channels",
            "vocab_size": "padded_vocab_size",
        },
        source=f"{HUB}THUDM/chatglm3-6b modeling_chatglm.py",
    )
}
