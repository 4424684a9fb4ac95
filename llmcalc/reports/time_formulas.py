"""The report of `llmcalc explain --quantity time`: closed forms of the seconds of a node's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import units
from ..sources.preset import Preset
from ..studies.time_formulas import SYMBOLS, TimeFormula
from .document import Column, DisplayedValue, Report, Row, Table, text_of_cell, without_repetitions
from .seconds import duration
from .summary import headline, model_data

COLUMNS = (
    Column("node", "node", justify="left", wrap=True),
    Column("formula", "formula", justify="left", wrap=True),
    Column("seconds", "value", text_of_cell),
    Column("repeat", "times", units.exact),
)


def report(preset: Preset, formulas: Sequence[TimeFormula], setting: dict[str, Any]) -> Report:
    """Returns the report of the formulas. setting: phase, sequences and tokens of the evaluation."""
    document = {
        "model": model_data(preset),
        "node": setting["node"],
        "setting": {
            symbol_name: symbol_value for symbol_name, symbol_value in setting.items() if symbol_name != "node"
        },
        "formulas": [_formula_record(formula) for formula in formulas],
        "symbols": {
            symbol_name: {"field": SYMBOLS[symbol_name], "value": None} for symbol_name in _used_symbols(formulas)
        },
    }
    total_seconds = sum(formula.seconds * formula.repeat for formula in formulas)
    run_title = f"{setting['phase']} of {setting['batch']} x {setting['seq']:,} tokens on one {setting['hardware']}"
    legend = "; ".join(f"{symbol_name}: {SYMBOLS[symbol_name]}" for symbol_name in _used_symbols(formulas))
    notes = without_repetitions(
        [legend, *(f"source: {formula.source}" for formula in formulas if formula.source), "in 16 bits; no messages"]
    )
    answer_text = f"{duration(total_seconds)} of kernels"
    rows = [_formula_row(formula) for formula in formulas]
    table = Table(preset.display, COLUMNS, rows, f"{run_title}; {headline(preset.model)}", notes, answer_text)
    return Report(document, [table]).for_target(preset.target)


def _used_symbols(formulas: Sequence[TimeFormula]) -> list[str]:
    """Returns the symbols that occur in the formulas."""
    words = {word for formula in formulas for word in formula.symbolic.replace("(", " ").replace(")", " ").split()}
    return [symbol_name for symbol_name in SYMBOLS if symbol_name in {word.rstrip(",") for word in words}]


def _formula_row(formula: TimeFormula) -> Row:
    direction = f"{formula.kernel}, backward" if formula.backward else formula.kernel
    text = f"{formula.symbolic} = {formula.substituted}"
    return Row(
        [
            f"{formula.path}: {direction}",
            text,
            DisplayedValue(formula.seconds, duration(formula.seconds)),
            formula.repeat,
        ]
    )


def _formula_record(formula: TimeFormula) -> dict[str, Any]:
    return {
        "node": formula.path,
        "path": formula.path,
        "quantity": "time",
        "kernel": formula.kernel,
        "backward": formula.backward,
        "symbolic": formula.symbolic,
        "substituted": formula.substituted,
        "value": formula.seconds,
        "unit": "s",
        "repeat": formula.repeat,
        "source": formula.source,
    }
