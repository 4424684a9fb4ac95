"""The device memory of TensorRT-LLM: the KV cache gets a fraction of the free memory at a dummy run's peak.

The run is of `max_num_tokens` tokens of prompts (`_torch/pyexecutor/_util.py`, `configure_kv_cache_capacity`); its peak
counts weights, torch's activations and all memory outside torch, but not its own cache.
`presets/engines/tensorrt_llm.toml` has the rules of each version with their source files.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from ...errors import InputError
from ...parallel.layout import Layout
from ..engines.engine import EngineMemory, MemoryTerm
from ..engines.rank import EngineRank
from ..engines.server import EngineServer
from .speculation import Speculation, speculation_of
from .versions import TensorRTLLMRecord, TensorRTLLMRules, tensorrt_llm_record

ROPE_BYTES = 4
"""Bytes per element of RoPE's cosine and sine tables, which are in float32 (attention_backend/interface.py)."""

FLASH_MLA_BLOCK = 64
"""Tokens per cache block with FlashMLA, which runs MLA on Hopper (_torch/pyexecutor/py_executor_creator.py)."""

INTEGRATED_CAPABILITIES = ("8.7", "11.0", "12.1")
"""Compute capabilities of NVIDIA GPUs that share memory with the processor: Orin, Thor, GB10
(https://developer.nvidia.com/cuda-gpus).
"""

HIDDEN_VECTORS = 10
"""Number of vectors of the hidden size that a layer keeps per token, compared with published capacities."""


