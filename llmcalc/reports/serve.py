"""The report of `llmcalc serve`: the cheapest server within the limits, other servers, and a load curve."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from .. import units
from ..costs.context_length import learned_positions
from ..frameworks.engines.start_command import start_command
from ..studies.serve_trace import LIMIT_PERCENTILE, TraceTimes
from ..studies.server import LoadPoint, Server
from ..studies.serving import ServeStudy, StudiedServers
from ..timing.disaggregation import DisaggregatedServer
from ..timing.speculation import Speculation
from ..timing.time_ranges import TIE_SHARE, RangedAmount, TimeRange, round_to_digits
from .document import Column, DisplayedValue, Report, Row, Table, displayed_text
from .notes import counted_noun, device_phrase, published_tag_notes, too_long_notes, warnings_of_notes
from .summary import model_data
from .time_estimate import duration_text, exchange_notes, range_unit, test_errors_text, unknown_link_notes

UNCOUNTED_EFFECTS = (
    "routing between replicas", "requests of uneven length", "uneven routing of experts", "uneven stages", "failures",
)  # fmt: skip
"""Effects that no estimate of a server counts; with spread arrivals, bursts are not counted either."""


def money_text(money_amount: float) -> str:
    """Returns an amount of money as text with three significant digits, without a currency."""
    return f"{money_amount:,.0f}" if money_amount >= 1000 else f"{money_amount:.3g}"


def _rate_text(token_rate: float) -> str:
    return f"{token_rate:,.0f}" if token_rate >= 10 else f"{token_rate:.2g}"


def users_text(user_count: float) -> str:
    """Returns a number of concurrent requests as text; arrival rates may give a number below 1: `64`, `0.031`."""
    return units.exact_text(int(user_count)) if user_count == int(user_count) else _rate_text(user_count)


SHARED_COLUMNS = (
    Column("concurrency", "users", users_text),
    Column("ttft", "TTFT", displayed_text),
    Column("tpot", "TPOT", displayed_text),
)

RATE_COLUMNS = (
    Column("output_tokens_per_second", "tokens/s", _rate_text),
    Column("per_device", "a device", _rate_text),
    Column("cost_per_million", "a million", money_text),
)

SERVER_COLUMNS = (
    Column("server", "server", justify="left", may_wrap=True),
    Column("devices", "devices", units.exact_text),
    *SHARED_COLUMNS,
    *RATE_COLUMNS,
    Column("keeps", "kept", justify="left", is_verdict=True),
)

TRACE_COLUMNS = (
    Column("server", "server", justify="left", may_wrap=True),
    Column("devices", "devices", units.exact_text),
    Column("ttft_50", "TTFT p50", displayed_text),
    Column("ttft_90", "TTFT p90", displayed_text),
    Column("tpot_90", "TPOT p90", displayed_text),
    *RATE_COLUMNS,
    Column("keeps", "kept", justify="left", is_verdict=True),
)
"""Columns of servers that serve a trace: percentiles of its requests, each with its range."""

CURVE_COLUMNS = (
    *SHARED_COLUMNS,
    Column("tpot_likely", "likely", displayed_text),
    Column("end_to_end", "end to end", displayed_text),
    *RATE_COLUMNS,
)


def layout_text(server: Server) -> str:
    """Returns a server's replicas, layout and number formats as text: `2 × tp4 pp2, fp8-dynamic, kv fp8`.

    For a group it writes the replicas for prompts and the replicas for decoding: `2 × (1+3) tp4`.
    """
    layout_sizes = server.layout_sizes
    sizes_text = (
        " ".join(f"{size_name}{group_size}" for size_name, group_size in vars(layout_sizes).items() if group_size > 1)
        or "tp1"
    )
    prefill_decode_text = (
        ""
        if server.disaggregated_server is None
        else f"({server.disaggregated_server.prefill_replicas}+{server.disaggregated_server.decode_replicas}) "
    )
    replicas_text = f"{server.replicas} × " if server.replicas > 1 else ""
    replicas_text += prefill_decode_text
    format_texts = [server.quantize, None if server.kv_dtype is None else f"kv {server.kv_dtype}"]
    return ", ".join([f"{replicas_text}{sizes_text}", *filter(None, format_texts)])


def report(serve_study: ServeStudy, studied_servers: StudiedServers) -> Report:
    """Returns the report of a study of servers as data and as tables."""
    from ..workload.workload import Workload

    preset, request_sizes = serve_study.preset, serve_study.request_sizes
    warnings = too_long_notes(preset.model, Workload(1, request_sizes.total_tokens))
    chosen_server = studied_servers.chosen_server
    variable_name = serve_study.long_request_variable
    if variable_name and not _exceeds_learned_positions(serve_study):
        warnings.append(
            f"{serve_study.engine.title} refuses requests of {serve_study.longest_request:,} tokens without "
            f"{variable_name}=1"
        )
    notes = [*warnings, *filter(None, [serve_study.assumption_note]), *_serve_notes(serve_study, studied_servers)]
    if any(weight_format is None for weight_format, _ in serve_study.memory_by_formats):
        notes[:0] = published_tag_notes(preset, serve_study.engine.title, "llmcalc time")
    title = f"{preset.display}, {load_text(serve_study)}"
    table_rows = _server_rows(serve_study, studied_servers)
    table_columns = list(SERVER_COLUMNS)
    if serve_study.trace is not None:
        table_rows, table_columns = _trace_rows(serve_study, studied_servers), list(TRACE_COLUMNS)
    table_columns = _server_columns(table_columns, serve_study)
    answer_text = _answer_text(serve_study, studied_servers)
    tables = [Table(title, table_columns, table_rows, _subtitle_text(serve_study), notes, answer_text, name="servers")]
    if chosen_server is not None:
        server = studied_servers.servers[chosen_server.server_index]
        table_rows = [
            Row(_curve_cells(load_point, serve_study), is_bold=load_point == chosen_server.load_point)
            for load_point in studied_servers.load_curves[chosen_server.server_index]
        ]
        tables.append(
            Table(
                f"Load of {layout_text(server)}", _server_columns(CURVE_COLUMNS, serve_study), table_rows, name="curve"
            )
        )
    json_document = _serve_data(serve_study, studied_servers)
    return Report(
        json_document, tables, warnings=warnings_of_notes(preset, warnings), counts_note_lines=True
    ).with_target(preset.target)


def load_text(serve_study: ServeStudy) -> str:
    """Returns the load of a study of servers as text: `64 users of 8,192 + 1,024 tokens`."""
    latency_limits, request_sizes = serve_study.latency_limits, serve_study.request_sizes
    if serve_study.trace is not None:
        trace_text = duration_text(serve_study.trace.duration_seconds)
        requests_text = f"{counted_noun(len(serve_study.trace.requests), 'request')} in {trace_text}"
        return f"{requests_text}, {request_sizes.input_tokens:,} + {request_sizes.output_tokens:,} tokens on average"
    requests_text = "requests" if latency_limits.rate is None else f"{latency_limits.rate:g} requests/s"
    requests_text = (
        requests_text if latency_limits.concurrency is None else counted_noun(latency_limits.concurrency, "user")
    )
    return f"{requests_text} of {request_sizes.input_tokens:,} + {request_sizes.output_tokens:,} tokens"


def _server_columns(columns: Sequence[Column], serve_study: ServeStudy) -> list[Column]:
    """Returns the columns of the table of servers, with the cost per million tokens if there is a price."""
    unused_column = "cost_per_million" if serve_study.price is None else "per_device"
    return [column for column in columns if column.key != unused_column]


def _answer_text(serve_study: ServeStudy, studied_servers: StudiedServers) -> str:
    chosen_server = studied_servers.chosen_server
    if chosen_server is None:
        return "no server keeps the limits" if studied_servers.servers else "no server fits"
    server, token_price = studied_servers.servers[chosen_server.server_index], chosen_server.load_point.cost_per_million
    if studied_servers.trace_times:
        token_price = _token_cost_of_trace(serve_study, server, studied_servers.trace_times[chosen_server.server_index])
    cost_text = "" if token_price is None else f", {money_text(token_price)} per million tokens"
    idle_devices = (serve_study.sizes_request.devices or server.devices) - server.devices
    idle_text = f", {idle_devices} of {serve_study.sizes_request.devices} left idle" if idle_devices else ""
    return f"{layout_text(server)} on {device_phrase(server.devices, serve_study.hardware.title)}{idle_text}{cost_text}"


def _subtitle_text(serve_study: ServeStudy) -> str:
    latency_limits = serve_study.latency_limits
    ttft_text = "likely TTFT" if serve_study.trace is None else "TTFT of nine of ten"
    limit_texts = [f"{ttft_text} ≤ {duration_text(latency_limits.ttft)}"] if latency_limits.ttft is not None else []
    limit_texts += [f"likely TPOT ≤ {duration_text(latency_limits.tpot)}"] if latency_limits.tpot is not None else []
    cached_tokens = serve_study.request_sizes.cached_tokens
    return ", ".join(
        [
            f"{serve_study.engine.title} {serve_study.version.version}",
            *limit_texts,
            *([f"{cached_tokens:,} tokens of a prompt cached"] if cached_tokens else []),
            *([f"{serve_study.price:g} a device and hour"] if serve_study.price is not None else []),
        ]
    )


AT_RISK_VERDICT = "at risk"
"""Verdict on a server whose likely time to the first token is within the limit, but whose range ends above it."""

AT_RISK_IN_BURST, AT_RISK_IF_SPREAD = "79 %", "68 %"
"""Percentages of measured servers "at risk" that kept limits of 0.2 to 5 s (tests/timing/test_measured.py).

