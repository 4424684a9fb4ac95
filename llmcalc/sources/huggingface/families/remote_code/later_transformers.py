"""Model types of transformers 5.24 that are read like older types: Apertus 1.5, Hy 4's wrapper, Lara 4 Mini.

Sources: models/apertus1p5, hy_v4_vl and lara_mini of transformers in `Family.source`. The encoders of the wrappers,
which turn images and sounds into tokens or vectors, are not counted.
"""

from __future__ import annotations

from ...class_defaults import class_defaults, class_fields
from ...code_addresses import GITHUB
from ...config import Config
from ...family import Family
from ...parts import (
    Table,
    attention,
    attention_biases,
    decoder,
    float32_rmsnorm,
    gated_experts,
    layer_table,
    listed_kinds,
    qk_norm_fields,
    stack_of_kinds,
    with_router_fields,
)
from ..deepseek.deepseek import ROUTING_FIELDS
from ..deepseek.hy_v4 import read_hy_v4
from ..llama.smollm3 import read_apertus
from ..recurrent.delta import LINEAR_OR_FULL, gated_delta_net

MODELS_FOLDER = f"{GITHUB}huggingface/transformers/tree/v5.24.0/src/transformers/models/"

LARA_PATTERN = ("linear", "sliding", "linear", "full", "sliding")
"""The kinds of Lara 4 Mini's layers, bottom first, which repeat."""


def _read_apertus1p5(config: Config) -> Table:
    """Reads Apertus 1.5, whose output head scores only the first `output_vocab_size` rows of the vocabulary."""
    model_fields = read_apertus(config)
    head_rows = config.optional_integer("output_vocab_size")
    vocab_size = config.integer("vocab_size")
    if head_rows in (None, vocab_size):
        return model_fields
    if head_rows > vocab_size or model_fields["tie_word_embeddings"]:
        raise config.error(
            "output_vocab_size", head_rows, f"at most vocab_size, {vocab_size}, with tie_word_embeddings = false"
        )
    return {**model_fields, "vocab_size": head_rows, "additional_vocab_size": vocab_size - head_rows}


def _read_lara_mini(config: Config) -> Table:
    """Reads Lara 4 Mini: Qwen3.5's gated DeltaNet, windows with RoPE, and full attention without positions."""
    norm, depth = float32_rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    full_attention: Table = {
        "type": "attention",
        **attention(config, **attention_biases(config), **qk_norm_fields(norm)),
    }
    mixers: Table = {
        "linear": gated_delta_net(config),
        "sliding": {**full_attention, "sliding_window": config.integer("sliding_window")},
        "full": {**full_attention, "position": "none"},
    }
    shared_width = config.integer("shared_expert_intermediate_size")
    experts = gated_experts(config, shared_width=shared_width, router={"type": "linear", "float32_product": True})
    default_layer_kinds = [LARA_PATTERN[layer_index % len(LARA_PATTERN)] for layer_index in range(depth)]
    kind_by_type = {**LINEAR_OR_FULL, "sliding_attention": "sliding"}
    layer_kinds = listed_kinds(config, "layer_types", kind_by_type, default_layer_kinds)
    layer_configs = {mixer_kind: layer_table(token_mixer, experts, norm) for mixer_kind, token_mixer in mixers.items()}
    stack_fields = stack_of_kinds(layer_configs, layer_kinds)
    return decoder(config, stack_fields["block"], norm, stack=stack_fields)


def _read_hy_v4_vl_text(config: Config) -> Table:
    """Reads the text model of Hy 4's wrapper, whose routers compute in float32, as in `hy_v4`."""
    model_fields: Table = with_router_fields(read_hy_v4(config), {"float32_product": True, "float32_weights": True})
    return model_fields


FAMILIES = {
    "apertus1p5_text": Family(
        _read_apertus1p5,
        {**class_defaults("apertus"), "vocab_size": 266752, "output_vocab_size": None},
        class_fields("apertus") | {"mlp_bias", "post_norm", "qk_norm"},
        source=f"{MODELS_FOLDER}apertus1p5",
    ),
    "apertus1p5": Family(
        None,
        text_type="apertus1p5_text",
        uncounted_encoders={"vision_config": "apertus1p5_vision_tokenizer", "audio_config": "wavtokenizer_encoder"},
        source=f"{MODELS_FOLDER}apertus1p5",
    ),
    "hy_v4_vl_text": Family(
        _read_hy_v4_vl_text,
        {
            **class_defaults("hy_v4"),
            "hidden_size": 6144,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 78,
            "num_attention_heads": 64,
            "q_lora_rank": 2048,
            "index_n_heads": 32,
        },
        class_fields("hy_v4") | ROUTING_FIELDS | {"num_nextn_predict_layers"},
        source=f"{MODELS_FOLDER}hy_v4_vl",
    ),
    "hy_v4_vl": Family(
        None,
        text_type="hy_v4_vl_text",
        uncounted_encoders={"vision_config": "hy_v4_vl_vision"},
        source=f"{MODELS_FOLDER}hy_v4_vl",
    ),
    "lara_mini": Family(
        _read_lara_mini,
        {
            **class_defaults("qwen3_next"),
            "hidden_size": 1024,
            "num_hidden_layers": 34,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
            "head_dim": 128,
            "sliding_window": 512,
            "linear_num_key_heads": 8,
            "linear_num_value_heads": 16,
            "num_experts_per_tok": 4,
            "num_experts": 128,
        },
        class_fields("qwen3_next") - {"decoder_sparse_step", "mlp_only_layers", "intermediate_size"},
        source=f"{MODELS_FOLDER}lara_mini",
    ),
}
