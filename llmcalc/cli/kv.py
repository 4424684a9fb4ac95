from __future__ import annotations

from typing import Annotated

import typer

from ..errors import InputError
from ..parallel.counted_rank import NO_RANK_OPTIONS, RankRequest
from ..reports.document import join_reports
from ..workload.inference import batch_of_users
from ..workload.inputs import NO_INPUTS, Inputs
from ..workload.lengths import DEFAULT_TOKENS, LARGEST_DEFAULT_CONTEXT
from .engine_options import EngineCommand, EngineOption, engine_flags
from .hardware import accelerator_option
from .layout_options import add_rank_options
from .setting_options import add_input_options
from .shared_options import (
    BatchOption,
    CacheDtypeOption,
    DraftOption,
    SourceOption,
    TableOption,
    TargetsArgument,
    UsersOption,
    length_option,
    value_option,
)
from .target_options import OutputOptions, TargetOptions, add_target_options

SEQ_HELP = (
    f"Tokens of each sequence; the context that the model was made for if not given, at most "
    f"{LARGEST_DEFAULT_CONTEXT:,}, and {DEFAULT_TOKENS:,} where it states none."
)


COMMAND = EngineCommand


@add_input_options
@add_rank_options
@add_target_options
def command(
    context: typer.Context,
    targets: TargetsArgument,
    batch: BatchOption = None,
    users: UsersOption = None,
    seq: Annotated[int | None, length_option("--seq", "-s", help=SEQ_HELP)] = None,
    source: SourceOption = None,
    kv_dtype: CacheDtypeOption = "bf16",
    draft: DraftOption = None,
    inputs: Inputs = NO_INPUTS,
    rank_request: RankRequest = NO_RANK_OPTIONS,
    engine: EngineOption = None,
    hardware: Annotated[str | None, accelerator_option(" For --engine.")] = None,
    quantize: Annotated[
        str | None, value_option("--quantize", "SCHEME", "For --engine: scheme of the weights; default as published.")
    ] = None,
    table: TableOption = None,
    *,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """KV cache and recurrent state by layer type.
    Then with other kinds of attention, and as the context grows.
    """
    from ..questions.counts import SCHEME_WITHOUT_ENGINE_ERROR, CacheQuestion
    from ..sources.preset import target_in_errors

    if engine:
        if inputs.option:
            raise InputError(f"{inputs.option}: an engine's cache is for any prompts; expected no {inputs.option}")
        from ..questions.engines import EngineQuestion, ask_engine_cache, ask_servers
        from ..reports.answer import ReportedAnswer

        def ask_named(engine_question: EngineQuestion) -> ReportedAnswer:
            with target_in_errors(engine_question.preset):
                return ask_engine_cache(engine_question)

        flag_values = engine_flags(context)
        engine_questions = [
            EngineQuestion(target_options.load(target), tuple(engine), flag_values, hardware, quantize)
            for target in targets
        ]
        output_options.show_answer(ask_servers(engine_questions, ask_named), table)
        return
    if hardware is not None:
        raise InputError("--hardware: only applies to the cache of an engine; add --engine, such as --engine vllm")
    if quantize is not None:
        raise InputError(SCHEME_WITHOUT_ENGINE_ERROR)
    reports = []
    sequence_count = batch_of_users(batch, users, "decode") or 1
    cache_question = CacheQuestion(
        sequence_count, seq, kv_dtype, source, rank_request, target_options.load_draft(draft), inputs
    )
    for preset in [target_options.load(target) for target in targets]:
        with target_in_errors(preset):
            reports.append(cache_question.answer(preset).report())
    output_options.show(join_reports(reports), table)
