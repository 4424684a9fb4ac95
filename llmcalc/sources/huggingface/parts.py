"""Functions that read the usual config fields into the fields of attention, FFNs, layers and models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...components.base import LARGEST_SIZE
from ...components.stack import BASE_LAYER_NAME, MAX_VARIANTS, merge_tables
from ...errors import InputError, short_repr
from .config import Config, is_json_integer, is_number
from .head_kinds import HEAD_ENDINGS, architecture_of, names_another_head

Table = dict[str, Any]

ACTIVATIONS: dict[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "quick_gelu": "quick_gelu",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "squared_relu": "relu2",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "linear": "identity",
    "situ": "situ",
}
"""Activation name in configs → its name here. No activation has a matrix product."""


def rmsnorm(eps: float = 1e-6, **norm_fields: Any) -> Table:
    return {"type": "rmsnorm", "eps": eps, **norm_fields}


def float32_rmsnorm(eps: float, **norm_fields: Any) -> Table:
    """Returns an RMSNorm that applies its weight in float32 (OLMo 2)."""
    return rmsnorm(eps, float32_product=True, **norm_fields)


def offset_rmsnorm(eps: float) -> Table:
    """Returns Gemma's RMSNorm, whose factor is 1 + weight and which multiplies in float32."""
    return float32_rmsnorm(eps, unit_offset=True)


def layernorm(eps: float = 1e-5, **norm_fields: Any) -> Table:
    return {"type": "layernorm", "eps": eps, **norm_fields}


def attention(config: Config, **other_fields: Any) -> Table:
    """Returns grouped-query attention with RoPE, read from the usual config fields.

    other_fields: added to or replacing the others.
    """
    head_count = config.integer("num_attention_heads")
    kv_head_count = config.optional_integer("num_key_value_heads")
    head_dim = config.optional_integer("head_dim")
    attention_fields: Table = {"num_attention_heads": head_count, "head_dim": head_dim, "position": rope(config)}
    if kv_head_count is not None and kv_head_count != head_count:
        attention_fields["num_key_value_heads"] = kv_head_count
    return {name: value for name, value in {**attention_fields, **other_fields}.items() if value is not None}


def plain_attention(config: Config) -> Table:
    """Returns attention without positions; heads divide the layer's width unless `head_dim` states another size."""
    hidden_size, head_count = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_head_count = config.optional_integer("num_key_value_heads") or head_count
    if head_count % kv_head_count:
        raise config.error("num_key_value_heads", kv_head_count, f"a divisor of num_attention_heads ({head_count})")
    head_dim = config.optional_integer("head_dim") or config.quotient("num_attention_heads", hidden_size, head_count)
    kv_field = {} if kv_head_count == head_count else {"num_key_value_heads": kv_head_count}
    return {"num_attention_heads": head_count, "head_dim": head_dim, **kv_field, **attention_biases(config)}


def rope(
    config: Config,
    default_rotary_fraction: float = 1.0,
    fraction_name: str = "partial_rotary_factor",
    theta_name: str = "rope_theta",
    layer_kind: str | None = None,
) -> Table:
    """Returns rotary positions; `rope_parameters` and `rope_scaling` change angles, not counts.

    default_rotary_fraction: default fraction of each head that is rotary, in the field `fraction_name`.
    layer_kind: the kind of layer whose table is used, if `rope_parameters` has one table per kind.
    """
    config.fields_read.update((fraction_name, theta_name))
    rope_parameters = config.config_fields.get("rope_parameters") or {}
    if layer_kind is not None and isinstance(rope_parameters.get(layer_kind), dict):
        rope_parameters = rope_parameters[layer_kind]

    def stated_value(field_name: str, top_level_name: str) -> Any:
        if rope_parameters.get(field_name) is not None:
            return rope_parameters[field_name]
        return config.config_fields.get(top_level_name)

    rope_base = stated_value("rope_theta", theta_name)
    rotary_fraction = stated_value("partial_rotary_factor", fraction_name)
    rotary_fraction = default_rotary_fraction if rotary_fraction is None else rotary_fraction
    if not is_number(rotary_fraction) or not 0 < rotary_fraction <= 1:
        raise config.error(fraction_name, rotary_fraction, "a number above 0 and at most 1")
    rope_fields: Table = {"type": "rope"}
    if rotary_fraction != 1:
        rope_fields["partial_rotary_factor"] = float(rotary_fraction)
    if isinstance(rope_base, int | float) and 0 < rope_base <= LARGEST_SIZE:
        rope_fields["rope_theta"] = float(rope_base)
    return rope_fields


