"""A log beside what is computed for its run: each term with its difference, and the term that is off."""

from __future__ import annotations

from dataclasses import dataclass

from ...accelerator import Hardware
from ...sources.preset import Preset
from ..engines.engine import EngineVersion
from .reading import LogReading, LogTerm

OFF_SHARE, OFF_BYTES = 0.02, 64 * 2**20
"""A term is off where it differs by more than this share of the log's figure, and by more than these bytes."""


@dataclass(frozen=True)
class ComparedTerm:
    """A term of a log beside the computed one. computed: None where it is not computed."""

    term: LogTerm
    computed: int | None = None

    @property
    def difference(self) -> float | None:
        """The computed size over the log's, minus 1; None where there is none."""
        if self.computed is None or self.term.value == 0:
            return None
        return self.computed / self.term.value - 1

    @property
    def is_off(self) -> bool:
        """Whether the two differ by more than rounding and what a start varies by."""
        if self.computed is None or self.difference is None or self.term.unit != "bytes":
            return False
        return abs(self.difference) > OFF_SHARE and abs(self.computed - self.term.value) > OFF_BYTES


@dataclass(frozen=True)
class ExplainedLog:
    """A log with what is computed. reading: what it says. terms: its terms, each with the computed one.

    preset, hardware, version: what the computation is for; None where the log and the user name none.
    off: the term that is off or in the way; empty for none. flag: what changes it; empty for none that is known.
    missing: what is not known, without which terms are not computed. notes: remarks.
    """

    reading: LogReading
    terms: tuple[ComparedTerm, ...]
    preset: Preset | None = None
    hardware: Hardware | None = None
    version: EngineVersion | None = None
    off: str = ""
    flag: str = ""
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
