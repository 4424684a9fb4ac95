"""The kinds of heads: the `type` of each in `choices.py`."""

from __future__ import annotations

from typing import Literal, TypeAlias

HeadKind: TypeAlias = Literal["lm", "none", "classification"]
