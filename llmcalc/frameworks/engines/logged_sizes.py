"""Memory sizes from an engine's start-up log, which replace estimates (`--receipt`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...frozen import frozen

RECEIPT_FIELD = "receipt"
"""The key of `LoggedSizes` among the values of an engine's flags."""


@frozen
class LoggedSizes:
    """The memory sizes that a log states. log_file: the log. bytes_by_term: bytes by name of the memory term.

    settings: name of a flag → its value in the run of the log.
    """

    log_file: str
    bytes_by_term: Mapping[str, int]
    settings: Mapping[str, Any]

    def differing_flag_names(self, field_names: tuple[str, ...], settings: Mapping[str, Any]) -> list[str]:
        """Returns the names of fields whose logged values differ from those in `settings`."""
        return [flag_name for flag_name in field_names if self.settings.get(flag_name) != settings.get(flag_name)]
