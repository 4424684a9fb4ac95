"""The `type` of each kind of output head."""

from __future__ import annotations

from typing import Literal, TypeAlias

HeadKind: TypeAlias = Literal["lm", "none", "classification"]
