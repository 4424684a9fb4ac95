"""Answers about serving engines: whether an engine starts, for how many users, and on which accelerators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..accelerator import Hardware
from ..algebra import ceil_div
from ..errors import InputError, short_repr
from ..frameworks.engines.engine import Engine, EngineVersion, FlagChange
from ..frameworks.engines.engine_use import EngineOption, EngineUse
from ..frameworks.engines.flags import read_flag_values
from ..frameworks.engines.rank import MissingKernels
from ..frameworks.engines.registry import engine_and_version
from ..frameworks.server_files.server import LaunchedServer
from ..parallel.layout import ImpossibleLayout
from ..reports.answer import ReportedAnswer
from ..sources.checkpoint_name import preset_in_named_format
from ..sources.hardware import COMMON_HARDWARE, accelerators_and_devices, load_hardware
from ..sources.preset import Preset
from ..sources.presets import checkpoint_of_tag, known_checkpoint, known_model, scheme_in_name
from .engine_times import decoded_token_time
from .receipts import ReceiptFile

ONE_ACCELERATOR_ERROR = (
    "--hardware: with --engine the answer is for one accelerator; expected it once. Cards of two sizes under "
    "llama.cpp: the larger one with --devices 2 -ts 24,12, whose line 'all, CUDA1' is what the smaller one needs"
)
"""The error message for several accelerators together with `--engine`."""

if TYPE_CHECKING:
    from ..reports.document import Report

MAX_DEVICES = 64
"""The largest number of devices on which `fit` tries an engine."""


@dataclass(frozen=True)
class EngineQuestion:
    """A question about the memory of serving engines that run a model on an accelerator.

    engines: each `NAME` or `NAME==VERSION`. typed_flags: the engine's flags by name, as typed.
    hardware: the accelerator; None if none is named. quantize: scheme of the weights; default the checkpoint's.
    receipt: a log whose measured terms stand in place of estimates; None for none.
    launch: the launch file that starts the server; default None.
    has_sizes_of_name: whether the sizes are those of the preset that the name of a quantized checkpoint names, because
        the checkpoint is not here; default false.
    """

    preset: Preset
    engines: tuple[str, ...]
    typed_flags: Mapping[str, Any]
    hardware: str | None = None
    quantize: str | None = None
    receipt: str | None = None
    launch: LaunchedServer | None = None
    has_sizes_of_name: bool = False

    @contextmanager
    def naming_file_in_errors(self) -> Iterator[None]:
        """Returns a context manager in which errors name the launch file and the server's line in the file."""
        try:
            yield
        except InputError as error:
            if self.launch is None or str(error).startswith((self.launch.name_in_errors, "--hardware")):
                raise
            is_size_error = self.has_sizes_of_name and isinstance(error, ImpossibleLayout)
            size_remark = self.preset.remark_on_sizes(self.launch.model_name) if is_size_error else ""
            raise InputError(f"{self.launch.location}: {error}{size_remark}") from None

    def engine_uses(self) -> Iterator[EngineUse]:
        """Yields the memory use of each engine. Raises `InputError` without an accelerator and for an unknown flag."""
        if self.hardware is None:
            unknown_text = (
                "" if self.launch is None or not self.launch.gpu_name else f"; '{self.launch.gpu_name}' is not known"
            )
            raise InputError(
                "--hardware: missing; an engine's budget is a share of the device's memory (such as "
                f"h100){unknown_text}"
            )
        (accelerator,), device_count = accelerators_and_devices([self.hardware])
        for engine_text in self.engines:
            engine, version = engine_and_version(engine_text)
            hardware = _require_supported_accelerator(engine, accelerator)
            engine_flags = self.flags(engine)
            receipt = self.receipt_of_engine(engine, version)
            if receipt is not None:
                engine_flags = receipt.with_receipt(engine_flags, hardware)
            with self.naming_file_in_errors():
                engine_memory = engine.memory_on(self.preset, hardware, version, engine_flags)
                if device_count not in (None, engine_memory.devices):
                    if engine_memory.devices > 1 or engine.field_of_option("--devices") in engine_flags:
                        raise InputError(
                            f"--hardware: {self.hardware}: names {device_count} accelerators, and the flags are for "
                            f"{engine_memory.devices}; expected flags for {device_count}, or --hardware "
                            f"{accelerator.name}"
                        )
                    engine_flags |= read_flag_values(
                        engine.title, engine.known_flags(), {"devices": device_count}, engine.flags_by_option
                    )
                    try:
                        engine_memory = engine.memory_on(self.preset, hardware, version, engine_flags)
                    except InputError as error:
                        raise InputError(f"--hardware {self.hardware}: {error}") from None
            if receipt is not None:
                engine_memory = replace(engine_memory, notes=(*engine_memory.notes, *receipt.notes(engine_memory)))
            find_changes = self.naming_file_in_errors()(
                partial(engine.flag_changes_on, self.preset, hardware, version, engine_flags)
            )
            yield EngineUse(
                self.preset, engine, version, hardware, engine_flags, engine_memory, find_changes, self.launch
            )

    def receipt_of_engine(self, engine: Engine, version: EngineVersion) -> ReceiptFile | None:
        """Returns the log of `--receipt` for an engine; None without such a log."""
        return None if self.receipt is None else ReceiptFile(self.receipt, self.preset, engine, version)

    def flags(self, engine: Engine) -> dict[str, Any]:
        """Returns the values of an engine's flags. Raises `InputError` for an unknown flag."""
        with self.naming_file_in_errors():
            engine_flags = read_flag_values(
                engine.title,
                engine.known_flags(),
                self.typed_flags,
                engine.flags_by_option,
                engine.alternatives_by_option,
            )
            limit_field = engine.field_of_option("--users")
            is_limit_typed = None not in (self.typed_flags.get("users"), self.typed_flags.get(limit_field))
            if is_limit_typed and self.launch is None:
                users, typed_limit = (
                    read_flag_values(
                        engine.title,
                        engine.known_flags(),
                        {flag_name: self.typed_flags[flag_name]},
                        engine.flags_by_option,
                    )
                    for flag_name in ("users", limit_field)
                )
                engine_flags = engine.flags_with_request_limit(engine_flags | typed_limit, users[limit_field])
            if engine.serving_flags is not None and None not in (
                self.typed_flags.get("users"),
                self.typed_flags.get("seq"),
            ):
                users, seq = (engine_flags[engine.field_of_option(option_name)] for option_name in ("--users", "--seq"))
                del engine_flags[engine.field_of_option("--seq")]  # of each user; the engine's flag may be that of all
                engine_flags = engine.flags_for_users(self.preset, engine_flags, users, seq)
        scheme_name = self.quantize
        if (
            scheme_name is None
            and engine.reads_library_tags
            and (engine.usual_scheme is None or checkpoint_of_tag(self.preset.target))
        ):
            from .runs import default_scheme_of_ollama_tag

            scheme_name = default_scheme_of_ollama_tag(self.preset)
        return engine_flags | ({} if scheme_name is None else {"quantize": scheme_name})


