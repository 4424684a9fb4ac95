OUT=$1
STAGE=$2
if [ "$STAGE" == "" ]; then STAGE=2; fi
deepspeed --num_gpus 8 main.py --data_path my/set --model_name_or_path facebook/opt-1.3b --max_seq_len 512 \
    --per_device_train_batch_size 8 --gradient_accumulation_steps 2 --zero_stage $STAGE --deepspeed \
    --output_dir $OUT &> $OUT/training.log
