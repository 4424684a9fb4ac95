"""The table of `llmcalc flops --conventions`: every rule of thumb with its relative error against the exact count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .. import units
from ..costs.flops import FlopCount
from ..studies.flop_rules import FlopRule
from .document import Column, Table, row


def conventions_table(title: str, headline: str, flop_count: FlopCount, rules_of_thumb: Sequence[FlopRule]) -> Table:
    """Returns a table with the exact counts first, and below them the rules of thumb with their errors."""
    flops_scale = units.decimal_scale(max(rule_of_thumb.total for rule_of_thumb in rules_of_thumb), "FLOPs")
    table_columns = (
        Column("rule", "rule of thumb", justify="left"),
        Column("formula", "formula", justify="left"),
        Column("flops", flops_scale.name, flops_scale.write),
        Column("error_full", "vs full", units.signed_percent),
        Column("error_causal", "vs causal", units.signed_percent),
    )
    table_rows = [
        row(
            rule_of_thumb.name,
            rule_of_thumb.formula,
            rule_of_thumb.total,
            rule_of_thumb.error_full,
            rule_of_thumb.error_causal,
            is_bold=rule_of_thumb.key.startswith("exact_"),
        )
        for rule_of_thumb in rules_of_thumb
    ]
    notes = [
        f"{note_rule.name}: {note_rule.source}; {note_rule.remark}" for note_rule in rules_of_thumb if note_rule.source
    ]
    notes += [
        "B sequences of s tokens, V vocabulary, h width, ℓ layers; n_layer, L layers, H heads of size Q, d_attn = "
        "HQ, n_ctx, T tokens of a sequence",
        "formulas with N are FLOPs per token, the others of the whole; where layers differ, L·H·Q and n_layer·d_attn "
        "are sums over layers",
    ]
    return Table(
        title,
        table_columns,
        table_rows,
        headline,
        _count_notes(flop_count) + notes,
        "rules of thumb beside the exact count",
        "conventions",
    )


def _count_notes(flop_count: FlopCount) -> list[str]:
    workload, notes = flop_count.workload, []
    if workload.phase == "prefill":
        notes.append(
            "every rule with a logits term counts logits at every position; this prefill computes them at the last "
            "one only"
        )
    if flop_count.run_config.execution.recompute.layers:
        notes.append(
            "the exact counts include the recomputed forward of every layer; of the rules only Narayanan's does"
        )
    if flop_count.spec.kind == "encoder-decoder":
        notes.append(
            "an encoder-decoder: N holds both stacks, tokens are the decoder's; rules with an attention term are "
            "for one stack and left out"
        )
    return notes


def conventions_data(rules_of_thumb: Sequence[FlopRule]) -> list[dict[str, Any]]:
    """Returns the rules of thumb as plain data. Errors are fractions."""
    return [asdict(rule_of_thumb) for rule_of_thumb in rules_of_thumb]
