set -x
MODEL=(
   --actor.model_name_or_path Qwen/Qwen3-4B
   --reward.remote_url score.py
)
ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \
   ${MODEL[@]} --actor.num_nodes 1 --actor.num_gpus_per_node 4 --ref.num_gpus_per_node 4 \
   --train.colocate_all --vllm.num_engines 2 --data.max_len 4096 --train.micro_batch_size 2 --train.batch_size 128 \
   --ds.zero_stage 3 --ds.packing_samples --actor.gradient_checkpointing_enable
