"""The report of `llmcalc time`: the range of an estimate, the tested errors behind it, and the parts of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from .. import units
from ..accelerator import Hardware
from ..parallel.layout import Layout
from ..sources.preset import Preset
from ..studies.timed_run import BOUNDS, HOST_BANDWIDTH, TimedNode, TimedRun
from ..timing.device import DEFAULT_NIC_RATE, Device
from ..timing.software_stacks import find_stack
from ..timing.time_estimator import QUANTIZED_FORMAT
from ..timing.time_ranges import TimeRange, round_to_digits
from ..timing.timing_constants import SoftwareStack
from .document import Column, DisplayedValue, Report, Row, Table, displayed_text, row
from .notes import counted_noun, device_phrase, float16_notes, large_step_notes, too_long_notes, warnings_of_notes
from .rank_texts import layout_cell
from .summary import model_data

SUBJECT_BY_PHASE = {"training": "a step", "prefill": "a prompt batch", "decode": "a token of every sequence"}

PART_NAMES = {
    "work": "forward and backward passes",
    "bubble": "pipeline bubble",
    "data": "exchange of gradients and weights",
    "update": "optimizer step",
    "kernels": "kernels and messages",
    "host": "host",
    "hops": "messages between stages",
    "server": "server",
    "layer waits": "of which waits for slower ranks",
}

BOUND_NAMES = {"compute": "compute", "memory": "memory", "network": "network", "wait": "waiting"}

PART_COLUMNS = (
    Column("part", "where it goes", justify="left", may_wrap=True),
    Column("seconds", "time", displayed_text),
    Column("share", "share", units.percent),
    Column("bound", "bound by", justify="left"),
    Column("bound_share", "share", units.percent),
)
FIRST_BOUND_COLUMN = 3
"""Index of the first column about the bounds of a run, which form a second list beside the parts of the run."""

NODE_COLUMNS = (
    Column("node", "node", justify="left", may_wrap=True),
    Column("kind", "kind", justify="left"),
    Column("seconds", "time", displayed_text),
    Column("share", "share", units.percent),
    Column("bound", "bound", justify="left"),
    Column("reached", "of its bound", lambda value: units.percent(value, 0)),
)

DEFAULT_NODE_COUNT = 4
"""Number of nodes that a screen shows without `--by-node`."""


def duration_text(seconds: float, time_unit: str = "", digit_count: int = 2) -> str:
    """Returns seconds as text with two significant digits: `6.8 s`, `35 ms`. time_unit: by default the largest."""
    time_unit = time_unit or duration_unit(seconds)
    value_in_unit = seconds / SECONDS_BY_UNIT[time_unit]
    rounded_value = float(f"{value_in_unit:.{digit_count}g}")
    decimal_count = max(0, digit_count - 1 - _decimal_exponent(rounded_value))
    return f"{rounded_value:,.{decimal_count}f} {time_unit}"


SECONDS_BY_UNIT = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6}


def duration_unit(seconds: float) -> str:
    """Returns the largest unit in which a duration is at least 1, or at least 2 for hours and minutes."""
    for time_unit, least_seconds in (("h", 7200.0), ("min", 120.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= least_seconds:
            return time_unit
    return "µs"


def range_unit(low_seconds: float, seconds: float) -> str:
    """Returns the unit of a range of seconds: the likely value's unit, or a smaller one if the low end is below 1."""
    time_unit = duration_unit(seconds)
    return {"h": "min", "min": "s"}.get(time_unit, time_unit) if low_seconds < SECONDS_BY_UNIT[time_unit] else time_unit


def _decimal_exponent(positive_number: float) -> int:
    return 0 if positive_number == 0 else int(f"{positive_number:e}".partition("e")[2])


