"""Servers that serve a request trace: their latency percentiles, and the fewest replicas within latency limits."""

from __future__ import annotations

from collections.abc import Sequence

from ..frozen import frozen
from ..timing.time_ranges import RangedAmount
from ..timing.trace import ServedRequest, StepBudget, StepSeconds, TracedRequest, serve_trace
from .server import LatencyLimits, Server

PERCENTILES = (50, 90, 99)
"""Percentiles of request latencies that are reported."""

LIMIT_PERCENTILE = 90
"""Percentile of request latencies that must be within the limits."""

MAX_REPLICAS = 64
"""Most replicas that are tried for a trace."""


@frozen
class RequestTrace:
    """Requests in the order of arrival, and the fraction of each prompt that is in the prefix cache."""

    requests: tuple[TracedRequest, ...]
    cached_share: float = 0.0

    @property
    def duration_seconds(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.requests[-1].arrival_seconds

    @property
    def rate(self) -> float | None:
        """Requests per second; None if all requests arrive at once."""
        return (len(self.requests) - 1) / self.duration_seconds if self.duration_seconds else None

    @property
    def mean_input_tokens(self) -> int:
        return max(1, round(sum(request.input_tokens for request in self.requests) / len(self.requests)))

    @property
    def mean_output_tokens(self) -> int:
        return max(1, round(sum(request.output_tokens for request in self.requests) / len(self.requests)))

    @property
    def longest_request(self) -> int:
        """The tokens of the longest request, prompt and answer together."""
        return max(request.input_tokens + request.output_tokens for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.output_tokens for request in self.requests)


@frozen
class TraceTimes:
    """The latencies of a trace's requests on a server, in seconds.

    ttft, tpot: percentile → seconds. seconds: until the last token. output_tokens_per_second: over this time.
    mean_concurrency: requests in the server, on average over this time (Little's law).
    """

    ttft: dict[int, RangedAmount]
    tpot: dict[int, RangedAmount]
    seconds: float
    output_tokens_per_second: float
    mean_concurrency: float


def trace_times(server: Server, trace: RequestTrace, step_seconds: StepSeconds, budget: StepBudget) -> TraceTimes:
    """Simulates a trace on a server three times: with the likely seconds per step, and with both ends of the range.

    step_seconds: of the server's replica. budget: the steps that may be simulated.
    """
    ratio_range = server.time_range(1.0, "decode")
    simulated_runs = [
        _simulate_trace(server, trace, step_seconds, float(time_scale), budget)
        for time_scale in (1.0, ratio_range.low, ratio_range.high)
    ]
    estimated_run = simulated_runs[0]
    trace_seconds = max(request.end_seconds for request in estimated_run)
    further_tokens = trace.mean_output_tokens - 1
    seconds_in_server = sum(request.ttft + (request.tpot or 0.0) * further_tokens for request in estimated_run)
    ttft = _percentiles_of_runs([[request.ttft for request in served_requests] for served_requests in simulated_runs])
    tpot = _percentiles_of_runs([_tpots_of_requests(served_requests) for served_requests in simulated_runs])
    return TraceTimes(ttft, tpot, trace_seconds, trace.output_tokens / trace_seconds, seconds_in_server / trace_seconds)


def _simulate_trace(
    server: Server, trace: RequestTrace, step_seconds: StepSeconds, seconds_scale: float, budget: StepBudget
) -> list[ServedRequest]:
    return serve_trace(
        server.replica,
        step_seconds,
        server.replicas,
        trace.requests,
        server.most_sequences,
        server.kv_tokens,
        trace.cached_share,
        seconds_scale,
        budget,
    )


def _tpots_of_requests(served_requests: Sequence[ServedRequest]) -> list[float]:
    return [request.tpot for request in served_requests if request.tpot is not None]


def _percentiles_of_runs(simulated_latencies: Sequence[Sequence[float]]) -> dict[int, RangedAmount]:
    """Returns each latency percentile in the likely, the fast and the slow simulation; 0 if no request has it."""
    return {
        percentile: RangedAmount(*(_percentile(seconds_of_run, percentile) for seconds_of_run in simulated_latencies))
        for percentile in PERCENTILES
    }


def _percentile(request_seconds: Sequence[float], percent: int) -> float:
    """Returns a percentile of the requests' seconds; 0 without requests."""
    sorted_seconds = sorted(request_seconds) or [0.0]
    return sorted_seconds[min(len(sorted_seconds) - 1, len(sorted_seconds) * percent // 100)]


def size_server_for_trace(
    server: Server, replicas: int | None, trace: RequestTrace, latency_limits: LatencyLimits, budget: StepBudget
) -> tuple[Server, TraceTimes, str]:
    """Returns the server with the fewest replicas that meet the latency limits, or the reason why none does.

    replicas: their number, if it is given. Without limits one replica is enough. The upper end of TTFT's range is
        compared with its limit.
    budget: the steps that may be simulated for this server and those after it.
    Raises `InputError` if they are not enough.
    """
    sequences_per_batch = max(1, server.most_sequences // server.replica.batch_count)
    step_seconds = StepSeconds.tabulate(
        server.replica, sequences_per_batch, trace.longest_request, trace.mean_input_tokens
    )

    longest_step_ratio = float(server.time_range(1.0, "decode").high)

    def undersize_reason(replica_count: int) -> str:
        sized_server = server.with_replicas(replica_count)
        if latency_limits.tpot is not None:
            tpots = _tpots_of_requests(_simulate_trace(sized_server, trace, step_seconds, 1.0, budget))
            if _percentile(tpots, LIMIT_PERCENTILE) > latency_limits.tpot:
                return "TPOT of one request in ten above --tpot"
        if latency_limits.ttft is not None:
            served_requests = _simulate_trace(sized_server, trace, step_seconds, longest_step_ratio, budget)
            if _percentile([request.ttft for request in served_requests], LIMIT_PERCENTILE) > latency_limits.ttft:
                return "TTFT of one request in ten above --ttft"
        return ""

    insufficient_count, sufficient_count = 0, replicas or 1  # the former is too few
    broken_limit = undersize_reason(sufficient_count)
    while broken_limit and replicas is None and sufficient_count < MAX_REPLICAS:
        insufficient_count, sufficient_count = sufficient_count, 2 * sufficient_count
        broken_limit = undersize_reason(sufficient_count)
    while not broken_limit and replicas is None and sufficient_count - insufficient_count > 1:
        middle_count = (insufficient_count + sufficient_count) // 2
        insufficient_count, sufficient_count = (
            (middle_count, sufficient_count) if undersize_reason(middle_count) else (insufficient_count, middle_count)
        )
    sized_server = server.with_replicas(sufficient_count)
    return sized_server, trace_times(sized_server, trace, step_seconds, budget), broken_limit
