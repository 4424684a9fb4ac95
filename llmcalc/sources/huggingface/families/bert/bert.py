"""BERT and encoders with the same architecture.

bert, ernie, megatron-bert, roberta, xlm-roberta, camembert, ibert, roberta-prelayernorm, xlm-roberta-xl, data2vec-text,
distilbert, electra, albert, mpnet, fnet, big_bird.

transformers: the folder of each in models.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .....components.added_position import LearnedPositions
from .....components.base import MAX_LAYERS
from ...absent_value import require_present
from ...config import Config, is_json_integer
from ...dropout import BERT_DROPOUT
from ...family import EVERY_CLASS, Deviation, Family, Quirks, field_names, is_untied, module_names
from ...field_writers import FieldWriters
from ...parts import (
    ACTIVATIONS,
    MULTIPLE_CHOICE,
    QKV_BIASES,
    QKVO_BIASES,
    QUESTION_ANSWERING,
    Table,
    biases,
    block_sparse_note,
    class_count,
    class_name_of_config,
    encoder,
    layernorm,
    mlp,
    pooler,
    scores_sequences,
    token_types,
)

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def read_bert(config: Config) -> Table:
    """Reads BERT and models with the same config fields: post-norm layers, a pooler, segments."""
    scores_pretraining = has_pretraining_head(config)
    is_present = config.head_kind == "none" or scores_sequences(config) or scores_pretraining
    head_fields = bert_head(config, bert_activation(config))
    score_count = 2 if scores_pretraining else None
    return encoder(config, bert_block(config), bert_stack(config), head_fields, {}, **pooler(is_present, score_count))


def _read_roberta(config: Config) -> Table:
    score_head, has_pooler = score_head_and_pooler(config)
    stack_fields = bert_stack(config, padded_positions(config))
    return encoder(
        config, bert_block(config), stack_fields, bert_head(config, "gelu"), score_head, **pooler(has_pooler)
    )


def _model_with_pre_norm(config: Config, model_fields: Table, has_embedding_norm: bool = False) -> Table:
    """Returns the model with pre-norm sublayers and a final norm.

    has_embedding_norm: whether the norm after the embeddings is kept; default False.
    """
    stack_fields = model_fields["encoder"] if "encoder" in model_fields else model_fields["decoder"]
    stack_fields["block"]["norm_placement"] = "pre"
    stack_fields["final_norm"] = layernorm(config.number("layer_norm_eps"))
    if not has_embedding_norm:
        del stack_fields["embedding_norm"]
    return model_fields


def _read_distilbert(config: Config) -> Table:
    norm = layernorm(1e-12)
    stack_fields = {"position": bert_positions(config), "embedding_norm": norm}
    block = bert_block(config, norm)
    return encoder(
        config, block, stack_fields, bert_head(config, bert_activation(config), norm), bert_score_head("relu")
    )


def _read_electra(config: Config) -> Table:
    model_fields = embedding_size(config)
    if class_name_of_config(config).endswith(MULTIPLE_CHOICE):
        config.require("summary_use_proj", True)
    if has_pretraining_head(config):  # the discriminator, which classifies each token as original or replaced
        transform = {"hidden_act": bert_activation(config), "norm": None}
        head_fields = {"type": "classification", "num_labels": 1, "over": "token", "transform": transform}
        model_fields = {**model_fields, "head": head_fields}
    stack_fields = {**bert_stack(config), **input_size(model_fields)}
    return encoder(
        config, bert_block(config), stack_fields, bert_head(config, "gelu"), bert_score_head("gelu"), **model_fields
    )


def _read_albert(config: Config) -> Table:
    """Reads ALBERT, whose layers form groups that share one set of parameters."""
    depth = config.integer("num_hidden_layers")
    group_count = config.integer("num_hidden_groups")
    layers_per_group = config.integer("inner_group_num")
    if group_count > depth:
        raise config.error("num_hidden_groups", group_count, f"at most num_hidden_layers ({depth})")
    if depth * layers_per_group > MAX_LAYERS:
        raise config.error("inner_group_num", layers_per_group, f"at most {MAX_LAYERS} layers in all")
    stack_fields: Table = {
        **bert_stack(config),
        "num_hidden_layers": depth * layers_per_group,
        "shared_layers": ["block"],
    }
    if group_count * layers_per_group > 1:
        layer_kinds = [
            f"group{int(layer_index / (depth / group_count))}_{group_layer}"
            for layer_index in range(depth)
            for group_layer in range(layers_per_group)
        ]
        distinct_kinds = list(dict.fromkeys(layer_kinds))
        stack_fields |= {
            "variants": {layer_kind: {} for layer_kind in distinct_kinds},
            "first_layers": layer_kinds,
            "pattern": layer_kinds[-1:],
            "shared_layers": distinct_kinds,
        }
    has_pretraining = has_pretraining_head(config)
    is_present = config.head_kind == "none" or scores_sequences(config) or has_pretraining
    pooler_table = pooler(is_present, class_count(config) if has_pretraining else None)
    model_fields = {**embedding_size(config, is_always_set=True), **pooler_table}
    head_fields = bert_head(config, bert_activation(config))
    return encoder(
        config, bert_block(config), {**stack_fields, **input_size(model_fields)}, head_fields, {}, **model_fields
    )


def _read_fnet(config: Config) -> Table:
    """Reads FNet: a Fourier transform in place of attention, and a projection of the embeddings."""
    block = {"attention": {"type": "fourier"}, **_ffn_fields(config)}
    hidden_size, pooler_table = config.integer("hidden_size"), pooler(True, 2 if has_pretraining_head(config) else None)
    stack_fields = {**bert_stack(config), "input_size": hidden_size}
    head_fields = bert_head(config, bert_activation(config))
    return encoder(config, block, stack_fields, head_fields, {}, embedding_size=hidden_size, **pooler_table)


def _read_big_bird(config: Config) -> Table:
    """Reads BigBird, whose layers attend to all tokens, or in long sequences to some blocks of tokens."""
    if class_name_of_config(config).endswith(QUESTION_ANSWERING):
        raise config.error(
            "architectures", class_name_of_config(config), "a class without a layer of its own below the answers"
        )
    block_sparse_note(config)
    model_fields = read_bert(config)
    stack_fields = model_fields["encoder"] if "encoder" in model_fields else model_fields["decoder"]
    head_count = config.integer("num_attention_heads")
    stack_fields["block"]["attention"] = {
        "num_attention_heads": head_count,
        **biases(config.flag("use_bias"), *QKV_BIASES),
        "o_bias": True,
    }
    if "cross_attention" in stack_fields["block"]:
        stack_fields["block"]["cross_attention"] = stack_fields["block"]["attention"]
    model_fields |= pooler(True, 2 if has_pretraining_head(config) else None)
    if scores_sequences(config) and not class_name_of_config(config).endswith(MULTIPLE_CHOICE):
        model_fields["head"] |= bert_score_head(bert_activation(config))  # its class has a pooler too
    return model_fields


def _read_mpnet(config: Config) -> Table:
    bias_sizes = config.integer_fields("num_attention_heads", "relative_attention_num_buckets")
    embedding_norm = layernorm(config.number("layer_norm_eps"))
    stack_fields = {"position": padded_positions(config), "embedding_norm": embedding_norm, "relative_bias": bias_sizes}
    score_head, has_pooler = score_head_and_pooler(config)
    block = bert_block(config)
    block["attention"]["float32_softmax"] = False
    return encoder(config, block, stack_fields, bert_head(config, "gelu"), score_head, **pooler(has_pooler))


def has_pretraining_head(config: Config) -> bool:
    """Whether the config's class has a pretraining head, with projections to the vocabulary and to classes."""
    return config.head_kind == "lm" and class_name_of_config(config).endswith("ForPreTraining")


