"""DeepSeek-V4: compressed attention, hyper-connections, and hash routing in the first layers.

transformers: models/deepseek_v4.
"""

from __future__ import annotations

from dataclasses import replace
from math import floor
from typing import TYPE_CHECKING

from .....ops import KVCache, Op
from ...config import Config
from ...family import Deviation, Family, field_names
from ...parts import (
    Table,
    add_mtp_modules,
    clamped_swiglu,
    decoder,
    float32_rmsnorm,
    full_rope,
    glu,
    listed_kinds,
    moe,
    stack_of_combined_kinds,
)

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues

SPARSE_TYPE, HEAVY_TYPE = "compressed_sparse_attention", "heavily_compressed_attention"
KIND_BY_LAYER_TYPE = {"sliding_attention": "sliding", SPARSE_TYPE: "sparse", HEAVY_TYPE: "heavy"}
KIND_BY_RATIO = {0: "sliding", 4: "sparse", 128: "heavy"}


def _read_deepseek_v4(config: Config) -> Table:
    config.require_fields(n_shared_experts=1, hidden_act="silu")
    depth = config.integer("num_hidden_layers")
    norm = float32_rmsnorm(config.number("rms_norm_eps"))
    expert_width = config.integer("moe_intermediate_size", "intermediate_size")
    field_names = ("num_attention_heads", "head_dim", "q_lora_rank", "o_groups", "o_lora_rank", "sliding_window")
    position_encoding: Table = full_rope(config)
    token_mixer: Table = {
        "type": "compressed",
        **{field_name: config.integer(field_name) for field_name in field_names},
        "qk_rope_head_dim": _rotary_dims(config),
        "norm": norm,
        "position": position_encoding,
    }
    indexer_table = config.integer_fields("index_n_heads", "index_head_dim", "index_topk")
    compression_rates = _compression_rates(config)
    layer_variants: Table = {"sliding": {}, "heavy": {"attention": {"compress_rate": compression_rates[HEAVY_TYPE]}}}
    attention = {"compress_rate": compression_rates[SPARSE_TYPE], "overlap": True, "indexer": indexer_table}
    layer_variants["sparse"] = {"attention": attention}
    shared_ffn = clamped_swiglu(glu(config, config.flag("mlp_bias"), expert_width))
    score_function = _scoring_func(config)
    token_table_router: Table = {"type": "token_table", "scoring_func": score_function}
    experts = moe(
        config.integer("n_routed_experts", "num_local_experts"),
        config.integer("num_experts_per_tok"),
        clamped_swiglu(glu(config, ffn_width=expert_width)),
        shared_ffn,
        router={"scoring_func": score_function},
    )
    ffns_by_kind: Table = {
        "hash": {"feed_forward": {"router": {**token_table_router, "vocab_size": config.integer("vocab_size")}}},
        "moe": {"feed_forward": {"router": {"score_correction": "buffer"}}},
    }
    block = {
        "type": "hyper", "attention": token_mixer, "feed_forward": experts, "norm": norm,
        **config.integer_fields("hc_mult", "hc_sinkhorn_iters"),
    }  # fmt: skip
    stack_fields = stack_of_combined_kinds(
        (_attention_kinds(config, depth), layer_variants), (_routing_kinds(config, depth), ffns_by_kind)
    )
    prediction_kind = _prediction_attention(config, depth)
    layer_changes = {**layer_variants[prediction_kind], **ffns_by_kind["moe"]}
    mtp_fields = add_mtp_modules(config, stack_fields, f"{prediction_kind}-moe", layer_changes, norm)
    residual_streams = {"type": "hyper", "hc_mult": config.integer("hc_mult")}
    return decoder(config, block, norm, stack={**stack_fields, "streams": residual_streams}, **mtp_fields)


def _prediction_attention(config: Config, depth: int) -> str:
    """Returns the attention kind of the MTP modules, from the entry of `compress_ratios` after the layers' entries.

    By default that of ratio 0, which SGLang has (`COMPRESS_RATIO_NEXTN_LAYER` in models/deepseek_v4_nextn.py) as the
    published configs do.
    """
    further_ratios = config.integers("compress_ratios")[depth:] if config.has("compress_ratios") else []
    return KIND_BY_RATIO[further_ratios[0] if further_ratios else 0]


def _rotary_dims(config: Config) -> int:
    """Returns the number of rotary dimensions of a head."""
    if config.has("partial_rotary_factor"):
        return floor(config.integer("head_dim") * config.number("partial_rotary_factor"))
    if config.has("qk_rope_head_dim"):
        return config.integer("qk_rope_head_dim")
    return floor(config.integer("head_dim") * 64 / 512)


