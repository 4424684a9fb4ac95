"""The flags of `sglang.launch_server`: flags that change memory, and other flags.

They are those of python/sglang/srt/server_args.py, `ServerArgs.add_cli_args`, in SGLang 0.4.9, 0.5.5 and 0.5.10;
`newer_flags.py` has those of later versions.
"""

from __future__ import annotations

from ..engines.flags import Flag, idle_flags, refused_flags
from .newer_flags import NEWER_FLAGS

IDLE = """
    --admin-api-key --api-key --base-gpu-id --chat-template --completion-template
    --constrained-json-whitespace-pattern --crash-dump-folder --custom-sigquit-handler --debug-tensor-dump-inject
    --debug-tensor-dump-input-file --debug-tensor-dump-output-folder --decode-attention-backend
    --decode-log-interval --decrypted-config-file --decrypted-draft-config-file --deepep-config --deepep-mode
    --default-priority-value --disaggregation-bootstrap-port --disaggregation-decode-dp
    --disaggregation-decode-polling-interval --disaggregation-decode-tp --disaggregation-ib-device
    --disaggregation-prefill-pp --disaggregation-transfer-backend --dist-init-addr --dist-timeout
    --dllm-algorithm-config --download-dir --dynamic-batch-tokenizer-batch-size
    --dynamic-batch-tokenizer-batch-timeout --elastic-ep-backend --encoder-transfer-backend
    --engine-info-bootstrap-port --ep-dispatch-algorithm --eplb-algorithm
    --eplb-min-rebalancing-utilization-threshold --eplb-rebalance-layers-per-chunk --eplb-rebalance-num-iterations
    --expert-distribution-recorder-buffer-size --expert-distribution-recorder-mode --export-metrics-to-file-dir
    --extra-metric-labels --fastapi-root-path --file-storage-path --flashinfer-mxfp4-moe-precision --forward-hooks
    --fp4-gemm-backend --fp8-gemm-backend --gc-warning-threshold-secs --gpu-id-step --grammar-backend
    --hf-chat-template-name --hicache-io-backend --hicache-mem-layout --hicache-ratio --hicache-size
    --hicache-storage-backend --hicache-storage-backend-extra-config --hicache-storage-prefetch-policy
    --hicache-write-policy --host --init-expert-location --kv-events-config --limit-mm-data-per-request
    --linear-attn-backend --linear-attn-decode-backend --linear-attn-prefill-backend --load-balance-method
    --load-format --load-watch-interval --log-level --log-level-http --log-requests-format --log-requests-level
    --lora-backend --lora-eviction-policy --mamba-backend --mamba-track-interval --max-lora-chunk-size
    --max-micro-batch-size --max-prefill-tokens --max-queued-requests --mm-attention-backend
    --mm-max-concurrent-calls --mm-per-request-timeout --mm-process-config --model-checksum --model-impl
    --model-loader-extra-config --modelexpress-config --modelopt-checkpoint-restore-path
    --modelopt-checkpoint-save-path --modelopt-export-path --moe-runner-backend --mooncake-ib-device
    --multi-item-scoring-delimiter --nccl-init-addr --nccl-port --nnodes --node-rank --nsa-prefill-cp-mode
    --num-continuous-decode-steps --otlp-traces-endpoint --pdlb-url --pdmux-config-path
    --piecewise-cuda-graph-compiler --port --pp-async-batch-depth --pp-max-micro-batch-size
    --preferred-sampling-params --prefill-attention-backend --prefill-cp-mode --prefill-delayer-max-delay-passes
    --prefill-delayer-token-usage-low-watermark --prefill-max-requests --priority-scheduling-preemption-threshold
    --quantization-param-path --radix-eviction-policy --random-seed --reasoning-parser
    --remote-instance-weight-loader-backend --remote-instance-weight-loader-seed-instance-ip
    --remote-instance-weight-loader-seed-instance-service-port
    --remote-instance-weight-loader-send-weights-group-ports --revision --rl-on-policy-target --rl-quant-profile
    --sampling-backend --sampling-defaults --schedule-conservativeness --schedule-policy --scheduler-recv-interval
    --served-model-name --sm-group-num --soft-watchdog-timeout --ssl-ca-certs --ssl-certfile --ssl-keyfile
    --ssl-keyfile-password --stream-interval --tbo-token-distribution-threshold
    --tokenizer-metrics-custom-labels-header --tokenizer-mode --tokenizer-path --tokenizer-worker-num
    --tool-call-parser --tool-server --torch-compile-max-bs --triton-attention-num-kv-splits
    --triton-attention-split-tile-size --warmups --watchdog-timeout --weight-version
    """
