"""The seconds per decoded token and user, estimated for the software of the usual serving engine."""

from __future__ import annotations

from dataclasses import replace

from ..accelerator import Hardware
from ..costs.quantization.mlx import MLXScheme
from ..device_memory.estimate import Memory
from ..device_memory.settings import SERVING_PHASES
from ..errors import InputError
from ..frameworks.engines.engine import NEWEST_VERSION
from ..frameworks.engines.registry import USUAL_ENGINE, engine
from ..parallel.layout import ONE_DEVICE, Layout
from .run_time import TimeSettings, time_inference
from .timed_run import TimedRun

LLAMA_CPP_STACK = "llamacpp"
"""The software stack for weights in llama.cpp's formats, and for its vendors' accelerators without vLLM."""

MLX_STACK = "mlx"
"""The software stack for weights in MLX's formats on Apple's chips."""

TRANSFORMERS_STACK = "transformers"
"""The software stack for encoder-decoder models."""

LLAMA_CPP_VENDORS = ("Apple", "NVIDIA")
"""Vendors of accelerators on which llama.cpp runs where vLLM does not: Apple's chips and NVIDIA's GPUs before Volta."""


SHORT_CONTEXT = 1024
"""Context in tokens at which decoding is also timed if no length is given: the prompts of `vllm bench serve`.

Source: the default of its `--random-input-len`, https://docs.vllm.ai/en/latest/cli/bench/serve/
"""


def usual_stack(hardware: Hardware, model_memory: Memory | None = None) -> str:
    """Returns the name of the software stack that usually serves a model on an accelerator.

    No modelled server runs encoder-decoders, so these are timed as in transformers.
    model_memory: the model's memory; None if it is unknown.
    """
    if model_memory is not None and hardware.vendor == "Apple" and has_mlx_weights(model_memory):
        return MLX_STACK
    needs_llama_cpp = hardware.vendor in LLAMA_CPP_VENDORS and not engine(USUAL_ENGINE).runs_on(hardware)
    uses_llama_cpp = hardware.usual_engine == "llama.cpp"
    if (model_memory is not None and model_memory.has_gguf_weights) or needs_llama_cpp or uses_llama_cpp:
        return LLAMA_CPP_STACK
    is_encoder_decoder = (
        model_memory is not None and model_memory.spec.encoder is not None and model_memory.spec.decoder is not None
    )
    if is_encoder_decoder:
        return TRANSFORMERS_STACK
    return engine(USUAL_ENGINE).software_stack(NEWEST_VERSION, hardware.vendor)


def runs_llama_cpp(hardware: Hardware) -> bool:
    """Whether llama.cpp supports an accelerator."""
    return engine("llama.cpp").runs_on(hardware)


def has_mlx_weights(model_memory: Memory) -> bool:
    """Whether the weights are in a format of MLX."""
    quantized_size = model_memory.states.quantized_size
    return quantized_size is not None and isinstance(quantized_size.scheme, MLXScheme)


def time_decoded_token(
    model_memory: Memory,
    hardware: Hardware,
    layout: Layout = ONE_DEVICE,
    users: int | None = None,
    stack_name: str | None = None,
    seq: int | None = None,
) -> TimedRun | None:
    """Returns a range of seconds for decoding one token of every sequence in an inference run.

    model_memory: the run on one device. users: sequences of a replica; default those of the run.
    stack_name: the software stack that runs it; default the usual one of the accelerator.
    seq: tokens before the decoded token; default those of the run.
    None for training, prompts and encoders, and for accelerators and layouts without a time.
    """
    if model_memory.settings.phase not in SERVING_PHASES or model_memory.spec.model_without_tokens:
        return None
    workload = model_memory.states.workload
    size_changes = {
        size_name: size_value
        for size_name, size_value in (("batch", users), ("seq", seq))
        if size_value is not None and size_value != getattr(workload, size_name)
    }
    try:
        batch_memory = model_memory.with_changes(**size_changes) if size_changes else model_memory
        decode_memory = replace(batch_memory, settings=batch_memory.settings.with_changes(phase="decode"))
        return time_inference(
            decode_memory, hardware, layout, TimeSettings(stack_name or usual_stack(hardware, model_memory))
        )
    except InputError:
        return None
