"""Arguments of Megatron-LM that do not change the memory of a training step.

They are those of megatron/training/arguments.py at commit d98e8a64 (2026-08-22) that say where data, checkpoints and
logs are, how rates change, how ranks meet, what is profiled or checked, and how an operation that is refused by its own
argument runs. An argument that is in neither this list nor `MegatronSettings` may change memory.
"""

from __future__ import annotations

from ...sources.huggingface.family import field_names

IGNORED_ARGUMENTS = field_names("""
    activation-offload-fraction adam-beta1 adam-beta2 adam-eps adlr-autoresume adlr-autoresume-interval
    allow-ambiguous-pad-tokens app-tag-run-name app-tag-run-version apply-layernorm-1p apply-wd-to-qk-layernorm
    async-ckpt-cpu-priority async-ckpt-io-priority async-ckpt-use-cpu-shm async-save async-strategy
    auto-detect-ckpt-format batch-invariant-backend bert-load block-data-path cache-mla-latents calc-ft-timeouts
    calculate-per-token-loss chat-template check-for-large-grads check-for-spiky-loss
    check-weight-hash-across-dp-replicas-interval ckpt-assume-constant-structure ckpt-drop-redundant-extra-state
    ckpt-format ckpt-fully-parallel-load ckpt-fully-parallel-load-exchange-algo
    ckpt-fully-parallel-load-per-rank-objects ckpt-fully-parallel-load-process-group ckpt-fully-parallel-save
    ckpt-fully-parallel-save-process-group ckpt-pg-tensors-cache-create ckpt-pg-tensors-cache-path ckpt-step
    classes-fraction clip-grad config-logger-dir cpu-offloading-retain-pinned-cpu-buffers create-all-gather-group
    cuda-graph-warmup-steps data-args-path data-cache-path
    data-parallel-random-init data-path data-per-class-fraction dataloader-defer-npy-index-mmap
    dataloader-fast-cache-load dataloader-type ddp-average-in-collective decode-only-cuda-graphs decoupled-lr
    decoupled-min-lr delay-offload-until-cuda-graph delta-offload-bytes-across-pp-ranks disable-align-grad-reduce
    disable-bf16-reduced-precision-matmul disable-ckpt-load-validate-sharding-integrity
    disable-flight-recorder-dump-on-timeout disable-flight-recorder-extra-dump-on-exec
    disable-flight-recorder-include-only-active disable-gloo-process-groups disable-log-loss-scale-to-tensorboard
    disable-manual-gc-eval disable-msc disable-save-tokenizer-assets disable-straggler-on-startup
    disable-strict-fsdp-dtensor-load disable-symmetric-registration
    disable-tokenizer-sentencepiece-ignore-extra-whitespaces disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad
    disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs disable-tp-comm-split-ag disable-tp-comm-split-rs
    disable-use-tokenizer-model-from-checkpoint-args dist-ckpt-format dist-ckpt-optim-fully-reshardable
    dist-ckpt-save-pre-mcore-014 dist-ckpt-strictness dist-ckpt-workers distrib-optim-fully-reshardable-mem-efficient
    distributed-backend distributed-timeout-minutes distributed-timeout-seconds-after-init dsa-indexer-k-norm-epsilon
    dsa-indexer-rope-interleaved dsa-indexer-skip-topk-offset dump-param-to-param-group-map embedding-init-method-std
    embedding-path empty-unused-memory-level enable-experimental enable-ft-package enable-full-sharding-in-hsdp
    enable-msc end-weight-decay eod-mask-loss error-injection-rate error-injection-type eval-global-batch-size
    eval-interval eval-iters evidence-data-path exit-duration-in-mins exit-interval exit-on-missing-checkpoint
    exit-signal exit-signal-handler exit-signal-handler-for-dataloader exit-signal-handler-for-training
    fault-injector-delay-start-iteration fault-injector-fault-delay fault-injector-fault-probabilities
    fault-injector-fault-types fault-injector-mtti-seconds fault-injector-num-ranks fault-injector-offset-seconds
    fault-injector-ranks fault-injector-seed fim-data fim-eod-token fim-fragment-rate fim-middle-token fim-no-prefix
    fim-pad-token fim-prefix-token fim-rate fim-split-sample fim-spm-rate fim-suffix-token
    fine-grained-offloading-max-inflight-offloads finetune flash-attention-version flash-decode
    flight-recorder-dump-path flight-recorder-include-stack-trace flight-recorder-trace-buffer-size
    fp4-quantizer-factory fp4-recipe fp8-amax-compute-algo fp8-interval fp8-margin fp8-quantizer-factory
    fsdp-db-use-persist-buf-on-alloc-fail fsdp-manual-registration ft-num-warmup-iters full-validation
    gpu-sniff-test-interval hierarchical-context-parallel-sizes high-priority-a2a-comm-stream
    high-priority-stream-groups hysteresis inference-rng-tracker init-method-std init-method-xavier-uniform
    initial-loss-scale inprocess-active-world-size inprocess-barrier-timeout inprocess-completion-timeout
    inprocess-empty-cuda-cache inprocess-granularity inprocess-hard-timeout inprocess-heartbeat-interval
    inprocess-heartbeat-timeout inprocess-last-call-wait inprocess-max-iterations inprocess-monitor-process-interval
    inprocess-monitor-thread-interval inprocess-progress-watchdog-interval inprocess-restart inprocess-soft-timeout
    inprocess-termination-grace-time iter-per-epoch iterations-to-skip keep-fp8-transpose-cache
    kitchen-attention-backend lazy-mpu-init lion-beta1 lion-beta2 load load-main-params-from-ckpt local-rank
    log-device-memory-used log-energy log-interval log-memory-interval log-memory-to-tensorboard log-num-zeros-in-grad
    log-params-norm log-progress log-straggler log-throughput log-timers-to-tensorboard
    log-validation-ppl-to-tensorboard log-world-size-to-tensorboard logging-level logits-load-decode-threads
    logits-load-ignore-errors logits-load-kd-loss-alpha logits-load-msc-prefetch-depth logits-load-prefetch-factor
    logits-save-dtype logits-save-top-k logits-save-top-p logits-save-top-p-min-k loss-scale loss-scale-window lr
    lr-decay-iters lr-decay-samples lr-decay-style lr-warmup-fraction lr-warmup-init lr-warmup-iters lr-warmup-samples
    lr-wsd-decay-iters lr-wsd-decay-samples lr-wsd-decay-style manual-gc manual-gc-interval mask-prob
    max-seqlen-per-dp-cp-rank memory-snapshot-path merge-file mhc-init-gating-factor mhc-num-residual-streams
    mhc-recompute-layer-num mhc-sinkhorn-iterations mid-level-dataset-surplus min-loss-scale min-lr
    min-offloaded-tensor-size mlp-chunks-for-prefill mock-data moe-deepep-num-sms moe-flex-dispatcher-num-sms
    moe-hybridep-num-blocks-permute moe-hybridep-num-blocks-unpermute moe-hybridep-num-sms
    moe-hybridep-num-sms-preprocessing moe-hybridep-pad-uneven-dispatch-inputs moe-mlp-glu-interleave-size
    moe-pad-experts-for-cuda-graph-inference moe-paged-stash-buffer-size-factor-cpu
    moe-paged-stash-buffer-size-factor-cuda moe-paged-stash-page-size moe-per-layer-logging moe-router-bias-update-rate
    moe-router-force-load-balancing moe-router-pre-softmax moe-router-quantile-balancing-ema
    moe-router-topk-scaling-factor moe-routing-trace-capture-hidden-states moe-routing-trace-capture-logits
    moe-routing-trace-dump-weights moe-routing-trace-max-training-iters moe-shared-expert-glu-interleave-size
    moe-token-drop-policy moe-upcycling-granularity mrope-section mscale mscale-all-dim mtp-loss-scaling-factor
    multiple-validation-sets muon-coefficient-type muon-extra-scale-factor muon-fp32-matmul-prec muon-momentum
    muon-nesterov muon-no-split-qkv muon-num-ns-steps muon-scale-mode mup-attn-scale-power mup-base-head-dim
    mup-width-mult nccl-all-reduce-for-prefill nccl-communicator-config-path no-align-grad-reduce no-align-param-gather
    no-barrier-with-level-1-timing no-check-for-nan-in-loss-and-grad no-ckpt-fully-parallel-save
    no-ckpt-load-validate-sharding-integrity no-data-sharding no-flight-recorder-dump-on-timeout
    no-flight-recorder-extra-dump-on-exec no-flight-recorder-include-only-active no-gradient-reduce-div-fusion
    no-initialization no-load-optim no-load-rng no-log-loss-scale-to-tensorboard no-manual-gc-eval no-mmap-bin-files
    no-one-logger no-persist-layer-norm no-pin-cpu-grads no-pin-cpu-params no-save-optim no-save-rng
    no-save-tokenizer-assets no-strict-fsdp-dtensor-load no-tokenizer-sentencepiece-ignore-extra-whitespaces
    no-tp-comm-bulk-dgrad no-tp-comm-bulk-wgrad no-tp-comm-overlap-ag no-tp-comm-overlap-rs no-tp-comm-split-ag
    no-tp-comm-split-rs no-use-tokenizer-model-from-checkpoint-args no-weight-decay-cond-type
    no-yarn-correction-range-round-to-int non-persistent-ckpt-type non-persistent-global-ckpt-dir
    non-persistent-local-ckpt-algo non-persistent-local-ckpt-dir non-persistent-save-interval null-tokenizer-eod-id
    null-tokenizer-pad-id num-classes num-dataset-builder-threads num-workers nvtx-ranges object-storage-cache-path
    offload-modules one-logger-async one-logger-project one-logger-run-name onnx-safe optimizer-offload-fraction
    otel-enabled otel-service-name otel-span-groups outer-dp-sharding-strategy overlap-cpu-optimizer-d2h-h2d
    override-ckpt-iteration override-opt-param-scheduler override-opt_param-scheduler per-dataset-sequences-path
    per-split-data-args-path persistent-save-interval phase-transition-iterations pipeline-model-parallel-comm-backend
    pretrained-checkpoint profile profile-ranks profile-step-end profile-step-start pytorch-profiler-collect-callstack
    pytorch-profiler-collect-chakra pytorch-profiler-collect-shapes qk-clip-alpha qk-clip-threshold query-in-block-prob
    record-memory-history record-shapes replication replication-factor replication-jump rerun-mode reset-attention-mask
    reset-position-ids result-rejected-tracker-filename reuse-grad-buf-for-mxfp8-param-ag rl-use-sequence-packing
    rope-scaling-factor rotary-interleaved rotary-scaling-factor rotary-seq-len-interpolation-factor
    run-workload-inspector-server sample-rate save save-interval save-params-interval save-retain-interval
    save-tokens-per-expert-interval seed sft-tokenizer-prompt-format sharp-enabled-group short-seq-prob split
    start-eval-at-iter start-weight-decay straggler-ctrlr-port straggler-minmax-count symmetric-ar-type te-rng-tracker
    tensorboard-dir tensorboard-log-interval tensorboard-queue-size test-data-path test-mode
    tiktoken-num-special-tokens tiktoken-pattern timing-log-level timing-log-option titles-data-path
    tokenizer-hf-no-include-special-tokens tokenizer-hf-no-use-fast tokenizer-metadata tokenizer-sentencepiece-legacy
    tokenizer-special-tokens tp-comm-bootstrap-backend tp-comm-overlap-rs-dgrad train-data-path train-iters
    train-samples train-sync-interval trust-remote-code use-checkpoint-opt-param-scheduler
    use-checkpoint-opt_param-scheduler use-cpu-initialization use-dist-ckpt use-gigatoken use-mcore-models
    use-one-sent-docs use-persistent-ckpt-worker use-pytorch-profiler use-ring-exchange-p2p use-rope-scaling use-sharp
    use-torch-optimizer-for-cpu-offload use-tp-pp-dp-mapping valid-data-path validation-set-names verify-integrity
    vocab-file wandb-entity wandb-exp-name wandb-project wandb-save-dir weight-decay weight-decay-incr-style
    yarn-beta-fast yarn-beta-slow yarn-correction-range-round-to-int yarn-original-max-position-embeddings
    """)
"""Names, without leading hyphens, of arguments that change no memory."""

OLD_IGNORED_ARGUMENTS = field_names("""
    data-impl delay-grad-reduce enable-one-logger legacy-tokenizer log-batch-size-to-tensorboard
    log-learning-rate-to-tensorboard log-loss-scale-to-tensorboard no-async-tensor-model-parallel-allreduce
    no-contiguous-buffers-in-local-ddp no-delay-grad-reduce no-log-learnig-rate-to-tensorboard
    no-query-key-layer-scaling no-scatter-gather-tensors-in-pipeline s3-cache-path
    """)
"""Names of arguments that change no memory and that only older versions have."""
