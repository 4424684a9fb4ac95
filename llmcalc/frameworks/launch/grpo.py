"""Memory settings of GRPO training with TRL and derived trainers: sequences, engine and reference model.

Source: TRL 1.10 (f2cd57710), trainer/grpo_{config,trainer}.py and generation/vllm_generation.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .launch_types import Launch, LaunchReader, Table, read_fraction, read_integer
from .rollout import AdditionalModel, ModelState, Rollout

TRL_SOURCE = "trl/trainer/grpo_trainer.py, trl/generation/vllm_generation.py"
"""TRL's source files that state what is on a device in each phase."""

SFT_NOTE = "GRPO: the loss of the training step is counted as that of SFT over all tokens"

LIGER_NOTE = "Liger's log-probabilities of the last {completion} tokens, sequence by sequence, counted as their mean"
"""Note on the loss that TRL 1.10 takes from Liger-Kernel 0.8.5. Newer versions of TRL lack this loss."""

READ_GRPO_ARGUMENTS = (
    "beta", "max_prompt_length", "max_completion_length", "vllm_mode", "use_vllm", "vllm_gpu_memory_utilization",
    "vllm_max_model_length", "vllm_max_model_len", "vllm_tensor_parallel_size", "vllm_enable_sleep_mode",
    "steps_per_generation", "generation_batch_size", "use_liger_loss",
)  # fmt: skip
"""Arguments of GRPO that are read."""


def grpo_length_settings(
    reader: LaunchReader, config: Table, prompt_key: str, has_adapters: bool, beta: float = 0.0
) -> dict[str, Any]:
    """Returns the tokens per sequence (prompt and completion) of a GRPO training step.

    With a beta other than 0 it has a reference model: beside adapters the frozen weights, else a copy of all weights.

    prompt_key: the argument with the largest number of tokens of a prompt.
    has_adapters: whether adapters are trained.
    beta: the program's default of `beta`.
    """
    if reader.value(config, "beta", beta) not in (0, 0.0, "0", "0.0") and has_adapters:
        reader.notes.append("GRPO: the reference model is the frozen weights beside the adapters")
    if _colocates_engine(config) and config.get("vllm_mode") is None:
        reader.assumed_defaults["vllm_mode"] = "colocate"
    completion_length = reader.integer(config, "max_completion_length", 512)
    prompt_length = config.get(prompt_key)
    if prompt_length is None:
        reader.notes.append("GRPO: prompts are cut nowhere; --seq says the tokens of prompt and completion")
        return {"seq": completion_length}
    return {"seq": read_integer(reader, prompt_key, prompt_length, minimum=0) + completion_length}


def with_log_probabilities(launched_run: Launch, completion_length: int, has_wide_logits: bool) -> Launch:
    """Returns the training run with GRPO's loss from log-probabilities (`_get_per_token_logps_and_entropies`).

    completion_length: tokens of a completion.
    has_wide_logits: whether logits are converted to fp32, as accelerate does in mixed precision of its own.
    """
    settings = dict(launched_run.settings)
    if settings.get("cross_entropy") == "chunked":
        settings |= {"cross_entropy": "selective-chunked", "logits_to_keep": completion_length}
        loss_note = f"GRPO: {LIGER_NOTE.format(completion=completion_length)}"
        return replace(launched_run, settings=settings, notes=(*launched_run.notes, loss_note))
    settings |= {"cross_entropy": "selective", "logits_to_keep": completion_length}
    if not has_wide_logits:
        settings["logits_dtype"] = settings.get("dtype", "fp32")
    loss_note = f"GRPO: log-probabilities of the last {completion_length} tokens, whose loss is counted as their mean"
    return replace(launched_run, settings=settings, notes=(*launched_run.notes, loss_note))


def _colocates_engine(config: Table) -> bool:
    """Whether vLLM runs in the training processes (colocate mode), which is the default."""
    return bool(config.get("use_vllm")) and config.get("vllm_mode", "colocate") == "colocate"