def score_head_and_pooler(config: Config) -> tuple[Table, bool]:
    """Returns the sequence classifier, and whether there is a pooler.

    The classifier has a linear layer of its own over the first token; a multiple-choice score uses the pooler's output.
    """
    if config.head_kind == "classification" and class_name_of_config(config).endswith(MULTIPLE_CHOICE):
        return {}, True
    return bert_score_head("tanh"), config.head_kind == "none"


def bert_block(config: Config, norm: Table | None = None) -> Table:
    """Returns a post-norm layer: LayerNorm, attention and a non-gated FFN, with biases everywhere."""
    if config.has(
        "position_embedding_type"
    ):  # earlier versions: relative positions have their own weights; ALiBi of other code has no table
        config.require("position_embedding_type", "absolute")
    head_count = config.integer("num_attention_heads")
    config.quotient("num_attention_heads", config.integer("hidden_size"), head_count)
    return {"attention": {"num_attention_heads": head_count, **biases(True, *QKVO_BIASES)}, **_ffn_fields(config, norm)}


def _ffn_fields(config: Config, norm: Table | None = None) -> Table:
    """Returns a stack's fields for the feed-forward network and the norms of its post-norm layers."""
    return {
        "feed_forward": mlp(config.integer("intermediate_size"), bert_activation(config)),
        "norm": layernorm(config.number("layer_norm_eps")) if norm is None else norm,
        "norm_placement": "post",
    }


