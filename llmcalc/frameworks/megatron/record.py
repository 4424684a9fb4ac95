"""The registry record of the framework Megatron-LM, with Megatron-Core and Transformer Engine."""

from __future__ import annotations

from ...parallel.layout_rules import LayoutRules
from ..framework import EstimateErrors, Framework, LazyFunction
from ..launch.launch_types import LaunchFile, Plugin

FRAMEWORK = Framework(
    name="megatron",
    title="Megatron-Core",
    rank_memory=LazyFunction(__package__, "run:rank_memory"),
    estimate=LazyFunction(__package__, "estimate:estimate_peaks"),
    estimate_errors=EstimateErrors(relative_error_below=0.04),
    evidence=LazyFunction(__package__, "evidence:evidence_for"),
    gradient_rules=LazyFunction(__package__, "messages:gradient_rules"),
    layout_rules=LayoutRules(
        "megatron", default_zero_stage=1, largest_zero_stage=1, keeps_experts_whole=True, sequence_parallel=True
    ),
    launch_file=LaunchFile(
        "megatron",
        "Megatron-LM's arguments (YAML, JSON, shell script)",
        LazyFunction(__package__, "launch_file:is_megatron"),
        LazyFunction(__package__, "launch_file:read_megatron"),
        program_of_arguments="Megatron-LM",
        has_program_arguments=LazyFunction(__package__, "launch_file:has_program_arguments"),
        read_arguments=LazyFunction(__package__, "launch_file:read_megatron"),
        program="Megatron-LM",
        with_options=LazyFunction(__package__, "launch_options:with_options"),
    ),
    plugin=Plugin("MEGATRON_LM", "megatron_lm_config", LazyFunction(__package__, "plugin:read_accelerate")),
    replays_stages_alone=True,
    default_attention="flash",
    has_known_communicators=False,
    document_values=LazyFunction(__package__, "run:document_values"),
    check_run=LazyFunction(__package__, "run:check_run"),
    check_layout=LazyFunction(__package__, "settings_from_options:megatron_settings_of"),
    time_stack_name=LazyFunction(__package__, "time_stack:time_stack_name"),
    overlapped_parallel_groups=LazyFunction(__package__, "time_stack:overlapped_parallel_groups"),
    recomputed_modules=LazyFunction(__package__, "time_stack:recomputed_modules"),
    recomputed_layers=LazyFunction(__package__, "time_stack:recomputed_layers"),
    product_format=LazyFunction(__package__, "time_stack:product_format"),
    low_precision_formats=frozenset({"fp8", "mxfp8"}),
    library_losses=frozenset({"native"}),
    loss="eager",
)
