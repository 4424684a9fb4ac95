"""Readers of configs of GPT and its successors: GPT-1, GPT-2, GPT-Neo, StarCoder, GPT-J, CodeGen, GPT-NeoX.

openai-gpt, gpt2 (also as gpt-sw3), gpt_neo, gpt_bigcode, gptj, codegen, gpt_neox, gpt_neox_japanese.

transformers: models/openai, gpt2, gpt_neo, gpt_bigcode, gptj, codegen, gpt_neox, gpt_neox_japanese. LayerNorms with
    biases, non-gated FFNs with biases; learned positions up to GPT-Neo, rotary positions in later models.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .....ops import KVCache, Op
from ...absent_value import require_present
from ...config import Config
from ...dropout import GPT2_DROPOUT, HIDDEN_DROPOUT
from ...family import Deviation, Family, field_names, module_names
from ...parts import (
    ACTIVATIONS,
    IDLE_CROSS_ATTENTION_NOTE,
    QKVO_BIASES,
    Table,
    attention_biases,
    biases,
    class_count,
    class_name_of_config,
    decoder,
    layer_table,
    layernorm,
    learned_positions,
    mlp,
    rope,
    stack_of_variants,
)

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def full_width_heads(config: Config, **attention_fields: Any) -> Table:
    """Returns multi-head attention whose heads together are as wide as the model."""
    head_count = config.integer("num_attention_heads")
    config.quotient("num_attention_heads", config.integer("hidden_size"), head_count)
    return {"num_attention_heads": head_count, **attention_fields}


def non_gated_ffn(config: Config, width_field: str, activation: str, bias: bool = True) -> Table:
    """Returns a network without a gate, by default 4 · hidden_size wide. width_field: the config field of its width."""
    ffn_width = config.optional_integer(width_field) or 4 * config.integer("hidden_size")
    return mlp(ffn_width, config.choice(ACTIVATIONS, activation), bias)


def _gpt_model(
    config: Config,
    token_mixer: Table,
    width_field: str = "n_inner",
    stack_fields: Table | None = None,
    head_fields: Table | None = None,
    label_count: int = 2,
    **block: Any,
) -> Table:
    norm = layernorm(config.number("layer_norm_epsilon"))
    feed_forward = non_gated_ffn(config, width_field, "activation_function")
    layer = {"attention": token_mixer, "feed_forward": feed_forward, "norm": norm, "norm_placement": "pre", **block}
    return decoder(config, layer, norm, stack=stack_fields, head=head_fields, label_count=label_count)


def _multiple_choice_head(config: Config) -> Table:
    """Returns the second head of a multiple-choice class: one score per continuation, from the last token."""
    if config.head_kind != "lm" or not class_name_of_config(config).endswith("DoubleHeadsModel"):
        return {}
    config.require_fields(summary_use_proj=True, summary_proj_to_labels=True)
    return {"pooler": {"dense": False, "num_labels": 1}}


def _read_gpt2(config: Config) -> Table:
    head_fields = full_width_heads(config, float32_softmax=False, **biases(True, *QKVO_BIASES))
    token_mixer, cross_attention = {**head_fields, "fused_qkv": True}, Table()
    if config.flag("add_cross_attention"):
        cross_attention = {"cross_attention": head_fields, "idle_cross_attention": True}
        config.notes.append(IDLE_CROSS_ATTENTION_NOTE)
    stack_fields = {"position": learned_positions(config)}
    return {
        **_gpt_model(config, token_mixer, stack_fields=stack_fields, **cross_attention),
        **_multiple_choice_head(config),
    }


def _read_gpt_bigcode(config: Config) -> Table:
    """Reads StarCoder. SantaCoder's first repository has `attention_head_type` in place of `multi_query`."""
    config.require("add_cross_attention", False)
    if config.has("attention_head_type"):
        is_multi_query = config.choice({"multiquery": True, "multihead": False}, "attention_head_type")
    else:
        is_multi_query = config.flag("multi_query")
    kv_fields = {"num_key_value_heads": 1} if is_multi_query else {}
    stack_fields = {"position": learned_positions(config)}
    return _gpt_model(
        config, full_width_heads(config, **kv_fields, **biases(True, *QKVO_BIASES)), stack_fields=stack_fields
    )


