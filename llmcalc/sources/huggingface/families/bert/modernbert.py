"""Encoders with rotary positions, mostly with gated FFNs.

modernbert and its decoder, eurobert, nomic_bert, gte, jina_embeddings_v3.

transformers: models/modernbert, models/modernbert_decoder, models/eurobert, models/nomic_bert, models/gte,
    models/jina_embeddings_v3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .....components.classifier import Classifier
from ...absent_value import require_present
from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import Family, ModuleNames, Quirks, field_names, module_names
from ...field_writers import NO_PADDING_WRITER, FieldWriters
from ...parts import (
    ACTIVATIONS,
    FULL_OR_SLIDING,
    QKVO_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    class_count,
    decoder,
    encoder,
    glu,
    head_table,
    layer_pattern,
    layer_table,
    layernorm,
    listed_kinds,
    mlp,
    pooler,
    rmsnorm,
    rope,
    scores_sequences,
    token_types,
)
from .bert import OLD_FIELDS, SECOND_BIAS, bert_activation, bert_head, bert_score_head

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _read_modernbert(config: Config) -> Table:
    window_size = (
        2
        * (config.integer("sliding_window") if config.has("sliding_window") else config.integer("local_attention") // 2)
        + 1
    )
    block, stack_fields = _modernbert_layers(config, window_size)
    norm = block["norm"]
    model_fields: Table = {"max_position_embeddings": config.integer("max_position_embeddings")}
    if config.head_kind == "classification":
        model_fields["head"] = {
            **head_table(config, None, {"over": "sequence"}, class_count(config)),
            "transform": _head_transform(config, norm),
        }
    head_fields = _prediction_head(config, norm)
    return encoder(
        config, block, {**stack_fields, "final_norm": norm}, head_fields, {"over": "sequence"}, **model_fields
    )


def _read_modernbert_decoder(config: Config) -> Table:
    if config.has("sliding_window"):
        window_size = config.integer("sliding_window")
    else:
        window_size = max(1, config.integer("local_attention") // 2)
    block, stack_fields = _modernbert_layers(config, window_size)
    norm = block["norm"]
    score_head = {"over": "token", "bias": config.flag("classifier_bias"), "transform": _head_transform(config, norm)}
    return decoder(config, block, norm, _prediction_head(config, norm), stack_fields, score_head)


def _modernbert_layers(config: Config, window_size: int) -> tuple[Table, Table]:
    """Returns ModernBERT's layer, and the stack's other fields for its local and global layers.

    The first layer has no norm before its attention, because a norm follows the embeddings.
    """
    norm = layernorm(config.number("norm_eps"), bias=config.flag("norm_bias"))
    depth = config.integer("num_hidden_layers")
    global_period = config.integer("global_attn_every_n_layers")
    default_layer_kinds = ["sliding" if layer_index % global_period else "full" for layer_index in range(depth)]
    attention_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    head_count = config.integer("num_attention_heads")
    config.quotient("num_attention_heads", config.integer("hidden_size"), head_count)  # the class reads no head_dim
    attention_table = {
        "num_attention_heads": head_count,
        "position": rope(config),
        "fused_qkv": True,
        **attention_biases(config),
    }
    block = layer_table(
        attention_table, glu(config, config.flag("mlp_bias"), activation_field="hidden_activation"), norm
    )
    layer_kinds = [f"first_{attention_kinds[0]}", *attention_kinds[1:]]
    layer_changes: Table = {"full": {}, "sliding": {"attention": {"sliding_window": window_size}}}
    layer_variants = {name: layer_changes[name.removeprefix("first_")] for name in dict.fromkeys(layer_kinds)}
    layer_variants[layer_kinds[0]] = {**layer_variants[layer_kinds[0]], "without_norms": ["self_attn_pre_norm"]}
    return block, {"variants": layer_variants, **layer_pattern(layer_kinds), "embedding_norm": norm}


def _head_transform(config: Config, norm: Table) -> Table:
    hidden_act = config.choice(ACTIVATIONS, "classifier_activation")
    return {"hidden_act": hidden_act, "bias": config.flag("classifier_bias"), "norm": norm}


def _prediction_head(config: Config, norm: Table) -> Table:
    return {"bias": config.flag("decoder_bias"), "transform": _head_transform(config, norm)}


def _read_eurobert(config: Config) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(config, **attention_biases(config))
    block = layer_table(attention_table, glu(config, config.flag("mlp_bias")), norm)
    scored_unit = config.choice({"late": "token", "bos": "sequence", "mean": "sequence"}, "classifier_pooling")
    score_head = {"over": scored_unit, "transform": {"hidden_act": "gelu", "norm": None}}
    return encoder(config, block, {"final_norm": norm}, {"bias": config.flag("mlp_bias")}, score_head)


GATED_ACTIVATIONS = {**ACTIVATIONS, "swiglu": "silu", "geglu": "gelu", "glu": "sigmoid"}
"""Activation name → activation here, with nomic's names of gated FFNs."""


