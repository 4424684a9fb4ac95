"""What expert parallelism takes beside the experts in vLLM: buffers of `--all2all-backend`, and `--enable-eplb`.

The library that sends tokens to experts has buffers beside torch's memory.

vllm/distributed/device_communicators/all2all.py makes them where attention has several data-parallel ranks and experts
are divided (`use_all2all_kernels`); without either, no backend is used. Sizes of DeepEP's low-latency kernels:
csrc/legacy/config.hpp, `LowLatencyLayout`, of deepseek-ai/DeepEP; NVSHMEM's heap grows by 512 MiB (buffers/legacy.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from ...model import ModelSpec
from ...parallel.search import routed_experts
from ..engines.rank import EngineRank
from ..engines.redundant_experts import redundant_expert_bytes

BACKENDS_WITHOUT_BUFFERS = ("naive", "allgather_reducescatter", "pplx")
"""Backends that run NCCL's collectives. pplx was removed, and vLLM takes allgather_reducescatter in its place."""

DEEPEP_BACKENDS = ("deepep_high_throughput", "deepep_low_latency")
"""Backends of DeepEP, whose buffers are counted."""

OTHER_BACKENDS = (
    "deepep_v2", "flashinfer_all2allv", "flashinfer_nvlink_one_sided", "flashinfer_nvlink_two_sided", "mori", "nixl_ep",
)  # fmt: skip
"""Backends whose buffers are not counted."""

ALL2ALL_BACKENDS = (*BACKENDS_WITHOUT_BUFFERS, *DEEPEP_BACKENDS, *OTHER_BACKENDS)
"""Values of --all2all-backend."""

BACKEND_FIELDS = ("all2all_backend", "VLLM_ALL2ALL_BACKEND")
"""Fields of the flag, and of the variable that earlier versions read."""

RANKS_OF_NODE = 8
"""Ranks of a node; beyond it the high-throughput kernels have a second buffer (`internode`)."""

DEFAULT_BUFFER_MIB = 1024
"""Default of VLLM_DEEPEP_BUFFER_SIZE_MB."""

DEFAULT_DISPATCHED_TOKENS = 256
"""Default of VLLM_MOE_DP_CHUNK_SIZE: tokens of a rank that are sent at once, in versions that divide a step."""

SENDS_WHOLE_STEPS_FROM = (0, 20)
"""First version that was read in which all tokens of a step are sent at once (fused_moe/layer.py, 0.20.1)."""

LARGEST_HEAP = 16 * (2**31 - 1)
"""Largest size of DeepEP's low-latency buffers (github.com/vllm-project/vllm/issues/57894)."""

MIB = 2**20
HEAP_STEP = 512 * MIB
"""Bytes by which NVSHMEM's heap grows (NVSHMEM_CUMEM_GRANULARITY)."""

BLOCK = 128
"""Elements of a row with a scale of their own."""


