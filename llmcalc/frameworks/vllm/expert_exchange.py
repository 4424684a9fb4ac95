"""Additional memory of expert parallelism in vLLM: buffers of `--all2all-backend`, and copies by `--enable-eplb`.

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
from ..engines.rank import EngineRank
from ..engines.redundant_experts import redundant_expert_bytes
from .expert_kernels import moe_backend

BACKENDS_WITHOUT_BUFFERS = ("naive", "allgather_reducescatter", "pplx")
"""Backends without counted buffers: NCCL's collectives, and pplx, which later versions replace by NCCL."""

BACKEND_WITHOUT_GRAPHS = "deepep_high_throughput"
"""Backend for which vLLM turns CUDA graphs off if attention has several data-parallel ranks."""

DEEPEP_BACKENDS = (BACKEND_WITHOUT_GRAPHS, "deepep_low_latency")
"""Backends of DeepEP, whose buffers are counted."""

OTHER_BACKENDS = (
    "deepep_v2", "flashinfer_all2allv", "flashinfer_nvlink_one_sided", "flashinfer_nvlink_two_sided", "mori",
    "mori_high_throughput", "mori_low_latency", "nixl_ep",
)  # fmt: skip
"""Backends whose buffers are not counted."""

COUNTED_BACKENDS = (*BACKENDS_WITHOUT_BUFFERS[:2], *DEEPEP_BACKENDS)
"""Backends that are supported: all whose buffers are counted or that have none, without the removed pplx."""

ALL2ALL_BACKENDS = (*BACKENDS_WITHOUT_BUFFERS, *DEEPEP_BACKENDS, *OTHER_BACKENDS)
"""Values of --all2all-backend."""

BACKEND_FIELDS = ("all2all_backend", "VLLM_ALL2ALL_BACKEND")
"""Fields of the flag for the backend, and of the environment variable that earlier versions read."""

BACKEND_FLAG_FROM = (0, 11, 1)
"""First version with the flag `--all2all-backend` (vLLM pull request 26732)."""

WITHOUT_BACKEND_VARIABLE_FROM = (0, 16)
"""First version that does not read the environment variable for the backend (vLLM pull request 33535)."""

WITHOUT_PPLX_FROM = (0, 17)
"""First version with allgather_reducescatter for pplx (config/parallel.py, read in 0.16.0 and 0.17.0)."""

RANKS_OF_NODE = 8
"""Largest number of ranks per node; with more ranks, the high-throughput kernels have a second buffer (`internode`)."""

DEFAULT_BUFFER_MIB = 1024
"""Default value of VLLM_DEEPEP_BUFFER_SIZE_MB."""

CHUNK_VARIABLE = "VLLM_MOE_DP_CHUNK_SIZE"
"""Environment variable for the number of tokens that a rank sends at once, in versions that divide a step."""

DEFAULT_DISPATCHED_TOKENS = 256
"""Default value of `CHUNK_VARIABLE`."""

SENDS_WHOLE_STEPS_FROM = (0, 20)
"""First checked version in which all tokens of a step are sent at once (fused_moe/layer.py, 0.20.1)."""

FUSED_EXCHANGES = ("deep_gemm_mega_moe",)
"""Values of --moe-backend whose kernels send tokens to experts themselves, so that no rank gathers tokens."""

LARGEST_HEAP = 16 * (2**31 - 1)
"""Largest size of DeepEP's low-latency buffers, in bytes (github.com/vllm-project/vllm/issues/57894)."""

MIB = 2**20
HEAP_STEP_BYTES = 512 * MIB
"""Number of bytes by which NVSHMEM's heap grows (NVSHMEM_CUMEM_GRANULARITY)."""

SCALE_BLOCK_ELEMENTS = 128
"""Number of elements of a row that share a scale."""


def all2all_backend(flags: Mapping[str, Any], version_numbers: tuple[int, ...]) -> tuple[str, str]:
    """Returns the backend that sends tokens to experts (by default NCCL's collectives), and the backend's flag."""
    read_fields = BACKEND_FIELDS[:1] if version_numbers >= WITHOUT_BACKEND_VARIABLE_FROM else BACKEND_FIELDS
    field_name = next(
        (field_candidate for field_candidate in read_fields if field_candidate in flags), BACKEND_FIELDS[0]
    )
    backend = str(flags.get(field_name, BACKENDS_WITHOUT_BUFFERS[1]))
    flag_name = "--all2all-backend" if field_name == BACKEND_FIELDS[0] else field_name
    return backend, flag_name