def range_text(seconds_range: TimeRange) -> str:
    """Returns the range of a time estimate as text: `5.8 to 8.7 s, likely 6.8`."""
    time_unit = range_unit(float(seconds_range.low), float(seconds_range.estimate))
    likely_text = duration_text(float(seconds_range.estimate), time_unit).removesuffix(f" {time_unit}")
    return f"{range_ends_text(seconds_range, ' to ')} {time_unit}, likely {likely_text}"


def range_ends_text(seconds_range: TimeRange, separator: str = "-") -> str:
    """Returns the two ends of a time range as text, in the likely value's unit (`range_unit`): `5.8-8.7`."""
    time_unit = range_unit(float(seconds_range.low), float(seconds_range.estimate))
    low_text, high_text = (
        duration_text(float(range_end), time_unit).removesuffix(f" {time_unit}")
        for range_end in (seconds_range.low, seconds_range.high)
    )
    return f"{low_text}{separator}{high_text}"


def tpot_text(timed_run: TimedRun) -> str:
    """Returns the range of the seconds per token as text: `8.1-12 ms`."""
    return f"{range_ends_text(timed_run.time_range)} {range_unit(float(timed_run.time_range.low), timed_run.seconds)}"


def decoding_data(timed_run: TimedRun | None) -> dict[str, Any]:
    """Returns the seconds per token of every user and the tokens/s as plain data, null without an estimate."""
    return {
        "tpot": None if timed_run is None else timed_run.time_range.amount.as_data(),
        "tokens_per_second": None if timed_run is None else round_to_digits(timed_run.tokens_per_second),
    }


def decoding_cells(timed_run: TimedRun | None) -> list[Any]:
    """Returns the cells of `DECODING_COLUMNS`: the seconds per decoded token, and the tokens per second."""
    if timed_run is None:
        return [None, None]
    return [DisplayedValue(timed_run.seconds, tpot_text(timed_run)), timed_run.tokens_per_second]


DECODING_COLUMNS = (
    Column("tpot", "TPOT", displayed_text),
    Column("tokens_per_second", "tokens/s", lambda value: f"{value:,.0f}"),
)


def test_errors_text(seconds_range: TimeRange, title: str) -> str:
    """Returns text on the tests of this kind of estimate: the measured rows and their errors, or that few exist."""
    tested_class = seconds_range.tested_class
    if seconds_range.has_few_test_rows:
        return f"{title} on this device has too few measured rows for a range of its own: the range is the widest"
    if tested_class is None:
        untested_text = f"with {seconds_range.untested_reason}" if seconds_range.untested_reason else "on this device"
        return f"{title} {untested_text} was never tested: the range is the widest"
    median_text, p90_text = (
        units.percent(relative_error, 0) for relative_error in (tested_class.median_error, tested_class.p90_error)
    )
    left_out_share = tested_class.left_out
    share_text = (
        "" if left_out_share is None else f"; {units.percent(left_out_share, 0)} of their runs were in such a range"
    )
    return (
        f"{tested_class.words} ({title}): {counted_noun(tested_class.rows, 'measured row')}; sources never seen before "
        f"were {median_text} off by median, one in ten by more than {p90_text}{share_text}"
    )


def unpriced_notes(settings: Sequence[str]) -> list[str]:
    """Returns a note on settings that change a training step's kernels but not the estimated time."""
    return [f"timed as without {', '.join(settings)}: what that changes is not estimated"] if settings else []


NOTED_HOST_WAIT_SHARE = 0.2
"""Share of a step that waits for the host above which a note names the host's assumed speed."""


