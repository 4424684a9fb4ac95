from __future__ import annotations

from typing import Annotated

import typer

from ..errors import InputError
from ..optional import included_part_names
from ..parallel.counted_rank import NO_RANK_OPTIONS, RankRequest
from ..reports.document import join_reports
from .layout_options import add_rank_options
from .shared_options import DraftOption, TableOption, TargetsArgument, WithMtpOption, WithTowersOption
from .target_options import OutputOptions, TargetOptions, add_target_options


@add_rank_options
@add_target_options
def command(
    targets: TargetsArgument,
    with_mtp: WithMtpOption = False,
    with_towers: WithTowersOption = False,
    draft: DraftOption = None,
    rank_request: RankRequest = NO_RANK_OPTIONS,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Count by instantiating its transformers class on the meta device (unsupported model types).",
        ),
    ] = False,
    table: TableOption = None,
    *,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """Parameters by component: total, active, embedding.
    For a checkpoint (.safetensors, .gguf): the tensors in its header.
    """
    from ..questions.counts import ParamsQuestion, params_of_file
    from ..sources.preset import target_in_errors

    included_parts = included_part_names(with_mtp, with_towers)
    params_question = ParamsQuestion(included_parts, rank_request, target_options.load_draft(draft))
    reports = []
    for target in targets:
        file_params = params_of_file(
            target,
            measure,
            has_changed_model=target_options.changes_model or bool(included_parts),
            rank_request=rank_request,
        )
        if file_params is not None and draft is not None:
            raise InputError(f"--draft: {target} is counted as it is; expected a model")
        if file_params is not None:
            reports.append(file_params.report())
            continue
        preset = target_options.load(target, included_parts)
        with target_in_errors(preset):
            reports.append(params_question.answer(preset).report())
    output_options.show(join_reports(reports), table)
