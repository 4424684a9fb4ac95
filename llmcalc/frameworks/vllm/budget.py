"""The device memory of vLLM: the budget, the terms subtracted from the budget, and the remaining KV cache.

`presets/engines/vllm.toml` has the rules of each version with their source files.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from ...device_memory.cuda_runtime import cuda_runtime_of
from ...errors import InputError
from ...parallel.layout import ONE_DEVICE
from ..engines.engine import EngineMemory, MemoryTerm, TermStatus
from ..engines.flags import AUTO_WORDS
from ..engines.rank import EngineRank, architectures, compressed_mixers_with_layer_counts
from ..engines.weight_matrices import unsplit_bytes, unused_projection_bytes
from .adapters import adapter_bytes, adapter_slots
from .cache_formats import (
    FP8_WORDS,
    PACKED_FORMATS,
    SCALED_LATENTS,
    packed_bytes,
    scales_latents,
    stores_latents_in_float8,
)
from .compilation import CACHE_VARIABLE, compilation_bytes, has_kernel_autotuning
from .compressed_blocks import ENTRY_BLOCK, compressed_pool
from .cuda_graphs import GRAPH_SIZES, LARGEST_DEFAULT_BATCH, CUDAGraphs, cuda_graphs, graph_mode_of
from .encoder_run import (
    EncoderRun,
    EncoderRunSettings,
    encoder_run,
    has_chunked_images,
    image_limit,
    image_size,
    image_tower,
    input_limit,
    long_video_patch_size,
)
from .expert_exchange import (
    BACKEND_FIELDS,
    BACKEND_WITHOUT_GRAPHS,
    CHUNK_VARIABLE,
    SENDS_WHOLE_STEPS_FROM,
    WITHOUT_BACKEND_VARIABLE_FROM,
    exchange_buffer_bytes,
    expert_balancing_bytes,
    gathering_ranks,
    uses_pplx,
)
from .expert_kernels import EXPERT_CHUNK_VARIABLE, WHOLE_EXPERT_STEPS_FROM, ExpertKernels
from .flashinfer_sampler import SAMPLER_VARIABLE
from .kv_blocks import BlockPool, block_pool
from .layer_embeddings import layer_embedding_bytes
from .model_runner import penalty_bytes
from .profile_run import ProfileRun
from .recurrent_states import state_storage
from .settings import VLLMSettings
from .sparse_workspace import sparse_workspace

GIB, MIB = 2**30, 2**20

VIDEO_FACTOR = 4
"""Factor on the number of positions in RoPE tables for models with videos (rotary_embedding/mrope.py)."""

DEFAULT_COMPUTE_UNITS = 108
"""Number of compute units of an accelerator whose record states none."""

FULL_GRAPHS_FROM = (0, 11)
"""First version that captures whole decoding passes by default (config/compilation.py, `FULL_AND_PIECEWISE`)."""

CHECKS_OVERRIDE_FROM = (0, 20, 1)
"""First V1 version whose start check reads `--num-gpu-blocks-override` instead of the free memory (vllm#41069; read in
0.20.0 and 0.20.1).
"""

RESERVES_NULL_BLOCK_FROM = (0, 29)
"""First version whose start check excludes the block that the pool never lends (vllm#47272)."""

DIVIDED_BLOCKS_FROM = (0, 14)
"""First version in which ranks may divide merged projections inside an fp8 quantization block (layers/linear.py,
`_maybe_allow_fp8_block_shape_mismatch`, with MiMo-V2-Flash: vllm#30836).
"""

ALLOCATOR_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
"""Environment variable for the options of torch's allocator, such as `expandable_segments:True`."""

NEEDS_TRITON_KERNELS = ((0, 10, 1), (0, 11, 1))
"""The first version of which a log of gpt-oss on an H100 is known that runs Marlin's kernels, for want of the package
triton_kernels, and the version after the last one (vLLM issues 23278 and 27508)."""

CONVERTING_WORDS = ("fp8", "bitsandbytes")
"""Values of `--quantization` that convert 16-bit weights; converted weights reuse the freed segments."""

MERGED_PROJECTIONS = frozenset(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"))
"""Names of projections outside experts that vLLM merges into larger matrices."""

FLASH_ATTENTION_BACKEND = "FLASH_ATTN"
"""The name of vLLM's attention by FlashAttention."""


class VLLMServer(VLLMSettings):
    """The memory of a vLLM server: model, accelerator, version and flags."""

    @cached_property
    def captured_graphs(self) -> CUDAGraphs:
        """The CUDA graphs that the server captures."""
        captures_larger_batches = self.has_model_class(self.engine_record.larger_graphs)
        default_limit = (
            GRAPH_SIZES[-1] if captures_larger_batches else min(2 * self.decoded_tokens, LARGEST_DEFAULT_BATCH)
        )
        return cuda_graphs(
            self.flags, self.compilation, self.decoded_tokens, self.max_num_batched_tokens, default_limit
        )

    def needs_blocks_of_sequences(self, kv_pool: BlockPool) -> bool:
        """Whether every decoded sequence needs a cache block, as for recurrent states in CUDA graphs."""
        decodes_in_graphs = self.captured_graphs.graph_count > 0 and graph_mode_of(self.compilation) != "PIECEWISE"
        return kv_pool.has_states and self.state_rules.needs_blocks_of_sequences and decodes_in_graphs

    @property
    def total_memory(self) -> int:
        """The device's total memory in bytes, as the driver reports it."""
        return self.hardware.capacity_bytes

    def profile_run(self, stage_number: int) -> ProfileRun:
        """Returns the sizes of vLLM's profile run on the ranks of a pipeline stage."""
        compute_units, engine_rank = self.hardware.compute_units, self.rank_of_stage(stage_number)
        capability = self.hardware.compute_capability
        compiles_embedding = self.flags.get(CACHE_VARIABLE) and self.has_kernel_autotuning and stage_number == 0
        return ProfileRun(
            tokens=self.max_num_batched_tokens,
            expert_kernels=ExpertKernels(
                self.flags,
                self.version_numbers,
                engine_rank.weight_kernels,
                None if capability is None else float(capability),
            ),
            sequence_count=min(self.max_num_seqs, self.max_num_batched_tokens),
            element_bytes=self.element_bytes,
            compute_units=DEFAULT_COMPUTE_UNITS if compute_units is None else compute_units.count,
            is_last_stage=stage_number == self.pp - 1 and not self.has_embedding_output,
            has_chunked_prefill=self.has_chunked_prefill,
            stage_count=self.pp,
            encoder_run=self.encoder_run if stage_number == 0 else None,
            keeps_pixels=self.second_runner is None,
            attention_workspace_bytes=sparse_workspace(engine_rank, self.longest_request, self.max_num_batched_tokens),
            cublas_workspace_bytes=cuda_runtime_of(self.hardware).workspace_bytes,
            compilation_bytes=compilation_bytes(engine_rank, self.max_num_batched_tokens, self.element_bytes)
            if compiles_embedding
            else 0,
            gathering_ranks=gathering_ranks(self.flags, self.dp, self.version_numbers),
        )

    @property
    def has_kernel_autotuning(self) -> bool:
        """Whether compilation at the start benchmarks kernels (autotuning), which takes memory."""
        return has_kernel_autotuning(self.version_of_rules, self.flags, self.compilation)

    @cached_property
    def encoder_run(self) -> EncoderRun | None:
        """The image encoder's memory in the profile run; None without an encoder, or for an unmodelled encoder."""
        if self.rules.generation == "v0" or not self.loads_towers or self.flags.get("skip_mm_profiling"):
            return None
        inputs_per_prompt = self.flags.get("limit_mm_per_prompt", {})
        has_videos = input_limit(inputs_per_prompt.get("video", 1)) != 0
        patch_size = long_video_patch_size(self.preset.model) if has_videos else 0
        ranks_have_whole_encoder = self.flags.get("mm_encoder_tp_mode") == "data"
        videos_as_images, chunk_bytes = self.engine_record.videos_as_images(self.version_of_rules), None
        if videos_as_images is not None and not has_chunked_images(self.preset.model):
            videos_as_images = None
        if videos_as_images is not None:
            free_bytes = self.free_bytes_at_start - self.stored_weights_bytes(self.rank_of_stage(0))
            chunk_bytes = min(free_bytes // 2, self.total_memory // 10) if videos_as_images.reads_chunks else 0
        encoder_settings = EncoderRunSettings(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.longest_request,
            images_per_prompt=image_limit(inputs_per_prompt),
            matrix_rank_count=1 if ranks_have_whole_encoder else self.tp,
            image_rank_count=self.tp if ranks_have_whole_encoder else 1,
            element_bytes=self.element_bytes,
            video_frames=self.engine_record.frames_of_videos(self.version_of_rules, patch_size),
            image_size=image_size(inputs_per_prompt),
            videos_as_images=videos_as_images if has_videos else None,
            video_chunk_bytes=chunk_bytes,
        )
        return encoder_run(self.preset.model, encoder_settings, self.flags.get("mm_processor_kwargs", {}))

    def cuda_graph_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the bytes that vLLM estimates for the CUDA graphs of a rank.

        V0 captures whole passes from the largest on, which share one pool (0.13 GiB of Qwen3 0.6B, in one log).
        """
        if self.rules.generation == "v0":
            return int(self.engine_record.cuda_graphs.shared_mib * MIB) if self.captured_graphs.graph_count else 0
        uses_flash_attention = self.flags.get("attention_backend", FLASH_ATTENTION_BACKEND) == FLASH_ATTENTION_BACKEND
        splits_sequences = (
            uses_flash_attention
            and self.version_numbers >= FULL_GRAPHS_FROM
            and not self.has_model_class(self.engine_record.triton_attention)
        )
        compute_capability = self.hardware.compute_capability if splits_sequences else None
        split_buffer_bytes = self.captured_graphs.split_buffer_bytes(
            engine_rank, self.element_bytes, compute_capability
        )
        graphs_ratio = self.second_runner.graphs_ratio if self.second_runner is not None else 1
        return self.captured_graphs.estimated_bytes(
            self.engine_record.cuda_graphs, engine_rank, split_buffer_bytes, graphs_ratio
        )

    def stored_weights_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the bytes of vLLM's weights, with RoPE tables, expert padding, MLA copies and unsplit segments."""
        divides_blocks = self.version_numbers >= DIVIDED_BLOCKS_FROM
        engine_rank.check_quantization_block_division(
            unchecked_projections=MERGED_PROJECTIONS if divides_blocks else frozenset()
        )
        rope_element_bytes = 4 if self.has_model_class(self.engine_record.float32_tables) else self.element_bytes
        rope_table_bytes = engine_rank.rope_table_elements(VIDEO_FACTOR) * rope_element_bytes
        _, _, rank_experts = engine_rank.widest_network_sizes
        padding_bytes = 0
        has_padded_experts = engine_rank.scheme == "mxfp4" and self.has_model_class(self.engine_record.padded_mxfp4)
        if has_padded_experts and rank_experts is not None:
            padded_expert_bytes = self.engine_record.padded_experts(self.version_numbers, self.hardware).expert_bytes(
                rank_experts.input_width, rank_experts.intermediate_size
            )
            expert_bytes = 3 * rank_experts.intermediate_size * rank_experts.input_width * 17 // 32
            padding_bytes = rank_experts.layer_count * rank_experts.expert_count * (padded_expert_bytes - expert_bytes)
        offloaded_bytes = int(float(self.flags.get("cpu_offload_gb", 0)) * GIB)
        copied_bytes = engine_rank.up_projection_elements * self.element_bytes + self.repeated_encoder_bytes(
            engine_rank
        )
        copied_bytes += unused_projection_bytes(engine_rank, self.engine_record.whole_projections)
        copied_bytes += layer_embedding_bytes(engine_rank, self.max_num_batched_tokens, self.element_bytes)
        copied_bytes += self.unsplit_bytes(engine_rank) + self.repeated_shared_expert_bytes(engine_rank)
        return max(0, engine_rank.weight_bytes + rope_table_bytes + padding_bytes + copied_bytes - offloaded_bytes)

    def unsplit_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the unused ends of weight segments, which torch's allocator counts as allocated.

        0 with `expandable_segments` (CUDACachingAllocator.cpp, `should_split`), and where vLLM converts the weights.
        """
        has_expandable_segments = "expandable_segments:true" in str(self.flags.get(ALLOCATOR_VARIABLE, "")).lower()
        return 0 if self.converts_weights or has_expandable_segments else unsplit_bytes(engine_rank)

    @property
    def converts_weights(self) -> bool:
        """Whether vLLM quantizes 16-bit weights at load. With `--quantize` the checkpoint is quantized already."""
        is_already_quantized = bool(self.flags.get("quantize")) or self.preset.has_quantized_weights
        return self.flags.get("quantization") in CONVERTING_WORDS and not is_already_quantized

    def repeated_encoder_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the additional bytes of encoders that ranks load in full (`--mm-encoder-tp-mode`)."""
        if self.flags.get("mm_encoder_tp_mode") != "data" or not (
            engine_rank.includes_towers and self.preset.model.towers
        ):
            return 0
        whole_encoder_bytes, rank_encoder_bytes = (
            placed_rank.weight_bytes - replace(placed_rank, includes_towers=False).weight_bytes
            for placed_rank in (replace(engine_rank, layout=ONE_DEVICE, rank=0), engine_rank)
        )
        return whole_encoder_bytes - rank_encoder_bytes

    def repeated_shared_expert_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the additional bytes of shared experts that tensor-parallel ranks of replicas store in full."""
        whole_classes = self.engine_record.classes_with_whole_shared_experts(self.version_numbers, self.hardware)
        has_whole_experts = (
            self.has_model_class(whole_classes)
            and bool(self.flags.get("enable_expert_parallel"))
            and min(self.tp, self.dp) > 1
            and not uses_pplx(self.flags, self.version_numbers)
        )
        if not has_whole_experts:
            return 0
        return (self.tp - 1) * engine_rank.weights_by_component.get("shared_expert", 0)

    def cache_element_bytes(self, engine_rank: EngineRank) -> Fraction:
        """Returns the bytes per element of the KV cache, including the quantization scales per element."""
        cache_format = str(self.flags.get("kv_cache_dtype", ""))
        if cache_format in PACKED_FORMATS:
            return packed_bytes(cache_format, engine_rank, self.version_numbers)
        if cache_format == SCALED_LATENTS and not engine_rank.has_latent_selection:
            raise InputError(f"--kv-cache-dtype {cache_format}: only sparse attention has such a cache; expected fp8")
        if (
            cache_format in ("", *AUTO_WORDS)
            and engine_rank.has_latent_selection
            and stores_latents_in_float8(self.hardware, self.version_numbers)
        ):
            return Fraction(1)
        return Fraction(self.cached_element_bytes)

    def compressed_pool(self, engine_rank: EngineRank) -> BlockPool | None:
        """Returns the block pool of a model with compressed attention; None for other models.

        Raises `InputError` for flags with which vLLM has no such pool, or which are not modelled beside it.
        """
        if not compressed_mixers_with_layer_counts(engine_rank):
            return None
        if (cache_format := str(self.flags.get("kv_cache_dtype", "auto"))) not in ("auto", *FP8_WORDS, SCALED_LATENTS):
            raise InputError(f"--kv-cache-dtype {cache_format}: of compressed attention is not modelled; expected fp8")
        if self.flags.get("block_size", ENTRY_BLOCK) != ENTRY_BLOCK:
            raise InputError(f"--block-size {self.block_size}: compressed attention has blocks of {ENTRY_BLOCK}")
        for feature_name, is_used in (
            ("--disable-hybrid-kv-cache-manager", bool(self.flags.get("disable_hybrid_kv_cache_manager"))),
            ("--decode-context-parallel-size", self.context_ranks > 1),
            ("--speculative-config with a draft model", self.draft is not None),
        ):
            if is_used:
                raise InputError(f"{feature_name}: is not modelled beside compressed attention; remove the flag")
        has_fp4_indexer = bool(self.flags.get("attention_config", {}).get("use_fp4_indexer_cache"))
        page_rules = self.engine_record.compressed_pages_of(self.version_of_rules)
        return compressed_pool(engine_rank, page_rules.layout, has_fp4_indexer, page_rules.checks_tuples)

    def kv_block_pool(self, engine_rank: EngineRank) -> BlockPool:
        """Returns the block pool of a rank's KV cache and recurrent states."""
        compressed_blocks = self.compressed_pool(engine_rank)
        if compressed_blocks is not None:
            return compressed_blocks
        attention_backend = str(self.flags.get("attention_backend", ""))
        return block_pool(
            engine_rank,
            self.cache_element_bytes(engine_rank),
            self.block_size,
            self.rules,
            has_full_windows=bool(self.flags.get("disable_hybrid_kv_cache_manager")),
            draft_caches=[] if self.draft is None else self.draft.token_caches,
            context_ranks=self.context_ranks,
            state_storage=state_storage(
                engine_rank,
                self.state_rules,
                self.hardware,
                self.flags,
                self.speculation.drafted_tokens,
                self.block_size,
                self.element_bytes,
            ),
            has_scaled_latents=self.flags.get("kv_cache_dtype") == SCALED_LATENTS
            or scales_latents(self.hardware, self.version_numbers, attention_backend),
        )

    def stage_memory(self, stage_number: int) -> StageMemory:
        """Returns the memory of one rank of a pipeline stage."""
        engine_rank = self.rank_of_stage(stage_number)
        profile_run = self.profile_run(stage_number)
        version_rules = self.rules
        kv_pool = self.kv_block_pool(engine_rank)
        memory_outside_torch = self.engine_record.overhead_outside_torch(
            self.version_numbers, self.hardware, max(self.tp, self.layout.ep, self.layout.expert_tp), self.pp
        )
        graph_bytes = self.logged_or_computed_bytes("cuda_graphs", self.cuda_graph_bytes(engine_rank))
        outside_bytes = self.logged_or_computed_bytes(
            "non_torch", memory_outside_torch.mib * MIB + self.penalty_bytes(engine_rank) + self.exchange_bytes
        )
        budget = math.ceil(self.utilization * self.total_memory)
        weight_bytes = self.stored_weights_bytes(engine_rank)
        if self.draft is not None:
            draft_table_bytes = self.draft.rope_table_elements(VIDEO_FACTOR) * self.element_bytes
            weight_bytes += self.draft.weight_bytes + draft_table_bytes + self.unsplit_bytes(self.draft)
        weight_bytes += adapter_bytes(engine_rank, self.flags, self.element_bytes, self.version_numbers)
        weight_bytes += expert_balancing_bytes(engine_rank, self.flags, self.tp * self.dp)
        weight_bytes = self.logged_or_computed_bytes("weights", weight_bytes)
        profile_run_bytes = self.logged_or_computed_bytes(
            "profile_run", profile_run.peak_bytes(engine_rank, version_rules)
        )
        subtracted_bytes = (
            weight_bytes + profile_run_bytes + outside_bytes + (graph_bytes if self.subtracts_graph_memory else 0)
        )
        cache_bytes = int(
            self.flags.get(
                "kv_cache_memory_bytes", self.logged_or_computed_bytes("kv_cache", budget - subtracted_bytes)
            )
        )
        override = self.flags.get("num_gpu_blocks_override")
        block_count = kv_pool.block_count_in(cache_bytes) if override is None else int(override)
        term_status: TermStatus = "estimate"
        graph_origin = "subtracted from the budget" if self.subtracts_graph_memory else "outside the budget"
        memory_terms = (
            MemoryTerm(
                "budget",
                budget,
                "source",
                version_rules.source_location,
                f"{self.utilization} × total (--gpu-memory-utilization)",
            ),
            MemoryTerm(
                "weights",
                weight_bytes,
                engine_rank.weights_status,
                "tensors of the rank",
                self._weights_origin(engine_rank),
            ),
            MemoryTerm(
                "profile_run",
                profile_run_bytes,
                term_status if profile_run.has_assumed_sizes(engine_rank) else "source",
                version_rules.source_location,
                profile_run.origin(engine_rank, version_rules),
            ),
            MemoryTerm("non_torch", outside_bytes, term_status, memory_outside_torch.source, self._non_torch_origin),
            MemoryTerm("cuda_graphs", graph_bytes, term_status, self.engine_record.cuda_graphs.source, graph_origin),
            MemoryTerm(
                "kv_cache",
                max(cache_bytes, 0) if override is None else kv_pool.block_bytes * block_count,
                term_status,
                version_rules.source_location,
                f"{block_count:,} blocks of {kv_pool.block_size} tokens",
            ),
        )
        return StageMemory(
            self.with_logged_sizes(memory_terms),
            kv_pool,
            cache_bytes,
            block_count,
            graph_bytes,
            self.start_check_bytes(kv_pool, cache_bytes),
        )

    def start_check_bytes(self, kv_pool: BlockPool, cache_bytes: int) -> int:
        """Returns the bytes that vLLM's check at the start compares with the longest request."""
        block_count = self.flags.get("num_gpu_blocks_override")
        if block_count is not None and (self.rules.generation == "v0" or self.version_numbers >= CHECKS_OVERRIDE_FROM):
            cache_bytes = kv_pool.block_bytes * int(block_count)
        return cache_bytes - (kv_pool.block_bytes if self.version_numbers >= RESERVES_NULL_BLOCK_FROM else 0)

    @cached_property
    def fullest_stage(self) -> StageMemory:
        """The memory of the pipeline stage with the fewest cache blocks."""
        return min(map(self.stage_memory, range(self.pp)), key=lambda stage_memory: stage_memory.block_count)

    def penalty_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the bytes of token counts for sampling penalties; 0 if they do not reduce the KV cache."""
        if self.second_runner is None or not self.second_runner.counts_penalties or self.has_embedding_output:
            return 0
        return penalty_bytes(self.max_num_seqs, engine_rank.vocab_size)

    @property
    def exchange_bytes(self) -> int:
        """The bytes of the buffers of the library that sends tokens to experts on other ranks."""
        return exchange_buffer_bytes(
            self.preset.model, self.flags, self.dp, self.tp * self.dp, self.max_num_batched_tokens, self.version_numbers
        )

    @property
    def _non_torch_origin(self) -> str:
        includes_penalty_counts = bool(self.penalty_bytes(self.rank_of_stage(0)))
        origin = "context, NCCL and libraries" + (", counts for penalties" if includes_penalty_counts else "")
        return origin + (", buffers of --all2all-backend" if self.exchange_bytes else "")

    def _weights_origin(self, engine_rank: EngineRank) -> str:
        """Returns text on the format of the weights, the draft model and the adapter slots."""
        weight_scheme = engine_rank.weights_origin + (", converted at load" if self.converts_weights else "")
        if self.falls_back_to_float32:
            weight_scheme += f", as {self.hardware.title} has no bfloat16"
        if self.flags.get("enable_lora"):
            adapter_slot_count, lora_rank = adapter_slots(self.flags)
            weight_scheme += f", with {adapter_slot_count} slots for adapters of rank {lora_rank}"
        if self.speculation.draft_model is not None:
            return f"{weight_scheme}, with {self.speculation.draft_model.name} that drafts"
        return f"{weight_scheme}, with modules that draft" if self.speculation.uses_mtp else weight_scheme

    @property
    def free_bytes_at_start(self) -> int:
        """The device's free bytes when the engine starts, after the CUDA context."""
        return self.total_memory - self.engine_record.cuda_context(self.hardware, self.tp * self.pp).mib * MIB


class StageMemory(NamedTuple):
    """The memory of a rank of one pipeline stage: named terms in bytes, KV cache blocks, and CUDA graphs.

    start_check_bytes: the bytes that the start check compares with the longest request
        (`_check_enough_kv_cache_memory`).
    """

    terms: tuple[MemoryTerm, ...]
    pool: BlockPool
    available_bytes: int
    block_count: int
    graph_bytes: int
    start_check_bytes: int

    @property
    def start_check_block_count(self) -> int:
        """The number of KV cache blocks in the bytes that vLLM's start-up check compares."""
        return self.start_check_bytes // (self.pool.start_check_block_bytes or self.pool.block_bytes)

    def fitting_blocks(self, total_memory: int) -> int:
        """Returns the number of blocks that would fit in all memory beside weights and memory outside torch."""
        occupied_bytes = sum(term.bytes for term in self.terms if term.name in ("weights", "non_torch"))
        return self.pool.block_count_in(total_memory - occupied_bytes)


def memory(server: VLLMServer) -> EngineMemory:
    """Returns the memory that vLLM plans for a device of the pipeline stage with the fewest cache blocks."""
    if server.flags.get("max_model_len") in AUTO_WORDS:
        return memory(server.with_flags(max_model_len=longest_request(server) or server.longest_request))
    fullest_stage = server.fullest_stage
    kv_pool, block_count, version_rules = fullest_stage.pool, fullest_stage.block_count, server.rules
    longest_tokens, tokens_in_flight = server.longest_request, server.tokens_in_flight
    max_concurrency = kv_pool.max_concurrency(block_count, longest_tokens, tokens_in_flight)
    startup_error = _startup_error(server, fullest_stage)
    return EngineMemory(
        terms=fullest_stage.terms,
        kv_tokens=kv_pool.printed_tokens(block_count, longest_tokens, tokens_in_flight, version_rules),
        block_count=block_count,
        max_concurrency=max_concurrency,
        can_start=not startup_error,
        startup_error=startup_error,
        max_model_len=longest_tokens,
        devices=server.device_count,
        block_size=kv_pool.block_size,
        assumed_flags=server.assumed_flags,
        settings=server.settings,
        layout=server.whole_layout,
        largest_request_limit=fullest_stage.block_count
        if startup_error.startswith(server.engine_record.messages["sequences"])
        else 0,
        notes=tuple(filter(None, (server.version.note, *_server_notes(server)))),
    )


def _startup_error(server: VLLMServer, stage_memory: StageMemory) -> str:
    """Returns the error message with which vLLM fails to start; empty if vLLM starts."""
    message_texts, version_rules, max_model_len = server.engine_record.messages, server.rules, server.longest_request
    budget_bytes = stage_memory.terms[0].bytes
    batch_tokens = server.max_num_batched_tokens
    block_tokens = stage_memory.pool.block_size
    if server.state_rules.needs_batch_of_a_block and stage_memory.pool.aligns_states and block_tokens > batch_tokens:
        message_start = message_texts["aligned_block"]
        return f"{message_start} (--max-num-batched-tokens {batch_tokens}); expected at least {block_tokens}"
    if batch_tokens < server.largest_input_tokens:
        message_start = message_texts["whole_item"]
        expected_text = f"expected at least {server.largest_input_tokens}"
        return f"{message_start} (--max-num-batched-tokens {batch_tokens}); {expected_text}"
    if version_rules.checks_free_memory and server.free_bytes_at_start < budget_bytes:
        free_gib = server.free_bytes_at_start / GIB
        return f"{message_texts['free_memory']} ({server.utilization}): {free_gib:.2f} GiB are free"
    if stage_memory.start_check_bytes <= 0:
        return message_texts["no_cache"]
    if (
        stage_memory.pool.blocks_of_request(max_model_len, server.tokens_in_flight)
        > stage_memory.start_check_block_count
    ):
        longest_request_tokens = stage_memory.pool.longest_request(
            stage_memory.start_check_block_count, server.tokens_in_flight, max_model_len
        )
        message_start = message_texts["one_request_v0" if version_rules.generation == "v0" else "one_request"]
        return f"{message_start} (--max-model-len {max_model_len}); the longest that fits is {longest_request_tokens}"
    fitting_blocks = stage_memory.fitting_blocks(server.total_memory)
    for flag_name in ("num_gpu_blocks_override", "kv_cache_memory_bytes"):
        if flag_name in server.flags and stage_memory.block_count > fitting_blocks:
            return (
                f"{message_texts['large_cache']} (--{flag_name.replace('_', '-')}); at most {fitting_blocks} blocks fit"
            )
    if server.needs_blocks_of_sequences(stage_memory.pool) and server.max_num_seqs > stage_memory.block_count:
        requested_text = f"(--max-num-seqs {server.max_num_seqs})"
        return f"{message_texts['sequences']} {requested_text}; at most {stage_memory.block_count} fit"
    unused_bytes = (
        server.total_memory if version_rules.counts_cuda_context else server.free_bytes_at_start
    ) - budget_bytes
    if not server.subtracts_graph_memory and unused_bytes < stage_memory.graph_bytes:
        return message_texts["outside_budget"]
    return ""


def _server_notes(server: VLLMServer) -> list[str]:
    """Returns notes on a server's model class, flags and defaults."""
    class_notes = server.engine_record.class_notes(architectures(server.preset), server.version)
    server_notes = [*filter(None, [*class_notes, server.long_request_note])]
    if server.hardware.vendor.upper().startswith("AMD") and compressed_mixers_with_layer_counts(
        server.rank_of_stage(0)
    ):
        server_notes.append(
            "on AMD vLLM's fallback kernels for compressed attention decode cached entries of all blocks into 16 bits "
            "(github.com/vllm-project/vllm/issues/41962), which is not modelled: the cache may be much smaller"
        )
    if server.falls_back_to_float32:
        server_notes.append(
            f"{server.hardware.title} has no bfloat16, and in float16 vLLM refuses the model: it runs in float32, as "
            "--dtype float32"
        )
    if server.reason_for_first_engine:
        server_notes.append(
            f"vLLM {server.version.version} runs its first engine (V0), as {server.reason_for_first_engine}; from "
            "0.11 on there is V1 alone"
        )
    first_version, version_after = NEEDS_TRITON_KERNELS
    is_hopper = 9 <= float(server.hardware.compute_capability or 0) < 10
    if (
        is_hopper
        and first_version <= server.version_numbers < version_after
        and server.rank_of_stage(0).scheme == "mxfp4"
        and server.has_model_class(server.engine_record.padded_mxfp4)
    ):
        server_notes.append(
            "counted with Triton's kernels of MXFP4; where the package triton_kernels is not installed, as with pip "
            "alone, vLLM runs Marlin's, whose weights are larger (by 1.4 GiB of gpt-oss 120B)"
        )
    if server.profile_run(0).assumes_expert_widths(server.rank_of_stage(0)):
        server_notes.append(
            "the profile run counts the workspaces of Triton's kernels of experts; vLLM runs others here, Marlin's, "
            "FlashInfer's or those of 4 bits, whose workspaces are not modelled"
        )
    if server.assumes_torch_sampler:
        server_notes.append(
            "counted with torch's sampler, which vLLM takes where the package FlashInfer is not installed; images of "
            f"vLLM have it: with one of them, add {SAMPLER_VARIABLE}=1"
        )
    if server.has_kernel_autotuning:
        server_notes += _compilation_notes(server)
    if server.hardware.driver_total is None:
        server_notes.append(f"{server.hardware.title}: what the driver offers is not known; all memory is counted")
    if CHUNK_VARIABLE in server.flags and server.version_numbers >= SENDS_WHOLE_STEPS_FROM:
        server_notes.append(
            f"{CHUNK_VARIABLE}: vLLM ignores it from 0.20 on, where all tokens of a step (--max-num-batched-tokens) "
            "are sent at once"
        )
    if EXPERT_CHUNK_VARIABLE in server.flags and server.version_numbers >= WHOLE_EXPERT_STEPS_FROM:
        server_notes.append(
            f"{EXPERT_CHUNK_VARIABLE}: vLLM ignores it from 0.18 on, where experts read all tokens of a step at once"
        )
    if BACKEND_FIELDS[1] in server.flags and server.version_numbers >= WITHOUT_BACKEND_VARIABLE_FROM:
        server_notes.append(f"{BACKEND_FIELDS[1]}: vLLM ignores it from 0.16 on, where --all2all-backend is the flag")
    if server.backend_disables_graphs:
        server_notes.append(
            f"with --all2all-backend {BACKEND_WITHOUT_GRAPHS} and several data-parallel ranks vLLM turns CUDA graphs "
            "off; deepep_low_latency keeps them"
        )
    if server.speculation.drafted_tokens:
        server_notes.append(
            "the passes that draft tokens, and their CUDA graphs, are not in the profile run; they may take more"
        )
    if server.preset.model.towers and server.loads_towers:
        if server.rules.generation == "v0" or image_tower(server.preset.model) is None:
            server_notes.append("the profile run of the model's encoders is not modelled; it may take more")
        if server.flags.get("mm_encoder_tp_mode") == "data":
            server_notes.append("each rank has the encoders whole; vLLM divides those whose classes have no such mode")
    return server_notes


def _compilation_notes(server: VLLMServer) -> list[str]:
    """Returns a note if a first start, which compiles the model, has a smaller or unknown KV cache."""
    if server.preset.model.towers:
        return ["a restart is counted; a first start, which compiles, may have less cache (vLLM issues 54122, 54383)"]
    first_start_server = server.with_flags(**{CACHE_VARIABLE: 1})
    lost_bytes = server.fullest_stage.available_bytes - first_start_server.fullest_stage.available_bytes
    if lost_bytes <= 0:
        return []
    lost_gib = f"{lost_bytes / GIB:.2f} GiB"
    return [f"a restart is counted; a first start, which compiles, has {lost_gib} less cache ({CACHE_VARIABLE}=1)"]


def longest_request(server: VLLMServer) -> int:
    """Returns the largest `--max-model-len` for which the cache holds one request; 0 if there is none."""
    fullest_stage = server.fullest_stage
    return fullest_stage.pool.longest_request(
        fullest_stage.start_check_block_count, server.tokens_in_flight, server.longest_request
    )
