swift sft --model Qwen/Qwen2.5-7B-Instruct --dataset my/set --max_length 2048 --lora_rank 16
