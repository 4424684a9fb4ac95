from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from ..costs.limits import usual_sequence
from ..errors import InputError
from ..formulas.explain import Asked, explain
from ..formulas.formulas import Setting
from ..optional import included
from ..views.explain import report
from .options import (
    AllowUnknown,
    ElementDtype,
    FormatOption,
    HeadOption,
    NotesOption,
    OfflineOption,
    Output,
    Overrides,
    PairsOption,
    Seq,
    Target,
    WithMtp,
    about,
    load_one,
    show,
)

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
    quantity: Annotated[Asked, typer.Option("--quantity", "-q", help="Quantity to explain.")] = "all",
    seq: Seq = None,
    pairs: PairsOption = "full",
    dtype: ElementDtype = "bf16",
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX: an align* environment per node.")] = False,
    bibtex: Annotated[bool, typer.Option("--bibtex", help="With --latex: add BibTeX entries of the sources.")] = False,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    with_mtp: WithMtp = False,
    notes: NotesOption = False,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Formulas in symbols and with values, each with its source.
    For the whole model, or for a part of it."""
    if bibtex and not latex:
        raise InputError("--bibtex: adds entries to LaTeX; expected --latex too")
    include = included(with_mtp)
    preset = load_one(target, overrides, head, allow_unknown, include)
    setting = Setting(seq=usual_sequence(preset.model) if seq is None else seq, pairs=pairs, dtype=dtype)
    with about(preset):
        explanation = explain(preset.model, node, quantity, setting, include)
    answer = report(preset, explanation, latex, records=fmt in ("csv", "markdown"), bibtex=bibtex)
    show(answer, fmt, output, notes)
