"""The device memory of vLLM: the budget, the parts subtracted from the budget, and the remaining KV cache.

`presets/engines/vllm.toml` has the rules of each version with their source files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from ...components.head import LMHead
from ...device_memory.cuda_runtime import cuda_runtime_of
from ...errors import InputError, shown
from ...parallel.layout import ONE_DEVICE, Layout
from ..engines.context_length import has_unknown_length
from ..engines.engine import EngineMemory, MemoryTerm, TermStatus
from ..engines.flags import AUTO_WORDS
from ..engines.rank import EngineRank, MissingKernels, architectures, compressed_layers, key_heads
from ..engines.server import DTYPE_WORDS, EngineServer
from .adapters import adapter_bytes, adapter_slots
from .cache_formats import (
    FP8_WORDS,
    PACKED_FORMATS,
    SCALED_LATENTS,
    packed_bytes,
    scales_latents,
    stores_latents_in_float8,
)
from .compilation import CACHE_VARIABLE, compilation_bytes, times_kernels
from .compressed_blocks import ENTRY_BLOCK, compressed_pool
from .context_length import scaled_length, short_rope_length
from .cuda_graphs import GRAPH_SIZES, LARGEST_SIZE, CUDAGraphs, cuda_graphs, graph_mode_of
from .encoder_run import (
    EncoderRequest,
    EncoderRun,
    encoder_run,
    has_chunked_images,
    image_limit,
    image_size,
    image_tower,
    input_limit,
    patch_of_long_videos,
)
from .flags import CPU_CONNECTORS, POOLING_TASKS
from .flashinfer_sampler import SAMPLER_VARIABLE, assumes_torch_sampler, rules_with_sampler
from .fused_projections import layer_embedding_bytes, unused_projection_bytes
from .kv_blocks import BlockPool, block_pool
from .model_runner import penalty_bytes, rules_with_runner, second_runner
from .profile_run import ProfileRun
from .recurrent_states import state_blocks
from .sparse_workspace import sparse_workspace
from .speculation import Speculation, speculation_of
from .versions import SecondRunner, StateRules, VLLMRecord, VLLMRules, vllm_record

GIB, MIB = 2**30, 2**20

POOLING_WORDS = ("pooling", *POOLING_TASKS)
"""Values of `--runner`, `--task` and `--convert` with which a server gives embeddings or scores."""

RAY_EXECUTOR_VARIABLE = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
"""The variable that chooses Ray's executor: 0 for the first one."""

VIDEO_FACTOR = 4
"""Factor of the positions in tables of cosines and sines for videos (rotary_embedding/mrope.py)."""

DEFAULT_BLOCK_TOKENS = 16
"""Tokens of a block by default."""

DEFAULT_COMPUTE_UNITS = 108
"""Compute units of an accelerator that does not state them."""

SCHEMES = {"fp8": "fp8-dynamic", "awq": "awq-int4-g128", "gptq": "gptq-int4-g128", "mxfp4": "mxfp4"}
"""Value of `--quantization` → the scheme of the weights of a checkpoint that states none."""

SKIPS_ENCODERS_FROM = (0, 19)
"""First version that was read in which encoders without inputs are not loaded (`_mark_tower_model`)."""

LAST_V0_VERSION = (0, 7)
"""The version whose rules the first engine follows from there on (vllm/worker/worker.py)."""

FIRST_VERSION_WITHOUT_V0 = (0, 11)
"""First version without the first engine."""

CONTEXT_RANKS_FROM = ((0, 11), (0, 11, 1))
"""First versions in which ranks divide the tokens of a cache of latents, and of one of several heads."""

FULL_GRAPHS_FROM = (0, 11)
"""First version that captures whole passes of decoding by default (config/compilation.py, `FULL_AND_PIECEWISE`)."""

FLASH = "FLASH_ATTN"
"""The name of vLLM's attention by FlashAttention."""

GRAPHS_ARE_ESTIMATED_FROM = (0, 19)
"""First version that estimates CUDA graphs (v1/worker/gpu_worker.py)."""

LONGROPE_STARTS_SHORT_FROM = (0, 11, 1)
"""First version whose requests are by default as long as LongRoPE's short factors reach (vllm pull request 27431)."""

COMPILATION_KEYS = (
    "level", "mode", "debug_dump_path", "cache_dir", "backend", "custom_ops", "splitting_ops", "use_inductor",
    "compile_sizes", "inductor_compile_config", "inductor_passes", "cudagraph_mode", "use_cudagraph",
    "cudagraph_num_of_warmups", "cudagraph_capture_sizes", "cudagraph_copy_inputs", "full_cuda_graph", "pass_config",
    "max_capture_size", "max_cudagraph_capture_size", "use_inductor_graph_partition", "local_cache_dir",
    "cudagraph_specialize_lora", "fast_moe_cold_start", "dynamic_shapes_config", "compile_mm_encoder",
)  # fmt: skip
"""Keys of `--compilation-config` that are read, or that change no memory."""


