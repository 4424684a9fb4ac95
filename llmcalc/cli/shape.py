from __future__ import annotations

from typing import Annotated, Any

import typer

from ..costs.context_length import usual_sequence
from ..errors import InputError
from ..reports.shape import report
from ..studies.shape import budget_for, family, proportion, standard, study
from ..units import parse_count
from .options import (
    AllowUnknown,
    CacheDtype,
    FormatOption,
    NotesOption,
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
    dtype: CacheDtype = "bf16",
    overrides: Overrides = None,
    allow_unknown: AllowUnknown = False,
    notes: NotesOption = False,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Depth against width: other shapes of the same budget. Their ratios are those of a model."""
    given = {
        "head_dim": ("--head-dim", head_dim),
        "num_key_value_heads": ("--kv-ratio", kv_ratio),
        "intermediate_size": ("--ffn-ratio", ffn_ratio),
        "vocab_size": ("--vocab", vocab),
        "tie_word_embeddings": ("--tie" if tie else "--no-tie", tie),
    }
    _refuse_contradictions(overrides or [], given, target is None)
    allowed = _count(parameters, "--params"), _count(train, "--flops"), _count(tokens, "--tokens")
    preset = load_one(standard(*allowed) if target is None else target, overrides, None, allow_unknown)
    own = None if target is None else preset.model
    length = usual_sequence(preset.model) if seq is None else seq
    with about(None if target is None else preset):
        members = family(
            preset.model,
            head_dim,
            proportion(kv_ratio, "--kv-ratio"),
            proportion(ffn_ratio, "--ffn-ratio"),
            _count(vocab, "--vocab"),
            tie,
        )
        budget = budget_for(own, *allowed, length)
        found = study(members, budget, own, rows, tolerance, length, dtype)
    show(report(found, preset, own is not None, literature, flat=fmt == "csv"), fmt, output, notes or literature)


def _count(text: str | None, what: str) -> int | None:
    return None if text is None else parse_count(text, what)


def _refuse_contradictions(overrides: list[str], given: dict[str, tuple[str, Any]], no_target: bool) -> None:
    """Raises `InputError` where --set and an option set the same size, or --set a size that a study chooses.

    given: the option that sets a field, and its value, by the field's name.
    """
    for override in overrides:
        field = override.partition("=")[0].strip().rpartition(".")[2]
        option, value = given.get(field, ("", None))
        if value is not None:
            raise InputError(f"{option} and --set {override.strip()}: both set {field}; expected one of them")
        if no_target and field in ("hidden_size", "num_hidden_layers"):
            raise InputError(
                f"--set {override.strip()}: without a TARGET, shape chooses hidden_size and num_hidden_layers from "
                "the budget; expected other fields, or a TARGET"
            )