def full_rope(config: Config) -> Table:
    """Returns rotary positions for a separate part of each head, all of whose dimensions are rotated.

    The whole part is rotary, whatever fraction the config states.
    """
    return {name: value for name, value in rope(config).items() if name != "partial_rotary_factor"}


def biases(has_biases: bool, *bias_fields: str) -> Table:
    """Returns `{name: true}` for each bias name if `has_biases`, else an empty table."""
    return dict.fromkeys(bias_fields, True) if has_biases else {}


QKV_BIASES = ("q_bias", "k_bias", "v_bias")
QKVO_BIASES = (*QKV_BIASES, "o_bias")


def attention_biases(config: Config, bias_fields: Sequence[str] = QKVO_BIASES) -> Table:
    """Returns the biases of an attention: all of `bias_fields` or none, depending on `attention_bias`."""
    return biases(config.flag("attention_bias"), *bias_fields)


def glu(
    config: Config, bias: bool = False, ffn_width: int | None = None, activation_field: str = "hidden_act"
) -> Table:
    """Returns a gated feed-forward network (SwiGLU, GeGLU) from the usual config fields."""
    ffn_fields = {
        "intermediate_size": ffn_width or config.integer("intermediate_size"),
        "hidden_act": config.choice(ACTIVATIONS, activation_field),
        "gated": True,
    }
    return {**ffn_fields, **biases(bias, "gate_bias", "up_bias", "down_bias")}


def fused_glu(config: Config) -> Table:
    """Returns a gated FFN whose class computes gate and up projection as one product (`gate_up_proj`)."""
    return {**glu(config), "fused_gate": True}


def clamped_swiglu(ffn: Table) -> Table:
    """Returns a SiLU-gated network: `swiglu_limit` clamps the gate from above, the up projection on both sides."""
    return {**ffn, "hidden_act": "clamped_silu", "up_act": "clamped"}


def clamped_gpt_oss_ffn(ffn: Table) -> Table:
    """Returns gpt-oss's gated network (`_apply_gate`): y · σ(1.702 y) of the clamped gate, times (up + 1)."""
    return {**ffn, "hidden_act": "clamped_swish", "up_act": "clamped_plus_one"}


def mlp(ffn_width: int, activation: str, bias: bool = True) -> Table:
    """Returns a feed-forward network of two projections without a gate."""
    return {"intermediate_size": ffn_width, "hidden_act": activation, **biases(bias, "up_bias", "down_bias")}


def qk_norm_fields(norm: Table, norm_scope: str = "head", norm_order: str = "before_rope") -> Table:
    return {"qk_norm": {"norm": norm, "scope": norm_scope, "order": norm_order}}


def layer_table(
    attention: Table, feed_forward: Table, norm: Table, norm_placement: str = "pre", **layer_fields: Any
) -> Table:
    """Returns the table of a layer: attention, a feed-forward network, and one norm for both."""
    return {
        "attention": attention,
        "feed_forward": feed_forward,
        "norm": norm,
        "norm_placement": norm_placement,
        **layer_fields,
    }


def decoder(
    config: Config,
    block: Table,
    final_norm: Table | None,
    head: Table | None = None,
    stack: Table | None = None,
    score_head: Table | None = None,
    label_count: int = 2,
    **model: Any,
) -> Table:
    """Returns the `model` table of a decoder-only model.

    block: table of every layer, `{attention, feed_forward, norm, norm_placement, …}`.
    head: fields of the language-model head beyond the plain projection (`bias`).
    stack: further fields of the stack (`variants`, `pattern`, `first_layers`, `position`, …).
    score_head: a sequence classifier that replaces the usual one.
    label_count: scores per token of a question-answering head.
    model: further fields of the model; they replace the ones set here.
    """
    stack_fields = stack or {}
    config.has("num_hidden_layers")  # read even where the layers are listed
    depth = {} if "num_hidden_layers" in stack_fields else {"num_hidden_layers": config.integer("num_hidden_layers")}
    stack_table = _without_single_variant({**depth, "block": block, **stack_fields})
    if final_norm is not None:
        stack_table["final_norm"] = final_norm
    model_fields: Table = {
        **config.integer_fields("vocab_size", "hidden_size"),
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
    }
    if config.optional_integer("max_position_embeddings") is not None:
        model_fields["max_position_embeddings"] = config.integer("max_position_embeddings")
    model_fields |= {"decoder": stack_table, "head": head_table(config, head, score_head, label_count)}
    if "mtp" in model and model["mtp"].get("layer", BASE_LAYER_NAME) not in {
        BASE_LAYER_NAME,
        *stack_table.get("variants", ()),
    }:
        del model["mtp"]["layer"]  # the only kind of layer
    return {**model_fields, **model}


