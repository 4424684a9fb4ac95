from __future__ import annotations

from typing import Annotated

import typer

from ..costs.context_length import USUAL
from ..costs.flops import flops, sight_of
from ..errors import InputError
from ..optional import included
from ..reports.document import joined
from ..reports.flops import report
from ..studies.rules import conventions
from ..workload.execution import AttentionImplementation, LatentForm
from ..workload.workload import Phase
from .layout_options import ANY_RANK, AskedRank, takes_rank
from .options import (
    AllowUnknown,
    Batch,
    FormatOption,
    HeadOption,
    NotesOption,
    OfflineOption,
    Output,
    Overrides,
    PairsOption,
    RecomputeOption,
    Source,
    TableOption,
    Targets,
    WithMtp,
    about,
    load_one,
    phase_option,
    show,
    size,
)

SEQ_HELP = (
    f"New tokens of each sequence; {USUAL:,}, or all learned positions where they are fewer, if not given. In "
    "decode, where --context is not given: the context."
)
CONTEXT_HELP = (
    "Tokens of each sequence that are in the cache: decode adds one token to them, prefill --seq (chunked prefill)."
)
MLA_HELP = (
    "Form of multi-head latent attention: keys and values expanded from the latents, or the expansion absorbed into "
    "query and output. auto: absorbed in decode, expanded elsewhere."
)
RULES_HELP = "Compare with rules of thumb (2N, 6N, Kaplan, Chinchilla, PaLM, …)."


@takes_rank
def command(
    targets: Targets,
    batch: Batch = 1,
    seq: Annotated[int | None, size("--seq", "-s", text=SEQ_HELP)] = None,
    context: Annotated[int | None, size("--context", text=CONTEXT_HELP, least=0)] = None,
    source: Source = None,
    phase: Annotated[Phase, phase_option(Phase, "Pass to count.")] = "forward",
    pairs: PairsOption = "full",
    attn_implementation: Annotated[
        AttentionImplementation,
        typer.Option(
            "--attn-implementation",
            "--attention-backward",
            help="In training, kernels of attention: the backward pass of its scores is 2 × (eager, sdpa-math) or "
            "2.5 × (flash) the forward pass.",
        ),
    ] = "eager",
    recompute: RecomputeOption = "none",
    mla: Annotated[LatentForm, typer.Option("--mla", help=MLA_HELP)] = "auto",
    rules: Annotated[bool, typer.Option("--conventions", help=RULES_HELP)] = False,
    with_mtp: WithMtp = False,
    asked: AskedRank = ANY_RANK,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    notes: NotesOption = False,
    table: TableOption = None,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """FLOPs of one pass by component, in total and per token.
    Matrix multiplications only; the total under full and under causal pairs.
    """
    if rules and asked.anything:
        raise InputError("--conventions: rules of thumb are of whole models; expected no layout")
    reports, include = [], included(with_mtp)
    for preset in [load_one(target, overrides, head, allow_unknown, include) for target in targets]:
        with about(preset):
            sight = sight_of(
                preset.model,
                batch,
                seq,
                context,
                source,
                phase,
                pairs,
                attn_implementation,
                recompute,
                mla,
            )
            share = asked.share(preset.model, lambda one, run=sight: flops(one, run, include).total, "computes")  # type: ignore[misc]
            if share is None:
                count = flops(preset.model, sight, include)
            else:
                count = flops(share.model, share.sight(sight), include)
            reports.append(report(preset, count, conventions(count) if rules else (), share))
    show(joined(reports), fmt, output, notes, table)
