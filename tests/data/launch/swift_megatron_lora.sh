NPROC_PER_NODE=2 \
megatron sft --model Qwen/Qwen2.5-7B-Instruct --dataset my/set --tuner_type lora --lora_rank 8 --lora_alpha 32 \
    --target_modules all-linear --tensor_model_parallel_size 2 --sequence_parallel true --micro_batch_size 2 \
    --global_batch_size 16 --max_length 2048 --recompute_granularity full --recompute_method uniform \
    --recompute_num_layers 1 --lr 1e-4 --output_dir out
