"""T5 and its successors: mt5, umt5 (a position bias in every layer), longt5 (local attention), pop2piano (audio).

transformers: models/t5, models/mt5, models/umt5, models/longt5, models/pop2piano. The first four tie the head
    regardless of the config (T5 1.1, mT5 and UMT5 are published with an untied head); llmcalc counts as the config
    says.
"""

from __future__ import annotations

from dataclasses import replace

from .....ops import Linear
from .....workload.rows import LOGITS
from ...absent_value import require_present
from ...config import Config
from ...dropout import T5_DROPOUT
from ...family import EVERY_CLASS, LAST_TOKEN_QUIRKS, Deviation, Family, ModuleNames, Quirks, is_untied
from ...field_writers import FieldWriters
from ...parts import ACTIVATIONS, Table, class_count, class_name_of_config, head_table, layer_table, rmsnorm


def _read_t5(config: Config) -> Table:
    """Reads T5, and Chronos, whose tokens are values of a time series.

    Raises `InputError` for Chronos-Bolt and Chronos-2, whose classes embed patches of a time series.
    """
    if config.has("chronos_config"):
        patch_size = config.table("chronos_config").get("input_patch_size")
        if patch_size is not None:
            raise config.error(
                "chronos_config.input_patch_size",
                patch_size,
                "no such field: patches of a time series are not supported, only Chronos's tokens are",
            )
    stack_fields = shared_position_bias(config)
    stack_fields["relative_bias"]["bias_in_sdpa"] = True
    return t5_model(config, t5_block(config), stack_fields)


def _read_umt5(config: Config) -> Table:
    block = t5_block(config)
    bucket_sizes = {
        field_name: field_value
        for field_name, field_value in shared_position_bias(config)["relative_bias"].items()
        if field_name != "num_attention_heads"
    }
    block["attention"] |= {"position": {"type": "relative_bias", **bucket_sizes, "bias_in_sdpa": True}}
    return t5_model(config, block, {})


def _read_longt5(config: Config) -> Table:
    """Reads LongT5: T5's decoder, and a local-attention encoder, which has a second position bias for block sums."""
    block = t5_block(config)
    has_block_sums = config.choice({"local": False, "transient-global": True}, "encoder_attention_type")
    head_fields = {name: value for name, value in block["attention"].items() if name != "float32_softmax"}
    local_attention = {"type": "local", **head_fields, "local_radius": config.integer("local_radius")}
    local_attention |= (
        {"global_block_size": config.integer("global_block_size"), "global_norm": block["norm"]}
        if has_block_sums
        else {}
    )
    model_fields = t5_model(config, {**block, "attention": local_attention}, shared_position_bias(config), block)
    if has_block_sums:
        model_fields["encoder"]["relative_bias"] = {**model_fields["encoder"]["relative_bias"], "of_blocks": True}
    return model_fields


def _read_pop2piano(config: Config) -> Table:
    """Reads Pop2Piano: T5's encoder over the frames of a spectrum, and a head that its class never ties."""
    config.fields_read.add("tie_word_embeddings")
    config.require("is_encoder_decoder", True)
    model_fields = _read_t5(config)
    model_fields["encoder"]["stem"] = {
        "type": "features",
        "num_features": model_fields["hidden_size"],
        "num_styles": config.integer("composer_vocab_size"),
    }
    return {**model_fields, "tie_word_embeddings": False}


