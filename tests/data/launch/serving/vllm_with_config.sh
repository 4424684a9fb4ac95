#!/bin/bash
LENGTH=32k
cat > serve.yaml <<EOF
max-model-len: $LENGTH
kv-cache-dtype: fp8
enable-prefix-caching: true
no-enable-chunked-prefill: true
compilation-config: '{"cudagraph_mode": "FULL_DECODE_ONLY", "pass_config": {"enable_noop": true}}'
EOF
python3 -m vllm.entrypoints.openai.api_server --model qwen3-8b --config serve.yaml --max-num-seqs=128 --dtype half
