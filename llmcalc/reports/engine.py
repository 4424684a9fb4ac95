"""The reports of `llmcalc memory`, `fit` and `kv` with `--engine`: memory terms, cache, start or failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import units
from ..frameworks.engines.engine import HOST_DEVICE, EngineMemory, FlagChange, MemoryTerm
from .document import (
    Column,
    DisplayedValue,
    Report,
    Row,
    Table,
    displayed_text,
    row,
    single_document_or_list,
    without_repetitions,
)
from .notes import counted_noun, device_phrase, gguf_tag_notes, larger_file_notes, published_tag_notes
from .summary import model_data

if TYPE_CHECKING:
    from ..frameworks.engines.engine_use import EngineOption, EngineUse
    from ..studies.timed_run import TimedRun

TERM_TITLES = {
    "budget": "budget",
    "weights": "weights",
    "profile_run": "profile run",
    "non_torch": "outside torch",
    "cuda_graphs": "CUDA graphs",
    "kv_cache": "KV cache",
    "model_buffer": "model buffer",
    "kv_buffer": "KV buffer",
    "compute_buffer": "compute buffer",
}

CACHE_TERMS = ("kv_cache", "kv_buffer")
"""Names of the memory terms that are the KV cache."""

TERM_COLUMNS = (
    Column("term", "term", justify="left"),
    Column("bytes", units.GIB.name, units.GIB.write),
    Column("status", "status", justify="left"),
    Column("from", "from", justify="left", may_wrap=True),
)


def _users_text(user_count: float) -> str:
    return f"{user_count:,.2f}" if user_count < 100 else f"{user_count:,.0f}"


CHANGE_COLUMNS = (
    Column("flag", "change", justify="left"),
    Column("kv_tokens", "tokens", units.exact_text),
    Column("max_concurrency", "users", _users_text),
    Column("starts", "starts", justify="left", is_verdict=True),
)

OPTION_COLUMNS = (
    Column("hardware", "accelerator", justify="left"),
    Column("devices", "devices", units.exact_text),
    Column("flags", "flags", displayed_text, justify="left", may_wrap=True),
    Column("kv_tokens", "tokens", units.exact_text),
    Column("max_concurrency", "users", _users_text),
    Column("serves", "fits", justify="left", is_verdict=True),
)


def memory_report(engine_uses: Sequence[EngineUse]) -> Report:
    """Returns the report of `memory`. engine_uses: the memory of one engine, or of several engines, one column each."""
    if len(engine_uses) == 1:
        return _report_of_engine(engine_uses[0], _terms_table(engine_uses[0]), _changes_table(engine_uses[0]))
    return Report(
        [_engine_document(engine_use) for engine_use in engine_uses], [_engine_columns_table(engine_uses)]
    ).with_target(engine_uses[0].preset.target)


def cache_report(engine_uses: Sequence[EngineUse]) -> Report:
    """Returns the report of `kv`: the KV cache that engines allocate."""
    table_columns = (
        Column("engine", "engine", justify="left"),
        Column("bytes", units.GIB.name, units.GIB.write),
        Column("blocks", "blocks", units.exact_text),
        Column("block_size", "tokens of a block", units.exact_text),
        Column("kv_tokens", "tokens", units.exact_text),
        Column("max_concurrency", "users", _users_text),
    )
    table_rows = [
        row(
            _engine_name(engine_use),
            _cache_bytes(engine_use.memory),
            engine_use.memory.block_count,
            engine_use.memory.block_size,
            engine_use.memory.kv_tokens,
            engine_use.memory.max_users(),
        )
        for engine_use in engine_uses
    ]
    answer_text = ", ".join(f"{engine_use.memory.kv_tokens:,} tokens" for engine_use in engine_uses)
    title = _title_text(engine_uses[0])
    notes = [*_format_notes(engine_uses[0]), *_memory_notes(engine_uses[0].memory)]
    table = Table(title, table_columns, table_rows, _heading_subtitle(engine_uses[0]), notes, answer_text, name="cache")
    json_documents = [
        {
            memory_key: memory_bytes
            for memory_key, memory_bytes in _engine_document(engine_use).items()
            if memory_key not in ("terms", "changes", "memory")
        }
        | {
            "cache": {
                "bytes": _cache_bytes(engine_use.memory),
                "blocks": engine_use.memory.block_count,
                "block_size": engine_use.memory.block_size,
            }
        }
        for engine_use in engine_uses
    ]
    return Report(single_document_or_list(json_documents), [table]).with_target(engine_uses[0].preset.target)


def fit_report(
    engine_use: EngineUse,
    engine_options: Sequence[EngineOption],
    timed_runs: Sequence[TimedRun | None],
    user_count: int,
    names_accelerator: bool,
    user_limit: int | None = None,
) -> Report:
    """Returns the report of `fit`: the fewest accelerators on which the engine starts with the users' cache.

    timed_runs: of each option, a token of all users; None without a time. user_count: concurrent requests.
    names_accelerator: whether the user named the accelerator. user_limit: sequences at once, by `--users`;
        None for its default or a flag that was typed.
    """
    from .time_estimate import DECODING_COLUMNS, decoding_cells, decoding_data

    has_decoding_times = any(timed_run is not None for timed_run in timed_runs)
    best_option = engine_options[0]
    devices_text = device_phrase(best_option.memory.devices, best_option.hardware.title)
    users_text = f"{counted_noun(user_count, 'user')} of {counted_noun(best_option.memory.max_model_len, 'token')}"
    notes = [
        *_host_layer_notes(engine_use, engine_options),
        *_format_notes(engine_use),
        *_memory_notes(best_option.memory),
        *_launch_notes(engine_use),
    ]
    if best_option.serves_all_users:
        answer_text = f"{users_text} on {devices_text}"
    else:
        answer_text = f"no: not {users_text} on up to {devices_text}"
    table_rows = [
        row(
            engine_option.hardware.name,
            engine_option.memory.devices,
            _flags_cell(engine_use, engine_option.flags),
            engine_option.memory.kv_tokens,
            engine_option.memory.max_users(),
            "fits" if engine_option.serves_all_users else "no",
            *(decoding_cells(timed_run) if has_decoding_times else ()),
        )
        for engine_option, timed_run in zip(engine_options, timed_runs, strict=True)
    ]
    title = f"{engine_use.preset.display} on {_engine_name(engine_use)}"
    table_columns = (*OPTION_COLUMNS, *(DECODING_COLUMNS if has_decoding_times else ()))
    limit_flag = "" if user_limit is None else engine_use.engine.spelling(engine_use.engine.field_of_option("--users"))
    limit_text = limit_flag and f"with {limit_flag} {user_limit}, by --users"
    subtitle = "; ".join(filter(None, (limit_text, _launch_subtitle(engine_use).removeprefix("; "))))
    table = Table(title, table_columns, table_rows, subtitle, notes, answer_text, name="options")
    tables = [table, *([_changes_table(engine_use)] if names_accelerator and engine_use.flag_changes else [])]
    json_document = {
        "model": model_data(engine_use.preset),
        "engine": _engine_data(engine_use),
        "users": user_count,
        "max_model_len": best_option.memory.max_model_len,
        "verdict": "fits" if best_option.serves_all_users else "no",
        "options": [
            {
                "hardware": engine_option.hardware.name,
                "devices": engine_option.memory.devices,
                "flags": dict(_flag_values(engine_use, engine_option.flags)),
                "starts": engine_option.memory.can_start,
                "fits": engine_option.serves_all_users,
                "kv_tokens": engine_option.memory.kv_tokens,
                "max_concurrency": engine_option.memory.max_concurrency,
                "message": engine_option.memory.startup_error,
                **decoding_data(timed_run),
            }
            for engine_option, timed_run in zip(engine_options, timed_runs, strict=True)
        ],
        "changes": _changes_data(engine_use),
        "assumed": dict(best_option.memory.assumed_flags),
        **_launch_data(engine_use),
    }
    return Report(json_document, tables).with_target(engine_use.preset.target)


def _report_of_engine(engine_use: EngineUse, *tables: Table) -> Report:
    return Report(_engine_document(engine_use), [table for table in tables if table.rows]).with_target(
        engine_use.preset.target
    )


def _title_text(engine_use: EngineUse) -> str:
    devices_text = device_phrase(engine_use.memory.devices, engine_use.hardware.title)
    return f"{engine_use.preset.display} on {_engine_name(engine_use)}, {devices_text}"


def _engine_name(engine_use: EngineUse) -> str:
    return f"{engine_use.engine.title} {engine_use.version.version}"


def _answer_text(engine_memory: EngineMemory) -> str:
    if not engine_memory.can_start:
        return "it does not start"
    return f"it starts, {_users_text(engine_memory.max_users())} users of {engine_memory.max_model_len:,} tokens"


def _heading_subtitle(engine_use: EngineUse) -> str:
    defaults_text = ", ".join(
        f"{flag_name} {flag_value:,}"
        for flag_name, flag_value in engine_use.memory.assumed_flags.items()
        if flag_name in engine_use.engine.shown_defaults
    )
    device_text = (
        "of each device" if any(memory_term.device for memory_term in engine_use.memory.terms) else "of one device"
    )
    return (
        f"{device_text}, in {units.GIB.name}"
        + (f"; default {defaults_text}" if defaults_text else "")
        + _launch_subtitle(engine_use)
    )


def _format_notes(engine_use: EngineUse) -> list[str]:
    """Returns the engine's notes on the weights' format, or on a tag without a format; empty without any."""
    preset, scheme_name = engine_use.preset, engine_use.flags.get("quantize")
    if engine_use.memory.format_note:  # the library's format
        return [engine_use.memory.format_note, *larger_file_notes(preset.target)]
    if scheme_name is None and not engine_use.engine.reads_library_tags:
        return published_tag_notes(preset, engine_use.engine.title)
    return gguf_tag_notes(preset, scheme_name)


def _launch_subtitle(engine_use: EngineUse) -> str:
    """Returns a subtitle with the server's launch file and the flags typed beside it; empty without a file."""
    if engine_use.launch is None:
        return ""
    flags_text = ", ".join(
        f"{option_name} {changed_flag.option_value}"
        for option_name, changed_flag in engine_use.launch.option_overrides.items()
    )
    return f"; {engine_use.launch.location}" + (f", with {flags_text} in the place of its own" if flags_text else "")


