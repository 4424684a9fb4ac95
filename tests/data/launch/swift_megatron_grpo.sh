NPROC_PER_NODE=8 \
megatron rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --dataset my/questions --tensor_model_parallel_size 4 \
    --pipeline_model_parallel_size 2 --micro_batch_size 1 --global_batch_size 64 --max_length 1024 \
    --max_completion_length 2048 --num_generations 8 --vllm_mode colocate --vllm_gpu_memory_utilization 0.5 \
    --sleep_level 1 --offload_model true --offload_optimizer true --tuner_type full --beta 0.04 --lr 1e-6