"""Flags with a value that change no memory of the cache."""

IDLE_LISTS = """
    --bucket-e2e-request-latency --bucket-inter-token-latency --bucket-time-to-first-token --custom-weight-loader
    --debug-tensor-dump-layers --encoder-urls --gc-threshold --generation-tokens-buckets --log-requests-target
    --numa-node --prefill-delayer-forward-passes-buckets --prefill-delayer-wait-seconds-buckets
    --prompt-tokens-buckets --tokenizer-metrics-allowed-custom-labels --uvicorn-access-log-exclude-prefixes
    """
"""Flags with several values that change no memory of the cache."""

IDLE_SWITCHES = """
    --abort-on-priority-when-disabled --allow-auto-truncate --checkpoint-engine-wait-weights-before-ready
    --collect-tokens-histogram --constrained-json-disable-any-whitespace --debug-tensor-dump-prefill-only
    --delete-ckpt-after-loading --disable-chunked-prefix-cache --disable-cuda-graph-padding
    --disable-custom-all-reduce --disable-fast-image-processor --disable-flashinfer-autotune
    --disable-flashinfer-cutlass-moe-fp4-allgather --disable-outlines-disk-cache --disable-priority-preemption
    --disable-shared-experts-fusion --disable-tokenizer-batch-decode --disaggregation-decode-enable-offload-kvcache
    --enable-adaptive-dispatch-to-encoder --enable-aiter-allreduce-fusion --enable-attn-tp-input-scattered
    --enable-broadcast-mm-inputs-process --enable-cache-report --enable-cudagraph-gc --enable-custom-logit-processor
    --enable-dynamic-batch-tokenizer --enable-dynamic-chunking --enable-expert-distribution-metrics
    --enable-flashinfer-allreduce-fusion --enable-flashinfer-cutlass-moe --enable-flashinfer-trtllm-moe
    --enable-fused-moe-sum-all-reduce --enable-fused-qk-norm-rope --enable-layerwise-nvtx-marker --enable-lmcache
    --enable-lora-overlap-loading --enable-metrics --enable-metrics-for-all-schedulers --enable-mfu-metrics
    --enable-mixed-chunk --enable-mm-global-cache --enable-mscclpp --enable-multimodal --enable-nan-detection
    --enable-nccl-nvls --enable-p2p-check --enable-precise-embedding-interpolation --enable-prefill-delayer
    --enable-prefix-mm-cache --enable-priority-scheduling --enable-profile-cuda-graph
    --enable-request-time-stats-logging --enable-return-hidden-states --enable-return-routed-experts
    --enable-single-batch-overlap --enable-ssl-refresh --enable-streaming-session --enable-tokenizer-batch-encode
    --enable-torch-compile-debug-mode --enable-torch-symm-mem --enable-trace --enable-triton-kernel-moe
    --enable-weights-cpu-backup --enforce-disable-flashinfer-allreduce-fusion --enforce-piecewise-cuda-graph
    --experts-shared-outer-loras --export-metrics-to-file --flashinfer-mla-disable-ragged --grpc-mode
    --incremental-streaming-output --keep-mm-feature-on-device --log-requests --pre-warm-nccl
    --remote-instance-weight-loader-start-seed-via-transfer-engine --schedule-low-priority-values-first
    --show-time-cost --skip-server-warmup --skip-tokenizer-init --sleep-on-idle --stream-output
    --stream-response-default-include-usage --triton-attention-reduce-in-fp32 --trust-remote-code --use-ray
    --weight-loader-disable-mmap --prefill-round-robin-balance --enable-flashinfer-moe --enable-flashinfer-mxfp4-moe
    --enable-flashinfer-cutedsl-moe --disable-hicache-numa-detect --disable-overlap-cg-plan
    --disaggregation-decode-enable-fake-auto
    """

SCHEMES = {"fp8": "fp8-dynamic", "awq": "awq-int4-g128", "gptq": "gptq-int4-g128", "mxfp4": "mxfp4"}
"""Value of `--quantization` → the scheme of the weights of a checkpoint that states none."""

