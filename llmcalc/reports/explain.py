"""The report of `llmcalc explain`: formulas in symbols, the same formulas with numbers, and their values."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .. import units
from ..characters import printable
from ..sources.preset import Preset
from ..symbolic.bibliography import papers
from ..symbolic.explain import Explanation, FormulaSection
from ..symbolic.formulas import QUANTITY_NAMES, Formula, FormulaNode, Quantity
from ..symbolic.symbolic_model import KEYS_LETTER, missing_sympy_error
from .document import Column, Report, Row, Table, row, with_notes_below, without_repetitions
from .expression import LATEX, PLAIN, FormulaStyle, latex_text, write_expression
from .notes import MULTIPLY_ADD, PAIRS_NOTES, cache_per_token_note, identity_experts_note
from .rank_texts import counted_rank_notes, rank_data, rank_text, subtitle_with_rank
from .summary import headline, model_data

if TYPE_CHECKING:
    from ..parallel.rank_model import SelectedRank

LINE_LENGTH = 80
SHORT_LINE_LENGTH = 30
MAX_LINES_WITH_NUMBERS = 4
"""Largest number of lines of a whole model's formula with numbers; JSON has it at any length."""
MAX_LINES_IN_HIDDEN_SIZE = 20
"""Largest number of lines of a whole model's formula in units of the hidden size; JSON has it at any length."""
LATENT_FORMS = (
    "FLOPs per token: MLA expanded, as in every pass but decode; after tokens in a cache, kv_b_proj runs over their "
    "latents once more",
    "FLOPs, absorbed: as decode runs MLA with S keys, each head attending to the latents",
)
"""Notes on the formulas of latent attention in its two forms."""
LENGTH_DEPENDENT_QUANTITIES = frozenset({"flops", "flops_absorbed", "activations"})
"""Names of the quantities that depend on the length of a sequence."""
RECORD_COLUMNS = (
    Column("node", "node", justify="left"),
    Column("quantity", "quantity", justify="left"),
    Column("symbolic", "formula", justify="left"),
    Column("latex", "LaTeX", justify="left"),
    Column("substituted", "with values", justify="left"),
    Column("value", "value", lambda value: units.exact_text(value) if isinstance(value, int) else str(value)),
    Column("unit", "unit", justify="left"),
    Column("source", "source", justify="left"),
)


def report(
    preset: Preset,
    explanation: Explanation,
    as_latex: bool = False,
    as_records: bool = False,
    with_bibtex: bool = False,
    selected_rank: SelectedRank | None = None,
) -> Report:
    """Returns the report of the formulas as data and as tables.

    as_latex: whether the text is LaTeX in place of tables.
    as_records: whether the table has one row per formula, for CSV and Markdown.
    with_bibtex: whether BibTeX entries of the sources are added to LaTeX.
    selected_rank: the rank that is counted; default the whole model.
    """
    record_rows = [
        _formula_record(explanation, formula_node, formula)
        for formula_section in explanation.sections
        for formula_node in formula_section.formula_nodes
        for formula in formula_section.formulas
    ]
    json_document = {
        "model": model_data(preset),
        **rank_data(selected_rank),
        "node": explanation.node,
        "setting": _setting_data(explanation),
        "formulas": record_rows,
        "symbols": _symbol_meanings(explanation),
    }
    warnings = _missing_sympy_notes(explanation)
    if as_records:
        return Report(
            json_document, [_record_table(preset, explanation, record_rows, selected_rank)], warnings=warnings
        ).with_target(preset.target)
    if as_latex:
        return Report(json_document, text=_latex_text(preset, explanation, with_bibtex, selected_rank))
    tables = (_quantity_tables if explanation.node is None else _node_tables)(preset, explanation, selected_rank)
    return Report(json_document, tables, warnings=warnings)


# --- data -------------------------------------------------------------------------------------------------------------


def _setting_data(explanation: Explanation) -> dict[str, Any]:
    formula_setting, training_setting = explanation.formulas.setting, explanation.training
    if training_setting is None:
        return {"keys": formula_setting.seq, "pairs": formula_setting.pairs, "dtype": formula_setting.dtype}
    return {
        "batch": training_setting.batch,
        "seq": formula_setting.seq,
        "dtype": training_setting.dtype,
        "attn_implementation": training_setting.attention,
        "recompute": training_setting.recompute,
    }


def _formula_record(explanation: Explanation, formula_node: FormulaNode, formula: Formula) -> dict[str, Any]:
    return {
        "node": formula_node.name,
        "path": formula_node.path,
        "quantity": formula.quantity,
        **{
            style_key: write_expression(formula.expression, formula_style) if explanation.formulas.has_symbols else None
            for style_key, formula_style in (
                ("symbolic", PLAIN),
                ("latex", LATEX),
                ("substituted", _style_with_numbers(explanation)),
            )
        },
        "in_units_of_h": None if formula.hidden_expression is None else write_expression(formula.hidden_expression),
        "value": _json_number(formula.value),
        "unit": QUANTITY_NAMES[formula.quantity][1],
        "repeat": formula_node.copies,
        "source": formula_node.source,
    }


def _json_number(exact_value: Fraction) -> int | float:
    return exact_value.numerator if exact_value.denominator == 1 else float(exact_value)


def _style_with_numbers(explanation: Explanation, is_latex: bool = False) -> FormulaStyle:
    """Returns a formula style that writes numbers for all symbols except S, the sequence length."""
    meanings = explanation.formulas.meanings.values()
    return FormulaStyle(
        is_latex=is_latex,
        values={
            symbol_meaning.name: symbol_meaning.value
            for symbol_meaning in meanings
            if symbol_meaning.name != KEYS_LETTER
        },
    )


def _symbol_meanings(explanation: Explanation) -> dict[str, dict[str, Any]]:
    """Returns symbol → {field, value}, for the symbols that occur in the formulas."""
    used_symbols: set[Any] = set()
    for formula_section in explanation.sections:
        if explanation.node is None:
            used_symbols |= getattr(formula_section.formula_nodes[0].symbolic_node.repeat, "free_symbols", set())
        for formula in formula_section.formulas:
            for expression in (formula.expression, formula.hidden_expression):
                used_symbols |= getattr(expression, "free_symbols", set())
    return {
        symbol_meaning.name: {"field": symbol_meaning.field, "value": _json_number(Fraction(symbol_meaning.value))}
        for symbol, symbol_meaning in explanation.formulas.meanings.items()
        if symbol in used_symbols
    }


# --- text -------------------------------------------------------------------------------------------------------------


def _node_tables(preset: Preset, explanation: Explanation, selected_rank: SelectedRank | None) -> list[Table]:
    """Returns the tables of formulas, one per distinct module of the model; equal modules share one."""
    tables: list[Table] = []
    for formula_section in explanation.sections:
        node_source, is_first_table = formula_section.formula_nodes[0].source, not tables
        formula_labels = [QUANTITY_NAMES[node_formula.quantity][0] for node_formula in formula_section.formulas]
        line_width = LINE_LENGTH - 4 - max(len(formula_label) for formula_label in (*formula_labels, "in units of h"))
        table_rows: list[Row] = []
        for formula in formula_section.formulas:
            formula_name = QUANTITY_NAMES[formula.quantity][0]
            table_rows += _formula_rows(formula_name, _formula_steps(explanation, formula), line_width)
            if formula.hidden_expression is not None:
                table_rows += _formula_rows("in units of h", [write_expression(formula.hidden_expression)], line_width)
        title = _section_heading(formula_section)
        table_columns = (Column("quantity", "quantity", justify="left"), Column("formula", title, justify="left"))
        notes = [_formula_paths_text(formula_section), f"source: {node_source}" if node_source else ""]
        model_text = subtitle_with_rank(headline(preset.model), selected_rank) if is_first_table else ""
        tables.append(
            Table(
                preset.display if is_first_table else "",
                table_columns,
                table_rows,
                model_text,
                without_repetitions(notes),
            )
        )
    rank_notes = counted_rank_notes(selected_rank)
    return with_notes_below(
        [*tables, *_symbol_legend_tables(explanation)],
        [
            *_missing_sympy_notes(explanation),
            *rank_notes,
            *_training_notes(explanation),
            *_convention_notes(explanation),
        ],
    )


