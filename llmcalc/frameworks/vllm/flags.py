"""The flags of `vllm serve`: flags that change memory, and other flags.

They are those of vllm/engine/arg_utils.py, `EngineArgs.add_cli_args`, and of vllm/entrypoints/openai/cli_args.py in
vLLM 0.6.6, 0.9.2, 0.19, 0.24 and 0.33.
"""

from __future__ import annotations

from ..engines.flags import AUTO_WORDS, Flag, idle_flags, refused_flags
from .cache_formats import FP8_WORDS, PACKED_FORMATS, SCALED_LATENTS

CACHE_WORDS = ("auto", "bfloat16", "float16", *FP8_WORDS, SCALED_LATENTS, *PACKED_FORMATS)
DTYPE_WORDS = ("auto", "bfloat16", "half", "float16", "float", "float32")
QUANTIZATION_WORDS = (
    "fp8", "awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "mxfp4", "gpt_oss_mxfp4", "modelopt",
    "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "bitsandbytes", "none", "auto-round", "auto_round", "inc",
    "moe_wna16",
    "quark", "torchao", "fbgemm_fp8", "fp_quant", "hqq", "gptq_marlin_24", "petit_nvfp4", "gguf",
)  # fmt: skip

IDLE = """
    --default-mm-loras --lora-extra-vocab-size --max-cpu-loras --max-lora-cls-labels --allowed-local-media-path
    --anthropic-disabled-thinking-effort --api-server-count --aux-output-config --chat-template
    --chat-template-content-format --code-revision --cohere-format --config-format --cp-kv-cache-interleave-size
    --cpu-distributed-timeout-seconds --data-parallel-address --data-parallel-backend --data-parallel-rank
    --data-parallel-rpc-port --data-parallel-size-local --data-parallel-start-rank --data-parallel-supervisor-port
    --dcp-comm-backend --dcp-kv-cache-interleave-size --default-chat-template-kwargs
    --disable-access-log-for-endpoints --distributed-timeout-seconds --download-dir
    --dp-supervisor-probe-failure-threshold --dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s
    --dp-sync-interval --ec-manager-config --eplb-step-interval --eplb-window-size --expert-placement-strategy
    --fault-tolerance-config --fingerprint-mode --fingerprint-value --gdn-prefill-backend --generation-config
    --grpc-port --guided-decoding-backend --h11-max-header-count --h11-max-incomplete-event-size --hf-token --host
    --io-processor-plugin --ir-op-priority --jit-monitor-mode --kda-decode-backend --kda-prefill-backend
    --kernel-config --kv-cache-metrics-sample --kv-events-config --kv-offloading-backend --kv-offloading-size
    --linear-backend --load-format --log-config-file --log-level --logging-config --logits-processor-pattern
    --logprobs-mode --long-prefill-token-threshold --mamba-backend --mamba-cache-philox-rounds --mamba-ssu-algorithm
    --master-addr --master-port --max-log-len --max-logprobs --max-long-partial-prefills --max-num-active-seqs
    --max-num-partial-prefills --max-num-queued-reqs --max-num-queued-tokens --max-num-scheduled-tokens
    --max-parallel-loading-workers --max-seq-len-to-capture --media-io-kwargs --mm-encoder-attn-backend
    --mm-encoder-attn-dtype --mm-encoder-fp8-scale-path --mm-encoder-fp8-scale-save-margin
    --mm-encoder-fp8-scale-save-path --mm-hasher-algorithm --mm-processor-cache-gb --mm-processor-cache-type
    --mm-shm-cache-max-object-size-mb --mm-tensor-ipc --model-impl --model-loader-extra-config --moe-backend
    --nnodes --node-rank --num-scheduler-steps --otlp-traces-endpoint --override-generation-config
    --override-pooler-config --per-request-spec-decode-metrics --pooler-config --port --preemption-mode
    --prefill-schedule-interval --prefix-cache-retention-interval --prefix-caching-hash-algo --prefix-match-unit
    --profiler-config --pt-load-map-location --quantization-param-path --reasoning-config --reasoning-effort-map
    --reasoning-parser --reasoning-parser-plugin --renderer-num-workers --response-role --revision --root-path
    --safetensors-load-strategy --safetensors-prefetch-block-size --safetensors-prefetch-num-threads --scheduler-cls
    --scheduler-delay-factor --scheduling-policy --seed --show-hidden-metrics-for-version --shutdown-timeout
    --sleep-mode-backend --sparse-indexer-topk-backend --sse-keep-alive-interval --ssl-ca-certs --ssl-cert-reqs
    --ssl-certfile --ssl-ciphers --ssl-keyfile --stream-interval --structured-outputs-config --swap-space
    --tokenizer --tokenizer-mode --tokenizer-pool-extra-config --tokenizer-pool-size --tokenizer-pool-type
    --tokenizer-revision --tool-call-parser --tool-parser-plugin --tool-server --tool-strict-level --uds
    --uvicorn-log-level --video-pruning-method --video-pruning-rate --watchdog-config --watermark --watermark-config
    --weight-transfer-config --worker-cls --worker-extension-cls -asc -dpa -dpb -dpl -dpn -dpp -dpr -n -r
    """
