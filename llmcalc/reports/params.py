"""The report of `llmcalc params`: the parameters of a model, by component."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import units
from ..costs.params import ParameterCount, active_params_of, total_params_of
from ..flow.tree import Node, NodePosition
from ..frozen import frozen
from ..optional import OPTIONAL_PARTS
from ..sources.preset import Preset
from ..sources.presets import model_names
from . import bars, palette
from .answer import CountedAnswer
from .bars import TextBar
from .document import Column, Report, Row, Table, row, without_repetitions
from .node_tree import NodeCountsFunction, node_cost_data, tree_data
from .notes import identity_experts_note, relative_error_text, unread_format_notes
from .rank_texts import counted_rank_notes, rank_data, replicated_parameters_text, subtitle_with_rank
from .summary import headline, model_data

if TYPE_CHECKING:
    from ..parallel.rank_model import SelectedRank

CONVENTION_NOTE = "trainable parameters: tied weights are counted once, buffers are not counted"

COLUMNS = (
    Column("component", "component", justify="left"),
    Column("parameters_each", "each", units.exact_text),
    Column("repeat", "×", str),
    Column("parameters", "parameters", units.exact_text),
    Column("share", "share", units.percent),
    Column("bar", "", bars.share_bar, justify="left", is_bar=True),
)


def report(preset: Preset, parameter_count: ParameterCount, selected_rank: SelectedRank | None = None) -> Report:
    """Returns the report of parameters as data and as a table.

    selected_rank: the counted rank; default the whole model.
    """
    total_params = parameter_count.total
    active_params = parameter_count.active
    params_data = {
        "total": total_params,
        "active": active_params,
        "embedding": parameter_count.embedding,
        "non_embedding": parameter_count.non_embedding,
        "by_component": parameter_count.by_component,
        "buffers": parameter_count.buffers,
        "left_out": parameter_count.left_out,
        "published": preset.published.parameters,
    }
    tree_document = tree_data(parameter_count.tree.root_position(), _node_counts_function(parameter_count.include))
    json_document = {
        "model": model_data(preset),
        **rank_data(selected_rank),
        "params": params_data,
        "tree": tree_document,
    }
    if parameter_count.active_at_least != active_params:
        json_document["params"] |= {
            "active_at_least": parameter_count.active_at_least,
            "active_evenly": parameter_count.active_evenly,
        }
    if selected_rank is not None:
        json_document["params"]["copied"] = selected_rank.model.replicated_parameters(parameter_count.include)
    table_rows = _component_rows(parameter_count.tree, total_params, parameter_count.include)
    table_rows.append(row("total", None, None, total_params, 1.0, None, is_bold=True, is_sum=True))
    if active_params != total_params:
        table_rows.append(
            row(
                "active per token",
                None,
                None,
                active_params,
                active_params / total_params,
                None,
                is_bold=True,
                is_sum=True,
            )
        )
    model_text = subtitle_with_rank(headline(preset.model), selected_rank)
    notes = _params_notes(preset, parameter_count, selected_rank)
    table = Table(preset.display, COLUMNS, table_rows, model_text, notes, count_text(parameter_count))
    return Report(json_document, [table]).with_target(preset.target)


def count_text(parameter_count: ParameterCount) -> str:
    """Returns a number of parameters as text: `8.03 B parameters`, `671.03 B parameters, 37.55 B active per token`."""
    active_text = ""
    if parameter_count.active != parameter_count.total:
        active_text = f", {units.count(parameter_count.active)} active per token"
    return f"{units.count(parameter_count.total)} parameters{active_text}"


ComponentRow: TypeAlias = tuple[str, Row]
"""A table row of parameters before its bar is added: (component, row)."""


def _component_rows(node_tree: Node, total_params: int, included_parts: frozenset[str]) -> list[Row]:
    """Returns one table row per component of the model and per sublayer of a layer group. The norms share a row."""
    components_and_rows: list[ComponentRow] = []
    for node_position in node_tree.root_position().children():
        if not node_position.optional_part or node_position.optional_part in included_parts:
            _add_rows(components_and_rows, node_position, total_params, included_parts, 0)
    return _rows_with_bars(components_and_rows)


def _add_rows(
    components_and_rows: list[ComponentRow],
    node_position: NodePosition,
    total_params: int,
    included_parts: frozenset[str],
    depth: int,
) -> None:
    node, params_per_repeat = node_position.node, node_position.cost_per_repeat(total_params_of, included_parts)
    if not params_per_repeat:
        return
    node_name = f"{node.name} ({node.label})" if node.label else node.name
    components_and_rows.append(
        (node_position.kind, _component_row(node_name, params_per_repeat, node_position.copies, total_params, depth))
    )
    child_positions = list(node_position.children())
    if node.kind == "layer" or node.is_stack or node.optional:
        norm_positions = [child_position for child_position in child_positions if child_position.node.kind == "norm"]
        for child_position in child_positions:
            if child_position.node.kind != "norm":
                _add_rows(components_and_rows, child_position, total_params, included_parts, depth + 1)
        if node.kind == "layer" and norm_positions:
            norm_params = sum(norm_position.total(total_params_of) for norm_position in norm_positions)
            if norm_params:
                components_and_rows.append(
                    ("norm", _component_row("norms", norm_params, node_position.copies, total_params, depth + 1))
                )
        else:
            for norm_position in norm_positions:
                _add_rows(components_and_rows, norm_position, total_params, included_parts, depth + 1)
    elif node.kind == "experts":
        for child_position in child_positions:
            _add_rows(components_and_rows, child_position, total_params, included_parts, depth + 1)


def _component_row(row_name: str, params_per_repeat: int, repeat_count: int, total_params: int, depth: int) -> Row:
    return row(
        row_name,
        params_per_repeat,
        repeat_count if repeat_count > 1 else None,
        params_per_repeat * repeat_count,
        params_per_repeat * repeat_count / total_params,
        depth=depth,
    )


def _rows_with_bars(components_and_rows: Sequence[ComponentRow]) -> list[Row]:
    """Adds a bar to each row of one component, proportional to the whole model."""
    table_rows: list[Row] = []
    covered_depth = -1  # the depth of the row above whose bar includes this one; -1 for none
    for row_index, (component_kind, table_row) in enumerate(components_and_rows):
        covered_depth = -1 if table_row.depth <= covered_depth else covered_depth
        later_indices = (
            later_index
            for later_index in range(row_index + 1, len(components_and_rows))
            if components_and_rows[later_index][1].depth <= table_row.depth
        )
        nested_rows = components_and_rows[row_index + 1 : next(later_indices, len(components_and_rows))]
        text_bar = None
        if covered_depth < 0 and all(component == component_kind for component, _ in nested_rows):
            text_bar = TextBar(table_row.cells[-1], palette.COMPONENT_COLOURS.get(component_kind, palette.OTHER_COLOUR))
            covered_depth = table_row.depth
        table_rows.append(table_row._replace(cells=[*table_row.cells, text_bar]))
    return table_rows


def _params_notes(preset: Preset, parameter_count: ParameterCount, selected_rank: SelectedRank | None) -> list[str]:
    if selected_rank is None:
        notes = _published_notes(preset, parameter_count)
    else:
        notes = _rank_notes(preset, parameter_count, selected_rank)
    notes[:0] = unread_format_notes(preset)
    for option_name, left_out_params in parameter_count.left_out.items():
        notes.append(
            f"not counted: {option_name}, {units.count(left_out_params)} ({units.exact_text(left_out_params)}); "
            f"{OPTIONAL_PARTS[option_name].option} includes it"
        )
    notes += [f"assumed: {assumption}" for assumption in preset.assumptions]
    approximation_note = "" if selected_rank is not None else rule_of_thumb(preset, parameter_count)
    notes += [CONVENTION_NOTE, approximation_note, identity_experts_note(parameter_count.tree)]
    if parameter_count.active_at_least != parameter_count.active:
        average_text = units.count(parameter_count.active_evenly)
        minimum_text = units.count(parameter_count.active_at_least)
        notes.append(
            f"active per token with identity experts among its own: {average_text} on average if all experts "
            f"are chosen alike, {minimum_text} at least"
        )
    buffer_elements = parameter_count.buffers
    if buffer_elements:
        notes.append(
            f"not counted: {units.exact_text(buffer_elements)} non-trainable buffer elements stored in the checkpoint"
        )
    return without_repetitions(notes)


def _rank_notes(preset: Preset, parameter_count: ParameterCount, selected_rank: SelectedRank) -> list[str]:
    """Returns notes on the counted rank, on the parameters that ranks replicate, and on the whole model."""
    model_total = preset.model.tree().total(total_params_of, include=parameter_count.include)
    spec, rank_chunks = preset.model, selected_rank.model.chunks
    is_tied = (
        spec.tie_word_embeddings and selected_rank.layout.pp > 1 and rank_chunks.has_embedding != rank_chunks.has_head
    )
    return counted_rank_notes(
        selected_rank,
        f"the whole model has {units.exact_text(model_total)} parameters",
        replicated_parameters_text(selected_rank.model.replicated_parameters(parameter_count.include)),
        "the first and the last stage each have the tied embedding" if is_tied else "",
        "active: what a token uses of this rank's experts on average, if all are chosen alike"
        if selected_rank.layout.ep > 1 and parameter_count.active != parameter_count.total
        else "",
    )


def _published_notes(preset: Preset, parameter_count: ParameterCount) -> list[str]:
    """Returns a note that compares the count with the published figure, and the preset's reason for a difference."""
    published_figures, published_note = preset.published, preset.published.parameters_note or ""
    first_reason, other_reasons, _ = published_note.partition("; ")
    if other_reasons and preset.name in model_names():
        published_note = f"{first_reason}; llmcalc presets {preset.name} says more"
    reason_text = f" ({published_note})" if published_note else ""
    if published_figures.parameters is not None:
        parameter_difference = parameter_count.total - published_figures.parameters
        difference_text = units.difference(parameter_difference) + (
            " (the published figure may exclude the optional modules you added)"
            if parameter_difference and parameter_count.include
            else ""
        )
        exact_text = units.exact_text(published_figures.parameters)
        return [f"published {exact_text}: {difference_text}{reason_text if parameter_difference else ''}"]
    if not published_figures.nominal:
        return []
    active_text = f", {published_figures.active} active" if published_figures.active else ""
    return [f"published as {published_figures.nominal}{active_text}; no exact count was published{reason_text}"]


