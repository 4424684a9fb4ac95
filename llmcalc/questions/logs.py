"""The questions about logs: memory terms of a start-up log or an out-of-memory message, and computed terms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .. import units
from ..accelerator import Hardware
from ..costs.cache import kv
from ..costs.params import params
from ..errors import InputError, one_line
from ..frameworks.engines.engine import Engine, EngineMemory, EngineVersion
from ..frameworks.engines.logged_sizes import RECEIPT_FIELD, LoggedSizes
from ..frameworks.engines.registry import ENGINE_FOLDERS, engine, engine_and_version
from ..frameworks.logs.explained_log import ComparedTerm, ExplainedLog
from ..frameworks.logs.log_contents import LogTerm, ParsedLog
from ..frameworks.logs.log_text import is_pasted_message, read_log_text
from ..frameworks.logs.registry import read_log
from ..reports.answer import ReportedAnswer
from ..sources.checkpoint_name import preset_in_named_format
from ..sources.hardware import find_hardware, memory_only_hardware
from ..sources.preset import Preset
from ..sources.presets import known_checkpoint, known_model

if TYPE_CHECKING:
    from .runs import RunQuestion

ANY_DEVICE = Hardware(name="any", title="any", memory_bytes=2**50, usable_memory_bytes=2**50)
"""A stand-in accelerator for values that are the same on every device, such as weights and cache tokens."""

MISSING_MEMORY_TEXT = "the device's memory: the log does not state it; expected --hardware NAME too"
"""The error text for a log that does not state the memory of the device."""

DERIVED_TERMS = ("budget", "kv_cache")
"""Memory terms computed from other terms, which are reported as wrong only if no other term is wrong."""


@dataclass(frozen=True)
class LogQuestion:
    """A question about a log. log_file: the log's path, `-` for stdin, or the words of a message.

    preset: the model; None for the model that the log names.

    engine: `NAME==VERSION`; None for the engine and version in the log. hardware: the accelerator; None for that of the
        log.
    quantize: scheme of the weights; None for the checkpoint's.
    run: the training run that printed the log, from its launch file; None if it is not known.
    """

    log_file: str
    preset: Preset | None = None
    engine: str | None = None
    hardware: str | None = None
    quantize: str | None = None
    run: RunQuestion | None = None


@dataclass
class _LoggedRun:
    """The run that printed a log: its model, accelerator and flags.

    missing_inputs, notes, scheme_in_name: filled while the log is read; the last one is the scheme that the name of the
        log's
    model states, if that is the name of a quantized checkpoint.
    """

    parsed_log: ParsedLog
    log_question: LogQuestion
    missing_inputs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    scheme_in_name: str = ""

    def preset(self) -> Preset | None:
        """The model of the run that printed the log: the user's, or the preset that the log names."""
        if self.log_question.run is not None:
            return self.log_question.run.preset
        if self.log_question.preset is not None:
            return self.log_question.preset
        preset = known_model(self.parsed_log.model)
        if preset is None and (preset_and_scheme := known_checkpoint(self.parsed_log.model)) is not None:
            preset, self.scheme_in_name, format_text = preset_in_named_format(self.parsed_log.model, *preset_and_scheme)
            self.notes.append(
                f"the log names {one_line(self.parsed_log.model)}: taken as {preset.name} in {format_text}, which a "
                "TARGET or --quantize replaces"
            )
        needs_model = self.parsed_log.program in ENGINE_FOLDERS or any(
            log_term.bytes_per_parameter or log_term.name == "kv_buffer" for log_term in self.parsed_log.terms
        )
        if preset is None and needs_model:
            place_in_error = (
                f"the log names {one_line(self.parsed_log.model)}" if self.parsed_log.model else "the log names none"
            )
            self.missing_inputs.append(f"the model: {place_in_error}; expected TARGET too")
        return preset

    def hardware(self) -> Hardware | None:
        """The accelerator of the run that printed the log, from the user or the log, with the log's memory size.

        Raises `InputError` for a log that states a negative size.
        """
        total_bytes, hardware_name = self.parsed_log.total_bytes, self.log_question.hardware
        if total_bytes is not None and total_bytes < 0:
            raise InputError(
                f"{self.log_question.log_file}: the device's memory in the log is {total_bytes} bytes; expected a "
                "positive size"
            )
        hardware = find_hardware(hardware_name) if hardware_name else _named_hardware(self.parsed_log.device)
        if hardware is None and total_bytes and total_bytes >= 2**20:
            hardware = memory_only_hardware(f"{total_bytes // 2**20}MiB")
            hardware = hardware and hardware.model_copy(update={"title": f"{units.GIB.write(total_bytes)} GiB"})
        if hardware is not None and total_bytes:
            return hardware.model_copy(update={"driver_total": total_bytes, "usable_memory_bytes": None})
        if hardware is None:
            self.missing_inputs.append(MISSING_MEMORY_TEXT)
        return hardware