def _quantity_tables(preset: Preset, explanation: Explanation, selected_rank: SelectedRank | None) -> list[Table]:
    """Returns one table per quantity: every component of one layer of each kind, and the model's total."""
    tables: list[Table] = []
    model_section, has_only_values = explanation.sections[-1], not explanation.formulas.has_symbols
    section_names = [_component_text(formula_section) for formula_section in explanation.sections]
    line_width = (
        LINE_LENGTH
        - 4
        - max(
            len("  " * formula_section_of_name.depth + section_name)
            for formula_section_of_name, section_name in zip(explanation.sections, section_names, strict=True)
        )
    )
    for formula in model_section.formulas:
        title = QUANTITY_NAMES[formula.quantity][0]
        table_rows = _component_rows(explanation, formula.quantity, section_names, line_width)
        formula_texts = _formula_steps(explanation, formula)
        if len(formula_texts) > 2 and len(formula_texts[1]) > MAX_LINES_WITH_NUMBERS * line_width:
            del formula_texts[1]
        table_rows += _formula_rows("model", formula_texts, line_width, is_bold=True)
        if (
            formula.hidden_expression is not None
            and len(write_expression(formula.hidden_expression)) <= MAX_LINES_IN_HIDDEN_SIZE * line_width
        ):
            table_rows += _formula_rows(
                "in units of h", [write_expression(formula.hidden_expression)], line_width, is_bold=True
            )
        table_columns = (Column("component", "component", justify="left"), Column("formula", title, justify="left"))
        is_first_table = not tables
        model_text = subtitle_with_rank(headline(preset.model), selected_rank) if is_first_table else ""
        tables.append(Table(preset.display if is_first_table else "", table_columns, table_rows, model_text))
    has_proportions = any(section_formula.hidden_expression is not None for section_formula in model_section.formulas)
    proportion_pairs = explanation.formulas.proportions() if has_proportions else ()
    proportions_text = ", ".join(
        f"{write_expression(numerator)} = {write_expression(denominator)}"
        for numerator, denominator in proportion_pairs
    )
    repeat_text = "× L: repeated L times; the formula is per layer"
    if has_only_values:
        repeat_text = "× 2: repeated twice; the value is per layer"
    notes = [
        *_missing_sympy_notes(explanation),
        repeat_text,
        *counted_rank_notes(selected_rank),
        *_training_notes(explanation),
        f"in units of h: {proportions_text}" if proportions_text else "",
        *_source_notes(explanation),
        *_convention_notes(explanation),
    ]
    return with_notes_below([*tables, *_symbol_legend_tables(explanation)], notes)


def _component_rows(
    explanation: Explanation, quantity: Quantity, section_names: list[str], line_width: int
) -> list[Row]:
    """Returns the rows of the components' formulas for one quantity.

    A layer whose formulas are those of an earlier kind of layer takes one row, which names that kind.
    """
    lacks_symbols = not explanation.formulas.has_symbols
    component_blocks: list[list[tuple[FormulaSection, str, list[str]]]] = []
    for formula_section, section_name in zip(explanation.sections[:-1], section_names, strict=False):
        is_layer_section = formula_section.formula_nodes[0].numeric_node.kind == "layer"
        if is_layer_section or not component_blocks or formula_section.depth <= component_blocks[-1][0][0].depth:
            component_blocks.append([])
        for formula in (
            section_formula for section_formula in formula_section.formulas if section_formula.quantity == quantity
        ):
            formula_text = write_expression(formula.length_expression, FormulaStyle(groups_digits=True))
            if lacks_symbols:
                formula_texts = [formula_text]
            else:
                formula_texts = list(dict.fromkeys((write_expression(formula.expression), formula_text)))
            component_blocks[-1].append(
                (formula_section, section_name, _formula_texts_with_unit(formula_texts, formula))
            )
        if not component_blocks[-1]:
            component_blocks.pop()
    table_rows: list[Row] = []
    first_component_names: dict[tuple[object, ...], str] = {}
    for component_block in component_blocks:
        formula_section, section_name, _ = component_block[0]
        layer_name = section_name.partition(" × ")[0]
        block_contents = tuple(
            (nested_section.depth, nested_name, tuple(cell_texts))
            for nested_section, nested_name, cell_texts in component_block[1:]
        )
        component_key = (
            formula_section.formula_nodes[0].numeric_node.kind,
            tuple(component_block[0][2]),
            block_contents,
        )
        first_component_name = first_component_names.setdefault(component_key, layer_name)
        if formula_section.formula_nodes[0].numeric_node.kind == "layer" and first_component_name != layer_name:
            table_rows += _formula_rows(section_name, [f"as {first_component_name}"], line_width, formula_section.depth)
            continue
        for formula_section, component_name, formula_texts in component_block:
            table_rows += _formula_rows(component_name, formula_texts, line_width, formula_section.depth)
    return table_rows