def t5_model(config: Config, block: Table, stack_fields: Table, decoder_block: Table | None = None) -> Table:
    """Returns the tables of T5's encoder and decoder, or only the encoder's for an encoder-only class.

    stack_fields: fields of both stacks.
    """
    layer_count, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("layer_norm_epsilon"), scales_x=True)
    decoder_layer_count = decoder_depth(config)
    model_fields: Table = {
        **config.integer_fields("vocab_size", "hidden_size"),
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
    }
    is_tied_head = model_fields["tie_word_embeddings"] and config.head_kind == "lm"
    if is_tied_head and config.config_fields.get("scale_decoder_outputs") is False:
        config.notes.append(
            "tie_word_embeddings: counted as true; scale_decoder_outputs is false, as where transformers 5 saves T5 "
            "1.1, whose weights have an lm_head of their own and are loaded untied"
        )
    elif is_tied_head and config.model_type in ("mt5", "umt5") and config.has("tie_word_embeddings"):
        config.notes.append(
            "tie_word_embeddings: counted as true, which transformers 5 saves whatever the weights have; the released "
            "weights of mT5 and UMT5 have an lm_head of their own and are loaded untied"
        )
    if config.optional_integer("n_positions") is not None:
        model_fields["max_position_embeddings"] = config.integer("n_positions")
    model_fields["encoder"] = {"num_hidden_layers": layer_count, "block": block, "final_norm": norm, **stack_fields}
    class_name = class_name_of_config(config)
    if class_name.endswith(("EncoderModel", "ForTokenClassification")):
        if config.get("is_decoder"):
            raise config.error(
                "is_decoder",
                True,
                "false (with true, the class adds cross-attention to the encoder, which is not counted)",
            )
        return {**model_fields, "head": head_table(config)}
    decoder = {**(decoder_block or block), "cross_attention": _t5_attention(config)}
    model_fields["decoder"] = {
        "num_hidden_layers": decoder_layer_count,
        "block": decoder,
        "final_norm": norm,
        **stack_fields,
    }
    head_fields = head_table(config, None, {"transform": {"hidden_act": "tanh", "norm": None}}, class_count(config))
    return {**model_fields, "head": head_fields}


def decoder_depth(config: Config) -> int:
    """Returns the decoder's depth: `num_decoder_layers`, else `num_layers`.

    These classes use `num_layers` before its alias num_hidden_layers replaces it.
    """
    return config.optional_integer("num_decoder_layers") or config.integer_by_name("num_layers")


def t5_block(config: Config, feed_forward: Table | None = None) -> Table:
    """Returns a pre-norm RMSNorm layer without biases."""
    norm = rmsnorm(config.number("layer_norm_epsilon"), scales_x=True)
    return layer_table(_t5_attention(config), feed_forward or t5_feed_forward(config), norm)


def _t5_attention(config: Config) -> Table:
    """Returns attention with heads of any size, whose softmax is in the scores' number format."""
    head_fields = config.integer_fields("num_attention_heads", "head_dim")
    return {**head_fields, "float32_softmax": False}


def t5_feed_forward(config: Config) -> Table:
    """Returns the FFN of `feed_forward_proj`, such as `relu` or `gated-gelu`; `gated-` adds a gate.

    is_gated_act, if given, overrides the prefix.
    """
    projection_name = config.text("feed_forward_proj")
    gate_prefix, _, activation_name = projection_name.rpartition("-")
    if gate_prefix not in ("", "gated") or activation_name not in ACTIVATIONS:
        raise config.error(
            "feed_forward_proj", projection_name, "an activation or gated-ACTIVATION (relu, gated-gelu, gated-silu)"
        )
    activation = "gelu_new" if projection_name == "gated-gelu" else ACTIVATIONS[activation_name]
    is_gated = config.flag("is_gated_act") if config.has("is_gated_act") else gate_prefix == "gated"
    return {"intermediate_size": config.integer("intermediate_size"), "hidden_act": activation, "gated": is_gated}


def shared_position_bias(config: Config) -> Table:
    """Returns the relative position bias of the first layer, which all layers share."""
    field_names = ("num_attention_heads", "relative_attention_num_buckets", "relative_attention_max_distance")
    return {"relative_bias": {field_name: config.integer(field_name) for field_name in field_names}}


ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
    "intermediate_size": "d_ff",
}
UNREAD_ALIASES = frozenset({"intermediate_size"})
IGNORED_FIELDS = frozenset({"scalable_attention", "dense_act_fn", "is_gated_act", "scale_decoder_outputs"})

T5_WRITERS: FieldWriters = {
    "num_decoder_layers": lambda s: require_present(s.spec.decoder).num_hidden_layers,
    "feed_forward_proj": lambda s: ("gated-" if s.network.gated else "") + s.network.hidden_act.removesuffix("_tanh"),
}

