"""A receipt: memory sizes from an engine's start-up log, which replace llmcalc's estimates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...frozen import frozen

RECEIPT_FIELD = "receipt"
"""The key of a receipt among the values of an engine's flags."""


@frozen
class Receipt:
    """The memory sizes measured in a log. file: the log. terms: name of a part of the memory → bytes.

    settings: name of a flag → its value in the run of the log.
    """

    file: str
    terms: Mapping[str, int]
    settings: Mapping[str, Any]

    def differing_names(self, fields: tuple[str, ...], settings: Mapping[str, Any]) -> list[str]:
        """Returns the names among `fields` whose values in the log and in `settings` differ."""
        return [flag_name for flag_name in fields if self.settings.get(flag_name) != settings.get(flag_name)]