QUANTIZATION_WORDS = (
    *SCHEMES, "awq_marlin", "gptq_marlin", "marlin", "bitsandbytes", "gguf", "modelopt", "modelopt_fp8", "modelopt_fp4",
    "petit_nvfp4", "w8a8_int8", "w8a8_fp8", "moe_wna16", "qoq", "w4afp8", "compressed-tensors", "auto-round", "quark",
    "nvfp4", "mxfp8", "none",
)  # fmt: skip

GRAPH_BACKENDS = ("full", "breakable", "tc_piecewise", "disabled")
"""How graphs are captured."""

FLAGS = (
    Flag(("--tp-size", "--tp", "--tensor-parallel-size"), "number", most=1024),
    Flag(("--pp-size", "--pp", "--pipeline-parallel-size"), "number", most=1024),
    Flag(("--dp-size", "--dp", "--data-parallel-size"), "number", most=1024),
    Flag(("--ep-size", "--ep", "--expert-parallel-size"), "number", most=1024),
    Flag(("--enable-dp-attention",), "switch"),
    Flag(("--enable-dp-lm-head",), "switch"),
    Flag(("--mem-fraction-static",), "share"),
    Flag(("--context-length",), "tokens"),
    Flag(("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",), "word", ("0", "1", "false", "true")),
    Flag(("--max-total-tokens",), "tokens"),
    Flag(("--max-running-requests",), "number"),
    Flag(("--chunked-prefill-size",), "tokens", ("-1",)),
    Flag(("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"), "number"),
    Flag(("--cuda-graph-bs", "--cuda-graph-bs-decode"), "numbers"),
    Flag(("--disable-cuda-graph", "--disable-decode-cuda-graph"), "switch"),
    Flag(("--cuda-graph-backend-decode",), "word", GRAPH_BACKENDS),
    Flag(("--cuda-graph-backend-prefill",), "word", GRAPH_BACKENDS),
    Flag(("--cuda-graph-config",), refused="is not read; expected --cuda-graph-max-bs-decode and its like"),
    Flag(("--kv-cache-dtype",), "word", ("auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2")),
    Flag(("--dtype",), "word", ("auto", "bfloat16", "half", "float16", "float", "float32")),
    Flag(("--page-size",), "number", most=4096),
    Flag(("--swa-full-tokens-ratio",), "share"),
    Flag(("--mamba-full-memory-ratio",), "ratio"),
    Flag(("--max-mamba-cache-size",), "number"),
    Flag(("--mamba-ssm-dtype",), "word", ("float32", "bfloat16", "float16")),
    Flag(
        ("--mamba-scheduler-strategy", "--mamba-radix-cache-strategy"),
        "word",
        ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"),
    ),
    Flag(("--disable-radix-cache",), "switch"),
    Flag(("--disable-overlap-schedule",), "switch"),
    Flag(("--attention-backend",)),
    Flag(("--nsa-prefill-backend", "--dsa-prefill-backend")),
    Flag(("--nsa-decode-backend", "--dsa-decode-backend")),
    Flag(("--disable-hybrid-swa-memory",), "switch"),
    Flag(("--quantization",), "word", QUANTIZATION_WORDS),
    Flag(("--device",), "word", ("auto", "cuda"), is_idle=True),
    Flag(("--disaggregation-mode",), "word", ("null", "prefill", "decode")),
    Flag(("--moe-a2a-backend",), "word", ("none",), is_idle=True),
    Flag(
        ("--speculative-algorithm", "--speculative-algo"), "word", ("eagle", "eagle3", "nextn", "standalone", "ngram")
    ),
    Flag(("--speculative-draft-model-path", "--speculative-draft-model", "--speculative-draft")),
    Flag(("--speculative-num-steps",), "number", most=1000),
    Flag(("--speculative-num-draft-tokens",), "number", most=1000),
    *idle_flags(
        """
        --speculative-eagle-topk --speculative-attention-mode --speculative-draft-attention-backend
        --speculative-draft-load-format --speculative-draft-model-quantization --speculative-ngram-capacity
        --speculative-ngram-branch-length --speculative-ngram-match-type --speculative-ngram-max-bfs-breadth
        --speculative-ngram-max-match-window-size --speculative-ngram-max-trie-depth
        --speculative-ngram-min-bfs-breadth --speculative-ngram-min-match-window-size
        --speculative-draft-model-revision --speculative-token-map --speculative-moe-runner-backend
        --speculative-moe-a2a-backend --speculative-accept-threshold-single --speculative-accept-threshold-acc
        """
    ),
    Flag(("--enable-lora",), "switch"),
    Flag(("--lora-paths",), "list"),
    Flag(("--lora-target-modules",), "list"),
    Flag(("--max-lora-rank",), "number", most=10**4),
    Flag(("--max-loras-per-batch",), "number", most=10**4),
    Flag(("--max-loaded-loras",), "number", is_idle=True),
    Flag(("--kt-weight-path", "--kt-amx-weight-path")),
    Flag(("--kt-num-gpu-experts",), "number", least=0, most=10**6),
    Flag(("--kt-gpu-experts-ratio",), "share"),
    Flag(("--kt-gpu-prefill-token-threshold",), "tokens", least=0),
    *idle_flags(
        """
        --kt-method --kt-amx-method --kt-cpuinfer --kt-threadpool-count --kt-max-deferred-experts-per-token
        --kt-expert-placement-strategy
        """
    ),
    Flag(("--kt-numa-nodes",), "list", is_idle=True),
    Flag(("--kt-enable-dynamic-expert-update",), "switch", is_idle=True),
    *refused_flags("adapters of experts", "--kt-expert-lora-path"),
    *refused_flags(
        "offloading",
        """
        --cpu-offload-gb --offload-group-size --offload-num-in-group --offload-prefetch-step --offload-mode
        """,
    ),
    *refused_flags(
        "the load balancing of experts",
        "--ep-num-redundant-experts",
        switches="--enable-eplb --enable-elastic-expert-backup",
    ),
    *refused_flags("DeepEP's buffers", switches="--enable-ep-moe --enable-deepep-moe"),
    *refused_flags("dual batches", switches="--enable-two-batch-overlap --enable-pdmux"),
    *refused_flags(
        "context parallelism",
        "--attention-context-parallel-size --attn-cp-size",
        switches="--enable-nsa-prefill-context-parallel --enable-prefill-context-parallel",
    ),
    Flag(("--moe-dense-tp-size",), "number", most=1),
    *refused_flags("another division of the layers", "--moe-data-parallel-size --moe-dp-size"),
    *refused_flags(
        "sparse attention",
        """
        --ds-channel-config-path --ds-heavy-channel-num --ds-heavy-channel-type --ds-heavy-token-num
        --ds-sparse-decode-threshold --hierarchical-sparse-attention-extra-config --hisparse-config
        """,
        switches="--enable-double-sparsity --enable-hisparse",
    ),
    *refused_flags("an online scheme", "--torchao-config --modelopt-quant", switches="--quantize-and-serve"),
    *refused_flags("a size of states", "--int8-mamba-ckpt-size"),
    *refused_flags("a pool of that ratio", "--hybrid-kvcache-ratio --num-reserved-decode-tokens"),
    *refused_flags(
        "such a model",
        "--dllm-algorithm",
        switches="""
        --is-embedding --encoder-only --language-only --enable-multi-layer-eagle
        --enable-draft-weights-cpu-backup --mm-enable-dp-encoder
        """,
    ),
    Flag(("--piecewise-cuda-graph-max-tokens", "--cuda-graph-max-bs-prefill"), "number"),
    Flag(("--disable-piecewise-cuda-graph", "--disable-prefill-cuda-graph"), "switch"),
    Flag(("--piecewise-cuda-graph-tokens", "--cuda-graph-bs-prefill"), "numbers"),
    *idle_flags("--enable-piecewise-cuda-graph --enable-memory-saver", "switch"),
    Flag(("--enable-torch-compile",), "switch"),
    Flag(("--enable-hierarchical-cache",), "switch"),
    Flag(("--enable-deterministic-inference",), "switch"),
    Flag(("--enable-symm-mem",), "switch"),
    Flag(("--json-model-override-args",), refused="changes the model; expected --set PATH=VALUE of llmcalc"),
    *idle_flags(IDLE),
    *idle_flags(IDLE_LISTS, "list"),
    *idle_flags(IDLE_SWITCHES, "switch"),
    *NEWER_FLAGS,
)


def flags() -> tuple[Flag, ...]:
    """Returns all command-line flags of SGLang."""
    return FLAGS
