"""Reads commands of DeepSpeed-Chat's three training steps, whose main.py builds the DeepSpeed config.

Source: DeepSpeedExamples at 83757d9: applications/DeepSpeed-Chat/training/{step1_supervised,step2_reward_model,
step2_dpo}_finetuning/main.py, and dschat/utils/ds_utils.py, `get_train_ds_config` and `get_eval_ds_config`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..argument_names import argument_names
from ..deepspeed.config_file import settings_of_generated_config
from ..frozen_model import FrozenModel
from ..launch.command_line import marked_model_name, parse_arguments, parsed_arguments
from ..launch.launch_types import CommandLine, Launch, LaunchReader, LaunchSource, Table, launch_reader, read_integer
from ..launch.trainer import preference_pair_settings
from . import step3

ARGUMENTS_READ = argument_names(__file__, "read")

ARGUMENTS_IGNORED = argument_names(__file__, "ignored")

LOSS_BY_STEP_PATTERN = {r"step3|rlhf": "rlhf", r"step2_dpo|dpo": "sigmoid", r"step2|reward": "reward"}
"""Pattern in the names of a script's folders → loss of its training step; a script without a match runs step 1."""


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts a main.py with DeepSpeed-Chat's arguments."""
    stage_flags = ("--zero_stage", "--actor_zero_stage")
    return command_line.program == "main.py" and any(
        command_word.partition("=")[0] in stage_flags for command_word in command_line.words
    )


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of a DeepSpeed-Chat command. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        arguments = parse_arguments(command_line.words, source_file.name_in_errors)
        loss_name = _loss_name(source_file.name_in_errors, arguments)
        if loss_name == "rlhf":
            return _read_step3(reader, arguments, source_file)
        argument_values = parsed_arguments(arguments, reader, ARGUMENTS_READ)
        model_id = marked_model_name(arguments.get("--model_name_or_path"))
        reader.record_argument_names(argument_values, ARGUMENTS_READ, ARGUMENTS_IGNORED)
        if not loss_name and "step1" not in source_file.name_in_errors:
            reader.notes.append("main.py is taken for that of step 1, supervised fine-tuning")
        config, settings = (
            _deepspeed_config(reader, argument_values),
            _settings_outside_deepspeed_config(reader, argument_values),
        )
        if loss_name == "reward" and "modules_to_save" in settings:
            settings["modules_to_save"] = ("embed_tokens",)  # its model has no output head
        if loss_name:
            settings |= _preference_pair_settings(reader, argument_values, loss_name, config)
        launch_settings = settings_of_generated_config(reader, config, source_file.world_size, settings)
        return reader.create_launch("deepspeed", launch_settings, model_name=model_id)


def _read_step3(reader: LaunchReader, arguments: Mapping[str, Any], source_file: LaunchSource) -> Launch:
    """Returns the training run of the actor in step 3 (RLHF), with the other models on the same devices."""
    step3_arguments = parsed_arguments(arguments, reader, step3.ARGUMENTS_READ - {"critic_model_name_or_path"})
    model_id = marked_model_name(arguments.get("--actor_model_name_or_path"))
    reader.record_argument_names(step3_arguments, step3.ARGUMENTS_READ, ARGUMENTS_IGNORED | step3.ARGUMENTS_IGNORED)
    actor_arguments = step3.step1_arguments(reader, step3_arguments)
    config = _deepspeed_config(reader, actor_arguments)
    settings = _settings_outside_deepspeed_config(reader, actor_arguments) | step3.loss_settings(
        reader, step3_arguments
    )
    launch_settings = settings_of_generated_config(reader, config, source_file.world_size, settings)
    rollout = step3.read_rollout(reader, step3_arguments, launch_settings.layout.dp)
    return reader.create_launch("deepspeed", launch_settings, model_name=model_id, rollout=rollout)


