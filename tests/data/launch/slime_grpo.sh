#!/bin/bash
# The arguments of scripts/run-qwen3-4B.sh of THUDM/slime (2026-08-21), with a smaller model and other folders.
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/qwen2.5-0.5B.sh"
NUM_GPUS=${NUM_GPUS:-8}
CKPT_ARGS=(
   --hf-checkpoint Qwen/Qwen2.5-0.5B
   --ref-load checkpoints/Qwen2.5-0.5B_torch_dist
   --load checkpoints/Qwen2.5-0.5B_slime/
)
ROLLOUT_ARGS=(
   --prompt-data data/dapo-math-17k.jsonl --input-key prompt --label-key label --apply-chat-template
   --rm-type deepscaler --num-rollout 3000 --rollout-batch-size 32 --n-samples-per-prompt 8
   --rollout-max-response-len 8192 --rollout-temperature 1 --global-batch-size 256 --balance-data
)
PERF_ARGS=(
   --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1
   --expert-model-parallel-size 1 --expert-tensor-parallel-size 1
   --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
   --use-dynamic-batch-size --max-tokens-per-gpu 2048
)
OPTIMIZER_ARGS=(--optimizer adam --lr 1e-6 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98)
GRPO_ARGS=(--advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.00 --kl-loss-type low_var_kl --eps-clip 0.2)
SGLANG_ARGS=(--rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7)
MISC_ARGS=(
   --attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
   --attention-backend flash
)
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json="{}" \
   -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node ${NUM_GPUS} --colocate \
   ${MODEL_ARGS[@]} ${CKPT_ARGS[@]} ${ROLLOUT_ARGS[@]} ${OPTIMIZER_ARGS[@]} ${GRPO_ARGS[@]} ${PERF_ARGS[@]} \
   ${SGLANG_ARGS[@]} ${MISC_ARGS[@]}