OTHER_NOMIC_NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
}
"""Field in the checkpoints' own code, which is GPT-2's → field that the class of transformers reads."""


def _read_nomic_bert(config: Config) -> Table:
    """Reads nomic-bert. Its class ignores GPT-2's field names, so those fields must have the class's values."""
    for field_name, class_name in OTHER_NOMIC_NAMES.items():
        if config.has(field_name) and config.get(field_name) != config.get(class_name):
            expected_text = f"{config.get(class_name)}, which is {class_name}: the class does not read {field_name}"
            raise config.field_error(field_name, expected_text)
    if config.has("activation_function") and config.choice(GATED_ACTIVATIONS, "activation_function") != config.choice(
        GATED_ACTIVATIONS, "hidden_act"
    ):
        raise config.field_error(
            "activation_function",
            f"the activation of hidden_act ({config.get('hidden_act')}): the class does not read activation_function",
        )
    for field_name in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "num_experts", "use_rms_norm"):
        config.require(field_name, None, False)
    norm = layernorm(config.number("layer_norm_eps"))
    hidden_act = config.choice(GATED_ACTIVATIONS, "hidden_act")
    ffn = {"intermediate_size": config.integer("intermediate_size"), "hidden_act": hidden_act, "gated": True}
    attention_table: Table = {"num_attention_heads": config.integer("num_attention_heads"), "position": rope(config)}
    if config.optional_integer("head_dim") is not None:
        attention_table["head_dim"] = config.integer("head_dim")
    block = layer_table(attention_table, ffn, norm, "post")
    segment_type_count = config.count("type_vocab_size")
    stack_fields = {"embedding_norm": norm, **token_types(segment_type_count)}
    head_fields = {
        "bias": True,
        "transform": {"hidden_act": config.choice(GATED_ACTIVATIONS, "hidden_act"), "norm": norm},
    }
    return encoder(config, block, stack_fields, head_fields, {}, **pooler(scores_sequences(config)))


def _read_gte(config: Config) -> Table:
    ffn = {
        "intermediate_size": config.integer("intermediate_size"),
        "hidden_act": bert_activation(config),
        "gated": True,
        "down_bias": True,
    }
    return _rotary_encoder(config, ffn, 160000.0, {}, has_pooler=scores_sequences(config))


def _read_jina_embeddings_v3(config: Config) -> Table:
    """Reads jina-embeddings-v3 without the per-task low-rank adapters, which are in another library."""
    return _rotary_encoder(
        config,
        mlp(config.integer("intermediate_size"), bert_activation(config)),
        20000.0,
        bert_score_head("tanh"),
        has_pooler=config.head_kind == "none",
    )


def _rotary_encoder(config: Config, ffn: Table, rope_base: float, score_head: Table, has_pooler: bool) -> Table:
    """Reads BERT's post-norm layers with rotary positions. rope_base: the default base of RoPE."""
    norm = layernorm(config.number("layer_norm_eps"))
    segment_type_count = config.count("type_vocab_size")
    head_count = config.integer("num_attention_heads")
    head_dim = (
        config.optional_integer("head_dim")
        or config.integer("hidden_size") // head_count
        or config.quotient("num_attention_heads", config.integer("hidden_size"), head_count)
    )
    position_encoding = {"rope_theta": rope_base, **rope(config)}
    attention_table = {
        "num_attention_heads": head_count,
        "head_dim": head_dim,
        "position": position_encoding,
        **biases(True, *QKVO_BIASES),
    }
    block = layer_table(attention_table, ffn, norm, "post")
    stack_fields = {"embedding_norm": norm, **token_types(segment_type_count)}
    return encoder(config, block, stack_fields, bert_head(config, "gelu"), score_head, **pooler(has_pooler))


MODERNBERT_IGNORED_FIELDS = OLD_FIELDS | field_names("""
    causal_mask is_causal classifier_pooling compile deterministic_flash_attn global_rope_theta local_rope_theta
    reference_compile repad_logits_with_grad sparse_pred_ignore_index sparse_prediction
    """)
NOMIC_IGNORED_FIELDS = OLD_FIELDS | field_names("""
    dense_seq_output fused_bias_fc fused_dropout_add_ln last_layer_subset max_trained_positions mlp_type n_ctx
    n_positions pad_vocab_size_multiple parallel_block parallel_block_tied_norm rotary_emb_base rotary_emb_fraction
    rotary_emb_interleaved rotary_emb_scale_base rotary_scaling_factor sequence_parallel use_xentropy causal
    summary_type summary_use_proj summary_activation summary_first_dropout summary_proj_to_labels
    reorder_and_upcast_attn expert_choice_router ffn_div moe_every_n_layers moe_impl moe_normalize_expert_weights
    moe_resid_pdrop moe_top_k num_shared_experts
    """)


