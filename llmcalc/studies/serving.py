"""Servers of a model: layouts that fit by an engine's rules, latencies under load, and the cheapest server.

The number of requests that a replica holds is the engine's allocated cache divided by a request's tokens at its end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import product
from typing import Any

from ..accelerator import Hardware
from ..device_memory.estimate import Memory
from ..errors import InputError
from ..frameworks.argument_names import keyword_of
from ..frameworks.engines.engine import Engine, EngineVersion
from ..frameworks.engines.rank import MissingKernels, ReserveExceedsMemory, StageWithoutCache
from ..frozen import frozen
from ..parallel.layout import ImpossibleLayout, Layout
from ..parallel.rank_program import no_pipeline_reason
from ..sources.preset import Preset
from ..timing.batching import Replica, RequestSizes
from ..timing.device import DEFAULT_DOMAIN_SIZE, Device
from ..timing.disaggregation import DisaggregatedServer
from ..timing.speculation import Speculation
from ..timing.time_ranges import TIE_SHARE
from ..timing.timing_constants import SoftwareStack
from ..timing.trace import StepBudget
from .run_time import inference_formats
from .serve_trace import RequestTrace, TraceTimes, size_server_for_trace
from .server import LatencyLimits, LayoutSizes, LoadPoint, Server, largest_number

MAX_REPLICA_DEVICES = 32
"""Largest number of devices of a replica that is tried."""

MAX_DEVICES = 1024
"""Largest number of devices of a server."""

STAGE_COUNTS = (1, 2, 4)
"""Numbers of pipeline stages that a search for servers tries."""

ATTENTION_RANKS = (2, 4, 8, 16)
"""Numbers of data-parallel attention ranks that a search tries for models with experts."""

TENSOR_RANKS = (1, 2, 4, DEFAULT_DOMAIN_SIZE)
"""Numbers of tensor-parallel ranks that a search for servers tries."""

MAX_STAGES = 8
"""Largest number of pipeline stages that a search tries if no usual layout fits; no measured server has more."""


@frozen
class SizesRequest:
    """The parallel sizes that a user gave for a server; None for sizes to search. devices: of the whole server."""

    devices: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None

    @property
    def states_layout(self) -> bool:
        """Whether the user gave any size of a replica's layout; then the other sizes are 1."""
        return any(group_size is not None for group_size in (self.tp, self.pp, self.dp, self.ep))

    def candidates(self, expert_count: int) -> Iterator[list[LayoutSizes]]:
        """Yields lists of a replica's layouts; a list is tried only if no layout of the lists before it fits.

        After the usual layouts come those with any number of stages or of ranks with attention of their own: at first
        those that use all devices, then those that leave as few devices idle as possible, each with as few stages as
        possible. In a list the fewest devices come first. expert_count: per layer; 0 for a dense model.
        """
        if self.states_layout:
            tp, ep = self.tp or 1, self.ep or 1
            attention_dp = ep // tp if ep > tp and ep % tp == 0 and self.dp in (None, ep // tp) else 1
            yield self._layouts_by_devices([LayoutSizes(tp, self.pp or 1, attention_dp, ep)], self.devices)
            return
        most_devices = min(MAX_REPLICA_DEVICES, self.devices or MAX_REPLICA_DEVICES)
        usual_sizes = [
            candidate_sizes
            for candidate_sizes in _replica_layouts(STAGE_COUNTS, ATTENTION_RANKS, expert_count)
            if candidate_sizes.devices <= most_devices
        ]
        tried_sizes = self._layouts_by_devices(usual_sizes, self.devices)
        yield tried_sizes
        if self.devices is None:
            return
        further_sizes = set(_replica_layouts(range(1, MAX_STAGES + 1), range(2, MAX_REPLICA_DEVICES + 1), expert_count))
        further_sizes.difference_update(tried_sizes)
        for used_devices in range(self.devices, max(0, self.devices - DEFAULT_DOMAIN_SIZE * MAX_STAGES), -1):
            sizes_to_try = self._layouts_by_devices(further_sizes, used_devices)
            further_sizes.difference_update(sizes_to_try)
            for stage_count in range(1, MAX_STAGES + 1):
                yield [layout_sizes for layout_sizes in sizes_to_try if layout_sizes.pp == stage_count]

    @staticmethod
    def _layouts_by_devices(all_sizes: Iterable[LayoutSizes], devices: int | None) -> list[LayoutSizes]:
        """Returns the layouts whose replicas use all devices; layouts with small replicas come first."""
        return sorted(
            (layout_sizes for layout_sizes in all_sizes if devices is None or devices % layout_sizes.devices == 0),
            key=lambda layout_sizes: (layout_sizes.devices, layout_sizes.pp, layout_sizes.dp, layout_sizes.ep),
        )

    def replicas(self, layout_sizes: LayoutSizes) -> int | None:
        """Returns the number of replicas on the given devices; None if the load determines it."""
        if self.devices is not None:
            return self.devices // layout_sizes.devices
        return self.dp if self.dp is not None and layout_sizes.dp == 1 else None


