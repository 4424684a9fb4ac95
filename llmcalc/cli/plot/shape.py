from __future__ import annotations

from typing import Annotated

import typer

from ...plots.pictures import shape_picture
from ..options import AllowUnknown, CacheDtype, OfflineOption, Overrides, Seq, Targets
from ..target_options import TargetOptions
from .files import PaperColumns, Picture, write_picture


def command(
    targets: Targets,
    output: Picture,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=2, max=256, help="Shapes of each model.")] = 24,
    seq: Seq = None,
    kv_dtype: CacheDtype = "bf16",
    overrides: Overrides = None,
    allow_unknown: AllowUnknown = False,
    offline: OfflineOption = False,
    columns: PaperColumns = None,
) -> None:
    """Shapes with as many parameters as a model, deep to wide."""
    target_options = TargetOptions(overrides, None, allow_unknown)
    write_picture(shape_picture([target_options.load(target) for target in targets], rows, seq, kv_dtype), output)
