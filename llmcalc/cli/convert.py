from __future__ import annotations

from typing import Annotated

import typer

from ..errors import InputError
from ..questions.listings import ModelFileFormat
from .output import store_remark
from .shared_options import OutputOption, TargetArgument, open_output
from .target_options import TargetOptions, add_target_options


@add_target_options
def command(
    target: TargetArgument,
    to: Annotated[
        ModelFileFormat | None,
        typer.Option(
            "--to",
            help="A native description (toml), or the config.json of a transformers class (hf); if not given, hf where "
            "--output ends in .json, and toml where it ends in .toml or is the terminal.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = None,
    *,
    target_options: TargetOptions,
) -> None:
    """Convert between native descriptions and Hugging Face configs.
    Both give the same counts when they are read back.
    """
    from ..questions.listings import convert_model, missing_rope_scaling_note
    from ..sources.preset import target_in_errors

    file_suffix = "" if output is None else output.suffix.lower()
    if to is None and file_suffix not in ("", ".toml", ".json"):
        raise InputError(f"--output: {output}: no format is known by {file_suffix}; expected .toml or .json, or --to")
    preset = target_options.load(target)
    written_format = to or ("hf" if file_suffix == ".json" else "toml")
    with target_in_errors(preset):
        converted_text = convert_model(preset, written_format)
    if scaling_note := missing_rope_scaling_note(preset, written_format):
        store_remark(f"note: {preset.name}: {scaling_note}")
    with open_output(output) as output_stream:
        output_stream.write(converted_text)
