accelerate launch --use_deepspeed --zero_stage 3 --num_processes 4 --mixed_precision bf16 train.py \
    --model_name_or_path Qwen/Qwen2.5-1.5B --per_device_train_batch_size 2 --max_length 1024
