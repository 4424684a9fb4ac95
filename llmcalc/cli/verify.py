from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..kernels.lowering import Unsupported
from ..sources.presets import model_names
from ..verify.checks import Verdict
from ..verify.reference import Device
from ..verify.run import Witness, verify
from ..views.junit import junit
from ..views.verify import report
from .options import (
    AllowUnknown,
    FormatOption,
    HeadOption,
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
    junit_file: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE", help="Also write JUnit XML, for CI systems.", show_default=False),
    ] = None,
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
    if junit_file is not None:
        writable(junit_file, "--junit")
    names = list(model_names()) if everything else list(targets or ())
    verdicts: list[Verdict] = []
    skipped: dict[str, str] = {}
    for name in _progress(names):
        try:
            preset = load_one(name, overrides, head, allow_unknown)
            with about(preset), _witness(against):
                verdicts.append(verify(preset, against, device, batch, seq, every_layer, memory))
        except InputError as error:
            if not everything or (against == "reference" and not isinstance(error, Unsupported)):
                raise
            skipped[name] = str(error).removeprefix(f"{name}: ")
    if junit_file is not None:
        with written(junit_file, "--junit") as out:
            out.write(junit(verdicts, skipped))
    show(report(verdicts, skipped), fmt, output, notes, table)
    if not verdicts or not all(v.ok for v in verdicts):
        raise typer.Exit(1)


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
