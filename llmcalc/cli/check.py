from __future__ import annotations

from typing import Annotated

import typer

from .shared_options import TargetArgument
from .target_options import OutputOptions, TargetOptions, add_target_options


@add_target_options
def command(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A .safetensors file, its index, a .gguf file, a folder that holds one, or a hub id (org/name).",
            show_default=False,
        ),
    ],
    target: TargetArgument,
    *,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """Compare the tensors of a checkpoint with a model. Only the header is read.
    Exit code 1 if they differ.
    """
    from ..questions.witnesses import ask_check, read_checkpoint_header
    from ..sources.preset import target_in_errors

    preset = target_options.load(target)
    stored_checkpoint = read_checkpoint_header(checkpoint)
    with target_in_errors(preset):
        check_answer = ask_check(preset, checkpoint, stored_checkpoint)
    output_options.show_answer(check_answer)