def _without_single_variant(stack_table: Table) -> Table:
    """Returns a stack's table without pattern and variants if its layers are all of one kind."""
    used_kinds = {*stack_table.get("first_layers", ()), *stack_table.get("pattern", ())}
    if len(used_kinds) != 1 or used_kinds != set(stack_table.get("variants", ())):
        return stack_table
    other_fields = {
        name: value for name, value in stack_table.items() if name not in ("variants", "first_layers", "pattern")
    }
    return {
        **other_fields,
        "block": merge_tables(stack_table["block"], stack_table["variants"][used_kinds.pop()]),
    }


def encoder(
    config: Config,
    block: Table,
    stack: Table,
    head: Table,
    score_head: Table | None = None,
    /,
    label_count: int | None = None,
    **model: Any,
) -> Table:
    """Returns an encoder-only model, or a decoder if the config sets `is_decoder` and `stack` allows it.

    The arguments are those of `decoder`; by default a question-answering head has the config's number of labels.
    """
    model_fields = {
        **decoder(config, block, None, head, stack, score_head, label_count or class_count(config)),
        **model,
    }
    if "is_decoder" in config.defaults and config.flag("is_decoder"):
        if config.flag("add_cross_attention"):
            _add_idle_cross_attention(config, model_fields["decoder"]["block"])
        return model_fields
    model_fields["encoder"] = model_fields.pop("decoder")
    return model_fields


def _add_idle_cross_attention(config: Config, block: Table) -> None:
    """Gives a decoder layer BERT's cross-attention, which only encoder-decoders run."""
    if block["norm_placement"] != "post":
        raise config.error("add_cross_attention", True, f"false: {config.model_type} is not supported with it")
    block |= {"cross_attention": block["attention"], "idle_cross_attention": True}
    config.notes.append(IDLE_CROSS_ATTENTION_NOTE)


def token_types(segment_type_count: int, task_type_count: int | None = None) -> Table:
    """Returns segment and task embeddings as a stack's field `token_types`; empty if there are none."""
    embedding_sizes = {"type_vocab_size": segment_type_count or None, "task_type_vocab_size": task_type_count}
    vocab_sizes = {type_name: vocab_size for type_name, vocab_size in embedding_sizes.items() if vocab_size is not None}
    return {"token_types": vocab_sizes} if vocab_sizes else {}


def pooler(is_present: bool, score_count: int | None = None) -> Table:
    """Returns a model's field `pooler` with BERT's pooler, if `is_present`. score_count: scores after the pooler."""
    if is_present:
        return {"pooler": {"dense": True, **({} if score_count is None else {"num_labels": score_count})}}
    return {}


TOKEN_CLASSIFIER = "ForTokenClassification"
AUDIO_FRAME_CLASSIFIER = "ForAudioFrameClassification"
QUESTION_ANSWERING = "ForQuestionAnswering"
MULTIPLE_CHOICE = "ForMultipleChoice"
NEXT_SENTENCE_PREDICTION = "ForNextSentencePrediction"
"""Class-name suffixes of classifiers other than the sequence classifier."""

SIMPLE_QUESTION_ANSWERING = QUESTION_ANSWERING + "Simple"
"""Class-name suffix of a question-answering class with one linear layer, in families whose other class searches for
answers by beams.
"""


