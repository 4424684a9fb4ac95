from __future__ import annotations

from typing import Annotated

import typer

from .shared_options import (
    AllowUnknownOption,
    CacheDtypeOption,
    OfflineOption,
    OptionalTargetArgument,
    OverridesOption,
    SeqOption,
    value_option,
)
from .target_options import OutputOptions, TargetOptions, add_target_options


@add_target_options
def command(
    target: OptionalTargetArgument = None,
    params: Annotated[str | None, value_option("--params", "N", "Budget of parameters, such as 8B.")] = None,
    flops: Annotated[str | None, value_option("--flops", "C", "Budget of training FLOPs, such as 1e24.")] = None,
    tokens: Annotated[str | None, value_option("--tokens", "D", "Tokens trained on, with --flops.")] = None,
    ffn_ratio: Annotated[str | None, value_option("--ffn-ratio", "R", "d_ff/h, such as 3.5 or 8/3.")] = None,
    head_dim: Annotated[
        int | None, typer.Option("--head-dim", metavar="N", min=2, max=4096, help="Size of a head.", show_default=False)
    ] = None,
    kv_ratio: Annotated[str | None, value_option("--kv-ratio", "R", "Key/value heads over heads, such as 1/8.")] = None,
    vocab: Annotated[str | None, value_option("--vocab", "V", "Vocabulary size of every shape.")] = None,
    tie: Annotated[
        bool | None,
        typer.Option("--tie/--no-tie", help="Whether the head has the embedding's weight.", show_default=False),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=1, max=256, help="Shapes to show.")] = 12,
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="PERCENT", min=0.001, max=50, help="How far off the budget.")
    ] = 2.0,
    literature: Annotated[
        bool, typer.Option("--literature", help="Also print what published studies say about each depth and width.")
    ] = False,
    seq: SeqOption = None,
    kv_dtype: CacheDtypeOption = "bf16",
    overrides: OverridesOption = None,
    allow_unknown: AllowUnknownOption = False,
    offline: OfflineOption = False,
    *,
    output_options: OutputOptions,
) -> None:
    """Depth against width: other shapes of the same budget, with the ratios of a model."""
    from ..questions.comparisons import ShapeQuestion

    shape_question = ShapeQuestion(
        params, flops, tokens, ffn_ratio, head_dim, kv_ratio, vocab, tie, rows, tolerance, seq, kv_dtype
    )
    target_options = TargetOptions(overrides, None, allow_unknown)
    shape_answer = shape_question.answer(
        target, target_options.load, overrides or (), cites_literature=literature, is_flat=output_options.fmt == "csv"
    )
    output_options.show_answer(shape_answer, notes=literature)
