"""The report of `llmcalc shape`: shapes of equal cost, compared with published studies of depth and width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .. import units
from ..sources.preset import Preset
from ..studies.literature import FINDINGS, TAY_LAYERS, TOKENS_PER_PARAMETER, kaplan_range
from ..studies.shape import LEAST_ASPECT, MAX_ASPECT, ModelShape, ShapeStudy
from .compare import BAND_NOTE, aspect_text
from .document import Column, Report, Row, Table, row
from .notes import MULTIPLY_ADD, cache_per_token_note, flops_per_token_note
from .summary import headline, model_data

TARGET_MARK = "→"

SIZE_COLUMNS = (
    Column("num_hidden_layers", "L"),
    Column("hidden_size", "h", units.exact_text),
    Column("aspect_ratio", "h / L"),
)
FULL_COLUMNS = tuple(
    Column("is_target" if key == "target" else key, key)
    for key in (
        "target",
        "num_hidden_layers",
        "hidden_size",
        "aspect_ratio",
        "parameters",
        "budget_difference",
        "flops_per_token",
        "kv_bytes_per_token",
        "kv_bytes",
        "head_sizes",
        "tokens",
        "train_flops",
        "in_kaplan_range",
        "past_tay",
        "critical_depth",
        "past_critical",
        "feed_forward_width",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    )
)
LITERATURE_COLUMNS = (
    *SIZE_COLUMNS,
    Column("kaplan", f"Kaplan h/L {kaplan_range()[0]:.0f}–{kaplan_range()[1]:.0f}", justify="left"),
    Column("tay", f"Tay L {TAY_LAYERS[0]}–{TAY_LAYERS[1]}", justify="left"),
    Column("depth_delusion", "Fahim L up to", "{:.0f}".format),
    Column("past_critical", "", justify="left"),
)


def report(
    shape_study: ShapeStudy,
    preset: Preset,
    is_target: bool = True,
    with_literature: bool = False,
    has_raw_table: bool = False,
) -> Report:
    """Returns the report of a study of model shapes, depth against width at equal cost, as data and as tables.

    preset: the model whose ratios the shapes have.
    is_target: whether that model is the TARGET; False if no TARGET was given.
    with_literature: whether a second table compares with published studies; the data always do.
    has_raw_table: whether there is one table of raw values, for CSV.
    """
    shapes_data = [_shape_data(model_shape) for model_shape in shape_study.shapes]
    json_document: dict[str, Any] = {"model": model_data(preset)} if is_target else {}
    json_document |= {
        "budget": _budget_data(shape_study),
        "ratios_of": preset.name,
        "proportions": _proportions_data(shape_study),
        "shapes": shapes_data,
        "literature": _literature_data(shape_study),
    }
    if has_raw_table:
        raw_rows = [
            {**shape_data, **shape_data["literature"], "head_sizes": " ".join(map(str, shape_data["head_sizes"]))}
            for shape_data in shapes_data
        ]
        tables = [
            Table(
                "",
                FULL_COLUMNS,
                [Row([shape_data[column.title] for column in FULL_COLUMNS]) for shape_data in raw_rows],
            )
        ]
        return Report(json_document, tables).with_target(preset.target if is_target else "")
    budget_value = shape_study.budget.value
    if shape_study.budget.kind == "parameters":
        title = f"{units.count(budget_value)} parameters"
    else:
        title = f"{budget_value:.3g} FLOPs of training".replace("e+", "e")
    cost_table = Table(
        f"{title}, same ratios as {preset.display}",
        _cost_columns(shape_study),
        [_cost_row(model_shape, _has_windows(shape_study)) for model_shape in shape_study.shapes],
        notes=_shape_notes(shape_study, preset, is_target, with_literature),
    )
    if not with_literature:
        return Report(json_document, [cost_table])
    literature_rows = [_literature_row(described_shape) for described_shape in shape_study.shapes]
    notes = _source_notes(shape_study, preset)
    findings_table = Table("What studies of depth and width say", LITERATURE_COLUMNS, literature_rows, notes=notes)
    return Report(json_document, [cost_table, findings_table])


def _cost_columns(shape_study: ShapeStudy) -> Sequence[Column]:
    """Returns the columns of costs, in units in which the smallest value of a column is at least 1."""
    parameter_scale = units.count_scale(min(shape.parameters for shape in shape_study.shapes))
    flops_scale = units.decimal_scale(min(shape.forward_flops_per_token for shape in shape_study.shapes), "FLOPs")
    kv_bytes_field = "kv_bytes" if _has_windows(shape_study) else "kv_bytes_per_token"
    cache_scale = units.memory_scale(min(getattr(shape, kv_bytes_field) for shape in shape_study.shapes))
    title = f"params, {parameter_scale.name}" if parameter_scale.name else "params"
    return (
        *SIZE_COLUMNS,
        Column("parameters", title, parameter_scale.write),
        Column("budget_difference", "vs budget", units.signed_percent),
        Column("flops_per_token", flops_scale.name, flops_scale.write),
        Column(kv_bytes_field, f"KV {cache_scale.name}", cache_scale.write),
        Column("head_sizes", "head sizes"),
    )


def _has_windows(shape_study: ShapeStudy) -> bool:
    """Whether sliding windows or recurrent states bound a sequence's cache, so that bytes per token overstate it."""
    return any(shape.kv_bytes != shape.kv_bytes_per_token * shape_study.seq for shape in shape_study.shapes)


