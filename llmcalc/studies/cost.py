"""Converts the estimated seconds of a run to days, device-hours, energy and money, with ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..frozen import frozen
from ..timing.device import DEFAULT_DOMAIN_SIZE
from ..timing.time_ranges import RangedAmount, TimeRange

if TYPE_CHECKING:
    from .plan import LayoutPlan
    from .server import LoadPoint, Server

SECONDS_OF_AN_HOUR, HOURS_OF_A_DAY = 3600.0, 24.0


@frozen
class Cost:
    """The cost of a run: days, device-hours, kWh and money, with ranges.

    seconds: of the whole run. devices: that it occupies.
    watts_per_device: watts of a device; None if not known. price_per_hour: money of a device and hour; None if not
        given.
    """

    seconds: RangedAmount
    devices: int
    watts_per_device: float | None = None
    price_per_hour: float | None = None

    @property
    def includes_lost_time(self) -> bool:
        """Whether the upper end of a training run's seconds includes lost time (`add_lost_time`)."""
        return self.devices > DEFAULT_DOMAIN_SIZE and self.seconds.low < self.seconds.high

    @property
    def days(self) -> RangedAmount:
        return self.seconds.scaled_by(1 / SECONDS_OF_AN_HOUR / HOURS_OF_A_DAY)

    @property
    def device_hours(self) -> RangedAmount:
        return self.seconds.scaled_by(self.devices / SECONDS_OF_AN_HOUR)

    @property
    def energy_kwh(self) -> RangedAmount | None:
        """The energy of the accelerators alone; None if their power is unknown."""
        return None if self.watts_per_device is None else self.device_hours.scaled_by(self.watts_per_device / 1000)

    @property
    def money(self) -> RangedAmount | None:
        """The price of the run in money; None if no hourly price is known."""
        return None if self.price_per_hour is None else self.device_hours.scaled_by(self.price_per_hour)

    @property
    def amounts_by_name(self) -> dict[str, RangedAmount | None]:
        """The days, device-hours, energy and money of the run, by name; None for unknown amounts."""
        return {
            "days": self.days,
            "device_hours": self.device_hours,
            "energy_kwh": self.energy_kwh,
            "money": self.money,
        }


UNCOUNTED_COSTS = {
    "training": ("restarts and failures", "stragglers", "data loading", "checkpoints", "evaluation", "storage"),
    "requests": ("idle hours", "bursts of arrivals", "failures", "storage", "network traffic"),
    "power": ("hosts", "network", "cooling"),
}
"""Kind of run, or `power` for energy → the costs that an estimate leaves out."""

LEAST_TIME_IN_STEPS = 0.78
"""Low estimate of the fraction of a long training run's time spent in useful steps, from six published runs.

0.59 OPT-175B, 0.778 HLAT restarted by hand (arXiv:2404.10630), 0.85 and 0.97 Gemini (arXiv:2312.11805), 0.90
Llama 3 405B (arXiv:2407.21783), 0.988 HLAT restarted by its scheduler: five of six, as of every range, are at or above
it. The first and the HLAT figures are as listed in <https://glennklockwood.com/garden/job-reliability>.
"""


def add_lost_time(training_seconds: RangedAmount, device_count: int) -> RangedAmount:
    """Returns a training run's seconds with restarts and other time outside of steps added to the upper end.

    Runs on the devices of one node keep their range: the published ones have hundreds of devices or more.
    """
    if device_count <= DEFAULT_DOMAIN_SIZE:
        return training_seconds
    return training_seconds._replace(high=training_seconds.high / LEAST_TIME_IN_STEPS)


@frozen
class RunCost:
    """The cost of a run together with the run's time estimate.

    cost: the amounts. tokens, requests: of the run; None for the other one.
    step_count, step_seconds: number of training steps and seconds of each; None for requests.
    step_tokens, step_sequences: tokens and sequences of a step. published_step_tokens: tokens of the model's published
        step. is_measured: whether the step was measured.
    time_range: the range of an estimated step or token; None of a measured one.
    stack_title: the title of the software stack of the estimated times; empty without one.
    plan: the plan whose first layout trains; None for others.
    server, load_point: what serves the requests; None for training.
    assumed_options: options that were not given, with their values.
    options_added_by_plan: the fewest options beside the typed ones with which a typed layout fits; empty for none.
    is_pretraining: whether all weights of a model that gives tokens are trained, which has usual steps (`step_size`).
    has_assumed_devices: whether no number of devices was given, and the fewest are taken.
    assumed_request_origin: where assumed tokens of a request are from, in words; empty for training.
    """

    cost: Cost
    tokens: int | None = None
    requests: int | None = None
    step_count: int | None = None
    step_seconds: RangedAmount | None = None
    step_tokens: int | None = None
    published_step_tokens: int | None = None
    step_sequences: int | None = None
    is_measured: bool = False
    time_range: TimeRange | None = None
    stack_title: str = ""
    plan: LayoutPlan | None = None
    server: Server | None = None
    load_point: LoadPoint | None = None
    assumed_options: tuple[str, ...] = ()
    options_added_by_plan: str = ""
    is_pretraining: bool = False
    has_assumed_devices: bool = False
    assumed_request_origin: str = ""