def engine_questions(
    launch_file: str | Path | None,
    read_model: Callable[[Any], Preset],
    *,
    target: Any,
    engine_names: Sequence[str],
    flag_values: Mapping[str, Any],
    hardware: str | None,
    quantize: str | None,
    receipt: str | None = None,
    allow_unknown: bool = False,
) -> list[EngineQuestion]:
    """Returns a question for each server of a launch file, or for each named engine that serves TARGET.

    target: the TARGET, which replaces the models that the file names; None without one. read_model: reads a model.
    engine_names: with a file, engines that were typed beside it, whose versions replace the file's.
    flag_values: flags that were typed. hardware: the accelerator; None for the file's. Others: as in `EngineQuestion`.
    Raises `InputError`, which names file, place and field, and for a file without such servers.
    """
    if launch_file is None:
        return [EngineQuestion(read_model(target), tuple(engine_names), flag_values, hardware, quantize, receipt)]
    from ..frameworks.launch.launch_types import OptionOverride
    from ..frameworks.server_files.read import servers_of_file

    engine_name = engine_names[0].partition("==")[0].strip().lower() if engine_names else ""
    launched_servers = servers_of_file(launch_file, allow_unknown, flag_values, engine_name)
    if engine_names and not launched_servers:
        raise InputError(f"--engine {engine_names[0]}: {launch_file} starts no such server; remove the option")
    if not launched_servers:
        raise InputError(
            f"--launch {launch_file}: starts no server of an engine; "
            f"for a training run: llmcalc memory --launch {launch_file}"
        )
    server_questions = []
    for launched_server in launched_servers:
        overridden_flags = {
            f"--{flag_name.replace('_', '-')}": OptionOverride(flag_value, launched_server.flag_values.get(flag_name))
            for flag_name, flag_value in flag_values.items()
        }
        name_and_version = (
            f"{launched_server.engine}=={launched_server.version}"
            if launched_server.version
            else launched_server.engine
        )
        preset, quantization_scheme = _model_and_scheme_of_server(target, launched_server, read_model)
        server_questions.append(
            EngineQuestion(
                preset,
                tuple(engine_names) or (name_and_version,),
                {**launched_server.flag_values, **flag_values},
                hardware or launched_server.hardware or None,
                quantize or quantization_scheme,
                has_sizes_of_name=quantization_scheme is not None and target in (None, ""),
                launch=replace(
                    launched_server,
                    option_overrides=overridden_flags,
                    notes=(
                        *launched_server.notes,
                        *[note for note in preset.notes if launched_server.location in note],
                    ),
                ),
            )
        )
    return server_questions


