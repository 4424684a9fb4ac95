"""The first Qwen: one biased projection of queries, keys and values, and a gated FFN of half of intermediate_size.

Source: modeling_qwen.py of Qwen/Qwen-7B and Qwen/Qwen-72B. The first revision of Qwen-7B has GPT-2's field names.
"""

from __future__ import annotations

from ...code_addresses import HUB
from ...config import Config
from ...family import GPT2_NAMES, Family, field_names
from ...parts import QKV_BIASES, Table, biases, decoder, layer_table, rmsnorm, rope


def _read_qwen(config: Config) -> Table:
    norm = rmsnorm(config.number("layer_norm_epsilon"))
    head_count = config.integer("num_attention_heads")
    has_bias = not config.flag("no_bias")
    if config.integer("head_dim") * head_count != config.integer("hidden_size"):
        head_dim = config.integer("head_dim")
        raise config.error("head_dim", head_dim, "hidden_size / num_attention_heads, as in every Qwen")
    attention_table = {
        "num_attention_heads": head_count,
        "position": rope(config, fraction_name="rotary_pct", theta_name="rotary_emb_base"),
        **biases(True, *QKV_BIASES),
        **biases(has_bias, "o_bias"),
    }
    ffn_width = config.integer("intermediate_size")
    ffn = {
        "intermediate_size": config.quotient("intermediate_size", ffn_width, 2),
        "hidden_act": "silu",
        "gated": True,
        **biases(has_bias, "gate_bias", "up_bias", "down_bias"),
    }
    return decoder(config, layer_table(attention_table, ffn, norm), norm)


FAMILIES = {
    "qwen": Family(
        _read_qwen,
        {
            "kv_channels": 128,
            "layer_norm_epsilon": 1e-6,
            "rotary_pct": 1.0,
            "no_bias": True,
            "tie_word_embeddings": False,
        },
        field_names("""
            activation apply_residual_connection_post_layernorm attn_dropout_prob bf16 bias_dropout_fusion
            emb_dropout_prob fp16 fp32 onnx_safe padded_vocab_size params_dtype pos_emb rotary_emb_base seq_length
            softmax_in_fp32 tokenizer_type use_cache_kernel use_cache_quantization use_dynamic_ntk use_logn_attn visual
            """),
        aliases={**GPT2_NAMES, "intermediate_size": "ffn_hidden_size", "head_dim": "kv_channels"},
        uncounted_fields={"audio": "its audio encoder is not counted"},
        source=f"{HUB}Qwen/Qwen-72B modeling_qwen.py",
        tower_class_prefixes="QWen",
        tower_file="published_code",
    )
}
