from __future__ import annotations

import sys
from typing import Annotated

import typer

from .. import units
from ..api import memory
from ..costs.limits import MOST_CONTEXT
from ..costs.optimizers import Optimizer
from ..costs.quantization import COMMON
from ..costs.resident import MasterWeights, MemoryPhase, Precision, fits
from ..hardware import Hardware
from ..optional import included
from ..sources.hardware import COMMON_HARDWARE, find_hardware, load_hardware
from ..views.memory import report
from .hardware import complete_name
from .options import (
    CACHE_FORMATS,
    AllowUnknown,
    FormatOption,
    HeadOption,
    NotesOption,
    OfflineOption,
    Output,
    Overrides,
    TableOption,
    Target,
    WithMtp,
    WithTowers,
    about,
    cache_format_option,
    load_one,
    number_format,
    phase_option,
    show,
    size,
)

DTYPE_HELP = "Of the weights; if not given, the published one, in training that of the precision."
SEQ_HELP = f"Tokens of each of them; the context that the model was made for if not given, at most {MOST_CONTEXT:,}."


def complete_scheme(incomplete: str) -> list[str]:
    """Names of schemes for the shell's completion."""
    return [name for name in (*COMMON, "none") if name.startswith(incomplete.lower())]


def command(
    target: Target,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    phase: Annotated[MemoryPhase, phase_option(MemoryPhase, "What the model does.")] = "inference",
    dtype: Annotated[str | None, number_format(DTYPE_HELP)] = None,
    batch: Annotated[int | None, size("--batch", "-b", text="Sequences in the cache; 1 if not given.")] = None,
    seq: Annotated[
        int | None,
        size(
            "--seq",
            "-s",
            text=SEQ_HELP,
        ),
    ] = None,
    kv_dtype: Annotated[
        str | None, cache_format_option(f"Format of the KV cache; bf16 if not given: {CACHE_FORMATS}")
    ] = None,
    precision: Annotated[
        Precision | None,
        typer.Option(
            help="Training precision: bf16-master (bf16 weights and gradients, fp32 master weights and states) if not "
            "given; autocast keeps weights in fp32. --dtype, --grad-dtype and --master-weights refine it.",
            show_default=False,
        ),
    ] = None,
    optimizer: Annotated[
        Optimizer | None, typer.Option(help="Optimizer; adamw if not given.", show_default=False)
    ] = None,
    optimizer_dtype: Annotated[
        str | None, number_format("Optimizer states; the dtype of the weights being updated if not given.")
    ] = None,
    momentum: Annotated[
        bool | None,
        typer.Option("--momentum", help="Keep the momentum buffer of SGD.", show_default=False),
    ] = None,
    grad_dtype: Annotated[str | None, number_format("Gradients; the dtype of the weights if not given.")] = None,
    master_weights: Annotated[
        MasterWeights | None,
        typer.Option(
            help="Precision of a second copy of the weights, which the optimizer updates.", show_default=False
        ),
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEME",
            help="How weights are stored, such as q4_k_m, awq-int4-g128 or "
            "fp8-block128; as the config says if not given.",
            autocompletion=complete_scheme,
            show_default=False,
        ),
    ] = None,
    with_mtp: WithMtp = False,
    with_towers: WithTowers = False,
    hardware: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Does it fit on this accelerator? A name (h100, m4-max-64gb), a memory size (24GiB) or a .toml file; "
            "repeatable; common ones if not given; exit code 1 if it fits on none of those given.",
            autocompletion=complete_name,
            show_default=False,
        ),
    ] = None,
    notes: NotesOption = False,
    table: TableOption = None,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Memory required, and which accelerators it fits on.
    Weights and KV cache, or weights, gradients and optimizer state.
    """
    preset = load_one(target, overrides, head, allow_unknown, included(with_mtp, with_towers))
    named: list[Hardware] = []
    for one in map(find_hardware, hardware or ()):
        named += [] if one in named else [one]  # by another alias, once
    with about(preset):
        use = memory(
            preset,
            phase,
            dtype=dtype,
            batch=batch,
            seq=seq,
            kv_dtype=kv_dtype,
            precision=precision,
            grad_dtype=grad_dtype,
            master_weights=master_weights,
            optimizer=optimizer,
            optimizer_dtype=optimizer_dtype,
            momentum=momentum,
            quantize=quantize,
            with_mtp=with_mtp,
            with_towers=with_towers,
        )
    found = fits(use, named or map(load_hardware, COMMON_HARDWARE))
    show(report(preset, use, found), fmt, output, notes, table)
    for fit in found if named else ():
        if fit.verdict == "tight":
            memory_of = "nominal" if fit.nominal else "usable"
            print(
                f"warning: {fit.hardware.name}: tight: {units.percent(fit.share)} of its {memory_of} memory, and "
                "activations come on top",
                file=sys.stderr,
            )
    if named and all(fit.verdict == "no" for fit in found):
        raise typer.Exit(1)