def _shape_size_cells(shape: ModelShape) -> list[Any]:
    depth_cell = f"{TARGET_MARK} {shape.stack.num_hidden_layers}" if shape.is_target else shape.stack.num_hidden_layers
    return [depth_cell, shape.stack.hidden_size, aspect_text(shape.stack.aspect_ratio, shape.is_in_dense_band)]


def _cost_row(shape: ModelShape, has_windows: bool) -> Row:
    head_sizes_text = " ".join(map(str, shape.head_sizes)) or "none"
    cache_bytes = shape.kv_bytes if has_windows else shape.kv_bytes_per_token
    cost_cells = [shape.parameters, shape.cost_difference, shape.forward_flops_per_token, cache_bytes, head_sizes_text]
    return row(*_shape_size_cells(shape), *cost_cells, is_bold=shape.is_target)


def _literature_row(model_shape: ModelShape) -> Row:
    verdicts, depth = model_shape.verdicts, model_shape.stack.num_hidden_layers
    kaplan_verdict = "within" if verdicts.in_kaplan_range else "outside"
    tay_verdict = "past" if verdicts.past_tay else "within" if depth >= TAY_LAYERS[0] else "before"
    return row(
        *_shape_size_cells(model_shape),
        kaplan_verdict,
        tay_verdict,
        verdicts.critical_depth,
        "past" if verdicts.past_critical else "within",
        is_bold=model_shape.is_target,
    )


def _shape_data(model_shape: ModelShape) -> dict[str, Any]:
    stack_shape = model_shape.stack
    return {
        "target": model_shape.is_target,
        "num_hidden_layers": stack_shape.num_hidden_layers,
        "hidden_size": stack_shape.hidden_size,
        "aspect_ratio": stack_shape.aspect_ratio,
        "in_dense_band": model_shape.is_in_dense_band,
        "feed_forward_width": stack_shape.feed_forward_width,
        "num_attention_heads": stack_shape.num_attention_heads,
        "num_key_value_heads": stack_shape.num_key_value_heads,
        "head_dim": stack_shape.head_dim,
        "parameters": model_shape.parameters,
        "active": model_shape.active,
        "budget_difference": model_shape.cost_difference,
        "tokens": model_shape.tokens,
        "train_flops": model_shape.train_flops,
        "flops_per_token": model_shape.forward_flops_per_token,
        "kv_bytes_per_token": model_shape.kv_bytes_per_token,
        "kv_bytes": model_shape.kv_bytes,
        "head_sizes": list(model_shape.head_sizes),
        "literature": asdict(model_shape.verdicts),
    }


