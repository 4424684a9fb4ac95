"""A model without an output head."""

from __future__ import annotations

from typing import Literal

from .base import Part


class NoHead(Part):
    """The absence of an output head: the model's output is its hidden states."""

    type: Literal["none"] = "none"
