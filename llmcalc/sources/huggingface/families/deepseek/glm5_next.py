"""GLM-5.3: Kimi delta attention, and latent attention without positions whose indexer scores pools of tokens.

Each sublayer reads and writes several residual streams, whose mean is the output. transformers: models/glm5_next. vLLM:
models/glm5next/common/mtp.py, for the module that predicts a further token, whose layer has no such streams.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .....components.base import LARGEST_SIZE
from .....components.mixers.kimi_delta_attention import KimiDeltaAttention
from .....components.mixers.mla import MLA
from .....ops import KVCache
from ...absent_value import require_present
from ...config import Config
from ...family import EVERY_CLASS, Deviation, Family, Quirks, field_names, module_names
from ...field_writers import NO_PADDING_WRITER
from ...parts import (
    Table,
    add_mtp_modules,
    clamped_swiglu,
    decoder,
    dense_or_moe_kinds,
    glu,
    layer_table,
    listed_kinds,
    rmsnorm,
    stack_of_kinds,
)
from ..recurrent.delta import KDA_MODULES, kda, linear_attention_config
from .deepseek import LATENT_WRITERS, ROUTING_FIELDS, SIGMOID_ROUTING, routed_experts
from .dsa import DSA_MODULES, indexer_kinds

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues

MIXER_BY_LAYER_TYPE = {"linear_attention": "linear", "indexed_attention": "indexed", "full_attention": "indexed"}
DEFAULT_LOWER_BOUND = -5.0
"""The lower bound of the log decay by default."""

PUBLISHED_FIELDS = {"index_kpool_compress": True, "mhc": True, "mla_use_nope": True}
"""Field of the published config that the class does not read → the value that the class implements."""


def _read_glm5_next_text(config: Config) -> Table:
    for field_name, field_value in PUBLISHED_FIELDS.items():
        config.require_if_present(field_name, field_value)
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    config.require("num_key_value_heads", None, config.integer("num_attention_heads"))
    config.require("hidden_act", "silu")
    if config.count("qk_rope_head_dim"):
        raise config.field_error("qk_rope_head_dim", "0: its attention has no positions")
    config.integer("q_lora_rank")
    config.require("index_kpool_always_select_tail", True)
    selected_tokens, pool_size = config.integer("index_topk"), config.integer("index_kpool")
    config.quotient("index_kpool", selected_tokens, pool_size)
    indexer_table = {
        "type": "pooled",
        **config.integer_fields("index_n_heads", "index_head_dim"),
        "index_topk": selected_tokens,
        "index_kpool": pool_size,
    }
    latent_fields: Table = {"norm": norm, "mla_use_nope": True, "qk_rope_head_dim": 0, "position": {"type": "rope"}}
    mixers: Table = {
        "linear": _linear_attention(config),
        "full": _latent_attention(config, indexer_table, latent_fields),
        "shared": _latent_attention(config, {**indexer_table, "shared": True}, latent_fields),
    }
    ffn_kinds = dense_or_moe_kinds(config, depth, 3)
    experts = routed_experts(config, **SIGMOID_ROUTING)
    expert_fields = ("expert", "shared_expert")
    clamped_networks = {field: clamped_swiglu(experts[field]) for field in expert_fields if field in experts}
    ffns_by_kind: Table = {"moe": {**experts, **clamped_networks}}
    if "dense" in ffn_kinds:
        ffns_by_kind["dense"] = {"type": "mlp", **clamped_swiglu(glu(config))}
    residual_streams = {"hc_mult": config.integer("hc_mult")}
    hc_sinkhorn_iters = config.integer("hc_sinkhorn_iters")
    common_fields = {"type": "hyper", "norm": norm, **residual_streams, "hc_sinkhorn_iters": hc_sinkhorn_iters}
    layer_configs = {
        f"{mixer_kind}_{ffn_kind}": {
            **common_fields,
            "attention": mixers[mixer_kind],
            "feed_forward": ffns_by_kind[ffn_kind],
        }
        for mixer_kind in mixers
        for ffn_kind in ffns_by_kind
    }
    layer_kinds = [
        f"{kind}_{ffn_kind}" for kind, ffn_kind in zip(_attention_kinds(config, depth), ffn_kinds, strict=True)
    ]
    stack_fields = stack_of_kinds(layer_configs, layer_kinds)
    stack_fields["streams"] = {"type": "hyper", "merge": "mean", **residual_streams}
    prediction_layer = {"type": "block", **layer_table(mixers["full"], ffns_by_kind["moe"], norm)}
    mtp_fields = add_mtp_modules(config, stack_fields, "prediction", prediction_layer, norm)
    return decoder(config, stack_fields.pop("block"), norm, stack=stack_fields, **mtp_fields)


def _latent_attention(config: Config, indexer_table: Table, latent_fields: Table) -> Table:
    config.fields_read.add("rope_parameters")
    return {
        "type": "mla",
        **config.integer_fields("num_attention_heads", "q_lora_rank", "kv_lora_rank", "v_head_dim"),
        "qk_nope_head_dim": config.integer("qk_nope_head_dim"),
        "attention_bias": config.flag("attention_bias"),
        "indexer": indexer_table,
        **latent_fields,
    }


def _linear_attention(config: Config) -> Table:
    """Returns Kimi delta attention; sizes in the config's table `linear_attn_config` take precedence."""
    is_bounded = config.get("linear_lower_bound") is not None
    linear_lower_bound = config.number("linear_lower_bound", minimum=-LARGEST_SIZE) if is_bounded else None
    linear_fields = linear_attention_config(config, {"gate_lower_bound": linear_lower_bound, "safe_gate": True})
    lower_bound = linear_fields.get("gate_lower_bound")
    if lower_bound is None and config.has("linear_attn_config") and linear_fields.flag("safe_gate"):
        lower_bound = DEFAULT_LOWER_BOUND
    elif lower_bound is not None:
        lower_bound = linear_fields.number("gate_lower_bound", minimum=-LARGEST_SIZE)
    linear_fields.fields_read.update(("safe_gate", "kda_layers", "full_attn_layers"))
    attention_fields = kda(
        config, linear_fields, **({} if lower_bound is None else {"kda_lower_bound": float(lower_bound)})
    )
    linear_fields.finish(frozenset(), config)
    return attention_fields