The first counts servers by the likely first token of a burst, the second by that of spread arrivals.
"""


def _server_rows(serve_study: ServeStudy, studied_servers: StudiedServers) -> list[Row]:
    """Returns rows of servers: the chosen server, the others within the limits by price, then the rest."""
    chosen_server = studied_servers.chosen_server
    table_rows = []
    for server_index in sorted(range(len(studied_servers.servers)), key=partial(_server_sort_key, studied_servers)):
        server, load_point = studied_servers.servers[server_index], studied_servers.load_points[server_index]
        is_within_limits = studied_servers.limit_verdicts[server_index]
        shown_point = (
            load_point or studied_servers.load_curves[server_index][-1 if serve_study.latency_limits.concurrency else 0]
        )
        if not is_within_limits:
            verdict = "no"
        elif serve_study.latency_limits.are_at_risk(shown_point.ttft):
            verdict = AT_RISK_VERDICT
        else:
            verdict = "ok"
        row_cells = [layout_text(server), server.devices, *_load_point_cells(shown_point, serve_study), verdict]
        table_rows.append(
            Row(row_cells, is_bold=chosen_server is not None and server_index == chosen_server.server_index)
        )
    return table_rows


def _server_sort_key(studied_servers: StudiedServers, server_index: int) -> tuple[bool, bool, float, int]:
    load_point = studied_servers.load_points[server_index]
    order_value = (
        studied_servers.servers[server_index].devices if studied_servers.trace_times else -_rate_per_device(load_point)
    )
    is_chosen = studied_servers.chosen_server is not None and studied_servers.chosen_server.server_index == server_index
    return not is_chosen, not studied_servers.limit_verdicts[server_index], order_value, server_index


def _rate_per_device(load_point: LoadPoint | None) -> float:
    """Returns the tokens per second and device, rounded so that equal rates compare as equal; 0 without a point."""
    return 0.0 if load_point is None else round_to_digits(load_point.tokens_per_second_per_device)


def _trace_rows(serve_study: ServeStudy, studied_servers: StudiedServers) -> list[Row]:
    """Returns rows of a trace's servers: servers within the limits by number of devices, then the others."""
    chosen_server = studied_servers.chosen_server
    table_rows = []
    for server_index in sorted(range(len(studied_servers.servers)), key=partial(_server_sort_key, studied_servers)):
        server, trace_times = studied_servers.servers[server_index], studied_servers.trace_times[server_index]
        seconds_ranges = (trace_times.ttft[50], trace_times.ttft[LIMIT_PERCENTILE], trace_times.tpot[LIMIT_PERCENTILE])
        seconds_cells = [
            DisplayedValue(seconds_range.estimate, _range_cell(seconds_range)) for seconds_range in seconds_ranges
        ]
        output_rate = trace_times.output_tokens_per_second
        rate_or_cost: float | None = output_rate / server.devices
        if serve_study.price is not None:
            rate_or_cost = _token_cost_of_trace(serve_study, server, trace_times)
        verdict = "ok" if studied_servers.limit_verdicts[server_index] else "no"
        row_cells = [layout_text(server), server.devices, *seconds_cells, output_rate, rate_or_cost, verdict]
        table_rows.append(
            Row(row_cells, is_bold=chosen_server is not None and server_index == chosen_server.server_index)
        )
    return table_rows


