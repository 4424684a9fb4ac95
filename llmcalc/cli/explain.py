from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import typer

from ..costs.explain import explain
from ..costs.formulas import Setting
from ..costs.params import included
from ..views.explain import report
from .options import (
    CacheDtype,
    Format,
    FormatOption,
    HeadOption,
    OfflineOption,
    Output,
    Overrides,
    PairsChoice,
    PairsOption,
    Seq,
    Target,
    WithMtp,
    about,
    load_one,
    show,
)


class Quantity(StrEnum):
    params = "params"
    flops = "flops"
    kv = "kv"
    all = "all"


NodeArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="NODE",
        help="A part, by the end of its path: self_attn, mlp.gate_proj, decoder.layers.cross_attn. The whole "
        "model, if none.",
        show_default=False,
    ),
]


def command(
    target: Target,
    node: NodeArgument = None,
    quantity: Annotated[Quantity, typer.Option("--quantity", "-q", help="Whose formulas.")] = Quantity.all,
    seq: Seq = 2048,
    pairs: PairsOption = PairsChoice.full,
    dtype: CacheDtype = "bf16",
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX, an align* environment a node.")] = False,
    overrides: Overrides = None,
    head: HeadOption = None,
    with_mtp: WithMtp = False,
    fmt: FormatOption = Format.table,
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Formulas in symbols, with numbers in, with their sources. Of the whole model, or of a part of it."""
    preset = load_one(target, overrides, head)
    setting = Setting(seq=seq, pairs=pairs.value, dtype=dtype)
    with about(preset):
        explanation = explain(preset.model, node, quantity.value, setting, included(with_mtp))
    show(report(preset, explanation, latex, records=fmt in (Format.csv, Format.markdown)), fmt, output)
