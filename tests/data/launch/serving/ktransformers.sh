python -m sglang.launch_server --model-path qwen3-235b-a22b --kt-weight-path /models/cpu --kt-method AMXINT4 \
  --kt-cpuinfer 64 --kt-num-gpu-experts 32 --tp 1 --mem-fraction-static 0.9
