from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from ..optional import included_part_names
from ..parallel.counted_rank import NO_RANK_OPTIONS, RankRequest
from ..questions.counts import PassPhase, Quantity
from ..symbolic.formulas import RecomputeChoice
from .layout_options import add_rank_options
from .shared_options import (
    AttentionImplementationOption,
    CacheDtypeOption,
    PairsOption,
    SeqOption,
    TargetArgument,
    WithMtpOption,
    length_option,
    value_option,
)
from .target_options import OutputOptions, TargetOptions, add_target_options

NodeArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="NODE",
        help="A part, by the end of its path: self_attn, mlp.gate_proj, decoder.layers.cross_attn. The whole "
        "model, if none.",
        show_default=False,
    ),
]


@add_rank_options
@add_target_options
def command(
    target: TargetArgument,
    node: NodeArgument = None,
    quantity: Annotated[
        Quantity,
        typer.Option(
            "--quantity",
            "-q",
            help="Quantity to explain. all: parameters, FLOPs and caches. activations: what a training pass keeps for "
            "its backward pass. time: seconds of each kernel on --hardware.",
        ),
    ] = "all",
    seq: SeqOption = None,
    batch: Annotated[
        int | None,
        length_option("--batch", "-b", help="Sequences at once (activations and time only); 1 if not given."),
    ] = None,
    hardware: Annotated[str | None, value_option("--hardware", "NAME", "The accelerator (time only).")] = None,
    phase: Annotated[
        PassPhase | None, typer.Option(help="The pass (time only); decode if not given.", show_default=False)
    ] = None,
    stack: Annotated[
        str | None, value_option("--stack", "NAME", "Software of the pass, as of time (time only).")
    ] = None,
    attn_implementation: AttentionImplementationOption = None,
    recompute: Annotated[
        RecomputeChoice | None,
        typer.Option(
            help="Modules that are recomputed in the backward pass (activations only); none if not given.",
            show_default=False,
        ),
    ] = None,
    pairs: PairsOption = "full",
    kv_dtype: CacheDtypeOption = "bf16",
    rank_request: RankRequest = NO_RANK_OPTIONS,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX: an align* environment per node.")] = False,
    bibtex: Annotated[bool, typer.Option("--bibtex", help="With --latex: add BibTeX entries of the sources.")] = False,
    with_mtp: WithMtpOption = False,
    *,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """Formulas in symbols and with values, each with its source.
    For the whole model, or for a part of it."""
    from ..questions.counts import ExplainQuestion
    from ..sources.preset import target_in_errors

    included_parts = included_part_names(with_mtp)
    explain_question = ExplainQuestion(
        node,
        quantity,
        seq,
        pairs,
        kv_dtype,
        batch,
        attn_implementation,
        recompute,
        latex,
        bibtex,
        included_parts,
        rank_request,
        hardware,
        phase,
        stack,
    )
    preset = target_options.load(target, included_parts)
    with target_in_errors(preset):
        explain_answer = explain_question.answer(preset, has_raw_values=output_options.fmt in ("csv", "markdown"))
    output_options.show_answer(explain_answer, listing=True)
