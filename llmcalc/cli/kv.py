from __future__ import annotations

from typing import Annotated

from ..costs.cache import kv
from ..costs.context_length import MOST_CONTEXT, USUAL
from ..errors import InputError
from ..reports.document import joined
from ..reports.kv import report
from .layout_options import ANY_RANK, AskedRank, takes_rank
from .options import (
    AllowUnknown,
    Batch,
    CacheDtype,
    FormatOption,
    HeadOption,
    NotesOption,
    OfflineOption,
    Output,
    Overrides,
    Source,
    TableOption,
    Targets,
    about,
    load_one,
    show,
    size,
)

SEQ_HELP = (
    f"Tokens of each sequence; the context that the model was made for if not given, at most {MOST_CONTEXT:,}, and "
    f"{USUAL:,} where it states none."
)


@takes_rank
def command(
    targets: Targets,
    batch: Batch = 1,
    seq: Annotated[int | None, size("--seq", "-s", text=SEQ_HELP)] = None,
    source: Source = None,
    dtype: CacheDtype = "bf16",
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
    """KV cache and recurrent state by layer type.
    Then with other kinds of attention, and as the context grows.
    """
    if "cp" in asked.sizes:
        raise InputError(f"--cp {asked.sizes['cp']}: divides the sequences of training; expected no --cp")
    reports = []
    for preset in [load_one(target, overrides, head, allow_unknown) for target in targets]:
        with about(preset):
            share = asked.share(preset.model, lambda one: kv(one, batch, seq, dtype, source).bytes, "caches")
            cache = kv(preset.model if share is None else share.model, batch, seq, dtype, source)
            reports.append(report(preset, cache, share))
    show(joined(reports), fmt, output, notes, table)