def _component_text(formula_section: FormulaSection) -> str:
    """Returns a component's name with the symbol for its number of repeats: `layers (moe) × L_moe`."""
    formula_node = formula_section.formula_nodes[0]
    if not formula_node.path_names:
        return "in units of h"
    component_name, node_label, _ = formula_node.path_names[-1]
    displayed_name = f"{component_name} ({node_label})" if node_label else component_name
    repeat_count = formula_node.symbolic_node.repeat
    return displayed_name if type(repeat_count) is int and repeat_count == 1 else f"{displayed_name} × {repeat_count}"


def _formula_steps(explanation: Explanation, formula: Formula) -> list[str]:
    """Returns the steps of a formula: symbols, numbers, value."""
    formula_texts = [
        write_expression(formula.expression),
        write_expression(formula.expression, _style_with_numbers(explanation)),
        write_expression(formula.length_expression, FormulaStyle(groups_digits=True)),
    ]
    seq, exact_value = explanation.formulas.setting.seq, _json_number(formula.value)
    if not explanation.formulas.has_symbols:
        formula_texts = [
            f"{exact_value:,} at {seq:,} tokens"
            if formula.quantity in LENGTH_DEPENDENT_QUANTITIES
            else f"{exact_value:,}"
        ]
    elif formula.length_expression.free_symbols:
        formula_texts.append(f"{exact_value:,} at S = {seq:,}")
    return _formula_texts_with_unit(list(dict.fromkeys(formula_texts)), formula)


def _formula_texts_with_unit(formula_texts: list[str], formula: Formula) -> list[str]:
    """Adds the unit to the last step of a formula, unless the quantity's title contains the unit."""
    quantity_title, unit_text = QUANTITY_NAMES[formula.quantity]
    if not quantity_title.endswith("cache per token") and not quantity_title.startswith(("state", "activations")):
        return formula_texts
    number_text, separator, seq_text = formula_texts[-1].partition(" at ")
    return [*formula_texts[:-1], f"{number_text} {unit_text.partition('/')[0]}{separator}{seq_text}"]


def _formula_rows(
    formula_name: str, formula_texts: list[str], line_width: int, depth: int = 0, is_bold: bool = False
) -> list[Row]:
    """Returns the rows of `name   a = b = c`: one line if it fits, else one line per step."""
    joined_line = " = ".join(formula_texts)
    if len(joined_line) <= line_width:
        lines = [joined_line]
    else:
        lines = [
            formula_line
            for line_index, formula_text in enumerate(formula_texts)
            for formula_line in _break_lines(("= " if line_index else "") + formula_text, line_width)
        ]
    return [
        row(
            formula_name if line_index == 0 else "",
            formula_line,
            depth=depth if line_index == 0 else 0,
            is_bold=is_bold,
        )
        for line_index, formula_line in enumerate(lines)
    ]


def _break_lines(formula_text: str, line_width: int) -> list[str]:
    """Breaks a text before + and − into lines of at most `line_width`. A short bracket stays whole if it fits."""
    lines: list[str] = []
    for formula_term in [
        term_part
        for term_text in _split_formula_terms(formula_text, SHORT_LINE_LENGTH)
        for term_part in ([term_text] if len(term_text) <= line_width - 4 else _split_formula_terms(term_text, 0))
    ]:
        if lines and len(lines[-1]) + 1 + len(formula_term) <= line_width:
            lines[-1] += " " + formula_term
        else:
            lines.append(("    " if lines else "") + formula_term)
    return lines


def _split_formula_terms(formula_text: str, short_term_length: int) -> list[str]:
    """Splits a text before every + and − outside brackets of less than `short_term_length` characters."""
    open_brackets: list[int] = []
    positions_in_brackets: set[int] = set()
    for position, character in enumerate(formula_text):
        if character == "(":
            open_brackets.append(position)
        elif character == ")" and open_brackets and position - open_brackets[-1] < short_term_length:
            positions_in_brackets.update(range(open_brackets.pop(), position))
        elif character == ")" and open_brackets:
            open_brackets.pop()
    matches = re.finditer(r" [+−] ", formula_text)
    term_starts = [match.start() for match in matches if match.start() not in positions_in_brackets]
    return [
        formula_text[term_start:term_end].strip()
        for term_start, term_end in zip([0, *term_starts], [*term_starts, len(formula_text)], strict=True)
    ]


