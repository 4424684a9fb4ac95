"""GPU memory besides the model's tensors: cuBLAS workspaces in PyTorch's allocator, and the CUDA context outside."""

from __future__ import annotations

import re

from ..accelerator import Hardware
from ..errors import InputError
from ..frozen import frozen

KIB = 1024

LARGE_GPU_WORKSPACE_BYTES = 4096 * 8 * KIB
"""Bytes of a cuBLAS workspace on GPUs of compute capability 9, 10 and 12: CUBLAS_WORKSPACE_CONFIG=:4096:8."""

WORKSPACE_BYTES = (4096 * 2 + 16 * 8) * KIB
"""Bytes of a cuBLAS workspace on GPUs of other compute capabilities: CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8.

Source of both: aten/src/ATen/cuda/CublasHandlePool.cpp of torch 2.13, `getChosenWorkspaceSize`. Before torch 2.7 only
capability 9.0 had the larger one.
"""

LARGE_GPU_CAPABILITIES = (9, 10, 12)
"""Major compute capabilities with the larger workspace."""

CONTEXT_MIB_BY_CAPABILITY = {
    "7.0": (384, 80),  # V100
    "7.5": (133, 40),  # T4
    "8.0": (502, 108),  # A100
    "8.6": (256, 68),  # RTX 3080
    "8.9": (486, 128),  # RTX 4090
    "9.0": (768, 132),  # H200
    "10.0": (713, 148),  # B200
    "12.0": (594, 170),  # RTX 5090
}
"""Compute capability → MiB of the CUDA context outside torch's allocator, and the multiprocessors of the measured GPU.

Most of a context is local memory for all threads that a multiprocessor can hold, so it grows with their number; the
kernels that a run loads come on top. An estimate, from one H200 that was measured, and from messages of out-of-memory
errors of one process (tests/data/gpu/contexts.jsonl), which are within 30 %.
"""

CONTEXT_SOURCE = "measured, by compute capability"
"""The source of the bytes of a CUDA context, in words for tables."""

VENDORS_WITHOUT_CUDA_CONTEXT = ("Apple", "Google", "AWS")
"""Vendors whose accelerators have neither a CUDA context nor cuBLAS workspaces."""

_WORKSPACE_CONFIG = re.compile(r"(:\d{1,7}:\d{1,4})+")


@frozen
class CudaRuntime:
    """The properties of a run's GPU that affect memory, such as CUDA context and cuBLAS workspace sizes.

    workspace_bytes: bytes of one cuBLAS workspace. The forward thread and autograd's thread have one each, through
        torch's allocator. Default: that of an H100.
    context_bytes: bytes of the CUDA context, outside torch's allocator. Default: those of an H100.
    has_expandable_segments: whether the allocator's segments grow (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True),
        false by default.
    gpu_name: the accelerator's name, by which frameworks choose kernels.
    compute_capability: ten times its compute capability, by which torch chooses kernels.
    multiprocessors: among which kernels divide sums, in partial sums beside the result. Default: those of an H100.
    belongs_to_search: whether the run is one of many that a search tries, of which fewer layers are replayed; false
        by default.
    """

    workspace_bytes: int = LARGE_GPU_WORKSPACE_BYTES
    context_bytes: int = CONTEXT_MIB_BY_CAPABILITY["9.0"][0] << 20
    has_expandable_segments: bool = False
    gpu_name: str = "H100"
    compute_capability: int = 90
    multiprocessors: int = 132
    belongs_to_search: bool = False


HOPPER_RUNTIME = CudaRuntime()
"""The CUDA runtime of an H100 or H200 with torch's defaults."""


def cuda_runtime_of(
    hardware: Hardware | None, workspace_config: str | None = None, has_expandable_segments: bool = False
) -> CudaRuntime:
    """Returns the CUDA properties of an accelerator, by default an H100. workspace_config: CUBLAS_WORKSPACE_CONFIG.

    An accelerator whose compute capability or number of multiprocessors is not known is taken for an H100.
    """
    gpu_name = CudaRuntime.gpu_name if hardware is None else hardware.name.upper()
    if hardware is not None and (hardware.vendor in VENDORS_WITHOUT_CUDA_CONTEXT or hardware.is_processor):
        return CudaRuntime(0, 0, has_expandable_segments, gpu_name)
    compute_capability = None if hardware is None else hardware.compute_capability
    is_large_gpu = compute_capability is None or int(compute_capability.partition(".")[0]) in LARGE_GPU_CAPABILITIES
    cublas_workspace_bytes = (
        (LARGE_GPU_WORKSPACE_BYTES if is_large_gpu else WORKSPACE_BYTES)
        if workspace_config is None
        else workspace_bytes(workspace_config)
    )
    capability_number = (
        CudaRuntime.compute_capability if compute_capability is None else int(compute_capability.replace(".", ""))
    )
    compute_units = None if hardware is None else hardware.compute_units
    multiprocessor_count = (
        compute_units.count if compute_units is not None and compute_units.name in ("SM", "CU") else None
    )
    cuda_context_bytes = CudaRuntime.context_bytes
    if hardware is not None and hardware.context_bytes is not None:
        cuda_context_bytes = hardware.context_bytes
    elif compute_capability is not None:
        cuda_context_bytes = context_bytes(compute_capability, multiprocessor_count)
    return CudaRuntime(
        cublas_workspace_bytes,
        cuda_context_bytes,
        has_expandable_segments,
        gpu_name,
        capability_number,
        multiprocessor_count or CudaRuntime.multiprocessors,
    )


def context_bytes(compute_capability: str, multiprocessor_count: int | None) -> int:
    """Returns the bytes of a CUDA context on a GPU, from the table `CONTEXT_MIB_BY_CAPABILITY`.

    compute_capability: such as `9.0`. multiprocessor_count: their number; None for that of the GPU in the table.
    A capability between those of the table has the context of the one before it, an earlier one that of the first.
    """
    known_capabilities = [
        known_capability
        for known_capability in CONTEXT_MIB_BY_CAPABILITY
        if float(known_capability) <= float(compute_capability)
    ]
    context_mib, measured_multiprocessors = CONTEXT_MIB_BY_CAPABILITY[
        known_capabilities[-1] if known_capabilities else next(iter(CONTEXT_MIB_BY_CAPABILITY))
    ]
    return (context_mib << 20) * (multiprocessor_count or measured_multiprocessors) // measured_multiprocessors


def workspace_bytes(workspace_config: str) -> int:
    """Returns the bytes of a cuBLAS workspace: `:4096:8` is eight buffers of 4096 KiB, `:0:0` none.

    Raises `InputError` for a value that torch does not read.
    """
    if not _WORKSPACE_CONFIG.fullmatch(workspace_config):
        raise InputError(
            f"--cublas-workspace {workspace_config}: not understood; expected :SIZE_IN_KIB:COUNT, such as :4096:8"
        )
    sizes_and_counts = [int(number_text) for number_text in workspace_config.split(":")[1:]]
    return sum(
        buffer_kib * buffer_count * KIB
        for buffer_kib, buffer_count in zip(sizes_and_counts[::2], sizes_and_counts[1::2], strict=True)
    )
