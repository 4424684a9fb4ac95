deepspeed --num_gpus 4 --module openrlhf.cli.train_dpo --model.model_name_or_path Qwen/Qwen2.5-0.5B \
    --train.micro_batch_size 2 --train.batch_size 64 --data.max_len 1024 --ds.zero_stage 3 --ds.param_dtype bf16 \
    --data.dataset my/pairs --model.gradient_checkpointing_enable
