"""The range around a time estimate, taken from the errors of measured runs, and the cross-validated coverage of ranges.

Ranges are calibrated on sets that no constant was found on, because errors differ more between sources than within
one. They are not symmetric: measured runs are slower than estimates more often than faster.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic import Field

from ..algebra import Number
from ..frozen import frozen
from ..model import ModelSpec
from ..parallel.layout import Layout
from ..record import Record
from ..sources.files import parse_toml, read_text
from ..sources.presets import presets_dir
from .device import Device
from .timing_constants import SoftwareStack

TIE_SHARE = 0.03
"""Relative difference below which two estimates count as equal, because equal runs repeat within 3 to 5 %."""


DOCUMENT_DIGITS = 10
"""Number of significant digits of seconds in JSON documents."""


class RatioBounds(Record):
    """The ends of a range, each as a ratio of measured to estimated seconds."""

    low: float = Field(gt=0, le=1)
    high: float = Field(ge=1)


class TestedClass(RatioBounds):
    """A class of similar estimates with tested errors; comments in the TOML file explain each field."""

    __test__ = False  # not a test, whatever pytest makes of its name

    phase: Literal["training", "prefill", "decode"]
    experts: bool | None = None
    device: Literal["profiled", "tested"] | None = None
    stack: Literal["tested", "new"] | None = None
    server: bool | None = None
    loaded: bool | None = None
    eager: bool | None = None
    rows: int = Field(gt=0)
    sets: int = Field(gt=0)
    median_error: float = Field(gt=0)
    p90_error: float = Field(gt=0)
    left_out: float | None = Field(default=None, gt=0, le=1)
    words: str

    def check_fields(self) -> None:
        if self.median_error > self.p90_error:
            raise ValueError(f"{self.words}: median_error is more than p90_error")

    def contains_estimate(
        self, phase: str, has_experts: bool, device_class: str, software_stack: SoftwareStack, is_loaded: bool
    ) -> bool:
        """Whether an estimate belongs to this class of tested errors. is_loaded: whether other requests run too."""
        return (
            self.phase == phase
            and self.experts in (None, has_experts)
            and self.device in (None, device_class)
            and self.stack in (None, "tested" if software_stack.rows else "new")
            and self.server in (None, software_stack.is_server)
            and self.loaded in (None, is_loaded)
            and self.eager in (None, software_stack.is_eager)
        )


class _TestedClasses(Record):
    classes: tuple[TestedClass, ...]

    def widest_bounds(self, phase: str) -> RatioBounds:
        """Returns the range for untested estimates: from the lowest to the highest end of the phase's tested ranges."""
        classes_of_phase = [tested_class for tested_class in self.classes if tested_class.phase == phase]
        return RatioBounds(
            low=min(tested_class.low for tested_class in classes_of_phase),
            high=max(tested_class.high for tested_class in classes_of_phase),
        )


MEASURED_EXPERT_RANKS = 8
"""Largest number of expert-parallel ranks in the measured rows of servers."""


def untested_layout_text(software_stack: SoftwareStack, layout: Layout) -> str:
    """Returns text on the properties of a server's layout that were never measured; empty if all were measured."""
    exceeds_measured_ranks = software_stack.is_server and layout.ep > MEASURED_EXPERT_RANKS
    return f"experts on {layout.ep} ranks" if exceeds_measured_ranks else ""


@cache
def _tested_classes() -> _TestedClasses:
    preset_path = presets_dir() / "timing" / "classes.toml"
    return _TestedClasses(**parse_toml(read_text(preset_path), preset_path.name))


def round_to_digits(number: Number) -> float:
    """Rounds a number so that the digits do not depend on the platform's floating-point library."""
    return float(f"{number:.{DOCUMENT_DIGITS}g}")


