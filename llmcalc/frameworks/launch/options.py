"""Replaces values of a launch file by options that the user typed beside the file, for all readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from ...errors import InputError
from ...parallel.layout import Layout
from ...parallel.layout_request import LayoutRequest
from ..registry import WITHOUT_A_NAME, framework, framework_of, layout_of
from .record import Launch, LaunchFile, Override, Source

NO_OPTIONS: Mapping[str, Any] = {}
"""No options beside a file."""

NOT_OVERRIDES = ("devices", "framework_version")
"""Options of a layout that a reader takes by itself."""

FORMATS = ("precision", "dtype", "master_weights", "grad_dtype")
"""Settings that `--precision` replaces together."""

LAYOUT_OPTIONS = frozenset(field.name for field in fields(LayoutRequest)) - {*NOT_OVERRIDES}
"""Options of a layout."""


def read_with_options(
    file: LaunchFile,
    read_launch_data: Callable[[Any, Source], Launch],
    data: Any,
    source: Source,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> Launch:
    """Returns the training run of a launch file, in which options typed beside the file replace its values.

    file: the kind of the file.
    read_launch_data: the function that reads its tables, its arguments, its command or its text.
    data: what that function reads.
    options: option → value.
    Raises `InputError`, which names file and field, and for an option that the file's program does not have.
    """
    launch = _without_master_format(read_launch_data(data, source))
    if not launch.program:
        launch = replace(launch, program=file.program or file.title, version=launch.version or file.version)
    if not options:
        return launch
    if file.with_options is None or not isinstance(data, Mapping):
        return _without_master_format(override(launch, options))
    changed_launch = read_launch_data(file.with_options(data, options, launch, source.where), source)
    return replace(
        changed_launch,
        program=launch.program,
        version=launch.version,
        overridden={name: Override(value, _file_value(launch, name)) for name, value in options.items()},
    )


def _without_master_format(launch: Launch) -> Launch:
    """Returns the training run, without a number format of master weights if it trains adapters."""
    if launch.settings.get("lora_rank") is None:
        return launch
    return replace(
        launch, settings={name: value for name, value in launch.settings.items() if name != "master_weights"}
    )


def _file_value(launch: Launch, name: str) -> Any:
    """Returns the launch file's value of an option; None if the file states none."""
    if name == "framework":
        return launch.framework
    if name == "fsdp":
        return launch.layout.dp if launch.layout.zero == 3 else None
    if name in LAYOUT_OPTIONS:
        return getattr(launch.layout, name)
    return launch.settings.get(name)


def override(launch: Launch, options: Mapping[str, Any]) -> Launch:
    """Returns the training run in which options replace the file's settings and layout.

    Raises `InputError` for sizes of a layout that contradict each other.
    """
    layout_options = {name: value for name, value in options.items() if name in LAYOUT_OPTIONS}
    settings = {name: value for name, value in options.items() if name not in LAYOUT_OPTIONS}
    dropped_options = FORMATS if "precision" in settings else ("precision",) if set(FORMATS) & set(settings) else ()
    values = {name: value for name, value in launch.settings.items() if name not in dropped_options}
    if "dtype" in settings and launch.settings.get("precision") == "autocast":
        values.setdefault("master_weights", "none")
    replaced_values = {name: Override(value, _file_value(launch, name)) for name, value in options.items()}
    changed_launch = replace(
        launch,
        settings={**values, **settings},
        overridden=replaced_values,
        published_weights=launch.published_weights and not set(FORMATS) & set(settings),
    )
    return _with_layout(changed_launch, layout_options) if layout_options else changed_launch


def _with_layout(launch: Launch, options: Mapping[str, Any]) -> Launch:
    """Returns the training run with another layout over the same number of devices.

    A file that leaves the framework open takes that of the options. Raises `InputError` for a framework that
    contradicts the file's, and for sizes that contradict each other.
    """
    framework_name = options.get("framework")
    world = launch.layout.world
    if launch.framework == WITHOUT_A_NAME:
        request = LayoutRequest(devices=world, **options)
        record = framework_of(request)
        settings = dict(launch.settings)
        if record.name != WITHOUT_A_NAME and settings.get("precision") == "autocast":
            settings = {name: value for name, value in settings.items() if name not in FORMATS}
            settings |= {"dtype": "bf16", "master_weights": "fp32"}
        is_default = record.name == WITHOUT_A_NAME
        return replace(
            launch,
            framework=record.name,
            layout=layout_of(request),
            settings=settings,
            own_settings=launch.own_settings if is_default else None,
            published_weights=launch.published_weights and is_default,
        )
    if framework_name not in (None, launch.framework):
        title = framework(launch.framework).title
        raise InputError(
            f"--framework {framework_name}: {launch.where} runs {title}, whose settings no other framework has; remove "
            "the option, or answer without the file"
        )
    sizes = {name: value for name, value in options.items() if name not in ("framework", "fsdp")}
    if "fsdp" in options:
        replicas = sizes.get("hsdp_replicas", launch.layout.hsdp_replicas)
        sizes |= {"zero": 3, "dp": options["fsdp"] * replicas}
    replica_sizes = {name: sizes.get(name, getattr(launch.layout, name)) for name in ("tp", "pp", "cp")}
    replica_devices = replica_sizes["tp"] * replica_sizes["pp"] * replica_sizes["cp"]
    dp = sizes.get("dp", world // replica_devices if world % replica_devices == 0 else 0)
    if dp * replica_devices != world:
        raise InputError(
            f"--devices: {launch.where} runs on {world}, and tp · cp · pp · dp is {replica_devices * max(dp, 1)}; "
            "expected --devices of that number, or other sizes"
        )
    changes: dict[str, Any] = {**sizes, "dp": dp}
    if "pp" in sizes or "vpp" in sizes:
        changes.setdefault("pp_layout", None)
        changes.setdefault("schedule", "interleaved" if sizes.get("vpp", launch.layout.vpp) > 1 else "1f1b")
        if changes.get("pp", launch.layout.pp) == 1:
            changes.setdefault("vpp", 1)
    layout: Layout = replace(launch.layout, **changes)
    return replace(launch, layout=layout)
