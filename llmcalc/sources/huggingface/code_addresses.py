"""The base URLs of models' published code, for `Family.source`."""

from __future__ import annotations

GITHUB = "https://github.com/"
CHATLLM = f"{GITHUB}foldl/chatllm.cpp/blob/master/models/"
HUB = "https://huggingface.co/"
LLAMA_CPP = f"{GITHUB}ggml-org/llama.cpp/blob/master/src/models/"
MLX = f"{GITHUB}ml-explore/mlx-lm/blob/main/mlx_lm/models/"
MLX_VLM = f"{GITHUB}Blaizzy/mlx-vlm/tree/main/mlx_vlm/models/"
SGLANG = f"{GITHUB}sgl-project/sglang/blob/main/python/sglang/srt/models/"
SPECFORGE = f"{GITHUB}sgl-project/SpecForge/blob/main/specforge/modeling/draft/"
VLLM = f"{GITHUB}vllm-project/vllm/blob/main/vllm/model_executor/models/"