def _read_gpt_neo(config: Config) -> Table:
    attention_types = config.get("attention_types")
    depth = config.integer("num_hidden_layers")
    window_size = config.integer("window_size")
    attention_types = [[["global", "local"], 12]] if attention_types is None else attention_types
    layer_changes: Table = {"global": {}, "local": {"attention": {"sliding_window": window_size}}}
    layer_kinds: list[str] = []
    for pattern_entry in attention_types if isinstance(attention_types, list) else ():
        match pattern_entry:
            case [[*period_types], int(times)] if 0 <= times <= depth >= times * len(period_types) and all(
                isinstance(layer_kind, str) and layer_kind in layer_changes for layer_kind in period_types
            ):
                layer_kinds += period_types * times
            case _:
                layer_kinds.append("")
    if len(layer_kinds) != depth or "" in layer_kinds:
        raise config.error(
            "attention_types", attention_types, f'what each of {depth} layers is: [[["global", "local"], {depth // 2}]]'
        )
    stack_fields = {**stack_of_variants(layer_changes, layer_kinds), "position": learned_positions(config)}
    return _gpt_model(
        config, full_width_heads(config, float32_scores=True, o_bias=True), "intermediate_size", stack_fields
    )


def _read_openai_gpt(config: Config) -> Table:
    norm = layernorm(config.number("layer_norm_epsilon"))
    ffn_width = 4 * config.integer("hidden_size")
    ffn = mlp(ffn_width, config.choice({"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}, "afn"))
    attention = full_width_heads(config, float32_softmax=False, **biases(True, *QKVO_BIASES))
    block = layer_table(attention, ffn, norm, "post")
    return decoder(config, block, None, stack={"position": learned_positions(config)}, **_multiple_choice_head(config))


def read_gptj(config: Config) -> Table:
    """Reads GPT-J and CodeGen: attention and FFN in parallel after one norm, and an output head with a bias."""
    rotary_dim = config.optional_integer("rotary_dim")
    position_encoding = {"type": "rope", **({} if rotary_dim is None else {"rotary_dim": rotary_dim})}
    return _gpt_model(
        config,
        full_width_heads(config, float32_scores=True, position=position_encoding),
        parallel="shared",
        head_fields={"bias": True},
        label_count=class_count(config),
    )


def _read_gpt_neox(config: Config) -> Table:
    norm = layernorm(config.number("layer_norm_eps"))
    position_encoding = rope(config, 0.25, "rotary_pct", "rotary_emb_base")
    token_mixer = full_width_heads(config, position=position_encoding, fused_qkv=True, **attention_biases(config))
    block = layer_table(token_mixer, non_gated_ffn(config, "intermediate_size", "hidden_act"), norm)
    use_parallel_residual = config.flag("use_parallel_residual")
    return decoder(config, {**block, **({"parallel": "separate"} if use_parallel_residual else {})}, norm)


def _read_gpt_neox_japanese(config: Config) -> Table:
    """Reads GPT-NeoX Japanese: no biases, except in the last layer's attention output projection."""
    norm = layernorm(config.number("layer_norm_eps"))
    depth = config.integer("num_hidden_layers")
    ffn_width = config.integer("intermediate_multiple_size") * config.integer("hidden_size")
    ffn = mlp(ffn_width, config.choice(ACTIVATIONS, "hidden_act"), bias=False)
    attention = full_width_heads(config, position=rope(config, 1.0, "rotary_pct", "rotary_emb_base"))
    block = layer_table(attention, ffn, norm)
    layer_changes = {"plain": {}, "biased": {"attention": {"o_bias": True}}}
    layer_kinds = ["plain"] * (depth - 1) + ["biased"]
    return decoder(config, block, norm, stack=stack_of_variants(layer_changes, layer_kinds))


ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


IGNORED_FIELDS = field_names("""
    n_ctx n_special predict_special_tokens reorder_and_upcast_attn rotary summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj inference_runner max_batch_size pad_key_length
    pre_allocate_kv_cache validate_runner_input attention_layers embed_dropout apply_query_key_layer_scaling
    normalize_attention_scores
    """)


def _activation_name(model_values: ConfigValues) -> str:
    """Returns GPT-1's activation name, where `gelu` means the approximate GELU."""
    hidden_act = model_values.network.hidden_act
    return {"gelu_new": "gelu", "gelu_tanh": "gelu"}.get(hidden_act, hidden_act)


def _attention_types(model_values: ConfigValues) -> list[Any]:
    """Returns GPT-Neo's attention type for each layer."""
    layer_kinds = model_values.layer_kinds()
    return [[["global" if layer_kind == "full_attention" else "local"], 1] for layer_kind in layer_kinds]


def _with_cache_of_every_token(op: Op) -> Op:
    return replace(op, token_limit=None) if isinstance(op, KVCache) else op


KEEPS_EVERY_TOKEN = Deviation(
    "GPT-Neo's cache", "its local layers cache every token", "cache_bytes", class_op=_with_cache_of_every_token
)


FAMILIES = {
    "openai-gpt": Family(
        _read_openai_gpt,
        ignored_fields=IGNORED_FIELDS,
        aliases=ALIASES,
        field_writers={"afn": _activation_name},
        dropout_fields=GPT2_DROPOUT,
    ),
    "gpt2": Family(_read_gpt2, ignored_fields=IGNORED_FIELDS, aliases=ALIASES, dropout_fields=GPT2_DROPOUT),
    "gpt-sw3": Family(
        _read_gpt2,
        ignored_fields=IGNORED_FIELDS,
        aliases=ALIASES,
        modules=module_names("gpt2"),
        dropout_fields=GPT2_DROPOUT,
    ),
    "gpt_bigcode": Family(
        _read_gpt_bigcode,
        {"summary_use_proj": True, "summary_proj_to_labels": True},
        IGNORED_FIELDS | {"num_key_value_heads"},  # the class derives it from `multi_query`
        aliases=ALIASES,
        modules={**module_names("gpt2"), "q_proj": "c_attn", "k_proj": "c_attn", "v_proj": "c_attn"},
        dropout_fields=GPT2_DROPOUT,
    ),
    "gpt_neo": Family(
        _read_gpt_neo,
        ignored_fields=IGNORED_FIELDS,
        aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
        field_writers={"attention_types": _attention_types, "window_size": lambda s: require_present(s.window)},
        deviations=(KEEPS_EVERY_TOKEN,),
        dropout_fields={
            "embedding": "embed_dropout",
            "attention": "attention_dropout",
            "attention_output": "resid_dropout",
            "feed_forward": "resid_dropout",
        },
    ),
    "gptj": Family(read_gptj, ignored_fields=IGNORED_FIELDS, aliases=ALIASES, dropout_fields=GPT2_DROPOUT),
    "codegen": Family(read_gptj, ignored_fields=IGNORED_FIELDS, aliases=ALIASES, dropout_fields=GPT2_DROPOUT),
    "gpt_neox": Family(
        _read_gpt_neox,
        ignored_fields=IGNORED_FIELDS,
        field_writers={"rotary_pct": "partial_rotary_factor"},
        dropout_fields={**HIDDEN_DROPOUT, "embedding": "hidden_dropout"},
    ),
    "gpt_neox_japanese": Family(
        _read_gpt_neox_japanese,
        ignored_fields=IGNORED_FIELDS,
        modules={**module_names("gpt_neox"), "o_proj": "dense + dense_bias | dense"},
        dropout_fields=HIDDEN_DROPOUT,
    ),
}