def question_answering_head(config: Config) -> Table:
    """Returns a model's field `head` for a question-answering class; empty for other classes.

    Raises `InputError` for the class of the family that searches for answers by beams.
    """
    class_name = class_name_of_config(config)
    if class_name.endswith(QUESTION_ANSWERING):
        raise config.error(
            "architectures", class_name, f"{class_name}Simple or another class without beam search over answers"
        )
    if not class_name.endswith(SIMPLE_QUESTION_ANSWERING):
        return {}
    config.head_kind = "classification"
    return {"head": {"type": "classification", "num_labels": class_count(config), "over": "token"}}


def block_sparse_note(config: Config) -> None:
    """Adds a remark that BigBird's block-sparse attention is counted as full, if `attention_type` states it."""
    if config.choice({"original_full": False, "block_sparse": True}, "attention_type"):
        longest_length = (5 + 2 * config.integer("num_random_blocks")) * config.integer("block_size")
        config.notes.append(
            f"attention_type: block_sparse beyond {longest_length} tokens, which is not counted: every token attends "
            "to all"
        )


def scores_sequences(config: Config) -> bool:
    """Whether the output head scores whole sequences instead of tokens.

    This is also true for a classifier whose class name is neither for tokens nor for answers.
    """
    return config.head_kind == "classification" and not class_name_of_config(config).endswith(
        (TOKEN_CLASSIFIER, AUDIO_FRAME_CLASSIFIER, QUESTION_ANSWERING)
    )


def class_name_of_config(config: Config) -> str:
    """Returns the name of the class that saved the config; empty if the config has none."""
    return architecture_of(config.config_fields)


def class_count(config: Config) -> int:
    """Returns the number of classes of a classifier: `num_labels`, else the number of label names, else 2."""
    label_names = config.config_fields.get("id2label")
    if isinstance(label_names, dict) and label_names and not config.has("num_labels"):
        return len(label_names)
    return config.integer("num_labels") if config.has("num_labels") or "num_labels" in config.defaults else 2


REWARD_HEADS: dict[str, Table] = {
    "Qwen2ForRewardModel": {"num_labels": 1, "transform": {"hidden_act": "relu", "norm": None}},
    "Qwen2ForProcessRewardModel": {"num_labels": 2, "transform": {"hidden_act": "relu", "norm": None}},
    "InternLM2ForRewardModel": {"num_labels": 1, "bias": False},
    "JinaVLForRanking": {"num_labels": 1, "transform": {"hidden_act": "relu", "norm": None}},
}
"""Class of a reward model or reranker → its head (qwen2_rm.py, internlm2.py and jina_vl.py of vLLM).

It scores every token; that of Jina's reranker scores the last one alone in practice.
"""

BIAS_FROM_CONFIG = ("Qwen3ASR",)
"""Class-name prefixes of token classifiers with a bias only if `token_classification_bias` is true."""


def scores_of_layers(config: Config, head: Table, layer_step: int = 1) -> Table:
    """Returns a reranker's head, with one score weight per layer output from layer `start_layer` on.

    The weights are counted as one matrix that runs on every token, with a remark.

    head: the head that `architectures` or `--head` names; only a language-model head is replaced.
    layer_step: number of layers from one score to the next.
    Raises `InputError` for a start_layer beyond the last layer.
    """
    first_layer, depth = config.integer("start_layer"), config.integer("num_hidden_layers")
    if first_layer > depth:
        raise config.error("start_layer", first_layer, f"at most num_hidden_layers = {depth}")
    if head["type"] != "lm":
        return head
    score_count = len(range(first_layer, depth + 1, layer_step))
    config.notes.append(
        f"start_layer: {score_count} layers have a score of their own; that a pass computes those of cutoff_layers "
        "alone, by default the last layer's, is not counted"
    )
    return {"type": "classification", "num_labels": score_count, "over": "token", "bias": False}