def _replica_layouts(
    stage_counts: Iterable[int], attention_dp_sizes: Sequence[int], expert_count: int
) -> Iterator[LayoutSizes]:
    """Yields a replica's layouts with these numbers of pipeline stages and of data-parallel attention ranks.

    expert_count: per layer; 0 for a dense model.
    """
    for tp, pp in product(TENSOR_RANKS, stage_counts):
        yield LayoutSizes(tp, pp)
        if not expert_count:
            continue
        if tp > 1 and expert_count % tp == 0:
            yield LayoutSizes(tp, pp, 1, tp)
        for dp in attention_dp_sizes if pp == 1 else ():
            if expert_count % (tp * dp) == 0:
                yield LayoutSizes(tp, pp, dp, tp * dp)


@frozen
class ChosenServer:
    """The cheapest server within the latency limits, with its load point. server_index: index of the server."""

    server_index: int
    load_point: LoadPoint


@frozen
class StudiedServers:
    """The server configurations that a search tried, with their load points.

    servers: all that fit, the fewest devices first. load_curves: the points of each.
    load_points: of each, the one at the load that is asked for, or at the largest that keeps the limits; None for none.
    pareto_front: (server, concurrency) of points that no other one beats in both TPOT and tokens/s of a device.
    chosen_server: the cheapest that keeps the limits; None if none does.
    rejection_counts: reason → number of servers and layouts that it rules out.
    limit_verdicts: of each, whether it keeps the limits.
    trace_times: times of the requests of a trace on each; empty without one.
    """

    servers: tuple[Server, ...]
    load_curves: tuple[tuple[LoadPoint, ...], ...]
    load_points: tuple[LoadPoint | None, ...]
    pareto_front: tuple[tuple[int, float], ...]
    chosen_server: ChosenServer | None
    rejection_counts: dict[str, int]
    limit_verdicts: tuple[bool, ...]
    trace_times: tuple[TraceTimes, ...] = ()


