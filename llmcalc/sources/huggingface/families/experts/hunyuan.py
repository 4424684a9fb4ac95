"""Tencent's Hunyuan, dense and with experts: QK-norm after RoPE (V1), or before RoPE (Hy3).

Hy3 has DeepSeek-V3's routing.

transformers: models/hunyuan_v1_dense, models/hunyuan_v1_moe, models/hy_v3; the text model of models/hunyuan_vl
    (HunyuanOCR) is the dense one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .....components.base import LARGEST_SIZE
from .....errors import short_repr
from ...config import Config, is_json_integer
from ...family import Family, ModuleNames, field_names
from ...parts import (
    Table,
    attention,
    attention_biases,
    decoder_of_kinds,
    dense_or_moe_kinds,
    glu,
    layer_table,
    moe,
    mtp_modules,
    qk_norm_fields,
    rmsnorm,
)
from ..deepseek.deepseek import SIGMOID_ROUTING
from ..llama.llama import llama_decoder

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _attention_with_norms(config: Config, norm_order: str = "after_rope", **attention_fields: Any) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    return attention(
        config, **attention_biases(config), **qk_norm_fields(norm, norm_order=norm_order), **attention_fields
    )


def _check_published_fields(config: Config) -> None:
    """Raises `InputError` for values in Tencent's own fields that the class of transformers does not implement."""
    for field_name, counted_values in (
        ("use_qk_norm", (True,)),
        ("use_cla", (False,)),
        ("use_mla", (False,)),
        ("mlp_bias", (False,)),
        ("norm_type", ("rms",)),
    ):
        config.require_if_present(field_name, *counted_values)


def _read_hunyuan_v1_dense(config: Config) -> Table:
    _check_published_fields(config)
    return llama_decoder(config, _attention_with_norms(config))


def _read_hunyuan_vl_text(config: Config) -> Table:
    """Reads HunyuanOCR's text model, where Tencent's field names are aliases with precedence."""
    for usual_name, published_name in (("vocab_size", "org_vocab_size"), ("head_dim", "attention_head_dim")):
        if (
            config.config_fields.get(usual_name) is not None
            and config.config_fields.get(published_name) is not None
            and config.config_fields[usual_name] != config.config_fields[published_name]
        ):
            wrong_value = config.config_fields[usual_name]
            raise config.error(
                published_name, config.config_fields[published_name], f"{usual_name} ({short_repr(wrong_value)})"
            )
    return _read_hunyuan_v1_dense(config)


def _layer_integers(config: Config, field_name: str) -> list[int]:
    """Returns a positive integer for each layer, from a number for all layers or a list."""
    depth, field_value = config.integer("num_hidden_layers"), config.get(field_name)
    layer_values = field_value if isinstance(field_value, list) else [config.integer(field_name)] * depth
    if len(layer_values) < depth or any(
        not is_json_integer(layer_value) or not 0 < layer_value <= LARGEST_SIZE for layer_value in layer_values
    ):
        raise config.error(field_name, field_value, f"a positive whole number, or {depth} of them")
    return layer_values[:depth]


def _read_hunyuan_v1_moe(config: Config) -> Table:
    """Reads Hunyuan A13B, with experts and a shared expert of the same width in every layer.

    The number of experts per token may differ by layer.
    """
    _check_published_fields(config)
    norm = rmsnorm(config.number("rms_norm_eps"))
    expert_width = config.integer("intermediate_size")
    expert_count = config.integer("num_experts", "num_local_experts")
    for field_name, expected_value in (("num_shared_expert", 1), ("moe_intermediate_size", expert_width)):
        if config.has(field_name) and {*_layer_integers(config, field_name)} != {expected_value}:
            raise config.field_error(field_name, f"{expected_value} in every layer, as in the class")
    config.require_if_present("moe_layer_num_skipped", 0)
    top_k_by_layer = _layer_integers(config, "num_experts_per_tok")
    layer_changes: Table = {
        f"top{top_k}": {"feed_forward": {"num_experts_per_tok": top_k}} if top_k != top_k_by_layer[0] else {}
        for top_k in top_k_by_layer
    }
    feed_forward = moe(expert_count, top_k_by_layer[0], glu(config), glu(config))
    block = layer_table(_attention_with_norms(config), feed_forward, norm)
    return decoder_of_kinds(config, block, norm, ([f"top{top_k}" for top_k in top_k_by_layer], layer_changes))


