"""A receipt: terms that an engine measured and printed in a log, which stand in place of estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIELD = "receipt"
"""The key of a receipt among the values of an engine's flags."""


@dataclass(frozen=True)
class Receipt:
    """What a log measured. file: the log. terms: name of a term → its bytes.

    settings: name of a flag → its value in the run of the log.
    """

    file: str
    terms: Mapping[str, int]
    settings: Mapping[str, Any]

    def differing(self, fields: tuple[str, ...], settings: Mapping[str, Any]) -> list[str]:
        """Returns the flags, out of `fields`, whose values in the log are not those of `settings`."""
        return [name for name in fields if self.settings.get(name) != settings.get(name)]
