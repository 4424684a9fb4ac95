from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ..parallel.layout_request import NO_LAYOUT_OPTIONS, LayoutRequest
from ..witnesses.reference import Device
from ..witnesses.verification import WitnessName
from .layout_options import add_layout_options
from .output import check_writable, open_atomic_output
from .shared_options import JunitOption, OptionalTargetsArgument, TableOption, length_option
from .target_options import OutputOptions, TargetOptions, add_target_options


@add_layout_options
@add_target_options
def command(
    targets: OptionalTargetsArgument = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Verify every preset. Those that cannot be compared are listed as skipped.")
    ] = False,
    device: Annotated[
        Device, typer.Option(help="Device of the reference: meta (shapes only), or real tensors.")
    ] = "meta",
    against: Annotated[WitnessName, typer.Option(help="What to compare the closed forms with.")] = "reference",
    batch: Annotated[int, length_option("--batch", "-b", help="Sequences of the pass that is run.", maximum=1024)] = 1,
    seq: Annotated[
        int | None,
        length_option("--seq", "-s", help="Tokens of each; by default enough to fill every window.", maximum=2**20),
    ] = None,
    every_layer: Annotated[
        bool, typer.Option("--every-layer", help="On meta, run every layer, also identical ones.")
    ] = False,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="Also compare the memory of training, prefill and decode: to the byte, on cuda with the allocator.",
        ),
    ] = False,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed",
            help="Run --devices processes (2 if not given) on the CPU instead: the memory of every rank, and the loss.",
        ),
    ] = False,
    layout_request: LayoutRequest = NO_LAYOUT_OPTIONS,
    num_microbatches: Annotated[
        int | None,
        length_option("--num-microbatches", help="With --distributed: of a step; 2, or twice --pp, if not given."),
    ] = None,
    junit_file: JunitOption = None,
    table: TableOption = None,
    *,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """Compare every closed form with a model that runs.
    Parameters, FLOPs, cache, memory; exit code 1 on any mismatch.
    """
    from ..questions.witnesses import VerifyQuestion
    from ..reports.junit import junit
    from ..sources.presets import model_names
    from ..witnesses.distributed.launch import rank_of_process

    verify_question = VerifyQuestion(
        everything, device, against, batch, seq, every_layer, memory, distributed, layout_request, num_microbatches
    )
    verify_question.check_targets(bool(targets))
    if junit_file is not None:
        check_writable(junit_file, "--junit")
    verify_answer = verify_question.answer(
        _iterate_with_progress_bar(list(model_names()) if everything else list(targets or ())), target_options.load
    )
    if junit_file is not None:
        with open_atomic_output(junit_file, "--junit") as output_stream:
            output_stream.write(junit(verify_answer.result.verdicts, verify_answer.result.skip_reasons))
    if rank_of_process() == 0:
        output_options.show(verify_answer.report(), table, listing=everything)
    if not verify_answer.ok:
        raise typer.Exit(1)


def _iterate_with_progress_bar(model_names: list[str]) -> Iterator[str]:
    """Yields the models' names, with a progress bar on stderr if it is a terminal and there are several names."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if len(model_names) == 1 or not console.is_terminal:
        return iter(model_names)
    progress_bar: Any = track(model_names, "verifying", console=console, transient=True)
    return iter(progress_bar)
