torchrun --nproc_per_node=4 fastchat/train/train_mem.py \
    --model_name_or_path meta-llama/Llama-2-7b-hf --data_path chats.json --lazy_preprocess True \
    --model_max_length 2048 --per_device_train_batch_size 2 --gradient_accumulation_steps 8 \
    --gradient_checkpointing True --bf16 True --output_dir out \
    --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer
