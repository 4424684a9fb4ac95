NPROC_PER_NODE=4 \
megatron sft --model Qwen/Qwen2.5-7B-Instruct --dataset my/set --tuner_type full --tensor_model_parallel_size 2 \
    --sequence_parallel true --micro_batch_size 1 --global_batch_size 16 --max_length 4096 --packing true \
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --lr 1e-5 --output_dir out
