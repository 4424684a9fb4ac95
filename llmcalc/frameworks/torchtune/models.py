"""The names of llmcalc's presets for the models that torchtune's builders create.

Source: torchtune 0.7.0 (bd2a0fc7c), torchtune/models/*/_model_builders.py.
"""

from __future__ import annotations

from collections.abc import Mapping

PRESET_BY_BUILDER: Mapping[str, str] = {
    "llama2_7b": "llama2-7b",
    "llama2_13b": "llama2-13b",
    "llama2_70b": "llama2-70b",
    "code_llama2_7b": "codellama-7b",
    "code_llama2_13b": "codellama-13b",
    "code_llama2_70b": "codellama-70b",
    "llama3_8b": "llama3-8b",
    "llama3_70b": "llama3-70b",
    "llama3_1_8b": "llama3.1-8b",
    "llama3_1_70b": "llama3.1-70b",
    "llama3_1_405b": "llama3.1-405b",
    "llama3_2_1b": "llama3.2-1b",
    "llama3_2_3b": "llama3.2-3b",
    "llama3_3_70b": "llama3.3-70b",
    "mistral_7b": "mistral-7b",
    "phi3_mini": "phi3-mini",
    "phi4_14b": "phi-4",
    "gemma_2b": "gemma-2b",
    "gemma_7b": "gemma-7b",
    "gemma2_2b": "gemma2-2b",
    "gemma2_9b": "gemma2-9b",
    "gemma2_27b": "gemma2-27b",
    "qwen2_0_5b": "qwen2-0.5b",
    "qwen2_1_5b": "qwen2-1.5b",
    "qwen2_7b": "qwen2-7b",
    "qwen2_5_0_5b": "qwen2.5-0.5b",
    "qwen2_5_1_5b_base": "qwen2.5-1.5b",
    "qwen2_5_1_5b_instruct": "qwen2.5-1.5b-instruct",
    "qwen2_5_3b": "qwen2.5-3b",
    "qwen2_5_7b_base": "qwen2.5-7b",
    "qwen2_5_7b_instruct": "qwen2.5-7b-instruct",
    "qwen2_5_14b_base": "qwen2.5-14b",
    "qwen2_5_14b_instruct": "qwen2.5-14b-instruct",
    "qwen2_5_32b_base": "qwen2.5-32b",
    "qwen2_5_32b_instruct": "qwen2.5-32b-instruct",
    "qwen2_5_72b_base": "qwen2.5-72b",
    "qwen2_5_72b_instruct": "qwen2.5-72b-instruct",
    "qwen3_0_6b_base": "qwen3-0.6b-base",
    "qwen3_0_6b_instruct": "qwen3-0.6b",
    "qwen3_1_7b_base": "qwen3-1.7b-base",
    "qwen3_1_7b_instruct": "qwen3-1.7b",
    "qwen3_4b_base": "qwen3-4b-base",
    "qwen3_4b_instruct": "qwen3-4b",
    "qwen3_8b_base": "qwen3-8b-base",
    "qwen3_8b_instruct": "qwen3-8b",
    "qwen3_14b_base": "qwen3-14b-base",
    "qwen3_14b_instruct": "qwen3-14b",
    "qwen3_32b": "qwen3-32b",
}
"""Name of a torchtune builder, without `lora_` or `qlora_` → preset."""
