"""Converts the estimated seconds of a run to days, device-hours, energy and money, with ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..frozen import frozen
from ..timing.spread import Amount, Range

if TYPE_CHECKING:
    from .plan import LayoutPlan
    from .server import LoadPoint, Server

SECONDS_OF_AN_HOUR, HOURS_OF_A_DAY = 3600.0, 24.0


@frozen
class Cost:
    """The cost of a run: days, device-hours, kWh and money, with ranges.

    seconds: of the whole run. devices: that it occupies.
    power: watts of a device; None if not known. price: money of a device and hour; None if not given.
    """

    seconds: Amount
    devices: int
    power: float | None = None
    price: float | None = None

    @property
    def days(self) -> Amount:
        return self.seconds.scaled_by(1 / SECONDS_OF_AN_HOUR / HOURS_OF_A_DAY)

    @property
    def device_hours(self) -> Amount:
        return self.seconds.scaled_by(self.devices / SECONDS_OF_AN_HOUR)

    @property
    def energy_kwh(self) -> Amount | None:
        """Energy of the devices alone; None if the devices' power is unknown."""
        return None if self.power is None else self.device_hours.scaled_by(self.power / 1000)

    @property
    def money(self) -> Amount | None:
        """Money of the run; None without a price."""
        return None if self.price is None else self.device_hours.scaled_by(self.price)

    @property
    def amounts(self) -> dict[str, Amount | None]:
        """The amount of each quantity, by the quantity's name."""
        return {
            "days": self.days,
            "device_hours": self.device_hours,
            "energy_kwh": self.energy_kwh,
            "money": self.money,
        }


NOT_COUNTED = {
    "training": ("restarts and failures", "stragglers", "data loading", "checkpoints", "evaluation", "storage"),
    "requests": ("idle hours", "bursts of arrivals", "failures", "storage", "network traffic"),
    "power": ("hosts", "network", "cooling"),
}
"""What a cost leaves out, by what is run, and in its energy."""


@frozen
class RunCost:
    """The cost of a run together with the timed run.

    cost: the amounts. tokens, requests: of the run; None for the other one.
    steps, step: number of training steps and seconds of each; None for requests.
    step_tokens: tokens of a step. is_measured: whether the step was measured.
    range: the range of an estimated step or token; None of a measured one.
    stack_title: the title of the software stack of the estimated times; empty without one.
    plan: the plan whose first layout trains; None for others.
    server, load_point: what serves the requests; None for training.
    assumed_options: options that were not given, with their values.
    is_pretraining: whether all weights of a model that gives tokens are trained, whose usual steps have 4M tokens.
    """

    cost: Cost
    tokens: int | None = None
    requests: int | None = None
    steps: int | None = None
    step: Amount | None = None
    step_tokens: int | None = None
    is_measured: bool = False
    range: Range | None = None
    stack_title: str = ""
    plan: LayoutPlan | None = None
    server: Server | None = None
    load_point: LoadPoint | None = None
    assumed_options: tuple[str, ...] = ()
    is_pretraining: bool = False