def _budget_data(shape_study: ShapeStudy) -> dict[str, Any]:
    budget = shape_study.budget
    is_training_budget = budget.kind == "train_flops"
    return {
        "kind": budget.kind,
        "value": budget.value,
        "tolerance": shape_study.tolerance,
        "tokens": budget.tokens,
        "tokens_per_active_parameter": TOKENS_PER_PARAMETER if is_training_budget and budget.tokens is None else None,
        "seq": shape_study.seq,
        "pairs": "full",
        "dtype": shape_study.dtype,
        "shapes_counted": shape_study.searched_count,
    }


def _proportions_data(shape_study: ShapeStudy) -> dict[str, Any]:
    """Returns the proportions that all shapes share as text, read from the first shape."""
    family, stack_shape = shape_study.family, shape_study.shapes[0].stack
    return {
        "feed_forward_ratio": stack_shape.feed_forward_ratio,
        "head_dim": stack_shape.head_dim,
        "head_ratio": stack_shape.head_ratio,
        "kv_ratio": stack_shape.kv_ratio,
        "vocab_size": family.spec.vocab_size,
        "tie_word_embeddings": family.spec.tie_word_embeddings,
        "hidden_size_step": family.width_step,
    }


def _literature_data(shape_study: ShapeStudy) -> list[dict[str, Any]]:
    findings_data: list[dict[str, Any]] = [asdict(study_finding) for study_finding in FINDINGS]
    if shape_study.scaled_target is not None:
        hidden_size, depth, aspect_ratio = shape_study.scaled_target
        findings_data[-1]["scaled_from_target"] = {
            "hidden_size": hidden_size,
            "num_hidden_layers": depth,
            "compute_ratio": aspect_ratio,
        }
    return findings_data


def _shape_notes(shape_study: ShapeStudy, preset: Preset, is_target: bool, adds_literature: bool) -> list[str]:
    family, first_stack = shape_study.family, shape_study.shapes[0].stack
    notes = [_shared_sizes_text(shape_study)]
    per_token_text = "FLOPs and KV cache are per token"
    if _has_windows(shape_study):
        per_token_text = f"FLOPs are per token, KV is the cache of a sequence of {shape_study.seq:,} tokens"
    if family.head_divisor > 1:
        model_head_dim = (first_stack.head_dim or 0) * family.head_divisor
        notes.append(
            f"head_dim is {first_stack.head_dim} instead of {model_head_dim}, since h would have few steps at this "
            f"budget; --head-dim {model_head_dim} holds it fixed"
        )
    if not is_target:
        notes.append(
            f"no TARGET was given: ratios, vocabulary and tying are those of {preset.display} unless an option changes "
            f"them: {headline(preset.model)}"
        )
    notes += [
        f"L: number of layers, h: hidden size; {per_token_text}",
        f"shapes within {100 * shape_study.tolerance:g} % of the budget: at each h the depth nearest to it, h/L from "
        f"{LEAST_ASPECT:,} to {MAX_ASPECT:,}",
        f"head sizes: which of 64, 96, 128 and 256 divide h; {shape_study.searched_count:,} shapes were counted",
    ]
    embedding_shares = [model_shape.embedding_and_head / model_shape.parameters for model_shape in shape_study.shapes]
    if max(embedding_shares) > 0.5:
        notes.append(
            f"embedding and language-model head are {units.percent(min(embedding_shares), 0)} to "
            f"{units.percent(max(embedding_shares), 0)} of the parameters; a smaller --vocab leaves more to the layers"
        )
    if first_stack.mixture_of_experts:
        notes.append(
            "mixture of experts: the number of experts, and of those that each token uses, is held fixed; the width "
            "of each expert grows with h"
        )
    if any(model_shape.is_target for model_shape in shape_study.shapes):
        notes.append(f"{TARGET_MARK} the model's own h and L")
    elif is_target:
        notes.append(f"the h and L of {preset.display} itself do not meet this budget, so they are not listed")
    if any(model_shape.is_in_dense_band for model_shape in shape_study.shapes):
        notes.append(BAND_NOTE)
    if shape_study.budget.kind == "train_flops":
        notes.append(_training_budget(shape_study))
    notes += [flops_per_token_note(shape_study.seq), cache_per_token_note(shape_study.dtype)]
    return notes if adds_literature else [*notes, "--literature adds what published studies say about depth and width"]


