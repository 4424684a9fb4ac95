#!/usr/bin/env bash
# A chat model on two GPUs; NAME, TP and CONTEXT may be set outside.
set -euo pipefail

NAME="${NAME:-meta-llama/Llama-3.1-8B-Instruct}"
TP=${TP:-2}
CONTEXT=$((16 * 1024))
export VLLM_LOGGING_LEVEL=INFO
pip install -q "vllm==0.19.0"

ARGS=(
  --host 0.0.0.0 --port "${PORT:-8000}"
  --served-model-name chat chat-8b
  --gpu_memory_utilization=0.85
)
if [ -n "${EXTRA:-}" ]; then
  ARGS+=(--enforce-eager)
fi

CUDA_VISIBLE_DEVICES=0,1 nohup vllm serve "$NAME" \
  --tensor-parallel "$TP" \
  --max_model_len "$CONTEXT" \
  --max-num-seqs 64 \
  "${ARGS[@]}" "$@" > server.log 2>&1 &
