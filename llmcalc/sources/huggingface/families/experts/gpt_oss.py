"""gpt-oss: every second layer has a sliding window, each head has a sink, and all linear layers have biases.

The experts and the router have biases too.

transformers: models/gpt_oss.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import QKVO, Table, attention, biases, decoder, every_nth_full, float32_rmsnorm, glu, moe, sliding_stack


def _gpt_oss(config: Config) -> Table:
    norm = float32_rmsnorm(config.number("rms_norm_eps"))
    experts = moe(
        config.size("num_local_experts", "num_experts"),
        config.size("num_experts_per_tok"),
        glu(config, bias=True),
        router={"bias": True},
    )
    mixer = attention(config, sinks=True, float32_softmax=False, **biases(config.flag("attention_bias"), *QKVO))
    block = {"attention": mixer, "feed_forward": experts, "norm": norm, "norm_placement": "pre"}
    return decoder(
        config, block, norm, stack=sliding_stack(config, every_nth_full(config.size("num_hidden_layers"), 2))
    )


FAMILIES = {
    "gpt_oss": Family(
        _gpt_oss,
        {
            "vocab_size": 201088,
            "hidden_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 2880,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
            "layer_types": None,
            "attention_bias": True,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
        },
        frozenset(
            {"swiglu_alpha", "swiglu_limit", "initial_context_length", "experts_per_token", "output_router_logits"}
        ),
        modules={
            "experts.gate_proj": "gate_up_proj + gate_up_proj_bias/2",
            "experts.up_proj": "gate_up_proj + gate_up_proj_bias/2",
            "experts.down_proj": "down_proj + down_proj_bias",
        },
    ),
}
