"""The Python function `plot`: all pictures of `llmcalc plot` as matplotlib figures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .arguments import (
    Model,
    cache_format_of,
    model_filter_of,
    parse_optional_token_count,
    pop_reading_options,
    run_options_of,
    sort_options,
)
from .errors import InputError
from .optional import included_part_names
from .plots import pictures
from .plots.figure import figure_bytes, format_of
from .workload.validation import validate_choice, validate_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .device_memory.settings import MemoryPhase
    from .parallel.layout import Schedule
    from .reports.answer import ReportedAnswer

AnswerFunction: TypeAlias = "Callable[..., ReportedAnswer]"


def draw_picture(
    picture_name: str,
    plotted_models: Sequence[Model],
    output: str | Path | None,
    options: Mapping[str, Any],
    answers_by_picture: Mapping[str, AnswerFunction],
) -> Figure:
    """Draws a picture, and optionally writes it to a file. The arguments are those of `llmcalc.plot`.

    answers_by_picture: the functions of the API whose answers are drawn, by name.
    """
    drawing_functions: dict[str, Callable[..., Figure]] = {
        **DRAWING_FUNCTIONS,
        "time": partial(_draw_time, answers_by_picture["time"]),
        "serve": partial(_draw_serve, answers_by_picture["serve"]),
        "roofline": partial(_draw_roofline, answers_by_picture["time"]),
    }
    draw_function = drawing_functions[validate_choice("PICTURE", picture_name, pictures.Picture)]
    output_path = None if output is None else Path(output)
    if output_path is not None:
        format_of(output_path)
    try:
        inspect.signature(draw_function).bind(*plotted_models, **options)
    except TypeError as error:
        raise InputError(f"plot {picture_name}: {error}") from None
    figure = draw_function(*plotted_models, **options)
    if output_path is not None:
        try:
            output_path.write_bytes(figure_bytes(figure, format_of(output_path)))
        except OSError as error:
            raise InputError(
                f"--output: {output_path}: {error.strerror}; expected a file that can be written"
            ) from None
    return figure


def _read_models(plotted_models: Iterable[Model], read_model: Callable[[Model], Any]) -> list[Any]:
    loaded_models = [read_model(model) for model in plotted_models]
    if not loaded_models:
        raise InputError("missing argument TARGET; expected one or more models")
    return loaded_models


def _draw_params(*models: Model, with_mtp: bool = False, with_towers: bool = False, **options: Any) -> Figure:
    return pictures.params_picture(
        _read_models(models, sort_options(options, _draw_params).read_model), included_part_names(with_mtp, with_towers)
    )


def _draw_kv(*plotted_models: Model, kv_dtype: str = "bf16", **options: Any) -> Figure:
    kv_dtype = options.pop("dtype", kv_dtype)
    return pictures.kv_picture(
        _read_models(plotted_models, sort_options(options, _draw_kv).read_model), cache_format_of(kv_dtype)
    )


def _draw_flops(*plotted_models: Model, **options: Any) -> Figure:
    return pictures.flops_picture(_read_models(plotted_models, sort_options(options, _draw_flops).read_model))


def _draw_shape(
    *plotted_models: Model, rows: int = 24, seq: int | str | None = None, kv_dtype: str = "bf16", **options: Any
) -> Figure:
    kv_dtype = options.pop("dtype", kv_dtype)
    loaded_models = _read_models(plotted_models, sort_options(options, _draw_shape).read_model)
    return pictures.shape_picture(
        loaded_models,
        validate_whole("--rows", rows, 2, 256),
        parse_optional_token_count(seq),
        cache_format_of(kv_dtype),
    )


def _draw_aspect(
    *,
    kind: str | None = None,
    attention: str | None = None,
    moe: bool | None = None,
    min_params: int | str | None = None,
    max_params: int | str | None = None,
    label: str | Sequence[str] = (),
) -> Figure:
    run_labels = [label] if isinstance(label, str) else list(label)
    return pictures.aspect_ratio_picture(model_filter_of(kind, attention, moe, min_params, max_params), run_labels)


def _draw_memory(
    model: Model,
    *,
    phase: MemoryPhase | None = None,
    hardware: str | Iterable[str] | None = None,
    with_mtp: bool = False,
    with_towers: bool = False,
    cublas_workspace: str | None = None,
    **options: Any,
) -> Figure:
    from .questions.runs import RunQuestion

    parsed_options = sort_options(options, _draw_memory, accepts_run=True)
    run_options = run_options_of(
        parsed_options, hardware, phase, included_part_names(with_mtp, with_towers), cublas_workspace
    )
    return pictures.memory_picture(RunQuestion(**vars(run_options), preset=parsed_options.read_model(model)))


def _draw_schedule(*, pp: int, num_microbatches: int, vpp: int = 1, schedule: Schedule = "1f1b") -> Figure:
    from .parallel.layout import Layout, Schedule

    layout = Layout(
        pp=validate_whole("--pp", pp),
        vpp=validate_whole("--vpp", vpp),
        schedule=validate_choice("--schedule", schedule, Schedule),
    )
    timetable = pictures.schedule_timetable(layout, validate_whole("--num-microbatches", num_microbatches))
    return pictures.schedule_picture(layout, timetable)


def _draw_time(time_run: AnswerFunction, model: Model | None = None, *, by_node: int = 3, **options: Any) -> Figure:
    return pictures.time_picture(lambda: time_run(model, **options), validate_whole("--by-node", by_node, 1, 8))


def _draw_roofline(
    compute_answer: AnswerFunction, model: Model, *, phase: MemoryPhase | None = None, **options: Any
) -> Figure:
    reading_options = pop_reading_options(options)
    preset = sort_options(reading_options, _draw_roofline).read_model(model)
    phases = pictures.roofline_phases(not preset.model.model_without_tokens, phase or "inference")
    return pictures.roofline_picture(lambda phase: compute_answer(preset, phase=phase, **options), phases)


def _draw_serve(
    compute_answer: AnswerFunction,
    model: Model,
    *,
    input: int | str | None = None,
    output_tokens: int | str | None = None,
    **options: Any,
) -> Figure:
    return pictures.serve_picture(lambda: compute_answer(model, input=input, output=output_tokens, **options))


DRAWING_FUNCTIONS: Mapping[str, Callable[..., Figure]] = {
    "memory": _draw_memory,
    "schedule": _draw_schedule,
    "params": _draw_params,
    "kv": _draw_kv,
    "flops": _draw_flops,
    "shape": _draw_shape,
    "aspect": _draw_aspect,
}
"""Name of a picture → the function that draws it; pictures of time call a function of the API."""
