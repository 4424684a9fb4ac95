from __future__ import annotations

from typing import Annotated

import typer

from ..optional import included_part_names
from ..parallel.counted_rank import NO_RANK_OPTIONS, RankRequest
from ..reports.document import join_reports
from ..workload.execution import AttentionImplementation, LatentForm
from ..workload.inference import batch_of_users
from ..workload.inputs import NO_INPUTS, Inputs
from ..workload.lengths import DEFAULT_TOKENS
from ..workload.workload import Phase
from .hardware import accelerator_option
from .layout_options import add_rank_options
from .setting_options import add_input_options
from .shared_options import (
    BatchOption,
    DraftOption,
    PairsOption,
    RecomputeOption,
    SourceOption,
    TableOption,
    TargetsArgument,
    UsersOption,
    WithMtpOption,
    length_option,
    phase_option,
    value_option,
)
from .target_options import OutputOptions, TargetOptions, add_target_options

SEQ_HELP = (
    "New tokens of each sequence. In decode, where --context is not given: the context. "
    f"[default: {DEFAULT_TOKENS:,}, or all learned positions where they are fewer]"
)
CONTEXT_HELP = (
    "Tokens of each sequence that are in the cache. Decode adds one token to them, prefill --seq (chunked prefill)."
)
MLA_HELP = (
    "Form of multi-head latent attention: keys and values expanded from the latents, or the expansion absorbed into "
    "query and output. auto: absorbed in decode, expanded elsewhere."
)
RATE_HELP = (
    "Tokens per second of a measured run, of all devices together (12k). Adds its MFU and HFU under each convention."
)
DTYPE_HELP = "With --tokens-per-second, number format of the products, whose peak counts; bf16 if not given."
RULES_HELP = "Compare with rules of thumb (2N, 6N, Kaplan, Chinchilla, PaLM, …)."


@add_input_options
@add_rank_options
@add_target_options
def command(
    targets: TargetsArgument,
    batch: BatchOption = None,
    users: UsersOption = None,
    seq: Annotated[int | None, length_option("--seq", "-s", help=SEQ_HELP)] = None,
    context: Annotated[int | None, length_option("--context", help=CONTEXT_HELP, minimum=0)] = None,
    source: SourceOption = None,
    phase: Annotated[
        Phase | None,
        phase_option(Phase, "Pass to count; forward if not given, training of a measured run.", show_default=False),
    ] = None,
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
    conventions: Annotated[bool, typer.Option("--conventions", help=RULES_HELP)] = False,
    tokens_per_second: Annotated[str | None, value_option("--tokens-per-second", "RATE", RATE_HELP)] = None,
    hardware: Annotated[str | None, accelerator_option(" Of a measured run.")] = None,
    devices: Annotated[int | None, length_option("--devices", help="Number of them; 1 if not given.")] = None,
    dtype: Annotated[str | None, value_option("--dtype", "FORMAT", DTYPE_HELP)] = None,
    with_mtp: WithMtpOption = False,
    draft: DraftOption = None,
    inputs: Inputs = NO_INPUTS,
    rank_request: RankRequest = NO_RANK_OPTIONS,
    table: TableOption = None,
    *,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """FLOPs of one pass by component, in total and per token.
    Matrix multiplications only; the total under full and under causal pairs.
    """
    from ..questions.counts import FlopsQuestion
    from ..sources.preset import target_in_errors
    from ..studies.utilization import MeasuredRun

    included_parts = included_part_names(with_mtp)
    flops_question = FlopsQuestion(
        batch_of_users(batch, users, phase or "forward") or 1,
        seq,
        context,
        source,
        phase,
        pairs,
        attn_implementation,
        recompute,
        mla,
        conventions,
        included_parts,
        rank_request,
        MeasuredRun(tokens_per_second, hardware, devices, dtype),
        target_options.load_draft(draft),
        inputs,
    )
    reports = []
    for preset in [target_options.load(target, included_parts) for target in targets]:
        with target_in_errors(preset):
            reports.append(flops_question.answer(preset).report())
    output_options.show(join_reports(reports), table)
