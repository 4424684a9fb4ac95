from __future__ import annotations

from ...plots.pictures import kv_picture
from ..shared_options import CacheDtypeOption, TargetsArgument
from ..target_options import TargetOptions, add_target_options
from .files import PaperColumnsOption, PictureOption, write_picture


@add_target_options
def command(
    targets: TargetsArgument,
    output: PictureOption,
    kv_dtype: CacheDtypeOption = "bf16",
    columns: PaperColumnsOption = None,
    *,
    target_options: TargetOptions,
) -> None:
    """The KV cache of one sequence against its tokens."""
    write_picture(kv_picture([target_options.load(target) for target in targets], kv_dtype), output)