def _read_hy_v3(config: Config) -> Table:
    if config.has("first_k_dense_replace") and not config.has("mlp_layer_types"):
        config.require("first_k_dense_replace", 1)
    norm = rmsnorm(config.number("rms_norm_eps"))
    expert_width = config.integer("moe_intermediate_size")
    has_bias = config.flag("mlp_bias")
    if config.count("num_shared_experts") == 0:
        raise config.error(
            "num_shared_experts",
            0,
            "1 or more (with 0, the class adds an FFN of intermediate_size, which no checkpoint has)",
        )
    shared_expert = glu(config, has_bias, expert_width * config.integer("num_shared_experts"))
    experts = moe(
        config.integer("num_experts", "num_local_experts"),
        config.integer("num_experts_per_tok"),
        glu(config, ffn_width=expert_width),
        shared_expert,
        **SIGMOID_ROUTING,
    )
    ffns: Table = {"dense": {}, "moe": {"feed_forward": experts}}
    block = layer_table(_attention_with_norms(config, "before_rope"), glu(config, has_bias), norm)
    depth = config.integer("num_hidden_layers")
    return decoder_of_kinds(config, block, norm, (dense_or_moe_kinds(config, depth, 1), ffns), **mtp_modules(config))


IGNORED_FIELDS = field_names("""
    bos_id capacity_factor eos_id image_token_id max_vit_seq_len pad_id sep_id vision_config video_token_id
    add_classification_head anyres_pooling_size anyres_vit_max_image_size anyres_vit_two_views attention_head_dim
    cla_share_factor class_num dense_list enable_attention_fp32_softmax enable_lm_head_fp32 enable_moe_fp32_combine
    eod_token_id group_limited_greedy im_end_id im_newline_id im_start_id kv_lora_rank mask_init_id moe_drop_tokens
    moe_random_routing_dropped_token moe_router_enable_expert_bias moe_router_use_sigmoid n_group norm_topk_prob
    num_media_embeds org_vocab_size pool_type position_embedding_xdrope q_lora_rank qk_nope_head_dim qk_rope_head_dim
    route_norm routed_scaling_factor router_scaling_factor skip_cls_token text_end_id text_start_id topk_group
    use_grouped_mm use_mixed_mlp_moe use_rotary_pos_emb v_head_dim video_end_id video_start_id vit_add_patchemb_bias
    vit_input_resolution vit_mapping_type vit_norm_type vit_patch vit_path vit_remove_prenorm vit_token vit_type
    vit_used_rms_norm xdrope_section
    """)

EXPERT_FIELDS = {"num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"}
"""Fields that are not read for a model without experts."""


def _top_k_of_layers(model_values: ConfigValues) -> Any:
    top_k_by_layer = [ffn.num_experts_per_tok for ffn in model_values.networks]
    return top_k_by_layer if len({*top_k_by_layer}) > 1 else top_k_by_layer[0]


HUNYUAN_MODULES: ModuleNames = {"q_norm": "query_layernorm", "k_norm": "key_layernorm", "shared_expert": "shared_mlp"}

FAMILIES = {
    "hunyuan_v1_dense": Family(
        _read_hunyuan_v1_dense, ignored_fields=IGNORED_FIELDS | EXPERT_FIELDS, modules=HUNYUAN_MODULES
    ),
    "hunyuan_vl": Family(None, text_type="hunyuan_vl_text", tying_source="either", tower_file="pixtral"),
    "hunyuan_vl_text": Family(
        _read_hunyuan_vl_text,
        ignored_fields=IGNORED_FIELDS | EXPERT_FIELDS,
        aliases={"head_dim": "attention_head_dim", "vocab_size": "org_vocab_size"},
        has_older_aliases=True,
        modules=HUNYUAN_MODULES,
    ),
    "hunyuan_v1_moe": Family(
        _read_hunyuan_v1_moe,
        ignored_fields=IGNORED_FIELDS,
        aliases={"num_experts_per_tok": "moe_topk"},
        field_writers={"moe_topk": _top_k_of_layers},
        modules=HUNYUAN_MODULES,
    ),
    "hy_v3": Family(
        _read_hy_v3,
        ignored_fields=IGNORED_FIELDS | {"expert_hidden_dim", "qk_norm"},
        earlier_names={"mlp.gate": "mlp.router.gate", "shared_experts": "shared_mlp"},
    ),
}
