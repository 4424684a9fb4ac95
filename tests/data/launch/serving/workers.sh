#!/bin/bash
WORLD=4
LIMITS='{"cudagraph_capture_sizes": [1, 2, 4, 8]}'
args=(
  mpirun -np 2 -x OMP_NUM_THREADS=8
  bench-runner run --use-http-client
  --dynamo.model.repo_id=Qwen/Qwen3-235B-A22B
  --dynamo.vllm.cli=--max-model-len=32768
  --dynamo.vllm.cli=--tensor-parallel-size="${WORLD}"
  --dynamo.vllm.cli=--enable-expert-parallel
  --dynamo.vllm.cli=--compilation-config="${LIMITS}"
  --dynamo.vllm.cli=--no-enable-prefix-caching
)
"${args[@]}" 2>&1 | tee run.log