def modelled_flags_in_log(parsed_log: ParsedLog, engine: Engine) -> tuple[dict[str, Any], list[str]]:
    """Returns the modelled flags in the log, and a note for each refused flag."""
    flag_by_field = {
        known_flag.field_name: known_flag for known_flag in engine.known_flags() if not known_flag.is_memory_neutral
    }
    engine_flags: dict[str, Any] = {}
    notes: list[str] = []
    for flag_name, flag_value in parsed_log.flags.items():
        if flag_name not in flag_by_field or flag_value in ("auto", ""):
            continue
        try:
            engine_flags[flag_name] = flag_by_field[flag_name].read_value(flag_value)
        except InputError as error:
            if flag_value is not False:
                notes.append(f"computed without {error}")
    return engine_flags, notes


def _named_hardware(printed_name: str) -> Hardware | None:
    """Returns the accelerator by the name that drivers print, such as `NVIDIA GeForce RTX 3090`; None if unknown."""
    for vendor_prefix in ("NVIDIA ", "GeForce ", "AMD ", "Instinct "):
        printed_name = printed_name.removeprefix(vendor_prefix)
    for hardware_name in (printed_name, printed_name.partition(" HBM")[0]) if printed_name else ():
        try:
            return find_hardware(hardware_name)
        except InputError:
            continue
    return None


def ask_log(log_question: LogQuestion) -> ReportedAnswer:
    """Reads a log and compares its memory terms with computed ones. Raises `InputError` for an unknown kind of log."""
    from ..reports.explain_log import log_report

    answer = explain_log(log_question)
    return ReportedAnswer(answer, lambda: log_report(answer))


def explain_log(log_question: LogQuestion) -> ExplainedLog:
    """Returns the logged bytes together with the computed bytes of the same run."""
    log_text = read_log_text(log_question.log_file)
    log_name = "the message" if is_pasted_message(log_question.log_file) else log_question.log_file
    log_question = replace(log_question, log_file=log_name)
    parsed_log = read_log(log_name, log_text)
    is_engine_log, logged_run = parsed_log.program in ENGINE_FOLDERS, _LoggedRun(parsed_log, log_question)
    preset = logged_run.preset()
    computed_bytes: dict[tuple[str, str], int] = {}
    engine_memory: EngineMemory | None = None
    hardware: Hardware | None = None
    version: EngineVersion | None = None
    suggested_flag, is_too_large = "", False
    if log_question.run is not None:
        if is_engine_log:
            raise InputError(f"--launch: the log of {parsed_log.title} states its flags itself; remove the option")
        from .launched_logs import computed_bytes_of_launch, exceeds_device_memory

        computed_bytes, launch_notes = computed_bytes_of_launch(parsed_log, log_question.run)
        logged_run.notes.extend(launch_notes)
        is_too_large = exceeds_device_memory(parsed_log, computed_bytes.get(("process", ""), 0))
    if is_engine_log:
        hardware = logged_run.hardware()
        if preset is not None and hardware is not None:
            version, engine_memory, suggested_flag = _engine_memory_of_log(logged_run, preset, hardware)
        elif preset is not None:
            run_on_any_device = _LoggedRun(parsed_log, log_question, scheme_in_name=logged_run.scheme_in_name)
            _, engine_memory, _ = _engine_memory_of_log(run_on_any_device, preset, ANY_DEVICE, uses_logged_cache=True)
    if engine_memory is not None:
        computed_bytes = _computed_bytes_of_engine(logged_run, engine_memory, hardware)
    compared_terms = tuple(
        _compared_term(log_term, parsed_log, preset, computed_bytes) for log_term in parsed_log.terms
    )
    if (
        not is_engine_log
        and log_question.run is None
        and any(log_term.computed_value is None for log_term in compared_terms)
    ):
        logged_run.missing_inputs.append(
            f"the settings of the run: a log of {parsed_log.title} does not have them; expected --launch FILE, the "
            "file that starts it"
        )
    wrong_term, suggested_flag = _wrong_term_and_flag(parsed_log, compared_terms, suggested_flag)
    if is_too_large:
        wrong_term, suggested_flag = "process", ""
    missing_inputs = tuple(logged_run.missing_inputs)
    notes = tuple(dict.fromkeys(logged_run.notes))
    return ExplainedLog(
        parsed_log, compared_terms, preset, hardware, version, wrong_term, suggested_flag, missing_inputs, notes,
        devices=1 if engine_memory is None else engine_memory.devices,
    )  # fmt: skip


