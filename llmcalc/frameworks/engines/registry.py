"""Finds the registry record of a serving engine by name, in the `record.py` of the engine's folder."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from ...errors import InputError, suggest
from .engine import Engine, EngineVersion

ENGINE_FOLDERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt-llm": "tensorrt_llm",
    "llama.cpp": "llama_cpp",
    "ik_llama.cpp": "ik_llama_cpp",
    "ollama": "ollama",
}
"""Value of `--engine` → the folder of the engine."""


LLAMA_CPP_LAUNCHERS = {
    **dict.fromkeys(("lmstudio", "lm-studio"), "LM Studio"),
    "koboldcpp": "KoboldCpp",
    "llama-cpp-python": "llama-cpp-python",
    "llamafile": "llamafile",
    "jan": "Jan",
    "gpt4all": "GPT4All",
    "localai": "LocalAI",
    "lemonade": "Lemonade",
    "text-generation-webui": "text-generation-webui",
}
"""Name of a program that runs llama.cpp → the program's title."""

ENGINE_BY_OTHER_NAME = {
    **dict.fromkeys(("trtllm", "trt-llm", "trt_llm", "trt", "tensorrt"), "tensorrt-llm"),
    **dict.fromkeys(("llamacpp", "gguf", "ggml"), "llama.cpp"),
}
"""Alternative name of an engine → the value of `--engine`."""

UNMODELLED_ENGINES = {
    **dict.fromkeys(
        ("mlx", "mlx-lm", "mlx_lm"),
        "MLX's server is not modelled; without --engine, --quantize mlx-4bit has the weights, the cache and one pass, "
        "which llmcalc time times",
    ),
    **{
        name: f"{title} is not modelled; without --engine, memory has the weights, the cache and one pass; expected no "
        "--engine, or one of vllm, sglang and tensorrt-llm for another server's budget"
        for name, title in {
            "tgi": "text-generation-inference",
            "text-generation-inference": "text-generation-inference",
            "lmdeploy": "LMDeploy",
            "turbomind": "LMDeploy",
            "lightllm": "LightLLM",
        }.items()
    },
    **dict.fromkeys(
        ("exllama", "exllamav2", "exllamav3", "tabbyapi"),
        "ExLlama and its formats, EXL2 and EXL3, are not modelled; without --engine, a scheme with about as many bits, "
        "such as --quantize q4_k_m, has the weights, the cache and one pass",
    ),
    **dict.fromkeys(
        ("ktransformers", "kt-kernel"),
        "ktransformers is not modelled; expected llama.cpp, whose --n-cpu-moe N leaves the experts of N layers on the "
        "host, or no --engine for all weights on the accelerator",
    ),
    **dict.fromkeys(
        ("transformers", "hf", "torch", "pytorch"),
        "memory without --engine has the classes of transformers and PyTorch; expected no --engine",
    ),
    **dict.fromkeys(("aphrodite", "aphrodite-engine"), "Aphrodite has vLLM's engine; expected vllm with its flags"),
}
"""Name of an engine that is not modelled → the error message."""

USUAL_ENGINE = "vllm"
"""The default engine of inference runs, which most servers run; its software stack has the same name."""


@cache
def engine(engine_name: str) -> Engine:
    """Returns the registry record of an engine. Raises `InputError` for an unknown name."""
    if engine_name not in ENGINE_FOLDERS:
        engine_names = list(ENGINE_FOLDERS)
        if engine_name in LLAMA_CPP_LAUNCHERS:
            raise InputError(
                f"--engine: {LLAMA_CPP_LAUNCHERS[engine_name]} runs llama.cpp; expected llama.cpp with its flags (-c, "
                "-ngl, …)"
            )
        if engine_name in UNMODELLED_ENGINES:
            raise InputError(f"--engine: {UNMODELLED_ENGINES[engine_name]}")
        raise InputError(
            f"--engine: '{engine_name}' is not known; expected one of "
            f"{', '.join(engine_names)}.{suggest(ENGINE_BY_OTHER_NAME.get(engine_name, engine_name), engine_names)}"
        )
    engine_record: Engine = import_module(f"..{ENGINE_FOLDERS[engine_name]}.record", __package__).ENGINE
    return engine_record


def engine_of_stack(stack_text: str) -> Engine | None:
    """Returns the first engine that is timed by a software stack; None if no engine is.

    The stacks of earlier versions have the name of the newest in front: `llamacpp-2024`, as that is `llamacpp`.
    stack_text: the name of a stack, or several with `+` between, of which the first is the software.
    """
    stack_name = stack_text.partition("+")[0]
    for engine_name in ENGINE_FOLDERS:
        engine_record = engine(engine_name)
        if any(
            f"{stack_name}-".startswith(f"{stack_pattern}-") for _, stack_pattern in engine_record.stacks_by_version
        ):
            return engine_record
    return None


def engine_and_version(engine_text: str) -> tuple[Engine, EngineVersion]:
    """Returns engine and version for `NAME` or `NAME==VERSION`. Raises `InputError` for unknown names."""
    engine_name, equals_sign, version_text = engine_text.partition("=")
    if equals_sign and not version_text.startswith("=") and engine_name.strip().lower() in ENGINE_FOLDERS:
        expected_version = version_text.strip() or "VERSION"
        raise InputError(f"--engine {engine_text}: expected two equals signs: {engine_name}=={expected_version}")
    serving_engine = engine(engine_name.strip().lower())
    version_text = version_text.removeprefix("=").strip()
    if equals_sign and not version_text:
        raise InputError(
            f"--engine {engine_text}: the version is missing; expected such as {engine_name}==0.19, or {engine_name}"
        )
    return serving_engine, serving_engine.named_version(version_text)