def _launch_notes(engine_use: EngineUse) -> list[str]:
    """Returns the notes on a launch file: assumed defaults and changed values."""
    launched_run = engine_use.launch
    if launched_run is None:
        return []
    engine_memory = engine_use.memory
    defaults_text = ", ".join(
        f"{flag_name} {flag_value}" for flag_name, flag_value in engine_memory.assumed_flags.items()
    )
    default_notes = [f"defaults of {_engine_name(engine_use)}: {defaults_text}"] if defaults_text else []
    gpu_notes: list[str] = []
    if launched_run.gpu_count is not None and launched_run.gpu_count < engine_memory.devices:
        gpu_notes = [
            f"the file has {launched_run.gpu_count} accelerators, and the layout needs {engine_memory.devices}"
        ]
    unknown_notes = [
        f"{flag_name}: {unknown_reason}" for flag_name, unknown_reason in launched_run.unknown_flags.items()
    ]
    return [*default_notes, *gpu_notes, *launched_run.notes, *unknown_notes]


def _launch_data(engine_use: EngineUse) -> dict[str, Any]:
    """Returns the launch file's entry in a JSON document; empty without a file."""
    launched_run = engine_use.launch
    if launched_run is None:
        return {}
    return {
        "launch": launched_run.data(
            engine_use.engine.title, engine_use.version.version, engine_use.memory.assumed_flags
        )
    }


