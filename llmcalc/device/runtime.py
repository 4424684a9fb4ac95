"""What a run takes on a GPU beside its own tensors: workspaces inside torch's allocator, and the context outside it."""

from __future__ import annotations

from dataclasses import dataclass

HOPPER_WORKSPACE = 4096 * 8 * 1024
"""Bytes of a cuBLAS workspace on GPUs of compute capability 9.0: CUBLAS_WORKSPACE_CONFIG=:4096:8."""

WORKSPACE = (4096 * 2 + 16 * 8) * 1024
"""Bytes of a cuBLAS workspace on other GPUs: `:4096:2:16:8`. Source: aten/src/ATen/cuda/CublasHandlePool.cpp,
`getChosenWorkspaceSize`.
"""

CONTEXT = 512 << 20
"""Bytes of a CUDA context, with kernels loaded as they are used. An estimate: 0.4 to 0.6 GiB by GPU and driver."""


@dataclass(frozen=True)
class Runtime:
    """The GPU's part of a run.

    workspace: bytes of one cuBLAS workspace. The forward thread and autograd's thread have one each, through torch's
        allocator.
    context: bytes of the CUDA context, outside torch's allocator.
    expandable: whether the allocator's segments grow (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).
    """

    workspace: int = HOPPER_WORKSPACE
    context: int = CONTEXT
    expandable: bool = False


HOPPER = Runtime()
"""An H100 or H200 with torch's defaults."""
