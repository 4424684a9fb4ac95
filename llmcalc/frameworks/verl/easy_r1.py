"""Reads configs and commands of EasyR1, a fork of verl with other keys and only FSDP, by converting them to verl's.

Source: hiyouga/EasyR1 at b44b311b (2026-07-30): trainer/{main,config}.py and workers/{actor,rollout}/config.py in its
folder verl for defaults; workers/fsdp_workers.py and workers/actor/dp_actor.py for number formats and micro-batches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..launch.command_line import parsed_argument_value
from ..launch.launch_types import LaunchReader, Table
from .rollout import ACTOR_PREFIX, MODEL_PREFIX, REFERENCE_PREFIX, ROLLOUT_PREFIX

PROGRAM = "verl.trainer.main"

VERL_KEYS: Mapping[str, str] = {
    "worker.actor.model.model_path": f"{MODEL_PREFIX}.path",
    "worker.actor.model.enable_gradient_checkpointing": f"{MODEL_PREFIX}.enable_gradient_checkpointing",
    "worker.actor.model.lora.rank": f"{MODEL_PREFIX}.lora_rank",
    "worker.actor.model.lora.target_modules": f"{MODEL_PREFIX}.target_modules",
    "worker.actor.model.freeze_vision_tower": f"{ACTOR_PREFIX}.freeze_vision_tower",
    "worker.actor.padding_free": f"{MODEL_PREFIX}.use_remove_padding",
    "worker.actor.ulysses_size": f"{ACTOR_PREFIX}.ulysses_sequence_parallel_size",
    "worker.actor.global_batch_size": f"{ACTOR_PREFIX}.ppo_mini_batch_size",
    "worker.actor.dynamic_batching": f"{ACTOR_PREFIX}.use_dynamic_bsz",
    "worker.actor.use_torch_compile": f"{ACTOR_PREFIX}.use_torch_compile",
    "worker.actor.fsdp.torch_dtype": f"{ACTOR_PREFIX}.fsdp_config.model_dtype",
    "worker.actor.fsdp.enable_full_shard": f"{ACTOR_PREFIX}.fsdp_config.reshard_after_forward",
    "worker.actor.fsdp.enable_cpu_offload": f"{ACTOR_PREFIX}.fsdp_config.offload_policy",
    "worker.actor.fsdp.fsdp_size": f"{ACTOR_PREFIX}.fsdp_config.fsdp_size",
    "worker.actor.fsdp.mp_param_dtype": f"{ACTOR_PREFIX}.fsdp_config.mixed_precision.param_dtype",
    "worker.actor.fsdp.mp_reduce_dtype": f"{ACTOR_PREFIX}.fsdp_config.mixed_precision.reduce_dtype",
    "worker.actor.offload.offload_params": f"{ACTOR_PREFIX}.fsdp_config.param_offload",
    "worker.actor.offload.offload_optimizer": f"{ACTOR_PREFIX}.fsdp_config.optimizer_offload",
    "worker.ref.fsdp.torch_dtype": f"{REFERENCE_PREFIX}.fsdp_config.model_dtype",
    "worker.ref.fsdp.enable_cpu_offload": f"{REFERENCE_PREFIX}.fsdp_config.param_offload",
    "worker.critic.offload.offload_params": "critic.model.fsdp_config.param_offload",
    "worker.critic.offload.offload_optimizer": "critic.model.fsdp_config.optimizer_offload",
    "worker.rollout.n": f"{ROLLOUT_PREFIX}.n",
    "worker.rollout.gpu_memory_utilization": f"{ROLLOUT_PREFIX}.gpu_memory_utilization",
    "worker.rollout.tensor_parallel_size": f"{ROLLOUT_PREFIX}.tensor_model_parallel_size",
    "worker.rollout.max_model_len": f"{ROLLOUT_PREFIX}.max_model_len",
    "worker.rollout.max_num_batched_tokens": f"{ROLLOUT_PREFIX}.max_num_batched_tokens",
    "worker.rollout.enforce_eager": f"{ROLLOUT_PREFIX}.enforce_eager",
}
"""Key of EasyR1 → the equivalent key of verl."""

DEFAULTS: Mapping[str, Any] = {
    "worker.actor.dynamic_batching": True,
    "worker.ref.fsdp.torch_dtype": "bf16",
    "worker.rollout.gpu_memory_utilization": 0.6,
}
"""Key of EasyR1 → its default, if it differs from verl's."""

WORDS_OF_MESSAGES: Mapping[str, str] = {
    "dynamic_batching": "use_dynamic_bsz",
    "micro_batch_size_per_device_for_update samples at their longest": "ppo_max_token_len_per_gpu tokens",
    "verl.trainer.main": "verl.trainer.main_ppo",
}
"""EasyR1's term → verl's term in messages."""

UPDATE_SIZE_KEY = "worker.actor.micro_batch_size_per_device_for_update"
EXPERIENCE_SIZE_KEY = "worker.actor.micro_batch_size_per_device_for_experience"
REFERENCE_OFFLOAD_KEY = "worker.ref.offload.offload_params"
OPTIMIZER_KEY = "worker.actor.optim.strategy"