def _memory_notes(engine_memory: EngineMemory) -> list[str]:
    failure_text = engine_memory.startup_error.removesuffix(".")
    rank_count = engine_memory.data_parallel_ranks
    ranks_note = f"tokens: of each of the {rank_count} data-parallel ranks, as the engine prints them; users: of all"
    return [
        *([f"{failure_text}."] if failure_text else []),
        *([ranks_note] if rank_count > 1 else []),
        *engine_memory.notes,
    ]


def _host_layer_notes(engine_use: EngineUse, engine_options: Sequence[EngineOption]) -> list[str]:
    """Returns a note on the host memory of the layers that do not fit on the named accelerator."""
    placement_texts = [
        f"{units.GIB.write(int(engine_option.memory.host['ram_bytes']))} {units.GIB.name}"
        + (f" with {flags_text}" if (flags_text := _flags_text(engine_use, engine_option.flags)) else "")
        for engine_option in engine_options
        if engine_option.hardware.name == engine_options[0].hardware.name
        and engine_option.memory.host
        and not engine_option.memory.has_all_layers_on_devices
    ]
    return [f"memory of the host for its layers: {', '.join(placement_texts)}"] if placement_texts else []


def _limit_notes(engine_use: EngineUse) -> list[str]:
    """Returns a note if the engine runs fewer requests at once than its cache has room for."""
    engine, engine_memory = engine_use.engine, engine_use.memory
    request_limit, replica_count = engine.request_limit(engine_memory), engine_memory.data_parallel_ranks
    if not engine_memory.can_start or request_limit is None or int(engine_memory.max_concurrency) <= request_limit:
        return []
    limit_flag = f"{engine.spelling(engine.request_limit_flag)} {engine_memory.settings[engine.request_limit_flag]:,}"
    if engine.request_limit_flag not in engine_use.flags:
        limit_flag = f"default {limit_flag}"
    limit_text = (
        "no more"
        if replica_count == 1
        else f"{request_limit:,} on each rank, no more than {request_limit * replica_count:,}"
    )
    return [f"{limit_flag}: {limit_text} of these users run at once, the others wait"]


