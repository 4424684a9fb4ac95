from __future__ import annotations

from typing import Annotated

import typer

from ...plots.pictures import shape_picture
from ..shared_options import (
    AllowUnknownOption,
    CacheDtypeOption,
    OfflineOption,
    OverridesOption,
    SeqOption,
    TargetsArgument,
)
from ..target_options import TargetOptions
from .files import PaperColumnsOption, PictureOption, write_picture


def command(
    targets: TargetsArgument,
    output: PictureOption,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=2, max=256, help="Shapes of each model.")] = 24,
    seq: SeqOption = None,
    kv_dtype: CacheDtypeOption = "bf16",
    overrides: OverridesOption = None,
    allow_unknown: AllowUnknownOption = False,
    offline: OfflineOption = False,
    columns: PaperColumnsOption = None,
) -> None:
    """Shapes with as many parameters as a model, deep to wide."""
    target_options = TargetOptions(overrides, None, allow_unknown)
    write_picture(shape_picture([target_options.load(target) for target in targets], rows, seq, kv_dtype), output)
