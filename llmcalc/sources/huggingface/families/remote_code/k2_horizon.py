"""K2 Horizon: Llama's layers with norms over parts of the width, mixtures of experts, and routed value projections.

Institute of Foundation Models 2026. Sources: `K2HorizonForCausalLM` of transformers' main branch (models/k2_horizon),
later than the release used here, and its ports in SGLang (models/xllm.py) and mlx-vlm (models/k2_horizon).
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, field_names
from ...parts import (
    Table,
    attention,
    attention_biases,
    decoder_of_kinds,
    float32_rmsnorm,
    glu,
    layer_table,
    moe,
    qk_norm_fields,
    rope,
)
from ..experts.mixtral import kinds_with_experts

GATE_ACTIVATIONS = {"silu": "silu", "softplus": "softplus"}
SPARSE_FIELDS = field_names("""
    mova_num_experts mova_num_experts_per_tok moe_gate_bias moe_intermediate_size num_experts_per_tok num_shared_experts
    router_score_func sliding_window
    """)
"""Config fields that only layers with experts, or only sliding windows, need."""


def _read_k2_horizon(config: Config) -> Table:
    depth, eps = config.integer("num_hidden_layers"), config.number("rms_norm_eps")
    norm = float32_rmsnorm(eps, groups=config.integer("layernorm_num_groups"))
    if config.integer("hidden_size") % norm["groups"]:
        raise config.error("layernorm_num_groups", norm["groups"], "a divisor of hidden_size")
    head_dim = config.integer("head_dim")
    config.fields_read |= SPARSE_FIELDS
    rotary_dim = head_dim if config.get("rope_head_dim") is None else config.integer("rope_head_dim")
    if rotary_dim > head_dim or rotary_dim % 2:
        raise config.error("rope_head_dim", rotary_dim, f"an even number up to head_dim, {head_dim}")
    output_gate: Table = {}
    if config.get("attention_gate_func") is not None:
        gate_func = config.choice(GATE_ACTIVATIONS, "attention_gate_func")
        output_gate = {"output_gate": {"per": "element", "gate_func": gate_func}}
    window_size = config.optional_integer("sliding_window") if config.flag("use_sliding_window") else None
    attention_table = attention(
        config,
        position=rope(config, rotary_dim / head_dim),
        sliding_window=window_size,
        **output_gate,
        **attention_biases(config),
        **(qk_norm_fields(float32_rmsnorm(eps), norm_scope="per_head") if config.flag("query_key_norm") else {}),
    )
    block = layer_table(attention_table, glu(config), norm)
    expert_count = config.count("num_experts")
    layer_kinds = kinds_with_experts(config, expert_count, depth)
    sparse_layer = _sparse_layer(config, expert_count) if "moe" in layer_kinds else {}
    return decoder_of_kinds(config, block, norm, (layer_kinds, {"dense": {}, "moe": sparse_layer}))


def _sparse_layer(config: Config, expert_count: int) -> Table:
    """Returns the components of a layer with routed experts: its network, and in MoVA its value projection."""
    score_function = config.choice({"softmax": "softmax", "sigmoid": "sigmoid"}, "router_score_func")
    router: Table = {"scoring_func": score_function}
    if config.flag("moe_gate_bias"):
        router["score_correction"] = "parameter"
    expert_width, shared_count = config.integer("moe_intermediate_size"), config.count("num_shared_experts")
    ffn = moe(
        expert_count,
        config.integer("num_experts_per_tok"),
        glu(config, ffn_width=expert_width),
        glu(config, ffn_width=expert_width * shared_count) if shared_count else None,
        router=router,
    )
    value_expert_count = config.count("mova_num_experts")
    if not value_expert_count:
        return {"feed_forward": ffn}
    num_experts_per_tok = config.integer("mova_num_experts_per_tok")
    value_projection = {"num_experts": value_expert_count, "num_experts_per_tok": num_experts_per_tok, "router": router}
    return {"feed_forward": ffn, "attention": {"value_experts": value_projection}}


FAMILIES = {
    "k2_horizon": Family(
        _read_k2_horizon,
        {
            "vocab_size": 64256,
            "hidden_size": 1536,
            "intermediate_size": 5120,
            "num_hidden_layers": 28,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "use_sliding_window": False,
            "sliding_window": None,
            "layernorm_num_groups": 1,
            "query_key_norm": False,
            "rope_head_dim": None,
            "attention_gate_func": None,
            "num_experts": 0,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "moe_gate_bias": False,
            "num_shared_experts": 0,
            "router_score_func": "softmax",
            "mova_num_experts": 0,
            "mova_num_experts_per_tok": 0,
        },
        frozenset({"norm_topk_prob", "padding_idx", "router_scaling_factor"}),
        source="https://github.com/huggingface/transformers/blob/main/src/transformers/models/k2_horizon",
    )
}
