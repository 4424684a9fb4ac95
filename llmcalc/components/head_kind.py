"""The union of output-head types: language model, classification, or none."""

from __future__ import annotations

from typing import Literal, TypeAlias

HeadKind: TypeAlias = Literal["lm", "none", "classification"]
