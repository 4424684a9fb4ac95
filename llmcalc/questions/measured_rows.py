"""Reads measured runs for `--calibrate rows.csv`: each row is a `time` question with measured seconds.

A column has the name of an option of `time` (`batch`, `seq`, `tp`, `global_batch`, `phase`, …), `model` is another
TARGET, and `seconds` what was measured. An empty cell takes the value of the command line. Example:

    phase,users,seq,tp,seconds
    decode,1,2048,2,9.1ms
    decode,64,2048,2,21ms
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..device_memory.settings import Settings
from ..errors import InputError, short_repr, suggest
from ..parallel.layout_request import LayoutRequest
from ..sources.bounded import read_bytes
from ..sources.hardware import find_hardware
from ..sources.preset import Preset
from ..timing.calibration import Calibration, CalibrationFactors, CalibrationRun, calibrate
from ..workload.durations import parse_duration
from ..workload.inference import USERS_SETTING, batch_of_users
from ..workload.setting import checked_length, declarations_of
from ..workload.validation import validate_whole
from .runs import RunQuestion
from .time_and_cost_options import TimeOptions

if TYPE_CHECKING:
    from ..studies.timed_run import TimedRun

    Timer: TypeAlias = Callable[[RunQuestion, TimeOptions], TimedRun]

MAX_BYTES = 2**20
"""Largest size of a `--calibrate` file, in bytes."""

MAX_ROWS = 300
"""Largest number of measured rows in a `--calibrate` file."""

TRAINING_PHASE = "training"
"""The phase with separate software stacks: training."""

MEASUREMENT_COLUMNS = ("seconds", "model", "hardware")

TIME_COLUMNS = ("global_batch", "engine", "context", "stack", "overlap", "nic")
"""Columns of a `--calibrate` file for options of `time`, in addition to settings and layout."""

LAYOUT_COLUMNS = tuple(field.name for field in fields(LayoutRequest))


def calibration_of_file(
    path: str | Path,
    run_question: RunQuestion,
    options: TimeOptions,
    read_model: Callable[[str], Preset],
    time_run: Timer,
) -> Calibration:
    """Fits the factors of a software stack's time estimates to the measured runs of a file.

    run_question, options: of the command line, which hold for what a row leaves empty. read_model: reads a TARGET.
    time_run: estimates the time of a run.
    Raises `InputError`, which names the file, the row and the column, for rows that are no question.
    """
    measured_runs = [
        _measured_run(f"{path}:{line_number}", row_cells, run_question, options, read_model, time_run)
        for line_number, row_cells in list(_filled_cells_by_line(Path(path)))  # all are read before the first is timed
    ]
    return calibrate(measured_runs)


def _filled_cells_by_line(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields each CSV row's line number and its non-empty cells."""
    file_bytes = read_bytes(path, MAX_BYTES, "a .csv file")
    try:
        csv_reader = csv.DictReader(io.StringIO(file_bytes.decode("utf-8-sig")), strict=True)
        csv_reader.fieldnames = [column_name.strip().replace("-", "_") for column_name in csv_reader.fieldnames or ()]
        column_names = [
            *MEASUREMENT_COLUMNS,
            *TIME_COLUMNS,
            *declarations_of(Settings),
            USERS_SETTING.name,
            *LAYOUT_COLUMNS,
        ]
        for column_name in csv_reader.fieldnames:
            if csv_reader.fieldnames.count(column_name) > 1:
                raise InputError(f"{path}: column {short_repr(column_name)} is there twice; expected one")
            if column_name not in column_names:
                raise InputError(
                    f"{path}: column {short_repr(column_name)} is no option of time; expected seconds, and options "
                    f"such as phase, users, seq and tp.{suggest(str(column_name), column_names)}"
                )
        if "seconds" not in csv_reader.fieldnames:
            raise InputError(f"{path}: the column 'seconds' is missing; expected the measured time of each row")
        for row_number, row_cells in enumerate(csv_reader):
            if row_number >= MAX_ROWS:
                raise InputError(f"{path}: more than {MAX_ROWS} rows; expected at most so many")
            if None in row_cells or None in row_cells.values():
                raise InputError(f"{path}:{csv_reader.line_num}: has another number of cells than the heading")
            yield (
                csv_reader.line_num,
                {column_name: cell_text.strip() for column_name, cell_text in row_cells.items() if cell_text.strip()},
            )
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; expected a .csv file") from None
    except csv.Error as error:
        raise InputError(f"{path}: {error}; expected a .csv file") from None


