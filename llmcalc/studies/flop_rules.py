"""Rules of thumb for FLOPs, compared with the exact count of the same workload.

Each rule is stated as in its source and applied unchanged, also to architectures that it was not made for. `remark`
says what it leaves out. Sources: Kaplan et al. 2020 (arXiv:2001.08361), §2.1 and Table 1; Hoffmann et al. 2022
(arXiv:2203.15556), appendix F; Chowdhery et al. 2022 (arXiv:2204.02311), appendix B; Narayanan et al. 2021
(arXiv:2104.04473), eq. 3; Korthikanti et al. 2022 (arXiv:2205.05198), appendix A.

A rule that its source states for training only is divided by three for a forward pass; a rule for the forward pass is
multiplied by three for training (backward = 2 × forward, which all five sources assume). With cached tokens, the
sequence length of a rule is cached and new tokens together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from ..algebra import exact_div
from ..components.base import Network, TokenMixer
from ..components.layers.block import Layer
from ..costs.flops import FlopCount
from ..costs.params import ParameterCount, params
from ..frozen import frozen
from ..model import ModelSpec

RULE_WITH_RECOMPUTE = "megatron_recompute"
"""Key of the rule whose formula counts the second forward pass of every layer itself."""


@frozen(slots=True)
class FlopRule:
    """A rule of thumb for a workload's FLOPs, with the result.

    name: its name in tables.
    formula: the formula as the source writes it.
    source: paper and section.
    total: the FLOPs that it gives.
    error_full, error_causal: total over the exact count with full or causal pairs, minus 1.
    remark: the inputs of the formula, or what it leaves out.
    """

    key: str
    name: str
    formula: str
    source: str
    total: int
    error_full: float
    error_causal: float
    remark: str = ""


@frozen(slots=True)
class ModelSizes:
    """The sizes of a model that the rules of thumb use; sums over layers if layers differ.

    width: h, d_model.
    layers: L.
    total_heads: Σ heads of all layers.
    total_key_width: Σ heads × head size (L·H·Q, n_layer·d_attn).
    feed_forward: Σ active width of the FFN per token.
    vocab: V.
    """

    width: int
    layers: int
    total_heads: int
    total_key_width: int
    feed_forward: int
    vocab: int


def _is_plain_transformer(spec: ModelSpec) -> bool:
    """Whether a model is one stack of attention and FFN layers, as the attention rules assume."""
    layers = [layer for _, stack in spec.stacks() for _, layer, _, _ in stack.layer_groups()]
    return spec.kind != "encoder-decoder" and all(
        _layer_widths(layer, spec.hidden_size) is not None for layer in layers
    )


def _layer_widths(layer: Layer, input_width: int) -> tuple[int, int, int] | None:
    """Returns (heads, head size, active FFN width) of a transformer layer; None for layers of other kinds."""
    mixer, network = layer.attention, layer.feed_forward
    if not layer.is_plain_transformer_layer or not isinstance(mixer, TokenMixer) or not isinstance(network, Network):
        return None
    head_sizes, active_ffn_width = mixer.head_sizes(input_width), network.active_width()
    if mixer.kind != "attention" or head_sizes is None or active_ffn_width is None:
        return None
    return head_sizes.heads, head_sizes.head_dim, active_ffn_width


def sizes_of_model(spec: ModelSpec) -> ModelSizes:
    """Returns the sizes of the stack that computes the model's output.

    Raises `ArithmeticError` for any model that is not a plain transformer.
    """
    total_heads = key_width = ffn_width = 0
    for _, layer, layer_count, _ in spec.main.layer_groups():
        layer_widths = _layer_widths(layer, spec.hidden_size)
        if layer_widths is None:
            raise ArithmeticError(
                "rules with an attention term are for plain transformers, which have heads and a feed-forward network "
                "in every layer"
            )
        layer_heads, head_dim, layer_ffn_width = layer_widths
        total_heads += layer_count * layer_heads
        key_width += layer_count * layer_heads * head_dim
        ffn_width += layer_count * layer_ffn_width
    return ModelSizes(spec.hidden_size, spec.main.num_hidden_layers, total_heads, key_width, ffn_width, spec.vocab_size)


def kaplan_table_1(parameter_count: int, key_width: int, context_tokens: int) -> int:
    """Returns forward FLOPs per token: 2N + 2·n_layer·n_ctx·d_attn (Kaplan 2020, Table 1).

    key_width: n_layer·d_attn.
    """
    return 2 * parameter_count + 2 * context_tokens * key_width


def chinchilla_appendix_f(model_sizes: ModelSizes, seq: int) -> int:
    """Returns forward FLOPs of one sequence (Hoffmann 2022, appendix F).

    The terms are those of its text. The ratios to 6ND in its table A4 result without the embedding and the logits.
    """
    h, v, s = model_sizes.width, model_sizes.vocab, seq
    embedding_flops = 2 * s * v * h
    qkv_flops = 2 * 3 * s * h * model_sizes.total_key_width  # key, query and value projections
    qkv_flops += 2 * s * s * model_sizes.total_key_width  # key @ query logits
    qkv_flops += 3 * model_sizes.total_heads * s * s  # softmax
    qkv_flops += 2 * s * s * model_sizes.total_key_width  # softmax @ query reductions
    qkv_flops += 2 * s * model_sizes.total_key_width * h  # final linear
    dense_flops = 2 * s * (h * model_sizes.feed_forward + h * model_sizes.feed_forward)
    logits_flops = 2 * s * h * v
    return embedding_flops + qkv_flops + dense_flops + logits_flops


def palm_appendix_b(parameter_count: int, key_width: int, seq: int) -> int:
    """Returns training FLOPs per token: 6N + 12LHQT (Chowdhery 2022, appendix B). key_width: L·H·Q."""
    return 6 * parameter_count + 12 * key_width * seq


def megatron_flops(model_sizes: ModelSizes, batch: int, seq: int, is_recomputed: bool) -> int:
    """Returns the FLOPs of one training iteration by Megatron-LM's rules of thumb.

    With recomputation: 96Bsℓh²(1 + s/6h + V/16ℓh) (Narayanan 2021, eq. 3).
    Without recomputation: 72Bsℓh²(1 + s/6h + V/12ℓh) (Korthikanti 2022, appendix A).
    """
    pass_count = 4 if is_recomputed else 3
    b, s, h, layers, v = batch, seq, model_sizes.width, model_sizes.layers, model_sizes.vocab
    return pass_count * b * s * layers * (24 * h * h + 4 * s * h) + 6 * b * s * h * v


def flop_rules_for(flop_count: FlopCount) -> list[FlopRule]:
    """Returns the exact counts with full and causal attention, then all rules that apply to the model."""
    full_flops, causal_flops = flop_count.full, flop_count.causal

    def make_rule(
        rule_key: str, rule_name: str, formula: str, source: str, total_flops: int, rule_remark: str = ""
    ) -> FlopRule:
        error_full = total_flops / full_flops - 1
        return FlopRule(
            rule_key, rule_name, formula, source, total_flops, error_full, total_flops / causal_flops - 1, rule_remark
        )

    flop_rules = [
        make_rule("exact_full", "exact, full pairs", "every query × every key", "", full_flops),
        make_rule("exact_causal", "exact, causal pairs", "unmasked pairs", "", causal_flops),
    ]
    return flop_rules + [make_rule(*rule_fields) for rule_fields in _rules_of_workload(flop_count)]


RuleFields: TypeAlias = tuple[str, str, str, str, int, str]
"""A rule before comparison: (key, name, formula, source, FLOPs, remark)."""


def _rules_of_workload(flop_count: FlopCount) -> Iterator[RuleFields]:
    count_of_params = params(flop_count.spec, flop_count.include)
    is_training, token_count = flop_count.workload.phase == "training", flop_count.tokens
    flops_per_parameter = 6 if is_training else 2
    for rule_key, rule_name, name_suffix, rule_source, parameters in _definitions_of_n(count_of_params):
        formula, remark = f"{flops_per_parameter}N{name_suffix}", f"N = {parameters:,}"
        yield (
            f"{rule_key}_{flops_per_parameter}n",
            rule_name,
            formula,
            rule_source,
            flops_per_parameter * parameters * token_count,
            remark,
        )
    if _is_plain_transformer(flop_count.spec):
        context_tokens = flop_count.workload.context + flop_count.workload.seq
        yield from _rules_with_attention(
            sizes_of_model(flop_count.spec), count_of_params, context_tokens, token_count, is_training
        )


KAPLAN_SOURCE = "Kaplan 2020, Table 1"
CHINCHILLA_SOURCE = "Hoffmann 2022, appendix F"
PALM_SOURCE = "Chowdhery 2022, appendix B"
MEGATRON_SOURCE, MEGATRON_RECOMPUTE_SOURCE = "Korthikanti 2022, appendix A", "Narayanan 2021, eq. 3"
KAPLAN_REMARK = "N non-embedding (active); half of all pairs; no logits"
CHINCHILLA_REMARK = "for MHA and a non-gated FFN; also counts the embedding, as a matrix product, and softmax"
PALM_REMARK = "N all parameters (active), embedding included"
MEGATRON_REMARK = "for MHA with heads × head_dim = h and a non-gated FFN with d_ff = 4h"


def _rules_with_attention(
    model_sizes: ModelSizes, parameter_count: ParameterCount, context_tokens: int, token_count: int, is_training: bool
) -> Iterator[RuleFields]:
    """Yields the rules of thumb that have a term for attention, with the FLOPs of all tokens.

    context_tokens: cached and new tokens per sequence; every formula per sequence has it as a factor.
    """

    def make_rule(
        rule_key: str,
        rule_name: str,
        formulas: tuple[str, str],
        source: str,
        rule_flops: int,
        phase_remarks: tuple[str, str],
    ) -> RuleFields:
        return rule_key, rule_name, formulas[is_training], source, token_count * rule_flops, phase_remarks[is_training]

    pass_count = 3 if is_training else 1
    kaplan_flops = pass_count * kaplan_table_1(_kaplan_n(parameter_count), model_sizes.total_key_width, context_tokens)
    formulas = "2N + 2·n_layer·n_ctx·d_attn", "6N + 6·n_layer·n_ctx·d_attn"
    yield make_rule(
        "kaplan_table_1",
        "Kaplan Table 1",
        formulas,
        KAPLAN_SOURCE,
        kaplan_flops,
        (KAPLAN_REMARK, f"{KAPLAN_REMARK}; 3 × its forward"),
    )
    chinchilla_flops = exact_div(pass_count * chinchilla_appendix_f(model_sizes, context_tokens), context_tokens)
    formulas = "embed+ℓ(attn+dense)+logits", "embed+ℓ(attn+dense)+logits"
    yield make_rule(
        "chinchilla_f",
        "Chinchilla app. F",
        formulas,
        CHINCHILLA_SOURCE,
        chinchilla_flops,
        (CHINCHILLA_REMARK, f"{CHINCHILLA_REMARK}; 3 × its forward"),
    )
    palm_flops = exact_div(
        pass_count * palm_appendix_b(parameter_count.active, model_sizes.total_key_width, context_tokens), 3
    )
    phase_remarks = f"{PALM_REMARK}; a third of its training count", PALM_REMARK
    yield make_rule("palm_b", "PaLM app. B", ("2N + 4LHQT", "6N + 12LHQT"), PALM_SOURCE, palm_flops, phase_remarks)
    flops_without_recompute, flops_with_recompute = (
        megatron_flops(model_sizes, 1, context_tokens, is_recomputed=is_recomputed) for is_recomputed in (False, True)
    )
    formulas = "24Bsℓh²(1+s/6h+V/12ℓh)", "72Bsℓh²(1+s/6h+V/12ℓh)"
    phase_remarks = f"{MEGATRON_REMARK}; a third of its training count", f"{MEGATRON_REMARK}; nothing recomputed"
    rule_flops = exact_div(pass_count * flops_without_recompute, 3 * context_tokens)
    yield make_rule("megatron", "Megatron", formulas, MEGATRON_SOURCE, rule_flops, phase_remarks)
    if is_training:
        formula, remark = "96Bsℓh²(1+s/6h+V/16ℓh)", f"{MEGATRON_REMARK}; every layer recomputed"
        rule_flops = exact_div(flops_with_recompute, context_tokens)
        yield (
            RULE_WITH_RECOMPUTE,
            "Megatron, recompute",
            formula,
            MEGATRON_RECOMPUTE_SOURCE,
            token_count * rule_flops,
            remark,
        )


def _kaplan_n(parameter_count: ParameterCount) -> int:
    """Returns Kaplan's N: active parameters without the input embeddings and an untied output head."""
    parameters: int = parameter_count.active - (parameter_count.total - parameter_count.non_embedding)
    return parameters


def _definitions_of_n(parameter_count: ParameterCount) -> Iterator[tuple[str, str, str, str, int]]:
    """Yields the usual definitions of N: (key, name, description of the counted parameters, source, N)."""
    has_inactive_parameters = parameter_count.active != parameter_count.total
    name_suffix = ", N non-embedding" + (" active" if has_inactive_parameters else "")
    yield "kaplan", "Kaplan §2.1", name_suffix, "Kaplan 2020, §2.1", _kaplan_n(parameter_count)
    if has_inactive_parameters:
        yield "active", "active parameters", "", "the same with every active parameter", parameter_count.active
    yield "total", "all parameters", "", "the same with every parameter", parameter_count.total