def _shared_sizes_text(shape_study: ShapeStudy) -> str:
    """Returns the sizes that all shapes share as text, read from the first shape."""
    spec, first_stack = shape_study.family.spec, shape_study.shapes[0].stack
    tying_text = "tied" if spec.tie_word_embeddings else "untied"
    kv_text = (
        ""
        if first_stack.num_key_value_heads is None
        else f", {first_stack.num_attention_heads} heads and {first_stack.num_key_value_heads} kv heads at h = "
        f"{first_stack.hidden_size:,}"
    )
    width_name = "active d_ff" if first_stack.mixture_of_experts else "d_ff"
    return (
        f"held fixed: {width_name} = {first_stack.feed_forward_ratio:.2f} h, head_dim {first_stack.head_dim}{kv_text}, "
        f"vocabulary {spec.vocab_size:,} {tying_text}; h is a multiple of {shape_study.family.width_step}, so that "
        "head counts stay integers"
    )


def _training_budget(shape_study: ShapeStudy) -> str:
    budget = shape_study.budget
    if budget.tokens is None:
        tokens_text = f"{TOKENS_PER_PARAMETER} tokens per active parameter (Hoffmann 2022)"
    else:
        tokens_text = f"{units.count(budget.tokens)} tokens"
    return (
        f"training FLOPs: {tokens_text} × exact FLOPs per token, forward and backward, {MULTIPLY_ADD}, full pairs, "
        f"sequences of {budget.seq:,}"
    )


def _active_parameters(shape_study: ShapeStudy) -> list[int]:
    """Returns active parameters per token: the target's, else the budget's, else the least and most of all shapes."""
    target_params = [shape.active for shape in shape_study.shapes if shape.is_target]
    if target_params or not shape_study.shapes[0].stack.mixture_of_experts:
        return target_params or [shape_study.budget.value]
    model_shapes = shape_study.shapes
    return sorted({min(shape.active for shape in model_shapes), max(shape.active for shape in model_shapes)})


def _source_notes(shape_study: ShapeStudy, preset: Preset) -> Sequence[str]:
    notes = [
        f"{finding.source} (arXiv:{finding.arxiv}): {finding.says}. Limits: {finding.limits}" for finding in FINDINGS
    ]
    if shape_study.shapes[0].stack.mixture_of_experts:
        notes.append("the studies are of dense models, and this one is a mixture of experts")
    if shape_study.budget.kind == "parameters":
        tokens_text = " to ".join(
            units.count(TOKENS_PER_PARAMETER * active_params) for active_params in _active_parameters(shape_study)
        )
        notes.append(f"{TOKENS_PER_PARAMETER} tokens per parameter are {tokens_text} tokens here")
    if shape_study.scaled_target is not None:
        hidden_size, depth, aspect_ratio = shape_study.scaled_target
        notes.append(
            f"from {preset.display} at {aspect_ratio:.3g} times its compute, C^0.34 and C^0.12 give h = "
            f"{hidden_size:,.0f}, L = {depth:.0f}. The exponents are that preprint's, the constant is the model's; "
            "L·h² then grows as C^0.80, unlike Chinchilla's N in proportion to C^0.5"
        )
    return notes