def uses_pplx(flags: Mapping[str, Any], version_numbers: tuple[int, ...]) -> bool:
    """Whether expert-parallel ranks exchange tokens by pplx's kernels."""
    return version_numbers < WITHOUT_PPLX_FROM and all2all_backend(flags, version_numbers)[0] == "pplx"


def gathering_ranks(flags: Mapping[str, Any], dp: int, version_numbers: tuple[int, ...]) -> int:
    """Returns the number of data-parallel ranks whose tokens a rank's experts all-gather; 1 if none are gathered.

    vllm/distributed/device_communicators/all2all.py, `NaiveAll2AllManager` and `AgRsAll2AllManager`: in the profile run
    each rank has as many tokens as a step. Without `--enable-expert-parallel` ranks gather whatever the backend
    (fused_moe/config.py, `use_all2all_kernels`).
    """
    if flags.get("enable_expert_parallel"):
        backend, _ = all2all_backend(flags, version_numbers)
        has_collectives = backend in BACKENDS_WITHOUT_BUFFERS and not uses_pplx(flags, version_numbers)
        if not has_collectives or moe_backend(flags) in FUSED_EXCHANGES:
            return 1
    return dp


def backend_flags(
    spec: ModelSpec, flags: Mapping[str, Any], exchange_library: str, step_tokens: int, version_numbers: tuple[int, ...]
) -> dict[str, Any]:
    """Returns the flags that make expert ranks exchange tokens by a library; none if a flag already names a library.

    step_tokens: most tokens of a step without these flags. Where DeepEP's low-latency buffers do not hold a step of so
    many tokens, the flags have the largest one that they hold, unless the user sets `--max-num-batched-tokens`.
    """
    if not flags.keys().isdisjoint(BACKEND_FIELDS):
        return {}
    library_flags: dict[str, Any] = {BACKEND_FIELDS[version_numbers < BACKEND_FLAG_FROM]: exchange_library}
    most_tokens = most_low_latency_tokens(int(spec.hidden_size), spec.routed_experts + redundant_experts(flags))
    sends_whole_steps = exchange_library == "deepep_low_latency" and version_numbers >= SENDS_WHOLE_STEPS_FROM
    if sends_whole_steps and step_tokens > most_tokens and "max_num_batched_tokens" not in flags:
        library_flags["max_num_batched_tokens"] = most_tokens
    return library_flags


