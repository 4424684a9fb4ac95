"""Reads commands of DeepSpeed-Chat's step 3 (RLHF), in which one process trains an actor and a critic.

Source: DeepSpeedExamples at 45b4b715: applications/DeepSpeed-Chat/training/step3_rlhf_finetuning/main.py for arguments,
dschat/rlhf/rlhf_engine.py for the models and their DeepSpeed configs, dschat/rlhf/ppo_trainer.py for the passes.
"""

from __future__ import annotations

from typing import Any

from ...costs.params import params
from ...errors import InputError
from ...sources.huggingface.family import field_names
from ...sources.target import load
from ...units import DTYPE_BITS
from ..argument_names import argument_names
from ..launch.launch_types import LaunchReader, Table, read_integer
from ..launch.rollout import AdditionalModel, ModelLocation, Rollout

SOURCE_FILES = "dschat/rlhf/rlhf_engine.py, ppo_trainer.py"
"""DeepSpeed-Chat's source files that state which models are on a device."""

STEP_1_ARGUMENT_BY_ACTOR_ARGUMENT = {
    "per_device_training_batch_size": "per_device_train_batch_size",
    "actor_zero_stage": "zero_stage",
    "actor_gradient_checkpointing": "gradient_checkpointing",
    "actor_lora_dim": "lora_dim",
    "actor_lora_module_name": "lora_module_name",
    "actor_dropout": "dropout",
}
"""Argument of step 3 about the actor → the equivalent argument of step 1."""

ARGUMENTS_READ = field_names("""
    per_device_generation_batch_size max_prompt_seq_len max_answer_seq_len critic_zero_stage critic_lora_dim
    gradient_accumulation_steps offload dtype only_optimize_lora compute_fp32_loss offload_reference_model
    offload_reward_model critic_model_name_or_path unsupervised_dataset_name enable_ema enable_mixed_precision_lora
    """) | frozenset(STEP_1_ARGUMENT_BY_ACTOR_ARGUMENT)

ARGUMENTS_IGNORED = argument_names(__file__, "ignored_by_step_3")

REFUSED_ARGUMENTS = {
    "enable_ema": "a moving average of the weights is not counted",
    "enable_mixed_precision_lora": "gathers of frozen weights in 8 bits are not modelled",
    "critic_lora_dim": "adapters of the critic are not modelled",
}
"""Argument that is modelled only if it is not set → the reason."""


def step1_arguments(reader: LaunchReader, step3_arguments: Table) -> dict[str, Any]:
    """Translates the actor's arguments of step 3 (RLHF) to arguments of step 1 (supervised fine-tuning)."""
    reader.refuse_if_set(step3_arguments, REFUSED_ARGUMENTS, "--")
    accumulation_steps = reader.integer(step3_arguments, "gradient_accumulation_steps", 1)
    step1_table = {
        step3_name: step3_value
        for step3_name, step3_value in step3_arguments.items()
        if step3_name in ("offload", "dtype", "only_optimize_lora")
    }
    step1_table |= {
        STEP_1_ARGUMENT_BY_ACTOR_ARGUMENT[argument_name]: argument_value
        for argument_name, argument_value in step3_arguments.items()
        if argument_name in STEP_1_ARGUMENT_BY_ACTOR_ARGUMENT
    }
    return {
        **step1_table,
        "per_device_train_batch_size": reader.integer(step3_arguments, "per_device_training_batch_size", 16),
        "zero_stage": reader.value(step3_arguments, "actor_zero_stage", 0),
        "gradient_accumulation_steps": accumulation_steps
        * (2 if step3_arguments.get("unsupervised_dataset_name") else 1),
        "max_seq_len": _sequence_length(reader, step3_arguments),
    }


def loss_settings(reader: LaunchReader, arguments: Table) -> dict[str, Any]:
    """Returns the settings of the actor's loss, whose log-probabilities have the number format of the logits."""
    if reader.flag(arguments, "compute_fp32_loss"):
        return {}
    return {"logits_dtype": "bfloat16" if arguments.get("dtype") == "bf16" else "float16"}


def read_rollout(reader: LaunchReader, arguments: Table, rank_count: int) -> Rollout:
    """Returns the critic, reference and reward models, which run on the actor's devices."""
    reader.notes.append(
        "the critic is counted with its weights, gradients and states, not with its passes; what the hybrid engine "
        "takes to generate answers is not counted"
    )
    token_count = _sequence_length(reader, arguments)
    actor_stage = read_integer(reader, "--actor_zero_stage", reader.value(arguments, "actor_zero_stage", 0), minimum=0)
    critic_stage = read_integer(
        reader, "--critic_zero_stage", reader.value(arguments, "critic_zero_stage", 0), minimum=0
    )
    critic_parameters = _critic_parameter_count(reader, arguments)
    return Rollout(
        source=SOURCE_FILES,
        reference_model=AdditionalModel(
            _model_location(reader, arguments, "offload_reference_model"),
            rank_count=rank_count if actor_stage == 3 else 1,
        ),
        reward_model=AdditionalModel(
            _model_location(reader, arguments, "offload_reward_model"),
            rank_count=rank_count if critic_stage == 3 else 1,
            parameter_count=critic_parameters,
        ),
        critic_location="device",
        critic_bytes=_critic_bytes(critic_parameters, critic_stage, rank_count, reader.flag(arguments, "offload")),
        sequence_count=reader.integer(arguments, "per_device_generation_batch_size", 16),
        tokens_per_sequence=token_count,
        logit_tokens_per_sequence=token_count,
        bytes_per_logit=12
        if reader.flag(arguments, "compute_fp32_loss")
        else 6,  # both models' logits, and log-probabilities
    )


def _sequence_length(reader: LaunchReader, arguments: Table) -> int:
    return reader.integer(arguments, "max_prompt_seq_len", 256) + reader.integer(arguments, "max_answer_seq_len", 256)


def _model_location(reader: LaunchReader, arguments: Table, flag: str) -> ModelLocation:
    return "host" if reader.flag(arguments, flag) else "device"


def _critic_parameter_count(reader: LaunchReader, arguments: Table) -> int:
    """Returns the critic's number of parameters from its name; 0, with a note, for a name without a size."""
    critic_name = str(arguments.get("critic_model_name_or_path", ""))[:200]
    try:
        parameter_count: int = params(load(critic_name).model).total
        return parameter_count
    except InputError:
        reader.notes.append("critic and reward model are counted as large as the actor: their names are of no model")
        return 0


def _critic_bytes(parameter_count: int, zero_stage: int, rank_count: int, is_offloaded: bool) -> int:
    """Returns a device's bytes for the critic's weights, gradients, master weights and Adam states.

    Each stage of ZeRO divides one of them more: the states from stage 1, gradients from 2, weights from 3.
    """
    weight_bytes, state_bytes = DTYPE_BITS["float16"] // 8, 3 * DTYPE_BITS["float32"] // 8
    tensor_kinds = [
        (weight_bytes, 3, is_offloaded and zero_stage == 3),
        (weight_bytes, 2, is_offloaded),
        (state_bytes, 1, is_offloaded),
    ]
    critic_bytes: int = sum(
        -(-parameter_count // (rank_count if zero_stage >= first_sharded_stage else 1)) * element_bytes
        for element_bytes, first_sharded_stage, is_on_host in tensor_kinds
        if not is_on_host
    )
    return critic_bytes