JINA_IGNORED_FIELDS = field_names("""
    emb_pooler load_trained_adapters lora_adaptations lora_alpha lora_dropout_p lora_main_params_trainable
    matryoshka_dimensions rotary_emb_base task_instructions truncate_dim
    """)
"""Fields of the code in the first repository of jina-embeddings-v3, which the class does not read."""

JINA_ADAPTERS = {
    "lora_rank": "the adapters of rank {} for jina-embeddings-v3's tasks are not counted: only its own code has them"
}


def _classifier_pooling(model_values: ConfigValues) -> str:
    if isinstance(model_values.spec.head, Classifier) and model_values.spec.head.over == "sequence":
        return "bos"
    return "late"


MODERNBERT_WRITERS: FieldWriters = {
    "decoder_bias": lambda s: s.head.bias,
    "classifier_bias": lambda s: require_present(s.head.transform).bias,
    "classifier_activation": lambda s: require_present(s.head.transform).hidden_act,
    "norm_bias": lambda s: s.layers[0].norm.has_bias,
    "local_attention": lambda s: require_present(s.window) - 1,
}


MODERNBERT_DROPOUT = {
    "embedding": "embedding_dropout",
    "attention": "attention_dropout",
    "attention_output": "attention_dropout",
    "activation": "mlp_dropout",
}

NOMIC_EARLIER_NAMES: ModuleNames = {
    "layers": "encoder.layers",
    "self_attn": "attn",
    "attn.q_proj": "attn.Wqkv",
    "attn.k_proj": "attn.Wqkv",
    "attn.v_proj": "attn.Wqkv",
    "attn.o_proj": "attn.out_proj",
}

FAMILIES = {
    "modernbert": Family(
        _read_modernbert,
        {"global_attn_every_n_layers": 3},
        MODERNBERT_IGNORED_FIELDS,
        field_writers={**MODERNBERT_WRITERS, **NO_PADDING_WRITER},
        quirks=Quirks(value_reading_classes=("ForMultipleChoice",)),
        dropout_fields=MODERNBERT_DROPOUT,
    ),
    "modernbert-decoder": Family(
        _read_modernbert_decoder,
        {"global_attn_every_n_layers": 3},
        MODERNBERT_IGNORED_FIELDS,
        field_writers={
            **MODERNBERT_WRITERS,
            "local_attention": lambda s: 2 * require_present(s.window),
            "pad_token_id": lambda s: 0,
        },
        modules=module_names("modernbert"),
        dropout_fields=MODERNBERT_DROPOUT,
    ),
    "eurobert": Family(
        _read_eurobert,
        ignored_fields=OLD_FIELDS | {"clf_pooling", "use_sliding_window"},
        field_writers={"classifier_pooling": _classifier_pooling, **NO_PADDING_WRITER},
        modules={"classifier": "dense + classifier | classifier", "classifier.dense": ".dense"},
    ),
    "gte": Family(
        _read_gte,
        ignored_fields=OLD_FIELDS,
        modules=module_names("nomic_bert"),
        earlier_names={
            "layers": "encoder.layer",
            "self_attn": "attention",
            "attention.q_proj": "attention.qkv_proj",
            "attention.k_proj": "attention.qkv_proj",
            "attention.v_proj": "attention.qkv_proj",
            "gate_proj": "up_gate_proj",
            "mlp.up_proj": "mlp.up_gate_proj",
        },
        dropout_fields=BERT_DROPOUT,
    ),
    "jina_embeddings_v3": Family(
        _read_jina_embeddings_v3,
        ignored_fields=OLD_FIELDS | JINA_IGNORED_FIELDS,
        uncounted_fields=JINA_ADAPTERS,
        deviations=(SECOND_BIAS,),
        modules={**module_names("nomic_bert"), "up_proj": "fc1", "down_proj": "fc2"},
        earlier_names={**NOMIC_EARLIER_NAMES, "attn": "mixer"},
        dropout_fields=BERT_DROPOUT,
    ),
    "nomic_bert": Family(
        _read_nomic_bert,
        {
            "tie_word_embeddings": True,
            "qkv_proj_bias": None,
            "mlp_fc1_bias": None,
            "mlp_fc2_bias": None,
            "prenorm": None,
            "num_experts": None,
            "use_rms_norm": None,
        },
        NOMIC_IGNORED_FIELDS,
        deviations=(SECOND_BIAS,),
        earlier_names={**NOMIC_EARLIER_NAMES, "gate_proj": "fc12", "up_proj": "fc11", "down_proj": "fc2"},
        dropout_fields=BERT_DROPOUT,
    ),
}