def exchange_buffer_bytes(
    spec: ModelSpec,
    flags: Mapping[str, Any],
    dp: int,
    rank_count: int,
    step_tokens: int,
    version_numbers: tuple[int, ...],
) -> int:
    """Returns the bytes of a rank's exchange buffers; 0 if no library sends tokens.

    dp: data-parallel ranks of attention. rank_count: ranks that divide the experts. step_tokens: most tokens of a step.
    Raises `InputError` for a library whose buffers are not counted, and for more tokens than DeepEP's can have.
    """
    backend, backend_flag = all2all_backend(flags, version_numbers)
    if backend in BACKENDS_WITHOUT_BUFFERS or dp == 1 or not flags.get("enable_expert_parallel"):
        return 0
    expert_count = spec.routed_experts
    if not expert_count:
        return 0
    expert_count += redundant_experts(flags)
    if backend not in DEEPEP_BACKENDS:
        raise InputError(
            f"{backend_flag} {backend}: its buffers are not modelled; expected one of {', '.join(COUNTED_BACKENDS)}"
        )
    buffer_bytes = int(flags.get("VLLM_DEEPEP_BUFFER_SIZE_MB", DEFAULT_BUFFER_MIB)) * MIB
    if backend == BACKEND_WITHOUT_GRAPHS:
        return buffer_bytes * (2 if rank_count > RANKS_OF_NODE else 1)
    hidden_size, dispatched_tokens, flag_name = int(spec.hidden_size), step_tokens, "--max-num-batched-tokens"
    if version_numbers < SENDS_WHOLE_STEPS_FROM:
        dispatched_tokens, flag_name = int(flags.get(CHUNK_VARIABLE, DEFAULT_DISPATCHED_TOKENS)), CHUNK_VARIABLE
    heap_bytes = low_latency_buffer_bytes(dispatched_tokens, hidden_size, expert_count)
    if heap_bytes > LARGEST_HEAP:
        most_tokens = most_low_latency_tokens(hidden_size, expert_count)
        raise InputError(
            f"{flag_name} {dispatched_tokens:,}: the buffers of deepep_low_latency would take "
            f"{heap_bytes / 2**30:,.1f} GiB, and DeepEP has at most 32; expected at most {most_tokens:,}"
        )
    return buffer_bytes + -(-heap_bytes // HEAP_STEP_BYTES) * HEAP_STEP_BYTES


DEFAULT_WINDOW_STEPS = 1000
"""Default of `window_size`: steps for which expert loads are kept (vllm/config/parallel.py, `EPLBConfig`)."""


def redundant_experts(flags: Mapping[str, Any]) -> int:
    """Returns the number of redundant experts per layer over all ranks; 0 without `--enable-eplb`."""
    return _stated_expert_copies(flags) if flags.get("enable_eplb") else 0


def _stated_expert_copies(flags: Mapping[str, Any]) -> int:
    """Returns the number of redundant experts that the flags state, even without `--enable-eplb`."""
    return int(flags.get("num_redundant_experts", flags.get("eplb_config", {}).get("num_redundant_experts", 0)))


def _expert_copies_option(flags: Mapping[str, Any]) -> str:
    """Returns the option for the number of redundant experts, in the spelling that the user typed."""
    is_typed_flag = "num_redundant_experts" in flags
    return "--num-redundant-experts" if is_typed_flag else "--eplb-config num_redundant_experts"


def check_expert_balancing(spec: ModelSpec, flags: Mapping[str, Any], rank_count: int) -> None:
    """Raises `InputError` for settings of expert parallelism and load balancing with which vLLM does not start.

    vllm/config/parallel.py, `_validate_parallel_config`, and vllm/config/model.py, `_verify_with_expert_parallelism`.
    rank_count: ranks that divide the experts.
    """
    if flags.get("enable_expert_parallel") and not spec.routed_experts:
        raise InputError(
            "--enable-expert-parallel: the model has no experts, and vLLM does not start with it; remove the flag"
        )
    if not flags.get("enable_eplb"):
        if _stated_expert_copies(flags):
            raise InputError(
                f"{_expert_copies_option(flags)} {_stated_expert_copies(flags)}: vLLM does not start with it "
                "unless it balances experts; expected --enable-eplb too, or no copies"
            )
        return
    if not flags.get("enable_expert_parallel"):
        raise InputError("--enable-eplb: vLLM does not start with it alone; expected --enable-expert-parallel too")
    if rank_count == 1:
        raise InputError(
            "--enable-eplb: vLLM does not start with it on one rank; expected a larger --tensor-parallel-size or "
            "--data-parallel-size"
        )


def expert_balancing_bytes(engine_rank: EngineRank, flags: Mapping[str, Any], rank_count: int) -> int:
    """Returns the bytes that expert load balancing (`--enable-eplb`) adds to a rank's weights.

    They are copies of experts, a buffer as large as a layer's experts, and the loads of the last steps in 32 bits
    (vllm/distributed/eplb/eplb_state.py, `add_model`). rank_count: ranks that divide the experts.
    """
    if not flags.get("enable_eplb"):
        return 0
    copy_count, eplb_config = redundant_experts(flags), flags.get("eplb_config", {})
    copy_bytes = redundant_expert_bytes(engine_rank, copy_count, rank_count, _expert_copies_option(flags))
    rank_experts = engine_rank.widest_network_sizes[2]
    if rank_experts is None:
        return 0
    layer_bytes = (engine_rank.weights_by_component.get("experts", 0) + copy_bytes) // rank_experts.layer_count
    expert_count = engine_rank.preset.model.routed_experts + copy_count
    return (
        copy_bytes
        + layer_bytes
        + 4 * int(eplb_config.get("window_size", DEFAULT_WINDOW_STEPS)) * (rank_experts.layer_count * expert_count)
    )


def low_latency_buffer_bytes(token_count: int, hidden_size: int, expert_count: int) -> int:
    """Returns the bytes of DeepEP's low-latency buffers: for sending, receiving and signals.

    token_count: most tokens of a rank that are sent at once. expert_count: of a layer, on all ranks.
    """
    sent_token_bytes = 16 + max(2 * hidden_size, hidden_size + 4 * (hidden_size // SCALE_BLOCK_ELEMENTS))
    returned_token_bytes = 4 * (hidden_size // SCALE_BLOCK_ELEMENTS) + 2 * hidden_size
    sent_bytes = max(token_count * sent_token_bytes, expert_count * token_count * returned_token_bytes)
    received_bytes = expert_count * token_count * max(sent_token_bytes, returned_token_bytes)
    signal_bytes = -(-4 * expert_count // SCALE_BLOCK_ELEMENTS) * SCALE_BLOCK_ELEMENTS
    return 2 * (sent_bytes + received_bytes + signal_bytes)


def most_low_latency_tokens(hidden_size: int, expert_count: int) -> int:
    """Returns the largest number of a rank's tokens that DeepEP's low-latency buffers hold at once."""
    return LARGEST_HEAP // low_latency_buffer_bytes(1, hidden_size, expert_count)
