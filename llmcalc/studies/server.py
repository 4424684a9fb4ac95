"""One server of a model: layout, number formats, latencies under load, and latency limits.

A server is one replica or several equal ones, each with an equal part of the requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from ..algebra import Number
from ..frameworks.engines.engine import EngineMemory
from ..frozen import frozen
from ..parallel.layout import Layout
from ..timing.batching import LoadLatencies, Replica
from ..timing.disaggregation import DisaggregatedServer
from ..timing.time_ranges import RangedAmount, TimeRange, expected_range, untested_layout_text

SECONDS_OF_AN_HOUR = 3600.0


def largest_number(is_within_limits: Callable[[int], bool], maximum: int) -> int:
    """Returns the largest number from 1 to `maximum` for which a monotonic condition holds; 0 if none does."""
    return bisect_left(range(1, maximum + 1), True, key=lambda request_count: not is_within_limits(request_count))


@frozen
class LatencyLimits:
    """The latency limits that a server must meet; a field that is None is no limit.

    concurrency: requests at any time. rate: requests per second that arrive.
    ttft, tpot: seconds to the first token and of each further token, at most.
    """

    concurrency: int | None = None
    rate: float | None = None
    ttft: float | None = None
    tpot: float | None = None

    def violation_reason(self, load_latencies: LoadLatencies) -> str:
        """Returns the reason why a replica's latencies exceed the limits; empty if they do not."""
        if self.tpot is not None and load_latencies.tpot > self.tpot:
            return "TPOT above --tpot"
        if self.ttft is not None and load_latencies.ttft > self.ttft:
            return "TTFT above --ttft"
        return ""

    def are_at_risk(self, ttft: TimeRange) -> bool:
        """Whether the range of the time to the first token (TTFT) ends above its limit."""
        return self.ttft is not None and bool(ttft.high > self.ttft)


@frozen
class LayoutSizes:
    """The parallel sizes of a replica. dp: data-parallel attention ranks, which share the experts."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp

    def layout(self, layer_count: int) -> Layout:
        """Returns the layout of a replica. Raises `InputError` for contradictory sizes."""
        layers_per_stage = None
        if layer_count % self.pp:
            layers_per_stage = tuple(
                layer_count // self.pp + (stage_index < layer_count % self.pp) for stage_index in range(self.pp)
            )
        etp = self.tp * self.dp // self.ep if self.ep > 1 else None
        return Layout(tp=self.tp, pp=self.pp, dp=self.dp, ep=self.ep, etp=etp, pp_layout=layers_per_stage)


@frozen
class LoadPoint:
    """The latencies, rates and cost of a server at one concurrency. ttft, tpot: in seconds, with ranges.

    replica_latencies: load of one replica, as its requests arrive. spread_latencies: the same requests where arrivals
        are spread.

    concurrency: requests in all replicas; for a rate of arrivals, their mean number, which may be below 1.
    cost_per_million: money of a million output tokens; None without a price.
    """

    concurrency: float
    devices: int
    replica_latencies: LoadLatencies
    spread_latencies: LoadLatencies
    replicas: int
    ttft: TimeRange
    tpot: TimeRange
    cost_per_million: float | None

    @property
    def output_tokens_per_second(self) -> float:
        return self.replicas * self.replica_latencies.output_tokens_per_second

    @property
    def tokens_per_second_per_device(self) -> float:
        """Output tokens per second and device."""
        return self.output_tokens_per_second / self.devices

    @property
    def end_to_end_seconds(self) -> RangedAmount:
        """The seconds from a request's arrival to its last token, with a range."""
        further_tokens = self.replica_latencies.output_tokens - 1
        latency_parts = zip(self.ttft.amount, self.tpot.amount, strict=True)
        return RangedAmount(*(ttft + further_tokens * tpot for ttft, tpot in latency_parts))


