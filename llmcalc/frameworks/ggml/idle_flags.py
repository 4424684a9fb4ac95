"""The flags of llama-server and ik_llama.cpp without an effect on memory.

Source: common/arg.cpp of llama.cpp, common/common.cpp of ik_llama.cpp. Spellings of a flag have `|` between them.
"""

from __future__ import annotations

WITH_VALUE = """
    --threads|-t --threads-batch|-tb --threads-http --predict|-n|--n-predict --seed|-s --host --port --path
    --api-key --api-key-file --api-prefix --alias|-a --tags --hf-token|-hft --chat-template --chat-template-file
    --chat-template-kwargs --reasoning-format --reasoning-budget --reasoning-budget-message --reasoning-effort
    --reasoning|-rea --main-gpu|-mg --numa --temp|--temperature --top-k --top-p --min-p --top-n-sigma|--top-nsigma
    --typical|--typical-p --xtc-probability --xtc-threshold --repeat-penalty --repeat-last-n --presence-penalty
    --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker
    --adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent
    --logit-bias|-l --samplers --sampler-seq|--sampling-seq --grammar --grammar-file --json-schema|-j
    --json-schema-file|-jf --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx
    --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --keep --defrag-thold|-dt --timeout|-to
    --slot-save-path --slot-prompt-similarity|-sps --log-file --log-colors --log-prompts-dir
    --verbosity|-lv|--log-verbosity --prio --prio-batch --poll --poll-batch --cpu-mask|-C --cpu-range|-Cr
    --cpu-strict --cpu-mask-batch|-Cb --cpu-range-batch|-Crb --cpu-strict-batch --cache-reuse
    --ctx-checkpoints|-ctxcp|--swa-checkpoints --checkpoint-min-step|-cms --cache-ram|-cram --prompt|-p --file|-f
    --binary-file|-bf --reverse-prompt|-r --lazy-mode|-lzm --control-vector-layer-range --image-min-tokens
    --image-max-tokens --mtmd-batch-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir
    --media-path --cors-origins --cors-methods --cors-headers --ssl-key-file --ssl-cert-file --sse-ping-interval
    --sleep-idle-seconds --tools --tools-runtime --mcp-servers-config --mcp-servers-json --ui-config|--webui-config
    --ui-config-file|--webui-config-file --models-max --lookup-cache-static|-lcs --lookup-cache-dynamic|-lcd
    --draft-min|--draft-n-min|--spec-draft-n-min --draft-p-min|--spec-draft-p-min
    --draft-p-split|--spec-draft-p-split --threads-draft|-td|--spec-draft-threads
    --threads-batch-draft|-tbd|--spec-draft-threads-batch --cpu-mask-draft|-Cd|--spec-draft-cpu-mask
    --cpu-range-draft|-Crd|--spec-draft-cpu-range --cpu-strict-draft|--spec-draft-cpu-strict
    --cpu-mask-batch-draft|-Cbd|--spec-draft-cpu-mask-batch --cpu-strict-batch-draft|--spec-draft-cpu-strict-batch
    --prio-draft|--spec-draft-prio --prio-batch-draft|--spec-draft-prio-batch --poll-draft|--spec-draft-poll
    --poll-batch-draft|--spec-draft-poll-batch --spec-synth-len --spec-synth-rates --spec-ngram-size-n
    --spec-ngram-size-m --spec-ngram-min-hits --spec-ngram-mod-n-min --spec-ngram-mod-n-match
    --spec-ngram-simple-size-n --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-min-hits
    --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-min-hits
    """
"""Flags with a value."""

SWITCHES = """
    --mmap --kv-offload|-kvo --op-offload --repack --no-repack|-nr --no-host --cont-batching|-cb
    --no-cont-batching|-nocb --warmup --no-warmup --jinja --metrics --props --slots --no-slots
    --verbose|-v|--log-verbose --log-disable --log-prefix --log-timestamps --log-jsonl --offline --special|-sp
    --spm-infill --context-shift --webui|--ui --webui-mcp-proxy|--ui-mcp-proxy --agent|-ag --no-agent|-no-ag
    --reuse-port --cors-credentials --models-autoload --skip-chat-parsing --prefill-assistant --reasoning-preserve
    --ignore-eos --conversation|-cnv --no-conversation|-no-cnv --escape|-e --perf --check-tensors --cache-prompt
    --cache-idle-slots --lora-init-without-apply --mmproj-auto --no-mmproj --spec-draft-backend-sampling
    """
"""Flags without a value; `--no-` before the name turns off what is on by default."""
