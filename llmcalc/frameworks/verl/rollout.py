"""Reads the other models on the actor's devices: the rollout engine, the reference model and the critic.

Source: as of `command.py`, with trainer/config/{rollout/rollout,ref/ref,ref/dp_ref,critic/dp_critic}.yaml.
"""

from __future__ import annotations

from typing import Any

from ...errors import short_repr
from ...parallel.layout import Layout
from ..engines.registry import engine
from ..launch.launch_types import LaunchReader, LaunchSettings, Table, read_fraction, read_integer
from ..launch.rollout import AdditionalModel, ModelLocation, ModelState, Rollout

MODEL_PREFIX, ACTOR_PREFIX = "actor_rollout_ref.model", "actor_rollout_ref.actor"
REFERENCE_PREFIX, ROLLOUT_PREFIX = "actor_rollout_ref.ref", "actor_rollout_ref.rollout"

ENGINE_FLAGS = {
    "vllm": ("tensor_parallel_size", "gpu_memory_utilization", "max_model_len"),
    "sglang": ("tp_size", "mem_fraction_static", "context_length"),
}
"""Engine of the rollouts → its flags for tensor parallelism, fraction of memory, and longest request."""

UNMODELLED_SIZES = ("data_parallel_size", "pipeline_model_parallel_size", "expert_parallel_size")
"""Keys for parallel sizes of the rollout engine that are not modelled."""

STATES_BY_OFFLOAD_KEY: dict[str, ModelState] = {
    "param_offload": "weights",
    "optimizer_offload": "optimizer",
    "grad_offload": "gradients",
}
"""Key that offloads a part of a model's state to the host between passes → the part."""

SOURCE_FILES = "verl/workers/fsdp_workers.py, megatron_workers.py"
"""verl's source files that state what is on a device in each phase."""


def read_rollout(reader: LaunchReader, config: Table, actor_run: LaunchSettings, is_megatron: bool) -> Rollout:
    """Returns the rollout engine and the other models on the actor's devices (rollout.yaml, reference, critic)."""
    layout, rank_tokens = actor_run.layout, actor_run.settings["seq"] // actor_run.layout.cp
    section_name = "megatron" if is_megatron else "fsdp_config"
    reader.notes.append("rollouts at their longest")
    engine_name, flags = _engine_and_flags(reader, config)
    sequence_count, token_count = _log_probability_batch(reader, config, actor_run.settings["batch"], rank_tokens)
    is_compiled = reader.flag(config, f"{ACTOR_PREFIX}.use_torch_compile", True)
    has_fused_kernels = reader.flag(config, f"{MODEL_PREFIX}.use_fused_kernels")
    bucket_key = f"{ROLLOUT_PREFIX}.checkpoint_engine.update_weights_bucket_megabytes"
    return Rollout(
        source=SOURCE_FILES,
        engine=engine_name,
        flags=flags,
        engine_sleeps_while_idle=reader.flag(config, f"{ROLLOUT_PREFIX}.free_cache_engine", True),
        has_separate_process=True,
        offloaded_states=frozenset(
            offloaded_kinds
            for states_name, offloaded_kinds in STATES_BY_OFFLOAD_KEY.items()
            if reader.flag(config, f"{ACTOR_PREFIX}.{section_name}.{states_name}")
        ),
        reference_model=_reference_model(reader, config, layout, is_megatron),
        critic_location=_critic_location(reader, config, is_megatron),
        sequence_count=sequence_count,
        tokens_per_sequence=token_count,
        logit_tokens_per_sequence=token_count,
        bytes_per_logit=0
        if has_fused_kernels
        else 2
        if is_compiled and not is_megatron
        else 6,  # a compiled entropy keeps no copy; else two more of bf16
        weight_transfer_bytes=reader.integer(config, bucket_key, 2048) << 20,
    )


