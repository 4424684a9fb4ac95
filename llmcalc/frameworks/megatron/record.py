"""The registry record of the framework Megatron-LM, with Megatron-Core and Transformer Engine."""

from __future__ import annotations

from ...parallel.layout_rules import LayoutRules
from ..framework import EstimateErrors, Framework, FromFile
from ..launch.record import LaunchFile, Plugin

FRAMEWORK = Framework(
    name="megatron",
    title="Megatron-Core",
    rank_memory=FromFile(__package__, "run:rank_memory"),
    estimate=FromFile(__package__, "estimate:estimate"),
    estimate_errors=EstimateErrors(under=0.04),
    evidence=FromFile(__package__, "evidence:evidence_for"),
    gradient_rules=FromFile(__package__, "messages:gradient_rules"),
    layouts=LayoutRules("megatron", zero=1, whole_experts=True, sequence_parallel=True),
    launch_file=LaunchFile(
        "megatron",
        "Megatron-LM's arguments (YAML, JSON, shell script)",
        FromFile(__package__, "launch_file:is_megatron"),
        FromFile(__package__, "launch_file:read_megatron"),
        arguments_of="Megatron-LM",
        is_run_by=FromFile(__package__, "launch_file:is_run_by"),
        read_arguments=FromFile(__package__, "launch_file:read_megatron"),
        program="Megatron-LM",
        with_options=FromFile(__package__, "launch_options:with_options"),
    ),
    plugin=Plugin("MEGATRON_LM", "megatron_lm_config", FromFile(__package__, "plugin:read_accelerate")),
    attention="flash",
    nccl_is_known=False,
    document=FromFile(__package__, "run:document"),
    check=FromFile(__package__, "run:check"),
    check_layout=FromFile(__package__, "settings_from_options:settings_of"),
    stack=FromFile(__package__, "stack:stack"),
    product_format=FromFile(__package__, "stack:product_format"),
    narrow_precisions=frozenset({"fp8", "mxfp8"}),
)
