"""The flags of `vllm serve`: flags that change memory, and other flags.

They are those of vllm/engine/arg_utils.py, `EngineArgs.add_cli_args`, and of vllm/entrypoints/openai/cli_args.py in
vLLM 0.6.6, 0.9.2, 0.19, 0.24 and 0.33.
"""

from __future__ import annotations

from ..engines.flags import AUTO_WORDS, Flag, memory_neutral_flags_of_engine, refused_flags
from .cache_formats import FP8_WORDS, PACKED_FORMATS, SCALED_LATENTS
from .expert_exchange import ALL2ALL_BACKENDS

CACHE_WORDS = ("auto", "bfloat16", "float16", *FP8_WORDS, SCALED_LATENTS, *PACKED_FORMATS)
POOLING_TASKS = ("embed", "embedding", "classify", "score", "reward")
"""Values of `--task` and `--convert` for a model whose output is embeddings or scores."""

DTYPE_WORDS = ("auto", "bfloat16", "half", "float16", "float", "float32")
QUANTIZATION_WORDS = (
    "fp8", "awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "mxfp4", "gpt_oss_mxfp4", "modelopt",
    "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "bitsandbytes", "none", "auto-round", "auto_round", "inc",
    "moe_wna16", "deepseek_v4_fp8",
    "quark", "torchao", "fbgemm_fp8", "fp_quant", "hqq", "gptq_marlin_24", "petit_nvfp4", "gguf",
)  # fmt: skip

STATE_FORMATS = ("auto", "float32", "float16", "bfloat16")
"""Values of the flag for the number format of recurrent states."""

CPU_CONNECTORS = (
    "NixlConnector", "LMCacheConnectorV1", "LMCacheMPConnector", "OffloadingConnector", "MooncakeConnector",
    "SharedStorageConnector", "ExampleConnector", "MultiConnector", "SimpleCPUOffloadConnector",
)  # fmt: skip
"""Connectors of `--kv-transfer-config` that send the cache's own blocks, or copies in host memory."""

