from __future__ import annotations

from ...plots.pictures import kv_picture
from ..options import CacheDtype, Targets
from ..target_options import TargetOptions, add_target_options
from .files import PaperColumns, Picture, write_picture


@add_target_options
def command(
    targets: Targets,
    output: Picture,
    kv_dtype: CacheDtype = "bf16",
    columns: PaperColumns = None,
    *,
    target_options: TargetOptions,
) -> None:
    """The KV cache of one sequence against its tokens."""
    write_picture(kv_picture([target_options.load(target) for target in targets], kv_dtype), output)
