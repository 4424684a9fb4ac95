from __future__ import annotations

from typing import Annotated

import typer

from ..costs.limits import USUAL, usual_sequence
from ..errors import InputError
from ..studies.shape import Family, budget_for, family, proportion, study
from ..units import parse_count
from ..views.shape import report
from .options import (
    CacheDtype,
    FormatOption,
    OfflineOption,
    Output,
    Overrides,
    Seq,
    TargetOrNone,
    about,
    load_one,
    show,
)


def command(
    target: TargetOrNone = None,
    parameters: Annotated[
        str | None, typer.Option("--params", metavar="N", help="Budget of parameters, such as 8B.", show_default=False)
    ] = None,
    train: Annotated[
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
        str | None, typer.Option("--vocab", metavar="V", help="Vocabulary size.", show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=1, max=256, help="Shapes to show.")] = 12,
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="PERCENT", min=0.001, max=50, help="How far off the budget.")
    ] = 2.0,
    seq: Seq = None,
    dtype: CacheDtype = "bf16",
    overrides: Overrides = None,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Depth against width: other shapes of the same budget. And beside each what published studies say of it."""
    if overrides and target is None:
        raise InputError(
            "--set: there is no model to override; expected a TARGET, or --ffn-ratio, --head-dim, --kv-ratio, --vocab"
        )
    preset = None if target is None else load_one(target, overrides)
    own = None if preset is None else preset.model
    length = (USUAL if own is None else usual_sequence(own)) if seq is None else seq
    with about(preset):
        members: Family = family(
            own,
            head_dim,
            proportion(kv_ratio, "--kv-ratio"),
            proportion(ffn_ratio, "--ffn-ratio"),
            _count(vocab, "--vocab"),
        )
        budget = budget_for(
            own, _count(parameters, "--params"), _count(train, "--flops"), _count(tokens, "--tokens"), length
        )
        found = study(members, budget, own, rows, tolerance, length, dtype)
    show(report(found, preset, flat=fmt == "csv"), fmt, output)


def _count(text: str | None, what: str) -> int | None:
    return None if text is None else parse_count(text, what)
