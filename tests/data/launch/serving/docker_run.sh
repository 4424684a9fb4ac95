docker run -d --rm --gpus '"device=0,1"' --ipc=host -p 8000:8000 \
  -v ~/.cache/huggingface:/models/huggingface \
  -e HF_TOKEN=secret \
  vllm/vllm-openai:v0.21.0 \
  --model meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 --max-model-len 65536 \
  --limit-mm-per-prompt '{"image": 0, "video": 0}' --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'

docker run -it --shm-size 16g lmsysorg/sglang:v0.5.9-cu129 bash -c "
  python3 -m sglang.launch_server \
    --model-path Qwen/Qwen3-8B --tp 1 --mem-fraction-static 0.8 --attention-backend triton"
