"""FSDP2: torch's `fully_shard`, as torchtitan calls it."""

from __future__ import annotations

from ...device_memory.cuda_runtime import Runtime
from ...device_memory.device_memory import DeviceMemory
from ...device_memory.estimate import Memory
from ...evidence import FrameworkEvidence
from ...parallel.layout import Layout
from ...parallel.layout_request import dated
from ...parallel.messages import Message
from ...parallel.search import LayoutRules
from ..framework import Framework, RunOnRanks
from ..peak_estimate import EstimateErrors, PeakEstimate
from .messages import GRADIENTS
from .settings import titan_settings


def rank_memory(run: RunOnRanks, rank: int, runtime: Runtime) -> DeviceMemory:
    """The memory of one rank, replayed."""
    from .rank_memory import rank_memory

    return rank_memory(
        run.memory, run.layout, rank, runtime, dated(run.version), titan_settings(run.own_settings), run.shared(runtime)
    )


def own_messages(run: RunOnRanks, rank: int) -> list[Message] | None:
    """The messages of a rank that its replay sends; None for a layout whose replay does not know them."""
    layout = run.layout
    if layout.dp * layout.tp != layout.world or layout.ep != 1:
        return None
    from .rank_memory import rank_traffic

    return rank_traffic(run.memory, layout, rank, dated(run.version), titan_settings(run.own_settings))


def estimate(memory: Memory) -> PeakEstimate:
    """The memory of any rank of any layout, without an allocator."""
    from .estimate import estimate

    return estimate(memory)


def evidence(layout: Layout, trains: bool) -> FrameworkEvidence:
    """The witnesses of its runs in a layout. trains: whether the run is training."""
    from .evidence import evidence_for

    return evidence_for(layout, trains)


FRAMEWORK = Framework(
    name="fsdp2",
    title="FSDP2",
    rank_memory=rank_memory,
    estimate=estimate,
    estimate_errors=EstimateErrors(under=0.08),
    evidence=evidence,
    gradients=GRADIENTS,
    launch_files="a torchtitan job",
    layouts=LayoutRules(
        "fsdp2",
        zero=3,
        untried=("ep",),
        sequence_parallel=True,
        fills_pipeline=True,
        pipelines_if_asked=True,  # a replay of `fully_shard` in a pipeline takes seconds
        keeps_gathered_in_pipelines=True,  # torchtitan: every micro-batch would gather them again
    ),
    own_messages=own_messages,
    implied_by=("with --fsdp or --zero 3", lambda request: request.zero_stage() == 3),
    selective_recompute="selective-op",
)
