"""The registry record of FSDP2: torch's `fully_shard`, as torchtitan calls it."""

from __future__ import annotations

from ...parallel.layout_rules import LayoutRules
from ...parallel.schedules import torch_group_size
from ..framework import EstimateErrors, Framework, LazyFunction
from ..launch.launch_types import LaunchFile, Plugin

FRAMEWORK = Framework(
    name="fsdp2",
    title="FSDP2",
    rank_memory=LazyFunction(__package__, "rank_memory:rank_memory"),
    tensor_bytes=LazyFunction(__package__, "rank_memory:tensor_bytes"),
    estimate=LazyFunction(__package__, "estimate:estimate_peaks"),
    estimate_errors=EstimateErrors(relative_error_below=0.08),
    check_run=LazyFunction(__package__, "training:check_run"),
    evidence=LazyFunction(__package__, "evidence:evidence_for"),
    gradient_rules=LazyFunction(__package__, "messages:gradient_rules"),
    layout_rules=LayoutRules(
        "fsdp2",
        default_zero_stage=3,
        untried_size_names=("ep",),
        sequence_parallel=True,
        needs_full_pipeline=True,
        divides_weights=True,
        pipelines_on_request=True,  # a replay of `fully_shard` in a pipeline takes seconds
        keeps_gathered_in_pipelines=True,  # torchtitan: every micro-batch would gather them again
    ),
    replays_every_micro_batch=True,
    micro_batch_group=torch_group_size,
    launch_file=LaunchFile(
        "torchtitan",
        "a torchtitan job",
        LazyFunction(__package__, "torchtitan_file:is_torchtitan"),
        LazyFunction(__package__, "torchtitan_file:read_torchtitan"),
        starts_program=LazyFunction(__package__, "torchtitan_python:starts_program"),
        read_command=LazyFunction(__package__, "torchtitan_python:read_command"),
        is_python=LazyFunction(__package__, "torchtitan_python:is_python"),
        read_python=LazyFunction(__package__, "torchtitan_python:read_python"),
        program="torchtitan",
    ),
    plugin=Plugin(
        "FSDP",
        "fsdp_config",
        LazyFunction(__package__, "plugin:read_accelerate"),
        ("fsdp", "fsdp_config"),
        LazyFunction(__package__, "plugin:read_trainer"),
    ),
    messages_of_rank=LazyFunction(__package__, "rank_memory:messages_of_rank"),
    implying_options=("with --fsdp or --zero 3", lambda request: request.zero_stage() == 3),
    selective_recompute="selective-op",
    low_precision_formats=frozenset({"fp8"}),
    time_stack_name=lambda launch, compiled, experts: "fsdp2-compile" if compiled else "fsdp2",
)