def _host_notes(timed_run: TimedRun) -> list[str]:
    """Returns a note on the host's speed if a training step waits for the host during much of its time."""
    software_stack = timed_run.stack
    tested_class = timed_run.time_range.tested_class
    if tested_class is not None and tested_class.eager:
        return []
    if (
        software_stack.on_fastest_host is None
        or timed_run.host_wait_seconds < NOTED_HOST_WAIT_SHARE * timed_run.seconds
    ):
        return []
    host_launch = timed_run.device.generation.host_launch
    kernel_seconds = 1e6 * software_stack.host_seconds_per_kernel * host_launch
    host_wait_percent = units.percent(timed_run.host_wait_seconds / timed_run.seconds, 0)
    step_plan = timed_run.step_plan
    is_divided = step_plan is not None and step_plan.tp > 1 and bool(software_stack.host_seconds_per_dtensor_operation)
    has_short_batches = step_plan is not None and bool(step_plan.micro_batches > 1)
    dtensor_text = (
        f" ({1e6 * software_stack.host_seconds_per_dtensor_operation * host_launch:.0f} on a "
        f"DTensor, none with --compile)"
    )
    return [
        f"{host_wait_percent} waits for the host at {kernel_seconds:.0f} µs an operation"
        f"{dtensor_text if is_divided else ''}; the low end has the fastest measured host, "
        f"{kernel_seconds * software_stack.fastest_host_share:.0f} µs"
        f"{'; longer micro-batches (--batch) wait less' * has_short_batches}"
    ]


def exchange_notes(software_stack: SoftwareStack, layout: Layout) -> list[str]:
    """Returns a note on the all-to-all of experts' tokens if the engine's default gathers all tokens instead."""
    if not software_stack.gathers_tokens or software_stack.gathers_on(layout.dp, layout.ep):
        return []
    return [
        f"each token is sent to the ranks of its {layout.ep}-way divided experts and back "
        f"({software_stack.exchange_option}); the default, which gathers all tokens on every rank, takes longer"
    ]


def pass_notes(timed_run: TimedRun) -> list[str]:
    """Returns a note on a prompt that software computes in several passes, each of which reads the weights."""
    most_tokens = timed_run.stack.prompt_batch_tokens
    if timed_run.phase != "prefill" or not most_tokens or timed_run.sequences * timed_run.seq <= most_tokens:
        return []
    return [
        f"the prompt is computed {most_tokens:,} tokens at a time, the software's default; each pass reads the weights"
    ]


TIE_RATIO = 1.03
"""Ratio of two times up to which the difference may be the spread of equal runs."""


def _other_exchange_notes(timed_run: TimedRun) -> list[str]:
    """Returns a note with the seconds of a step under the software's other token dispatcher for experts."""
    seconds_on, device = timed_run.estimate_seconds_on, timed_run.device
    if timed_run.layout.ep == 1 or seconds_on is None:
        return []
    return other_exchange_notes(timed_run.stack, timed_run.seconds, lambda stack: seconds_on(device, stack))


def other_exchange_notes(
    software_stack: SoftwareStack, seconds: float, seconds_on: Callable[[SoftwareStack], float], subject: str = ""
) -> list[str]:
    """Returns a note if another token dispatcher of the software changes the time of an expert-parallel step.

    The dispatchers are all-to-all and all-gather.
    seconds: of the step on `software_stack`. seconds_on: software stack → seconds of the same step.
    subject: the run that takes them, with a space at its end; default the run of the answer.
    """
    if not software_stack.exchange_stack:
        return []
    other_stack = find_stack(software_stack.exchange_stack)
    field_names = ("gathers_tokens", "sends_each_copy", "launches_by_verb")
    exchange_settings = {field_name: getattr(other_stack, field_name) for field_name in field_names}
    other_seconds = seconds_on(software_stack.model_copy(update=exchange_settings))
    if max(seconds, other_seconds) <= TIE_RATIO * min(seconds, other_seconds):
        return []
    exchange_text = _exchange_text(software_stack)
    other_exchange = _exchange_text(other_stack).removeprefix("those of ")
    return [
        f"exchanges of experts' tokens are {exchange_text}; by {other_exchange} {subject}"
        f"{duration_text(other_seconds)} (--stack {software_stack.exchange_stack})"
    ]


def _exchange_text(software_stack: SoftwareStack) -> str:
    """Returns the name of the messages that send tokens to experts, such as `NCCL's all-to-all`."""
    if software_stack.gathers_tokens:
        return "all-gathers of all tokens"
    return "NCCL's all-to-all" if software_stack.sends_each_copy else "those of DeepEP"


