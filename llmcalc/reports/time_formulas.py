"""The report of `llmcalc explain --quantity time`: closed forms of the seconds of a node's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import units
from ..sources.preset import Preset
from ..studies.time_formulas import SYMBOL_MEANINGS, TimeFormula
from .document import Column, DisplayedValue, Report, Row, Table, displayed_text, row, without_repetitions
from .summary import headline, model_data
from .time_estimate import duration_text

COLUMNS = (
    Column("node", "node", justify="left", may_wrap=True),
    Column("formula", "formula", justify="left", may_wrap=True),
    Column("seconds", "value", displayed_text),
    Column("repeat", "times", units.exact_text),
)


def report(preset: Preset, formulas: Sequence[TimeFormula], sizes: dict[str, Any]) -> Report:
    """Returns the report of a node's time formulas. sizes: phase, sequences and tokens of the evaluation."""
    json_document = {
        "model": model_data(preset),
        "node": sizes["node"],
        "setting": {symbol_name: symbol_value for symbol_name, symbol_value in sizes.items() if symbol_name != "node"},
        "formulas": [_formula_record(formula) for formula in formulas],
        "symbols": {
            used_symbol: {"field": SYMBOL_MEANINGS[used_symbol], "value": None}
            for used_symbol in _used_symbols(formulas)
        },
    }
    total_seconds = sum(formula.seconds * formula.repeat_count for formula in formulas)
    run_title = f"{sizes['phase']} of {sizes['batch']} x {sizes['seq']:,} tokens on one {sizes['hardware']}"
    legend_text = "; ".join(f"{symbol_name}: {SYMBOL_MEANINGS[symbol_name]}" for symbol_name in _used_symbols(formulas))
    notes = without_repetitions(
        [
            legend_text,
            *(f"source: {formula.source}" for formula in formulas if formula.source),
            "in 16 bits; no messages",
        ]
    )
    answer_text = f"{duration_text(total_seconds)} of kernels"
    table_rows = [_formula_row(formula) for formula in formulas]
    table = Table(preset.display, COLUMNS, table_rows, f"{run_title}; {headline(preset.model)}", notes, answer_text)
    return Report(json_document, [table]).with_target(preset.target)


def _used_symbols(time_formulas: Sequence[TimeFormula]) -> list[str]:
    """Returns the symbols that occur in the formulas."""
    formula_words = {
        word for formula in time_formulas for word in formula.symbolic_text.replace("(", " ").replace(")", " ").split()
    }
    return [
        symbol_name
        for symbol_name in SYMBOL_MEANINGS
        if symbol_name in {formula_word.rstrip(",") for formula_word in formula_words}
    ]


def _formula_row(formula: TimeFormula) -> Row:
    kernel_text = f"{formula.kernel}, backward" if formula.backward else formula.kernel
    formula_text = f"{formula.symbolic_text} = {formula.substituted_text}"
    return row(
        f"{formula.path}: {kernel_text}",
        formula_text,
        DisplayedValue(formula.seconds, duration_text(formula.seconds)),
        formula.repeat_count,
    )


def _formula_record(formula: TimeFormula) -> dict[str, Any]:
    return {
        "node": formula.path,
        "path": formula.path,
        "quantity": "time",
        "kernel": formula.kernel,
        "backward": formula.backward,
        "symbolic": formula.symbolic_text,
        "substituted": formula.substituted_text,
        "value": formula.seconds,
        "unit": "s",
        "repeat": formula.repeat_count,
        "source": formula.source,
    }
