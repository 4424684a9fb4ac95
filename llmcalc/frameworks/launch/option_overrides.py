"""Replaces a launch file's values by command-line options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from ...errors import InputError
from ...parallel.layout import Layout
from ...parallel.layout_request import LayoutRequest
from ...simulator.versions import is_older_version
from ..registry import DEFAULT_FRAMEWORK, framework, framework_of, layout_of
from .launch_types import Launch, LaunchFile, LaunchSource, OptionOverride
from .trainer import EARLIER_TRAINER_DEFAULTS, SETTINGS_BY_OPTIM, TRAINER_DEFAULTS

NO_OPTIONS: Mapping[str, Any] = {}
"""No options typed beside a launch file."""

READER_OPTIONS = ("devices", "framework_version")
"""Layout options that each reader of launch files applies itself."""

FORMAT_SETTINGS = ("precision", "dtype", "master_weights", "grad_dtype")
"""Settings that `--precision` replaces all at once."""

FUSED_BY_DEFAULT = (2, 8)
"""First version of torch with which the Trainer's default optimizer is fused."""

LAYOUT_OPTIONS = frozenset(field.name for field in fields(LayoutRequest)) - {*READER_OPTIONS}
"""Names of the options of a layout."""


def read_with_options(
    launch_file: LaunchFile,
    read_launch_data: Callable[[Any, LaunchSource], Launch],
    config: Any,
    source_file: LaunchSource,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> Launch:
    """Returns the training run of a launch file, after the user's command-line options replace the file's values.

    launch_file: the kind of the file.
    read_launch_data: the function that reads its tables, its arguments, its command or its text.
    config: the argument of `read_launch_data`.
    options: option → value.
    Raises `InputError`, which names file and field, and for an option that the file's program does not have.
    """
    launched_run = _with_file_kind(launch_file, read_launch_data(config, source_file))
    if not options:
        return launched_run
    if launch_file.with_options is None or not isinstance(config, Mapping):
        return _without_master_weight_format(with_option_overrides(launched_run, options))
    changed_launch = read_launch_data(
        launch_file.with_options(config, options, launched_run, source_file.name_in_errors), source_file
    )
    return replace(
        _with_file_kind(launch_file, changed_launch),
        option_overrides={
            option: OptionOverride(option_value, _value_in_file(launched_run, option))
            for option, option_value in options.items()
        },
    )


def _with_file_kind(launch_file: LaunchFile, launched_run: Launch) -> Launch:
    """Returns the training run with the title, program and version of the kind of launch file."""
    encoders = launch_file.encoders
    if encoders is not None and launched_run.trains_encoders is not None:
        encoders = replace(encoders, is_trained=launched_run.trains_encoders)
    return replace(
        _without_master_weight_format(launched_run),
        kind=launch_file.name,
        program=launch_file.program or launch_file.title,
        version=launch_file.version or launched_run.version,
        encoders=encoders,
    )


def _without_master_weight_format(launched_run: Launch) -> Launch:
    """Returns the run without a format of master weights if it trains adapters alone."""
    if launched_run.settings.get("lora_rank") is None:
        return launched_run
    return replace(
        launched_run,
        settings={
            option: option_value for option, option_value in launched_run.settings.items() if option != "master_weights"
        },
    )


def _value_in_file(launched_run: Launch, option: str) -> Any:
    """Returns the value that a launch file has for an option; None if the file does not state it."""
    if option == "framework":
        return launched_run.framework
    if option == "fsdp":
        return launched_run.layout.dp if launched_run.layout.zero == 3 else None
    if option in LAYOUT_OPTIONS:
        return getattr(launched_run.layout, option)
    return launched_run.settings.get(option)


def with_option_overrides(launched_run: Launch, options: Mapping[str, Any]) -> Launch:
    """Returns the training run in which options replace the file's settings and layout.

    Raises `InputError` for sizes of a layout that contradict each other.
    """
    layout_options = {option: option_value for option, option_value in options.items() if option in LAYOUT_OPTIONS}
    settings = {option: option_value for option, option_value in options.items() if option not in LAYOUT_OPTIONS}
    launched_run = _with_default_optimizer(launched_run, str(options.get("torch") or ""))
    replaced_settings = (
        FORMAT_SETTINGS if "precision" in settings else ("precision",) if set(FORMAT_SETTINGS) & set(settings) else ()
    )
    option_values = {
        option: value for option, value in launched_run.settings.items() if option not in replaced_settings
    }
    if "dtype" in settings and launched_run.settings.get("precision") == "autocast":
        option_values.setdefault("master_weights", "none")
    option_overrides = {
        option: OptionOverride(value, _value_in_file(launched_run, option)) for option, value in options.items()
    }
    changed_launch = replace(
        launched_run,
        settings={**option_values, **settings},
        option_overrides=option_overrides,
        keeps_checkpoint_dtype=launched_run.keeps_checkpoint_dtype and not set(FORMAT_SETTINGS) & set(settings),
    )
    return _with_layout_options(changed_launch, layout_options) if layout_options else changed_launch


def _with_default_optimizer(launched_run: Launch, torch_version: str) -> Launch:
    """Returns the run with the optimizer that the Trainer uses by default with a version of torch.

    AdamW is fused by default since torch 2.8 (transformers/training_args.py, `default_optim`), except in earlier
    versions of transformers, of which a note says so.
    """
    is_version = re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})*", torch_version) is not None
    is_older_torch = is_version and is_older_version(torch_version, FUSED_BY_DEFAULT)
    default_optim = str((TRAINER_DEFAULTS if is_older_torch else EARLIER_TRAINER_DEFAULTS)["optim"])
    has_default = (
        launched_run.assumed_defaults.get("optim") == default_optim
        and SETTINGS_BY_OPTIM[default_optim].items() <= launched_run.settings.items()  # not DeepSpeed's optimizer
    )
    if not is_version or not has_default:
        return launched_run
    if not is_older_torch:
        torch_note = (
            f"--torch {torch_version} does not change optim {default_optim}, the default of the file's earlier version "
            "of transformers; state optim adamw_torch_fused if it is newer"
        )
        return replace(launched_run, notes=(*launched_run.notes, torch_note))
    return replace(
        launched_run,
        settings={**launched_run.settings, **SETTINGS_BY_OPTIM[str(EARLIER_TRAINER_DEFAULTS["optim"])]},
        assumed_defaults={**launched_run.assumed_defaults, "optim": EARLIER_TRAINER_DEFAULTS["optim"]},
    )


