"""torch by itself: DistributedDataParallel, tensor parallelism and pipelines of torch.distributed."""

from __future__ import annotations

from ...device_memory.cuda_runtime import Runtime
from ...device_memory.device_memory import DeviceMemory
from ...device_memory.estimate import Memory
from ...evidence import FrameworkEvidence
from ...parallel.layout import Layout
from ...parallel.search import LayoutRules
from ..framework import Framework, RunOnRanks
from ..peak_estimate import EstimateErrors, PeakEstimate
from .messages import GRADIENTS


def rank_memory(run: RunOnRanks, rank: int, runtime: Runtime) -> DeviceMemory:
    """The memory of one rank, replayed."""
    from .rank_memory import rank_memory

    return rank_memory(run, rank, runtime)


def estimate(memory: Memory) -> PeakEstimate:
    """The memory of any rank of any layout, without an allocator."""
    from .estimate import estimate

    return estimate(memory)


def evidence(layout: Layout, trains: bool) -> FrameworkEvidence:
    """The witnesses of its runs in a layout. trains: whether the run is training."""
    from .evidence import evidence_for

    return evidence_for(layout, trains)


FRAMEWORK = Framework(
    name="torch",
    title="torch",
    rank_memory=rank_memory,
    estimate=estimate,
    estimate_errors=EstimateErrors(under=0.04),
    evidence=evidence,
    gradients=GRADIENTS,
    layouts=LayoutRules("torch", untried=("cp", "ep"), fills_pipeline=True),
    serves=True,
)
