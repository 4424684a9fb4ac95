"""The memory sizes in a log, compared with llmcalc's computed sizes of the same run."""

from __future__ import annotations

from dataclasses import dataclass

from ...accelerator import Hardware
from ...sources.preset import Preset
from ..engines.engine import EngineVersion
from .log_contents import LogTerm, ParsedLog

TOLERANCE_SHARE, TOLERANCE_BYTES = 0.02, 64 * 2**20
"""A logged and a computed size differ if both relative and absolute difference (bytes) are larger than these."""

ESTIMATE_TOLERANCES = {"cuda_graphs": 0.3}
"""Name of a term estimated from logs → relative error that most of those logs stay within."""


@dataclass(frozen=True)
class ComparedTerm:
    """A logged memory size with the computed size. computed_value: bytes; None without a computed size."""

    logged_term: LogTerm
    computed_value: int | None = None

    @property
    def difference(self) -> float | None:
        """The relative difference, computed size / size in the log − 1; None without a computed size."""
        if self.computed_value is None or self.logged_term.value == 0:
            return None
        return self.computed_value / self.logged_term.value - 1

    @property
    def is_outside_tolerance(self) -> bool:
        """Whether logged and computed size differ by more than rounding and the variation between starts."""
        if self.computed_value is None or self.difference is None or self.logged_term.unit != "bytes":
            return False
        tolerance_share = ESTIMATE_TOLERANCES.get(self.logged_term.name, TOLERANCE_SHARE)
        return (
            abs(self.difference) > tolerance_share
            and abs(self.computed_value - self.logged_term.value) > TOLERANCE_BYTES
        )


@dataclass(frozen=True)
class ExplainedLog:
    """A log with computed memory sizes. parsed_log: the log's contents. terms: logged and computed sizes.

    preset, hardware, version: what the computation is for; None where the log and the user name none.
    too_large_term: the term that differs most, or that prevents the start; empty for none.
    suggested_flag: the flag that changes this term; empty if none is known.
    missing_inputs: unknown inputs, without which terms are not computed. notes: remarks.
    devices: number of devices of the computed server; 1 by default.
    """

    parsed_log: ParsedLog
    terms: tuple[ComparedTerm, ...]
    preset: Preset | None = None
    hardware: Hardware | None = None
    version: EngineVersion | None = None
    too_large_term: str = ""
    suggested_flag: str = ""
    missing_inputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    devices: int = 1