FLAGS = (
    Flag(("--tensor-parallel-size", "-tp", "--tp"), "number", maximum=1024),
    Flag(("--pipeline-parallel-size", "-pp", "--pp"), "number", maximum=1024),
    Flag(("--data-parallel-size", "-dp", "--dp"), "number", maximum=1024),
    Flag(("--enable-expert-parallel", "-ep", "--ep"), "switch"),
    Flag(("--max-model-len",), "tokens", AUTO_WORDS),
    Flag(("--max-num-seqs",), "number", maximum=10**6),
    Flag(("--max-num-batched-tokens",), "tokens", maximum=10**8),
    Flag(("--gpu-memory-utilization", "--device-memory-utilization"), "share"),
    Flag(("--kv-cache-dtype",), "word", CACHE_WORDS),
    Flag(("--kv-cache-memory-bytes", "--kv-cache-memory"), "tokens", maximum=10**15),
    Flag(("--num-gpu-blocks-override",), "number"),
    Flag(("--dtype",), "word", DTYPE_WORDS),
    Flag(("--quantization", "-q"), "word", QUANTIZATION_WORDS),
    Flag(("--enforce-eager",), "switch"),
    Flag(("--block-size",), "number", maximum=4096),
    Flag(("--attention-backend",)),
    Flag(("--cpu-offload-gb",), "gib"),
    Flag(("--language-model-only",), "switch"),
    Flag(("--limit-mm-per-prompt",), "table"),
    Flag(
        ("--compilation-config", "-cc", "-O"),
        "table",
        value_kinds=(
            ("cudagraph_capture_sizes", "numbers"),
            ("max_cudagraph_capture_size", "number"),
            ("inductor_compile_config", "table"),
        ),
    ),
    Flag(("--attention-config", "-ac"), "table"),
    Flag(("-O2", "-O3"), "switch", is_memory_neutral=True),
    *refused_flags("a level of optimization", switch_names="-O0 -O1"),
    Flag(("--cudagraph-capture-sizes", "--cuda-graph-sizes"), "numbers"),
    Flag(("--max-cudagraph-capture-size",), "number", minimum=0),
    Flag(("--kv-transfer-config",), "table"),
    Flag(("--disable-hybrid-kv-cache-manager",), "switch"),
    Flag(("--device",), "word", ("auto", "cuda"), is_memory_neutral=True),
    Flag(("--runner",), "word", ("auto", "generate", "pooling")),
    Flag(("--task",), "word", ("auto", "generate", *POOLING_TASKS)),
    Flag(("--convert",), "word", ("auto", "none", *POOLING_TASKS)),
    Flag(("--performance-mode",), "word", ("balanced", "interactivity", "throughput")),
    Flag(("--mamba-cache-dtype",), "word", STATE_FORMATS),
    Flag(("--mamba-ssm-cache-dtype",), "word", STATE_FORMATS),
    Flag(("--enable-prefix-caching",), "switch"),
    Flag(("--enable-chunked-prefill",), "switch"),
    Flag(("--async-scheduling",), "switch"),
    Flag(("--mm-processor-kwargs",), "table"),
    Flag(("--skip-mm-profiling",), "switch"),
    Flag(("--mamba-cache-mode",), "word", ("none", "align", "all")),
    Flag(("--mm-encoder-tp-mode",), "word", ("weights", "data")),
    Flag(("--optimization-level",), "word", ("2", "3"), is_memory_neutral=True),
    *(Flag((name,), "word", ALL2ALL_BACKENDS) for name in ("--all2all-backend", "VLLM_ALL2ALL_BACKEND")),
    Flag(("--moe-backend",)),
    Flag(("--kernel-config",), "table", value_kinds=(("moe_backend", "text"),)),
    Flag(("VLLM_DEEPEP_BUFFER_SIZE_MB",), "number", minimum=0, maximum=10**6),
    Flag(("VLLM_MOE_DP_CHUNK_SIZE",), "number", maximum=10**6),
    Flag(("VLLM_FUSED_MOE_CHUNK_SIZE",), "number", maximum=10**8),
    Flag(("--offload-backend",), "word", ("auto", "uva"), is_memory_neutral=True),
    Flag(("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",), "number", minimum=0, maximum=1),
    Flag(("VLLM_ALLOW_LONG_MAX_MODEL_LEN",), "number", minimum=0, maximum=1),
    Flag(("VLLM_PP_LAYER_PARTITION",), "text"),
    Flag(("VLLM_USE_V1",), "number", minimum=0, maximum=1),
    Flag(("VLLM_USE_V2_MODEL_RUNNER",), "number", minimum=0, maximum=1),
    Flag(("VLLM_USE_FLASHINFER_SAMPLER",), "number", minimum=0, maximum=1),
    Flag(("VLLM_DISABLE_COMPILE_CACHE",), "number", minimum=0, maximum=1),
    Flag(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "text"),
    Flag(("--distributed-executor-backend",), "word", ("mp", "ray", "uni")),
    Flag(("VLLM_USE_RAY_V2_EXECUTOR_BACKEND",), "number", minimum=0, maximum=1),
    Flag(("--speculative-config", "-sc"), "table"),
    Flag(("--spec-method",)),
    Flag(("--spec-model",)),
    Flag(("--spec-tokens",), "number", maximum=1000),
    *refused_flags(
        "speculative decoding of the first engine",
        """
        --speculative-model --num-speculative-tokens --num-lookahead-slots --ngram-prompt-lookup-max
        --ngram-prompt-lookup-min --speculative-draft-tensor-parallel-size --speculative-max-model-len
        --speculative-disable-by-batch-size
        """,
    ),
    Flag(("--enable-lora",), "switch"),
    Flag(("--max-loras",), "number", maximum=10**4),
    Flag(("--max-lora-rank",), "number", maximum=512),
    Flag(("--lora-dtype",), "word", ("auto", "float16", "bfloat16")),
    *refused_flags("adapters of chosen layers", "--lora-target-modules"),
    *refused_flags("adapters of prompts", "--prompt-adapters --max-prompt-adapters --max-prompt-adapter-token"),
    *refused_flags("an adapter of a quantized checkpoint", "--qlora-adapter-name-or-path"),
    *refused_flags(
        "another layout of adapters",
        switch_names="""
        --fully-sharded-loras --enable-prompt-adapter --enable-lora-bias --specialize-active-lora
        --enable-mixed-moe-lora-format --enable-moe-shared-loras --enable-tower-connector-lora
        """,
    ),
    Flag(("--decode-context-parallel-size", "-dcp"), "number", maximum=1024),
    *refused_flags("context parallelism of prompts", "--prefill-context-parallel-size -pcp"),
    Flag(("--enable-eplb",), "switch"),
    Flag(("--eplb-config",), "table", value_kinds=(("num_redundant_experts", "number"), ("window_size", "number"))),
    Flag(("--num-redundant-experts",), "number", minimum=0, maximum=10**5),
    *refused_flags(
        "another number of ranks while it runs", "--elastic-ep-max-dp-size", switch_names="--enable-elastic-ep"
    ),
    *refused_flags(
        "dual batches",
        "--ubatch-size --dbo-decode-token-threshold --dbo-prefill-token-threshold",
        switch_names="--enable-dbo",
    ),
    *refused_flags(
        "prefetching of offloaded weights",
        """
        --offload-group-size --offload-num-in-group --offload-prefetch-step --offload-params --cpu-offload-params
        """,
    ),
    Flag(("--omni",), "switch", refusal_reason="starts vLLM-Omni, an engine of its own, which is not modelled"),
    *refused_flags("a size of states' blocks", "--mamba-block-size --replayssm-buffer-len"),
    *refused_flags("a cache of several number formats", "--kv-cache-dtype-skip-layers"),
    *refused_flags(
        "encoders' memory on the device", "--mm-ipc-gpu-memory-gb --mm-processor-device --ec-transfer-config"
    ),
    *refused_flags(
        "another attention",
        "--override-attention-dtype --diffusion-config --engram-config",
        switch_names="--use-replayssm --enable-return-routed-experts --enable-hc-sp",
    ),
    *refused_flags("an online scheme", "--quantization-config"),
    *refused_flags("a plugin's configuration", "--additional-config --override-neuron-config --model-class-overrides"),
    *refused_flags(
        "a server without the decoder", switch_names="--mm-encoder-only --enable-multimodal-encoder-data-parallel"
    ),
    Flag(("--disable-sliding-window",), "switch"),
    Flag(("--hf-overrides",), "table"),
    Flag(("--rope-scaling",), "table"),
    Flag(("--rope-theta",), "ratio", is_memory_neutral=True),
    Flag(("--hf-config-path",), "text"),
    *memory_neutral_flags_of_engine(__file__),
)


def flags() -> tuple[Flag, ...]:
    """Returns all command-line flags of vLLM."""
    return FLAGS
