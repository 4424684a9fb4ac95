# The keys of examples/train/gsm8k/run_gsm8k.sh and megatron/run_megatron_qwen3-30b-a3b.sh of NovaSky-AI/SkyRL at a9564572.
: "${NUM_GPUS:=4}"
: "${STRATEGY:=fsdp}"
uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base \
    data.train_data="['$HOME/train.parquet']" trainer.algorithm.advantage_estimator=grpo \
    trainer.policy.model.path=Qwen/Qwen2.5-1.5B-Instruct trainer.placement.colocate_all=true \
    trainer.strategy=$STRATEGY trainer.placement.policy_num_gpus_per_node=$NUM_GPUS \
    trainer.policy_mini_batch_size=64 trainer.micro_train_batch_size_per_gpu=8 \
    trainer.micro_forward_batch_size_per_gpu=8 trainer.max_prompt_length=512 \
    generator.sampling_params.max_generate_length=1024 trainer.policy.optimizer_config.lr=1.0e-6 \
    generator.n_samples_per_prompt=5 generator.inference_engine.backend=vllm \
    generator.inference_engine.gpu_memory_utilization=0.6 trainer.ckpt_path="$HOME/ckpts" $@
