"""Where a class of `transformers` departs from the architecture that it is the class of:
all that a comparison with it excuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..algebra import Number
from ..components.head import LMHead
from ..components.mixers.attention import Attention
from ..flow.tree import Cost, Use
from ..model import ModelSpec
from ..ops import AttentionCore, ExpertLinear, IdentityExperts, KVCache, Linear, Op, Weight
from ..run.rows import LOGITS
from ..run.sight import Sight


@dataclass(frozen=True)
class Deviation:
    """Where a class departs from the architecture, and how a primitive is to be counted to follow it there.

    classes: whose it is; empty for all. quantity: which of the numbers it changes. follow: an op as the class runs it.
    more: what the class has beside all that is counted. when: of which models it is, where not of all that the classes
    run.
    """

    name: str
    what: str
    quantity: str
    follow: Callable[[Op], Op] = lambda op: op
    classes: tuple[str, ...] = ()
    when: Callable[[ModelSpec], bool] = lambda spec: True
    more: Callable[[ModelSpec], Number] = lambda spec: 0


def _one_token_less(op: Op) -> Op:
    return replace(op, limit=op.limit - 1) if isinstance(op, KVCache) and op.limit is not None else op


def _every_token(op: Op) -> Op:
    return replace(op, limit=None) if isinstance(op, KVCache) else op


def _every_head(op: Op) -> Op:
    if isinstance(op, AttentionCore):
        return KVCache(op.heads * (op.qk_dim + op.v_dim), "full_attention")
    return replace(op, width=0) if isinstance(op, KVCache) else op


def _every_expert(op: Op) -> Op:
    return replace(op, top_k=op.num_experts) if isinstance(op, ExpertLinear) else op


def _as_if_real(op: Op) -> Op:
    """All but the last of the maps that a real expert has."""
    return Weight(op.count * sum(one.one() for one in op.maps[:-1])) if isinstance(op, IdentityExperts) else op


def _tied(op: Op) -> Op:
    return replace(op, tied=True) if isinstance(op, Linear) and op.rows is LOGITS else op


def _keys_and_values(op: Op) -> Op:
    return replace(op, width=2 * op.width) if isinstance(op, KVCache) and op.kind == "sliding_attention" else op


def _untied(spec: ModelSpec) -> bool:
    return not spec.tie_word_embeddings and isinstance(spec.head, LMHead)


def _grouped(spec: ModelSpec) -> bool:
    """Falcon of the new architecture, and not the first one's single key and value for all heads."""
    mixer, parallel = spec.main.block.attention, spec.main.block.parallel
    return (
        isinstance(mixer, Attention)
        and mixer.num_key_value_heads is not None
        and (mixer.num_key_value_heads > 1 or parallel == "separate")
    )


def _table_of_turns(spec: ModelSpec) -> Number:
    """A row of a head's width for each position."""
    mixer = spec.main.block.attention
    return (
        spec.max_position_embeddings * mixer.sizes(spec.hidden_size)[2]
        if isinstance(mixer, Attention) and spec.max_position_embeddings
        else 0
    )