def bert_activation(config: Config) -> str:
    activation: str = config.choice(ACTIVATIONS, "hidden_act")
    return activation


def bert_positions(config: Config) -> Table:
    return {"type": "learned", "max_position_embeddings": config.integer("max_position_embeddings")}


def padded_positions(config: Config) -> Table:
    """Returns a learned position embedding whose position 0 is the row after the padding token's row."""
    position_rows, padding_id = config.integer("max_position_embeddings"), config.get("pad_token_id")
    first_row = padding_id + 1 if is_json_integer(padding_id) and 0 <= padding_id < min(64, position_rows - 1) else 0
    return {"type": "learned", "max_position_embeddings": position_rows - first_row, "offset": first_row}


def bert_stack(config: Config, position_encoding: Table | None = None) -> Table:
    """Returns a stack with position, segment and ERNIE's task embeddings, and a norm on their sum."""
    segment_type_count = config.count("type_vocab_size")
    has_task_types = "use_task_id" in config.defaults and config.flag("use_task_id")
    return {
        "position": position_encoding or bert_positions(config),
        "embedding_norm": layernorm(config.number("layer_norm_eps")),
        **token_types(segment_type_count, config.integer("task_type_vocab_size") if has_task_types else None),
    }


def bert_head(config: Config, activation: str, norm: Table | None = None) -> Table:
    transform = {"hidden_act": activation, "norm": norm or layernorm(config.number("layer_norm_eps"))}
    return {"bias": True, "transform": transform}


def bert_score_head(activation: str) -> Table:
    """Returns a sequence classifier with a separate linear layer on the first token's hidden state."""
    return {"transform": {"hidden_act": activation, "norm": None}}


def embedding_size(config: Config, is_always_set: bool = False) -> Table:
    """Returns the field of a factorized embedding's width; empty if equal to hidden_size, except for ALBERT."""
    embedding_width = config.integer("embedding_size")
    return (
        {"embedding_size": embedding_width} if is_always_set or embedding_width != config.integer("hidden_size") else {}
    )


def input_size(model_fields: Table) -> Table:
    """Returns the width of position and segment embeddings, equal to the width of the token embedding."""
    return {"input_size": model_fields["embedding_size"]} if "embedding_size" in model_fields else {}


OLD_FIELDS = field_names("""
    position_embedding_type directionality layers_to_keep pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type
    """)
"""Config fields that only earlier versions of the classes read."""
ERNIE_IGNORED_FIELDS = OLD_FIELDS | {"enable_recompute", "fuse", "pool_act"}


def position_offset(model_values: ConfigValues) -> int:
    """Returns the number of rows that the position embedding has before position 0."""
    if isinstance(model_values.first_stack.position, LearnedPositions):
        return model_values.first_stack.position.offset
    return 0


ROBERTA_WRITERS: FieldWriters = {
    "pad_token_id": lambda s: position_offset(s) - 1 if position_offset(s) else None,
    "max_position_embeddings": lambda s: s.usual_value("max_position_embeddings") + position_offset(s),
}


def _task_type_count(model_values: ConfigValues) -> int | None:
    """Returns the number of ERNIE's task types; None without task embeddings."""
    type_embedding = model_values.first_stack.token_types
    return None if type_embedding is None else type_embedding.task_type_vocab_size


def _parameter_owners(model_values: ConfigValues) -> list[int]:
    """Returns for each layer the index of the first layer with the same parameters."""
    layer_kinds = model_values.first_stack.layer_names()
    first_layer_by_kind = {layer_kind: layer_kinds.index(layer_kind) for layer_kind in dict.fromkeys(layer_kinds)}
    return [first_layer_by_kind[layer_kind] for layer_kind in layer_kinds]