def colocated_rollout(
    reader: LaunchReader,
    config: Table,
    launched_run: Launch,
    *,
    memory_share: float,
    max_tokens: int | None = None,
    beta: float = 0.0,
    offloaded_states: frozenset[ModelState] = frozenset(),
    citation: str = TRL_SOURCE,
    reference_bytes: int = 0,
) -> Rollout:
    """Returns the rollout engine and the reference model that share devices with the trained model.

    launched_run: the training step.
    memory_share: the program's default of `vllm_gpu_memory_utilization`.
    max_tokens: tokens of a pass of the engine that the program sets; None (default) for the engine's rule.
    beta: the program's default of `beta`.
    offloaded_states: states of the trained model that are on the host during rollouts; default none.
    citation: the program's files that say so.
    reference_bytes: bytes per weight of the reference model; 0 (default) for those that the run's settings imply.
    """
    completion_length = reader.integer(config, "max_completion_length", 512)
    batch_size = read_integer(reader, "batch", launched_run.settings["batch"])
    is_colocated = _colocates_engine(config)
    is_weight_sharded = launched_run.layout.zero == 3
    has_reference = config.get("beta", beta) not in (0, 0.0, "0", "0.0") and "lora_rank" not in launched_run.settings
    element_bytes = 2 if launched_run.settings.get("dtype") in ("bf16", "bfloat16", "fp16", "float16") else 4
    has_master_weights = launched_run.settings.get("master_weights") == "none"
    has_sleep_mode = reader.flag(config, "vllm_enable_sleep_mode") or bool(config.get("sleep_level"))
    has_fp32_logits = launched_run.settings.get("logits_dtype") in (None, "fp32", "float32")
    bytes_per_logit = (8 if batch_size == 1 else 6) if has_fp32_logits else (4 if batch_size == 1 else 3)
    return Rollout(
        source=citation,
        engine="vllm" if is_colocated else "",
        flags=_engine_flags(reader, config, batch_size, launched_run, memory_share, max_tokens) if is_colocated else {},
        engine_sleeps_while_idle=is_colocated and has_sleep_mode,
        offloaded_states=offloaded_states if is_colocated else frozenset(),
        reference_model=AdditionalModel(
            "device" if has_reference else "none",
            reference_bytes or (element_bytes if has_master_weights else 4),
            launched_run.layout.dp if is_weight_sharded else 1,
        ),
        sequence_count=batch_size,
        tokens_per_sequence=int(launched_run.settings.get("seq", completion_length)),
        logit_tokens_per_sequence=completion_length + 1,
        bytes_per_logit=bytes_per_logit,  # fp32 logits of accelerate beside 16-bit ones, or a sequence's exponentials
    )


def _engine_flags(
    reader: LaunchReader,
    config: Table,
    sequence_count: int,
    launched_run: Launch,
    memory_utilization: float,
    max_tokens: int | None,
) -> dict[str, Any]:
    """Returns the flags of the colocated vLLM engine (generation/vllm_generation.py)."""
    tp = reader.integer(config, "vllm_tensor_parallel_size", 1)
    steps_per_generation = reader.integer(
        config, "steps_per_generation", reader.integer(config, "gradient_accumulation_steps", 1)
    )
    generation_batch_size = config.get("generation_batch_size")
    if generation_batch_size is not None:
        generated_sequence_count = read_integer(reader, "generation_batch_size", generation_batch_size)
        steps_per_generation = max(1, generated_sequence_count // (sequence_count * launched_run.layout.world_size))
    engine_flags: dict[str, Any] = {
        "tensor_parallel_size": tp,
        "gpu_memory_utilization": read_fraction(reader, "vllm_gpu_memory_utilization", config, memory_utilization),
        "max_num_seqs": sequence_count * tp * steps_per_generation,
    }
    engine_flags["max_num_seqs"] = reader.optional_integer(config, "vllm_max_num_seqs") or engine_flags["max_num_seqs"]
    if max_tokens is not None:
        engine_flags["max_num_batched_tokens"] = max_tokens
    for argument_name in ("vllm_max_model_length", "vllm_max_model_len"):
        if config.get(argument_name) is not None:
            engine_flags["max_model_len"] = read_integer(reader, argument_name, config[argument_name])
    return engine_flags