@frozen
class ServeStudy:
    """The model, accelerator, load and latency limits for which a server is searched.

    preset, hardware, device, stack: the model and what runs it. engine, version: whose rules say what fits.
    memory_by_formats: (quantize, kv_dtype) → the model's memory on one device with these formats.
    request_sizes, latency_limits: what is served. sizes_request: the layout. price: money of a device and hour; None if
        not given.
    trace: the single requests, of which `request_sizes` are the mean ones; None where all are equal.
    is_disaggregated: whether replicas of their own compute the prompts. prefill_decode_ratio: replicas for prompts and
        replicas that decode, of a group; None for the ratio at which neither waits.
    speculation: what drafts tokens; None for nothing.
    engine_flags: the engine's flags beside those of layout and formats.
    assumption_note: the note on tokens of a request that were not stated; empty for none.
    """

    preset: Preset
    hardware: Hardware
    device: Device
    stack: SoftwareStack
    engine: Engine
    version: EngineVersion
    memory_by_formats: dict[tuple[str | None, str | None], Memory]
    request_sizes: RequestSizes
    latency_limits: LatencyLimits
    sizes_request: SizesRequest
    price: float | None = None
    trace: RequestTrace | None = None
    is_disaggregated: bool = False
    prefill_decode_ratio: tuple[int, int] | None = None
    speculation: Speculation | None = None
    engine_flags: Mapping[str, Any] = field(default_factory=dict)
    assumption_note: str = ""

    @property
    def longest_request(self) -> int:
        """The tokens of the longest request: prompt and answer."""
        return self.request_sizes.total_tokens if self.trace is None else self.trace.longest_request

    @property
    def long_request_variable(self) -> str:
        """The environment variable that the engine needs for requests this long; empty if it needs none."""
        server_flags = {self.engine.field_of_option("--seq"): self.longest_request, **self.engine_flags}
        variable_name: str = self.engine.server(
            self.preset, self.hardware, self.version, server_flags
        ).missing_environment_variable
        return variable_name

    def find_servers(self) -> StudiedServers:
        """Tries every layout with every pair of number formats. Raises `InputError` if no layout is possible."""
        rejection_counts: Counter[str] = Counter()
        fitting_servers = list(self._fitting_servers(rejection_counts))
        if not fitting_servers and not rejection_counts:
            stated_sizes = {size_name: getattr(self.sizes_request, size_name) for size_name in ("tp", "pp", "dp", "ep")}
            sizes_text = " ".join(
                f"--{size_name} {group_size}"
                for size_name, group_size in stated_sizes.items()
                if group_size is not None
            )
            raise ImpossibleLayout(
                f"--devices {self.sizes_request.devices}: no layout of so many is possible{' with ' * bool(sizes_text)}"
                f"{sizes_text}; expected another number or layout"
            )
        tried_servers: list[Server] = []
        points_at_limits: list[LoadPoint | None] = []
        limit_verdicts: list[bool] = []
        all_trace_times: list[TraceTimes] = []
        step_budget = StepBudget()
        for server in fitting_servers:
            if self.trace is None:
                sized_server, load_point, refusal_reason = self._sized_server(server)
            else:
                sized_server, trace_times, refusal_reason = size_server_for_trace(
                    server,
                    self.sizes_request.replicas(server.layout_sizes),
                    self.trace,
                    self.latency_limits,
                    step_budget,
                )
                load_point = sized_server.load_point(
                    min(max(1, round(trace_times.mean_concurrency)), sized_server.most_requests)
                )
                all_trace_times.append(trace_times)
            tried_servers.append(sized_server)
            points_at_limits.append(load_point)
            limit_verdicts.append(load_point is not None and not refusal_reason)
            if refusal_reason:
                rejection_counts[refusal_reason] += 1
        load_curves = [
            tuple(server.load_curve(load_point))
            for server, load_point in zip(tried_servers, points_at_limits, strict=True)
        ]
        return StudiedServers(
            tuple(tried_servers),
            tuple(load_curves),
            tuple(points_at_limits),
            _pareto_front(load_curves),
            _cheapest_server_index(points_at_limits, limit_verdicts, all_trace_times),
            dict(rejection_counts),
            tuple(limit_verdicts),
            tuple(all_trace_times),
        )

    def _fitting_servers(self, rejection_counts: Counter[str]) -> Iterator[Server]:
        """Yields a server with one replica for every layout that fits, and counts the other layouts by reason."""
        for sizes_to_try in self.sizes_request.candidates(self.preset.model.routed_experts):
            has_fitting_server = False
            for server in self._replicas_of_layouts(sizes_to_try, rejection_counts):
                has_fitting_server = True
                yield server
            if has_fitting_server:
                return

    def _replicas_of_layouts(
        self, sizes_to_try: Iterable[LayoutSizes], rejection_counts: Counter[str]
    ) -> Iterator[Server]:
        """Yields a server with one replica for each of these layouts that fits, and counts the others by reason."""
        layer_count = self.preset.model.layer_count
        refusal_reason = no_pipeline_reason(self.preset.model)
        for layout_sizes in sizes_to_try:
            if layout_sizes.pp > 1 and refusal_reason:
                rejection_counts[refusal_reason] += 1
                continue
            if layout_sizes.pp > layer_count:
                rejection_counts["more pipeline stages than layers"] += 1
                continue
            layout_flags = (
                None if self.engine.layout_flags is None else self.engine.layout_flags(*vars(layout_sizes).values())
            )
            if self.speculation is not None and self.speculation.draft_model is not None and layout_sizes.pp > 1:
                rejection_counts["a draft model beside stages is not modelled"] += 1
                continue
            if layout_flags is None:
                rejection_counts[f"{self.engine.title} has no such layout"] += 1
                continue
            for quantize, kv_dtype in self.memory_by_formats:
                try:
                    server = self._replica_server(
                        layout_sizes, layout_sizes.layout(layer_count), layout_flags, quantize, kv_dtype
                    )
                    yield self._disaggregated_server(server) if self.is_disaggregated else server
                except ImpossibleLayout as reason:
                    reason_text = f": {reason}" if self.sizes_request.states_layout else ""
                    rejection_counts[f"the layout does not divide the model{reason_text}"] += 1
                except StageWithoutCache:
                    rejection_counts["a pipeline stage without keys and values is not modelled"] += 1
                except MissingKernels as reason:
                    if len(self.memory_by_formats) == 1:
                        raise
                    rejection_counts[str(reason)] += 1
                except ReplicaDoesNotFit as reason:
                    rejection_counts[str(reason)] += 1

    def _replica_server(
        self,
        layout_sizes: LayoutSizes,
        layout: Layout,
        flag_values: dict[str, object],
        quantize: str | None,
        kv_dtype: str | None,
    ) -> Server:
        """Returns a `Server` with one replica in this layout. Raises `ReplicaDoesNotFit` or `ImpossibleLayout`."""
        engine, request_tokens = self.engine, self.request_sizes.total_tokens
        all_flags = {engine.field_of_option("--seq"): self.longest_request, **flag_values}
        all_flags |= self.engine_flags
        all_flags |= {} if quantize is None else {"quantize": quantize}
        all_flags |= {} if kv_dtype is None else cache_format_flag(engine, kv_dtype)
        try:
            all_flags |= dict.fromkeys(filter(None, [self.long_request_variable]), 1)
            all_flags |= self._exchange_flags(layout, all_flags)
            model_memory = engine.memory_on(self.preset, self.hardware, self.version, all_flags)
            if model_memory.largest_request_limit:
                all_flags |= {engine.request_limit_flag: model_memory.largest_request_limit}
                model_memory = engine.memory_on(self.preset, self.hardware, self.version, all_flags)
            # vLLM prints more tokens than fit beside unequal pages
            cache_tokens = min(model_memory.kv_tokens, round(model_memory.max_concurrency * model_memory.max_model_len))
            request_capacity = cache_tokens // request_tokens
            if not model_memory.can_start or cache_tokens < self.longest_request:
                raise ReplicaDoesNotFit("weights and the cache of one request do not fit")
            memory_with_formats = self.memory_by_formats[quantize, kv_dtype]
            number_formats = inference_formats(memory_with_formats, self.request_sizes.mean_context).formats_on(
                self.device
            )
            most_step_tokens = model_memory.settings.get(engine.batch_tokens_flag)
            replica = Replica(
                self.preset.model,
                self.device,
                self.stack,
                self.request_sizes,
                layout,
                number_formats,
                most_step_tokens,
                self.speculation,
                waited_step_share=1.0 if self.latency_limits.rate is None else 0.5,
            )
            replica.decoding_pass(1)  # sizes that the layout does not divide raise here
        except ReplicaDoesNotFit:
            raise
        except ReserveExceedsMemory as error:
            if self.sizes_request.states_layout:
                raise
            raise ReplicaDoesNotFit(f"the default {error.option_name} leaves no memory") from None
        except InputError as error:
            if "divide" not in str(error) and not isinstance(error, ImpossibleLayout):
                raise
            raise ImpossibleLayout(str(error)) from None
        request_limits = (request_capacity, engine.request_limit(model_memory), model_memory.requests_with_states)
        requests_per_rank = min(request_limit for request_limit in request_limits if request_limit is not None)
        most_requests = max(1, requests_per_rank) * layout_sizes.dp
        engine_flags = {flag_name: flag_value for flag_name, flag_value in all_flags.items() if flag_name != "quantize"}
        return Server(
            layout_sizes,
            quantize,
            kv_dtype,
            replica,
            model_memory,
            most_requests,
            engine_flags,
            price=self.price,
            has_equal_requests=self.latency_limits.rate is None and self.trace is None,
        )

    def _exchange_flags(self, layout: Layout, used_flags: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the engine's flags for its expert-parallel library; empty if it all-gathers tokens instead."""
        if not self.stack.exchange_option or self.stack.gathers_on(layout.dp, layout.ep):
            return {}
        option_name, library_name = self.stack.exchange_option.split()
        if self.engine.exchange_flags is None:
            return {keyword_of(option_name): self.engine_flags.get(keyword_of(option_name), library_name)}
        server = self.engine.server(self.preset, self.hardware, self.version, used_flags)
        exchange_flags: dict[str, Any] = self.engine.exchange_flags(server, library_name)
        return exchange_flags

    def _disaggregated_server(self, server: Server) -> Server:
        """Returns a server of replica groups, in which some replicas process prompts and the others decode.

        Raises `ReplicaDoesNotFit` if the requested devices are too few for both, or no whole number of groups.
        """
        replica, replica_count = server.replica, self.sizes_request.replicas(server.layout_sizes)
        if self.prefill_decode_ratio is not None:
            replica_group = DisaggregatedServer(replica, *self.prefill_decode_ratio)
            if replica_count is not None and replica_count % replica_group.replicas:
                raise ReplicaDoesNotFit("the devices are no whole number of groups of --disaggregate")
        elif replica_count == 1:
            raise ReplicaDoesNotFit("one replica alone cannot leave its prompts to others")
        else:
            replica_pair = DisaggregatedServer(replica, 1, 1)
            most_sequences = server.most_sequences
            tpot_limit = self.latency_limits.tpot
            if tpot_limit is not None:
                most_sequences = largest_number(
                    lambda number: replica_pair.token_seconds(number) <= tpot_limit, most_sequences
                )
            replica_group = DisaggregatedServer.balanced_group(replica, max(1, most_sequences), replica_count)
        return replace(
            server,
            disaggregated_server=replica_group,
            most_sequences=server.most_sequences * replica_group.decode_replicas,
        )

    def _replica_count(self, server: Server) -> int | None:
        """Returns the number of replicas or of replica groups; None if the load determines it."""
        replica_count = self.sizes_request.replicas(server.layout_sizes)
        if replica_count is None or server.disaggregated_server is None:
            return replica_count
        return replica_count // server.disaggregated_server.replicas

    def _sized_server(self, server: Server) -> tuple[Server, LoadPoint | None, str]:
        """Returns the server with enough replicas for the load and the limits, or the reason why no number suffices.

        Without a stated load, the load is the largest one within the limits.
        """
        latency_limits, replica_count = self.latency_limits, self._replica_count(server)
        concurrency_within_limits = server.most_requests_within_limits(latency_limits)
        if not concurrency_within_limits:
            return replace(server, replicas=replica_count or 1), None, server.violation_reason(latency_limits, 1)
        if latency_limits.rate is not None:
            return self._sized_server_for_rate(server, replica_count, concurrency_within_limits, latency_limits.rate)
        concurrency = latency_limits.concurrency or concurrency_within_limits * (replica_count or 1)
        sized_server = replace(server, replicas=replica_count or -(-concurrency // concurrency_within_limits))
        if sized_server.devices > MAX_DEVICES and replica_count is None:
            return replace(server, replicas=1), None, f"more than {MAX_DEVICES:,} devices"
        if concurrency > sized_server.most_requests:
            return sized_server, None, "the cache holds fewer requests than --concurrency"
        load_point = sized_server.load_point(concurrency)
        return sized_server, load_point, latency_limits.violation_reason(load_point.replica_latencies)

    def _sized_server_for_rate(
        self, server: Server, replicas: int | None, concurrency_within_limits: int, request_rate: float
    ) -> tuple[Server, LoadPoint | None, str]:
        highest_request_rate = server.latencies(concurrency_within_limits).requests_per_second
        sized_server = replace(server, replicas=replicas or math.ceil(request_rate / highest_request_rate))
        if sized_server.devices > MAX_DEVICES and replicas is None:
            return replace(server, replicas=1), None, f"more than {MAX_DEVICES:,} devices"
        load_point = sized_server.load_point_at_rate(request_rate)
        if load_point is None:
            return sized_server, None, "fewer requests per second than --rate"
        return sized_server, load_point, self.latency_limits.violation_reason(load_point.replica_latencies)


def _cheapest_server_index(
    load_points: Sequence[LoadPoint | None], limit_verdicts: Sequence[bool], traces: Sequence[TraceTimes]
) -> ChosenServer | None:
    """Returns the index of the server with the most output tokens/s per device, so the cheapest at any price.

    Among tied servers it is the one with the fewest devices, then the one with the simplest layout, which comes first.
    A server whose time was never tested, such as one with wide expert parallelism, is chosen only among its like.
    Among servers of a trace, which serve the same tokens, it is the one with the fewest devices.
    """
    candidate_points = [
        (server_index, load_point)
        for server_index, (load_point, is_within_limits) in enumerate(zip(load_points, limit_verdicts, strict=True))
        if load_point is not None and is_within_limits
    ]
    if not candidate_points:
        return None
    candidate_points = [
        candidate for candidate in candidate_points if candidate[1].tpot.tested_class is not None
    ] or candidate_points
    if traces:
        return ChosenServer(
            *min(
                candidate_points,
                key=lambda indexed_point: (indexed_point[1].devices, traces[indexed_point[0]].tpot[50].estimate),
            )
        )
    least_rate = max(load_point.tokens_per_second_per_device for _, load_point in candidate_points) * (1 - TIE_SHARE)
    tied_servers = [
        (tied_index, tied_point)
        for tied_index, tied_point in candidate_points
        if tied_point.tokens_per_second_per_device >= least_rate
    ]
    return ChosenServer(*min(tied_servers, key=lambda indexed_point: (indexed_point[1].devices, indexed_point[0])))


class ReplicaDoesNotFit(Exception):
    """Raised if a replica's weights and KV cache do not fit, with a short reason."""


def cache_format_flag(engine: Engine, kv_dtype: str) -> dict[str, str]:
    """Returns the engine's command-line value for a KV-cache number format, matched by prefix.

    Raises `InputError` for a format that the engine does not have.
    """
    option_name = engine.flags_by_option["--kv-dtype"]
    format_flag = next(format_flag for format_flag in engine.known_flags() if option_name in format_flag.names)
    dtype_prefixes = {"bf16": ("bf16", "bfloat16", "auto"), "fp16": ("fp16", "float16", "auto")}.get(
        kv_dtype, (kv_dtype,)
    )
    flag_value = next(
        (
            flag_word
            for dtype_prefix in dtype_prefixes
            for flag_word in format_flag.choices
            if flag_word.startswith(dtype_prefix)
        ),
        None,
    )
    if flag_value is None:
        raise InputError(
            f"--kv-dtype {kv_dtype}: {engine.title} has no such cache; expected one of {', '.join(format_flag.choices)}"
        )
    return {format_flag.field_name: flag_value}


def _pareto_front(load_curves: Sequence[Sequence[LoadPoint]]) -> tuple[tuple[int, float], ...]:
    """Returns the Pareto front: the load points that no other point beats in both TPOT and tokens/s per device."""
    load_points = [
        (server_index, load_point) for server_index, load_curve in enumerate(load_curves) for load_point in load_curve
    ]
    load_points.sort(
        key=lambda indexed_point: (
            float(indexed_point[1].tpot.estimate),
            -indexed_point[1].tokens_per_second_per_device,
        )
    )
    pareto_front_points, best_rate = [], 0.0
    for server_index, load_point in load_points:
        if load_point.tokens_per_second_per_device > best_rate:
            best_rate = load_point.tokens_per_second_per_device
            pareto_front_points.append((server_index, load_point.concurrency))
    return tuple(pareto_front_points)