def _model_and_scheme_of_server(
    target: Any, server: LaunchedServer, read_model: Callable[[Any], Preset]
) -> tuple[Preset, str | None]:
    """Returns the model that a server runs, and the quantization scheme if only the checkpoint's name states one.

    target: the TARGET, which replaces the model that the file names.
    """
    from .runs import model_of_launch_file

    try:
        preset = model_of_launch_file(target, server.model_name, server.location, read_model, known_model)
        return (preset, None) if target in (None, "") else _target_and_scheme_of_file(preset, server)
    except InputError:
        preset_and_scheme = known_checkpoint(server.model_name) if target in (None, "") else None
        if preset_and_scheme is None:
            raise
    preset, quantization_scheme = preset_and_scheme
    preset, quantization_scheme, format_text = preset_in_named_format(server.model_name, preset, quantization_scheme)
    model_name_note = (
        f"the model of {server.location}, {short_repr(server.model_name)}, cannot be read; by its name it is the "
        "preset "
        f"{preset.name} in {format_text}, which a TARGET or --quantize replaces"
    )
    return preset.model_copy(update={"notes": (*preset.notes, model_name_note)}), quantization_scheme or None


def _target_and_scheme_of_file(preset: Preset, server: LaunchedServer) -> tuple[Preset, str | None]:
    """Returns the TARGET, and the quantization scheme in the file's model name; None as the scheme if TARGET has one.

    The name of another model is replaced with its scheme.
    """
    named_checkpoint = known_checkpoint(server.model_name)
    is_other_model = named_checkpoint is not None and named_checkpoint[0].name != preset.name
    has_stated_scheme = preset.storage_table is not None or preset.target.partition("?")[0].endswith(".gguf")
    quantization_scheme = None if is_other_model or has_stated_scheme else scheme_in_name(server.model_name, preset)
    if quantization_scheme is None:
        return preset, None
    target_origin = f"{short_repr(server.model_name)} of {server.location}"
    scheme_note = f"the model is TARGET, in {quantization_scheme}, as {target_origin} says; --quantize replaces it"
    return preset.model_copy(update={"notes": (*preset.notes, scheme_note)}), quantization_scheme


def ask_servers(
    questions: Sequence[EngineQuestion], ask_question: Callable[[EngineQuestion], ReportedAnswer]
) -> ReportedAnswer:
    """Answers questions about a launch file's servers, with one document and one screen per server."""
    from ..reports.document import join_reports

    server_answers = [ask_question(engine_question) for engine_question in questions]
    if len(server_answers) == 1:
        return server_answers[0]
    server_results = [server_answer.result for server_answer in server_answers]
    return ReportedAnswer(
        server_results,
        lambda: join_reports([server_answer.report() for server_answer in server_answers]),
        all(server_answer.ok for server_answer in server_answers),
    )


def ask_engine_memory(engine_question: EngineQuestion) -> ReportedAnswer:
    """Computes the memory terms of engines on an accelerator; `.ok` says whether all engines start."""
    from ..reports.engine import memory_report

    return _engine_answer(list(engine_question.engine_uses()), memory_report)


def ask_engine_cache(engine_question: EngineQuestion) -> ReportedAnswer:
    """Computes the KV cache that engines allocate. `.ok` of the answer says whether all engines start."""
    from ..reports.engine import cache_report

    return _engine_answer(list(engine_question.engine_uses()), cache_report)


