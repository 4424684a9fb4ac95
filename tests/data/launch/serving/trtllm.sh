#!/bin/bash
FRACTION=0.85
cat <<EOF > extra.yml
kv_cache_config:
  free_gpu_memory_fraction: ${FRACTION}
  dtype: fp8
  enable_block_reuse: false
cuda_graph_config:
  enable_padding: true
  max_batch_size: 64
EOF
trtllm-serve meta-llama/Llama-3.1-8B-Instruct --max_batch_size 64 --max_num_tokens 8192 --tp_size 2 --trust_remote_code \
  --extra_llm_api_options extra.yml
