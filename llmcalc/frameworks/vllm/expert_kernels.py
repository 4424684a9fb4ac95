"""The kernels that run a rank's experts in vLLM, and the workspaces that they allocate, by version and device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

EXPERT_CHUNK_VARIABLE = "VLLM_FUSED_MOE_CHUNK_SIZE"
"""Environment variable for the largest number of tokens that experts read at once, in versions that divide a step."""

WHOLE_EXPERT_STEPS_FROM = (0, 18)
"""First version whose experts read all tokens of a step at once (vllm/envs.py, 0.17.1 and 0.18.0)."""

EXPERT_CHUNKS = (((0, 12), 16 * 1024), ((0, 0), 32 * 1024))
"""First version → default of `EXPERT_CHUNK_VARIABLE` (vllm/envs.py, read in 0.10.1, 0.11.0, 0.11.2, 0.12.0, 0.13.0 and
0.17.1).
"""

CHUNKING_KERNELS = frozenset(("fp8",))
"""Kernels of quantized weights that divide a step into chunks, as 16-bit kernels do and Marlin's do not
(fused_moe/fused_marlin_moe.py).
"""

FP8_KERNELS_FROM = 8.9
"""Compute capability from which on fp8 has native kernels; GPUs below it use Marlin's (quantization/fp8.py)."""

MARLIN_CHUNKS_FP8_FROM = (0, 14)
"""First version in which Marlin's fp8 kernels also divide a step (`MarlinExperts.supports_chunking`, not in 0.13)."""

CUTLASS_BACKEND = "cutlass"
"""Value of --moe-backend for vLLM's own CUTLASS kernels (fused_moe/oracle/nvfp4.py, `map_nvfp4_backend`)."""

TRITON_BACKEND = "triton"
"""Value of --moe-backend for Triton's kernels, whose workspaces are modelled."""

CUTLASS_FP4_FROM = 10.0
"""Compute capability from which on CUTLASS kernels have 4 bits (fused_moe/cutlass_moe.py, `CutlassExpertsFp4`)."""

AUTOMATIC_CUTLASS = ((0, 15), (0, 16))
"""The version from which experts in NVFP4 run those kernels by default on compute capability 12, for which the list of
kernels has no FlashInfer (pull request 32414), and the first one whose list has it (pull request 33417)."""

SHARES_WORKSPACES_FROM = (0, 14)
"""First version whose layers share one buffer with the experts' workspaces (v1/worker/workspace.py; in 0.13
`UnquantizedFusedMoEMethod` and `Fp8MoEMethod` still run `fused_experts`, which has tensors of its own)."""

FLASHINFER_FP8_FROM = (0, 18)
"""First checked version in which fp8 experts use FlashInfer's kernels by default on compute capability 10, and with
expert parallelism on 9 (fused_moe/oracle/fp8.py).
"""

FLASHINFER_16_BITS_FROM = (0, 20)
"""First checked version in which 16-bit experts use FlashInfer's kernels by default (fused_moe/oracle/unquantized.py,
not in 0.19.1).
"""

HOPPER_RUNS_TRITON_FROM = (0, 23)
"""First version in which 16-bit experts on compute capability 9 use Triton's kernels again (not in 0.22.0)."""

FREEING_BACKENDS = ("flashinfer", "aiter")
"""Prefixes of the values of --moe-backend whose kernels free their workspaces (`workspace_shapes` of
fused_moe/experts/flashinfer_cutlass_moe.py and rocm_aiter_moe.py).
"""


