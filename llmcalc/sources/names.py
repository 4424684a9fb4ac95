"""What a TARGET is, by its name alone: nothing is imported to tell."""

from __future__ import annotations

import re
from pathlib import Path

ENDINGS = (".safetensors", ".safetensors.index.json", ".gguf")


def is_checkpoint(path: Path) -> bool:
    """Whether the name is one that a checkpoint's header is read from."""
    return path.name.endswith(ENDINGS)


HUB_ID = r"^[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]{1,200})?$"


def is_hub_id(target: str) -> bool:
    """Whether a TARGET reads like `org/name` or `org/name@revision`."""
    return re.match(HUB_ID, target) is not None and not target.endswith((".toml", ".json", *ENDINGS))
