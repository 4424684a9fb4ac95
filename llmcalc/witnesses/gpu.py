"""Measures the memory of training steps and passes on a GPU, and compares it with `llmcalc memory`.

torch's caching allocator counts three sums (torch.cuda.memory_stats): bytes that tensors ask for (`requested_bytes`),
bytes of the blocks that they get (`allocated_bytes`), and bytes of its segments (`reserved_bytes`). The first is
compared with the tensors and workspaces of the simulation, the others with its model of the allocator.

A run begins with an empty allocator. The model is created, and free segments are returned. The first matrix products
allocate cuBLAS workspaces, as in the simulation.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..device_memory.cuda_runtime import (
    LARGE_GPU_CAPABILITIES,
    LARGE_GPU_WORKSPACE_BYTES,
    WORKSPACE_BYTES,
    CudaRuntime,
    workspace_bytes,
)
from ..device_memory.device_memory import DeviceMemory
from ..device_memory.estimate import memory
from ..device_memory.settings import Settings
from ..device_memory.training import TrainingConfig
from ..model import ModelSpec
from .checks import MEMORY_PREFIX, Check
from .memory import MemoryComparison, fill_reference_defaults, replay_config, run_text, unsupported_reason
from .speed import driver_version
from .training_loop import InferencePasses, TrainingLoop, cache_shapes

STEPS = 3
"""Number of measured training steps: the first creates the optimizer's states, the others are equal."""

TOLERANCE_BY_QUANTITY = {
    "requested_bytes": 0.001,
    "allocated_bytes": 0.01,
    "reserved_bytes": 0.01,
    "after_step_bytes": 0.01,
}
"""Quantity → allowed relative difference from the measured value."""


# --- statistics -------------------------------------------------------------------------------------------------------


class AllocatorStatistics(NamedTuple):
    """Statistics of the allocator in bytes. allocated: current bytes; other fields: peaks since the last reset."""

    allocated: int
    peak_requested: int
    peak_allocated: int
    peak_reserved: int


class DeviceStatistics(Protocol):
    """The interface to a device's allocator statistics. device: torch's name of the device."""

    device: str

    def empty_and_reset(self) -> None:
        """Frees unreferenced objects, free segments and workspaces, and resets the peaks."""

    def reset_peaks(self) -> None:
        """Resets the allocator's peak statistics."""

    def read_bytes(self) -> AllocatorStatistics:
        """Returns the allocator's statistics after all kernels have finished."""

    def outside_bytes(self) -> int:
        """Returns the bytes that are used on the device outside of torch's allocator."""


