"""Step 3: low-rank queries with a single key and value head, and experts with a shared expert.

Source: vllm/model_executor/models/step3_text.py and vllm/transformers_utils/configs/step3_vl.py of vllm-project/vllm.
"""

from __future__ import annotations

from ...code_addresses import VLLM
from ...config import Config
from ...family import Family
from ...parts import Table, attention, decoder_of_kinds, glu, layer_table, moe, rmsnorm


def _read_step3_text(config: Config) -> Table:
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    config.require("num_attention_groups", 1)
    head_dim = config.integer("head_dim")
    rank_field = {"rank": config.optional_integer("share_q_dim") or head_dim, "norm": norm}
    attention_table = attention(config, num_key_value_heads=1, head_dim=head_dim, query_rank=rank_field)
    experts = moe(
        config.integer("moe_num_experts"),
        config.integer("moe_top_k"),
        glu(config, ffn_width=config.integer("moe_intermediate_size")),
        glu(config, ffn_width=config.integer("share_expert_dim")),
    )
    expert_layers = _layers_with_experts(config, depth)
    layer_kinds = ["moe" if layer_index in expert_layers else "dense" for layer_index in range(depth)]
    dense_ffn = {"type": "mlp", **glu(config)}
    block = layer_table(attention_table, experts, norm)
    return decoder_of_kinds(config, block, norm, (layer_kinds, {"moe": {}, "dense": {"feed_forward": dense_ffn}}))


def _layers_with_experts(config: Config, depth: int) -> set[int]:
    """Returns the layer indices in `moe_layers_enum`, a comma-separated text; default all but the first layer."""
    listed_indices = config.get("moe_layers_enum")
    if listed_indices is None:
        return {*range(1, depth)}
    expected_text = "indices of layers with commas between them, such as 4,5,6"
    if isinstance(listed_indices, str) and len(listed_indices) <= 10 * (depth + 1):
        layer_indices = [index_text.strip() for index_text in listed_indices.split(",")]
        if all(index_text.isascii() and index_text.isdigit() for index_text in layer_indices):
            return {int(index_text) for index_text in layer_indices}
    raise config.error("moe_layers_enum", listed_indices, expected_text)


FAMILIES = {
    "step3_vl": Family(None, text_type="step3_text", tying_source="text", source=f"{VLLM}step3_vl.py"),
    "step3_text": Family(
        _read_step3_text,
        {
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_attention_heads": 64,
            "num_attention_groups": 1,
            "num_hidden_layers": 61,
            "vocab_size": 128815,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "moe_intermediate_size": 5120,
            "moe_num_experts": 48,
            "moe_top_k": 3,
            "share_expert_dim": 5120,
            "share_q_dim": 2048,
            "head_dim": 256,
            "max_position_embeddings": 65536,
            "moe_layers_enum": None,
            "tie_word_embeddings": False,
        },
        frozenset({"max_seq_len", "norm_expert_weight"}),
        aliases={"max_position_embeddings": "max_position_embedding"},
        source=f"{VLLM}step3_text.py",
    ),
}
