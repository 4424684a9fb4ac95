from __future__ import annotations

from ...plots.figure import needs_matplotlib
from ..options import AllowUnknown, CacheDtype, HeadOption, OfflineOption, Overrides, Targets, about, load_one
from .files import Picture, write


def command(
    targets: Targets,
    output: Picture,
    dtype: CacheDtype = "bf16",
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    offline: OfflineOption = False,
) -> None:
    """The KV cache of one sequence against its tokens."""
    needs_matplotlib()
    from ...costs.cache import kv
    from ...plots.context import cache

    models = [load_one(target, overrides, head, allow_unknown) for target in targets]
    for preset in models:
        with about(preset):
            kv(preset.model, dtype_name=dtype)
    write(cache(models, dtype), output)