class CudaStatistics:
    """The statistics of torch's CUDA allocator."""

    device = "cuda"

    def empty_and_reset(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        self.reset_peaks()

    def reset_peaks(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def read_bytes(self) -> AllocatorStatistics:
        torch.cuda.synchronize()
        memory_statistics = torch.cuda.memory_stats()
        return AllocatorStatistics(
            memory_statistics["allocated_bytes.all.current"],
            memory_statistics["requested_bytes.all.peak"],
            memory_statistics["allocated_bytes.all.peak"],
            memory_statistics["reserved_bytes.all.peak"],
        )

    def outside_bytes(self) -> int:
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        return int(total_bytes - free_bytes - torch.cuda.memory_reserved())


@dataclass
class MeasuredMemory:
    """The memory of a run in bytes, as measured on a GPU.

    requested_bytes, allocated_bytes, reserved_bytes: peaks of the allocator's statistics.
    after_step_bytes: allocated bytes after the last training step, or after the pass.
    before_bytes: allocated bytes before the run, which should be 0.
    beside_bytes: used bytes outside of the allocator after the run, such as the CUDA context; 0 for other devices.
    phases: phase → peaks of the statistics in it.
    """

    requested_bytes: int = 0
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    after_step_bytes: int = 0
    before_bytes: int = 0
    beside_bytes: int = 0
    phases: dict[str, dict[str, int]] = field(default_factory=dict)

    def record_peaks(self, phase: str, allocator_statistics: AllocatorStatistics) -> None:
        """Records the peak requested, allocated and reserved bytes of a phase."""
        peaks = self.phases.setdefault(phase, {"requested_bytes": 0, "allocated_bytes": 0, "reserved_bytes": 0})
        for statistic_name, peak_bytes in zip(peaks, allocator_statistics[1:], strict=True):
            peaks[statistic_name] = max(peaks[statistic_name], peak_bytes)
            setattr(self, statistic_name, max(getattr(self, statistic_name), peak_bytes))
        self.after_step_bytes = allocator_statistics.allocated

    def data(self) -> dict[str, Any]:
        """Returns the measurements as plain data for JSON."""
        return dict(vars(self))


# --- runs -------------------------------------------------------------------------------------------------------------


def measure_gpu(spec: ModelSpec, settings: Settings, device_statistics: DeviceStatistics) -> MeasuredMemory:
    """Measures the memory of a run of the PyTorch reference. Raises torch's `OutOfMemoryError` if it does not fit."""
    run_setup = replay_config(spec, settings)
    measured_memory = MeasuredMemory()
    device_statistics.empty_and_reset()
    measured_memory.before_bytes = device_statistics.read_bytes().allocated

    def record_phase(phase: str, _: Tensor | None = None) -> None:
        measured_memory.record_peaks(phase, device_statistics.read_bytes())
        device_statistics.reset_peaks()

    if isinstance(run_setup, TrainingConfig):
        training_loop = TrainingLoop(spec, run_setup, device_statistics.device)
        device_statistics.empty_and_reset()
        record_phase("set-up")
        for _ in range(STEPS):
            training_loop.run_step(record_phase)
        measured_memory.beside_bytes = device_statistics.outside_bytes()
        return measured_memory
    cache_tensors = cache_shapes(spec, run_setup) if run_setup.phase == "decode" else {}
    inference_configs = InferencePasses(spec, run_setup, device_statistics.device)
    device_statistics.empty_and_reset()
    if run_setup.phase == "decode":
        inference_configs.create_cache(cache_tensors)
    record_phase("set-up")
    (inference_configs.run_decode if run_setup.phase == "decode" else inference_configs.run_prefill)()
    record_phase(run_setup.phase)
    measured_memory.beside_bytes = device_statistics.outside_bytes()
    return measured_memory


# --- comparison -------------------------------------------------------------------------------------------------------


def closed_form_bytes(device_memory: DeviceMemory) -> dict[str, int]:
    """Returns the bytes by quantity as `llmcalc memory` computes them, with workspaces as torch requests them."""
    workspace_bytes = sum(term.bytes for term in device_memory.terms if term.name == "cuBLAS workspaces")
    return {
        "requested_bytes": device_memory.exact_bytes + workspace_bytes,
        "allocated_bytes": device_memory.peak_bytes,
        "reserved_bytes": device_memory.reserved_bytes,
        "after_step_bytes": device_memory.after_step_bytes,
    }


def memory_checks(
    computed_bytes: Mapping[str, int], measured_bytes: Mapping[str, Any], phase: str, witness_label: str
) -> list[Check]:
    """Returns one check per quantity of a phase, such as `memory.training_requested_bytes`."""
    return [
        Check(
            "",
            f"{MEMORY_PREFIX}{phase}_{quantity_name}",
            computed_bytes[quantity_name],
            measured_bytes[quantity_name],
            witness_label,
            tolerance=tolerance,
        )
        for quantity_name, tolerance in TOLERANCE_BY_QUANTITY.items()
    ]


def compare_on_gpu(
    spec: ModelSpec,
    settings: Sequence[Settings],
    device_statistics: DeviceStatistics | None = None,
    cuda_runtime: CudaRuntime | None = None,
) -> MemoryComparison:
    """Compares runs on a GPU with the simulation; leaves out runs that do not fit or have no reference.

    device_statistics, cuda_runtime: default those of torch's GPU.
    Raises `UnsupportedKernel` for a step without kernels.
    """
    comparison = MemoryComparison(info={"runs_measured": []})
    if device_statistics is None:
        comparison.info |= {
            "device": (gpu_facts := gpu_properties()),
            "environment": (allocator_settings := allocator_variables()),
        }
        device_statistics, cuda_runtime = CudaStatistics(), cuda_runtime_of_gpu(gpu_facts, allocator_settings)
    cuda_runtime = CudaRuntime() if cuda_runtime is None else cuda_runtime
    for run_settings in map(fill_reference_defaults, settings):
        reason_to_skip = unsupported_reason(spec, run_settings, "cuda")
        if reason_to_skip:
            comparison.skip_reasons[run_settings.phase] = reason_to_skip
            continue
        device_memory = memory(spec, run_settings, cuda_runtime=cuda_runtime).device
        unused_bytes = free_bytes(device_statistics)
        if unused_bytes is not None and device_memory.reserved_bytes > unused_bytes:
            comparison.skip_reasons[run_settings.phase] = (
                f"{run_text(spec, run_settings)} needs {device_memory.reserved_bytes:,} bytes of {unused_bytes:,} free"
            )
            continue
        computed_bytes = closed_form_bytes(device_memory)
        measured_bytes = measure_gpu(spec, run_settings, device_statistics).data()
        comparison.run_descriptions.append(run_text(spec, run_settings))
        comparison.checks += memory_checks(computed_bytes, measured_bytes, run_settings.phase, "torch on cuda")
        comparison.info["runs_measured"].append(
            {"phase": run_settings.phase, "closed_form": computed_bytes, "measured": measured_bytes}
        )
    return comparison


# --- the GPU ----------------------------------------------------------------------------------------------------------


def free_bytes(device_statistics: DeviceStatistics) -> int | None:
    """Returns the GPU's free bytes if the allocator is empty; None for other devices."""
    if device_statistics.device != "cuda":
        return None
    device_statistics.empty_and_reset()
    return int(torch.cuda.mem_get_info()[0])


ALLOCATOR_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables that change the memory of a run."""


def allocator_variables() -> dict[str, str]:
    """Returns the environment variables of `ALLOCATOR_VARIABLES` that are set."""
    return {
        variable_name: os.environ[variable_name] for variable_name in ALLOCATOR_VARIABLES if variable_name in os.environ
    }


def gpu_properties() -> dict[str, Any]:
    """Returns the GPU's name, the driver's and torch's versions, and today's date."""
    device_properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": torch.cuda.get_device_name(0),
        "memory_bytes": device_properties.total_memory,
        "compute_capability": f"{device_properties.major}.{device_properties.minor}",
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "date": date.today().isoformat(),
    }


def cuda_runtime_of_gpu(gpu_facts: Mapping[str, Any], allocator_settings: Mapping[str, str]) -> CudaRuntime:
    """Returns the CUDA runtime of a measured GPU, in the form that `llmcalc memory` reads.

    gpu_facts, allocator_settings: from `gpu_properties` and `allocator_variables`.
    """
    major_version = int(gpu_facts["compute_capability"].partition(".")[0])
    workspace_config = allocator_settings.get("CUBLAS_WORKSPACE_CONFIG")
    workspace = (
        (LARGE_GPU_WORKSPACE_BYTES if major_version in LARGE_GPU_CAPABILITIES else WORKSPACE_BYTES)
        if workspace_config is None
        else workspace_bytes(workspace_config)
    )
    has_expandable_segments = any(
        "expandable_segments:True" in allocator_settings.get(variable_name, "")
        for variable_name in ALLOCATOR_VARIABLES[1:]
    )
    return CudaRuntime(workspace, has_expandable_segments=has_expandable_segments)