def head_table(
    config: Config, head: Table | None = None, score_head: Table | None = None, answer_score_count: int = 2
) -> Table:
    """Returns the output head of the class that the config's `architectures` names.

    score_head: a sequence classifier; default that of decoders, a score of every token without a bias. A head for token
        classification or question answering is one linear layer with a bias in every family.
    answer_score_count: scores per token of a question-answering head; default 2.
    Raises `InputError` for a multiple-choice head in a family without a class for it.
    """
    class_name = class_name_of_config(config)
    has_token_bias = not class_name.startswith(BIAS_FROM_CONFIG) or config.flag("token_classification_bias")
    if config.head_kind == "none":
        has_model_head = "For" in class_name.replace("Former", "").replace("Formula", "")
        if (has_model_head and class_name.endswith("Model")) or names_another_head(class_name):
            config.notes.append(
                f"architectures: the head of {class_name} is not supported; no head is counted (--head lm for a "
                "language-model head)"
            )
        return {"type": "none"}
    if config.head_kind == "classification" and class_name in REWARD_HEADS:
        return {"type": "classification", "over": "token", **REWARD_HEADS[class_name]}
    if config.head_kind == "classification" and not scores_sequences(config):
        num_labels = answer_score_count if class_name.endswith(QUESTION_ANSWERING) else class_count(config)
        return {"type": "classification", "num_labels": num_labels, "over": "token", "bias": has_token_bias}
    if config.head_kind == "classification":
        compares_texts = class_name.endswith((MULTIPLE_CHOICE, NEXT_SENTENCE_PREDICTION))
        if compares_texts and score_head is None:
            raise config.error(
                "architectures",
                class_name,
                f"a class of {config.model_type} (--head lm or --head none counts another head)",
            )
        label_count = class_count(config) if not compares_texts else 1 if class_name.endswith(MULTIPLE_CHOICE) else 2
        return {
            "type": "classification",
            "num_labels": label_count,
            **({"over": "token", "bias": False} if score_head is None else score_head),
        }
    if class_name and not class_name.endswith(tuple(HEAD_ENDINGS)):
        config.notes.append(
            f"architectures: the head of {class_name} is not supported; a language-model head is counted (--head none "
            "for none)"
        )
    return {"type": "lm", **(head or {})}


def layer_pattern(layer_kinds: list[str]) -> Table:
    """Splits a list of layer kinds, bottom first, into `first_layers` and the shortest `pattern`.

    The pattern repeats after the first layers.
    """
    shortest_pattern: tuple[list[str], list[str]] = (layer_kinds, layer_kinds[-1:])
    for first_count in range(min(len(layer_kinds), 8)):
        repeated_kinds = layer_kinds[first_count:]
        pattern_period = _shortest_period(repeated_kinds)
        if pattern_period <= len(repeated_kinds) // 2 and first_count + pattern_period < len(shortest_pattern[0]) + len(
            shortest_pattern[1]
        ):
            shortest_pattern = (layer_kinds[:first_count], repeated_kinds[:pattern_period])
    return {"first_layers": shortest_pattern[0], "pattern": shortest_pattern[1]}


def _shortest_period(layer_kinds: list[str]) -> int:
    """Returns the smallest p with `layer_kinds[i] == layer_kinds[i % p]` for all i (Knuth–Morris–Pratt)."""
    # the length of the longest proper suffix of layer_kinds[: i + 1] that is also a prefix
    prefix_lengths = [0] * len(layer_kinds)
    for layer_index in range(1, len(layer_kinds)):
        prefix_length = prefix_lengths[layer_index - 1]
        while prefix_length and layer_kinds[layer_index] != layer_kinds[prefix_length]:
            prefix_length = prefix_lengths[prefix_length - 1]
        prefix_lengths[layer_index] = prefix_length + (layer_kinds[layer_index] == layer_kinds[prefix_length])
    return len(layer_kinds) - prefix_lengths[-1]


def moe(expert_count: int, top_k: int, expert: Table, shared_expert: Table | None = None, **other_fields: Any) -> Table:
    """Returns routed experts and a shared expert, with the networks `expert` and `shared_expert`."""
    moe_fields = {
        "type": "moe",
        "num_experts": expert_count,
        "num_experts_per_tok": top_k,
        "expert": expert,
        **other_fields,
    }
    return moe_fields if shared_expert is None else {**moe_fields, "shared_expert": shared_expert}


def gated_experts(
    config: Config,
    expert_width: int | None = None,
    shared_width: int | None = None,
    count_fields: Sequence[str] = ("num_experts",),
    **other_fields: Any,
) -> Table:
    """Returns gated experts from the usual config fields; `num_experts_per_tok` experts run per token.

    expert_width: the width of an expert, by default `moe_intermediate_size`. shared_width: the width of the shared
        expert; None or 0 without one. count_fields: the names of the field with the number of experts.
    """
    expert_count, top_k = config.integer(*count_fields), config.integer("num_experts_per_tok")
    expert = glu(config, ffn_width=expert_width or config.integer("moe_intermediate_size"))
    shared_expert = glu(config, ffn_width=shared_width) if shared_width else None
    return moe(expert_count, top_k, expert, shared_expert, **other_fields)


