# --node-rank 1 on the other machine
python -m sglang.launch_server --model-path qwen3-32b --tp 8 --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:50000
ssh second "cd /srv && nohup python -m sglang.launch_server --model-path qwen3-32b --tp 8 --nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:50000 > log 2>&1 &"