def unknown_link_notes(hardware: Hardware, device: Device, device_count: int) -> list[str]:
    """Returns a note if messages take the rate of a network because no link of the accelerator is known.

    device_count: devices that send messages to each other.
    """
    has_known_link = (
        hardware.interconnect is not None or hardware.nic is not None or device.network_bandwidth != DEFAULT_NIC_RATE
    )
    if device_count == 1 or has_known_link:
        return []
    rate_text = f"{DEFAULT_NIC_RATE / 10**9:g} GB/s"
    return [f"no link of {hardware.title} is known: messages at {rate_text}, as over a network; --nic states the rate"]


def _messaging_devices(timed_run: TimedRun) -> int:
    """Returns the number of devices that send messages to each other: in training all, otherwise a replica's."""
    layout = timed_run.layout
    return layout.world_size if timed_run.phase == "training" else layout.replica_devices


def report(
    preset: Preset, timed_run: TimedRun, by_node: int | None = None, measured_run: tuple[float, list[str]] | None = None
) -> Report:
    """Returns the report of an estimated time as data and as tables.

    by_node: levels of the model's tree that nodes are listed by; None for the shortest list.
    measured_run: a measured time and the lines that could explain it; None without one.
    """
    from ..workload.workload import Workload

    warnings = too_long_notes(timed_run.spec, Workload(timed_run.sequences, timed_run.seq, timed_run.context))
    timed_nodes = timed_run.nodes(by_node or 2)
    notes = [
        *warnings,
        *([] if timed_run.fits else [_size_note(timed_run, measured_run is not None)]),
        test_errors_text(timed_run.time_range, timed_run.stack.title),
        *timed_run.engine_notes,
        *(large_step_notes(timed_run.sequences, timed_run.seq) if timed_run.phase == "training" else ()),
        *unknown_link_notes(timed_run.hardware, timed_run.device, _messaging_devices(timed_run)),
        *unpriced_notes(timed_run.unpriced_options),
        *_host_notes(timed_run),
        *_measured_notes(timed_run, measured_run),
        *exchange_notes(timed_run.stack, timed_run.layout),
        *pass_notes(timed_run),
        *_other_exchange_notes(timed_run),
        *float16_notes(timed_run.hardware, timed_run.number_formats.product_format),
        *_time_notes(timed_run, measured_run is not None),
    ]
    time_parts_table = Table(
        preset.display,
        PART_COLUMNS,
        list(_time_part_rows(timed_run)),
        _run_text(timed_run),
        notes,
        _answer_text(timed_run, measured_run is not None),
        name="parts",
        second_list=("bounds", FIRST_BOUND_COLUMN),
    )
    shown_nodes = timed_nodes if by_node else timed_nodes[:DEFAULT_NODE_COUNT]
    table_rows = [_node_row(timed_node, timed_run.seconds) for timed_node in shown_nodes]
    node_table = Table("Parts of the model", NODE_COLUMNS, table_rows, name="nodes", has_priority=by_node is not None)
    json_document = _time_data(preset, timed_run, timed_nodes, measured_run)
    tables = [time_parts_table, node_table]
    return Report(
        json_document, tables, warnings=warnings_of_notes(preset, warnings), counts_note_lines=True
    ).with_target(preset.target)