DENSE_DECODER_COMPONENTS = {"embedding", "position", "norm", "attention", "feed_forward", "lm_head"}
"""Components of the models to which the rule of thumb applies."""


def rule_of_thumb(preset: Preset, parameter_count: ParameterCount) -> str:
    """Compares 12Lh² + 2Vh (Kaplan 2020, §2.1) with the exact count; empty unless the model is a dense decoder."""
    spec = preset.model
    if (
        spec.kind != "decoder"
        or spec.from_target
        or not parameter_count.by_component.keys() <= DENSE_DECODER_COMPONENTS
    ):
        return ""
    layer_count, hidden_size = spec.main.num_hidden_layers, spec.hidden_size
    vocabulary_matrices = 1 if spec.tie_word_embeddings else 2
    estimated_params = 12 * layer_count * hidden_size**2 + vocabulary_matrices * spec.vocab_size * hidden_size
    rule_name = "12Lh² + 2Vh" if vocabulary_matrices == 2 else "12Lh² + Vh"
    return (
        f"rule of thumb {rule_name}, for MHA and a non-gated FFN with d_ff = 4h: {units.count(estimated_params)}, "
        f"{relative_error_text(estimated_params / parameter_count.total - 1, 'the exact count')}"
    )


def _node_counts_function(included_parts: frozenset[str]) -> NodeCountsFunction:
    """Returns a function of a node's total and, if fewer, active parameters for the JSON tree."""

    def figures(node_position: NodePosition) -> dict[str, Any]:
        node_data = node_cost_data("params", node_position, total_params_of, included_parts)
        active_params = node_position.total(active_params_of, included_parts)
        return node_data if active_params == node_data["params"] else node_data | {"active": active_params}

    return figures


@frozen(repr=False)
class Params(CountedAnswer, ParameterCount):
    """The parameters of a model, or of one rank of a layout."""

    def report(self) -> Report:
        params_report = report(self.preset, self, self.share)
        if self.draft is None:
            return params_report
        from .draft import with_draft

        return with_draft(params_report, self.draft)
