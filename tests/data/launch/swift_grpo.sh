# Reinforcement learning; the engine is in the processes of the training, and sleeps while they train.
swift rollout --model Qwen/Qwen2.5-0.5B
NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-0.5B --tuner_type full --dataset my/questions \
    --reward_funcs accuracy --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.4 --sleep_level 1 \
    --max_length 512 --max_completion_length 1024 --per_device_train_batch_size 4 --num_generations 8 \
    --gradient_accumulation_steps 2 --offload_optimizer true --deepspeed zero2
