from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import units
from ..device_memory.settings import Settings
from ..errors import InputError
from ..frameworks.launch.file_kinds import launch_file_titles
from ..optional import included_part_names
from ..parallel.layout_request import LayoutRequest
from .engine_options import EngineCommand, EngineOption, ReceiptOption, print_server_answers, require_engine
from .hardware import complete_name
from .layout_options import add_layout_options
from .output import store_remark
from .run_options import CublasWorkspaceOption, add_settings_options
from .shared_options import (
    DraftOption,
    OptionalTargetArgument,
    TableOption,
    WithMtpOption,
    WithTowersOption,
    is_option_typed,
    value_option,
)
from .target_options import OutputOptions, TargetOptions, add_target_options

HARDWARE_HELP = (
    "Accelerators on which it should fit. A name (h100, m4-max-64gb, 2x3090), a memory size (24GiB) or a .toml file; "
    "repeatable. By default common ones are listed. Exit code 1 if it fits on none of those given."
)


COMMAND = EngineCommand


@add_settings_options
@add_layout_options
@add_target_options
def command(
    context: typer.Context,
    settings: Settings,
    layout_request: LayoutRequest,
    target: OptionalTargetArgument = None,
    launch: Annotated[
        Path | None,
        value_option(
            "--launch",
            "FILE",
            "The file that starts a run. Or 'NAME=VALUE FILE ARGUMENTS'. It defines the model, or the settings "
            f"with which TARGET is trained. Files that are read: {launch_file_titles()}. Or a file that starts servers "
            "of engines: a script, a compose file, a manifest of Kubernetes, a Modelfile.",
            panel="What runs",
        ),
    ] = None,
    with_mtp: WithMtpOption = False,
    with_towers: WithTowersOption = False,
    draft: DraftOption = None,
    hardware: Annotated[
        list[str] | None, value_option("--hardware", "NAME", HARDWARE_HELP, panel="What runs", completion=complete_name)
    ] = None,
    engine: EngineOption = None,
    receipt: ReceiptOption = None,
    cublas_workspace: CublasWorkspaceOption = None,
    table: TableOption = None,
    *,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """Memory of a device, by kind and over time.
    The accelerators on which it fits; of many devices, every rank that differs.
    """
    from ..questions.runs import RunOptions, ask_memory, build_run_question
    from ..sources.preset import target_in_errors

    require_engine(receipt, engine, launch)
    starts_servers = False
    if launch is not None:
        from ..frameworks.server_files.read import starts_any_server

        starts_servers = starts_any_server(launch)
    if engine or starts_servers:
        from ..questions.engines import ONE_ACCELERATOR_ERROR, ask_engine_memory

        if len(hardware or ()) > 1:
            raise InputError(ONE_ACCELERATOR_ERROR)
        print_server_answers(
            ask_engine_memory, context, hardware[0] if hardware else None, target_options, output_options
        )
        return
    included_parts = included_part_names(with_mtp, with_towers)
    run_question = build_run_question(
        target,
        lambda name: target_options.load(name, included_parts),
        RunOptions(
            settings=settings,
            layout=layout_request,
            include=included_parts,
            workspace=cublas_workspace,
        ).on_accelerators(hardware or ()),
        launch_file=launch,
        is_setting_given=lambda name: is_option_typed(context, name),
        allow_unknown=target_options.allow_unknown,
        set=target_options.overrides,
        head=target_options.head,
        with_mtp=with_mtp,
        with_towers=with_towers,
    )
    with target_in_errors(run_question.preset):
        memory_answer = ask_memory(run_question, target_options.load_draft(draft))
        report = memory_answer.report()
    output_options.show(report, table)
    for memory_fit in memory_answer.fits if memory_answer.accelerators else ():
        if memory_fit.verdict == "tight":
            memory_kind = "nominal" if memory_fit.has_nominal_capacity else "usable"
            store_remark(
                f"warning: {memory_fit.hardware.name}: tight: {units.percent(memory_fit.used_fraction)} of its "
                f"{memory_kind} "
                "memory with the estimated fragmentation; it fits only without"
            )
    if not memory_answer.ok:
        raise typer.Exit(1)