"""Flags with a value that change no memory of a device."""

IDLE_LISTS = """
    --lora-modules --allowed-headers --allowed-media-domains --allowed-methods --allowed-origins --api-key
    --collect-detailed-traces --custom-histogram-buckets --device-ids --ignore-patterns --logits-processors
    --middleware --numa-bind-cpus --numa-bind-nodes --served-model-name --sleep-preserve-parameter-names
    """
"""Flags with several values that change no memory of a device."""

IDLE_SWITCHES = """
    --aggregate-engine-logging --allow-credentials --allow-deprecated-quantization --calculate-kv-scales
    --cohere-is-reasoning-model --cudagraph-metrics --data-parallel-external-lb --data-parallel-hybrid-lb
    --data-parallel-multi-port-external-lb --dcp-q-replicate --disable-async-output-proc --disable-cascade-attn
    --disable-chunked-mm-input --disable-custom-all-reduce --disable-fastapi-docs --disable-frontend-multiprocessing
    --disable-log-requests --disable-log-stats --disable-mm-preprocessor-cache --disable-nccl-for-dp-synchronization
    --disable-uvicorn-access-log --enable-auto-tool-choice --enable-batch-sharded-sampling
    --enable-cumem-allocator --enable-ep-weight-filter --enable-fault-tolerance --enable-flash-late-interaction
    --enable-flashinfer-autotune --enable-force-include-usage --enable-layerwise-nvtx-tracing --enable-log-deltas
    --enable-log-outputs --enable-log-requests --enable-logging-iteration-details
    --enable-mamba-cache-stochastic-rounding --enable-mamba-shared-prefix-checkpoint --enable-mfu-metrics
    --enable-mm-embeds --enable-nccl-comm-suspend --enable-offline-docs --enable-per-request-metrics
    --enable-prompt-embeds --enable-prompt-tokens-details --enable-reasoning --enable-request-id-headers
    --enable-scale-out --enable-server-load-tracking --enable-shm-tensor-arena --enable-sleep-mode
    --enable-ssl-refresh --enable-tokenizer-info-endpoint --enable-trace-replay --eplb-log-balancedness
    --exclude-tools-when-tool-choice-none --expand-tools-even-if-tool-choice-none --fail-on-environ-validation
    --grpc --guided-decoding-disable-additional-properties --guided-decoding-disable-any-whitespace
    --guided-decoding-disable-fallback --headless --interleave-mm-strings --jit-monitor-verbose --kv-cache-metrics
    --kv-sharing-fast-prefill --log-error-stack --long-prefill-token-threshold-adaptive --monokernel
    --multi-step-stream-outputs --numa-bind --ray-workers-use-nsight --return-sampling-mask
    --return-tokens-as-token-ids --scheduler-reserve-full-isl --skip-tokenizer-init --sleep-mode-offload-cudagraph
    --swa-bounded-replay --tokens-only --trust-remote-code --trust-request-chat-template --trust-request-mm-kwargs
    --use-fp64-gumbel --use-tqdm-on-load --use-v2-block-manager --worker-use-ray -dpe -dph -dpm
    """

