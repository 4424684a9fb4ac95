from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..parallel.layout import Layout
from ..parallel.layout_request import ANY, Asked
from ..reports.junit import junit
from ..reports.verify import report
from ..simulator.lowering import Unsupported
from ..sources.presets import model_names
from ..witnesses.checks import Verdict
from ..witnesses.distributed.compare import job_for, verify_distributed
from ..witnesses.distributed.launch import launched, launched_rank
from ..witnesses.reference import Device
from ..witnesses.run import Witness, verify
from .layout_options import takes_layout
from .options import (
    AllowUnknown,
    FormatOption,
    HeadOption,
    JunitOption,
    NotesOption,
    OfflineOption,
    Output,
    Overrides,
    TableOption,
    TargetsOrNone,
    about,
    load_one,
    show,
    size,
)
from .output import writable, written


@takes_layout
def command(
    targets: TargetsOrNone = None,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Verify every preset. Those that cannot be compared are listed as skipped.")
    ] = False,
    device: Annotated[
        Device, typer.Option(help="Device of the reference: meta (shapes only), or real tensors.")
    ] = "meta",
    against: Annotated[Witness, typer.Option(help="What to compare the closed forms with.")] = "reference",
    batch: Annotated[int, size("--batch", "-b", text="Sequences of the pass that is run.", most=1024)] = 1,
    seq: Annotated[
        int | None, size("--seq", "-s", text="Tokens of each; by default enough to fill every window.", most=2**20)
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
    asked: Asked = ANY,
    num_microbatches: Annotated[
        int | None, size("--num-microbatches", text="With --distributed: of a step; 2, or twice --pp, if not given.")
    ] = None,
    junit_file: JunitOption = None,
    notes: NotesOption = False,
    table: TableOption = None,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Compare every closed form with a model that runs.
    Parameters, FLOPs, cache, memory; exit code 1 on any mismatch.
    """
    if everything == bool(targets):
        raise InputError("verify: expected TARGET... or --all")
    if distributed:
        _only_distributed(everything, device, against, every_layer, memory)
    elif asked.anything or num_microbatches is not None:
        raise InputError("verify: options of layouts only apply to --distributed")
    if junit_file is not None:
        writable(junit_file, "--junit")
    names = list(model_names()) if everything else list(targets or ())
    verdicts: list[Verdict] = []
    skipped: dict[str, str] = {}
    for name in _progress(names):
        try:
            preset = load_one(name, overrides, head, allow_unknown)
            if distributed:
                with about(preset):
                    job = job_for(preset.model, _layout(asked), batch, seq, num_microbatches)
                    verdicts.append(verify_distributed(job, preset.name))
                continue
            with about(preset), _witness(against):
                verdicts.append(verify(preset, against, device, batch, seq, every_layer, memory))
        except InputError as error:
            if not everything or (against == "reference" and not isinstance(error, Unsupported)):
                raise
            skipped[name] = str(error).removeprefix(f"{name}: ")
    if junit_file is not None:
        with written(junit_file, "--junit") as out:
            out.write(junit(verdicts, skipped))
    if launched_rank() == 0:
        show(report(verdicts, skipped), fmt, output, notes, table)
    if not verdicts or not all(v.ok for v in verdicts):
        raise typer.Exit(1)


def _only_distributed(everything: bool, device: Device, against: Witness, every_layer: bool, memory: bool) -> None:
    """Raises `InputError` for options of another comparison."""
    if everything:
        raise InputError("--distributed: expected TARGET, not --all")
    if against != "reference" or device != "meta" or every_layer or memory:
        raise InputError("--distributed: --against, --device, --every-layer and --memory do not apply")


def _layout(asked: Asked) -> Layout:
    """The layout over as many processes as torchrun has started, or over two if nothing says how many."""
    if launched() and asked.devices is None:
        asked = replace(asked, devices=int(os.environ["WORLD_SIZE"]))
    layout = asked.layout()
    return layout if asked.devices is not None or layout.world > 1 else replace(asked, devices=2).layout()


@contextmanager
def _witness(against: Witness) -> Iterator[None]:
    """A spec whose sizes the witness's own arithmetic does not hold (tensors past 2^63 elements) is bad input to it."""
    try:
        yield
    except (RuntimeError, ArithmeticError, MemoryError) as error:
        what = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(
            f"--against {against} cannot run this model: {what}; expected sizes that its witness can hold"
        ) from error


def _progress(names: list[str]) -> Iterator[str]:
    """The names, with a bar on stderr where that is a terminal and there are several."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if len(names) == 1 or not console.is_terminal:
        return iter(names)
    bar: Any = track(names, "verifying", console=console, transient=True)
    return iter(bar)
