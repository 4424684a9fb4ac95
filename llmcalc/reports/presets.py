"""The report of `llmcalc presets`: the models that come with llmcalc, with computed and published counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import units
from ..costs.params import ParameterCount
from ..sources.preset import Preset
from .document import Column, Report, Table, row, without_repetitions
from .figure_sources import source_data, source_notes
from .notes import aliases_note
from .params import CONVENTION_NOTE
from .summary import headline

CountedPreset = tuple[Preset, ParameterCount]

BILLION = units.count_scale(10**9)


def _short_model_kind(model_kind: str) -> str:
    return "enc-dec" if model_kind == "encoder-decoder" else model_kind


def _round_difference_text(difference_text: str) -> str:
    """Rounds `−14,848` to `−14.85 K`. Other texts stay unchanged."""
    digit_text = difference_text[1:].replace(",", "")
    return difference_text[0] + units.count(int(digit_text)) if digit_text.isdigit() else difference_text


LIST_COLUMNS = (
    Column("target", "name", justify="left"),
    Column("kind", "kind", justify="left", shorten=_short_model_kind),
    Column("released", "released", justify="left", shorten=lambda date: date[: len("2026-01")]),
    Column("parameters", "total, B", lambda value: f"{value / BILLION.factor:.3f}"),
    Column("active", "active", lambda value: f"{value / BILLION.factor:.3f}"),
    Column("published", "published", shorten=_round_difference_text, is_verdict=True),
)

DETAIL_COLUMNS = (
    Column("quantity", "", justify="left"),
    Column("text", "value"),
    Column("value", "exactly", units.exact_text),
)


def report(counted_presets: Sequence[CountedPreset], has_details: bool) -> Report:
    """Returns the report: one row per model, or one table per model with `has_details`."""
    json_document = {"presets": [preset_data(preset, parameter_count) for preset, parameter_count in counted_presets]}
    return Report(
        json_document,
        [_detail_table(preset, parameter_count) for preset, parameter_count in counted_presets]
        if has_details
        else [_list_table(counted_presets)],
    )


def _list_table(counted_presets: Sequence[CountedPreset]) -> Table:
    table_rows = []
    for preset, parameter_count in counted_presets:
        active_params = None if parameter_count.active == parameter_count.total else parameter_count.active
        table_rows.append(
            row(
                preset.name,
                preset.model.kind,
                preset.released,
                parameter_count.total,
                active_params,
                _published_verdict(preset, parameter_count),
            )
        )
    notes = [
        CONVENTION_NOTE,
        "total, active: billions of parameters; active: parameters used per token, where that is not all of them",
        "published: the total against the exact count of the released weights; ≈ the rounded figure, where no "
        "exact one was published",
        "llmcalc presets NAME shows a model's aliases, sources, settings and assumptions",
    ]
    return Table("Models", LIST_COLUMNS, table_rows, notes=notes)


def _published_verdict(preset: Preset, parameter_count: ParameterCount) -> str:
    """Returns the comparison with the published parameter count as text: `equal`, a difference, or `≈70B`."""
    published_params = preset.published.parameters
    if published_params is None:
        return f"≈{preset.published.nominal}" if preset.published.nominal else ""
    return units.difference(parameter_count.total - published_params)


def _detail_table(preset: Preset, parameter_count: ParameterCount) -> Table:
    published_figures, training = preset.published, preset.training
    table_rows = [row("total parameters", units.count(parameter_count.total), parameter_count.total)]
    if parameter_count.active != parameter_count.total:
        table_rows.append(row("active per token", units.count(parameter_count.active), parameter_count.active))
    for option_name, left_out_params in parameter_count.left_out.items():
        table_rows.append(row(f"not in the total: {option_name}", units.count(left_out_params), left_out_params))
    if published_figures.parameters is not None:
        table_rows.append(
            row("published weights", _published_verdict(preset, parameter_count), published_figures.parameters)
        )
    published_fields = {
        "published figure": published_figures.nominal,
        "published active": published_figures.active,
        "training tokens": published_figures.training_tokens,
    }
    training_settings = training.model_dump(exclude_none=True, exclude={"note"})
    for figure_name, figure_value in {
        "dtype of the weights": preset.dtype,
        **published_fields,
        **training_settings,
    }.items():
        if figure_value is not None:
            table_rows.append(row(figure_name.replace("_", " "), str(figure_value), None))
    notes = [
        aliases_note(preset.aliases),
        f"on the published figure: {published_figures.parameters_note}" if published_figures.parameters_note else "",
        f"training: {training.note}" if training.note else "",
        *(f"assumed: {assumption}" for assumption in preset.assumptions),
        *source_notes(preset.sources),
    ]
    developer_and_date = ", ".join(
        developer_or_date for developer_or_date in (preset.developer, preset.released) if developer_or_date
    )
    model_text = f"{headline(preset.model)} ({developer_and_date})" if developer_and_date else headline(preset.model)
    title = f"{preset.display} [{preset.name}]"
    return Table(title, DETAIL_COLUMNS, table_rows, model_text, without_repetitions(notes), target=preset.name)


def preset_data(preset: Preset, parameter_count: ParameterCount) -> dict[str, Any]:
    """Returns a preset as plain data, without its architecture."""
    return {
        "name": preset.name,
        "title": preset.display,
        "kind": preset.model.kind,
        "aliases": list(preset.aliases),
        "developer": preset.developer,
        "released": preset.released,
        "dtype": preset.dtype,
        "parameters": {
            "total": parameter_count.total,
            "active": parameter_count.active,
            "left_out": parameter_count.left_out,
        },
        "published": preset.published.model_dump(mode="json"),
        "training": preset.training.model_dump(mode="json", exclude_none=True),
        "assumptions": list(preset.assumptions),
        "sources": source_data(preset.sources),
    }
