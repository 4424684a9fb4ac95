deepspeed --num_gpus 2 main.py --model_name_or_path facebook/opt-350m --num_padding_at_beginning 1 \
    --per_device_train_batch_size 2 --max_seq_len 256 --zero_stage 0 --deepspeed --output_dir $1
