from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..device_memory.settings import Settings
from ..errors import InputError
from ..optional import included_part_names
from ..parallel.layout_request import LayoutRequest
from .engine_options import EngineCommand, EngineOption, ReceiptOption, print_server_answers, require_engine
from .hardware import accelerator_option
from .layout_options import add_layout_options
from .run_options import CublasWorkspaceOption, add_settings_options
from .shared_options import (
    OptionalTargetArgument,
    TableOption,
    WithMtpOption,
    WithTowersOption,
    is_option_typed,
    length_option,
    value_option,
)
from .target_options import OutputOptions, TargetOptions, add_target_options


class COMMAND(EngineCommand):
    """The command `fit`, whose options for users, lengths and devices take precedence over an engine's flags."""

    options_with_engines = ("users", "seq", "devices")


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
            "A file that starts servers of engines: a script, a compose file, a manifest of Kubernetes, a "
            "Modelfile. It names the engine, its flags and the model.",
            panel="What runs",
        ),
    ] = None,
    hardware: Annotated[
        str | None, accelerator_option(" By default common ones are listed, with the fewest of each on which it fits.")
    ] = None,
    global_batch: Annotated[
        int | None,
        length_option(
            "--global-batch",
            help="With --devices: sequences per step of all devices; default one micro-batch per device.",
        ),
    ] = None,
    with_mtp: WithMtpOption = False,
    with_towers: WithTowersOption = False,
    engine: EngineOption = None,
    receipt: ReceiptOption = None,
    cublas_workspace: CublasWorkspaceOption = None,
    table: TableOption = None,
    *,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """Whether a run fits, and changes that make it fit.
    With --devices: the best layout and the fewest devices. Of training with --phase training or an option of training.
    A largest number fits and the next one does not; a larger one may fit again, as bytes of torch do not only grow.
    Exit code 1 if it does not fit.
    """
    from ..questions.fits import ask_fit
    from ..questions.runs import RunQuestion, with_implied_phase
    from ..sources.preset import target_in_errors

    require_engine(receipt, engine, launch)
    if launch is None and not target:
        raise InputError("missing argument TARGET, or --launch FILE with a model in it (llmcalc fit --help explains)")
    if engine or launch is not None:
        from ..questions.engines import ask_engine_fit

        print_server_answers(
            lambda run_question: ask_engine_fit(run_question, settings.batch, settings.seq, layout_request.devices),
            context,
            hardware,
            target_options,
            output_options,
        )
        return
    assert target is not None
    included_parts = included_part_names(with_mtp, with_towers)
    training_option_name = "" if global_batch is None else "--global-batch"
    run_question = RunQuestion(
        preset=target_options.load(target, included_parts),
        settings=with_implied_phase(
            settings, layout_request, lambda name: is_option_typed(context, name), training_option_name
        ),
        layout=layout_request,
        include=included_parts,
        workspace=cublas_workspace,
    ).on_accelerators([] if hardware is None else [hardware])
    with target_in_errors(run_question.preset):
        fit_answer = ask_fit(run_question, global_batch)
    output_options.show_answer(fit_answer, table, run_question.preset)