def _computed_bytes_of_engine(
    logged_run: _LoggedRun, engine_memory: EngineMemory, hardware: Hardware | None
) -> dict[tuple[str, str], int]:
    """Returns an engine's computed bytes by term and device, with a note if the device has no room for the cache.

    hardware: the accelerator; None for an unknown one, on which only what does not depend on it is returned.
    """
    parsed_log = logged_run.parsed_log
    computed_bytes = {
        (memory_term.name, memory_term.device): memory_term.bytes
        for memory_term in engine_memory.terms
        if memory_term.bytes
    }
    computed_bytes |= {("kv_tokens", ""): engine_memory.kv_tokens, ("blocks", ""): engine_memory.block_count}
    if has_single_logged_cache_term(parsed_log) and not engine_memory.kv_tokens:
        computed_bytes[("kv_cache", "")] = 0
        logged_run.notes.insert(0, NO_CACHE_ROOM_REMARK)
    cache_bytes = sum(
        memory_term.bytes
        for memory_term in engine_memory.terms
        if memory_term.name == "kv_buffer" and memory_term.bytes
    )
    if cache_bytes:  # an excerpt prints the cache of all devices
        computed_bytes["kv_buffer", ""] = cache_bytes
    if engine_memory.layout is None and "n_gpu_layers" in parsed_log.flags:
        if (
            MISSING_MEMORY_TEXT in logged_run.missing_inputs
        ):  # layers lie where the log says, whatever memory the devices have
            logged_run.missing_inputs.remove(MISSING_MEMORY_TEXT)
    elif hardware is None:
        known_terms = {("weights", ""), *([("kv_tokens", "")] if CACHE_BYTES_FLAG in engine_memory.settings else [])}
        computed_bytes = {
            term_key: term_bytes for term_key, term_bytes in computed_bytes.items() if term_key in known_terms
        }
    return computed_bytes


CACHE_BYTES_FLAG = "kv_cache_memory_bytes"
"""The flag name for the cache size in bytes, in engines with such a flag."""


def _engine_memory_of_log(
    logged_run: _LoggedRun, preset: Preset, hardware: Hardware, uses_logged_cache: bool = False
) -> tuple[EngineVersion | None, EngineMemory | None, str]:
    """Returns the engine's version and memory, and the first flag change with which a failed start would succeed.

    uses_logged_cache: whether the cache has the bytes that the log prints, where the engine has a flag for them.
    """
    parsed_log = logged_run.parsed_log
    log_question = logged_run.log_question
    engine_name = log_question.engine or parsed_log.program + (f"=={parsed_log.version}" if parsed_log.version else "")
    engine, version = engine_and_version(engine_name)
    if engine.name != parsed_log.program:
        raise InputError(
            f"--engine {log_question.engine}: the log is of {parsed_log.title}; expected {parsed_log.program}"
        )
    engine_flags, notes = modelled_flags_in_log(parsed_log, engine)
    logged_run.notes.extend([*notes, *filter(None, [parsed_log.layout_note, parsed_log.note])])
    logged_cache_bytes = next(
        (log_term.value for log_term in parsed_log.terms if log_term.name == "kv_cache" and log_term.value > 0), 0
    )
    if (
        uses_logged_cache
        and logged_cache_bytes
        and any(known_flag.field_name == CACHE_BYTES_FLAG for known_flag in engine.known_flags())
    ):
        engine_flags[CACHE_BYTES_FLAG] = logged_cache_bytes
    scheme_name = log_question.quantize or parsed_log.scheme or logged_run.scheme_in_name
    if scheme_name:
        engine_flags["quantize"] = scheme_name
    try:
        engine_memory = engine.memory_on(preset, hardware, version, engine_flags)
    except InputError as error:
        engine_flags.pop("quantization", None)
        if log_question.quantize is None:
            engine_flags.pop("quantize", None)
        logged_run.notes.append(f"computed without {error}")
        try:
            engine_memory = engine.memory_on(preset, hardware, version, engine_flags)
        except InputError as second:
            logged_run.missing_inputs.append(str(second))
            return version, None, ""
    if engine.budgets_free_memory and parsed_log.free_bytes is not None:
        engine_flags[RECEIPT_FIELD] = LoggedSizes(
            log_question.log_file, bytes_in_use_before_run(parsed_log, hardware), engine_memory.settings
        )
        engine_memory = engine.memory_on(preset, hardware, version, engine_flags)
    fp8_format = _fp8_flag_value(engine, engine_flags)
    if fp8_format and _has_half_cache_bytes(parsed_log, engine_memory):
        engine_flags["kv_cache_dtype"] = fp8_format
        engine_memory = engine.memory_on(preset, hardware, version, engine_flags)
        logged_run.notes.append(
            f"the cache has half the bytes per token: computed with {engine.spelling('kv_cache_dtype')} {fp8_format}, "
            "which the log does not show; the checkpoint may say so"
        )
    logged_run.notes.extend(engine_memory.notes)
    if not parsed_log.refused_to_start:
        return version, engine_memory, ""
    measured_bytes_by_term = {
        log_term.name: log_term.value for log_term in parsed_log.terms if log_term.unit == "bytes"
    }
    bytes_by_term = bytes_in_use_before_run(parsed_log, hardware) | measured_bytes_by_term
    logged_sizes = LoggedSizes(log_question.log_file, bytes_by_term, engine_memory.settings)
    flag_changes = engine.flag_changes_on(preset, hardware, version, {**engine_flags, RECEIPT_FIELD: logged_sizes})
    return (
        version,
        engine_memory,
        next((flag_change.flag for flag_change in flag_changes if flag_change.can_start), ""),
    )


