"""Megatron-LM's functions for llmcalc's framework record: rank memory, checks of runs, and values for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...device_memory.cuda_runtime import CudaRuntime
from ...device_memory.device_memory import DeviceMemory
from ...device_memory.estimate import Memory
from ...errors import InputError
from ...flow.program import all_steps
from ...parallel.layout import ONE_DEVICE
from ..framework import RunOnRanks
from . import rank_memory as replay
from .evidence import check_components
from .kernel_choices import CROSS_ENTROPY_BY_IMPLEMENTATION, choose_loss_implementation
from .kernels.attention import unsupported_attention_reason
from .settings_from_options import megatron_settings_of, settings_on_accelerator


def rank_memory(training_run: RunOnRanks, rank: int, cuda_runtime: CudaRuntime) -> DeviceMemory:
    """Returns the memory of one Megatron-LM rank, by replaying the rank's steps."""
    return replay.rank_memory(
        training_run.memory.spec,
        settings_on_accelerator(training_run, cuda_runtime),
        rank,
        cuda_runtime.context_bytes,
        training_run.recorded_ranks(cuda_runtime),
    )


def check_run(memory_estimate: Memory, version_text: str) -> None:
    """Raises `InputError` for a run that Megatron-LM does not support in any layout."""
    check_components(memory_estimate.spec)
    megatron_settings_of(memory_estimate, ONE_DEVICE, version_text)
    for step in all_steps(memory_estimate.spec.shared_program.root.items):
        if step.verb == "attention" and not step.options.get("selected_keys") and unsupported_attention_reason(step):
            raise InputError(unsupported_attention_reason(step))


def document_values(training_run: RunOnRanks) -> Mapping[str, Any]:
    """Returns the number formats and kernels that follow from Megatron-LM's arguments, for the JSON document."""
    settings = settings_on_accelerator(training_run, training_run.memory.cuda_runtime)
    loss_implementation, weight_dtype = choose_loss_implementation(settings), training_run.memory.states.dtype
    return {
        "workload": {"grad_dtype": "float32" if settings.reduces_in_fp32 else weight_dtype},
        "execution": {
            "norm": "fused",
            "optimizer_impl": "fused",
            "cross_entropy": CROSS_ENTROPY_BY_IMPLEMENTATION[loss_implementation],
            "logits_dtype": weight_dtype if loss_implementation == "te" else "float32",
        },
    }
