"""Finds the record of a framework by name: the folder of each framework has a `record.py` with `FRAMEWORK`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import InputError, suggest

if TYPE_CHECKING:
    from ..accelerator import Hardware
    from ..model import ModelSpec
    from ..parallel.layout import Layout
    from ..parallel.layout_request import LayoutRequest
    from .framework import Framework
    from .launch.launch_types import Plugin

FRAMEWORK_NAMES = (
    "torch",
    "fsdp2",
    "megatron",
    "deepspeed",
)
"""Values of `--framework`; each is the name of a folder beside this file."""

DEFAULT_FRAMEWORK = "torch"
"""The framework of a layout, unless the user names one or an option implies one."""

PLAN_FRAMEWORKS = "megatron", "fsdp2", "torch"
"""Frameworks of a plan without `--framework`; the first that trains the model with its optimizer is used."""


ADAPTER_PLAN_ZERO_STAGES = {DEFAULT_FRAMEWORK: None, "deepspeed": 2}
"""Framework whose replicas have whole weights, in plans of adapter training → the ZeRO stage."""

VENDORS_WITHOUT_COLLECTIVES = ("Apple",)
"""Vendors without a torch.distributed backend, on whose devices replicas train alone (pytorch/pytorch#189853)."""


@cache
def framework(folder_name: str) -> Framework:
    """Returns the record of a framework. Raises `InputError` for an unknown name."""
    if folder_name not in FRAMEWORK_NAMES:
        raise InputError(
            f"--framework: '{folder_name}' is not known; expected one of "
            f"{', '.join(FRAMEWORK_NAMES)}.{suggest(folder_name, list(FRAMEWORK_NAMES))}"
        )
    framework_record: Framework = import_module(f".{folder_name}.record", __package__).FRAMEWORK
    return framework_record


def framework_of(layout_request: LayoutRequest) -> Framework:
    """Returns the framework that a layout request names, or that the layout options imply."""
    if layout_request.framework is not None:
        return framework(layout_request.framework)
    implied_frameworks = (
        framework_record
        for framework_name in FRAMEWORK_NAMES
        if (framework_record := framework(framework_name)).implying_options is not None
    )
    return next(
        (framework_record for framework_record in implied_frameworks if framework_record.is_implied(layout_request)),
        framework(DEFAULT_FRAMEWORK),
    )


def frameworks_for_plans(layout_request: LayoutRequest, hardware: Hardware | None = None) -> tuple[Framework, ...]:
    """Returns the frameworks that a plan compares: the named or implied framework, else `PLAN_FRAMEWORKS`.

    Raises `InputError` for more than one accelerator without collectives, and for a framework that needs them.
    """
    implied_framework = framework_of(layout_request)
    if hardware is not None and hardware.vendor in VENDORS_WITHOUT_COLLECTIVES:
        problem_text = f"torch.distributed has no backend on {hardware.title}"
        if implied_framework.name != DEFAULT_FRAMEWORK:
            raise InputError(
                f"--framework {implied_framework.name}: {problem_text}; expected --framework {DEFAULT_FRAMEWORK}"
            )
        if layout_request.devices not in (None, 1):
            raise InputError(
                f"--devices {layout_request.devices}: {problem_text}; expected --devices 1, or another --hardware"
            )
        return (implied_framework,)
    if layout_request.framework is not None or implied_framework.is_implied(layout_request):
        return (implied_framework,)
    return tuple(framework(framework_name) for framework_name in PLAN_FRAMEWORKS)


def layout_of(layout_request: LayoutRequest, trained_spec: ModelSpec | None = None) -> Layout:
    """Returns the parallel layout of a request, completed by its framework's defaults.

    trained_spec: the model that the layout trains; None (default) for inference, or where no model is known.
    Raises `InputError` for options that contradict each other.
    """

    layout_rules = framework_of(layout_request).layout_rules
    layout_rules.check_zero_stage(layout_request)
    trains_experts = trained_spec is not None and trained_spec.routed_experts > 0
    return layout_rules.layout_of(layout_request, trains_experts=trains_experts)


def plugin_by_framework() -> dict[str, Plugin]:
    """Returns name → framework, for the frameworks that accelerate and the Trainer can select."""
    plugins_by_name = ((framework_name, framework(framework_name).plugin) for framework_name in FRAMEWORK_NAMES)
    return {framework_name: plugin for framework_name, plugin in plugins_by_name if plugin is not None}
