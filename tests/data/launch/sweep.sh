for size in 1 2 4; do
    python train.py --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size $size --max_length 512
done