class VLLMServer(EngineServer):
    """A vLLM server: model, accelerator, version and flags."""

    name = "vllm"
    length_field = "max_model_len"
    layout_fields = "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"
    decided_by = {
        "weights": ("dtype", "quantization", "quantize", "mm_encoder_tp_mode"),
        "profile_run": ("max_num_seqs", "max_num_batched_tokens"),
        "non_torch": (),
        "cuda_graphs": ("max_num_seqs", "enforce_eager"),
        "kv_cache": ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "enforce_eager", "quantize"),
    }
    default_length = 2048  # vllm/config/model.py, `_get_and_verify_max_len`
    long_request_variable = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    stages_variable = "VLLM_PP_LAYER_PARTITION"  # vllm/distributed/utils.py, `get_pp_indices`
    halves_float32 = True  # vllm/config/model.py, `_get_and_verify_dtype`

    def __post_init__(self) -> None:
        """Raises `InputError` for flags that contradict each other or the model."""
        super().__post_init__()
        if self.flags.get("max_num_batched_tokens", self.max_num_batched_tokens) < self.max_num_seqs:
            raise InputError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens}: is less than --max-num-seqs "
                f"{self.max_num_seqs}; expected at least as many"
            )
        self.check_environment()
        if self.speculation.draft is not None and self.pp > 1:
            raise InputError("--speculative-config: a draft model with stages is not modelled")
        if self.dp > 1 and self.pp > 1 and self.flags.get("enable_expert_parallel"):
            raise InputError("--enable-expert-parallel: with --data-parallel-size and stages is not modelled")

        self.check_dtype()
        self.check_kernels(self.rank_of_stage(0))
        self.check_context_ranks()
        if self.flags.get("disable_sliding_window") and any(
            token_cache.window for token_cache in self.rank_of_stage(0).token_caches
        ):
            raise InputError("--disable-sliding-window: another length of windows is not modelled; remove the flag")

    def check_dtype(self) -> None:
        """Raises `InputError` for number formats that vLLM refuses (`_check_valid_dtype`, `check_if_supports_dtype`).

        Quantized weights need activations of 16 bits (`get_supported_act_dtypes`).
        """
        dtype_name = str(self.flags.get("dtype", "auto"))
        dtype, model_class = DTYPE_WORDS.get(dtype_name, dtype_name), (*architectures(self.preset), "")[0]
        if dtype == "float16" and self.refuses_float16:
            raise InputError(f"--dtype {dtype_name}: vLLM refuses it for {model_class}; expected bfloat16 or float32")
        if dtype == "bfloat16" and not self.hardware.multiplies_bfloat16:
            raise InputError(
                f"--dtype bfloat16: vLLM refuses it on {self.hardware.title}, which has compute capability "
                f"{self.hardware.compute_capability} and not 8.0; expected float16 or float32"
            )
        if self.falls_back_to_float32 and EngineRank(self.preset, quantize=self.quantize).weight_kernels:
            raise MissingKernels(
                f"--hardware {self.hardware.name}: it has no bfloat16, in float16 vLLM refuses {model_class}, and in "
                "float32 it runs no quantized weights; expected another accelerator or --quantize none"
            )

    @property
    def refuses_float16(self) -> bool:
        """Whether the version refuses to run the model's class in float16."""
        return self.has_model_class(self.engine_record.classes_without_float16(self.version_numbers))

    @property
    def falls_back_to_float32(self) -> bool:
        """Whether the default number format is float32: the accelerator has no bfloat16, the class refuses float16."""
        is_default = self.flags.get("dtype", "auto") == "auto"
        return is_default and not self.hardware.multiplies_bfloat16 and self.refuses_float16

    @property
    def dtype(self) -> str | None:
        return "float32" if self.falls_back_to_float32 else super().dtype

    def check_context_ranks(self) -> None:
        """Raises `InputError` for decode context parallelism that vLLM refuses (`verify_with_parallel_config`).

        Only ranks that would hold copies of the same heads may divide tokens (vllm/config/model.py).
        """
        ranks = self.context_ranks
        if ranks == 1:
            return
        key_head_count = 1 if self.rank_of_stage(0).latent_projections else min(key_heads(self.preset.model), default=1)
        first_version = CONTEXT_RANKS_FROM[key_head_count > 1]
        if self.version_numbers < first_version:
            first_version_text = ".".join(map(str, first_version))
            raise InputError(
                f"--decode-context-parallel-size: is modelled for this model from vLLM {first_version_text} on"
            )
        if self.tp % ranks or key_head_count * ranks > self.tp:
            raise InputError(
                f"--decode-context-parallel-size {ranks}: expected a divisor of --tensor-parallel-size {self.tp} of at "
                f"most {max(1, self.tp // key_head_count)}, as the model has {key_head_count} "
                f"head{'s' * (key_head_count > 1)} of keys"
            )
        if self.speculation.tokens:
            raise InputError("--decode-context-parallel-size: with drafted tokens is not modelled; remove one of them")

    @property
    def context_ranks(self) -> int:
        """The number of tensor-parallel ranks that divide the KV cache's tokens (decode context parallelism)."""
        return int(self.flags.get("decode_context_parallel_size", 1))

    def check_environment(self) -> None:
        """Raises `InputError` for environment variables and JSON flags that are not modelled."""
        if self.flags.get("VLLM_USE_V1") == 0 and self.version_numbers >= FIRST_VERSION_WITHOUT_V0:
            raise InputError(
                "VLLM_USE_V1=0: vLLM 0.11 and later have no first engine; expected a version that has it, such as "
                "--engine vllm==0.8.5, or no such variable"
            )
        kv_connector = self.flags.get("kv_transfer_config", {}).get("kv_connector", CPU_CONNECTORS[0])
        if kv_connector not in CPU_CONNECTORS:
            raise InputError(
                f"--kv-transfer-config: the connector {shown(kv_connector)} is not modelled; expected one of "
                f"{', '.join(CPU_CONNECTORS)}"
            )
        unknown_keys = sorted(set(self.compilation) - set(COMPILATION_KEYS))
        if unknown_keys:
            raise InputError(f"--compilation-config: {shown(unknown_keys[0])} is not modelled; remove the key")

    @property
    def compilation(self) -> Mapping[str, Any]:
        """The contents of `--compilation-config`: name → value."""
        compilation_config: Mapping[str, Any] = self.flags.get("compilation_config", {})
        if self.gives_embeddings and "FULL" in graph_mode_of(compilation_config):
            return {**compilation_config, "cudagraph_mode": "PIECEWISE"}  # config/vllm.py: pooling has no full graphs
        return compilation_config

    @cached_property
    def gives_embeddings(self) -> bool:
        """Whether the server gives embeddings or scores (`--runner pooling`), without logits and without a sampler.

        v1/worker/gpu_model_runner.py, `profile_run`: such a model's profile run ends with its pooler. vLLM takes this
        runner by default for models without a language-model head. Raises `InputError` for a model with such a head,
        which vLLM drops.
        """
        has_logits = isinstance(self.preset.model.head, LMHead)
        flag = next((name for name in ("runner", "task", "convert") if self.flags.get(name) in POOLING_WORDS), "")
        if flag and has_logits:
            raise InputError(
                f"--{flag} {self.flags[flag]}: the output head, which vLLM drops, is not left out of this model; "
                "expected --set head.type=none too"
            )
        return not has_logits

    @cached_property
    def speculation(self) -> Speculation:
        """The server's settings of speculative decoding."""
        return speculation_of(self.flags, self.preset)

    @cached_property
    def draft(self) -> EngineRank | None:
        """The draft model on one rank; None without a draft model."""
        if self.speculation.draft is None:
            return None
        return EngineRank(self.speculation.draft, Layout(tp=self.tp), 0, None, self.dtype)

    @property
    def loads_towers(self) -> bool:
        """Whether image and audio encoders are loaded; false if the flags allow neither images nor audio."""
        if self.flags.get("language_model_only"):
            return False
        input_limits = self.flags.get("limit_mm_per_prompt", {})
        allows_no_input = bool(input_limits) and all(
            input_limit(input_count) == 0 for input_count in input_limits.values()
        )
        return not (
            allows_no_input and {"image", "video"} <= set(input_limits) and self.version_numbers >= SKIPS_ENCODERS_FROM
        )

    @property
    def subtracts_graphs(self) -> bool:
        """Whether the estimated memory of CUDA graphs is subtracted from the KV cache."""
        variable_value = self.flags.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
        runner_estimates_graphs = self.second_runner is None or self.second_runner.estimates_graphs
        if variable_value is None or self.version_numbers < GRAPHS_ARE_ESTIMATED_FROM or not runner_estimates_graphs:
            return self.rules.subtracts_graphs
        return bool(variable_value)

    def has_model_class(self, class_names: tuple[str, ...]) -> bool:
        """Returns whether the model's class is one of `class_names`."""
        return not {*architectures(self.preset)}.isdisjoint(class_names)

    @cached_property
    def graphs(self) -> CUDAGraphs:
        """The CUDA graphs that the server captures."""
        captures_larger_batches = self.has_model_class(self.engine_record.larger_graphs)
        default_limit = GRAPH_SIZES[-1] if captures_larger_batches else min(2 * self.decoded_tokens, LARGEST_SIZE)
        return cuda_graphs(
            self.flags, self.compilation, self.decoded_tokens, self.max_num_batched_tokens, default_limit
        )

    @property
    def model_length(self) -> int | None:
        """The model's context length in tokens; for LongRoPE the length with the short factors."""
        scaled_limit = scaled_length(self.preset)
        uses_short_factors = self.version_of_rules >= LONGROPE_STARTS_SHORT_FROM
        short_length = short_rope_length(self.preset) if uses_short_factors else None
        return scaled_limit if scaled_limit is None or short_length is None else min(scaled_limit, short_length)

    @property
    def longest_length(self) -> int | None:
        """The tokens of the longest request that vLLM accepts; None if it is not known."""
        return None if has_unknown_length(self.preset) else scaled_length(self.preset)

    @property
    def engine_record(self) -> VLLMRecord:
        return vllm_record()

    @property
    def version_of_rules(self) -> tuple[int, ...]:
        """The version whose rules apply; VLLM_USE_V1=0 means the last version of the V0 engine."""
        is_first_engine = self.flags.get("VLLM_USE_V1") == 0 and self.version_numbers > LAST_V0_VERSION
        return LAST_V0_VERSION if is_first_engine else self.version_numbers

    @cached_property
    def second_runner(self) -> SecondRunner | None:
        """The memory rules of vLLM's second model runner; None if the first one runs the model."""
        return second_runner(self.engine_record, self.version_of_rules, self.rank_of_stage(0), self.flags)

    @cached_property
    def rules(self) -> VLLMRules:
        """The version's memory rules, with the model runner and sampler of this server."""
        version_rules = self.engine_record.rules(self.version_of_rules)
        if self.second_runner is not None:
            version_rules = rules_with_runner(version_rules, self.second_runner)
        return rules_with_sampler(
            self.engine_record,
            self.version_of_rules,
            version_rules,
            self.flags,
            has_second_runner=self.second_runner is not None,
        )

    @cached_property
    def assumes_torch_sampler(self) -> bool:
        """Whether torch's sampler is assumed, although vLLM would prefer an installed FlashInfer."""
        has_second_runner = self.second_runner is not None
        return not self.gives_embeddings and assumes_torch_sampler(
            self.engine_record, self.version_of_rules, self.flags, has_second_runner
        )

    @cached_property
    def state_rules(self) -> StateRules:
        """The version's rules for recurrent states."""
        return self.engine_record.state_rules(self.version_of_rules)

    def needs_blocks_of_sequences(self, kv_pool: BlockPool) -> bool:
        """Whether each sequence occupies a cache block, as with recurrent states decoded in full CUDA graphs."""
        decodes_in_graphs = self.graphs.graph_count > 0 and graph_mode_of(self.compilation) != "PIECEWISE"
        return kv_pool.has_states and self.state_rules.needs_blocks_of_sequences and decodes_in_graphs

    @property
    def dp(self) -> int:
        return int(self.flags.get("data_parallel_size", 1))

    @property
    def device_count(self) -> int:
        return self.tp * self.pp * self.dp

    @cached_property
    def layout(self) -> Layout:
        """The layout of one replica, with layers divided over stages as by vllm/distributed/utils.py, `get_pp_indices`.

        With expert parallelism the experts are divided over all ranks of the tensor and data groups, each undivided.
        """
        stage_layers = self.stage_layers(reversed(range(self.pp - 1)))
        if not self.flags.get("enable_expert_parallel"):
            return Layout(tp=self.tp, pp=self.pp, pp_layout=stage_layers)
        return Layout(tp=self.tp, pp=self.pp, dp=self.dp, ep=self.tp * self.dp, etp=1, pp_layout=stage_layers)

    @property
    def whole_layout(self) -> Layout:
        """The layout of all devices, with data-parallel replicas."""
        return replace(self.layout, dp=self.dp)

    @property
    def quantize(self) -> str | None:
        """The quantization scheme of the weights; None for the checkpoint's scheme."""
        quantization_flag = str(self.flags.get("quantization", "none")).removesuffix("_marlin").removeprefix("gpt_oss_")
        return self.scheme_of(quantization_flag, SCHEMES)

    @property
    def max_num_seqs(self) -> int:
        flag_value = self.flags.get("max_num_seqs")
        default_sequences = (
            self.engine_record.defaults(self.version_of_rules, self.hardware).max_num_seqs * self.default_limit_factor
        )
        return int(flag_value or min(default_sequences, self.max_num_batched_tokens))

    @property
    def default_limit_factor(self) -> int:
        """The factor of the default batch limits: 2 with `--performance-mode throughput`, otherwise 1."""
        return 2 if self.flags.get("performance_mode") == "throughput" else 1

    @property
    def divides_prompts(self) -> bool:
        """Whether prefill is chunked: by default always, but in V0 only if requests have more than 32,768 tokens."""
        chunks_by_default = self.rules.generation != "v0" or self.longest_request > 32768
        return bool(self.flags.get("enable_chunked_prefill", chunks_by_default))

    @property
    def max_num_batched_tokens(self) -> int:
        flag_value = self.flags.get("max_num_batched_tokens")
        if flag_value:
            return int(flag_value)
        batch_defaults = self.engine_record.defaults(self.version_of_rules, self.hardware)
        default_tokens = batch_defaults.max_num_batched_tokens * self.default_limit_factor
        if self.rules.generation == "v0" and self.divides_prompts:
            return self.rules.chunk_above_32k
        if not self.divides_prompts:
            default_tokens = max(self.longest_request, default_tokens)
        if self.rules.generation == "v0":
            return default_tokens
        sequence_count = int(self.flags.get("max_num_seqs", batch_defaults.max_num_seqs * self.default_limit_factor))
        return max(
            min(default_tokens, sequence_count * self.longest_request),
            sequence_count if "max_num_seqs" in self.flags else 1,
        )

    @property
    def tokens_in_flight(self) -> int:
        """The tokens of all concurrently scheduled batches, for which a window needs additional blocks."""
        if not self.rules.reserves_batches_in_flight:
            return self.max_num_batched_tokens
        uses_ngrams = self.speculation.tokens and not self.speculation.with_mtp and self.speculation.draft is None
        is_async = self.flags.get("async_scheduling", not uses_ngrams and not self._has_first_ray_executor)
        batch_count = self.pp + 1 if is_async and (self.second_runner is not None or self.pp == 1) else self.pp
        return batch_count * self.max_num_batched_tokens

    @property
    def _has_first_ray_executor(self) -> bool:
        """Whether Ray's first executor runs the ranks; it schedules a single batch at a time.

        The second executor is the default (v1/executor/abstract.py, `supports_async_scheduling`).
        """
        runs_under_ray = self.flags.get("distributed_executor_backend") == "ray"
        return runs_under_ray and self.flags.get(RAY_EXECUTOR_VARIABLE, 1) == 0

    @property
    def decoded_tokens(self) -> int:
        """The tokens of a decoding step of all sequences, including drafted tokens."""
        return self.max_num_seqs * (1 + self.speculation.tokens)

    @property
    def utilization(self) -> float:
        return float(self.flags.get("gpu_memory_utilization", self.rules.gpu_memory_utilization))

    @property
    def block_size(self) -> int:
        return int(self.flags.get("block_size", DEFAULT_BLOCK_TOKENS))

    @property
    def total_memory(self) -> int:
        """The device's total memory in bytes, as the driver reports it."""
        return self.hardware.capacity_bytes

    @property
    def defaults(self) -> dict[str, Any]:
        """Flag name → the value in effect: the user's, or the default."""
        return {
            "max_model_len": self.longest_request,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "gpu_memory_utilization": self.utilization,
            "kv_cache_dtype": "auto",
            "enforce_eager": False,
            "block_size": self.block_size,
            "tensor_parallel_size": self.tp,
        }

    def rank_of_stage(self, stage_number: int) -> EngineRank:
        """Returns the model on the first rank of a pipeline stage."""
        loads_towers = self.loads_towers and stage_number == 0
        rank_number = self.layout.rank(pp=stage_number)
        has_draft_modules = self.speculation.with_mtp and stage_number == self.pp - 1
        return EngineRank(
            self.preset, self.layout, rank_number, self.quantize, self.dtype, loads_towers, has_draft_modules
        )

    def profile_run(self, stage_number: int) -> ProfileRun:
        """Returns the profile run on the ranks of a pipeline stage."""
        compute_units, rank = self.hardware.compute_units, self.rank_of_stage(stage_number)
        compiles_embedding = self.flags.get(CACHE_VARIABLE) and self.times_kernels and stage_number == 0
        return ProfileRun(
            tokens=self.max_num_batched_tokens,
            sequences=min(self.max_num_seqs, self.max_num_batched_tokens),
            element_bytes=self.element_bytes,
            units=DEFAULT_COMPUTE_UNITS if compute_units is None else compute_units.count,
            last_stage=stage_number == self.pp - 1 and not self.gives_embeddings,
            chunked=self.divides_prompts,
            stages=self.pp,
            encoder=self.encoder_run if stage_number == 0 else None,
            keeps_pixels=self.second_runner is None,
            workspace=sparse_workspace(rank, self.longest_request, self.max_num_batched_tokens),
            cublas_workspace=cuda_runtime_of(self.hardware).workspace,
            compilation_bytes=compilation_bytes(rank, self.max_num_batched_tokens, self.element_bytes)
            if compiles_embedding
            else 0,
        )

    @property
    def times_kernels(self) -> bool:
        """Whether compilation at the start benchmarks kernels (autotuning), which takes memory."""
        return times_kernels(self.version_of_rules, self.flags, self.compilation)

    @cached_property
    def encoder_run(self) -> EncoderRun | None:
        """The image encoder's part of the profile run; None without an encoder, or if it is not modelled."""
        if self.rules.generation == "v0" or not self.loads_towers or self.flags.get("skip_mm_profiling"):
            return None
        inputs_per_prompt = self.flags.get("limit_mm_per_prompt", {})
        has_videos = input_limit(inputs_per_prompt.get("video", 1)) != 0
        patch_size = patch_of_long_videos(self.preset.model) if has_videos else 0
        ranks_have_whole_encoder = self.flags.get("mm_encoder_tp_mode") == "data"
        videos_as_images, chunk_bytes = self.engine_record.videos_as_images(self.version_of_rules), None
        if videos_as_images is not None and not has_chunked_images(self.preset.model):
            videos_as_images = None
        if videos_as_images is not None:
            free_bytes = self.free_bytes_at_start - self.stored_weights(self.rank_of_stage(0))
            chunk_bytes = min(free_bytes // 2, self.total_memory // 10) if videos_as_images.reads_chunks else 0
        encoder_request = EncoderRequest(
            tokens=self.max_num_batched_tokens,
            sequences=self.max_num_seqs,
            length=self.longest_request,
            limit=image_limit(inputs_per_prompt),
            ranks=1 if ranks_have_whole_encoder else self.tp,
            image_ranks=self.tp if ranks_have_whole_encoder else 1,
            element_bytes=self.element_bytes,
            frames=self.engine_record.frames_of_videos(self.version_of_rules, patch_size),
            size=image_size(inputs_per_prompt),
            videos=videos_as_images if has_videos else None,
            chunk_bytes=chunk_bytes,
        )
        return encoder_run(self.preset.model, encoder_request, self.flags.get("mm_processor_kwargs", {}))

    def cuda_graph_bytes(self, rank: EngineRank) -> int:
        """Returns the memory that vLLM estimates for the CUDA graphs of a rank.

        V0 captures whole passes from the largest on, which share one pool (0.13 GiB of Qwen3 0.6B, in one log).
        """
        if self.rules.generation == "v0":
            return int(self.engine_record.cuda_graphs.shared_mib * MIB) if self.graphs.graph_count else 0
        uses_flash_attention = self.flags.get("attention_backend", FLASH) == FLASH
        splits_sequences = (
            uses_flash_attention
            and self.version_numbers >= FULL_GRAPHS_FROM
            and not self.has_model_class(self.engine_record.triton_attention)
        )
        compute_capability = self.hardware.compute_capability if splits_sequences else None
        split_buffer_bytes = self.graphs.split_buffer_bytes(rank, self.element_bytes, compute_capability)
        graphs_ratio = self.second_runner.graphs_ratio if self.second_runner is not None else 1
        return self.graphs.estimated_bytes(self.engine_record.cuda_graphs, rank, split_buffer_bytes, graphs_ratio)

    def stored_weights(self, rank: EngineRank) -> int:
        """Returns the bytes of vLLM's stored weights, with RoPE tables, padded experts and copies for MLA."""
        rank.check_divided_blocks()
        rope_element_bytes = 4 if self.has_model_class(self.engine_record.float32_tables) else self.element_bytes
        rope_table_bytes = rank.rope_table_elements(VIDEO_FACTOR) * rope_element_bytes
        _, _, experts = rank.network_widths
        padding_bytes = 0
        if rank.scheme == "mxfp4" and experts is not None:
            padded_expert_bytes = self.engine_record.padded_experts(self.version_numbers, self.hardware).expert_bytes(
                rank.hidden_size, experts.width
            )
            expert_bytes = 3 * experts.width * rank.hidden_size * 17 // 32
            padding_bytes = rank.number_of_layers * experts.number * (padded_expert_bytes - expert_bytes)
        offloaded_bytes = int(float(self.flags.get("cpu_offload_gb", 0)) * GIB)
        copied_bytes = rank.latent_projections * self.element_bytes + self.repeated_encoder_bytes(rank)
        copied_bytes += unused_projection_bytes(rank, self.engine_record.whole_projections)
        copied_bytes += layer_embedding_bytes(rank, self.max_num_batched_tokens, self.element_bytes)
        return max(0, rank.weight_bytes + rope_table_bytes + padding_bytes + copied_bytes - offloaded_bytes)

    def repeated_encoder_bytes(self, rank: EngineRank) -> int:
        """Returns the additional bytes of encoders that ranks load in full (`--mm-encoder-tp-mode`)."""
        if self.flags.get("mm_encoder_tp_mode") != "data" or not (rank.with_towers and self.preset.model.towers):
            return 0
        whole_encoder_bytes, rank_encoder_bytes = (
            placed_rank.weight_bytes - replace(placed_rank, with_towers=False).weight_bytes
            for placed_rank in (replace(rank, layout=ONE_DEVICE, rank=0), rank)
        )
        return whole_encoder_bytes - rank_encoder_bytes

    def cache_element_bytes(self, rank: EngineRank) -> Fraction:
        """Returns the bytes per element of the KV cache, with the element's part of the quantization scales."""
        cache_format = str(self.flags.get("kv_cache_dtype", ""))
        if cache_format in PACKED_FORMATS:
            return packed_bytes(cache_format, rank, self.version_numbers)
        if cache_format == SCALED_LATENTS and not rank.selects_latents:
            raise InputError(f"--kv-cache-dtype {cache_format}: only sparse attention has such a cache; expected fp8")
        if (
            cache_format in ("", *AUTO_WORDS)
            and rank.selects_latents
            and stores_latents_in_float8(self.hardware, self.version_numbers)
        ):
            return Fraction(1)
        return Fraction(self.cached_element_bytes)

    def compressed_pool(self, rank: EngineRank) -> BlockPool | None:
        """Returns the block pool of a model with compressed attention; None for other models.

        Raises `InputError` for flags with which vLLM has no such pool, or which are not modelled beside it.
        """
        if not compressed_layers(rank):
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
        return compressed_pool(rank, self.engine_record.page_layout(self.version_of_rules), has_fp4_indexer)

    def kv_block_pool(self, rank: EngineRank) -> BlockPool:
        """Returns the block pool of a rank's KV cache and recurrent states."""
        compressed_blocks = self.compressed_pool(rank)
        if compressed_blocks is not None:
            return compressed_blocks
        attention_backend = str(self.flags.get("attention_backend", ""))
        return block_pool(
            rank,
            self.cache_element_bytes(rank),
            self.block_size,
            self.rules,
            has_full_windows=bool(self.flags.get("disable_hybrid_kv_cache_manager")),
            draft_caches=[] if self.draft is None else self.draft.token_caches,
            context_ranks=self.context_ranks,
            state_blocks=state_blocks(
                rank,
                self.state_rules,
                self.hardware,
                self.flags,
                self.speculation.tokens,
                self.block_size,
                self.element_bytes,
            ),
            has_scaled_latents=self.flags.get("kv_cache_dtype") == SCALED_LATENTS
            or scales_latents(self.hardware, self.version_numbers, attention_backend),
        )

    def stage_memory(self, stage_number: int) -> StageMemory:
        """Returns the memory of one rank of a pipeline stage."""
        rank, profile_run, version_rules = self.rank_of_stage(stage_number), self.profile_run(stage_number), self.rules
        kv_pool = self.kv_block_pool(rank)
        memory_outside_torch = self.engine_record.overhead_outside_torch(
            self.version_numbers, self.hardware, self.tp, self.pp
        )
        graph_bytes = self.logged_or_computed_bytes("cuda_graphs", self.cuda_graph_bytes(rank))
        outside_bytes = self.logged_or_computed_bytes(
            "non_torch", memory_outside_torch.mib * MIB + self.penalty_bytes(rank)
        )
        budget = math.ceil(self.utilization * self.total_memory)
        weight_bytes = self.stored_weights(rank)
        if self.draft is not None:
            weight_bytes += self.draft.weight_bytes + self.draft.rope_table_elements(VIDEO_FACTOR) * self.element_bytes
        weight_bytes += adapter_bytes(rank, self.flags, self.element_bytes, self.version_numbers)
        weight_bytes = self.logged_or_computed_bytes("weights", weight_bytes)
        profile_run_bytes = self.logged_or_computed_bytes("profile_run", profile_run.peak_bytes(rank, version_rules))
        subtracted_bytes = (
            weight_bytes + profile_run_bytes + outside_bytes + (graph_bytes if self.subtracts_graphs else 0)
        )
        cache_bytes = int(
            self.flags.get(
                "kv_cache_memory_bytes", self.logged_or_computed_bytes("kv_cache", budget - subtracted_bytes)
            )
        )
        block_count = int(self.flags.get("num_gpu_blocks_override", kv_pool.blocks(cache_bytes)))
        term_status: TermStatus = "estimate"
        graph_origin = "subtracted from the budget" if self.subtracts_graphs else "outside the budget"
        memory_terms = (
            MemoryTerm(
                "budget",
                budget,
                "source",
                version_rules.source_place,
                f"{self.utilization} × total (--gpu-memory-utilization)",
            ),
            MemoryTerm("weights", weight_bytes, "source", "tensors of the rank", self._weights_origin(rank)),
            MemoryTerm(
                "profile_run",
                profile_run_bytes,
                term_status if profile_run.workspace or profile_run.compilation_bytes else "source",
                version_rules.source_place,
                profile_run.origin(rank, version_rules),
            ),
            MemoryTerm("non_torch", outside_bytes, term_status, memory_outside_torch.source, self._non_torch_origin),
            MemoryTerm("cuda_graphs", graph_bytes, term_status, self.engine_record.cuda_graphs.source, graph_origin),
            MemoryTerm(
                "kv_cache",
                max(cache_bytes, 0),
                term_status,
                version_rules.source_place,
                f"{block_count:,} blocks of {kv_pool.block_size} tokens",
            ),
        )
        return StageMemory(self.with_logged_sizes(memory_terms), kv_pool, cache_bytes, block_count, graph_bytes)

    @cached_property
    def fullest_stage(self) -> StageMemory:
        """The memory of the pipeline stage with the fewest cache blocks."""
        return min(map(self.stage_memory, range(self.pp)), key=lambda stage_memory: stage_memory.blocks)

    def penalty_bytes(self, rank: EngineRank) -> int:
        """Returns the bytes of token counts for sampling penalties, if these reduce the KV cache."""
        if self.second_runner is None or not self.second_runner.counts_penalties or self.gives_embeddings:
            return 0
        return penalty_bytes(self.max_num_seqs, rank.vocab_size)

    @property
    def _non_torch_origin(self) -> str:
        includes_penalty_counts = bool(self.penalty_bytes(self.rank_of_stage(0)))
        return "context, NCCL and libraries" + (", counts for penalties" if includes_penalty_counts else "")

    def _weights_origin(self, rank: EngineRank) -> str:
        weight_scheme = rank.scheme or ("as published" if self.dtype is None else self.dtype)
        if self.falls_back_to_float32:
            weight_scheme += f", as {self.hardware.title} has no bfloat16"
        if self.flags.get("enable_lora"):
            adapter_slot_count, lora_rank = adapter_slots(self.flags)
            weight_scheme += f", with {adapter_slot_count} slots for adapters of rank {lora_rank}"
        if self.speculation.draft is not None:
            return f"{weight_scheme}, with {self.speculation.draft.name} that drafts"
        return f"{weight_scheme}, with modules that draft" if self.speculation.with_mtp else weight_scheme

    @property
    def free_bytes_at_start(self) -> int:
        """The device's free bytes when the engine starts, after the CUDA context."""
        return self.total_memory - self.engine_record.cuda_context(self.hardware, self.tp * self.pp).mib * MIB


class StageMemory(NamedTuple):
    """The memory of a rank of one pipeline stage: named parts, KV cache blocks and CUDA graphs."""

    terms: tuple[MemoryTerm, ...]
    pool: BlockPool
    available: int
    blocks: int
    graphs: int


def memory(server: VLLMServer) -> EngineMemory:
    """Returns the memory that vLLM plans for a device of the pipeline stage with the fewest cache blocks."""
    if server.flags.get("max_model_len") in AUTO_WORDS:
        return memory(server.with_flags(max_model_len=longest_request(server) or server.longest_request))
    fullest_stage = server.fullest_stage
    kv_pool, block_count, version_rules = fullest_stage.pool, fullest_stage.blocks, server.rules
    longest_tokens, tokens_in_flight = server.longest_request, server.tokens_in_flight
    max_concurrency = kv_pool.max_concurrency(block_count, longest_tokens, tokens_in_flight)
    startup_error = _startup_error(server, fullest_stage, max_concurrency)
    return EngineMemory(
        terms=fullest_stage.terms,
        kv_tokens=kv_pool.printed_tokens(block_count, longest_tokens, tokens_in_flight, version_rules),
        blocks=block_count,
        max_concurrency=max_concurrency,
        starts=not startup_error,
        message=startup_error,
        max_model_len=longest_tokens,
        devices=server.device_count,
        block_size=kv_pool.block_size,
        assumed=server.assumed,
        settings=server.settings,
        layout=server.whole_layout,
        most_sequences=fullest_stage.blocks
        if startup_error.startswith(server.engine_record.messages["sequences"])
        else 0,
        notes=tuple(filter(None, (server.version.note, *_server_notes(server)))),
    )


def _startup_error(server: VLLMServer, stage_memory: StageMemory, concurrency: float) -> str:
    """Returns the error message with which vLLM fails to start; empty if vLLM starts."""
    message_texts, version_rules, max_model_len = server.engine_record.messages, server.rules, server.longest_request
    budget_bytes, batch_tokens, block_tokens = (
        stage_memory.terms[0].bytes,
        server.max_num_batched_tokens,
        stage_memory.pool.block_size,
    )
    if server.state_rules.needs_batch_of_a_block and stage_memory.pool.aligns_states and block_tokens > batch_tokens:
        message_start = message_texts["aligned_block"]
        return f"{message_start} (--max-num-batched-tokens {batch_tokens}); expected at least {block_tokens}"
    if version_rules.checks_free_memory and server.free_bytes_at_start < budget_bytes:
        free_gib = server.free_bytes_at_start / GIB
        return f"{message_texts['free_memory']} ({server.utilization}): {free_gib:.2f} GiB are free"
    if stage_memory.available <= 0:
        return message_texts["no_cache"]
    if concurrency < 1:
        longest_request_tokens = stage_memory.pool.longest_request(
            stage_memory.blocks, server.tokens_in_flight, max_model_len
        )
        message_start = message_texts["one_request_v0" if version_rules.generation == "v0" else "one_request"]
        return f"{message_start} (--max-model-len {max_model_len}); the longest that fits is {longest_request_tokens}"
    if server.needs_blocks_of_sequences(stage_memory.pool) and server.max_num_seqs > stage_memory.blocks:
        return f"{message_texts['sequences']} (--max-num-seqs {server.max_num_seqs}); at most {stage_memory.blocks} fit"
    unused_bytes = (server.total_memory if version_rules.counts_context else server.free_bytes_at_start) - budget_bytes
    if not server.subtracts_graphs and unused_bytes < stage_memory.graphs:
        return message_texts["outside_budget"]
    return ""


def _server_notes(server: VLLMServer) -> list[str]:
    server_notes = [*filter(None, [*_class_notes(server), server.long_request_note])]
    if server.falls_back_to_float32:
        server_notes.append(
            f"{server.hardware.title} has no bfloat16, and in float16 vLLM refuses the model: it runs in float32, as "
            "--dtype float32"
        )
    if server.assumes_torch_sampler:
        server_notes.append(
            "counted with torch's sampler, which vLLM takes where the package FlashInfer is not installed; images of "
            f"vLLM have it: with one of them, add {SAMPLER_VARIABLE}=1"
        )
    if server.times_kernels:
        server_notes += _compilation_notes(server)
    if server.hardware.driver_total is None:
        server_notes.append(f"{server.hardware.title}: what the driver offers is not known; all memory is counted")
    if server.speculation.tokens:
        server_notes.append(
            "the passes that draft tokens, and their CUDA graphs, are not in the profile run; they may take more"
        )
    if server.preset.model.towers and server.loads_towers:
        if server.rules.generation == "v0" or image_tower(server.preset.model) is None:
            server_notes.append("the profile run of the model's encoders is not modelled; it may take more")
        if server.flags.get("mm_encoder_tp_mode") == "data":
            server_notes.append("each rank has the encoders whole; vLLM divides those whose classes have no such mode")
    return server_notes


def _class_notes(server: VLLMServer) -> list[str]:
    """Returns notes if the version lacks a class for the model: not yet added, or already removed."""
    engine_record, class_names = server.engine_record, architectures(server.preset)
    server_notes = [engine_record.missing_class_note(class_names, server.version)]
    last_version = engine_record.last_supported_version(class_names, server.version_numbers)
    if last_version is not None:
        server_notes.append(
            f"vLLM {last_version} was the last version with a class for {class_names[0]}: a later one starts only if "
            f"transformers' own class runs in it; expected --engine vllm=={last_version}"
        )
    return server_notes


def _compilation_notes(server: VLLMServer) -> list[str]:
    """Returns a note if a first start, which compiles the model, has a smaller or unknown KV cache."""
    if server.preset.model.towers:
        return ["a restart is counted; a first start, which compiles, may have less cache (vLLM issues 54122, 54383)"]
    first_start_server = server.with_flags(**{CACHE_VARIABLE: 1})
    lost_bytes = server.fullest_stage.available - first_start_server.fullest_stage.available
    if lost_bytes <= 0:
        return []
    lost_gib = f"{lost_bytes / GIB:.2f} GiB"
    return [f"a restart is counted; a first start, which compiles, has {lost_gib} less cache ({CACHE_VARIABLE}=1)"]


def longest_request(server: VLLMServer) -> int:
    """Returns the largest `--max-model-len` for which the cache holds one request; 0 if there is none."""
    fullest_stage = server.fullest_stage
    return fullest_stage.pool.longest_request(fullest_stage.blocks, server.tokens_in_flight, server.longest_request)
