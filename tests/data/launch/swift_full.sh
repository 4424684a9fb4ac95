gpus=4
NPROC_PER_NODE=$gpus CUDA_VISIBLE_DEVICES=0,1,2,3 \
swift pt --model Qwen/Qwen2.5-7B --tuner_type full --torch_dtype bfloat16 --dataset my/set --packing true \
    --max_length 8192 --gradient_accumulation_steps $(expr 32 / $gpus) --deepspeed zero3 --attn_impl flash_attn
