"""Registers DeepSpeed as a training framework: ZeRO stages, memory, messages and config files."""

from __future__ import annotations

from ...parallel.layout_rules import LayoutRules
from ..framework import EstimateErrors, Framework, LazyFunction
from ..launch.launch_types import LaunchFile, Plugin

FRAMEWORK = Framework(
    name="deepspeed",
    title="DeepSpeed",
    rank_memory=LazyFunction(__package__, "rank_memory:rank_memory"),
    estimate=LazyFunction(__package__, "estimate:estimate_peaks"),
    estimate_errors=EstimateErrors(relative_error_below=0.12),
    evidence=LazyFunction(__package__, "evidence:evidence_for"),
    gradient_rules=LazyFunction(__package__, "messages:gradient_rules"),
    layout_rules=LayoutRules(
        "deepspeed", default_zero_stage=3, other_zero_stages=(1, 2), untried_size_names=("tp", "cp", "pp", "vpp", "ep")
    ),
    implying_options=("with --zero 2", lambda request: request.zero_stage() == 2),
    launcher="deepspeed",
    starts_on_every_device=True,
    launch_file=LaunchFile(
        "deepspeed",
        "a DeepSpeed config",
        LazyFunction(__package__, "config_file:is_deepspeed"),
        LazyFunction(__package__, "config_file:read_deepspeed"),
        program="DeepSpeed",
        version="0.19.8",
    ),
    plugin=Plugin(
        "DEEPSPEED",
        "deepspeed_config",
        LazyFunction(__package__, "plugin:read_accelerate"),
        ("deepspeed",),
        LazyFunction(__package__, "plugin:read_trainer"),
    ),
    time_stack_name=lambda launch, compiled, experts: "deepspeed",
    overlapped_parallel_groups=LazyFunction(__package__, "messages:overlapped_parallel_groups"),
    has_two_world_communicators=True,  # deepspeed/utils/groups.py, `_clone_world_group`
)
