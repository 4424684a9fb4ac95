# Preferences with adapters; the reference is the frozen weights.
swift rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B-Instruct --dataset my/pairs --max_length 2048 --lora_rank 8 \
    --per_device_train_batch_size 2 --beta 0.1