def _attention_kinds(config: Config, depth: int) -> list[str]:
    """Returns each layer's kind of attention: `linear`, or latent with an indexer (`full`) or without (`shared`).

    Raises `InputError` for a selection that is not that of the layer directly below, which its class does not find.
    """
    default_layer_kinds = ["indexed" if layer_index % 4 == 3 else "linear" for layer_index in range(depth)]
    layer_indexers = indexer_kinds(config, depth)
    mixer_kinds = [
        indexer_kind if mixer_kind == "indexed" else mixer_kind
        for mixer_kind, indexer_kind in zip(
            listed_kinds(config, "layer_types", MIXER_BY_LAYER_TYPE, default_layer_kinds), layer_indexers, strict=True
        )
    ]
    for layer_index, mixer_kind in enumerate(mixer_kinds):
        if mixer_kind == "shared" and (layer_index == 0 or mixer_kinds[layer_index - 1] != "full"):
            raise config.field_error(
                "indexer_types",
                f"full for layer {layer_index}: the layer below it selects no tokens, whose selection it could use",
            )
    return mixer_kinds


CACHED_PADDING_FLAGS = Deviation(
    "GLM-5.3's indexer",
    "beside each key it caches whether the token is padding, as a number in the format of the keys",
    "cache_bytes",
    class_op=lambda op: (
        replace(op, width=op.width + 1) if isinstance(op, KVCache) and op.cache_kind == "indexer" else op
    ),
)


def _mla(model_values: ConfigValues) -> Any:
    return model_values.find_part(MLA)


def _mla_indexer(model_values: ConfigValues) -> Any:
    return require_present(_mla(model_values).indexer)


FAMILIES = {
    "glm5_next_text": Family(
        _read_glm5_next_text,
        {"index_topk_freq": 1, "index_skip_topk_offset": 2},
        ROUTING_FIELDS
        | field_names("""
            first_k_dense_replace index_share_for_mtp_iteration index_skip_topk_offset index_topk_freq
            index_topk_pattern indexer_rope_interleave moe_router_dtype safe_gate
            """),
        field_writers={
            **LATENT_WRITERS,
            **NO_PADDING_WRITER,
            "num_attention_heads": lambda s: _mla(s).num_attention_heads,
            "num_key_value_heads": lambda s: _mla(s).num_attention_heads,
            "layer_types": lambda s: [
                "indexed_attention" if isinstance(m, MLA) else "linear_attention" for m in s.mixers
            ],
            "indexer_types": lambda s: [
                "shared" if isinstance(m, MLA) and require_present(m.indexer).shared else "full" for m in s.mixers
            ],
            "index_topk": lambda s: _mla_indexer(s).index_topk,
            "index_kpool": lambda s: _mla_indexer(s).index_kpool,
            "linear_lower_bound": lambda s: s.find_part(KimiDeltaAttention).kda_lower_bound,
        },
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        unconverted_modules=(r"re:.*index_kpool_compress_gate",),
        deviations=(CACHED_PADDING_FLAGS,),
        earlier_names={
            **{f"forget_gate.{name}": name for name in ("f_a_proj", "f_b_proj", "dt_bias", "A_log")},
            **{f"attn_hc.{name}": f"hc_attn_{name}" for name in ("fn", "base", "scale")},
            **{f"ffn_hc.{name}": f"hc_ffn_{name}" for name in ("fn", "base", "scale")},
        },
        modules={
            **{
                node_name.replace("linear_attn.", "self_attn."): path
                for node_name, path in KDA_MODULES.items()
                if "." in node_name
            },
            "self_attn.norm": "o_norm",
            **DSA_MODULES,
            **{
                node_name: module_name
                for node_name, module_name in module_names("hyperclovax").items()
                if not node_name.startswith("hyper_streams")
            },
            "indexer.gate_proj": "index_kpool_compress_gate",
            "indexer.position_bias": "index_kpool_compress_ape",
        },
    ),
    "glm5_next": Family(
        None, text_type="glm5_next_text", tower_file="glm", quirks=Quirks(value_reading_classes=EVERY_CLASS)
    ),
}