def _memory_term_source(memory_term: MemoryTerm) -> str:
    """Returns the source of a memory term as text, with the logs on which an estimate is based."""
    has_logs = memory_term.status == "estimate" and ("log" in memory_term.source or "assum" in memory_term.source)
    return f"{memory_term.origin} ({memory_term.source})" if has_logs else memory_term.origin


def _cache_bytes(engine_memory: EngineMemory) -> int:
    return sum(engine_memory.term_bytes(term_name) for term_name in CACHE_TERMS)


def _signed_bytes(memory_term: MemoryTerm, has_budget: bool) -> int:
    """Returns a memory term's bytes, negative if the engine subtracts them from its budget."""
    is_subtracted = (
        has_budget and memory_term.name not in ("budget", "kv_cache") and not memory_term.origin.startswith("outside")
    )
    return -memory_term.bytes if is_subtracted else memory_term.bytes


def _terms_table(engine_use: EngineUse) -> Table:
    """Returns the memory terms in the engine's order of subtraction from the budget."""
    table_rows = []
    has_budget = any(memory_term.name == "budget" for memory_term in engine_use.memory.terms)
    for memory_term in engine_use.memory.terms:
        if memory_term.device:
            title = f"{TERM_TITLES[memory_term.name]}, {memory_term.device}"
        else:
            title = TERM_TITLES[memory_term.name]
        row_cells = [
            title,
            _signed_bytes(memory_term, has_budget),
            memory_term.status,
            _memory_term_source(memory_term),
        ]
        table_rows.append(Row(row_cells, is_bold=memory_term.name in CACHE_TERMS))
    engine_memory = engine_use.memory
    table_rows += _device_rows(engine_use)
    user_count = engine_memory.max_users()
    row_cells = ["tokens", None, "", f"{engine_memory.kv_tokens:,}, {_users_text(user_count)} users at once"]
    table_rows.append(Row(row_cells))
    notes = [
        *_limit_notes(engine_use),
        *_format_notes(engine_use),
        *_memory_notes(engine_memory),
        *_launch_notes(engine_use),
    ]
    subtitle = _heading_subtitle(engine_use)
    answer_text = _answer_text(engine_memory)
    return Table(_title_text(engine_use), TERM_COLUMNS, table_rows, subtitle, notes, answer_text, name="terms")


