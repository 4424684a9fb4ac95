"""The settings of a vLLM server: its flags, with the version's defaults, and checks of flags that vLLM refuses.

`presets/engines/vllm.toml` has the rules of each version with their source files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from ...components.head import LMHead
from ...components.mixers.indexer import Indexer
from ...components.mixers.mla import MLA
from ...components.no_head import NoHead
from ...errors import InputError, short_repr
from ...parallel.layout import Layout
from ...sources.presets import known_model
from ..engines.context_length import has_unknown_context_length
from ..engines.rank import EngineRank, MissingKernels, architectures, kv_head_counts, mixers_with_layer_counts
from ..engines.rope_override import has_score_class
from ..engines.server import DTYPE_WORDS, EngineServer
from .context_length import scaled_length, short_rope_length
from .cuda_graphs import graph_mode_of
from .encoder_run import image_limit, input_limit, tokens_of_whole_images
from .expert_exchange import BACKEND_WITHOUT_GRAPHS, all2all_backend, check_expert_balancing
from .flags import CPU_CONNECTORS, POOLING_TASKS
from .flashinfer_sampler import assumes_torch_sampler, rules_with_sampler
from .model_runner import rules_with_runner, second_runner
from .speculation import Speculation, speculation_of
from .versions import SecondModelRunner, StateRules, VideosAsImages, VLLMRecord, VLLMRules, vllm_record

POOLING_WORDS = ("pooling", *POOLING_TASKS)
"""Values of `--runner`, `--task` and `--convert` for a server whose output is embeddings or scores."""

RAY_EXECUTOR_VARIABLE = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
"""Environment variable that selects Ray's executor: 0 selects the first one."""

DEFAULT_BLOCK_TOKENS = 16
"""Default number of tokens per block."""

SPARSE_LATENT_BLOCK = 64
"""Tokens of a block of latents beside an indexer, on NVIDIA: the only size of FlashMLA's sparse kernels.

Logs: "Forcing kv cache block size to 64 for FlashMLASparse backend" (0.13), "Setting kv cache block size to 64 for
DEEPSEEK_V32_INDEXER backend" (index:65913604092).
"""

SCHEME_BY_QUANTIZATION = {
    "fp8": "fp8",  # one scale of a matrix (layers/quantization/fp8.py, `scaled_fp8_quant(layer.weight, scale=None)`)
    "awq": "awq-int4-g128", "gptq": "gptq-int4-g128", "mxfp4": "mxfp4",
    "bitsandbytes": "nf4",  # of plain weights, with float32 scales (bitsandbytes_loader.py, `quantize_4bit`)
}  # fmt: skip
"""Value of `--quantization` → the scheme of the weights of a checkpoint that states none."""

SKIPS_ENCODERS_FROM = (0, 19)
"""First checked version in which encoders without inputs are not loaded (`_mark_tower_model`)."""

LAST_V0_VERSION = (0, 7)
"""Version whose memory rules the V0 engine also follows in all later versions (vllm/worker/worker.py)."""

FIRST_VERSION_WITHOUT_V0 = (0, 11)
"""First version without the V0 engine."""

FIRST_VERSION_WITH_V1 = (0, 8)
"""First version that runs the V1 engine by default."""

V1_ANY_GPU_FROM = (0, 10, 2)
"""First version whose V1 engine runs on NVIDIA's GPUs below compute capability 8.0 (pull request 23614)."""

V1_FLOAT32_FROM = V1_EMBEDDINGS_FROM = V1_AMD_FROM = (0, 9, 2)
"""First version whose V1 engine computes in float32 and gives embeddings, and is the default on AMD's GPUs."""

V1_PIPELINES_FROM = {None: (0, 9, 1), "ray": (0, 8, 3), "mp": (0, 9)}
"""Value of `--distributed-executor-backend` → first version whose V1 engine runs pipelines with it."""

V1_ADAPTERS_FROM = (0, 8, 3)
"""First version that runs LoRA adapters in the V1 engine by default."""

CONTEXT_RANKS_FROM = ((0, 11), (0, 11, 1))
"""First versions in which ranks divide the tokens of a latent cache, and of a cache with several heads."""