def _engine_answer(engine_uses: list[EngineUse], make_report: Callable[[list[EngineUse]], Report]) -> ReportedAnswer:
    """Returns the answer about the memory of one engine or, with a column per engine, of several engines."""
    engine_memories = [engine_use.memory for engine_use in engine_uses]
    memory_result = engine_memories[0] if len(engine_memories) == 1 else engine_memories
    return ReportedAnswer(
        memory_result,
        lambda: make_report(engine_uses),
        all(engine_memory.can_start for engine_memory in engine_memories),
    )


def ask_engine_fit(
    engine_question: EngineQuestion, users: int | None = None, seq: int | None = None, device_count: int | None = None
) -> ReportedAnswer:
    """Finds the fewest accelerators on which an engine starts and its cache holds the given number of users.

    users: requests at once; default the slots of a launch file, else 1. seq: tokens of each; default the longest
        request. device_count: as many of them serve as have a layout, and the fewest that suffice are listed below.
    Raises `InputError` for several engines and for flags that contradict the users.
    """
    from ..reports.engine import fit_report

    if len(engine_question.engines) != 1:
        raise InputError("--engine: fit answers for one engine; expected it once")
    engine, version = engine_and_version(engine_question.engines[0])
    engine_flags = engine_question.flags(engine)
    user_count = users or _cache_slot_count(engine, engine_question, engine_flags)
    if seq is not None and engine_question.launch is not None:
        _drop_context_length(engine, engine_question.launch, engine_flags)
    engine_flags = engine.flags_for_users(engine_question.preset, engine_flags, user_count, seq)
    user_limit = None
    if users is not None and engine_question.launch is None and engine.serving_flags is None:
        limit_field = engine.field_of_option("--users")
        has_typed_limit = limit_field in engine_flags
        engine_flags = engine.flags_with_request_limit(engine_flags, users)
        user_limit = None if has_typed_limit else engine_flags[limit_field]
    named_accelerators, device_count = accelerators_and_devices(
        [] if engine_question.hardware is None else [engine_question.hardware], device_count
    )
    named_hardware = _require_supported_accelerator(engine, named_accelerators[0]) if named_accelerators else None
    receipt = engine_question.receipt_of_engine(engine, version)

    def flags_on_hardware(hardware: Hardware) -> dict[str, Any]:
        return engine_flags if receipt is None else receipt.with_receipt(engine_flags, hardware)

    preset = engine_question.preset
    engine_options: list[EngineOption] = []
    accelerators = map(load_hardware, COMMON_HARDWARE) if named_hardware is None else [named_hardware]
    for hardware in filter(engine.runs_on, accelerators):
        hardware_flags = flags_on_hardware(hardware)
        try:
            engine_options += _options_for_users(
                preset, engine, version, hardware, hardware_flags, user_count, device_count
            )
        except MissingKernels:
            if named_hardware is not None:
                raise
    if not engine_options:
        if named_hardware is not None:
            with engine_question.naming_file_in_errors():  # raises for sizes that were typed
                engine.memory_on(preset, named_hardware, version, flags_on_hardware(named_hardware))
        raise InputError(
            f"--devices {device_count}: no layout divides the model over at most so many; expected another "
            f"number, or other "
            "flags"
        )
    engine_options.sort(
        key=lambda engine_option: (
            not engine_option.serves_all_users,
            engine_option.memory.devices if device_count is None else -engine_option.memory.devices,
            engine_option.hardware.capacity_bytes,
        )
    )
    best_option = engine_options[0]
    hardware, engine_memory = best_option.hardware, best_option.memory
    find_changes: Callable[[], Iterable[FlagChange]] = tuple
    if named_hardware is not None:
        layout_flags = best_option.flags if engine_memory.devices > 1 else {}  # what a single device lacks is a change
        engine_flags = {**flags_on_hardware(hardware), **layout_flags}
        engine_memory = engine.memory_on(preset, hardware, version, engine_flags)
        users_per_rank = ceil_div(user_count, engine_memory.data_parallel_ranks)
        find_changes = partial(_flag_changes_for_users, users_per_rank, engine, preset, hardware, version, engine_flags)
    engine_use = EngineUse(
        preset, engine, version, hardware, engine_flags, engine_memory, find_changes, engine_question.launch
    )
    if receipt is not None:
        engine_options[0] = _with_receipt_notes(best_option, receipt)

    def report() -> Report:
        token_times = [
            decoded_token_time(preset, engine, version, engine_option, user_count) for engine_option in engine_options
        ]
        return fit_report(engine_use, engine_options, token_times, user_count, named_hardware is not None, user_limit)

    return ReportedAnswer(engine_options, report, best_option.serves_all_users)