def _compression_rates(config: Config) -> dict[str, int]:
    """Returns layer kind → tokens per compressed key and value; two older config fields take precedence."""
    rates = config.table("compress_rates") if config.has("compress_rates") else {SPARSE_TYPE: 4, HEAVY_TYPE: 128}
    location = f"{config.location}compress_rates."
    compression_rates = Config(rates, {}, config.model_type, config.head_kind, location)
    older_names = {SPARSE_TYPE: "compress_rate_csa", HEAVY_TYPE: "compress_rate_hca"}
    return {
        layer_kind: config.integer(older_name) if config.has(older_name) else compression_rates.integer(layer_kind)
        for layer_kind, older_name in older_names.items()
    }


def _attention_kinds(config: Config, depth: int) -> list[str]:
    """Returns each layer's attention kind, from the config's list or from an older config's compression ratios.

    The ratios may include the prediction module's.
    """
    default_layer_kinds = [
        "heavy" if layer_index < 2 or layer_index % 2 == 0 else "sparse" for layer_index in range(depth)
    ]
    if config.has("compress_ratios") and not config.has("layer_types"):
        compression_ratios = config.integers("compress_ratios")
        if len(compression_ratios) < depth or not {*compression_ratios} <= {*KIND_BY_RATIO}:
            raise config.error("compress_ratios", compression_ratios, f"{depth} times 0, 4 or 128")
        default_layer_kinds = [KIND_BY_RATIO[compression_ratio] for compression_ratio in compression_ratios[:depth]]
    return listed_kinds(config, "layer_types", KIND_BY_LAYER_TYPE, default_layer_kinds)


def _routing_kinds(config: Config, depth: int) -> list[str]:
    """Returns each layer's kind of routing: by a hash of the token or by a router."""
    hash_layer_count = config.count("num_hash_layers") if config.has("num_hash_layers") else 3
    default_layer_kinds = ["hash" if layer_index < hash_layer_count else "moe" for layer_index in range(depth)]
    return listed_kinds(config, "mlp_layer_types", {"hash_moe": "hash", "moe": "moe"}, default_layer_kinds)


def _scoring_func(config: Config) -> str:
    score_function: str = config.choice({name: name for name in ("softmax", "sigmoid", "sqrtsoftplus")}, "scoring_func")
    return score_function


def _written_layer_types(model_values: ConfigValues) -> list[str]:
    """Returns each layer's kind as DeepSeek-V4's config names it."""
    type_names = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")
    return [
        type_names[0]
        if token_mixer.compress_rate is None
        else type_names[1]
        if token_mixer.indexer is not None
        else type_names[2]
        for token_mixer in model_values.mixers
    ]


def _compression_rates_by_kind(model_values: ConfigValues) -> dict[str, int]:
    """Returns layer kind → tokens per compressed key and value."""
    kinds_and_mixers = zip(_written_layer_types(model_values), model_values.mixers, strict=True)
    return {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128} | {
        layer_kind: token_mixer.compress_rate
        for layer_kind, token_mixer in kinds_and_mixers
        if token_mixer.compress_rate is not None
    }


def _with_doubled_cache(op: Op) -> Op:
    return replace(op, width=2 * op.width) if isinstance(op, KVCache) and op.cache_kind == "sliding_attention" else op


DOUBLED_CACHE = Deviation(
    "DeepSeek-V4's cache",
    "layers without compressed entries cache their shared key/value tensor twice",
    "cache_bytes",
    class_op=_with_doubled_cache,
)


FAMILIES = {
    "deepseek_v4": Family(
        _read_deepseek_v4,
        ignored_fields=field_names("""
            compress_rate_csa compress_rate_hca compress_ratios expert_dtype num_hash_layers qk_rope_head_dim
            topk_method
            """),
        field_writers={
            "layer_types": _written_layer_types,
            "mlp_layer_types": lambda s: ["hash_moe" if n.router.reads_token_ids else "moe" for n in s.networks],
            "partial_rotary_factor": lambda s: s.first_value("qk_rope_head_dim") / s.first_value("head_dim"),
            "compress_rates": _compression_rates_by_kind,
        },
        deviations=(DOUBLED_CACHE,),
        earlier_names={
            "compressor.indexer.q_b_proj": "indexer.wq_b",
            "compressor.indexer.scorer.weights_proj": "indexer.weights_proj",
            "compressor.indexer": "indexer.compressor",
            "compressor.kv_proj": "compressor.wkv",
            "compressor.gate_proj": "compressor.wgate",
            "self_attn.q_a_proj": "self_attn.wq_a",
            "self_attn.q_b_proj": "self_attn.wq_b",
            "self_attn.kv_proj": "self_attn.wkv",
            "o_a_proj": "wo_a",
            "o_b_proj": "wo_b",
            "self_attn": "attn",
            "shared_experts.gate_proj": "shared_experts.w1",
            "shared_experts.up_proj": "shared_experts.w3",
            "shared_experts.down_proj": "shared_experts.w2",
            "mlp": "ffn",
            "lm_head": "head",
        },
    )
}