IDLE_CROSS_ATTENTION_NOTE = (
    "cross-attention: its parameters are counted; its products with the encoder's output, and the keys and values of "
    "that output in the cache, are not counted"
)
"""The remark on a decoder whose encoder is not described."""

FULL_OR_SLIDING = {"full_attention": "full", "sliding_attention": "sliding"}


def kinds_with_nth_full(depth: int, full_period: int) -> list[str]:
    """Returns each layer's kind: full attention in every n-th layer, a sliding window in all others."""
    return ["sliding" if (layer_index + 1) % full_period else "full" for layer_index in range(depth)]


EARLIER_LAYER_TYPES = {
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "mamba": "linear_attention",
    "qwen_sparse_attention": "indexed_attention",
}
"""Earlier name of a kind of layer in `layer_types` → its name (`remap_legacy_layer_types` of transformers)."""


def listed_kinds(
    config: Config, field_name: str, kind_by_type: dict[str, str], default_layer_kinds: list[str]
) -> list[str]:
    """Returns each layer's kind from a config's list, translated by `kind_by_type`; without it, the default kinds.

    The list `layer_types` may have earlier names of the kinds, and go on with the layers of multi-token prediction.
    Raises `InputError` for any other number of kinds.
    """
    field_value = config.get(field_name)
    if field_value is None:
        return default_layer_kinds
    kind_by_name = {
        **{earlier_type: kind_by_type.get(layer_type, "") for earlier_type, layer_type in EARLIER_LAYER_TYPES.items()},
        **kind_by_type,
    }
    layer_kinds = [kind_by_name.get(layer_type, "") for layer_type in config.texts(field_name)]
    depth = len(default_layer_kinds)
    mtp_layer_count = config.config_fields.get("num_nextn_predict_layers")
    accepted_lengths = {depth}
    if field_name == "layer_types" and is_json_integer(mtp_layer_count):
        accepted_lengths.add(depth + mtp_layer_count)
    if "" in layer_kinds or len(layer_kinds) not in accepted_lengths:
        unknown_name = next(
            (layer_type for layer_type in config.texts(field_name) if not kind_by_name.get(layer_type)), None
        )
        if unknown_name is None:
            hint_text = length_hint(layer_kinds, default_layer_kinds)
        else:
            hint_text = f" (it has {short_repr(unknown_name)})"
        depth_field = config.aliases.get("num_hidden_layers", "num_hidden_layers")
        if unknown_name is None and config.config_fields.get(depth_field) == depth:
            hint_text = f"{hint_text[:-1]}, and {depth_field} is {depth})"
        raise config.error(field_name, field_value, f"{depth} times {' or '.join(kind_by_type)}{hint_text}")
    return layer_kinds[:depth]


def length_hint(listed_values: Sequence[object], expected_values: Sequence[object]) -> str:
    """Returns ` (the list has …)` for a message about a list of the wrong length; empty if the lengths are equal."""
    return "" if len(listed_values) == len(expected_values) else f" (the list has {len(listed_values)})"


def check_shared_layers(config: Config, layer_kinds: list[str], shared_layer_count: int) -> None:
    """Raises `InputError` if a layer that reuses keys and values has no earlier layer of its kind to take them from.

    The last `num_kv_shared_layers` layers share.
    """
    first_shared_layer = len(layer_kinds) - shared_layer_count
    missing_kinds = {*layer_kinds[max(first_shared_layer, 0) :]} - {*layer_kinds[: max(first_shared_layer, 0)]}
    if missing_kinds:
        raise config.error(
            "num_kv_shared_layers",
            shared_layer_count,
            f"layers of every kind ({', '.join(sorted(missing_kinds))}) below those",
        )


