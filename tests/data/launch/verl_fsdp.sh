python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=$HOME/d.parquet \
    data.max_prompt_length=512 data.max_response_length=1024 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=8 trainer.nnodes=1 $@
