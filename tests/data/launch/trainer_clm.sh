#!/bin/bash
# A language model with the Trainer on the cards of several machines.
BATCH=${BATCH:-2}
ARGS=(
    --model_name_or_path Qwen/Qwen2.5-1.5B
    --dataset_name wikitext
    --do_train
    --block_size 1024
    --per_device_train_batch_size $BATCH
    --gradient_checkpointing true
    --bf16 true
    --output_dir runs/clm
)
torchrun --nproc_per_node=$GPUS --nnodes=$NODES run_clm.py "${ARGS[@]}"
