"""Wrappers whose vision encoders are not supported; a remark says so, even if their config describes none.

Aria projects patches to the text's width by learned queries that attend to them. Emu 3 has an encoder and a decoder of
images as tokens. transformers: models/aria (`AriaProjector`), models/emu3 (`Emu3VQVAE`).
"""

from __future__ import annotations

from ....errors import InputError
from ..config import Config
from ..parts import Table
from .section import Section


def _unread(wrapper: Config, config: Config, width: int) -> Table:
    raise InputError(f"{config.where.removesuffix('.')}: '{config.model_type}' is not supported")


WRAPPERS = {
    "aria": {"vision_config": Section(_unread, {"idefics3_vision": {}})},
    "emu3": {"vq_config": Section(_unread, {"emu3_vqgan": {}})},
}