@frozen
class Server:
    """A server under load: the layout and number formats of a replica, and the number of replicas.

    layout_sizes, quantize, kv_dtype: of the replica; None for the published formats.
    replica: what computes its times. memory: what the engine does with a rank's memory.
    most_sequences: requests that a replica, or a group of them, holds.
    replicas: number of copies. price: money of a device and hour; None if not given.
    flags: the engine's flags that start a replica.
    disaggregated_server: the replicas for prompts and those that decode, of which there are `replicas` groups; None if
        each does both.
    has_equal_requests: whether a fixed number of equal requests is in the server at any time; default false, for a rate
        of arrivals and for a trace.
    """

    layout_sizes: LayoutSizes
    quantize: str | None
    kv_dtype: str | None
    replica: Replica
    memory: EngineMemory
    most_sequences: int
    flags: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    price: float | None = None
    disaggregated_server: DisaggregatedServer | None = None
    has_equal_requests: bool = False

    @property
    def devices(self) -> int:
        return (
            self.layout_sizes.devices
            * self.replicas
            * (1 if self.disaggregated_server is None else self.disaggregated_server.replicas)
        )

    @property
    def has_requests_in_waves(self) -> bool:
        """Whether requests end at the same time, so that the next requests also arrive together.

        Equal requests at a fixed concurrency do, as those of `vllm bench serve --max-concurrency`
        (tests/data/timing/CAUSES.md). Replicas for prompts compute them one by one, so that their requests end apart.
        """
        return self.has_equal_requests and self.disaggregated_server is None

    def latencies(self, concurrency: float) -> LoadLatencies:
        """Returns the latencies of one replica, or of one group of replicas, at a concurrency."""
        return self._load_as_requests_arrive(self._spread_latencies(concurrency))

    def _spread_latencies(self, concurrency: float) -> LoadLatencies:
        return (self.replica if self.disaggregated_server is None else self.disaggregated_server).latencies(concurrency)

    def _load_as_requests_arrive(self, spread_load: LoadLatencies) -> LoadLatencies:
        return spread_load.latencies_in_waves if self.has_requests_in_waves else spread_load

    @property
    def kv_tokens(self) -> int:
        """The number of tokens that one replica's caches hold."""
        return self.memory.kv_tokens * self.layout_sizes.dp

    def time_range(self, seconds: float, phase: str, burst_seconds: float | None = None) -> TimeRange:
        """Returns the range around an estimate in seconds. burst_seconds: as in `expected_range`.

        The widest range with drafted tokens, and with separate devices for prompts, because these were never measured.
        """
        replica = self.replica
        untested_reason = untested_layout_text(replica.stack, replica.layout)
        untested_reason = untested_reason if self.disaggregated_server is None else "prompts on replicas of their own"
        untested_reason = untested_reason if replica.speculation is None else "drafted tokens"
        return expected_range(
            seconds, phase, replica.device, replica.stack, replica.spec, untested_reason, burst_seconds
        )

    def load_point(self, concurrency: int) -> LoadPoint:
        """Returns the `LoadPoint` at a concurrency, which is divided evenly over the replicas."""
        replica_concurrency = concurrency / self.replicas
        replica_load = replace(self._spread_latencies(max(1.0, replica_concurrency)), concurrency=replica_concurrency)
        return self._point_of_load(concurrency, replica_load)

    def load_point_at_rate(self, request_rate: float) -> LoadPoint | None:
        """Returns the `LoadPoint` at `request_rate` requests per second; None if the server completes fewer.

        As many requests complete as arrive. The mean number of requests in a replica is their rate times their latency
        (Little's law). A request that is alone most of the time has the latencies of a single request.
        """
        replica_rate = request_rate / self.replicas
        slow_concurrency = largest_number(
            lambda request_count: self.latencies(request_count).requests_per_second < replica_rate, self.most_sequences
        )
        if slow_concurrency == self.most_sequences:
            return None
        replica_load = self.latencies(1)
        if slow_concurrency:
            slower_rate, faster_rate = (
                self.latencies(slow_concurrency + extra_requests).requests_per_second for extra_requests in (0, 1)
            )
            replica_load = self.latencies(slow_concurrency + (replica_rate - slower_rate) / (faster_rate - slower_rate))
        replica_load = replace(replica_load, concurrency=replica_rate * replica_load.end_to_end_seconds)
        return self._point_of_load(replica_load.concurrency * self.replicas, replica_load)

    def _point_of_load(self, concurrency: float, spread_load: LoadLatencies) -> LoadPoint:
        """Returns the server's `LoadPoint`, computed from one replica's latencies under evenly spread arrivals."""
        load_latencies = self._load_as_requests_arrive(spread_load)
        tokens_per_second = self.replicas * load_latencies.output_tokens_per_second
        cost_per_million = (
            None if self.price is None else self.price * self.devices / SECONDS_OF_AN_HOUR / tokens_per_second * 1e6
        )
        ttft, tpot = self._ttft_range(spread_load), self.time_range(load_latencies.tpot, "decode")
        return LoadPoint(
            concurrency, self.devices, load_latencies, spread_load, self.replicas, ttft, tpot, cost_per_million
        )

    def _ttft_range(self, load_latencies: LoadLatencies) -> TimeRange:
        """Returns the range of the TTFT: low end with evenly spread arrivals, high end in a burst.

        A first token beside other requests takes as long as a request alone at least, although other measured rows
        give the ends of its range.
        """
        ttft = self.time_range(
            load_latencies.ttft, "prefill", load_latencies.ttft_of_burst if load_latencies.concurrency > 1 else None
        )
        if load_latencies.concurrency > 1:
            ttft = replace(ttft, low=max(ttft.low, min(self._lowest_ttft, ttft.estimate)))
        return replace(ttft, estimate=self._load_as_requests_arrive(load_latencies).ttft)

    @cached_property
    def _lowest_ttft(self) -> Number:
        """The lower end of the range of the TTFT of a single request."""
        return self.time_range(self.latencies(1).ttft, "prefill").low

    def violation_reason(self, latency_limits: LatencyLimits, concurrency: int) -> str:
        """Returns the reason why one replica's latencies exceed the limits; empty if they do not."""
        return latency_limits.violation_reason(self.latencies(concurrency))

    def with_replicas(self, replica_count: int) -> Server:
        """Returns the server with another number of replicas."""
        return replace(self, replicas=replica_count)

    @cached_property
    def most_requests(self) -> int:
        """The maximum number of concurrent requests in all replicas."""
        return self.most_sequences * self.replicas

    def load_curve(self, requested_point: LoadPoint | None = None) -> list[LoadPoint]:
        """Returns the server's `LoadPoint`s at 1, 2, 4, … concurrent requests and at its maximum.

        requested_point: the point of the load that is asked for; default none.
        """
        concurrencies = {2**exponent for exponent in range(self.most_requests.bit_length())} | {self.most_requests}
        load_points = {
            concurrency: self.load_point(concurrency) for concurrency in concurrencies if concurrency >= self.replicas
        }
        load_points |= {} if requested_point is None else {requested_point.concurrency: requested_point}
        return [load_points[request_count] for request_count in sorted(load_points)]

    def most_requests_within_limits(self, latency_limits: LatencyLimits) -> int:
        """Returns the most concurrent requests of one replica within the limits; 0 if a single request exceeds them."""
        if latency_limits.ttft is None and latency_limits.tpot is None:
            return self.most_sequences
        return largest_number(lambda count: not self.violation_reason(latency_limits, count), self.most_sequences)