def _token_cost_of_trace(serve_study: ServeStudy, server: Server, trace_times: TraceTimes) -> float | None:
    """Returns the price of a million output tokens for a trace of requests; None without a price."""
    if serve_study.price is None:
        return None
    return serve_study.price * server.devices / 3600 / trace_times.output_tokens_per_second * 1e6


def _load_point_cells(load_point: LoadPoint, serve_study: ServeStudy) -> list[Any]:
    ttft, tpot = (
        DisplayedValue(float(latency.estimate), _range_cell(latency)) for latency in (load_point.ttft, load_point.tpot)
    )
    return [load_point.concurrency, ttft, tpot, *_rate_cells(load_point, serve_study)]


def _rate_cells(load_point: LoadPoint, serve_study: ServeStudy) -> list[Any]:
    rate_or_cost = load_point.tokens_per_second_per_device if serve_study.price is None else load_point.cost_per_million
    return [load_point.output_tokens_per_second, rate_or_cost]


def _range_cell(seconds_range: TimeRange | RangedAmount) -> str:
    """Returns a range of seconds as a table cell, in the unit of the upper end (`range_unit`): `0.42-12 s`."""
    low_seconds, high_seconds = float(seconds_range.low), float(seconds_range.high)
    time_unit = range_unit(low_seconds, high_seconds)
    range_ends = (low_seconds, high_seconds)
    range_end_texts = (duration_text(range_end, time_unit).removesuffix(f" {time_unit}") for range_end in range_ends)
    return f"{'-'.join(range_end_texts)} {time_unit}"


