read -r -d '' training_commands <<EOF
openrlhf.cli.train_kto --pretrain Qwen/Qwen2.5-0.5B --train_batch_size 64 --micro_train_batch_size 2 --max_len 1024 \
    --zero_stage 3 --bf16 --flash_attn --gradient_checkpointing --dataset my/answers --label_key score --beta 0.1
EOF
deepspeed --num_gpus 4 --module $training_commands