def _with_layout_options(launched_run: Launch, options: Mapping[str, Any]) -> Launch:
    """Returns the run on the same number of devices, in the layout that command-line options state.

    A file that leaves the framework open takes that of the options. Raises `InputError` for a framework that
    contradicts the file's, and for sizes that contradict each other.
    """
    framework_name = options.get("framework")
    world_size = launched_run.layout.world_size
    if launched_run.framework == DEFAULT_FRAMEWORK:
        layout_request = LayoutRequest(devices=world_size, **options)
        selected_framework = framework_of(layout_request)
        settings = dict(launched_run.settings)
        if selected_framework.name != DEFAULT_FRAMEWORK and settings.get("precision") == "autocast":
            trains_adapters = "lora_rank" in settings and "dtype" in settings
            settings = {option: value for option, value in settings.items() if option not in FORMAT_SETTINGS}
            settings |= {"dtype": "bf16", "master_weights": "none" if trains_adapters else "fp32"}
        is_default_framework = selected_framework.name == DEFAULT_FRAMEWORK
        return replace(
            launched_run,
            framework=selected_framework.name,
            layout=layout_of(layout_request),
            settings=settings,
            framework_settings=launched_run.framework_settings if is_default_framework else None,
            keeps_checkpoint_dtype=launched_run.keeps_checkpoint_dtype and is_default_framework,
        )
    if framework_name not in (None, launched_run.framework):
        framework_title = framework(launched_run.framework).title
        raise InputError(
            f"--framework {framework_name}: {launched_run.name_in_errors} runs {framework_title}, whose settings no "
            "other framework has; remove the option, or answer without the file"
        )
    parallel_sizes = {
        option: option_value for option, option_value in options.items() if option not in ("framework", "fsdp")
    }
    if "fsdp" in options:
        replica_count = parallel_sizes.get("hsdp_replicas", launched_run.layout.hsdp_replicas)
        parallel_sizes |= {"zero": 3, "dp": options["fsdp"] * replica_count}
    replica_sizes = {
        option: parallel_sizes.get(option, getattr(launched_run.layout, option)) for option in ("tp", "pp", "cp")
    }
    replica_devices = replica_sizes["tp"] * replica_sizes["pp"] * replica_sizes["cp"]
    data_parallel_size = parallel_sizes.get(
        "dp", world_size // replica_devices if world_size % replica_devices == 0 else 0
    )
    if data_parallel_size * replica_devices != world_size:
        raise InputError(
            f"--devices: {launched_run.name_in_errors} runs on {world_size}, and tp · cp · pp · dp is "
            f"{replica_devices * max(data_parallel_size, 1)}; "
            "expected --devices of that number, or other sizes"
        )
    new_sizes: dict[str, Any] = {**parallel_sizes, "dp": data_parallel_size}
    if "pp" in parallel_sizes or "vpp" in parallel_sizes:
        new_sizes.setdefault("pp_layout", None)
        new_sizes.setdefault(
            "schedule", "interleaved" if parallel_sizes.get("vpp", launched_run.layout.vpp) > 1 else "1f1b"
        )
        launched_run = replace(launched_run, end_stage_layers=(None, None))
        if new_sizes.get("pp", launched_run.layout.pp) == 1:
            new_sizes.setdefault("vpp", 1)
    layout: Layout = replace(launched_run.layout, **new_sizes)
    return replace(launched_run, layout=layout)