def _curve_cells(load_point: LoadPoint, serve_study: ServeStudy) -> list[Any]:
    concurrency, ttft, tpot, *rate_cells = _load_point_cells(load_point, serve_study)
    likely_tpot, end_to_end_latency = float(load_point.tpot.estimate), load_point.replica_latencies.end_to_end_seconds
    latency_cells = [
        DisplayedValue(likely_tpot, duration_text(likely_tpot)),
        DisplayedValue(end_to_end_latency, duration_text(end_to_end_latency)),
    ]
    return [concurrency, ttft, tpot, *latency_cells, *rate_cells]


def _point_with_shown_errors(studied_servers: StudiedServers) -> LoadPoint | None:
    """Returns the load point whose test errors are shown: the chosen point, else the first server's largest load."""
    if studied_servers.chosen_server is not None:
        return studied_servers.chosen_server.load_point
    return studied_servers.load_curves[0][-1] if studied_servers.load_curves else None


def _most_requests_notes(serve_study: ServeStudy, studied_servers: StudiedServers) -> list[str]:
    """Returns a note on the highest request rate that any server reaches within the limits, if none is chosen."""
    latency_limits = serve_study.latency_limits
    if studied_servers.chosen_server is not None or latency_limits.rate is None or studied_servers.trace_times:
        return []
    server_rates = [
        (server.replicas * server.latencies(concurrency).requests_per_second, server)
        for server in studied_servers.servers
        if (concurrency := server.most_requests_within_limits(latency_limits))
    ]
    if not server_rates:
        return []
    request_rate, server = max(server_rates, key=lambda rate_of_server: rate_of_server[0])
    devices_text = device_phrase(server.devices, serve_study.hardware.title)
    limits_text = "" if latency_limits.ttft is None and latency_limits.tpot is None else " within the limits"
    return [
        f"at most {request_rate:.3g} requests/s can be served{limits_text}: {layout_text(server)} on {devices_text}"
    ]


