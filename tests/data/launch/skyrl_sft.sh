# The keys of examples/train/sft/run_sft_megatron.sh of NovaSky-AI/SkyRL at a9564572.
uv run --isolated --extra megatron -m skyrl.train.main_sft strategy=megatron model.path=Qwen/Qwen2.5-0.5B-Instruct \
    max_length=512 batch_size=16 micro_train_batch_size_per_gpu=2 megatron_config.pipeline_model_parallel_size=1 \
    optimizer_config.lr=1e-6 placement.num_gpus_per_node=4 "$@"
