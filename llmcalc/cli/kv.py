from __future__ import annotations

from ..costs.cache import kv
from ..views.document import joined
from ..views.kv import report
from .options import (
    Batch,
    CacheDtype,
    FormatOption,
    HeadOption,
    OfflineOption,
    Output,
    Overrides,
    Seq,
    Source,
    Targets,
    about,
    load_all,
    show,
)

DEFAULT_SEQ = 8192


def command(
    targets: Targets,
    batch: Batch = 1,
    seq: Seq = DEFAULT_SEQ,
    source: Source = None,
    dtype: CacheDtype = "bf16",
    overrides: Overrides = None,
    head: HeadOption = None,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """KV cache and recurrent state by kind of layer.
    Then what it would be with other attention, and as it grows; CSV has the first table alone.
    """
    reports = []
    for preset in load_all(targets, overrides, head):
        with about(preset):
            cache = kv(preset.model, batch, seq, dtype, source)
        reports.append(report(preset, cache))
    show(joined(reports), fmt, output)
