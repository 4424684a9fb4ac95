"""Measures seconds, FLOP/s and memory of a forward pass on a real device, which `verify` shows beside the checks."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

WARM_UP_RUNS, TIMED_RUNS = 2, 5


def measure_forward(module: nn.Module, forward: Callable[[], Any], flops: int, token_count: int) -> dict[str, Any]:
    """Times `forward` on the module's device: the median of five runs after two warm-up runs.

    On CUDA, memory is measured too: the memory that PyTorch's allocator holds for weights and inputs, and its peak.

    flops: the closed-form FLOPs of one pass. token_count: the number of tokens per pass.
    """
    import torch

    device = next(module.parameters()).device
    is_cuda = device.type == "cuda"

    def seconds_when_finished() -> float:
        if is_cuda:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    with torch.no_grad():
        for _ in range(WARM_UP_RUNS):
            forward()
        if is_cuda:
            torch.cuda.reset_peak_memory_stats(device)
        seconds = []
        for _ in range(TIMED_RUNS):
            start_time = seconds_when_finished()
            forward()
            seconds.append(seconds_when_finished() - start_time)
    median_seconds = sorted(seconds)[TIMED_RUNS // 2]
    measurements: dict[str, Any] = {
        "date": date.today().isoformat(), "torch": torch.__version__, "device": _device_name(device),
        "tokens": token_count,
        "forward_flops": flops, "forward_seconds": median_seconds, "flops_per_second": flops / median_seconds,
    }  # fmt: skip
    if is_cuda:
        measurements |= {
            "cuda": torch.version.cuda,
            "driver": driver_version(),
            "weights_bytes": sum(parameter.numel() * parameter.element_size() for parameter in module.parameters()),
            "allocated_bytes": torch.cuda.memory_allocated(device),
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
            "device_bytes": torch.cuda.get_device_properties(device).total_memory,
        }
    return measurements


def _device_name(device: Any) -> str:
    import platform

    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads, {platform.machine()}"


def driver_version() -> str | None:
    """Returns the NVIDIA driver's version, read from nvidia-smi; None without nvidia-smi."""
    import subprocess

    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        output_lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    return output_lines[0].strip() if output_lines else None
