from ray.serve.llm import LLMConfig, build_openai_app

GPUS = 2
arguments = {"tensor_parallel_size": GPUS, "max_model_len": 16 * 1024}

chat = LLMConfig(
    model_loading_config={"model_id": "chat", "model_source": "Qwen/Qwen3-32B"},
    accelerator_type="L40S",
    engine_kwargs=arguments,
)
small = LLMConfig(
    model_loading_config={"model_id": "Qwen/Qwen3-8B"},
    engine_kwargs=dict(enforce_eager=True, gpu_memory_utilization=0.8),  # noqa: C408
)
app = build_openai_app({"llm_configs": [chat, small]})