def _serve_notes(serve_study: ServeStudy, studied_servers: StudiedServers) -> list[str]:
    chosen_server = studied_servers.chosen_server
    shown_point = _point_with_shown_errors(studied_servers)
    reasons_text = ", ".join(
        f"{rejection_reason} ({layout_count})"
        for rejection_reason, layout_count in studied_servers.rejection_counts.items()
    )
    notes = _notes_on_faster_server(serve_study, studied_servers)
    notes += [] if shown_point is None else [test_errors_text(shown_point.tpot, serve_study.stack.title)]
    notes += [speculation_text(serve_study.speculation)] if serve_study.speculation is not None else []
    notes += [f"ruled out: {reasons_text}"] if reasons_text else []
    notes = [*_most_requests_notes(serve_study, studied_servers), *notes]
    if chosen_server is not None:
        server = studied_servers.servers[chosen_server.server_index]
        notes += [] if server.disaggregated_server is None else [_disaggregation_text(server.disaggregated_server)]
        notes += unknown_link_notes(serve_study.hardware, serve_study.device, server.replica.layout.replica_devices)
        notes += exchange_notes(serve_study.stack, server.replica.layout)
        notes += _arrival_notes(serve_study, server, chosen_server.load_point)
        sequence_count = server.most_sequences // (
            1 if server.disaggregated_server is None else server.disaggregated_server.decode_replicas
        )
        notes.append(
            f"a replica holds {counted_noun(sequence_count, 'request')} ({server.kv_tokens:,} tokens of cache) by the "
            f"rule of {serve_study.engine.title}"
        )
        ttft_seconds, tpot_seconds = (
            float(getattr(chosen_server.load_point, latency_name).estimate) for latency_name in ("ttft", "tpot")
        )
        notes.append(
            f"likely {duration_text(ttft_seconds)} to the first token, then {duration_text(tpot_seconds)} a token"
        )
        if not studied_servers.trace_times and serve_study.latency_limits.are_at_risk(chosen_server.load_point.ttft):
            notes.insert(0, _uncertain_ttft_text(server, chosen_server.load_point))
        command_text = _start_command(serve_study, server)
        notes += [] if command_text is None else [f"each replica starts with: {command_text}"]
    notes += ["no --price: the cheapest has the most tokens/s of a device"] if serve_study.price is None else []
    if serve_study.trace is not None:
        notes.append("limits hold for nine of ten requests; requests go to replicas in turn, in the order of arrival")
    notes += [] if shown_point is None else [f"TTFT: {test_errors_text(shown_point.ttft, serve_study.stack.title)}"]
    notes += [serve_study.version.note] if serve_study.version.note else []
    if list(serve_study.memory_by_formats) == [(None, None)]:
        notes.append("weights and cache as published; --quantize auto,fp8-dynamic and --kv-dtype auto,fp8 try others")
    return [*notes, f"not counted: {', '.join(_uncounted_effects(serve_study))}"]


def _uncounted_effects(serve_study: ServeStudy) -> list[str]:
    spreads_arrivals = serve_study.latency_limits.rate is not None or serve_study.is_disaggregated
    return [*(["bursts of arrivals"] if spreads_arrivals and serve_study.trace is None else []), *UNCOUNTED_EFFECTS]


def _arrival_notes(serve_study: ServeStudy, server: Server, load_point: LoadPoint) -> list[str]:
    """Returns a note on the arrival of requests, with the likely latencies for spread instead of burst arrivals."""
    if serve_study.latency_limits.rate is not None:
        return ["arrivals are evenly spread; bursts wait longer"]
    if load_point.replica_latencies.concurrency <= 1 or serve_study.trace is not None:
        return []
    if server.disaggregated_server is not None:
        return [
            "replicas for prompts compute them one by one, so that requests end apart and arrivals are spread; where "
            f"all arrive at once the first token likely takes "
            f"{duration_text(load_point.replica_latencies.ttft_of_burst)}; times "
            "without --disaggregate are those of requests that arrive at once, and a note has those of spread arrivals"
        ]
    arrival_latencies = (load_point.spread_latencies, load_point.replica_latencies)
    spread_texts, wave_texts = (
        (duration_text(latencies.ttft), duration_text(latencies.tpot)) for latencies in arrival_latencies
    )
    if spread_texts == wave_texts:
        return []
    return [
        f"equal requests end and start together{serve_study.engine.benchmark_remark}; of uneven ones, which start "
        f"apart, the first token likely takes {spread_texts[0]} and each further one {spread_texts[1]}"
    ]


def _uncertain_ttft_text(server: Server, load_point: LoadPoint) -> str:
    """Returns text on the likely TTFT that was compared with the limit, and on the upper end of the TTFT's range."""
    arrival_text = "where all requests arrive at once" if server.has_requests_in_waves else "where arrivals are spread"
    return (
        f"{AT_RISK_VERDICT}: {arrival_text} the first token likely comes within "
        f"{duration_text(load_point.replica_latencies.ttft)}, and its range ends at "
        f"{duration_text(float(load_point.ttft.high))}; of measured servers at risk "
        f"{AT_RISK_IN_BURST if server.has_requests_in_waves else AT_RISK_IF_SPREAD} kept the limit"
    )


