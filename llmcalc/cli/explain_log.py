from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .hardware import accelerator_option
from .shared_options import OptionalTargetArgument, TableOption, value_option
from .target_options import OutputOptions, TargetOptions, add_target_options


@add_target_options
def command(
    log: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A start-up log or an out-of-memory message of an engine or a training program, - for stdin, or the "
            "message itself in quotes.",
            show_default=False,
        ),
    ],
    target: OptionalTargetArgument = None,
    launch: Annotated[
        Path | None,
        value_option("--launch", "FILE", "The file that started the training run, as memory --launch reads it."),
    ] = None,
    engine: Annotated[
        str | None, value_option("--engine", "NAME==VERSION", "The engine's version, if the log does not say it.")
    ] = None,
    hardware: Annotated[str | None, accelerator_option(" Default: that of the log.", takes_count=False)] = None,
    quantize: Annotated[
        str | None, value_option("--quantize", "SCHEME", "The scheme of the weights; default the checkpoint's.")
    ] = None,
    table: TableOption = None,
    *,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """Compare the memory that a log prints with the computed memory.
    Names the term that is off or in the way, and the flag that changes it. Of vLLM, SGLang, TensorRT-LLM, llama.cpp,
    Ollama, torch, Megatron-LM, DeepSpeed, torchtitan and trainers (the Trainer, torchtune, axolotl, LitGPT, ms-swift,
    Unsloth). Exit code 2 if nothing of the log is known.
    """
    from ..questions.logs import LogQuestion, ask_log

    if launch is None:
        preset = target_options.load(target) if target else None
        log_question = LogQuestion(log, preset, engine, hardware, quantize)
    else:
        from ..questions.launched_logs import launched_run

        explained_run = launched_run(
            launch,
            target,
            target_options.load,
            hardware,
            {"--engine": engine, "--quantize": quantize},
            allow_unknown=target_options.allow_unknown,
            set=target_options.overrides,
            head=target_options.head,
        )
        log_question = LogQuestion(log, hardware=hardware, run=explained_run)
    output_options.show_answer(ask_log(log_question), table)
