#!/bin/bash
# The arguments of https://github.com/NVIDIA/Megatron-LM/blob/d98e8a64ddf34856e74b24714e3bedb2f5a39553/tests/functional_tests/test_cases/gpt/gpt3_7b_tp1_pp4_memory_speed/model_config.yaml
# as a script of the form of examples/gpt3/train_gpt3_175b_distributed.sh runs them.
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0
export NCCL_ALGO=Ring
export CUBLAS_WORKSPACE_CONFIG=:4096:8
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
export NVTE_BWD_LAYERNORM_SM_MARGIN=16

NNODES=${NNODES:-1}
GPUS_PER_NODE=8
PP=4
MBS=1
TENSORBOARD_PATH=$1
LOG_ARGS=""
if [ -n "$WANDB_API_KEY" ]; then
    LOG_ARGS="--wandb-project gpt3"
fi

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --master_addr ${MASTER_ADDR:-localhost}
)

GPT_MODEL_ARGS=(
    --num-layers ${NUM_LAYERS:-32}
    --hidden-size 4096
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --untie-embeddings-and-output-weights
    --seq-length 8192
    --max-position-embeddings 8192
    --tokenizer-type NullTokenizer
    --vocab-size 131073
    --transformer-impl transformer_engine
    --use-mcore-models
)

TRAINING_ARGS="
    --log-throughput
    --log-params-norm
    --log-num-zeros-in-grad
    --log-validation-ppl-to-tensorboard
    --log-timers-to-tensorboard
    --tensorboard-dir ${TENSORBOARD_PATH}
    --micro-batch-size $MBS
    --global-batch-size $((MBS * 8))
    --train-iters 25
    --timing-log-level 0
    --lr-decay-iters 320000
    --save ${CHECKPOINT_SAVE_PATH}
    --load ${CHECKPOINT_LOAD_PATH}
    --mock-data
    --split 949,50,1
    --distributed-backend nccl
    --lr 0.00015
    --lr-decay-style cosine
    --min-lr 1e-05
    --weight-decay 1e-2
    --clip-grad 1.0
    --lr-warmup-fraction 0.01
    --log-interval 2
    --save-interval 10000
    --eval-interval 1000
    --eval-iters 5
    --deterministic-mode
    --no-gradient-accumulation-fusion
    --ckpt-format torch_dist
    --dist-ckpt-strictness log_all
    --data-cache-path ${DATA_CACHE_PATH}
    --bf16
    --log-memory-to-tensorboard
    --exit-interval 25
    --async-save
    --use-persistent-ckpt-worker
"

MODEL_PARALLEL_ARGS=(  # eight chunks on each of four stages
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size $PP
    --num-layers-per-virtual-pipeline-stage 1
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    "${GPT_MODEL_ARGS[@]}" \
    $TRAINING_ARGS \
    "${MODEL_PARALLEL_ARGS[@]}" \
    $LOG_ARGS "$@" 2>&1 | tee train.log
