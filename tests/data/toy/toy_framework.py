"""Toyframe: replicas that sum all gradients at once, each of which runs as one device does. It has a launch file."""

from __future__ import annotations

from collections.abc import Iterator

from ...device_memory.cuda_runtime import CudaRuntime
from ...device_memory.device_memory import DeviceMemory
from ...device_memory.estimate import Memory
from ...parallel.layout import Layout
from ...parallel.layout_rules import LayoutRules
from ...parallel.messages import GradientRules, Message, ReplicatedWeights
from ..framework import EstimateErrors, Framework, RunOnRanks
from ..launch.launch_types import Launch, LaunchFile, LaunchSource, Table
from ..peak_estimate import PeakEstimate, bytes_per_parameter
from ..torch.pass_measurement import estimate_with_torch_kernels
from ..transient_bytes import no_transient_bytes


def rank_memory(run: RunOnRanks, rank: int, runtime: CudaRuntime) -> DeviceMemory:
    """The memory of one rank: that of one device."""
    return run.memory.memory_for_runtime(runtime)


def estimate(memory: Memory) -> PeakEstimate:
    """The memory of any rank, without an allocator."""
    return estimate_with_torch_kernels(memory, bytes_per_parameter(memory), memory.training(), no_transient_bytes)


def gradient_messages(group: ReplicatedWeights) -> Iterator[Message]:
    """One sum of all gradients."""
    yield group.replica_group.message("all_reduce", group.element_count * group.element_bytes, 1)


def gradient_rules() -> GradientRules:
    """How gradients are summed over replicas."""
    return GradientRules("toyframe", (0,), gradient_messages)


def is_job(data: Table) -> bool:
    """Whether a table is a job of Toyframe."""
    return "toyframe" in data


def read_job(data: Table, source: LaunchSource) -> Launch:
    """Reads the number of replicas."""
    return Launch(source.name_in_errors, "toyjob", "toyframe", layout=Layout(dp=data["toyframe"]))


FRAMEWORK = Framework(
    name="toyframe",
    title="Toyframe",
    rank_memory=rank_memory,
    estimate=estimate,
    estimate_errors=EstimateErrors(relative_error_below=0.5),
    gradient_rules=gradient_rules,
    layout_rules=LayoutRules("toyframe", untried_size_names=("tp", "cp", "pp", "vpp", "ep")),
    launch_file=LaunchFile("toyjob", "a job of Toyframe", is_job, read_job),
)