def _section_heading(formula_section: FormulaSection) -> str:
    """Returns the heading of equal nodes, which is the common end of their paths: `layers.self_attn (one of 32)`."""
    repeat_count = sum(
        formula_node.copies for formula_node in formula_section.formula_nodes if not formula_node.optional_part
    )
    shared_names: list[str] = []
    for name_parts in zip(
        *(reversed(formula_path.name.split(".")) for formula_path in formula_section.formula_nodes), strict=False
    ):
        if len(set(name_parts)) > 1:
            break
        shared_names.insert(0, name_parts[0])
    return (".".join(shared_names) or formula_section.formula_nodes[0].path_names[-1][0]) + (
        f" (one of {repeat_count})" if repeat_count > 1 else ""
    )


def _formula_paths_text(formula_section: FormulaSection) -> str:
    """Returns every path at which a node occurs as text, with the node's total over the model."""
    formula_nodes = formula_section.formula_nodes
    counted_paths = [formula_node for formula_node in formula_nodes if not formula_node.optional_part]
    repeat_count = sum(formula_node.copies for formula_node in counted_paths)
    paths_text = ", ".join(formula_node.path or "model" for formula_node in counted_paths or formula_nodes)
    left_out_paths = (
        ", ".join(formula_path.path for formula_path in formula_nodes if formula_path.optional_part)
        if counted_paths
        else ""
    )
    left_out_text = f"; not counted: {left_out_paths}" if left_out_paths else ""
    if not counted_paths or repeat_count == 1:
        return f"at {paths_text}{left_out_text}"
    model_totals = [
        f"{units.exact_text(formula.value.numerator * repeat_count)} {QUANTITY_NAMES[formula.quantity][1]}"
        for formula in formula_section.formulas
        if formula.quantity in ("params", "activations") and formula.value
    ]
    return f"at {paths_text}" + (f": {model_totals[0]} in total" if model_totals else "") + left_out_text


def _symbol_legend_tables(explanation: Explanation) -> list[Table]:
    """Returns a table with the meaning of each symbol, in a list; an empty list if no symbol occurs."""
    table_columns = (
        Column("symbol", "symbol", justify="left"),
        Column("field", "stands for", justify="left"),
        Column("value", "value", lambda value: f"{value:,}"),
    )
    table_rows = [
        row(symbol_name, symbol_meaning["field"], None if symbol_name == KEYS_LETTER else symbol_meaning["value"])
        for symbol_name, symbol_meaning in _symbol_meanings(explanation).items()
    ]
    return [Table("", table_columns, table_rows, name="symbols")] if table_rows else []


def _source_notes(explanation: Explanation) -> list[str]:
    paths_by_source: dict[str, list[str]] = {}
    for formula_section in explanation.sections:
        for formula_node in formula_section.formula_nodes:
            if formula_node.numeric_node.source and formula_node.path_names:
                paths_by_source.setdefault(formula_node.numeric_node.source, []).append(formula_node.path_names[-1][0])
    source_texts = [
        f"{', '.join(dict.fromkeys(path_names))}: {source_text}" for source_text, path_names in paths_by_source.items()
    ]
    return ["sources: " + "; ".join(source_texts)] if source_texts else []


def _convention_notes(explanation: Explanation) -> list[str]:
    quantities = {formula.quantity for formula_section in explanation.sections for formula in formula_section.formulas}
    formula_setting = explanation.formulas.setting
    notes = []
    if "flops" in quantities:
        notes.append(
            f"FLOPs per token: matrix multiplications of a forward pass, {MULTIPLY_ADD}; "
            f"{PAIRS_NOTES[formula_setting.pairs]}"
        )
    if "flops_absorbed" in quantities:
        notes += LATENT_FORMS
    experts_note = identity_experts_note(explanation.formulas.symbolic.numeric_tree)
    if experts_note and quantities & {"active", "flops"}:
        notes.append(experts_note)
    if "kv" in quantities:
        symbol_meanings = explanation.formulas.meanings.values()
        has_sliding_layers = any(symbol_meaning.field == "sliding_window" for symbol_meaning in symbol_meanings)
        notes.append(
            cache_per_token_note(formula_setting.dtype)
            + ("; a sliding layer holds at most its window" if has_sliding_layers else "")
        )
    return notes