def _answer_text(timed_run: TimedRun, is_measured: bool) -> str:
    """Returns the time of a pass as text; for a run that does not fit, with layers on the host or with more memory."""
    subject, seconds_with_host = SUBJECT_BY_PHASE[timed_run.phase], timed_run.seconds_with_host
    short_context_run = timed_run.short_context_run
    if timed_run.fits and short_context_run is not None and not is_measured:
        short_text = f"{range_text(short_context_run.time_range)} ({short_context_run.tokens_per_second:,.0f} tokens/s)"
        long_text = f"{tpot_text(timed_run)} after {timed_run.context:,}"
        return f"{subject} takes {short_text} after {short_context_run.context:,} tokens; {long_text}"
    if timed_run.fits or is_measured:
        return f"{subject} takes {range_text(timed_run.time_range)}"
    if seconds_with_host is not None:
        return f"{subject} takes {duration_text(seconds_with_host)} or more, with layers on the host"
    return f"it does not fit; with enough memory {subject} takes {range_text(timed_run.time_range)}"


def _run_text(timed_run: TimedRun) -> str:
    """Returns a timed run as text: `training of 128 sequences of 4,096 tokens on 64 H100 SXM, tp4 sp pp4 vpp4 dp4`."""
    sequences_text = counted_noun(timed_run.sequences, "sequence")
    if timed_run.phase != "training" and timed_run.layout.dp > 1:
        sequences_text = f"{sequences_text} ({timed_run.sequences // timed_run.layout.dp:,} a replica)"
    work_text = {
        "training": f"training of {sequences_text} of {counted_noun(timed_run.seq, 'token')}",
        "prefill": f"prompts of {sequences_text} of {counted_noun(timed_run.seq, 'token')}"
        + (f" after {timed_run.context:,}" if timed_run.context else ""),
        "decode": f"decoding of {sequences_text} after {counted_noun(timed_run.context, 'token')}",
    }[timed_run.phase]
    layout_text = "" if timed_run.devices == 1 else f", {layout_cell(timed_run.layout)}"
    if timed_run.step_plan is not None and timed_run.step_plan.micro_batch > 1:
        layout_text += f", micro-batches of {counted_noun(int(timed_run.step_plan.micro_batch), 'sequence')}"
    device_text = device_phrase(timed_run.devices, timed_run.hardware.title)
    return f"{work_text} on {device_text}{layout_text}{_formats_text(timed_run)}"


def _formats_text(timed_run: TimedRun) -> str:
    """Returns number formats of weights and matrix products other than bfloat16 as text, such as `, fp16 products`."""
    dtype = timed_run.number_formats.product_format
    if dtype == "bf16":
        return ", fp16 products" if timed_run.hardware.has_only_float16_peak else ""
    multiplied_format = timed_run.device.format_of(
        timed_run.stack.quantized_product_format if dtype == QUANTIZED_FORMAT else dtype
    )
    if multiplied_format == dtype:
        return f", {dtype} products"
    return f", {dtype} weights, multiplied in {'16 bits' if multiplied_format == 'bf16' else multiplied_format}"


def _time_part_rows(timed_run: TimedRun) -> list[Row]:
    """Returns table rows with the terms of a run's time, and with the percentage of each bound, such as compute."""
    run_time_unit = duration_unit(timed_run.seconds)
    time_parts = [
        (shown_part_name, seconds)
        for shown_part_name, seconds in timed_run.seconds_by_part.items()
        if seconds or shown_part_name in ("work", "kernels")
    ]
    seconds_by_bound = sorted(timed_run.seconds_by_bound.items(), key=lambda bound_and_seconds: -bound_and_seconds[1])
    table_rows: list[Row] = []
    for time_part, time_bound in zip_longest(time_parts, seconds_by_bound):
        bound_cells: list[Any] = [None, None, None]
        if time_part is not None:
            part_name, seconds = time_part
            time_unit = run_time_unit if seconds >= SECONDS_BY_UNIT[run_time_unit] / 10 else duration_unit(seconds)
            bound_cells = [
                PART_NAMES[part_name],
                DisplayedValue(seconds, duration_text(seconds, time_unit, 3)),
                seconds / timed_run.seconds,
            ]
        bound_cells += (
            [None, None] if time_bound is None else [BOUND_NAMES[time_bound[0]], time_bound[1] / timed_run.seconds]
        )
        table_rows.append(Row(bound_cells))
    return table_rows