LONGT5_WRITERS: FieldWriters = {
    "encoder_attention_type": lambda s: (
        "local" if s.part_of_type("local").global_block_size is None else "transient-global"
    ),
    "global_block_size": lambda s: require_present(s.part_of_type("local").global_block_size),
}


ALWAYS_TIED = Deviation(
    "T5's tied head",
    "its output projection is tied to the embedding, although the config unties them",
    "parameters",
    class_op=lambda op: replace(op, is_tied=True) if isinstance(op, Linear) and op.rows is LOGITS else op,
    applies_to=is_untied,
)


SHARED_BIAS_MODULE = "block.0.layer.0.SelfAttention.relative_attention_bias"
"""The module of the relative position bias that all layers share, in the first layer."""

GLOBAL_BIAS_MODULE = SHARED_BIAS_MODULE.replace("Self", "TransientGlobalSelf")
BLOCK_BIAS_MODULE = GLOBAL_BIAS_MODULE.replace("relative", "global_relative")
"""The module of LongT5's second relative position bias, for distances to blocks."""

T5_MODULES: ModuleNames = {
    "classifier": "classification_head | classifier | qa_outputs",
    "self_attn.relative_bias": "relative_attention_bias",
    "layers": "block",
    "embed_tokens": "shared",
    "norm": "final_layer_norm",
    "self_attn": "layer.0.SelfAttention",
    "self_attn_pre_norm": "layer.0.layer_norm",
    "cross_attn": "layer.1.EncDecAttention",
    "cross_attn_pre_norm": "layer.1.layer_norm",
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "decoder.mlp": "layer.2.DenseReluDense",
    "mlp": "layer.1.DenseReluDense",
    "decoder.mlp_pre_norm": "layer.2.layer_norm",
    "mlp_pre_norm": "layer.1.layer_norm",
    "gate_proj": "wi_0",
    "up_proj": "wi_1 | wi",
    "down_proj": "wo",
    "relative_bias": SHARED_BIAS_MODULE,
}

T5_FAMILY = Family(
    _read_t5,
    {"n_positions": None},
    IGNORED_FIELDS,
    aliases=ALIASES,
    unread_aliases=UNREAD_ALIASES,
    field_writers=T5_WRITERS,
    quirks=LAST_TOKEN_QUIRKS,
    deviations=(ALWAYS_TIED,),
    modules=T5_MODULES,
    dropout_fields=T5_DROPOUT,
)

FAMILIES = {
    "t5": replace(T5_FAMILY, defaults={"tie_word_embeddings": True, "n_positions": None}),
    "mt5": T5_FAMILY,
    "umt5": replace(T5_FAMILY, read_model=_read_umt5, defaults={"tie_word_embeddings": True, "n_positions": None}),
    "pop2piano": replace(
        T5_FAMILY,
        read_model=_read_pop2piano,
        defaults={"n_positions": None},
        field_writers={},
        quirks=Quirks(mask_making_classes=EVERY_CLASS),
        deviations=(),
        modules={**T5_MODULES, "encoder.stem": "mel_conditioner", "styles": "embedding"},
    ),
    "longt5": replace(
        T5_FAMILY,
        read_model=_read_longt5,
        field_writers={**T5_WRITERS, **LONGT5_WRITERS},
        quirks=Quirks(),
        modules={
            **T5_MODULES,
            "self_attn": "layer.0.SelfAttention | layer.0.LocalSelfAttention | layer.0.TransientGlobalSelfAttention",
            "global_norm": "global_input_layer_norm",
            "relative_bias": " | ".join(
                (
                    SHARED_BIAS_MODULE,
                    SHARED_BIAS_MODULE.replace("Self", "LocalSelf"),
                    f"{GLOBAL_BIAS_MODULE} + {BLOCK_BIAS_MODULE}",
                )
            ),
            "relative_bias.blocks": f".{BLOCK_BIAS_MODULE}",
        },
    ),
}
