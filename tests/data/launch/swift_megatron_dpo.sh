NPROC_PER_NODE=4 \
megatron rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B-Instruct --dataset my/pairs --tensor_model_parallel_size 4 \
    --sequence_parallel true --micro_batch_size 2 --global_batch_size 16 --max_length 4096 --padding_free true \
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --beta 0.1 --loss_type sigmoid \
    --use_precision_aware_optimizer true --exp_avg_dtype bf16 --exp_avg_sq_dtype bf16 --lr 1e-5 --output_dir out