DEVIATIONS = (
    Deviation(
        "sliding cache",
        "a sliding or chunked layer's cache keeps one token less than its window",
        "cache_bytes",
        _one_token_less,
    ),
    Deviation(
        "Llama 4's experts",
        "every expert runs on every token, with zeros where it was not chosen",
        "forward_flops",
        _every_expert,
        ("Llama4ForCausalLM", "Llama4TextModel", "Llama4ForConditionalGeneration"),
    ),
    Deviation(
        "DeepSeek-V4's cache",
        "layers without entries keep their one tensor of keys and values twice",
        "cache_bytes",
        _keys_and_values,
        ("DeepseekV4ForCausalLM", "DeepseekV4Model"),
    ),
    Deviation(
        "GPT-Neo's cache",
        "its local layers keep every token",
        "cache_bytes",
        _every_token,
        (
            "GPTNeoForCausalLM",
            "GPTNeoModel",
            "GPTNeoForSequenceClassification",
            "GPTNeoForTokenClassification",
            "GPTNeoForQuestionAnswering",
        ),
    ),
    Deviation(
        "Falcon's cache",
        "grouped keys and values are kept once for each query head",
        "cache_bytes",
        _every_head,
        ("FalconForCausalLM", "FalconModel"),
        _grouped,
    ),
    Deviation(
        "NLLB-MoE's experts",
        "the router's mask is taken for the experts' numbers: each token is run as often as there are experts",
        "forward_flops",
        _every_expert,
        ("NllbMoeForConditionalGeneration", "NllbMoeModel"),
    ),
    Deviation(
        "LongCat-Flash's identity experts",
        "the gate and up maps of identity experts are held, though nothing reads them; checkpoints have none",
        "parameters",
        _as_if_real,
        ("LongcatFlashForCausalLM", "LongcatFlashModel"),
    ),
    Deviation(
        "T5's tied head",
        "its output map is tied to the embedding, though the config unties them",
        "parameters",
        _tied,
        (
            "T5ForConditionalGeneration",
            "MT5ForConditionalGeneration",
            "UMT5ForConditionalGeneration",
            "LongT5ForConditionalGeneration",
        ),
        _untied,
    ),
    Deviation(
        "BERT's untied head",
        "its output map has a second bias that nothing uses; tying makes them one",
        "parameters",
        classes=(
            "BertForMaskedLM",
            "BertForPreTraining",
            "BertLMHeadModel",
            "RobertaForMaskedLM",
            "RobertaForCausalLM",
            "XLMRobertaForMaskedLM",
            "XLMRobertaForCausalLM",
            "CamembertForMaskedLM",
            "CamembertForCausalLM",
            "AlbertForMaskedLM",
            "AlbertForPreTraining",
            "MPNetForMaskedLM",
            "NomicBertForMaskedLM",
            "DebertaForMaskedLM",
            "DebertaV2ForMaskedLM",
            "ErnieForMaskedLM",
            "ErnieForPreTraining",
            "ErnieForCausalLM",
            "MegatronBertForMaskedLM",
            "MegatronBertForPreTraining",
            "MegatronBertForCausalLM",
            "RobertaPreLayerNormForMaskedLM",
            "RobertaPreLayerNormForCausalLM",
            "XLMRobertaXLForMaskedLM",
            "XLMRobertaXLForCausalLM",
            "Data2VecTextForMaskedLM",
            "Data2VecTextForCausalLM",
            "JinaEmbeddingsV3ForMaskedLM",
            "BertGenerationDecoder",
            "RoFormerForMaskedLM",
            "RoFormerForCausalLM",
        ),
        when=_untied,
        more=lambda spec: spec.vocab_size,
    ),
    Deviation(
        "RoFormer's sines",
        "the sines and cosines that turn queries and keys are a table among its parameters, that no training changes",
        "parameters",
        classes=(
            "RoFormerForMaskedLM",
            "RoFormerForCausalLM",
            "RoFormerForSequenceClassification",
            "RoFormerForTokenClassification",
            "RoFormerForQuestionAnswering",
            "RoFormerForMultipleChoice",
            "RoFormerModel",
        ),
        more=_table_of_turns,
    ),
)
"""Everything that is excused. The README lists it."""


def followed(cls: str, quantity: str, cost: Cost, spec: ModelSpec) -> Cost:
    """The cost of an op as the class of that name runs it."""
    steps = [deviation.follow for deviation in _of(cls, quantity, spec)]

    def following(use: Use) -> Any:
        op = use.op
        for step in steps:
            op = step(op)
        return cost(replace(use, op=op))

    return following


def total(
    cls: str,
    quantity: str,
    cost: Cost,
    spec: ModelSpec,
    sight: Sight | None = None,
    include: frozenset[str] = frozenset(),
) -> Number:
    """The cost of the whole model as the class of that name has it."""
    counted = spec.tree().total(followed(cls, quantity, cost, spec), sight, include=include)
    return counted + sum(deviation.more(spec) for deviation in _of(cls, quantity, spec))


def _of(cls: str, quantity: str, spec: ModelSpec) -> list[Deviation]:
    return [d for d in DEVIATIONS if d.quantity == quantity and (not d.classes or cls in d.classes) and d.when(spec)]