STATE_FORMATS = ("auto", "float32", "float16", "bfloat16")
"""Number formats of recurrent states."""

CPU_CONNECTORS = (
    "NixlConnector", "LMCacheConnectorV1", "LMCacheMPConnector", "OffloadingConnector", "MooncakeConnector",
    "SharedStorageConnector", "ExampleConnector", "MultiConnector", "SimpleCPUOffloadConnector",
)  # fmt: skip
"""Connectors of `--kv-transfer-config` that send the cache's own blocks, or copies in the memory of the host."""

FLAGS = (
    Flag(("--tensor-parallel-size", "-tp", "--tp"), "number", most=1024),
    Flag(("--pipeline-parallel-size", "-pp", "--pp"), "number", most=1024),
    Flag(("--data-parallel-size", "-dp", "--dp"), "number", most=1024),
    Flag(("--enable-expert-parallel", "-ep", "--ep"), "switch"),
    Flag(("--max-model-len",), "tokens", AUTO_WORDS),
    Flag(("--max-num-seqs",), "number", most=10**6),
    Flag(("--max-num-batched-tokens",), "tokens", most=10**8),
    Flag(("--gpu-memory-utilization", "--device-memory-utilization"), "share"),
    Flag(("--kv-cache-dtype",), "word", CACHE_WORDS),
    Flag(("--kv-cache-memory-bytes", "--kv-cache-memory"), "tokens", most=10**15),
    Flag(("--num-gpu-blocks-override",), "number"),
    Flag(("--dtype",), "word", DTYPE_WORDS),
    Flag(("--quantization", "-q"), "word", QUANTIZATION_WORDS),
    Flag(("--enforce-eager",), "switch"),
    Flag(("--block-size",), "number", most=4096),
    Flag(("--attention-backend",)),
    Flag(("--cpu-offload-gb",), "gib"),
    Flag(("--language-model-only",), "switch"),
    Flag(("--limit-mm-per-prompt",), "table"),
    Flag(("--compilation-config", "-cc", "-O"), "table"),
    Flag(("--attention-config", "-ac"), "table"),
    Flag(("-O2", "-O3"), "switch", is_idle=True),
    *refused_flags("a level of optimization", switches="-O0 -O1"),
    Flag(("--cudagraph-capture-sizes", "--cuda-graph-sizes"), "numbers"),
    Flag(("--max-cudagraph-capture-size",), "number", least=0),
    Flag(("--kv-transfer-config",), "table"),
    Flag(("--disable-hybrid-kv-cache-manager",), "switch"),
    Flag(("--device",), "word", ("auto", "cuda"), is_idle=True),
    Flag(("--runner",), "word", ("auto", "generate"), is_idle=True),
    Flag(("--task",), "word", ("auto", "generate"), is_idle=True),
    Flag(("--convert",), "word", ("auto", "none"), is_idle=True),
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
    Flag(("--optimization-level",), "word", ("2", "3"), is_idle=True),
    Flag(("--all2all-backend",), "word", ("naive", "pplx", "allgather_reducescatter"), is_idle=True),
    Flag(("--offload-backend",), "word", ("auto", "uva"), is_idle=True),
    Flag(("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",), "number", least=0, most=1),
    Flag(("VLLM_ALLOW_LONG_MAX_MODEL_LEN",), "number", least=0, most=1),
    Flag(("VLLM_USE_V1",), "number", least=0, most=1),
    Flag(("VLLM_USE_V2_MODEL_RUNNER",), "number", least=0, most=1),
    Flag(("VLLM_USE_FLASHINFER_SAMPLER",), "number", least=0, most=1),
    Flag(("VLLM_DISABLE_COMPILE_CACHE",), "number", least=0, most=1),
    Flag(("--distributed-executor-backend",), "word", ("mp", "ray", "uni")),
    Flag(("VLLM_USE_RAY_V2_EXECUTOR_BACKEND",), "number", least=0, most=1),
    Flag(("--speculative-config", "-sc"), "table"),
    Flag(("--spec-method",)),
    Flag(("--spec-model",)),
    Flag(("--spec-tokens",), "number", most=1000),
    *refused_flags(
        "speculative decoding of the first engine",
        """
        --speculative-model --num-speculative-tokens --num-lookahead-slots --ngram-prompt-lookup-max
        --ngram-prompt-lookup-min --speculative-draft-tensor-parallel-size --speculative-max-model-len
        --speculative-disable-by-batch-size
        """,
    ),
    Flag(("--enable-lora",), "switch"),
    Flag(("--max-loras",), "number", most=10**4),
    Flag(("--max-lora-rank",), "number", most=512),
    Flag(("--lora-dtype",), "word", ("auto", "float16", "bfloat16")),
    *refused_flags("adapters of chosen layers", "--lora-target-modules"),
    *refused_flags("adapters of prompts", "--prompt-adapters --max-prompt-adapters --max-prompt-adapter-token"),
    *refused_flags("an adapter of a quantized checkpoint", "--qlora-adapter-name-or-path"),
    *refused_flags(
        "another layout of adapters",
        switches="""
        --fully-sharded-loras --enable-prompt-adapter --enable-lora-bias --specialize-active-lora
        --enable-mixed-moe-lora-format --enable-moe-shared-loras --enable-tower-connector-lora
        """,
    ),
    Flag(("--decode-context-parallel-size", "-dcp"), "number", most=1024),
    *refused_flags("context parallelism of prompts", "--prefill-context-parallel-size -pcp"),
    *refused_flags(
        "the load balancing of experts",
        "--eplb-config --num-redundant-experts --elastic-ep-max-dp-size",
        switches="--enable-eplb --enable-elastic-ep",
    ),
    *refused_flags(
        "dual batches",
        "--ubatch-size --dbo-decode-token-threshold --dbo-prefill-token-threshold",
        switches="--enable-dbo",
    ),
    *refused_flags(
        "prefetching of offloaded weights",
        """
        --offload-group-size --offload-num-in-group --offload-prefetch-step --offload-params --cpu-offload-params
        """,
    ),
    Flag(("--omni",), refused="starts vLLM-Omni, an engine of its own, which is not modelled"),
    *refused_flags("a size of states' blocks", "--mamba-block-size --replayssm-buffer-len"),
    *refused_flags("a cache of several number formats", "--kv-cache-dtype-skip-layers"),
    *refused_flags(
        "encoders' memory on the device", "--mm-ipc-gpu-memory-gb --mm-processor-device --ec-transfer-config"
    ),
    *refused_flags(
        "another attention",
        "--override-attention-dtype --diffusion-config --engram-config",
        switches="--use-replayssm --enable-return-routed-experts --enable-hc-sp",
    ),
    *refused_flags("an online scheme", "--quantization-config"),
    *refused_flags("a plugin's configuration", "--additional-config --override-neuron-config --model-class-overrides"),
    *refused_flags(
        "a server without the decoder", switches="--mm-encoder-only --enable-multimodal-encoder-data-parallel"
    ),
    Flag(("--disable-sliding-window",), "switch"),
    *(
        Flag((name,), refused="changes the model; expected --set PATH=VALUE of llmcalc")
        for name in ("--hf-overrides", "--rope-scaling", "--rope-theta", "--hf-config-path")
    ),
    *idle_flags(IDLE),
    *idle_flags(IDLE_LISTS, "list"),
    *idle_flags(IDLE_SWITCHES, "switch"),
)


def flags() -> tuple[Flag, ...]:
    """Returns all command-line flags of vLLM."""
    return FLAGS