def _notes_on_faster_server(serve_study: ServeStudy, studied_servers: StudiedServers) -> list[str]:
    """Returns a note on a server with more tokens/s per device than the chosen one, with why it was not chosen."""
    chosen_server = studied_servers.chosen_server
    if chosen_server is None or studied_servers.trace_times:
        return []
    cheapest_rate, cheapest_server = max(
        (
            (load_point.tokens_per_second_per_device, server)
            for server, load_point, is_within_limits in zip(
                studied_servers.servers, studied_servers.load_points, studied_servers.limit_verdicts, strict=True
            )
            if is_within_limits and load_point is not None
        ),
        key=lambda candidate: candidate[0],
    )
    if round_to_digits(cheapest_rate) <= round_to_digits(chosen_server.load_point.tokens_per_second_per_device):
        return []
    relative_gain = cheapest_rate / chosen_server.load_point.tokens_per_second_per_device - 1
    reason_text = (
        f"within {TIE_SHARE * 100:g} %: a tie" if relative_gain <= TIE_SHARE else "but no time of it was ever tested"
    )
    return [
        f"{layout_text(cheapest_server)} on {device_phrase(cheapest_server.devices, serve_study.hardware.title)} has "
        f"{units.percent(relative_gain, 1)} more tokens/s per device, {reason_text}"
    ]


def _disaggregation_text(replica_group: DisaggregatedServer) -> str:
    """Returns text on a group's prefill and decoding replicas, and on the time to send a cache between them."""
    return (
        f"(P+D): {counted_noun(replica_group.prefill_replicas, 'replica')} for prompts, "
        f"{replica_group.decode_replicas} that decode; a prompt's cache is sent in "
        f"{duration_text(replica_group.transfer_seconds)} ({units.memory(round(replica_group.sent_bytes))} a device); "
        "this was never measured"
    )


def speculation_text(speculation: Speculation) -> str:
    """Returns a sentence on speculative decoding: drafted tokens, their acceptance, and mean tokens per step."""
    return (
        f"{counted_noun(speculation.drafted_tokens, 'token')} drafted in a step, each accepted with the chance "
        f"{speculation.acceptance:g} after those before it: {speculation.tokens_per_step:.2f} tokens a step; this was "
        "never measured"
    )


def _speculation_data(serve_study: ServeStudy) -> dict[str, Any] | None:
    """Returns the draft model of speculative decoding as plain data; None without a draft model."""
    speculation = serve_study.speculation
    if speculation is None:
        return None
    return {
        "tokens": speculation.drafted_tokens,
        "acceptance": speculation.acceptance,
        "tokens_per_step": round_to_digits(speculation.tokens_per_step),
    }


def _users_data(user_count: float) -> float:
    """Returns the number of concurrent requests as plain data."""
    return user_count if user_count == int(user_count) else round_to_digits(user_count)


def load_point_data(load_point: LoadPoint) -> dict[str, Any]:
    """Returns one load point of a server (a concurrency with times, rates and cost) as plain data."""
    cost_per_million = None if load_point.cost_per_million is None else round_to_digits(load_point.cost_per_million)
    return {
        "concurrency": _users_data(load_point.concurrency),
        "ttft": load_point.ttft.amount.as_data(),
        "tpot": load_point.tpot.amount.as_data(),
        "end_to_end": load_point.end_to_end_seconds.as_data(),
        "output_tokens_per_second": round_to_digits(load_point.output_tokens_per_second),
        "per_device": round_to_digits(load_point.tokens_per_second_per_device),
        "cost_per_million": cost_per_million,
    }


def _server_options(server: Server) -> dict[str, Any]:
    return {**vars(server.layout_sizes), "quantize": server.quantize, "kv_dtype": server.kv_dtype}


def _replica_group_data(server: Server) -> dict[str, int] | None:
    """Returns the numbers of prefill and decoding replicas in a group; None if every replica does both."""
    if server.disaggregated_server is None:
        return None
    disaggregated_server = server.disaggregated_server
    return {"prefill": disaggregated_server.prefill_replicas, "decode": disaggregated_server.decode_replicas}