def _measured_run(
    row_name: str,
    row_cells: Mapping[str, str],
    run_question: RunQuestion,
    options: TimeOptions,
    read_model: Callable[[str], Preset],
    time_run: Timer,
) -> CalibrationRun:
    if "seconds" not in row_cells:
        raise InputError(f"{row_name}: seconds: missing; expected the measured time")
    measured_seconds = parse_duration(f"{row_name}: seconds", row_cells["seconds"])
    try:
        estimated_run = time_run(
            _run_question_of_row(row_cells, run_question, read_model), _time_options_of_row(row_cells, options)
        )
    except InputError as error:
        raise InputError(f"{row_name}: {error}") from None
    is_training = run_question.settings.phase == TRAINING_PHASE
    if (estimated_run.phase == TRAINING_PHASE) != is_training:
        expected_text = TRAINING_PHASE if is_training else "prefill or decode"
        raise InputError(
            f"{row_name}: phase: {estimated_run.phase}; expected {expected_text}: each of training and inference has "
            "a stack of its own to fit"
        )
    seconds_on_device = estimated_run.estimate_seconds_on
    assert seconds_on_device is not None
    device, software_stack = estimated_run.device, estimated_run.stack

    def seconds_under_factors(factors: CalibrationFactors) -> float:
        return seconds_on_device(factors.scale_device(device), factors.scale_stack(software_stack))

    kernel_group = (
        estimated_run.phase,
        id(estimated_run.spec),
        estimated_run.hardware.name,
        estimated_run.stack.name,
        estimated_run.devices,
        estimated_run.tokens,
        estimated_run.seq,
        estimated_run.context,
    )
    return CalibrationRun(row_name, measured_seconds, seconds_under_factors, kernel_group)


def _run_question_of_row(
    row_cells: Mapping[str, str], run_question: RunQuestion, read_model: Callable[[str], Preset]
) -> RunQuestion:
    """Returns the command line's question, in which a measured row's cells replace model, settings and layout."""
    settings, layout = _checked_settings(Settings, row_cells), _checked_settings(LayoutRequest, row_cells)
    if "users" in row_cells:
        user_count = validate_whole("--users", checked_length("--users", row_cells["users"]))
        settings["batch"] = batch_of_users(settings.get("batch"), user_count, "decode")
    return replace(
        run_question,
        preset=read_model(row_cells["model"]) if "model" in row_cells else run_question.preset,
        settings=run_question.settings.with_changes(**settings),
        layout=replace(run_question.layout, **layout),
        accelerators=(find_hardware(row_cells["hardware"]),) if "hardware" in row_cells else run_question.accelerators,
    )


def _checked_settings(settings_class: type, row_cells: Mapping[str, str]) -> dict[str, Any]:
    """Returns the settings that a measured row states, validated like command-line options."""
    setting_values: dict[str, Any] = {}
    for setting_name, declared_setting in declarations_of(settings_class).items():
        if setting_name in row_cells:
            cell_value: Any = row_cells[setting_name]
            setting_values[setting_name] = declared_setting.checked_value(
                cell_value.lower() == "true" if declared_setting.value_type is bool else cell_value
            )
    return setting_values


def _time_options_of_row(row_cells: Mapping[str, str], options: TimeOptions) -> TimeOptions:
    option_values = {
        field_name: declarations_of(TimeOptions)[field_name].checked_value(row_cells[field_name])
        for field_name in TIME_COLUMNS
        if field_name in row_cells
    }
    return replace(options, measured=None, by_node=None, calibrate=None, **option_values)