def _node_row(node: TimedNode, total_seconds: float) -> Row:
    seconds_cell = DisplayedValue(node.seconds, duration_text(node.seconds, digit_count=3))
    return row(
        node.path, node.kind, seconds_cell, node.seconds / total_seconds, BOUND_NAMES[node.bound], node.bound_share
    )


def _measured_notes(timed_run: TimedRun, measured_run: tuple[float, list[str]] | None) -> list[str]:
    if measured_run is None:
        return []
    measured_seconds, explanation_lines = measured_run
    is_in_range = timed_run.time_range.low <= measured_seconds <= timed_run.time_range.high
    relation_text = "inside" if is_in_range else "outside"
    return [
        f"measured {duration_text(measured_seconds, digit_count=3)}, {relation_text} the range: "
        f"{'; '.join([_rates_text(timed_run, measured_seconds), *explanation_lines])}"
    ]


def _rates_text(timed_run: TimedRun, seconds: float) -> str:
    """Returns tokens/s, MFU and HFU of a run that takes the given seconds as text."""
    token_rate, device_count = timed_run.tokens / seconds, timed_run.devices
    device_rate_text = f" ({token_rate / device_count:,.0f} a device)" if device_count > 1 else ""
    rate_text = f"{token_rate:,.0f} tokens/s{device_rate_text}"
    if timed_run.phase == "decode":
        return rate_text
    time_ratio = timed_run.seconds / seconds
    return (
        f"{rate_text}; MFU {units.percent(timed_run.utilization('causal') * time_ratio, 0)} causal, "
        f"{units.percent(timed_run.utilization('full') * time_ratio, 0)} full pairs; "
        f"HFU {units.percent(timed_run.hardware_utilization * time_ratio, 0)}"
    )


def _size_note(timed_run: TimedRun, is_measured: bool) -> str:
    """Returns a note if a run does not fit in the typed layout, or if its layout was chosen so that it fits."""
    resident_bytes, capacity_bytes = timed_run.resident_bytes, timed_run.hardware.capacity_bytes
    sizes_text = f"are {units.memory(resident_bytes)} a device, which has {units.memory(capacity_bytes)}"
    training_text = f"weights, gradients, optimizer states and activations {sizes_text}"
    if timed_run.phase != "training":
        contents_text = "weights, cache and buffers" if timed_run.includes_buffers else "weights and cache"
        is_computer = timed_run.hardware.unified_memory  # several are seldom joined
        advice_text = "llmcalc fit tries changes that need less" if is_computer else "--devices N divides them"
        size_note = f"{contents_text} {sizes_text}: they do not fit; {advice_text}"
        if timed_run.leaves_layers_on_host:
            size_note = (
                f"{contents_text} {sizes_text}: layers that do not fit run on the host; the table has all layers on "
                "the accelerator"
            )
            host_text = f"a host that reads {HOST_BANDWIDTH / 10**9:.0f} GB/s"
            if timed_run.seconds_with_host is None:
                size_note += ", as has the first line: no time with the host is estimated"
            elif is_measured:
                size_note += f", as has the first line; with {host_text}: {duration_text(timed_run.seconds_with_host)}"
                size_note += " or more"
            else:
                size_note += f", the first line {host_text}"
    elif timed_run.chosen_layout_options:
        undivided_text = f"; undivided, {training_text}" if resident_bytes > capacity_bytes else ""
        size_note = f"the fastest layout that fits: {timed_run.chosen_layout_options}{undivided_text}"
    elif timed_run.devices == 1:
        size_note = f"{training_text}: they do not fit; llmcalc fit tries changes that need less"
    elif timed_run.is_planned:
        size_note = f"{training_text}: they do not fit; llmcalc plan lists layouts that do"
        if timed_run.has_stated_micro_batches:
            size_note += (
                f", and --global-batch {timed_run.sequences} in place of --num-microbatches takes the fastest of them"
            )
    else:
        size_note = f"{training_text}: they do not fit; more --tp, --pp or --fsdp divides them"
    return size_note


