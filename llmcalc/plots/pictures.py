"""The functions that draw the pictures of `llmcalc plot`, from checked settings and models.

Each function raises `MissingExtra` without matplotlib, before anything is computed, and returns a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..costs.context_length import default_sequence_tokens
from ..errors import InputError, suggest
from ..sources.preset import Preset, target_in_errors
from ..sources.presets import find_preset, model_names
from ..studies.model_selection import EVERY_MODEL, ModelFilter
from .figure import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..parallel.layout import Layout
    from ..parallel.schedules import Timetable
    from ..questions.runs import RunQuestion
    from ..reports.answer import ReportedAnswer
    from ..workload.workload import Phase

Picture: TypeAlias = Literal[
    "memory", "schedule", "time", "serve", "roofline", "params", "kv", "flops", "shape", "aspect"
]

MAX_PASSES = 100_000
"""Largest number of forward passes in a drawn schedule, which takes seconds."""


def params_picture(models: Sequence[Preset], included_parts: frozenset[str] = frozenset()) -> Figure:
    """Draws the parameters of models: a bar per model, by component."""
    require_matplotlib()
    from ..costs.params import params
    from .params import plot_params

    return plot_params([(named_model.display, params(named_model.model, included_parts)) for named_model in models])


def kv_picture(models: Sequence[Preset], kv_dtype: str = "bfloat16") -> Figure:
    """Draws the KV cache of one sequence, in bytes, against the tokens of the sequence."""
    require_matplotlib()
    from ..costs.cache import kv
    from .context import plot_cache

    for named_model in models:
        with target_in_errors(named_model):
            kv(named_model.model, format_name=kv_dtype)
    return plot_cache(models, kv_dtype)


def flops_picture(models: Sequence[Preset]) -> Figure:
    """Draws the FLOPs of decoding one token against its context length."""
    require_matplotlib()
    from .context import plot_flops

    return plot_flops(models)


def shape_picture(
    models: Sequence[Preset], shape_count: int = 24, seq: int | None = None, kv_dtype: str = "bfloat16"
) -> Figure:
    """Draws shapes with the same number of parameters, deep to wide. shape_count: shapes per model."""
    require_matplotlib()
    from ..studies.shape import budget_for, build_family, find_shapes
    from .shapes import plot_shapes

    named_studies = []
    for named_model in models:
        with target_in_errors(named_model):
            sequence_tokens = default_sequence_tokens(named_model.model) if seq is None else seq
            budget = budget_for(named_model.model, seq=sequence_tokens)
            shape_family = build_family(named_model.model)
            model_shapes = find_shapes(
                shape_family, budget, named_model.model, shape_count, seq=sequence_tokens, dtype=kv_dtype
            )
            named_studies.append((named_model.display, model_shapes))
    return plot_shapes(named_studies)


def aspect_ratio_picture(model_filter: ModelFilter = EVERY_MODEL, labelled_names: Sequence[str] = ()) -> Figure:
    """Draws h/L and d_ff/h of presets, by size and year. labelled_names: names or aliases of the presets to label.

    Raises `InputError` for a label that is no preset, or none of those drawn.
    """
    require_matplotlib()
    from ..questions.listings import select_presets
    from ..studies.compare import quantities_of_model
    from .shapes import plot_aspect_ratios as plot_aspect

    preset_names = [_preset_of_label(preset_name) for preset_name in labelled_names]
    selected_presets = select_presets(model_filter)
    for preset_name in preset_names:
        if preset_name not in {preset.name for preset, _ in selected_presets}:
            raise InputError(
                f"--label {preset_name}: is not among the models drawn; expected one that the filters take"
            )
    models = [
        (preset, quantities_of_model(preset.model, default_sequence_tokens(preset.model), "bfloat16", parameter_count))
        for preset, parameter_count in selected_presets
    ]
    return plot_aspect(models, labelled_names=preset_names)


def _preset_of_label(name_or_alias: str) -> str:
    """Returns the name of the preset with this name or alias. Raises `InputError` for an unknown name."""
    preset = find_preset(name_or_alias)
    if preset is None:
        raise InputError(
            f"--label {name_or_alias}: is no preset{suggest(name_or_alias, list(model_names()))}; expected one of "
            "llmcalc presets"
        )
    return preset


def memory_picture(run_question: RunQuestion) -> Figure:
    """Draws the memory of one device by phase, with the capacity of named accelerators."""
    require_matplotlib()
    from .memory import plot_memory

    with target_in_errors(run_question.preset):
        run_memory = run_question.with_defaults_of_tag().memory_on_one_device()
        accelerator_fits = [run_memory.device.fit_on(hardware) for hardware in run_question.accelerators]
        return plot_memory(run_question.preset.display, run_memory, accelerator_fits)


def schedule_timetable(layout: Layout, num_microbatches: int) -> Timetable:
    """Returns the timetable of a pipeline. Raises `InputError` for more passes than can be drawn."""
    from ..parallel.schedules import pipeline, timetable

    max_microbatches = MAX_PASSES // (layout.pp * layout.vpp)
    if num_microbatches > max_microbatches:
        expected_limit = f"at most {max_microbatches}" if max_microbatches else "fewer stages"
        raise InputError(
            f"--num-microbatches: {num_microbatches} on {layout.pp * layout.vpp} stages are more than can be drawn; "
            f"expected {expected_limit}"
        )
    return timetable(pipeline(layout, num_microbatches))


def schedule_picture(layout: Layout, timetable: Timetable) -> Figure:
    """Draws the timetable of a pipeline schedule."""
    require_matplotlib()
    from .schedule import plot_schedule as picture

    return picture(layout, timetable)


def time_picture(compute_answer: Callable[[], ReportedAnswer], node_depth: int = 3) -> Figure:
    """Draws the time of a run by terms and bounds. compute_answer: returns the answer of `time`.

    node_depth: levels of the model's tree that are drawn.
    """
    require_matplotlib()
    from .breakdown import plot_time

    answer = compute_answer()
    parts_table = answer.report().tables[0]
    return plot_time(parts_table.heading, parts_table.subtitle, answer.result, node_depth)


def roofline_picture(compute_answer: Callable[[Phase], ReportedAnswer], phases: Sequence[Phase]) -> Figure:
    """Draws matrix products under an accelerator's roofline. compute_answer: computes the answer of `time`."""
    require_matplotlib()
    from .roofline import plot_roofline

    answers = [compute_answer(phase) for phase in phases]
    report_tables = [answer.report().tables[0] for answer in answers]
    titled_runs = [(answer.result, table.subtitle) for answer, table in zip(answers, report_tables, strict=True)]
    return plot_roofline(report_tables[0].title, titled_runs)


def roofline_phases(model_decodes: bool, phase: str) -> tuple[Phase, ...]:
    """Returns the phases of a roofline plot: for inference prefill, and decoding if the model decodes.

    model_decodes: whether the model does. Raises `InputError` for a phase that is no single pass of inference.
    """
    if phase == "inference":
        return ("prefill", "decode") if model_decodes else ("prefill",)
    if phase not in ("prefill", "decode"):
        raise InputError(f"--phase {phase}: has no roofline; expected prefill or decode")
    return (phase,)  # type: ignore[return-value]


def serve_picture(compute_answer: Callable[[], ReportedAnswer]) -> Figure:
    """Draws servers under load. compute_answer: computes the answer of `serve`. Raises `InputError` if it has none."""
    require_matplotlib()
    from ..studies.server import LatencyLimits
    from .servers import plot_servers

    answer = compute_answer()
    table = answer.report().tables[0]
    if not answer.result.servers:
        raise InputError(f"{table.heading}: there is nothing to draw; expected more --devices or a shorter request")
    return plot_servers(table.heading, table.subtitle, answer.result, LatencyLimits(**answer.document["limits"]))
