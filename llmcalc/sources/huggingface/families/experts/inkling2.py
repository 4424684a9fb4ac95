"""Inkling 2: block attention residuals around Inkling's attention, with gates, sinks and bounded queries and keys.

Its layers with full attention compute queries, keys and values from a sum each. Elementwise factors and bounds, as of
the logits and of the experts' inner values, change no count. transformers: models/inkling2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .....algebra import ceil_div
from ...config import Config
from ...family import Family
from ...parts import Table, decoder, float32_rmsnorm, gated_experts, listed_kinds, stack_of_layers
from ..deepseek.deepseek import SIGMOID_ROUTING
from .inkling import FLOAT32_STATES, KIND_BY_LAYER_TYPE, MIXER_WRITERS, profile_mixers

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _read_inkling2_text(config: Config) -> Table:
    depth, norm = config.integer("num_hidden_layers"), float32_rmsnorm(config.number("rms_norm_eps"))
    full_attention, sliding_attention = profile_mixers(config)
    full_attention |= {"type": "gated_profile", "dynamic_convolutions": True}
    sliding_attention |= {"dynamic_convolutions": False}
    kernel_size = full_attention["conv_kernel_size"]
    experts = gated_experts(config, count_fields=("n_routed_experts",), **SIGMOID_ROUTING)
    experts["expert"]["hidden_act"] = "situ"
    block: Table = {
        "type": "convolved_residual",
        "attention": full_attention,
        "feed_forward": experts,
        "norm": norm,
        "norm_placement": "pre",
        "conv_kernel_size": kernel_size,
        "attention_blocks": 1,
        "feed_forward_blocks": 1,
        "separate_inputs": True,
    }
    sliding_layer_fields = {"attention": sliding_attention, "separate_inputs": False}
    attention_by_kind: dict[str, Table] = {"full": {}, "sliding": sliding_layer_fields}
    default_layer_kinds = ["sliding" if (layer_index + 1) % 6 else "full" for layer_index in range(depth)]
    block_size, layers = config.integer("n_layers_per_attn_res_block"), []
    for layer_index, layer_kind in enumerate(
        listed_kinds(config, "layer_types", KIND_BY_LAYER_TYPE, default_layer_kinds)
    ):
        finished_blocks, starts_block = ceil_div(layer_index, block_size), layer_index % block_size == 0
        residual_fields = {
            "attention_blocks": finished_blocks,
            "feed_forward_blocks": finished_blocks + starts_block,
            "starts_block": starts_block,
        }
        layers.append(
            (
                f"{layer_kind}_{finished_blocks}" + ("_start" if starts_block else ""),
                {**attention_by_kind[layer_kind], **residual_fields},
            )
        )
    residual_streams: Table = {
        "type": "block_residual",
        "blocks": ceil_div(depth, block_size),
        "norm": {"type": "rmsnorm", "weight": False, "eps": 1e-6},
        "normed_values": True,
    }
    stack_fields = {**stack_of_layers(layers), "streams": residual_streams, "embedding_norm": norm}
    return {**decoder(config, block, norm, stack=stack_fields), "tie_word_embeddings": False}


def _block_size(model_values: ConfigValues) -> int:
    """Returns the number of layers per block of attention residuals; all layers if there is a single block."""
    block_starts = [
        layer_index for layer_index, layer in enumerate(model_values.layers) if getattr(layer, "starts_block", False)
    ]
    return block_starts[1] if len(block_starts) > 1 else len(model_values.layers)


EARLIER_NAMES = {
    "self_attn.q_proj": "attn.wq_du",
    "self_attn.k_proj": "attn.wk_dv",
    "self_attn.v_proj": "attn.wv_dv",
    "self_attn.r_proj": "attn.wr_du",
    "self_attn.o_proj": "attn.wo_ud",
    "self_attn.gate_proj": "attn.gate_attn",
    "self_attn.sink_proj": "attn.attn_sink_proj",
    "self_attn": "attn",
    "experts.gate_up_proj": "experts.w13_weight",
    "experts.down_proj": "experts.w2_weight",
    "lm_head": "model.llm.unembed",
    "model.embed_tokens": "model.llm.embed",
    "model.layers": "model.llm.layers",
    "model.language_model.layers": "model.llm.layers",
}
"""Names in the published checkpoint, as `transformers` converts them."""

FAMILIES = {
    "inkling2_text": Family(
        _read_inkling2_text,
        {"tie_word_embeddings": False},
        frozenset({"tie_word_embeddings"}),
        field_writers={**MIXER_WRITERS, "n_layers_per_attn_res_block": _block_size, "hidden_act": lambda s: "silu"},
        earlier_names=EARLIER_NAMES,
        deviations=(FLOAT32_STATES,),
    ),
    "inkling2": Family(
        None, text_type="inkling2_text", tying_source="never", uncounted_encoders={"vision_config": "inkling2_vision"}
    ),
}