def _loss_name(name_in_errors: str, arguments: Mapping[str, Any]) -> str:
    """Returns the loss of a command: `rlhf`, `sigmoid` (DPO), `reward`, or empty for supervised fine-tuning.

    name_in_errors: the file's name.
    """
    if "--actor_model_name_or_path" in arguments:
        return "rlhf"
    if "--num_padding_at_beginning" in arguments:
        return "reward"
    lowercase_name = name_in_errors.lower()
    return next(
        (
            loss_name
            for step_pattern, loss_name in LOSS_BY_STEP_PATTERN.items()
            if re.search(step_pattern, lowercase_name)
        ),
        "",
    )


def _preference_pair_settings(
    reader: LaunchReader, arguments: Table, loss_name: str, config: dict[str, Any]
) -> dict[str, Any]:
    """Doubles the config's micro-batch, because answers come in pairs, and returns the settings of the pair loss."""
    micro_batch = config["train_micro_batch_size_per_gpu"]
    batch_settings = preference_pair_settings(
        reader, loss_name, {"batch": micro_batch}, FrozenModel("step2_dpo_finetuning/main.py", "float16")
    )
    if reader.flag(arguments, "offload_reference_model"):
        reader.frozen_model = None
        reader.notes.append("--offload_reference_model: the reference model is on the host")
    config["train_micro_batch_size_per_gpu"] = batch_settings.pop("batch")
    return batch_settings


def _deepspeed_config(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the DeepSpeed config that main.py creates."""
    dtype = reader.choice(config, "dtype", ("fp16", "bf16"), "fp16", "--")
    device = "cpu" if reader.flag(config, "offload") else "none"
    zero_stage = read_integer(reader, "--zero_stage", reader.value(config, "zero_stage", 0), minimum=0)
    if zero_stage == 3 and reader.flag(config, "gradient_checkpointing"):
        reader.notes.append("memory_efficient_linear is off: the gathered weights of one layer more are not counted")
    elif zero_stage == 3:
        reader.refuse(
            "--zero_stage",
            "stage 3 with memory_efficient_linear off keeps gathered weights; add --gradient_checkpointing",
        )
    return {
        "train_micro_batch_size_per_gpu": reader.integer(config, "per_device_train_batch_size", 16),
        "gradient_accumulation_steps": reader.integer(config, "gradient_accumulation_steps", 1),
        dtype: {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": zero_stage,
            "overlap_comm": True,
            "offload_param": {"device": device},
            "offload_optimizer": {"device": device},
            "stage3_param_persistence_threshold": 10_000,
            "stage3_max_live_parameters": 30_000_000,
            "stage3_prefetch_bucket_size": 30_000_000,
        },
    }


def _adapter_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of adapters in the weights' number format (dschat/utils/module/lora.py).

    They are beside all linear layers of the layers. Without `--only_optimize_lora` all other parameters are trained:
    the embedding, the head, norms and biases.
    """
    settings: dict[str, Any] = {
        "lora_rank": read_integer(reader, "--lora_dim", config["lora_dim"]),
        "lora_targets": ("all-linear",),
        "lora_library": "torchtune",  # which casts nothing either
        "lora_dtype": str(config.get("dtype", "fp16")),
    }
    if not reader.flag(config, "only_optimize_lora"):
        settings["modules_to_save"] = ("embed_tokens", "lm_head")
        reader.notes.append(
            "without --only_optimize_lora the embedding and the head are trained, counted with a frozen copy; trained "
            "norms and biases are left out: an estimate"
        )
    return settings


def _settings_outside_deepspeed_config(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns settings that are in the command's arguments but not in the DeepSpeed config."""
    settings: dict[str, Any] = {"seq": reader.integer(config, "max_seq_len", 512), "optimizer": "adamw"}
    if reader.flag(config, "gradient_checkpointing"):
        settings["recompute"] = "full-reentrant"
    if config.get("lora_dim") not in (None, 0):
        settings |= _adapter_settings(reader, config)
    if reader.flag(config, "compute_fp32_loss"):
        reader.refuse("--compute_fp32_loss", "it is modelled without")
    return settings
