from __future__ import annotations

from typing import Annotated, Literal

import typer

from ..device_memory.settings import Settings, settings_with_shorthands
from ..optional import included_part_names
from ..parallel.layout_request import LayoutRequest
from ..questions.time_and_cost_options import TIME_ORDER_OPTIONS, TimeOptions
from .hardware import AcceleratorOption
from .layout_options import add_layout_options
from .run_options import CublasWorkspaceOption, settings_options
from .setting_options import replace_parameter_by_options, replace_parameter_by_settings
from .shared_options import (
    TableOption,
    TargetArgument,
    WithMtpOption,
    WithTowersOption,
    is_option_typed,
    length_option,
    value_option,
)
from .target_options import OutputOptions, TargetOptions, add_target_options


@replace_parameter_by_options("settings", settings_options(phase="training"), settings_with_shorthands)
@add_layout_options
@replace_parameter_by_settings("time_options", TimeOptions, TIME_ORDER_OPTIONS)
@add_target_options
def command(
    context: typer.Context,
    target: TargetArgument,
    hardware: AcceleratorOption,
    settings: Settings,
    layout_request: LayoutRequest,
    time_options: TimeOptions,
    global_batch: Annotated[
        int | None,
        length_option(
            "--global-batch",
            help="Sequences per step of all devices; default one micro-batch per device, at most about 4M tokens "
            "(1,024 per device if that is more).",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        length_option(
            "--rows",
            help="Number of best layouts to replay on the allocator and to show; default 5, or 10 with --notes, "
            "--where, --table or another format.",
        ),
    ] = None,
    by: Annotated[
        Literal["time", "memory"] | None,
        typer.Option(
            help="Order of the layouts: time, or headroom, bytes sent and bubble; default time where it can be "
            "estimated.",
            show_default=False,
        ),
    ] = None,
    where: Annotated[
        str | None, value_option("--where", "tp=N,pp=N", "Print the place of a layout with these sizes in the order.")
    ] = None,
    with_mtp: WithMtpOption = False,
    with_towers: WithTowersOption = False,
    cublas_workspace: CublasWorkspaceOption = None,
    table: TableOption = None,
    *,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """Layouts over many devices that fit, the best first.
    Of training; given group sizes apply to all layouts. Exit code 1 if none fits.
    """
    from ..processes import allow_forked_processes
    from ..questions.plans import plan_settings
    from ..questions.runs import RunQuestion
    from ..questions.times import ask_timed_plan
    from ..sources.preset import target_in_errors

    included_parts = included_part_names(with_mtp, with_towers)
    run_question = RunQuestion(
        preset=target_options.load(target, included_parts),
        settings=plan_settings(settings, lambda name: is_option_typed(context, name)),
        layout=layout_request,
        include=included_parts,
        workspace=cublas_workspace,
    ).on_accelerators([hardware])
    with target_in_errors(run_question.preset), allow_forked_processes():
        plan_answer = ask_timed_plan(
            run_question,
            time_options,
            global_batch,
            rows,
            by,
            where,
            lambda name: target_options.load(name, included_parts),
            is_for_screen=table is None and output_options.is_for_screen,
        )
    output_options.show_answer(plan_answer, table, run_question.preset)