def _serve_data(serve_study: ServeStudy, studied_servers: StudiedServers) -> dict[str, Any]:
    latency_limits, request_sizes = serve_study.latency_limits, serve_study.request_sizes
    listed_servers = [
        {
            "options": _server_options(server),
            "devices": server.devices,
            "replicas": server.replicas,
            "disaggregated": _replica_group_data(server),
            "most_sequences": server.most_sequences,
            "kv_tokens": server.kv_tokens,
            "curve": [load_point_data(load_point) for load_point in server_curve],
            "trace": _trace_times_data(serve_study, server, studied_servers.trace_times[server_index])
            if studied_servers.trace_times
            else None,
        }
        for server_index, (server, server_curve) in enumerate(
            zip(studied_servers.servers, studied_servers.load_curves, strict=True)
        )
    ]
    shown_point = _point_with_shown_errors(studied_servers)
    return {
        "model": model_data(serve_study.preset),
        "hardware": serve_study.hardware.name,
        "engine": {"name": serve_study.engine.name, "version": serve_study.version.version},
        "requests": {
            "input": request_sizes.input_tokens,
            "output": request_sizes.output_tokens,
            "cached": request_sizes.cached_tokens,
        },
        "limits": {**vars(latency_limits)},
        "trace": _trace_data(serve_study),
        "speculation": _speculation_data(serve_study),
        "price": serve_study.price,
        "servers": listed_servers,
        "front": [
            {"server": index, "concurrency": _users_data(concurrency)}
            for index, concurrency in studied_servers.pareto_front
        ],
        "chosen": _chosen_server_data(serve_study, studied_servers),
        "why_not": studied_servers.rejection_counts,
        "class": {
            latency_name: None if shown_point is None else getattr(shown_point, latency_name).class_data()
            for latency_name in ("ttft", "tpot")
        },
        "not_counted": _uncounted_effects(serve_study),
    }


def _trace_data(serve_study: ServeStudy) -> dict[str, Any] | None:
    """Returns the trace's requests as plain data; None without a trace."""
    trace = serve_study.trace
    if trace is None:
        return None
    return {"requests": len(trace.requests), "span": trace.duration_seconds, "longest": trace.longest_request}


def _trace_times_data(serve_study: ServeStudy, server: Server, trace_times: TraceTimes) -> dict[str, Any]:
    token_cost = _token_cost_of_trace(serve_study, server, trace_times)
    return {
        **{
            latency_name: {
                f"p{percentile}": latency.as_data()
                for percentile, latency in getattr(trace_times, latency_name).items()
            }
            for latency_name in ("ttft", "tpot")
        },
        "seconds": round_to_digits(trace_times.seconds),
        "output_tokens_per_second": round_to_digits(trace_times.output_tokens_per_second),
        "mean_concurrency": round_to_digits(trace_times.mean_concurrency),
        "cost_per_million": None if token_cost is None else round_to_digits(token_cost),
    }


def _exceeds_learned_positions(serve_study: ServeStudy) -> bool:
    """Whether the longest request has more tokens than the model's table of learned positions."""
    position_count = learned_positions(serve_study.preset.model)
    return position_count is not None and serve_study.longest_request > position_count


def _start_command(serve_study: ServeStudy, server: Server) -> str | None:
    """Returns the command that starts a replica; None for replicas of two kinds, or without such a command.

    None starts requests beyond the model's table of learned positions.
    """
    if server.disaggregated_server is not None or _exceeds_learned_positions(serve_study):
        return None
    return start_command(serve_study.engine, serve_study.preset, server.flags, server.quantize)


def _chosen_server_data(serve_study: ServeStudy, studied_servers: StudiedServers) -> dict[str, Any] | None:
    chosen_server = studied_servers.chosen_server
    if chosen_server is None:
        return None
    server = studied_servers.servers[chosen_server.server_index]
    return {
        "server": chosen_server.server_index,
        "options": _server_options(server),
        "devices": server.devices,
        "replicas": server.replicas,
        "disaggregated": _replica_group_data(server),
        "command": _start_command(serve_study, server),
        "arrives_in_waves": server.has_requests_in_waves,
        "spread": {
            latency_name: round_to_digits(getattr(chosen_server.load_point.spread_latencies, latency_name))
            for latency_name in ("ttft", "tpot")
        },
        **load_point_data(chosen_server.load_point),
    }