class ExpertKernels(NamedTuple):
    """The kernels of a rank's experts in a version.

    flags: the server's flags.
    weight_kernels: kernels of quantized weights; empty for weights in 16 bits.
    compute_capability: the GPU's compute capability; None for other accelerators.
    """

    flags: Mapping[str, Any]
    version_numbers: tuple[int, ...]
    weight_kernels: frozenset[str]
    compute_capability: float | None

    @property
    def chunk_tokens(self) -> int | None:
        """The largest number of tokens that the experts read at once; None for all tokens of a step."""
        has_whole_fp8_steps = self._lacks_fp8_kernels and self.version_numbers < MARLIN_CHUNKS_FP8_FROM
        chunking_kernels = frozenset[str]() if has_whole_fp8_steps else CHUNKING_KERNELS
        if self.version_numbers >= WHOLE_EXPERT_STEPS_FROM or not self.weight_kernels <= chunking_kernels:
            return None
        default_tokens = next(
            chunk_tokens for first_version, chunk_tokens in EXPERT_CHUNKS if first_version <= self.version_numbers
        )
        return int(self.flags.get(EXPERT_CHUNK_VARIABLE, default_tokens))

    @property
    def keep_routed_copies(self) -> bool:
        """Whether the kernels keep shuffled copies of tokens in addition to workspaces (`run_cutlass_moe_fp4`)."""
        compute_capability = self.compute_capability
        if compute_capability is None or compute_capability < CUTLASS_FP4_FROM or "nvfp4" not in self.weight_kernels:
            return False
        first_version, version_after = AUTOMATIC_CUTLASS
        is_automatic = first_version <= self.version_numbers < version_after and compute_capability >= 12
        backend = moe_backend(self.flags)
        return backend == CUTLASS_BACKEND or (backend == "auto" and is_automatic)

    @property
    def share_workspaces(self) -> bool:
        """Whether all layers share the workspaces of their experts; False for unmodelled kernels with 4-bit weights."""
        return self.version_numbers >= SHARES_WORKSPACES_FROM and self.weight_kernels <= CHUNKING_KERNELS

    @property
    def keep_workspaces(self) -> bool:
        """Whether the shared workspaces stay allocated after the layers; FlashInfer's kernels free theirs."""
        return self.share_workspaces and not self._free_workspaces

    @property
    def have_assumed_widths(self) -> bool:
        """Whether the widths of the workspaces are taken from Triton's kernels, because others are unknown."""
        return (
            (bool(self.weight_kernels) and self._lacks_fp8_kernels)
            or not self.weight_kernels <= CHUNKING_KERNELS
            or moe_backend(self.flags) not in ("auto", TRITON_BACKEND)
            or self._free_workspaces
        )

    @property
    def _lacks_fp8_kernels(self) -> bool:
        """Whether the GPU runs weights in fp8 by Marlin's kernels."""
        return self.compute_capability is not None and self.compute_capability < FP8_KERNELS_FROM

    @property
    def _free_workspaces(self) -> bool:
        """Whether the kernels free their workspaces after the experts, as FlashInfer's and AITER's do."""
        if (backend := moe_backend(self.flags)) != "auto":
            return backend.startswith(FREEING_BACKENDS)
        version_numbers, compute_capability = self.version_numbers, self.compute_capability
        if compute_capability is None:
            return False
        is_hopper = 9 <= compute_capability < 10
        if self.weight_kernels:
            has_expert_ranks = bool(self.flags.get("enable_expert_parallel"))
            return version_numbers >= FLASHINFER_FP8_FROM and (
                10 <= compute_capability < 11 or (is_hopper and has_expert_ranks)
            )
        runs_flashinfer = compute_capability >= 10 or (is_hopper and version_numbers < HOPPER_RUNS_TRITON_FROM)
        return version_numbers >= FLASHINFER_16_BITS_FROM and runs_flashinfer


def moe_backend(flags: Mapping[str, Any]) -> str:
    """Returns vLLM's name of the experts' kernels, in lower case and with underscores; `auto` without a flag.

    They are the value of --moe-backend, otherwise that of the key in --kernel-config (vllm/config/kernel.py).
    """
    typed_backend = str(flags.get("moe_backend", "auto"))
    if typed_backend == "auto":
        typed_backend = str(flags.get("kernel_config", {}).get("moe_backend", "auto"))
    return typed_backend.lower().replace("-", "_")
