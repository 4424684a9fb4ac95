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


def report(preset: Preset, time_formulas: Sequence[TimeFormula], run_sizes: dict[str, Any]) -> Report:
    """Returns the report of a node's time formulas. run_sizes: phase, sequences and tokens of the evaluation."""
    json_document = {
        "model": model_data(preset),
        "node": run_sizes["node"],
        "setting": {
            symbol_name: symbol_value for symbol_name, symbol_value in run_sizes.items() if symbol_name != "node"
        },
        "formulas": [_formula_record(time_formula) for time_formula in time_formulas],
        "symbols": {
            used_symbol: {"field": SYMBOL_MEANINGS[used_symbol], "value": None}
            for used_symbol in _used_symbols(time_formulas)
        },
    }
    total_seconds = sum(time_formula.seconds * time_formula.repeat_count for time_formula in time_formulas)
    run_title = (
        f"{run_sizes['phase']} of {run_sizes['batch']} x {run_sizes['seq']:,} tokens on one {run_sizes['hardware']}"
    )
    legend_text = "; ".join(
        f"{symbol_name}: {SYMBOL_MEANINGS[symbol_name]}" for symbol_name in _used_symbols(time_formulas)
    )
    notes = without_repetitions(
        [
            legend_text,
            *(f"source: {time_formula.source}" for time_formula in time_formulas if time_formula.source),
            "in 16 bits; no messages",
        ]
    )
    answer_text = f"{duration_text(total_seconds)} of kernels"
    table_rows = [_formula_row(time_formula) for time_formula in time_formulas]
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


def _formula_row(time_formula: TimeFormula) -> Row:
    kernel_text = f"{time_formula.kernel}, backward" if time_formula.backward else time_formula.kernel
    formula_text = f"{time_formula.symbolic_text} = {time_formula.substituted_text}"
    return row(
        f"{time_formula.path}: {kernel_text}",
        formula_text,
        DisplayedValue(time_formula.seconds, duration_text(time_formula.seconds)),
        time_formula.repeat_count,
    )


def _formula_record(time_formula: TimeFormula) -> dict[str, Any]:
    return {
        "node": time_formula.path,
        "path": time_formula.path,
        "quantity": "time",
        "kernel": time_formula.kernel,
        "backward": time_formula.backward,
        "symbolic": time_formula.symbolic_text,
        "substituted": time_formula.substituted_text,
        "value": time_formula.seconds,
        "unit": "s",
        "repeat": time_formula.repeat_count,
        "source": time_formula.source,
    }
