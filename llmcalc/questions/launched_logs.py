"""Computes the memory of a launched training run, for comparison with the log that the run printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import units
from ..device_memory.settings import Settings
from ..errors import InputError
from ..frameworks.logs.log_contents import ParsedLog
from ..parallel.layout_request import LayoutRequest
from ..sources.hardware import find_accelerators
from ..sources.preset import Preset
from .runs import RunOptions, RunQuestion, ask_memory, build_run_question

if TYPE_CHECKING:
    from ..reports.memory_answer import DeviceMemoryAnswer
    from ..reports.ranks_answer import RanksMemoryAnswer


def launched_run(
    launch_file: str | Path,
    target: Any,
    read_model: Callable[[Any], Preset],
    hardware: str | None,
    engine_options: Mapping[str, str | None],
    **model_options: Any,
) -> RunQuestion:
    """Returns the question about the memory of the run that a launch file starts, whose log is explained.

    engine_options: option → its value, of which a training run has none.
    The others are as those of `build_run_question`. Raises `InputError` for an option of engines.
    """
    for option_name, option_value in engine_options.items():
        if option_value is not None:
            raise InputError(f"{option_name}: is of engines; remove it, or --launch")
    accelerators = tuple(find_accelerators([hardware] if hardware else ()))
    run_options = RunOptions(settings=Settings(), layout=LayoutRequest(), accelerators=accelerators)
    return build_run_question(target, read_model, run_options, launch_file=launch_file, **model_options)


def computed_bytes_of_launch(
    parsed_log: ParsedLog, launched_question: RunQuestion
) -> tuple[dict[tuple[str, str], int], list[str]]:
    """Returns the computed bytes by (memory term of the log, device) of a launched run's largest rank, and notes.

    For an out-of-memory message, the allocated bytes are compared with the peak of the run, which the run did not
    reach.
    """
    memory_answer = ask_memory(launched_question)
    device_memory = memory_answer.device
    computed_bytes = {
        "peak_allocated": device_memory.peak_bytes,
        "peak_reserved": device_memory.reserved_bytes,
        "trainable": int(memory_answer.memory.states.trained_parameters),
    }
    memory_verdict = ""
    if parsed_log.kind == "oom":
        computed_bytes |= {"allocated": device_memory.peak_bytes, "process": device_memory.device_bytes}
        memory_verdict = _memory_verdict(parsed_log, device_memory.device_bytes, device_memory.peak_bytes)
    run_name = "the run" if launched_question.launch is None else launched_question.launch.name_in_errors
    notes = [f"computed for {run_name}{memory_verdict and f': {memory_verdict}'}", *_rollout_note(memory_answer)]
    return {(term_name, ""): term_bytes for term_name, term_bytes in computed_bytes.items()}, notes


def exceeds_device_memory(parsed_log: ParsedLog, required_bytes: int) -> bool:
    """Whether a run requires more than the log's device has; False if the log does not state the device's memory."""
    return parsed_log.total_bytes is not None and required_bytes > parsed_log.total_bytes


def _memory_verdict(parsed_log: ParsedLog, required_bytes: int, peak_bytes: int) -> str:
    """Returns a sentence on whether the computed memory explains that the device in the log ran out of memory."""
    memory_text = f"it requires {units.GIB.write(required_bytes)} GiB, of it {units.GIB.write(peak_bytes)} for tensors"
    if parsed_log.total_bytes is None:
        return f"{memory_text}; the log does not state the device's memory"
    memory_text += f", and the device has {units.GIB.write(parsed_log.total_bytes)}"
    if exceeds_device_memory(parsed_log, required_bytes):
        return f"{memory_text}: too few"
    allocated_bytes = next((log_term.value for log_term in parsed_log.terms if log_term.name == "allocated"), 0)
    if allocated_bytes > peak_bytes:
        return (
            f"{memory_text}: {units.GIB.write(allocated_bytes - peak_bytes)} GiB of the log's tensors are not computed"
        )
    return f"{memory_text}, which is enough but for other processes and fragmentation"


def _rollout_note(memory_answer: DeviceMemoryAnswer | RanksMemoryAnswer) -> list[str]:
    """Returns a note that only the update phase of a reinforcement-learning run is computed."""
    launched_run = getattr(memory_answer, "launch", None)
    if launched_run is None or launched_run.rollout is None:
        return []
    return ["the update is computed, without an engine or other models on the device: memory --launch lists the phases"]