def _cache_slot_count(engine: Engine, engine_question: EngineQuestion, engine_flags: Mapping[str, Any]) -> int:
    """Returns the number of slots into which a launch file divides the cache of requests (2 for `-np 2`); default 1.

    Engines whose cache takes any number of requests have no slots; with `--kv-unified` slots share llama.cpp's cache.
    """
    slot_count = engine_flags.get(engine.field_of_option("--users"))
    is_divided = engine.shows_alternatives and not engine_flags.get("kv_unified")
    has_slots = is_divided and engine_question.launch is not None
    return slot_count if has_slots and isinstance(slot_count, int) and slot_count > 0 else 1


def _with_receipt_notes(engine_option: EngineOption, receipt: ReceiptFile) -> EngineOption:
    """Adds notes on the terms that come from the measured log of `--receipt` to the memory of a layout option."""
    engine_memory = engine_option.memory
    return replace(
        engine_option, memory=replace(engine_memory, notes=(*engine_memory.notes, *receipt.notes(engine_memory)))
    )


def _flag_changes_for_users(users_per_rank: int, engine: Engine, *server: Any) -> Iterator[FlagChange]:
    """Yields an engine's flag changes; those whose cache does not hold all users' requests are marked as failing.

    users_per_rank: those of each data-parallel rank, which has a cache of its own. server: as in `flag_changes_on`.
    """
    for flag_change in engine.flag_changes_on(*server):
        yield flag_change._replace(can_start=flag_change.can_start and flag_change.max_concurrency >= users_per_rank)


def _drop_context_length(engine: Engine, server: LaunchedServer, engine_flags: dict[str, Any]) -> None:
    """Removes the launch file's context length from the flags: the length of the users' requests replaces it."""
    length_field = engine.field_of_option("--seq")
    if length_field not in server.option_overrides:
        engine_flags.pop(length_field, None)


def _require_supported_accelerator(engine: Engine, hardware: Hardware) -> Hardware:
    """Returns the named accelerator. Raises `InputError` if the engine does not support it."""
    if not engine.runs_on(hardware):
        raise InputError(
            f"--hardware {hardware.name}: is not modelled with --engine; expected {engine.supported_accelerators}"
        )
    return hardware


def _options_for_users(
    preset: Preset,
    engine: Engine,
    version: EngineVersion,
    hardware: Hardware,
    engine_flags: Mapping[str, Any],
    users: int,
    devices: int | None,
) -> list[EngineOption]:
    """Returns the layouts with the fewest devices that hold all users, else the largest layout; none if impossible.

    devices: a stated number: the layouts with the most of them that hold all users come first; None for none.
    For an engine that shows alternatives, the result is all layouts with that many devices that hold all users; the
    first leaves nothing on the host. If the number of devices is stated, all of them may be used to leave nothing on
    the host.
    """
    layouts = engine.larger_layouts(engine.server(preset, hardware, version, engine_flags), devices or MAX_DEVICES)
    tried_options: list[EngineOption] = []
    options_by_device_count: list[list[EngineOption]] = []
    last_serving_options: list[EngineOption] = []
    for _, layouts_of_device_count in groupby(layouts, lambda layout: layout[1].devices):
        engine_options = []
        for layout_flags, engine_memory in layouts_of_device_count:
            serves_all_users = engine_memory.has_room_for(users)
            engine_options.append(EngineOption(hardware, layout_flags, engine_memory, serves_all_users))
            if serves_all_users and not engine.shows_alternatives:
                break
        serving_options = [engine_option for engine_option in engine_options if engine_option.serves_all_users]
        if serving_options and (engine_options[0].serves_all_users or not engine.shows_alternatives or devices is None):
            if devices is None:
                return serving_options
            options_by_device_count.append(serving_options)
        tried_options += engine_options
        last_serving_options = serving_options or last_serving_options
    if options_by_device_count:
        fewest_devices, *more_devices = options_by_device_count
        return [*more_devices[-1], *fewest_devices] if more_devices else fewest_devices
    return (
        last_serving_options
        or sorted(
            tried_options,
            key=lambda engine_option: (engine_option.memory.devices, engine_option.memory.max_concurrency),
        )[-1:]
    )
