"""Megatron-LM with Megatron-Core and Transformer Engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...device_memory.cuda_runtime import Runtime
from ...device_memory.device_memory import DeviceMemory
from ...device_memory.estimate import Memory
from ...evidence import FrameworkEvidence
from ...parallel.layout import ALONE, Layout
from ...parallel.search import LayoutRules
from ..framework import Framework, RunOnRanks
from ..peak_estimate import EstimateErrors, PeakEstimate
from .messages import GRADIENTS


def rank_memory(run: RunOnRanks, rank: int, runtime: Runtime) -> DeviceMemory:
    """The memory of one rank, replayed."""
    from .rank_memory import rank_memory
    from .settings_from_options import settings_on

    return rank_memory(run.memory.spec, settings_on(run, runtime), rank, runtime.context, run.shared(runtime))


def estimate(memory: Memory) -> PeakEstimate:
    """The memory of any rank of any layout, without an allocator."""
    from .estimate import estimate

    return estimate(memory)


def check(memory: Memory, version: str) -> None:
    """Raises `InputError` for a run that Megatron-LM does not have on any layout."""
    from .settings_from_options import settings_of

    settings_of(memory, ALONE, version)


def document(run: RunOnRanks) -> Mapping[str, Any]:
    """Number formats and kernels that follow from Megatron-LM's arguments."""
    from .settings_from_options import settings_on

    settings = settings_on(run, run.memory.runtime)
    fused, weights = settings.cross_entropy_loss_fusion, run.memory.states.dtype
    return {
        "workload": {"grad_dtype": "float32" if settings.reduces_in_fp32 else weights},
        "execution": {
            "norm": "fused",
            "optimizer_impl": "fused",
            "cross_entropy": "fused" if fused else "eager",
            "logits_dtype": weights if fused else "float32",
        },
    }


def evidence(layout: Layout, trains: bool) -> FrameworkEvidence:
    """The witnesses of its runs in a layout. trains: whether the run is training."""
    from .evidence import evidence_for

    return evidence_for(layout, trains)


FRAMEWORK = Framework(
    name="megatron",
    title="Megatron-Core",
    rank_memory=rank_memory,
    estimate=estimate,
    estimate_errors=EstimateErrors(under=0.04),
    evidence=evidence,
    gradients=GRADIENTS,
    launch_files="Megatron-LM's arguments (YAML, JSON, shell script)",
    layouts=LayoutRules("megatron", zero=1, whole_experts=True, sequence_parallel=True),
    attention="flash",
    nccl_is_known=False,
    document=document,
    check=check,
)