def _time_notes(timed_run: TimedRun, is_measured: bool) -> list[str]:
    condition_texts = ["the estimate"] if is_measured else []
    if not timed_run.fits:
        condition_texts.append(
            "with all layers on the accelerator" if timed_run.leaves_layers_on_host else "with enough memory"
        )
    condition_text = f"{', '.join(condition_texts)}: " if condition_texts else ""
    rate_notes = [f"{condition_text}{_rates_text(timed_run, timed_run.seconds)}"]
    rule_texts = [
        f"{rule_name} at 45 % MFU: {duration_text(rule_seconds)}"
        for rule_name, rule_seconds in timed_run.seconds_by_rule.items()
        if rule_seconds is not None
    ]
    return [
        *rate_notes,
        *([_size_note(timed_run, is_measured)] if timed_run.chosen_layout_options else []),
        *([", ".join(rule_texts)] if rule_texts else []),
        f"not counted: {', '.join(timed_run.uncounted_effects)}",
        f"stack: {timed_run.stack.title}, {timed_run.stack.versions}; device: {timed_run.device.evidence}",
    ]


def node_data(timed_node: TimedNode, total_seconds: float) -> dict[str, Any]:
    """Returns a model node's estimated seconds and its bound as plain data."""
    return {
        "path": timed_node.path,
        "kind": timed_node.kind,
        "seconds": timed_node.seconds,
        "share": timed_node.seconds / total_seconds,
        "bound": timed_node.bound,
        "reached": timed_node.bound_share,
    }


def _time_data(
    preset: Preset, timed_run: TimedRun, timed_nodes: list[TimedNode], measured_run: tuple[float, list[str]] | None
) -> dict[str, Any]:
    json_document: dict[str, Any] = {
        "model": model_data(preset),
        "workload": {
            "phase": timed_run.phase,
            "batch": timed_run.sequences,
            "seq": timed_run.seq,
            "context": timed_run.context,
            "num_microbatches": None if timed_run.step_plan is None else timed_run.step_plan.micro_batches,
            "products": timed_run.number_formats.product_format,
        },
        "hardware": timed_run.hardware.name,
        "layout": timed_run.layout.data(),
        "seconds": timed_run.time_range.amount.as_data(),
        "fits": timed_run.fits,
        "seconds_with_host": timed_run.seconds_with_host,
        "class": timed_run.time_range.class_data(),
        "tokens_per_second": timed_run.tokens_per_second,
        "tokens_per_second_per_device": timed_run.tokens_per_second / timed_run.devices,
        "mfu": {pairs_convention: timed_run.utilization(pairs_convention) for pairs_convention in ("causal", "full")},
        "hfu": timed_run.hardware_utilization,
        "parts": timed_run.seconds_by_part,
        "bounds": {time_bound: timed_run.seconds_by_bound[time_bound] for time_bound in BOUNDS},
        "nodes": [node_data(timed_node, timed_run.seconds) for timed_node in timed_nodes],
        "rules": timed_run.seconds_by_rule,
        "not_counted": list(timed_run.uncounted_effects),
    }
    short_context_run = timed_run.short_context_run
    if short_context_run is not None:
        json_document["short_context"] = {"context": short_context_run.context, **decoding_data(short_context_run)}
    if measured_run is not None:
        measured_seconds, explanation_lines = measured_run
        is_in_range = bool(timed_run.time_range.low <= measured_seconds <= timed_run.time_range.high)
        mfu_by_convention = json_document["mfu"].items()
        json_document["measured"] = {
            "seconds": measured_seconds,
            "inside": is_in_range,
            "lines": explanation_lines,
            "tokens_per_second": timed_run.tokens / measured_seconds,
            "mfu": {
                convention: utilization * timed_run.seconds / measured_seconds
                for convention, utilization in mfu_by_convention
            },
        }
    return json_document