def sliding_stack(
    config: Config,
    default_layer_kinds: list[str],
    sliding_fields: Table | None = None,
    full_fields: Table | None = None,
) -> Table:
    """Returns the stack fields for a mix of `full` and `sliding` layers, read from `layer_types`.

    Empty without a `sliding_window`.

    sliding_fields, full_fields: fields of the attention of such a layer that differ from the block, as in
        `{"position": "none"}`.
    """
    window_size = config.optional_integer("sliding_window")
    layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    if window_size is None or ("sliding" not in layer_kinds and not full_fields):
        return {}
    sliding_layer_fields = {"attention": {"sliding_window": window_size, **(sliding_fields or {})}}
    layer_changes: Table = {"full": {"attention": full_fields or {}}, "sliding": sliding_layer_fields}
    return stack_of_variants(layer_changes, layer_kinds)


def stack_of_variants(changes_by_kind: Table, layer_kinds: list[str]) -> Table:
    """Returns the stack fields of several layer kinds, each a common layer (`block`) with some fields changed.

    changes_by_kind: layer kind → fields that differ. layer_kinds: each layer's kind, bottom first.
    """
    variants = {layer_kind: changes_by_kind[layer_kind] for layer_kind in dict.fromkeys(layer_kinds)}
    return {"variants": variants, **layer_pattern(layer_kinds)}


def bidirectional_stack(stack: Table, distance_of_window: Callable[[int], int]) -> Table:
    """Returns an encoder's stack, whose sliding layers attend to equal distances before and after a token.

    distance_of_window: function from the config's window to the distance on each side.
    """
    layer_variants = {layer_kind: dict(layer) for layer_kind, layer in stack.get("variants", {}).items()}
    for layer in (stack["block"], *layer_variants.values()):
        window_size = layer.get("attention", {}).get("sliding_window")
        if window_size is not None:
            layer["attention"] = {**layer["attention"], "sliding_window": 2 * distance_of_window(window_size) + 1}
    return {**stack, **({"variants": layer_variants} if layer_variants else {})}


DENSE_OR_MOE = {"dense": "dense", "sparse": "moe"}


def dense_or_moe_kinds(config: Config, depth: int, dense_layer_count: int) -> list[str]:
    """Returns each layer's kind from `mlp_layer_types`; without it, `dense` for the first layers, then `moe`."""
    default_layer_kinds = ["dense" if layer_index < dense_layer_count else "moe" for layer_index in range(depth)]
    if config.has("mlp_layer_types"):
        return listed_kinds(config, "mlp_layer_types", DENSE_OR_MOE, default_layer_kinds)
    return default_layer_kinds


def mtp_modules(config: Config, norm: Table | None = None) -> Table:
    """Returns DeepSeek's multi-token-prediction modules, as a model's field `mtp`, if the config has any.

    norm: the norms of a module; an RMSNorm with the config's `rms_norm_eps` by default.
    """
    mtp_module_count = config.count("num_nextn_predict_layers") if config.has("num_nextn_predict_layers") else 0
    return (
        {"mtp": {"num_nextn_predict_layers": mtp_module_count, "norm": norm or rmsnorm(config.number("rms_norm_eps"))}}
        if mtp_module_count and config.head_kind == "lm"
        else {}
    )


def add_mtp_modules(
    config: Config, stack: Table, layer_kind: str, layer_changes: Table, norm: Table | None = None, **module_fields: Any
) -> Table:
    """Returns the field `mtp` for modules whose layer differs from the decoder's last; adds that kind to `stack`.

    layer_kind, layer_changes: the layer's kind, and its fields other than the block's.
    norm: as in `mtp_modules`. module_fields: further fields of the modules.
    """
    mtp_fields = mtp_modules(config, norm)
    if mtp_fields:
        mtp_fields["mtp"] |= {"layer": layer_kind, **module_fields}
        stack["variants"] = {layer_kind: layer_changes, **stack.get("variants", {})}
    return mtp_fields


def note_uncounted_mtp(config: Config) -> None:
    """Adds a remark if the config has MTP modules whose structure differs from DeepSeek's."""
    for field_name in ("num_nextn_predict_layers", "num_mtp_modules"):
        if config.has(field_name) and config.count(field_name):
            config.notes.append(f"{field_name}: the multi-token-prediction modules are not counted")