class TensorRTLLMServer(EngineServer):
    """A TensorRT-LLM server: model, accelerator, version and flags."""

    name = "tensorrt-llm"
    length_flag_name = "max_seq_len"
    layout_flag_names = "tp_size", "pp_size", "ep_size"
    deciding_flags_by_term = {
        "weights": ("dtype", "quantize", "speculative_config"),
        "profile_run": ("max_num_tokens",),
        "non_torch": ("max_batch_size",),
        "kv_cache": (
            "kv_cache_free_gpu_memory_fraction",
            "max_num_tokens",
            "max_batch_size",
            "quantize",
            "speculative_config",
        ),
    }

    def __post_init__(self) -> None:
        """Raises `InputError` for a model or an accelerator without kernels."""
        super().__post_init__()
        self.check_kernels(self.rank_of_stage(0))

    @property
    def engine_record(self) -> TensorRTLLMRecord:
        return tensorrt_llm_record()

    @cached_property
    def rules(self) -> TensorRTLLMRules:
        return self.engine_record.rules(self.version_numbers)

    @cached_property
    def layout(self) -> Layout:
        """The layout of the server's devices; ranks divide each expert, or are groups with whole experts.

        With `--enable_attention_dp` each rank of the group has attention and dense networks of its own, and requests of
        its own. The first stages have one layer more (tensorrt_llm/mapping.py, `pp_layers`).
        """
        expert_ranks = int(self.flags.get("ep_size", 1))
        if self.tp % expert_ranks:
            raise InputError(f"--ep_size {expert_ranks}: does not divide --tp_size {self.tp}; expected a divisor of it")
        tp, dp = (1, self.tp) if self.flags.get("enable_attention_dp") else (self.tp, 1)
        return Layout(
            tp=tp,
            pp=self.pp,
            dp=dp,
            ep=expert_ranks,
            etp=self.tp // expert_ranks,
            pp_layout=self.stage_layers(range(self.pp)),
        )

    @property
    def cache_fraction(self) -> float:
        default_fraction = self.engine_record.defaults.free_gpu_memory_fraction
        return float(self.flags.get("kv_cache_free_gpu_memory_fraction", default_fraction))

    @property
    def max_num_tokens(self) -> int:
        return int(self.flags.get("max_num_tokens", self.engine_record.defaults.max_num_tokens))

    @property
    def max_batch_size(self) -> int:
        return int(self.flags.get("max_batch_size", self.engine_record.defaults.max_batch_size))

    @cached_property
    def tokens_per_block(self) -> int:
        is_flash_mla = self.hardware.compute_capability == "9.0" and self.rank_of_stage(0).up_projection_elements > 0
        default_tokens = FLASH_MLA_BLOCK if is_flash_mla else self.engine_record.defaults.tokens_per_block
        return int(self.flags.get("tokens_per_block", default_tokens))

    @property
    def effective_defaults(self) -> dict[str, Any]:
        """Flag name → the value in effect: the user's, or the default."""
        return {
            "max_seq_len": self.longest_request,
            "max_batch_size": self.max_batch_size,
            "max_num_tokens": self.max_num_tokens,
            "kv_cache_free_gpu_memory_fraction": self.cache_fraction,
            "kv_cache_dtype": "auto",
            "tokens_per_block": self.tokens_per_block,
            "tp_size": self.tp,
        }

    def rank_of_stage(self, stage_number: int) -> EngineRank:
        """Returns the model on the first rank of a pipeline stage."""
        return EngineRank(
            self.preset,
            self.layout,
            self.layout.rank(pp=stage_number),
            self.flags.get("quantize"),
            self.dtype,
            includes_mtp=self.speculation.uses_mtp and stage_number == self.pp - 1,
        ).shared()

    @cached_property
    def speculation(self) -> Speculation:
        """The server's settings of speculative decoding."""
        return speculation_of(self.flags, self.preset)

    @cached_property
    def draft(self) -> EngineRank | None:
        """The draft model on one rank; None without speculative decoding by a draft model."""
        if self.speculation.draft_model is None:
            return None
        return EngineRank(self.speculation.draft_model, Layout(tp=self.layout.tp), 0, None, self.dtype).shared()

    def stored_weights_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the bytes of the weights, with a draft's, RoPE tables and copies of MLA's up-projections."""
        draft_bytes = 0
        if self.draft is not None:
            draft_bytes = self.draft.weight_bytes + self.draft.rope_table_elements(is_scaled=False) * ROPE_BYTES
        return (
            engine_rank.weight_bytes
            + draft_bytes
            + engine_rank.rope_table_elements(is_scaled=False) * ROPE_BYTES
            + engine_rank.up_projection_elements * 2
        )

    def dummy_run_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the peak activation bytes of torch in the dummy run, in the widest layer of the rank."""
        intermediate_size, is_gated, rank_experts = engine_rank.widest_network_sizes
        hidden_size, token_count = engine_rank.hidden_size, self.max_num_tokens
        inner_width = (3 if is_gated else 2) * intermediate_size
        if rank_experts is not None:
            top_k = rank_experts.top_k
            expert_width = rank_experts.intermediate_size
            expert_hidden_size = rank_experts.input_width
            inner_width = max(
                inner_width, top_k * (max(2 * expert_width, expert_hidden_size) + expert_width + expert_hidden_size)
            )
        return token_count * 2 * (HIDDEN_VECTORS * hidden_size + inner_width)

    def token_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the bytes that one token takes in the KV caches of all layers on a rank."""
        if engine_rank.state_caches:
            raise InputError(
                f"--engine {self.name}: recurrent states are not modelled, because three managers of caches divide the "
                "memory between states and tokens, each in its own way (mamba_cache_manager.py); expected a model "
                "without them, or another engine"
            )
        if not engine_rank.token_caches:
            raise engine_rank.no_cache_error(self.name)
        element_bytes = Fraction(self.cached_element_bytes)
        caching_ranks = [engine_rank] if self.draft is None else [engine_rank, self.draft]
        return int(
            sum(
                cache.layer_count * caching_rank.cache_bytes_per_token(cache, element_bytes, False)
                for caching_rank in caching_ranks
                for cache in caching_rank.token_caches
            )
        )

    def blocks(self, available_bytes: int, token_bytes: int) -> int:
        """Returns the number of KV cache blocks, including a partly filled block."""
        limiting_flags = self.rules.limits
        if "max_gpu_total_bytes" in limiting_flags and self.flags.get("max_gpu_total_bytes"):
            available_bytes = min(available_bytes, int(self.flags["max_gpu_total_bytes"]))
        token_count = min(available_bytes // token_bytes, int(self.flags.get("max_tokens", 10**15)))
        return -(-max(0, token_count) // self.tokens_per_block)

    def stage_memory(self, stage_number: int) -> StageMemory:
        """Returns the memory of one rank of a pipeline stage."""
        engine_rank = self.rank_of_stage(stage_number)
        memory_outside_torch = self.engine_record.overhead_outside_torch(self.hardware, self.tp * self.pp)
        weight_bytes = self.logged_or_computed_bytes("weights", self.stored_weights_bytes(engine_rank))
        activation_bytes = self.logged_or_computed_bytes("profile_run", self.dummy_run_bytes(engine_rank))
        outside_bytes = self.logged_or_computed_bytes("non_torch", memory_outside_torch.bytes_beside(weight_bytes))
        peak_bytes = weight_bytes + activation_bytes + outside_bytes
        cache_bytes = self.logged_or_computed_bytes(
            "kv_cache", int(self.cache_fraction * (self.hardware.capacity_bytes - peak_bytes))
        )
        block_count = self.blocks(cache_bytes, self.token_bytes(engine_rank))
        rules_source = self.rules.source_location
        budget_origin = f"the peak and {self.cache_fraction} of what it leaves (--kv_cache_free_gpu_memory_fraction)"
        tokens_origin = f"{self.max_num_tokens:,} tokens (--max_num_tokens)"
        memory_terms = (
            MemoryTerm("budget", peak_bytes + max(cache_bytes, 0), "estimate", rules_source, budget_origin),
            MemoryTerm(
                "weights", weight_bytes, engine_rank.weights_status, "tensors of the rank", engine_rank.weights_origin
            ),
            MemoryTerm("profile_run", activation_bytes, "estimate", rules_source, tokens_origin),
            MemoryTerm(
                "non_torch",
                outside_bytes,
                "estimate",
                memory_outside_torch.source,
                "context, NCCL, libraries and CUDA graphs",
            ),
            MemoryTerm("cuda_graphs", 0, "source", rules_source, "measured together with the memory outside torch"),
            MemoryTerm(
                "kv_cache",
                max(cache_bytes, 0),
                "estimate",
                rules_source,
                f"{block_count:,} blocks of {self.tokens_per_block}",
            ),
        )
        return StageMemory(self.with_logged_sizes(memory_terms), block_count)


class StageMemory(NamedTuple):
    """The memory of a rank of one pipeline stage: the bytes of each named term, and the number of KV cache blocks."""

    terms: tuple[MemoryTerm, ...]
    block_count: int


def memory(server: TensorRTLLMServer) -> EngineMemory:
    """Returns TensorRT-LLM's memory on a device of the pipeline stage with the fewest KV cache blocks.

    Raises `InputError` for flags that contradict the model.
    """
    fullest_stage = min(map(server.stage_memory, range(server.pp)), key=lambda stage_memory: stage_memory.block_count)
    block_tokens, max_seq_len = server.tokens_per_block, server.longest_request
    cache_tokens = fullest_stage.block_count * block_tokens
    startup_error = server.engine_record.messages["no_cache"] if fullest_stage.block_count == 0 else ""
    return EngineMemory(
        terms=fullest_stage.terms,
        kv_tokens=cache_tokens,
        block_count=fullest_stage.block_count,
        max_concurrency=fullest_stage.block_count / -(-max_seq_len // block_tokens),
        can_start=not startup_error,
        startup_error=startup_error,
        max_model_len=max_seq_len,
        devices=server.device_count,
        block_size=block_tokens,
        assumed_flags=server.assumed_flags,
        settings=server.settings,
        layout=server.layout,
        notes=tuple(filter(None, (server.version.note, *_cache_notes(server, cache_tokens, bool(startup_error))))),
    )


def _cache_notes(server: TensorRTLLMServer, cache_tokens: int, is_startup_error: bool) -> list[str]:
    """Returns notes on sliding windows, and on a KV cache that is too small for the longest request."""
    cache_notes = []
    if server.speculation.uses_mtp or server.draft is not None:
        cache_notes.append("the passes that draft tokens, and their CUDA graphs, are not counted; they may take more")
    if not is_startup_error and cache_tokens < server.longest_request:
        cache_notes.append(
            f"requests of more than {cache_tokens:,} tokens are refused: --max_seq_len {server.longest_request:,} is "
            "shortened to what the cache holds"
        )
    if server.hardware.compute_capability in INTEGRATED_CAPABILITIES:
        cache_notes.append(
            "the processor shares this memory: pages of the checkpoint that the system still caches count as used, up "
            "to all of its bytes, unless they are dropped (echo 3 > /proc/sys/vm/drop_caches)"
        )
    if any(cache.window is not None for cache in server.rank_of_stage(0).token_caches):
        cache_notes.append("layers with a window keep all tokens, unless kv_cache_config.max_attention_window is set")
    return cache_notes
