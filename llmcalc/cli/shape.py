from __future__ import annotations

from typing import Annotated

import typer

from .options import AllowUnknown, CacheDtype, OfflineOption, Overrides, Seq, TargetOrNone
from .target_options import OutputOptions, TargetOptions, takes_target


@takes_target
def command(
    target: TargetOrNone = None,
    params: Annotated[
        str | None, typer.Option("--params", metavar="N", help="Budget of parameters, such as 8B.", show_default=False)
    ] = None,
    flops: Annotated[
        str | None,
        typer.Option("--flops", metavar="C", help="Budget of training FLOPs, such as 1e24.", show_default=False),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="D", help="Tokens trained on, with --flops.", show_default=False)
    ] = None,
    ffn_ratio: Annotated[
        str | None, typer.Option("--ffn-ratio", metavar="R", help="d_ff/h, such as 3.5 or 8/3.", show_default=False)
    ] = None,
    head_dim: Annotated[
        int | None, typer.Option("--head-dim", metavar="N", min=2, max=4096, help="Size of a head.", show_default=False)
    ] = None,
    kv_ratio: Annotated[
        str | None,
        typer.Option("--kv-ratio", metavar="R", help="Key/value heads over heads, such as 1/8.", show_default=False),
    ] = None,
    vocab: Annotated[
        str | None, typer.Option("--vocab", metavar="V", help="Vocabulary size of every shape.", show_default=False)
    ] = None,
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
    seq: Seq = None,
    kv_dtype: CacheDtype = "bf16",
    overrides: Overrides = None,
    allow_unknown: AllowUnknown = False,
    offline: OfflineOption = False,
    *,
    output_options: OutputOptions,
) -> None:
    """Depth against width: other shapes of the same budget. Their ratios are those of a model."""
    from ..questions.comparisons import ShapeQuestion

    question = ShapeQuestion(
        params, flops, tokens, ffn_ratio, head_dim, kv_ratio, vocab, tie, rows, tolerance, seq, kv_dtype
    )
    target_options = TargetOptions(overrides, None, allow_unknown)
    answer = question.answer(
        target, target_options.load, overrides or (), literature=literature, is_flat=output_options.fmt == "csv"
    )
    output_options.show(answer.report(), notes=literature)
