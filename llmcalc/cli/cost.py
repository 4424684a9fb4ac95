from __future__ import annotations

import typer

from ..device_memory.settings import Settings, settings_with_shorthands
from ..parallel.layout_request import LayoutRequest
from ..questions.time_and_cost_options import CostOptions
from ..workload.lengths import DEFAULT_TRAINING_TOKENS
from .hardware import AcceleratorOption
from .layout_options import add_layout_options
from .run_options import settings_options
from .setting_options import replace_parameter_by_options, replace_parameter_by_settings
from .shared_options import TableOption, TargetArgument, is_option_typed
from .target_options import OutputOptions, TargetOptions, add_target_options

SEQ_DEFAULT = f"{DEFAULT_TRAINING_TOKENS:,}, or the model's context where it is shorter"


@replace_parameter_by_options("settings", settings_options(seq=SEQ_DEFAULT), settings_with_shorthands)
@add_layout_options
@replace_parameter_by_settings("options", CostOptions)
@add_target_options
def command(
    context: typer.Context,
    target: TargetArgument,
    hardware: AcceleratorOption,
    settings: Settings,
    layout_request: LayoutRequest,
    options: CostOptions,
    table: TableOption = None,
    *,
    target_options: TargetOptions,
    writing_file: OutputOptions,
) -> None:
    """Days, device hours, energy and money of a run, with ranges.
    Of training on --tokens with the fastest layout that fits, or of serving --requests with the cheapest server.
    """
    from ..questions.costs import ask_cost
    from ..questions.runs import RunQuestion
    from ..sources.preset import target_in_errors

    preset = target_options.load(target)
    run_question = RunQuestion(preset=preset, settings=settings, layout=layout_request).on_accelerators([hardware])
    with target_in_errors(run_question.preset):
        cost_answer = ask_cost(run_question, options, lambda name: is_option_typed(context, name))
    writing_file.show_answer(cost_answer, table, run_question.preset)