def stack_of_combined_kinds(*kinds_and_changes: tuple[list[str], Table]) -> Table:
    """Returns the stack fields of layers of which several components vary, such as attention and FFN.

    kinds_and_changes: each is (the kind of each layer, kind → the fields that it changes). A component with one kind
        that changes nothing is omitted. No two components may change the same field.
    """
    varying_components = [
        (component_kinds, fields_by_kind)
        for component_kinds, fields_by_kind in kinds_and_changes
        if any(fields_by_kind[component_kind] for component_kind in component_kinds)
    ]
    if not varying_components:
        return {}
    layer_kinds = [
        "-".join(kinds) for kinds in zip(*(component_kinds for component_kinds, _ in varying_components), strict=True)
    ]
    layer_variants: Table = {}
    for layer_index, layer_kind in enumerate(layer_kinds):
        layer_variants.setdefault(
            layer_kind,
            {
                field_name: changed_value
                for component_kinds, fields_by_kind in varying_components
                for field_name, changed_value in fields_by_kind[component_kinds[layer_index]].items()
            },
        )
    return {"variants": layer_variants, **layer_pattern(layer_kinds)}


def learned_positions(config: Config, position_offset: int = 0) -> Table:
    """Returns a learned position embedding. position_offset: the number of rows before position 0."""
    return {
        "type": "learned",
        "max_position_embeddings": config.integer("max_position_embeddings"),
        **({"offset": position_offset} if position_offset else {}),
    }


def with_router_fields(description_table: Any, router_fields: dict[str, Any], is_linear_only: bool = False) -> Any:
    """Returns a description with these fields set in every router. is_linear_only: only in linear routers."""
    if isinstance(description_table, list):
        return [with_router_fields(list_element, router_fields, is_linear_only) for list_element in description_table]
    if not isinstance(description_table, dict):
        return description_table
    filled_table = {
        name: with_router_fields(value, router_fields, is_linear_only) for name, value in description_table.items()
    }
    router = filled_table.get("router", {})
    is_mixture = "num_experts" in filled_table and "expert" in filled_table
    if is_mixture and (not is_linear_only or router.get("type", "linear") == "linear"):
        filled_table["router"] = {**router, **router_fields}
    return filled_table


def decoder_of_kinds(
    config: Config, block: Table, final_norm: Table | None, *kinds_and_changes: tuple[list[str], Table], **model: Any
) -> Table:
    """Returns a decoder-only model with several kinds of layers. kinds_and_changes: layer kinds, changed fields."""
    return decoder(config, block, final_norm, stack=stack_of_combined_kinds(*kinds_and_changes), **model)


def stack_of_kinds(layer_configs: dict[str, Table], layer_kinds: list[str]) -> Table:
    """Returns the stack fields of several kinds of layers, each from a complete layer table.

    layer_kinds: each layer's kind, bottom first.
    The `block` is a kind from which every other used kind can be derived by changing fields.
    """
    used_configs = {layer_kind: layer_configs[layer_kind] for layer_kind in dict.fromkeys(layer_kinds)}
    for block in used_configs.values():
        if all(merge_tables(block, layer) == layer for layer in used_configs.values()):
            changes_by_kind = {
                layer_kind: {name: value for name, value in layer.items() if block.get(name) != value}
                for layer_kind, layer in used_configs.items()
            }
            return {"block": block, "variants": changes_by_kind, **layer_pattern(layer_kinds)}
    raise AssertionError(f"none of the layers {', '.join(used_configs)} has only what the others have")


def stack_of_layers(layers: list[tuple[str, Table]]) -> Table:
    """Returns the stack fields of layers, each of which differs from a common layer in some fields.

    Layers with equal changes are of one kind.
    """
    layer_kinds: list[str] = []
    layer_variants: Table = {}
    kind_by_changes: dict[str, str] = {}  # changed fields as text → name of the kind
    for layer_index, (kind_label, layer_changes) in enumerate(layers):
        variant_name = kind_by_changes.get(repr(layer_changes))
        if variant_name is None:
            variant_name = kind_by_changes[repr(layer_changes)] = (
                kind_label if kind_label not in layer_variants else f"{kind_label}_{layer_index}"
            )
            layer_variants[variant_name] = layer_changes
            if len(layer_variants) > MAX_VARIANTS:
                raise InputError(
                    f"num_hidden_layers: {len(layers)} layers of more than {MAX_VARIANTS} kinds; expected layers "
                    "that are more alike"
                )
        layer_kinds.append(variant_name)
    return {"variants": layer_variants, **layer_pattern(layer_kinds)}