NO_CACHE_ROOM_REMARK = (
    "computed, nothing is left for the cache: the log does not show all of the layout and of the flags"
)
"""The remark on a log of a server that started, although the computed memory leaves no room for its cache."""


def has_single_logged_cache_term(parsed_log: ParsedLog) -> bool:
    """Whether the log's engine started and printed the size of its cache as a single memory term."""
    return not parsed_log.refused_to_start and any(
        log_term.name == "kv_cache" and log_term.value > 0 for log_term in parsed_log.terms
    )


def bytes_in_use_before_run(parsed_log: ParsedLog, hardware: Hardware) -> dict[str, int]:
    """Returns a memory term for the memory in use before loading; empty if the log does not state the free memory."""
    return {} if parsed_log.free_bytes is None else {"non_torch": hardware.capacity_bytes - parsed_log.free_bytes}


def _fp8_flag_value(engine: Engine, engine_flags: Mapping[str, Any]) -> str:
    """Returns the engine's flag value for an fp8 cache; empty if the format is set or there is no such flag."""
    flag_by_field = {engine_flag.field_name: engine_flag for engine_flag in engine.known_flags()}
    if "kv_cache_dtype" in engine_flags or "kv_cache_dtype" not in flag_by_field:
        return ""
    return next((flag_word for flag_word in flag_by_field["kv_cache_dtype"].choices if flag_word.startswith("fp8")), "")


def _has_half_cache_bytes(parsed_log: ParsedLog, engine_memory: EngineMemory) -> bool:
    """Whether the logged cache bytes per token are half of the computed bytes, as for a cache in fp8."""
    logged_bytes = {log_term.name: log_term.value for log_term in parsed_log.terms}
    cache_bytes, cache_tokens = logged_bytes.get("kv_cache", 0), logged_bytes.get("kv_tokens", 0)
    computed_bytes = engine_memory.term_bytes("kv_cache")
    if not (cache_bytes and cache_tokens and computed_bytes and engine_memory.kv_tokens):
        return False
    return abs(computed_bytes / engine_memory.kv_tokens / (cache_bytes / cache_tokens) - 2) < FP8_TOLERANCE


FP8_TOLERANCE = 0.08
"""Largest deviation from 2 of the ratio of computed to logged bytes per token; logs print rounded values."""


def _compared_term(
    log_term: LogTerm, parsed_log: ParsedLog, preset: Preset | None, computed_bytes: Mapping[tuple[str, str], int]
) -> ComparedTerm:
    """Pairs a logged memory term with the computed term of the same name on the same device, or on the host."""
    term_key = log_term.name, _engine_device_name(log_term, computed_bytes)
    if term_key in computed_bytes:
        is_only_device = (
            sum(
                (other_term.name, _engine_device_name(other_term, computed_bytes)) == term_key
                for other_term in parsed_log.terms
            )
            == 1
        )
        return ComparedTerm(log_term, computed_bytes[term_key] if is_only_device else None)
    if preset is not None and log_term.bytes_per_parameter:
        return ComparedTerm(
            log_term, round(log_term.bytes_per_parameter * params(preset.model).total) + log_term.constant_bytes
        )
    term_devices = [other_term.device for other_term in parsed_log.terms if other_term.name == log_term.name]
    if log_term.name == "kv_buffer" and len(term_devices) == 1:
        return ComparedTerm(log_term, _cache_bytes(parsed_log, preset))
    return ComparedTerm(log_term)


