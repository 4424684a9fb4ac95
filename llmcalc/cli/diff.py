from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..errors import one_line
from ..workload.lengths import LARGEST_DEFAULT_CONTEXT
from .shared_options import CacheDtypeOption, TableOption, TargetsArgument, length_option, value_option
from .target_options import OutputOptions, TargetOptions, add_target_options


@add_target_options
def command(
    targets: TargetsArgument,
    git: Annotated[
        str | None,
        value_option(
            "--git", "REF", "Compare files of a git repository with what they were at this commit, branch or tag."
        ),
    ] = None,
    models_only: Annotated[
        bool,
        typer.Option(
            "--models-only",
            help="With --git: skip files that are no config of a model that llmcalc counts, and list them.",
        ),
    ] = False,
    seq: Annotated[
        int | None,
        length_option(
            "--seq",
            "-s",
            help="Tokens of each sequence; the context that both models were made for, at most "
            f"{LARGEST_DEFAULT_CONTEXT:,}, if not given.",
        ),
    ] = None,
    kv_dtype: CacheDtypeOption = "bf16",
    table: TableOption = None,
    *,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """What changes from one model to another, or since a commit.
    Fields of the spec, parameters, FLOPs, KV cache, memory. Two TARGETs, or with --git any number of files.
    """
    from ..questions.differences import ask_diff, model_pairs_to_compare

    has_overrides = bool(target_options.overrides)
    preset_changes = model_pairs_to_compare(
        targets, target_options.load, git, models_only, target_options.head, target_options.allow_unknown, has_overrides
    )
    diff_answer = ask_diff(preset_changes, seq, kv_dtype)
    for skipped_path, skip_reason in preset_changes.skip_reasons.items():
        print(f"note: skipped {one_line(str(skipped_path))}: {skip_reason}", file=sys.stderr)
    output_options.show_answer(diff_answer, table)