def _engine_and_flags(reader: LaunchReader, config: Table) -> tuple[str, dict[str, Any]]:
    """Returns the rollout engine's name and flags; an empty name for an unmodelled engine."""
    engine_name = str(reader.value(config, f"{ROLLOUT_PREFIX}.name", "vllm"))
    if engine_name not in ENGINE_FLAGS:
        reader.notes.append(f"{ROLLOUT_PREFIX}.name {short_repr(engine_name)}: not modelled; its memory is not counted")
        return "", {}
    tp_flag, memory_share_flag, length_flag = ENGINE_FLAGS[engine_name]
    length_values = (
        reader.integer(config, f"data.max_{prompt_or_response}_length", 512)
        for prompt_or_response in ("prompt", "response")
    )
    flags: dict[str, Any] = {
        tp_flag: reader.integer(config, f"{ROLLOUT_PREFIX}.tensor_model_parallel_size", 2),
        memory_share_flag: read_fraction(reader, f"{ROLLOUT_PREFIX}.gpu_memory_utilization", config, 0.5),
        length_flag: reader.optional_integer(config, f"{ROLLOUT_PREFIX}.max_model_len") or sum(length_values),
    }
    if engine_name == "vllm":
        flags["max_num_seqs"] = reader.integer(config, f"{ROLLOUT_PREFIX}.max_num_seqs", 256)
        flags["max_num_batched_tokens"] = reader.integer(config, f"{ROLLOUT_PREFIX}.max_num_batched_tokens", 8192)
        flags["enforce_eager"] = reader.flag(config, f"{ROLLOUT_PREFIX}.enforce_eager")
    for size_key in UNMODELLED_SIZES:
        if config.get(f"{ROLLOUT_PREFIX}.{size_key}") not in (None, 1):
            reader.refuse(
                f"{ROLLOUT_PREFIX}.{size_key}", "the engine's rollouts are modelled with tensor parallelism alone"
            )
    return engine_name, flags | _engine_keyword_flags(config, engine_name)


def _engine_keyword_flags(config: Table, engine_name: str) -> dict[str, Any]:
    """Returns the flags in `engine_kwargs` that change the engine's memory."""
    key_prefix = f"{ROLLOUT_PREFIX}.engine_kwargs.{engine_name}."
    flag_by_field = {flag.field_name: flag for flag in engine(engine_name).known_flags()}
    flags: dict[str, Any] = {}
    for argument_key, argument_value in config.items():
        argument_name = argument_key.removeprefix(key_prefix).replace("-", "_")
        if (
            argument_key.startswith(key_prefix)
            and argument_value is not None
            and not (argument_name in flag_by_field and flag_by_field[argument_name].is_memory_neutral)
        ):
            flags[argument_name] = argument_value
    return flags


def _log_probability_batch(
    reader: LaunchReader, config: Table, sequence_count: int, sequence_length: int
) -> tuple[int, int]:
    """Returns the sequences of a log-probability micro-batch, and the rank's tokens per sequence.

    sequence_count, sequence_length: those of a micro-batch of the update, which are the default.
    """
    if reader.flag(
        config, f"{ROLLOUT_PREFIX}.log_prob_use_dynamic_bsz", reader.flag(config, f"{ACTOR_PREFIX}.use_dynamic_bsz")
    ):
        length_key = f"{ROLLOUT_PREFIX}.log_prob_max_token_len_per_gpu"
        default_tokens = reader.integer(config, f"{ACTOR_PREFIX}.ppo_max_token_len_per_gpu", 16384)
        return 1, reader.integer(config, length_key, default_tokens)
    micro_batch_value = config.get(f"{ROLLOUT_PREFIX}.log_prob_micro_batch_size_per_gpu")
    if micro_batch_value is not None:
        sequence_count = read_integer(reader, f"{ROLLOUT_PREFIX}.log_prob_micro_batch_size_per_gpu", micro_batch_value)
    return sequence_count, sequence_length


def _reference_model(reader: LaunchReader, config: Table, layout: Layout, is_megatron: bool) -> AdditionalModel:
    """Returns the reference model; none without a KL term, or if the frozen weights serve as the reference."""
    has_kl_term = reader.flag(config, f"{ACTOR_PREFIX}.use_kl_loss") or reader.flag(
        config, "algorithm.use_kl_in_reward"
    )
    has_adapters = any(
        config.get(f"{MODEL_PREFIX}.{rank_key}") not in (None, 0) for rank_key in ("lora_rank", "lora.rank")
    )
    if not has_kl_term or has_adapters:
        return AdditionalModel()
    section_name = f"{REFERENCE_PREFIX}.{'megatron' if is_megatron else 'fsdp_config'}"
    weight_format = str(reader.value(config, f"{section_name}.model_dtype", "fp32")) if not is_megatron else "bf16"
    reference_location: ModelLocation = "host" if reader.flag(config, f"{section_name}.param_offload") else "device"
    shard_count = layout.tp * layout.pp if is_megatron else layout.dp // layout.hsdp_replicas
    return AdditionalModel(reference_location, 4 if weight_format in ("fp32", "float32") else 2, shard_count)


def _critic_location(reader: LaunchReader, config: Table, is_megatron: bool) -> ModelLocation:
    """Returns where the critic's weights are: `device`, `host`, or `none` if advantages are not estimated by GAE."""
    if str(reader.value(config, "algorithm.adv_estimator", "gae")) != "gae":
        return "none"
    section_name = "critic.megatron" if is_megatron else "critic.model.fsdp_config"
    offloads_to_host = all(
        reader.flag(config, f"{section_name}.{offload_key}") for offload_key in ("param_offload", "optimizer_offload")
    )
    reader.notes.append("the critic is counted as large as the actor")
    return "host" if offloads_to_host else "device"