class RangedAmount(NamedTuple):
    """An amount with a range of comparable measured runs."""

    estimate: float
    low: float
    high: float

    def scaled_by(self, factor: float) -> RangedAmount:
        return RangedAmount(*(factor * bound_value for bound_value in self))

    @classmethod
    def without_range(cls, exact_value: float) -> RangedAmount:
        """Returns a measured quantity as an amount, whose range is a single value."""
        return cls(exact_value, exact_value, exact_value)

    def as_data(self) -> dict[str, float]:
        """The amount and its range as plain data for JSON."""
        return {bound_name: round_to_digits(bound_value) for bound_name, bound_value in self._asdict().items()}


@frozen
class TimeRange:
    """An estimate in seconds, with its range and its class of tested errors.

    phase, device, stack: of the class. untested_reason: what of the run was never measured; empty for its device alone.
    tested_class: the class; None for a device or a stack without one, which has the widest range.
    has_few_test_rows: whether runs of the stack were measured on this device, but too few for a class. Default false.
    """

    estimate: Number
    low: Number
    high: Number
    phase: str
    device: str
    stack: str
    tested_class: TestedClass | None
    untested_reason: str = ""
    has_few_test_rows: bool = False

    @property
    def amount(self) -> RangedAmount:
        """The estimate with its range, as a `RangedAmount` without the class."""
        return RangedAmount(float(self.estimate), float(self.low), float(self.high))

    def class_data(self) -> dict[str, Any]:
        """The class of the estimate as plain data for JSON."""
        tested_class = self.tested_class
        return {
            "phase": self.phase,
            "device": self.device,
            "stack": self.stack,
            "tested_rows": 0 if tested_class is None else tested_class.rows,
            "sets": 0 if tested_class is None else tested_class.sets,
            "median_error": None if tested_class is None else tested_class.median_error,
            "p90_error": None if tested_class is None else tested_class.p90_error,
            "left_out": None if tested_class is None else tested_class.left_out,
        }


def expected_range(
    seconds: Number,
    phase: str,
    device: Device,
    software_stack: SoftwareStack,
    spec: ModelSpec,
    untested_reason: str = "",
    burst_seconds: Number | None = None,
    fast_host_seconds: Number | None = None,
) -> TimeRange:
    """Returns a time estimate with its range. seconds: the estimate.

    untested_reason: what of the run was never measured on any device; default nothing.
    burst_seconds: of a first token beside other requests, the estimate where all of them arrive at once, of which the
        upper end is a multiple; None (default) for all other times.
    fast_host_seconds: of a step that waits for the host, the estimate on the fastest measured host, of which the lower
        end is a multiple where the class has no steps of eager stacks alone; None (default) for all other times.
    """
    if phase != "training" and spec.encoder is not None and spec.decoder is not None:
        untested_reason = untested_reason or "an encoder beside the decoder"
    device_class = device.evidence_class(software_stack)
    has_experts, is_loaded = bool(spec.routed_experts), burst_seconds is not None
    tested_class = next(
        (
            candidate_class
            for candidate_class in _tested_classes().classes
            if not untested_reason
            and device_class is not None
            and candidate_class.contains_estimate(phase, has_experts, device_class, software_stack, is_loaded)
        ),
        None,
    )
    bounds = tested_class or _tested_classes().widest_bounds(phase)
    latest_seconds = seconds if burst_seconds is None else max(float(seconds), float(burst_seconds))
    includes_host_waits = tested_class is not None and bool(
        tested_class.eager
    )  # its rows are of steps that wait for hosts
    earliest_seconds = seconds
    if fast_host_seconds is not None and not includes_host_waits:
        earliest_seconds = min(float(seconds), float(fast_host_seconds))
    low_seconds, high_seconds = earliest_seconds * bounds.low, latest_seconds * bounds.high
    has_few_test_rows = tested_class is None and device_class == "tested" and not untested_reason
    return TimeRange(
        seconds,
        low_seconds,
        high_seconds,
        phase,
        device.evidence,
        software_stack.name,
        tested_class,
        untested_reason,
        has_few_test_rows,
    )
