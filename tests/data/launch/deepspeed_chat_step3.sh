ACTOR=facebook/opt-1.3b
CRITIC=facebook/opt-350m
deepspeed --num_gpus 8 main.py --data_path my/prompts --actor_model_name_or_path $ACTOR \
    --critic_model_name_or_path $CRITIC --num_padding_at_beginning 1 --per_device_generation_batch_size 4 \
    --per_device_training_batch_size 4 --generation_batches 1 --ppo_epochs 1 --max_answer_seq_len 256 \
    --max_prompt_seq_len 256 --actor_learning_rate 9.65e-6 --critic_learning_rate 5e-6 --num_train_epochs 1 \
    --gradient_accumulation_steps 1 --offload_reference_model --actor_gradient_checkpointing --actor_dropout 0.0 \
    --deepspeed --actor_zero_stage 3 --critic_zero_stage 2 --enable_hybrid_engine --output_dir $1