def _engine_device_name(log_term: LogTerm, computed_bytes: Mapping[tuple[str, str], int]) -> str:
    """Returns the engine's name for a term's device: `CUDA0`, or `CPU` for host memory.

    A device of another backend (Vulkan, ROCm, SYCL) has the number of the accelerator that is computed.
    """
    if "CPU" in log_term.device or "Host" in log_term.device:
        return "CPU"
    device_number = re.fullmatch(r"[A-Z][A-Za-z]{1,8}([0-9]{1,3})", log_term.device)
    if device_number is None:
        return log_term.device
    return next(
        (
            device_name
            for _, device_name in computed_bytes
            if re.fullmatch(rf"[A-Za-z]+{device_number[1]}", device_name)
        ),
        log_term.device,
    )


def _cache_bytes(parsed_log: ParsedLog, preset: Preset | None) -> int | None:
    """Returns the cache bytes at the logged length and number format, if all layers cache every token; else None."""
    if preset is None or not (parsed_log.cache_tokens and parsed_log.cache_dtype):
        return None
    try:
        cache_size = kv(preset.model, 1, parsed_log.cache_tokens, parsed_log.cache_dtype)
    except InputError:
        return None
    is_uniform = all(
        cache_group.width is not None and cache_group.tokens == parsed_log.cache_tokens
        for cache_group in cache_size.groups
    )
    return cache_size.bytes if is_uniform else None


def _has_computed_cache_format(compared_terms: tuple[ComparedTerm, ...]) -> bool:
    """Whether a log without a memory budget states the computed number of cache bytes per token."""
    terms_by_name = {compared_term.logged_term.name: compared_term for compared_term in compared_terms}
    cache_term, tokens_term = terms_by_name.get("kv_cache"), terms_by_name.get("kv_tokens")
    if (
        "budget" in terms_by_name
        or cache_term is None
        or tokens_term is None
        or not (cache_term.computed_value and tokens_term.computed_value)
    ):
        return False
    return math.isclose(
        cache_term.logged_term.value * tokens_term.computed_value,
        cache_term.computed_value * tokens_term.logged_term.value,
        rel_tol=0.001,
    )


def _wrong_term_and_flag(
    parsed_log: ParsedLog, compared_terms: tuple[ComparedTerm, ...], suggested_flag: str
) -> tuple[str, str]:
    """Returns the memory term that explains the failure or differs most, and the flag that changes this term.

    suggested_flag: the change with which the engine starts, where it refused to.
    """
    if parsed_log.too_large_term:
        return parsed_log.too_large_term, parsed_log.suggested_flag
    wrong_terms = [compared_term for compared_term in compared_terms if compared_term.is_outside_tolerance]
    cause_terms = [
        candidate_term for candidate_term in wrong_terms if candidate_term.logged_term.name not in DERIVED_TERMS
    ] or wrong_terms
    if not cause_terms and not parsed_log.refused_to_start:
        return "", ""
    most_different_term = max(
        cause_terms,
        key=lambda compared_term: abs((compared_term.computed_value or 0) - compared_term.logged_term.value),
        default=None,
    )
    wrong_term = "kv_cache" if most_different_term is None else most_different_term.logged_term.name
    if parsed_log.note and not suggested_flag and wrong_term in ("profile_run", "kv_cache"):
        return wrong_term, ""  # what compiled is off, which no flag changes
    if wrong_term == "kv_cache" and most_different_term is not None and not most_different_term.computed_value:
        return wrong_term, suggested_flag  # the layout is another one, which no flag for the cache changes
    engine_flags = engine(parsed_log.program).flags_by_term if parsed_log.program in ENGINE_FOLDERS else {}
    logged_flag = parsed_log.suggested_flag if wrong_term == "kv_cache" else ""
    if wrong_term == "kv_cache" and _has_computed_cache_format(compared_terms):
        logged_flag = logged_flag or engine_flags.get("budget", "")
    return wrong_term, suggested_flag or logged_flag or engine_flags.get(wrong_term, "")
