from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import typer

from ..sources.to_hf import to_config
from .options import AllowUnknown, HeadOption, OfflineOption, Output, Overrides, Target, about, load_one, opened

Written: TypeAlias = Literal["toml", "hf"]


def command(
    target: Target,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    to: Annotated[
        Written | None,
        typer.Option(
            "--to",
            help="A native description (toml), or the config.json of a transformers class (hf); if not given, hf where "
            "--output ends in .json, and toml otherwise.",
            show_default=False,
        ),
    ] = None,
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Convert between native descriptions and Hugging Face configs.
    Both give the same counts when they are read back.
    """
    preset = load_one(target, overrides, head, allow_unknown)
    if (to or ("hf" if output is not None and output.suffix == ".json" else "toml")) == "hf":
        import json

        with about(preset):
            text = json.dumps(to_config(preset.model), indent=2) + "\n"
    else:
        from ..sources.to_toml import dump_toml

        text = dump_toml(preset)
    with opened(output) as out:
        out.write(text)
