deepspeed --num_gpus 4 train.py --deepspeed zero2.json --model_name_or_path Qwen/Qwen2.5-1.5B \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 1024 --bf16 true