def _missing_sympy_notes(explanation: Explanation) -> list[str]:
    """Returns the hint that formulas are left out if sympy is not installed."""
    return [] if explanation.formulas.has_symbols else [str(missing_sympy_error("values only; a formula in symbols"))]


def _training_notes(explanation: Explanation) -> list[str]:
    """Returns notes about activations and the training settings under which they are counted."""
    training_setting = explanation.training
    if training_setting is None:
        return []
    recompute_text = "" if training_setting.recompute == "none" else f"; --recompute {training_setting.recompute}"
    return [
        *explanation.notes,
        f"activations kept for the backward pass, in {training_setting.dtype}; "
        f"attention: {training_setting.attention}{recompute_text}",
        "each storage counts once, whole, at the first module that saves it; weights and inputs do not count",
        "what an operation saves: tools/autograd/derivatives.yaml of PyTorch 2.13; softmax, norms and loss in float32",
    ]


# --- records and LaTeX ------------------------------------------------------------------------------------------------


def _record_table(
    preset: Preset, explanation: Explanation, record_rows: list[dict[str, Any]], selected_rank: SelectedRank | None
) -> Table:
    cells_by_row = [[record_row[row_cells.key] for row_cells in RECORD_COLUMNS] for record_row in record_rows]
    rows = [Row(row_cells) for row_cells in cells_by_row]
    notes = [*_training_notes(explanation), *_convention_notes(explanation)]
    return Table(preset.display, RECORD_COLUMNS, rows, subtitle_with_rank(headline(preset.model), selected_rank), notes)


def _latex_text(preset: Preset, explanation: Explanation, with_bibtex: bool, selected_rank: SelectedRank | None) -> str:
    r"""Returns an `align*` environment of amsmath per node, with the sources as comments.

    with_bibtex: whether BibTeX entries of the papers are added.
    """
    comment_text = preset.display + ("" if selected_rank is None else f", {rank_text(selected_rank)}")
    latex_lines: list[str] = [_latex_comment(comment_text)]
    sections = explanation.sections
    for formula_section in sections:
        latex_lines.append(
            _latex_comment(", ".join(formula_node.path or "model" for formula_node in formula_section.formula_nodes))
        )
        equation_lines = []
        for formula in formula_section.formulas:
            formula_texts = [
                write_expression(formula.expression, LATEX),
                write_expression(formula.expression, _style_with_numbers(explanation, is_latex=True)),
            ]
            formula_texts.append(
                write_expression(formula.length_expression, FormulaStyle(is_latex=True, groups_digits=True))
            )
            quantity_tex = rf"\text{{{QUANTITY_NAMES[formula.quantity][0]}}}"
            equation_lines += [
                (quantity_tex if step_index == 0 else "") + f" &= {formula_text}"
                for step_index, formula_text in enumerate(dict.fromkeys(formula_texts))
            ]
        latex_lines += [r"\begin{align*}", " \\\\\n".join(equation_lines), r"\end{align*}"]
    meaning_by_symbol = _symbol_meanings(explanation).items()
    legend_lines = [
        rf"{LATEX.write_symbol(symbol)} &= {LATEX.write_number(Fraction(symbol_meaning['value']))} "
        rf"&& \text{{{latex_text(symbol_meaning['field'])}}}"
        for symbol, symbol_meaning in meaning_by_symbol
    ]
    latex_lines += [r"\begin{align*}", " \\\\\n".join(legend_lines), r"\end{align*}"]
    node_sources = list(
        dict.fromkeys(
            formula_node.source for section in sections for formula_node in section.formula_nodes if formula_node.source
        )
    )
    latex_lines += [_latex_comment(f"source: {node_source}") for node_source in node_sources]
    if with_bibtex:
        cited_papers, uncited_sources = papers(node_sources)
        latex_lines += ["", *(cited_paper.bibtex() for cited_paper in cited_papers)]
        latex_lines += [_latex_comment(f"no paper: {node_source}") for node_source in uncited_sources]
    elif node_sources:
        latex_lines.append("% --bibtex adds their entries")
    return "\n".join(latex_lines) + "\n"


def _latex_comment(comment_text: str) -> str:
    """Returns a LaTeX comment. The text is on one line."""
    return f"% {printable(comment_text)}"
