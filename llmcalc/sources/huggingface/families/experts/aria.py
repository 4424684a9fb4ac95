"""The text models of Aria (experts in every layer) and of Emu 3 (Llama's layers).

transformers: models/aria (`AriaTextForCausalLM`), models/emu3 (`Emu3ForCausalLM`).
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import Table, attention, attention_biases, glu, moe
from ..llama.llama import llama_decoder


def _pre_norm_decoder(config: Config, feed_forward: Table) -> Table:
    return llama_decoder(config, attention(config, **attention_biases(config)), ffn=feed_forward)


def _read_aria(config: Config) -> Table:
    """Reads Aria: routed experts have SwiGLU and no biases; hidden_act and mlp_bias apply to shared experts."""
    is_published_code = (
        config.config_fields.get("model_type") == "aria_moe_lm"
    )  # whose class names the experts' width apart
    field_name = (
        "moe_intermediate_size" if is_published_code and config.has("moe_intermediate_size") else "intermediate_size"
    )
    config.fields_read.add("intermediate_size")
    ffn_width, shared_expert_count = config.integer(field_name), config.integer("moe_num_shared_experts")
    expert = {"intermediate_size": ffn_width, "hidden_act": "silu", "gated": True}
    moe_num_experts = config.integer("moe_num_experts")
    moe_topk = config.integer("moe_topk")
    return _pre_norm_decoder(
        config,
        moe(moe_num_experts, moe_topk, expert, glu(config, config.flag("mlp_bias"), ffn_width * shared_expert_count)),
    )


def _read_emu3(config: Config) -> Table:
    return _pre_norm_decoder(config, glu(config, config.flag("mlp_bias")))


QKV_OF_TORCH = "in_proj_weight + in_proj_bias/3"
"""The query, key or value projection of `torch.nn.MultiheadAttention`, which stores all three as one matrix."""

TOKENIZER_MODULES = {
    "image_tokenizer": "vqmodel",
    "codebook": "quantize.embedding",
    "quant_conv": "quant_conv.conv",
    "decoder": "decoder + post_quant_conv",
    "post_quant_conv": "conv",
    **{f"level_{i}": f"down_block.down.{i} | up_block.up.{i}" for i in range(8)},
    **{f"block_{i + 1}": f"block.{i}" for i in range(8)},
    **{f"attn_{i + 1}": f"attn.{i}" for i in range(8)},
    **{f"attn_{i + 1}_norm": f"attn_norms.{i}" for i in range(8)},
    "middle_1": "middle_block.block_1",
    "middle_2": "middle_block.block_2",
    "middle_attn": "middle_block.attn_1",
    "middle_attn_norm": "middle_block.attn_norm",
    **{f"frame_block_{i + 1}": f"time_res_stack.{i}" for i in range(8)},
    **{f"time_conv_{i + 1}": f"time_conv.{i}.conv.conv" for i in range(8)},
    "conv_1": "conv1.conv | conv1",
    "conv_2": "conv2.conv | conv2",
    "norm_1": "norm1",
    "norm_2": "norm2",
    "norm": "norm_layer",
    "scale": "conv_y",
    "shift": "conv_b",
    "shortcut": "nin_shortcut",
    "downsample": "downsample.conv",
    "upsample": "upsample.conv",
}
"""Node of Emu 3's image tokenizer → module of `Emu3VQVAE`."""

FAMILIES = {
    "aria": Family(
        None,
        text_type="aria_text",
        tower_file="llava",
        modules={
            "towers.multi_modal_projector.resampler": "cross_attn + query",
            "towers.multi_modal_projector.resampler.query": "query",
            "towers.query_norm": "layer_norm",
            "towers.kv_norm": "layer_norm_kv",
            "towers.q_in": "q_proj",
            "towers.k_in": "k_proj",
            "towers.v_in": "v_proj",
            "towers.multi_modal_projector.resampler.attention": "multihead_attn",
            **{f"towers.multi_modal_projector.resampler.attention.{name}_proj": QKV_OF_TORCH for name in "qkv"},
            "towers.attention_out": "linear",
            "towers.map_1": "feed_forward.linear_in",
            "towers.map_2": "feed_forward.linear_out",
        },
    ),
    "emu3": Family(
        None,
        text_type="emu3_text_model",
        tower_file="emu",
        modules={f"towers.{node_name}": module_name for node_name, module_name in TOKENIZER_MODULES.items()},
    ),
    "aria_text": Family(
        _read_aria,
        ignored_fields=frozenset({"num_experts_per_tok"}),
        earlier_names={"experts.gate_up_proj": "experts.fc1", "experts.down_proj": "experts.fc2"},
    ),
    "emu3_text_model": Family(
        _read_emu3,
        {"head_dim": None, "attention_bias": False, "mlp_bias": False},
        has_text_class=False,
        dropout_fields={"attention": "attention_dropout"},
    ),
}