def _device_rows(engine_use: EngineUse) -> list[Row]:
    """Returns the bytes of each device and the disk, for an engine that splits a model over GPUs and host."""
    if not engine_use.memory.host:
        return []
    table_rows = []
    for device_name in dict.fromkeys(memory_term.device for memory_term in engine_use.memory.terms):
        used_bytes = sum(
            memory_term.bytes for memory_term in engine_use.memory.terms if memory_term.device == device_name
        )
        capacity_text = f"of {units.GIB.write(engine_use.hardware.capacity_bytes)} GiB"
        capacity_or_host_text = "the host's memory" if device_name == HOST_DEVICE else capacity_text
        table_rows.append(row(f"all, {device_name}", used_bytes, "", capacity_or_host_text, is_bold=True, is_sum=True))
    return [*table_rows, row("disk", int(engine_use.memory.host["disk_bytes"]), "", "tensors of the GGUF file")]


def _changes_table(engine_use: EngineUse) -> Table:
    term_devices = {memory_term.device for memory_term in engine_use.memory.terms}
    device_text = "on the GPUs" if term_devices - {None, "", HOST_DEVICE} else "for the cache"
    device_text = "in the host's memory" if term_devices == {HOST_DEVICE} else device_text
    engine_memory = engine_use.memory
    title = f"More room {device_text}" if engine_memory.can_start else "What would make it start"
    omits_equal_rows = engine_memory.can_start and not engine_memory.host  # of a cache that fills what is left
    has_starting_change = any(flag_change.can_start for flag_change in engine_use.flag_changes)
    table_rows = [
        row(
            _change_text(engine_use, flag_change),
            flag_change.kv_tokens,
            engine_memory.max_users(flag_change.max_concurrency),
            "ok" if flag_change.can_start else "no",
        )
        for flag_change in engine_use.flag_changes
        if (not omits_equal_rows or flag_change.kv_tokens > engine_memory.kv_tokens)
        and (flag_change.kv_tokens or not has_starting_change)
    ]
    return Table(title, CHANGE_COLUMNS, table_rows, name="changes")


def _change_text(engine_use: EngineUse, flag_change: FlagChange) -> str:
    """Returns a changed flag as text, with the number of devices if that is larger than the server's."""
    if flag_change.devices <= engine_use.memory.devices or not engine_use.engine.shows_alternatives:
        return flag_change.flag
    return f"{flag_change.flag}, on {device_phrase(flag_change.devices, engine_use.hardware.title)}"


def _engine_columns_table(engine_uses: Sequence[EngineUse]) -> Table:
    """Returns a table of memory terms with one column per engine."""
    engine_names = [_engine_name(engine_use) for engine_use in engine_uses]
    table_columns = [
        Column("term", f"term, {units.GIB.name}", justify="left"),
        *(
            Column(f"{engine_use.engine.name}=={engine_use.version.version}", engine_name)
            for engine_use, engine_name in zip(engine_uses, engine_names, strict=True)
        ),
    ]
    term_names = list(
        dict.fromkeys(memory_term.name for engine_use in engine_uses for memory_term in engine_use.memory.terms)
    )
    table_rows = [
        row(
            TERM_TITLES.get(term_name, term_name),
            *(units.GIB.write(engine_use.memory.term_bytes(term_name)) for engine_use in engine_uses),
        )
        for term_name in term_names
    ]
    table_rows += [
        row("tokens", *(f"{engine_use.memory.kv_tokens:,}" for engine_use in engine_uses)),
        row("users", *(_users_text(engine_use.memory.max_users()) for engine_use in engine_uses)),
        row("starts", *("yes" if engine_use.memory.can_start else "no" for engine_use in engine_uses)),
    ]
    devices_text = device_phrase(engine_uses[0].memory.devices, engine_uses[0].hardware.title)
    title = f"{engine_uses[0].preset.display}, {devices_text}"
    answer_text = ", ".join(
        f"{engine_name} {'starts' if engine_use.memory.can_start else 'does not start'}"
        for engine_use, engine_name in zip(engine_uses, engine_names, strict=True)
    )
    notes = without_repetitions(
        note for engine_use in engine_uses for note in [*_format_notes(engine_use), *_memory_notes(engine_use.memory)]
    )
    return Table(title, table_columns, table_rows, "", notes, answer_text, name="terms")