def _layers_per_group(model_values: ConfigValues) -> int:
    """Returns how many layers in sequence form an ALBERT group."""
    first_layers_of_kinds = _parameter_owners(model_values)
    group_starts = [
        layer_index for layer_index, first_layer_of_kind in enumerate(first_layers_of_kinds) if first_layer_of_kind == 0
    ]
    return group_starts[1] if len(group_starts) > 1 else 1


SECOND_BIAS = Deviation(
    "BERT's untied head",
    "its output projection has a second, unused bias; tying merges the two",
    "parameters",
    applies_to=is_untied,
    further_quantity=lambda spec: spec.vocab_size,
    node_path="lm_head.decoder",
)


BERT = Family(read_bert, ignored_fields=OLD_FIELDS, deviations=(SECOND_BIAS,), dropout_fields=BERT_DROPOUT)

ROBERTA = replace(BERT, read_model=_read_roberta, field_writers=ROBERTA_WRITERS, modules=module_names("roberta"))

FAMILIES = {
    "bert": BERT,
    "ernie": replace(
        BERT,
        ignored_fields=ERNIE_IGNORED_FIELDS,
        field_writers={
            "use_task_id": lambda s: _task_type_count(s) is not None,
            "task_type_vocab_size": lambda s: require_present(_task_type_count(s)),
        },
        modules=module_names("bert"),
    ),
    "megatron-bert": replace(
        BERT,
        read_model=lambda config: _model_with_pre_norm(config, read_bert(config)),
        ignored_fields=OLD_FIELDS | {"tokenizer_type"},
        quirks=Quirks(value_reading_classes=("ForMultipleChoice",), mask_making_classes=EVERY_CLASS),
        modules={
            **module_names("bert"),
            "self_attn_pre_norm": "attention.ln",
            "mlp_pre_norm": "ln",
            "norm": "encoder.ln",
        },
    ),
    "roberta-prelayernorm": replace(
        BERT,
        read_model=lambda config: _model_with_pre_norm(config, _read_roberta(config), has_embedding_norm=True),
        field_writers=ROBERTA_WRITERS,
    ),
    "xlm-roberta-xl": replace(
        BERT,
        read_model=lambda config: _model_with_pre_norm(config, _read_roberta(config)),
        field_writers=ROBERTA_WRITERS,
    ),
    "data2vec-text": ROBERTA,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "fnet": Family(
        _read_fnet,
        ignored_fields=OLD_FIELDS,
        deviations=(SECOND_BIAS,),
        quirks=Quirks(bfloat16_refusing_classes=EVERY_CLASS),
        dropout_fields={"embedding": "hidden_dropout_prob", "feed_forward": "hidden_dropout_prob"},
    ),
    "big_bird": replace(
        BERT,
        read_model=_read_big_bird,
        field_writers={"attention_type": lambda _: "original_full"},
        quirks=Quirks(value_reading_classes=EVERY_CLASS, counted_field_values={"attention_type": "original_full"}),
        modules={**module_names("bert"), "pooler.dense": ".pooler", "classifier.dense": "dense"},
    ),
    "ibert": replace(
        BERT,
        read_model=_read_roberta,
        field_writers=ROBERTA_WRITERS,
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        modules=module_names("roberta"),
    ),
    "distilbert": Family(
        _read_distilbert,
        ignored_fields=frozenset({"tie_weights_"}),
        aliases={
            "hidden_size": "dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        unread_aliases=frozenset({"intermediate_size", "hidden_act"}),
        dropout_fields={"embedding": "dropout", "attention": "attention_dropout", "feed_forward": "dropout"},
    ),
    "electra": Family(
        _read_electra,
        ignored_fields=OLD_FIELDS | {"generator_size", "generator_hidden_size"},
        dropout_fields=BERT_DROPOUT,
    ),
    "albert": Family(
        _read_albert,
        ignored_fields=OLD_FIELDS | {"down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"},
        field_writers={
            "num_hidden_groups": lambda s: len({*_parameter_owners(s)}) // _layers_per_group(s),
            "inner_group_num": _layers_per_group,
            "num_hidden_layers": lambda s: s.first_stack.num_hidden_layers // _layers_per_group(s),
        },
        deviations=(SECOND_BIAS,),
        dropout_fields={
            "embedding": "hidden_dropout_prob",
            "attention": "attention_probs_dropout_prob",
            "attention_output": "hidden_dropout_prob",
        },
    ),
    "mpnet": replace(BERT, read_model=_read_mpnet, field_writers=ROBERTA_WRITERS),
}
