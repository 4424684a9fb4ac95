#!/bin/bash
MODEL="Qwen/Qwen-7B"
while [[ "$1" != "" ]]; do
    case $1 in
        -m | --model ) shift; MODEL=$1 ;;
        * ) echo "unknown $1"; exit 1 ;;
    esac
    shift
done
python finetune.py --model_name_or_path $MODEL --data_path d.json --bf16 True --use_lora \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --model_max_length 512 \
    --lazy_preprocess True --gradient_checkpointing --output_dir out
