from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import typer

from ..costs.context_length import usual_sequence
from ..costs.params import params
from ..errors import InputError
from ..model import ModelSpec
from ..optional import included
from ..reports.explain import report
from ..symbolic.explain import Explanation, explain
from ..symbolic.formulas import Recomputed, Setting, TrainingSetting
from .layout_options import ANY_RANK, AskedRank, takes_rank
from .options import (
    AllowUnknown,
    AttentionImplementationOption,
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
    size,
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


Quantity: TypeAlias = Literal["params", "flops", "kv", "activations", "all"]
"""What can be asked for; `all` is parameters, FLOPs and caches."""


@takes_rank
def command(
    target: Target,
    node: NodeArgument = None,
    quantity: Annotated[
        Quantity,
        typer.Option(
            "--quantity",
            "-q",
            help="Quantity to explain. all: parameters, FLOPs and caches. activations: what a training pass keeps for "
            "its backward pass.",
        ),
    ] = "all",
    seq: Seq = None,
    batch: Annotated[
        int | None, size("--batch", "-b", text="Sequences at once (activations only); 1 if not given.")
    ] = None,
    attn_implementation: AttentionImplementationOption = None,
    recompute: Annotated[
        Recomputed | None,
        typer.Option(
            help="What runs again in the backward pass instead of being kept (activations only); none if not given.",
            show_default=False,
        ),
    ] = None,
    pairs: PairsOption = "full",
    dtype: ElementDtype = "bf16",
    asked: AskedRank = ANY_RANK,
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
    for option, value in (
        ("--batch", batch),
        ("--attn-implementation", attn_implementation),
        ("--recompute", recompute),
    ):
        if value is not None and quantity != "activations":
            raise InputError(f"{option}: only applies to activations; expected --quantity activations too")
    if quantity == "activations" and asked.anything:
        raise InputError(
            "--quantity activations: is of one device; expected no layout (llmcalc memory has those of each rank)"
        )
    include = included(with_mtp)
    preset = load_one(target, overrides, head, allow_unknown, include)
    setting = Setting(seq=usual_sequence(preset.model) if seq is None else seq, pairs=pairs, dtype=dtype)
    with about(preset):
        share = asked.share(preset.model, lambda one: params(one, include).total, "holds")
        if quantity == "activations":
            training = TrainingSetting(batch or 1, attn_implementation or "eager", recompute or "none")
            explanation = _activations(preset.model, node, setting, training, include)
        else:
            explanation = explain(preset.model if share is None else share.model, node, quantity, setting, include)
    answer = report(preset, explanation, latex, records=fmt in ("csv", "markdown"), bibtex=bibtex, share=share)
    show(answer, fmt, output, notes)


def _activations(
    spec: ModelSpec, node: str | None, setting: Setting, training: TrainingSetting, include: frozenset[str]
) -> Explanation:
    """Loads the kernels only where they are needed."""
    from ..symbolic.activations import explain_activations

    return explain_activations(spec, node, setting, training, include)
