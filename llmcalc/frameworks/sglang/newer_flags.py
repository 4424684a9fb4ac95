"""Flags of `sglang.launch_server` since 0.5.11 (arg_groups/fields in 0.5.23)."""

from __future__ import annotations

from ..engines.flags import Flag, idle_flags, refused_flags

IDLE = """
    --asr-max-buffer-seconds --asr-max-concurrent-sessions --batch-notify-size --bf16-gemm-backend
    --boundary-reduction --constrained-json-max-whitespace-cnt --cuda-graph-max-seq-len-prefill
    --cuda-graph-prefill-max-context --decoupled-spec-bind-endpoint --decoupled-spec-rank
    --deepep-dispatcher-output-dtype --deepep-v2-mode --default-chat-template-kwargs --detokenizer-worker-num
    --disaggregation-decode-allocation-policy --disaggregation-decode-host-receive-threshold
    --disaggregation-decode-retraction-backup --dsa-paged-mqa-logits-backend --dsa-topk-backend --dsa-triton-union
    --dsv4-prefill-backend --encoder-bootstrap-port --expert-balancedness-report-mode --flashinfer-a2a-dispatch-type
    --flashinfer-allreduce-fusion-backend --flexkv-config-file --forward-pass-metrics-ipc-name
    --forward-pass-metrics-worker-id --fp4-gemm-runner-backend --fp8-gemm-runner-backend --fuseep-mode
    --gated-launch-port --grpc-port --grpc-response-timeout-secs --hicache-host-memory-fraction
    --hicache-host-memory-mode --hicache-storage-prefetch-retry-max-attempts
    --hicache-storage-prefetch-retry-poll-interval --http2-initial-connection-window-size
    --http2-max-concurrent-streams --image-processor-backend --kv-canary-sweep-interval --linear-attn-verify-backend
    --lmcache-config-file --load-publish-endpoint --load-snapshot-publish-interval --lora-drain-wait-threshold
    --mamba-cache-philox-rounds --mamba-max-states-per-path --media-url-max-file-size-mb --min-free-slots-delay
    --mm-global-cache-backend --mm-io-worker-num --mm-processor-worker-num --model-config-parser
    --msprobe-dump-config --optimistic-prefill-attempts --otlp-service-name --prefill-decode-interval
    --prefill-decode-interval-min-bs --prefill-delayer-max-delay-ms --prefill-delayer-queue-min-ratio
    --prefill-kv-cache-dequant-dtype --radix-cache-backend --radix-eviction-policy-config --retraction-policy
    --return-hidden-states-mode --sampling-mask-max-tokens --sidecar --smg-http-sidecar-port --spec-trace-dir
    --speculative-adaptive-config --speculative-domino-candidate-pool-size --speculative-dsa-topk-backend
    --speculative-dspark-confidence-sts-path --speculative-dspark-sps-table-path
    --speculative-ngram-external-corpus-max-tokens --speculative-ngram-external-corpus-path
    --speculative-ngram-external-sam-budget --startup-weight-load-mode --tokenizer-backend --trace-modules
    --unified-cache-external-linker-backend --unified-cache-external-linker-config --watermark-config
    --weight-cache-socket --weight-cache-timeout --weight-loader-prefetch-num-threads
    """
"""Flags with a value that change no memory of the cache."""

IDLE_LISTS = """
    --allowed-media-domains --decoupled-spec-connect-endpoints --encoder-register-urls
    --flashinfer-autotune-skip-ops --return-aux-hidden-state-layer-ids --sidecar-args
    """
"""Flags with several values that change no memory of the cache."""

IDLE_SWITCHES = """
    --debug-cuda-graph --disable-aiter-allreduce-fusion-in-decode --disable-aiter-allreduce-fusion-in-prefill
    --disable-attn-tp-gather --disaggregation-decode-enable-radix-cache --disaggregation-enable-kv-checksum
    --dllm-fdfo --enable-amd-monokernel --enable-dp-attention-local-control-broadcast --enable-dsa-fused-indexer
    --enable-flexkv --enable-forward-pass-metrics --enable-fp32-lm-head --enable-http-worker-reuseport
    --enable-http2 --enable-layernorm-sp --enable-lean-attention --enable-linker-mla-dedup
    --enable-mamba-cache-stochastic-rounding --enable-megamoe-for-layernorm-sp --enable-mis
    --enable-nvidia-megakernel --enable-page-major-kv-layout --enable-quant-communications --enable-response-store
    --enable-return-aux-hidden-states --enable-return-indexer-topk --enable-scattered-sconv
    --enable-session-radix-cache --enable-strict-thinking --enable-tf32-matmul --enable-waterfill --enable-watermark
    --enforce-shared-experts-fusion --lora-strict-loading --mlx-enable-sampling --return-input-ids
    --return-output-ids --smg-grpc-mode --speculative-dspark-align-verify-tokens-to-graph-tier
    --speculative-use-block-verification --speculative-use-rejection-sampling --strip-thinking-cache
    --trust-mm-content-hashes --trust-request-chat-template --weight-loader-drop-cache-after-load
    --weight-loader-prefetch-checkpoints
    """
"""Flags without a value that change no memory of the cache."""

REFUSED = """
    --dcp-size --dcp-comm-backend --dwdp-size --paged-experts-num-resident --ple-offload-backend --ple-offload-dir
    --kv-canary --linear-replayssm-cache-len --qsa-indexer-dtype --speculative-draft-kv-cache-dtype
    --speculative-draft-window-size --speculative-draft-sink-size --uno-lora-path --shared-experts-tp-size
    --dsv4-attn-backend --swa-prefix-tails --weight-cache-mode --cp-strategy --attn-dp-size --c128-page-size
    --max-ep-size --elastic-ep-initial-size --ep-join-mode --ep-join-rank-offset --elastic-ep-scale-timeout
    --decoupled-spec-role --disaggregation-decode-extra-slots --speculative-dflash-block-size
    --speculative-dspark-block-size
    """
"""Flags with a value that change memory and are not modelled."""

REFUSED_SWITCHES = """
    --dcp-replicate-q-proj --enable-kv-cache-sharding --enable-dsa-cache-layer-split --enable-unified-memory
    --enable-paged-experts --ple-offload-embedding --prefill-only-disable-kv-cache --enable-int8-mamba-checkpoint
    --enable-linear-replayssm --enable-linear-replayssm-spec --lora-use-virtual-experts
    --enable-shared-experts-attn-tp --enable-dense-mlp-attn-tp --enable-cp-decode-attn-tp
    --enable-deepseek-v4-fp4-indexer --enable-decoder-swa-bounded-replay --enable-encoder-swa-bounded-replay
    --enable-prefill-cp --enable-tp-lm-head-all-to-all --enable-w4a4-mxfp4-megamoe
    --speculative-enable-w4a4-mxfp4-megamoe --enable-unified-cache-external-linker --enable-pd-role-switch
    --speculative-adaptive
    """
"""Flags without a value that change memory and are not modelled."""

NEWER_FLAGS = (
    Flag(("--language-model-only",), "switch"),
    Flag(("--mm-feature-transport",), "word", ("cpu", "cuda_ipc", "cuda_vmm")),
    *refused_flags("what it changes in memory", REFUSED, switches=REFUSED_SWITCHES),
    *idle_flags(IDLE),
    *idle_flags(IDLE_LISTS, "list"),
    *idle_flags(IDLE_SWITCHES, "switch"),
)