KEYS_WITHOUT_MEMORY = re.compile(
    r"worker\.((actor|critic)\.(strategy|max_grad_norm|clip_ratio_\w+|loss_\w+|ppo_epochs|tau_\w+|cliprange_value"
    r"|optim\.(lr|betas|weight_decay|lr_\w+|min_lr_ratio|warmup_style)"
    r"|model\.(tokenizer_path|trust_remote_code|lora\.(alpha|exclude_modules)))"
    r"|(actor|critic|ref)\.fsdp\.(enable_rank0_init|use_orig_params|mp_buffer_dtype)|ref\.strategy"
    r"|rollout\.(name|temperature|top_[pk]|seed|limit_images|dtype|ignore_eos|enable_chunked_prefill|disable_\w+"
    r"|val_override_config.*)|critic\..*|ref\.fsdp\.enable_full_shard|(reward|hybrid_engine).*)"
)
"""Keys of EasyR1's workers that change no device memory, or only that of a reference model between its passes."""


def is_easy_r1(config: Table) -> bool:
    """Whether tables are a config of EasyR1."""
    worker_table = config.get("worker")
    return isinstance(worker_table, Mapping) and {"actor", "rollout"} <= worker_table.keys()


def with_verl_keys(reader: LaunchReader, written_values: Table) -> dict[str, Any]:
    """Returns verl's keys and values that are equivalent to EasyR1's.

    written_values: dotted key → value. Keys of workers that are not known are refused.
    """
    config = {
        **DEFAULTS,
        **{
            written_key: parsed_argument_value(written_value)
            for written_key, written_value in written_values.items()
            if written_value is not None
        },
    }
    reader.ignored_arguments += [
        written_key for written_key in config if not written_key.startswith(("worker.", "data.max_", "trainer.n"))
    ]
    known_keys = (*VERL_KEYS, UPDATE_SIZE_KEY, EXPERIENCE_SIZE_KEY, REFERENCE_OFFLOAD_KEY, OPTIMIZER_KEY)
    for written_key in config:
        if (
            written_key.startswith("worker.")
            and written_key not in known_keys
            and KEYS_WITHOUT_MEMORY.fullmatch(written_key) is None
        ):
            reader.refuse(written_key[:100], "no key that is known")
    if str(reader.value(config, OPTIMIZER_KEY, "adamw")) != "adamw":
        reader.refuse(OPTIMIZER_KEY, "its states in bf16 with compensations are not modelled; adamw is")
    verl_config: dict[str, Any] = {
        **{
            written_key: written_value
            for written_key, written_value in config.items()
            if not written_key.startswith("worker.")
        },
        **{
            VERL_KEYS[written_key]: written_value
            for written_key, written_value in config.items()
            if written_key in VERL_KEYS
        },
        f"{ACTOR_PREFIX}.optim.override_optimizer_config.fused": True,
        f"{ACTOR_PREFIX}.use_kl_loss": not reader.flag(config, "algorithm.disable_kl"),
        "algorithm.adv_estimator": config.get("algorithm.adv_estimator", "grpo"),
    }
    if reader.flag(config, REFERENCE_OFFLOAD_KEY):
        verl_config[f"{REFERENCE_PREFIX}.fsdp_config.param_offload"] = True
    return verl_config | _micro_batches(reader, config)


def _micro_batches(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns verl's keys for micro-batches: the tokens of the longest samples, or the number of samples."""
    update_size, experience_size = (
        reader.integer(config, size_key, default_size)
        for size_key, default_size in ((UPDATE_SIZE_KEY, 4), (EXPERIENCE_SIZE_KEY, 16))
    )
    if not reader.flag(config, "worker.actor.dynamic_batching", True):
        return {
            f"{ACTOR_PREFIX}.ppo_micro_batch_size_per_gpu": update_size,
            f"{ROLLOUT_PREFIX}.log_prob_micro_batch_size_per_gpu": experience_size,
        }
    sample_tokens = sum(
        reader.integer(config, f"data.max_{text_kind}_length", 512) for text_kind in ("prompt", "response")
    )
    rank_count = reader.integer(config, "worker.actor.ulysses_size", 1)
    return {
        f"{ACTOR_PREFIX}.ppo_max_token_len_per_gpu": -(-update_size * sample_tokens // rank_count),
        f"{ROLLOUT_PREFIX}.log_prob_max_token_len_per_gpu": -(-experience_size * sample_tokens // rank_count),
    }


def with_easy_r1_keys(message_text: str) -> str:
    """Returns a message in which verl's keys are replaced by the keys that a user of EasyR1 writes."""
    for easy_r1_key, verl_key in [*VERL_KEYS.items(), *WORDS_OF_MESSAGES.items()]:
        message_text = re.sub(rf"{re.escape(verl_key)}(?![\w.])", easy_r1_key, message_text)
    return message_text