def _engine_document(engine_use: EngineUse) -> dict[str, Any]:
    """Returns the JSON document of an engine on an accelerator."""
    engine_memory = engine_use.memory
    bytes_by_device: dict[str, int] = {}
    bytes_by_kind: dict[str, int] = {}
    for memory_term in engine_memory.terms:
        if memory_term.name != "budget":
            bytes_by_device[memory_term.device] = bytes_by_device.get(memory_term.device, 0) + memory_term.bytes
            bytes_by_kind[memory_term.name] = bytes_by_kind.get(memory_term.name, 0) + memory_term.bytes
    fullest_device_bytes = max(
        (device_bytes for device_name, device_bytes in bytes_by_device.items() if device_name != HOST_DEVICE), default=0
    )
    return {
        "model": model_data(engine_use.preset),
        "hardware": engine_use.hardware.name,
        "devices": engine_memory.devices,
        "engine": _engine_data(engine_use),
        "memory": {
            "device_bytes": fullest_device_bytes,
            "capacity_bytes": engine_use.hardware.capacity_bytes,
            "by_kind": bytes_by_kind,
            **({"by_device": bytes_by_device} if set(bytes_by_device) != {""} else {}),
        },
        "terms": [
            {
                "name": memory_term.name,
                "bytes": memory_term.bytes,
                "status": memory_term.status,
                "source": memory_term.source,
                "from": memory_term.origin,
                **({"device": memory_term.device} if memory_term.device else {}),
            }
            for memory_term in engine_memory.terms
        ],
        "kv_tokens": engine_memory.kv_tokens,
        "blocks": engine_memory.block_count,
        "block_size": engine_memory.block_size,
        "max_model_len": engine_memory.max_model_len,
        "max_concurrency": engine_memory.max_concurrency,
        "starts": engine_memory.can_start,
        "message": engine_memory.startup_error,
        "changes": _changes_data(engine_use),
        "assumed": dict(engine_memory.assumed_flags),
        **({"host": dict(engine_memory.host)} if engine_memory.host else {}),
        **_launch_data(engine_use),
    }


def _engine_data(engine_use: EngineUse) -> dict[str, Any]:
    return {
        "name": engine_use.engine.name,
        "version": engine_use.version.version,
        "record": engine_use.version.rules_version,
    }


def _changes_data(engine_use: EngineUse) -> list[dict[str, Any]]:
    return [
        {
            "flag": flag_change.flag,
            "kv_tokens": flag_change.kv_tokens,
            "max_concurrency": flag_change.max_concurrency,
            "starts": flag_change.can_start,
        }
        for flag_change in engine_use.flag_changes
    ]


def _flag_values(engine_use: EngineUse, engine_flags: Any, uses_short_flags: bool = False) -> list[tuple[str, Any]]:
    return [
        (engine_use.engine.spelling(flag_name, uses_short_flags), flag_value)
        for flag_name, flag_value in engine_flags.items()
    ]


def _flags_cell(engine_use: EngineUse, value_by_flag: Any) -> DisplayedValue:
    """Returns a table cell of flags, which screens show in their short spellings."""
    usual_flags, short_flags = (
        _flags_text(engine_use, value_by_flag, has_short_spellings) or "—" for has_short_spellings in (False, True)
    )
    return DisplayedValue(usual_flags, short_flags)


def _flags_text(engine_use: EngineUse, value_by_flag: Any, has_short_spellings: bool = True) -> str:
    """Returns flags with their values, as users type them: a switch that is on has none."""
    flag_values = _flag_values(engine_use, value_by_flag, has_short_spellings)
    return " ".join(
        flag_name if flag_value is True else f"{flag_name} {flag_value}" for flag_name, flag_value in flag_values
    )