def exchange_buffer_bytes(
    spec: ModelSpec, flags: Mapping[str, Any], dp: int, rank_count: int, step_tokens: int, version: tuple[int, ...]
) -> int:
    """Returns the bytes of a rank's exchange buffers; 0 if no library sends tokens.

    dp: data-parallel ranks of attention. rank_count: ranks that divide the experts. step_tokens: most tokens of a step.
    Raises `InputError` for a library whose buffers are not counted, and for more tokens than DeepEP's can have.
    """
    backend = next(
        (str(flags[field_name]) for field_name in BACKEND_FIELDS if field_name in flags), BACKENDS_WITHOUT_BUFFERS[1]
    )
    if backend in BACKENDS_WITHOUT_BUFFERS or dp == 1 or not flags.get("enable_expert_parallel"):
        return 0
    expert_count = routed_experts(spec)
    if not expert_count:
        return 0
    expert_count += redundant_experts(flags)
    if backend not in DEEPEP_BACKENDS:
        raise InputError(
            f"--all2all-backend {backend}: its buffers are not modelled; expected one of "
            f"{', '.join((*BACKENDS_WITHOUT_BUFFERS[:2], *DEEPEP_BACKENDS))}"
        )
    buffer_bytes = int(flags.get("VLLM_DEEPEP_BUFFER_SIZE_MB", DEFAULT_BUFFER_MIB)) * MIB
    if backend == "deepep_high_throughput":
        return buffer_bytes * (2 if rank_count > RANKS_OF_NODE else 1)
    hidden_size, dispatched_tokens = int(spec.hidden_size), step_tokens
    if version < SENDS_WHOLE_STEPS_FROM:
        dispatched_tokens = int(flags.get("VLLM_MOE_DP_CHUNK_SIZE", DEFAULT_DISPATCHED_TOKENS))
    heap_bytes = low_latency_bytes(dispatched_tokens, hidden_size, expert_count)
    if heap_bytes > LARGEST_HEAP:
        most_tokens = LARGEST_HEAP // low_latency_bytes(1, hidden_size, expert_count)
        flag_name = "--max-num-batched-tokens" if dispatched_tokens == step_tokens else "VLLM_MOE_DP_CHUNK_SIZE"
        raise InputError(
            f"{flag_name} {dispatched_tokens:,}: the buffers of deepep_low_latency would take "
            f"{heap_bytes / 2**30:,.1f} GiB, and DeepEP has at most 32; expected at most {most_tokens:,}"
        )
    return buffer_bytes + -(-heap_bytes // HEAP_STEP) * HEAP_STEP


DEFAULT_WINDOW = 1000
"""Default of `window_size`: steps whose loads of the experts are kept (vllm/config/parallel.py, `EPLBConfig`)."""


def redundant_experts(flags: Mapping[str, Any]) -> int:
    """Returns the copies of experts in a layer, over all ranks; 0 without `--enable-eplb`."""
    if not flags.get("enable_eplb"):
        return 0
    return int(flags.get("num_redundant_experts", flags.get("eplb_config", {}).get("num_redundant_experts", 0)))


def balancing_bytes(rank: EngineRank, flags: Mapping[str, Any], rank_count: int) -> int:
    """Returns the bytes that balancing the experts' loads adds to a rank's weights (`--enable-eplb`).

    They are copies of experts, a buffer as large as a layer's experts, and the loads of the last steps in 32 bits
    (vllm/distributed/eplb/eplb_state.py, `add_model`). rank_count: ranks that divide the experts.
    """
    if not flags.get("enable_eplb"):
        return 0
    copy_count, eplb_config = redundant_experts(flags), flags.get("eplb_config", {})
    copy_bytes = redundant_expert_bytes(rank, copy_count, rank_count, "--eplb-config num_redundant_experts")
    rank_experts = rank.widest_networks[2]
    if rank_experts is None:
        return 0
    layer_bytes = (rank.weights_by_component.get("experts", 0) + copy_bytes) // rank_experts.layers
    expert_count = routed_experts(rank.preset.model) + copy_count
    return (
        copy_bytes
        + layer_bytes
        + 4 * int(eplb_config.get("window_size", DEFAULT_WINDOW)) * (rank_experts.layers * expert_count)
    )


def low_latency_bytes(tokens: int, hidden_size: int, experts: int) -> int:
    """Returns the bytes of DeepEP's low-latency buffers: two to send and two to receive, and their signals.

    tokens: most tokens of a rank that are sent at once. experts: of a layer, on all ranks.
    """
    sent_token_bytes = 16 + max(2 * hidden_size, hidden_size + 4 * (hidden_size // BLOCK))
    returned_token_bytes = 4 * (hidden_size // BLOCK) + 2 * hidden_size
    sent_bytes = max(tokens * sent_token_bytes, experts * tokens * returned_token_bytes)
    received_bytes = experts * tokens * max(sent_token_bytes, returned_token_bytes)
    signal_bytes = -(-4 * experts // BLOCK) * BLOCK
    return 2 * (sent_bytes + received_bytes + signal_bytes)
