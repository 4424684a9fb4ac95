# Supervised fine-tuning of adapters; shards of the frozen weights are in fp32.
torchrun --standalone --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer \
    data.train_files=$HOME/my/train.parquet data.max_length=1024 data.micro_batch_size_per_gpu=2 \
    data.train_batch_size=64 model.partial_pretrain=Qwen/Qwen2.5-0.5B model.lora_rank=8 model.strategy=fsdp \
    model.target_modules=all-linear trainer.default_local_dir=/my/runs