GRAPHS_ARE_ESTIMATED_FROM = (0, 19)
"""First version that estimates the memory of CUDA graphs (v1/worker/gpu_worker.py)."""

LONGROPE_STARTS_SHORT_FROM = (0, 11, 1)
"""First version in which LongRoPE's short factors limit requests by default (vllm pull request 27431)."""

COMPILATION_KEYS = (
    "level", "mode", "debug_dump_path", "cache_dir", "backend", "custom_ops", "splitting_ops", "use_inductor",
    "compile_sizes", "inductor_compile_config", "inductor_passes", "cudagraph_mode", "use_cudagraph",
    "cudagraph_num_of_warmups", "cudagraph_capture_sizes", "cudagraph_copy_inputs", "full_cuda_graph", "pass_config",
    "max_capture_size", "max_cudagraph_capture_size", "use_inductor_graph_partition", "local_cache_dir",
    "cudagraph_specialize_lora", "fast_moe_cold_start", "dynamic_shapes_config", "compile_mm_encoder",
    "compile_ranges_split_points", "compile_ranges_endpoints",
)  # fmt: skip
"""Keys of `--compilation-config` that are read or do not change memory."""


class VLLMSettings(EngineServer):
    """The settings of a vLLM server: model, accelerator, version and flags."""

    name = "vllm"
    length_flag_name = "max_model_len"
    layout_flag_names = "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"
    deciding_flags_by_term = {
        "weights": ("dtype", "quantization", "quantize", "mm_encoder_tp_mode", "PYTORCH_CUDA_ALLOC_CONF"),
        "profile_run": ("max_num_seqs", "max_num_batched_tokens"),
        "non_torch": (),
        "cuda_graphs": ("max_num_seqs", "enforce_eager"),
        "kv_cache": ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "enforce_eager", "quantize"),
    }
    default_context_length = 2048  # vllm/config/model.py, `_get_and_verify_max_len`
    long_request_variable = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    stage_layers_variable = "VLLM_PP_LAYER_PARTITION"  # vllm/distributed/utils.py, `get_pp_indices`
    runs_float32_in_16_bits = True  # vllm/config/model.py, `_get_and_verify_dtype`

    def __post_init__(self) -> None:
        """Removes a pooling server's head. Raises `InputError` for flags that contradict each other or the model."""
        if has_score_class(self.flags) or any(
            self.flags.get(flag_name) in POOLING_WORDS for flag_name in ("runner", "task", "convert")
        ):
            # model_executor/models/adapters.py, `_create_pooling_model_cls`: such a class has no lm_head
            headless_model = self.preset.model.model_copy(update={"head": NoHead()})
            object.__setattr__(self, "preset", self.preset.model_copy(update={"model": headless_model}))
        super().__post_init__()
        if self.flags.get("max_num_batched_tokens", self.max_num_batched_tokens) < self.max_num_seqs:
            raise InputError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens}: is less than --max-num-seqs "
                f"{self.max_num_seqs}; expected at least as many"
            )
        self.check_environment()
        config_path = self.flags.get("hf_config_path")
        config_model = None if config_path is None else known_model(config_path)
        if config_path is not None and (config_model is None or config_model.name != self.preset.name):
            raise InputError(
                f"--hf-config-path {short_repr(config_path)}: is not the model {self.preset.name}; expected TARGET or "
                "--set PATH=VALUE of llmcalc in its place"
            )
        if self.speculation.draft_model is not None and self.pp > 1:
            raise InputError("--speculative-config: a draft model with stages is not modelled")
        check_expert_balancing(self.preset.model, self.flags, self.tp * self.dp)
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
        if dtype == "bfloat16" and not self.hardware.has_bfloat16_units:
            raise InputError(
                f"--dtype bfloat16: vLLM refuses it on {self.hardware.title}, which has compute capability "
                f"{self.hardware.compute_capability} and not 8.0; expected float16 or float32"
            )
        if self.falls_back_to_float32 and EngineRank(self.preset, quantize=self.quantize).shared().weight_kernels:
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
        """Whether float32 is the default format, as the device lacks bfloat16 and the class refuses float16."""
        is_default_dtype = self.flags.get("dtype", "auto") == "auto"
        return is_default_dtype and not self.hardware.has_bfloat16_units and self.refuses_float16

    @property
    def dtype(self) -> str | None:
        return "float32" if self.falls_back_to_float32 else super().dtype

    def check_context_ranks(self) -> None:
        """Raises `InputError` for decode context parallelism that vLLM refuses (`verify_with_parallel_config`).

        Only ranks that would hold copies of the same heads may divide tokens (vllm/config/model.py).
        """
        rank_count = self.context_ranks
        if rank_count == 1:
            return
        key_head_count = (
            1 if self.rank_of_stage(0).up_projection_elements else min(kv_head_counts(self.preset.model), default=1)
        )
        first_version = CONTEXT_RANKS_FROM[key_head_count > 1]
        if self.version_numbers < first_version:
            first_version_text = ".".join(map(str, first_version))
            raise InputError(
                f"--decode-context-parallel-size: is modelled for this model from vLLM {first_version_text} on"
            )
        if self.tp % rank_count or key_head_count * rank_count > self.tp:
            raise InputError(
                f"--decode-context-parallel-size {rank_count}: expected a divisor of --tensor-parallel-size {self.tp} "
                f"of at most {max(1, self.tp // key_head_count)}, as the model has {key_head_count} "
                f"head{'s' * (key_head_count > 1)} of keys"
            )
        if self.speculation.drafted_tokens:
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
        if self.flags.get("VLLM_USE_V1") == 1 and self.reason_for_first_engine:
            raise InputError(
                f"VLLM_USE_V1=1: vLLM {self.version.version} does not start with it, as "
                f"{self.reason_for_first_engine}; expected vLLM 0.11 or later, or no such variable"
            )
        kv_connector = self.flags.get("kv_transfer_config", {}).get("kv_connector", CPU_CONNECTORS[0])
        if kv_connector not in CPU_CONNECTORS:
            raise InputError(
                f"--kv-transfer-config: the connector {short_repr(kv_connector)} is not modelled; expected one of "
                f"{', '.join(CPU_CONNECTORS)}"
            )
        unknown_keys = sorted(set(self.compilation) - set(COMPILATION_KEYS))
        if unknown_keys:
            raise InputError(f"--compilation-config: {short_repr(unknown_keys[0])} is not modelled; remove the key")

    @property
    def compilation(self) -> Mapping[str, Any]:
        """The contents of `--compilation-config`: name → value."""
        compilation_config: Mapping[str, Any] = self.flags.get("compilation_config", {})
        if self.backend_disables_graphs:
            return {**compilation_config, "cudagraph_mode": "NONE"}
        if self.has_embedding_output and "FULL" in graph_mode_of(compilation_config):
            return {**compilation_config, "cudagraph_mode": "PIECEWISE"}  # config/vllm.py: pooling has no full graphs
        return compilation_config

    @property
    def backend_disables_graphs(self) -> bool:
        """Whether vLLM turns CUDA graphs off because of the backend that sends tokens to experts.

        vllm/config/compilation.py, "Disabling CUDA Graphs since DeepEP high-throughput kernels are optimized for
        prefill"; in earlier versions vllm/platforms/cuda.py.
        """
        return self.dp > 1 and all2all_backend(self.flags, self.version_numbers)[0] == BACKEND_WITHOUT_GRAPHS

    @cached_property
    def has_embedding_output(self) -> bool:
        """Whether the server's output is embeddings or scores (`--runner pooling`), without logits and sampler.

        v1/worker/gpu_model_runner.py, `profile_run`: such a model's profile run ends with its pooler. vLLM takes this
        runner by default for models without a language-model head.
        """
        return not isinstance(self.preset.model.head, LMHead)

    @cached_property
    def speculation(self) -> Speculation:
        """The server's settings of speculative decoding."""
        return speculation_of(self.flags, self.preset)

    @cached_property
    def draft(self) -> EngineRank | None:
        """The draft model on one rank; None without a draft model."""
        if self.speculation.draft_model is None:
            return None
        return EngineRank(self.speculation.draft_model, Layout(tp=self.tp), 0, None, self.dtype).shared()

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
    def subtracts_graph_memory(self) -> bool:
        """Whether vLLM subtracts the estimated memory of CUDA graphs from the memory for the KV cache."""
        variable_value = self.flags.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
        runner_estimates_graphs = self.second_runner is None or self.second_runner.estimates_graphs
        if variable_value is None or self.version_numbers < GRAPHS_ARE_ESTIMATED_FROM or not runner_estimates_graphs:
            return self.rules.subtracts_graph_memory
        return bool(variable_value)

    def has_model_class(self, class_names: tuple[str, ...]) -> bool:
        """Whether the model's class is among `class_names`."""
        return not {*architectures(self.preset)}.isdisjoint(class_names)

    @property
    def model_context_length(self) -> int | None:
        """The model's context length in tokens; for LongRoPE the length with the short factors."""
        scaled_limit = scaled_length(self.preset)
        uses_short_factors = self.version_of_rules >= LONGROPE_STARTS_SHORT_FROM
        short_length = short_rope_length(self.preset) if uses_short_factors else None
        return scaled_limit if scaled_limit is None or short_length is None else min(scaled_limit, short_length)

    @property
    def accepted_request_limit(self) -> int | None:
        """The longest request in tokens that vLLM accepts; None if not known."""
        return None if has_unknown_context_length(self.preset) else scaled_length(self.preset)

    @property
    def engine_record(self) -> VLLMRecord:
        return vllm_record()

    @property
    def version_of_rules(self) -> tuple[int, ...]:
        """The vLLM version whose memory rules apply: with engine V0, at most the last version that has this engine."""
        uses_v0_engine = self.flags.get("VLLM_USE_V1") == 0 or bool(self.reason_for_first_engine)
        return min(LAST_V0_VERSION, self.version_numbers) if uses_v0_engine else self.version_numbers

    @cached_property
    def reason_for_first_engine(self) -> str:
        """The reason why a version with engines V0 and V1 runs V0; empty if it runs V1.

        Source: engine/arg_utils.py, `_is_v1_supported_oracle`, read in 0.8.0 to 0.8.3, 0.8.5 and 0.9.0 to 0.10.2. On
        AMD's GPUs, and for LoRA adapters, VLLM_USE_V1=1 runs the second engine all the same.
        """
        version_numbers, accelerator_title = self.version_numbers, self.hardware.title
        if not FIRST_VERSION_WITH_V1 <= version_numbers < FIRST_VERSION_WITHOUT_V0:
            return ""
        is_nvidia, is_default = self.hardware.vendor == "NVIDIA", self.flags.get("VLLM_USE_V1") != 1
        compute_capability = self.hardware.compute_capability
        is_old_gpu = is_nvidia and float(compute_capability or 9) < 8
        pipelines_from = V1_PIPELINES_FROM.get(self.flags.get("distributed_executor_backend"), FIRST_VERSION_WITHOUT_V0)
        has_fp8_cache = str(self.flags.get("kv_cache_dtype", "")).startswith("fp8")
        conditions_and_reasons = (
            (V1_ANY_GPU_FROM, is_old_gpu, f"{accelerator_title} has compute capability {compute_capability}, not 8.0"),
            (V1_FLOAT32_FROM, self.dtype == "float32", "it computes in float32"),
            (V1_EMBEDDINGS_FROM, self.has_embedding_output, "the model gives embeddings or scores"),
            (pipelines_from, self.pp > 1, "it is a pipeline"),
            (V1_AMD_FROM, is_default and not is_nvidia, f"{accelerator_title} is not from NVIDIA"),
            (V1_ADAPTERS_FROM, is_default and bool(self.flags.get("enable_lora")), "it has LoRA adapters"),
            (self._v1_fp8_cache_from, has_fp8_cache, f"V1 has no cache in fp8 on {accelerator_title}"),
        )
        return next(
            (
                first_engine_reason
                for v1_from, condition_applies, first_engine_reason in conditions_and_reasons
                if condition_applies and version_numbers < v1_from
            ),
            "",
        )

    @property
    def _v1_fp8_cache_from(self) -> tuple[int, ...]:
        """The first version whose engine V1 supports an fp8 cache; earlier ones run V0 for it.

        Source: `_is_v1_supported_oracle`, and from 0.10 on platforms/cuda.py, `is_kv_cache_dtype_supported`.
        """
        compute_capability = float(self.hardware.compute_capability or 0)
        if self.hardware.vendor != "NVIDIA":
            return (0, 9)
        if 9 <= compute_capability < 10:
            return (0, 8, 2)  # FlashAttention 3 reads it (`flash_attn_supports_fp8`)
        if compute_capability == 10:
            return (0, 10)
        has_latents = any(isinstance(mixer, MLA) for mixer, _ in mixers_with_layer_counts(self.preset.model))
        return V1_ANY_GPU_FROM if has_latents else FIRST_VERSION_WITHOUT_V0

    @cached_property
    def second_runner(self) -> SecondModelRunner | None:
        """The memory rules of vLLM's second model runner; None if the first model runner runs the model."""
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
        return not self.has_embedding_output and assumes_torch_sampler(
            self.engine_record, self.version_of_rules, self.flags, has_second_runner
        )

    @cached_property
    def state_rules(self) -> StateRules:
        """The version's rules for recurrent states."""
        return self.engine_record.state_rules(self.version_of_rules)

    @property
    def dp(self) -> int:
        return int(self.flags.get("data_parallel_size", 1))

    @property
    def device_count(self) -> int:
        return self.tp * self.pp * self.dp

    @cached_property
    def layout(self) -> Layout:
        """The layout of one replica, with layers divided over stages as by vllm/distributed/utils.py, `get_pp_indices`.

        All ranks of the tensor and data groups together divide the experts: each expert, or with expert parallelism
        their number (`flatten_tp_across_dp` of layers/fused_moe/config.py; from 0.8 on, fused_moe/layer.py).
        """
        stage_layers = self.stage_layers(reversed(range(self.pp - 1)))
        has_expert_parallelism = self.flags.get("enable_expert_parallel")
        expert_ranks = self.tp * self.dp
        if not has_expert_parallelism and (self.dp == 1 or not self.preset.model.routed_experts):
            return Layout(tp=self.tp, pp=self.pp, pp_layout=stage_layers)
        ep, expert_tp = (expert_ranks, 1) if has_expert_parallelism else (1, expert_ranks)
        return Layout(tp=self.tp, pp=self.pp, dp=self.dp, ep=ep, etp=expert_tp, pp_layout=stage_layers)

    @property
    def whole_layout(self) -> Layout:
        """The layout of all devices, with data-parallel replicas."""
        return replace(self.layout, dp=self.dp)

    @property
    def quantize(self) -> str | None:
        """The quantization scheme of the weights; None for the checkpoint's scheme."""
        quantization_flag = str(self.flags.get("quantization", "none")).removesuffix("_marlin").removeprefix("gpt_oss_")
        return self.scheme_of(quantization_flag, SCHEME_BY_QUANTIZATION)

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
    def has_chunked_prefill(self) -> bool:
        """Whether prefill is chunked: by default always, but in V0 only if requests have more than 32,768 tokens."""
        chunks_by_default = self.rules.generation != "v0" or self.longest_request > 32768
        return bool(self.flags.get("enable_chunked_prefill", chunks_by_default))

    @property
    def max_num_batched_tokens(self) -> int:
        """The largest number of tokens of a batch, by the flag or the version's defaults."""
        flag_value = self.flags.get("max_num_batched_tokens")
        if flag_value:
            return int(flag_value)
        batch_defaults = self.engine_record.defaults(self.version_of_rules, self.hardware)
        default_tokens = batch_defaults.max_num_batched_tokens * self.default_limit_factor
        if self.rules.generation == "v0" and self.has_chunked_prefill:
            return self.rules.chunk_above_32k
        if not self.has_chunked_prefill:
            default_tokens = max(self.longest_request, default_tokens)
        if self.rules.generation == "v0":
            return default_tokens
        if self.whole_video_rules is not None and self.whole_video_rules.raises_batch_tokens:
            default_tokens = max(default_tokens, self.whole_video_rules.tokens)
        sequence_count = int(self.flags.get("max_num_seqs", batch_defaults.max_num_seqs * self.default_limit_factor))
        return max(
            min(default_tokens, sequence_count * self.longest_request),
            sequence_count if "max_num_seqs" in self.flags else 1,
        )

    @cached_property
    def whole_video_rules(self) -> VideosAsImages | None:
        """The rules for reading a video as images if the batch must hold the whole video; otherwise None."""
        video_rules = self.engine_record.videos_as_images(self.version_of_rules)
        must_be_whole = (
            video_rules is not None and video_rules.must_fit_batch and tokens_of_whole_images(self.preset.model) > 0
        )
        return video_rules if must_be_whole else None

    @property
    def largest_input_tokens(self) -> int:
        """The tokens of the largest image or video that must fit in one batch; 0 if none must."""
        if self.whole_video_rules is None or not self.loads_towers:
            return 0
        input_limits = self.flags.get("limit_mm_per_prompt", {})
        if input_limit(input_limits.get("video", 1)) != 0:
            return self.whole_video_rules.tokens
        return tokens_of_whole_images(self.preset.model) if image_limit(input_limits) else 0

    @property
    def tokens_in_flight(self) -> int:
        """The number of tokens of all concurrently scheduled batches, for which a window needs additional blocks."""
        if not self.rules.reserves_batches_in_flight:
            return self.max_num_batched_tokens
        uses_ngrams = (
            self.speculation.drafted_tokens and not self.speculation.uses_mtp and self.speculation.draft_model is None
        )
        has_async_scheduling = self.flags.get("async_scheduling", not uses_ngrams and not self._has_first_ray_executor)
        batch_count = (
            self.pp + 1 if has_async_scheduling and (self.second_runner is not None or self.pp == 1) else self.pp
        )
        return batch_count * self.max_num_batched_tokens

    @property
    def _has_first_ray_executor(self) -> bool:
        """Whether the first of Ray's two executors runs the ranks; that executor schedules a single batch at a time.

        The second executor is the default (v1/executor/abstract.py, `supports_async_scheduling`).
        """
        runs_under_ray = self.flags.get("distributed_executor_backend") == "ray"
        return runs_under_ray and self.flags.get(RAY_EXECUTOR_VARIABLE, 1) == 0

    @property
    def decoded_tokens(self) -> int:
        """The number of tokens of a decoding step of all sequences, including drafted tokens."""
        return self.max_num_seqs * (1 + self.speculation.drafted_tokens)

    @property
    def utilization(self) -> float:
        return float(self.flags.get("gpu_memory_utilization", self.rules.gpu_memory_utilization))

    @property
    def block_size(self) -> int:
        """The tokens per block of the KV cache, by default the block size of an indexer's kernels if there is one.

        A server's log says "Setting KV cache block size to 128 to match MiniMax-M3 sparse block size (was 16)"
        (index:60171799662); its backend supports no other size (v1/attention/backends/minimax_m3_sparse.py).
        """
        model_mixers = [mixer for mixer, _ in mixers_with_layer_counts(self.preset.model)]
        indexers = [getattr(mixer, "block_indexer", None) for mixer in model_mixers]
        block_sizes = [indexer.index_block_size for indexer in indexers if indexer is not None]
        if self.hardware.vendor != "AMD" and any(
            isinstance(mixer, MLA) and isinstance(mixer.indexer, Indexer) for mixer in model_mixers
        ):
            block_sizes.append(SPARSE_LATENT_BLOCK)
        return int(self.flags.get("block_size", max(block_sizes, default=DEFAULT_BLOCK_TOKENS)))

    @property
    def effective_defaults(self) -> dict[str, Any]:
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
        has_draft_modules = self.speculation.uses_mtp and stage_number == self.pp - 1
        return EngineRank(
            self.preset, self.layout, rank_number, self.quantize, self.dtype, loads_towers, has_draft_modules
        ).shared()
