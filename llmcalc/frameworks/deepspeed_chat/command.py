"""Reads commands of DeepSpeed-Chat's steps 1 and 2, whose main.py makes the DeepSpeed config itself.

Source: DeepSpeedExamples at 83757d9: applications/DeepSpeed-Chat/training/{step1_supervised,step2_reward_model,
step2_dpo}_finetuning/main.py, and dschat/utils/ds_utils.py, `get_train_ds_config` and `get_eval_ds_config`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import shown
from ..deepspeed.config_file import run_of_program
from ..frozen_model import FrozenModel
from ..launch.command_line import arguments_of, model_name, plain_arguments
from ..launch.program_readers import launch_of_run
from ..launch.record import CommandLine, Launch, Reading, Source, Table, reading_of, size_of, unknown_keys
from ..launch.trainer import pair_settings

READ = frozenset(
    """
    per_device_train_batch_size max_seq_len gradient_accumulation_steps gradient_checkpointing offload dtype zero_stage
    lora_dim lora_module_name only_optimize_lora compute_fp32_loss dropout offload_reference_model
    """.split()  # noqa: SIM905
)

IGNORED = frozenset(
    """
    data_path data_split sft_only_data_path data_output_path model_name_or_path per_device_eval_batch_size learning_rate
    weight_decay num_train_epochs lr_scheduler_type num_warmup_steps output_dir seed local_rank lora_learning_rate
    enable_tensorboard tensorboard_path add_eot_token eot_token print_loss deepspeed deepspeed_config
    num_padding_at_beginning eval_interval eval_iters beta label_smoothing
    """.split()  # noqa: SIM905
)

STEPS = {r"step3|rlhf": "rlhf", r"step2_dpo|dpo": "sigmoid", r"step2|reward": "reward"}
"""Pattern in the names of a script's folders → the loss of its step; step 1 otherwise."""


def starts_program(command: CommandLine) -> bool:
    """Whether a command starts a main.py with DeepSpeed-Chat's arguments."""
    known_arguments = ("--zero_stage", "--actor_zero_stage")
    return command.program == "main.py" and any(word.partition("=")[0] in known_arguments for word in command.words)


def read_command(command: CommandLine, source: Source) -> Launch:
    """Returns the training run of a DeepSpeed-Chat command. Raises `InputError`, which names file and argument."""
    from .record import LAUNCH_FILE

    with reading_of(source) as reading:
        arguments = arguments_of(command.words, source.where)
        loss = _loss_of_command(source.where, arguments)
        if loss == "rlhf":
            raise reading.wrong(
                f"line {command.line}",
                "DeepSpeed-Chat's step 3 runs four models in one process, which is not modelled; expected step 1 or 2",
            )
        data = plain_arguments(arguments, reading, READ)
        target = model_name(reading, "--model_name_or_path", arguments.get("--model_name_or_path"))
        reading.ignored += [name for name in data if name in IGNORED]
        unknown_keys(reading, data, (*READ, *IGNORED), "", "no argument that is known")
        if not loss and "step1" not in source.where:
            reading.notes.append("main.py is taken for that of step 1, supervised fine-tuning")
        config, settings = _deepspeed_config(reading, data), _other_settings(reading, data)
        if loss == "reward" and "modules_to_save" in settings:
            settings["modules_to_save"] = ("embed_tokens",)  # its model has no output head
        if loss:
            settings |= _pair_settings(reading, data, loss, config)
        run = run_of_program(reading, config, source.world_size, settings)
        return launch_of_run(reading, LAUNCH_FILE, "deepspeed", run, target)


def _loss_of_command(where: str, arguments: Mapping[str, Any]) -> str:
    """Returns the loss of the training step (1, 2) that a command runs; empty for step 1. where: the file's name."""
    if "--actor_model_name_or_path" in arguments:
        return "rlhf"
    if "--num_padding_at_beginning" in arguments:
        return "reward"
    name = where.lower()
    return next((loss for pattern, loss in STEPS.items() if re.search(pattern, name)), "")


def _pair_settings(reading: Reading, data: Table, loss: str, config: dict[str, Any]) -> dict[str, Any]:
    """Doubles the micro-batch of a config for pairs, and returns the settings of their loss."""
    size = config["train_micro_batch_size_per_gpu"]
    batch_settings = pair_settings(
        reading, loss, {"batch": size}, FrozenModel("step2_dpo_finetuning/main.py", "float16")
    )
    if reading.flag(data, "offload_reference_model"):
        reading.frozen = None
        reading.notes.append("--offload_reference_model: the reference model is on the host")
    config["train_micro_batch_size_per_gpu"] = batch_settings.pop("batch")
    return batch_settings


def _deepspeed_config(reading: Reading, data: Table) -> dict[str, Any]:
    """Returns the DeepSpeed config that main.py creates."""
    dtype = reading.value(data, "dtype", "fp16")
    if dtype not in ("fp16", "bf16"):
        raise reading.wrong("--dtype", f"{shown(dtype)}; expected fp16 or bf16")
    device = "cpu" if reading.flag(data, "offload") else "none"
    stage = size_of(reading, "--zero_stage", reading.value(data, "zero_stage", 0), least=0)
    if stage == 3 and reading.flag(data, "gradient_checkpointing"):
        reading.notes.append("memory_efficient_linear is off: the gathered weights of one layer more are not counted")
    elif stage == 3:
        reading.unknown["--zero_stage"] = (
            "stage 3 with memory_efficient_linear off keeps gathered weights; add --gradient_checkpointing"
        )
    return {
        "train_micro_batch_size_per_gpu": reading.size(data, "per_device_train_batch_size", 16),
        "gradient_accumulation_steps": reading.size(data, "gradient_accumulation_steps", 1),
        dtype: {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": True,
            "offload_param": {"device": device},
            "offload_optimizer": {"device": device},
            "stage3_param_persistence_threshold": 10_000,
            "stage3_max_live_parameters": 30_000_000,
            "stage3_prefetch_bucket_size": 30_000_000,
        },
    }


def _adapters(reading: Reading, data: Table) -> dict[str, Any]:
    """Returns the settings of adapters, which have the format of the weights (dschat/utils/module/lora.py).

    They are beside all linear layers of the layers. Without `--only_optimize_lora` all other parameters are trained:
    the embedding, the head, norms and biases.
    """
    settings: dict[str, Any] = {
        "lora_rank": size_of(reading, "--lora_dim", data["lora_dim"]),
        "lora_targets": ("all-linear",),
        "lora_library": "torchtune",  # which casts nothing either
        "lora_dtype": str(data.get("dtype", "fp16")),
    }
    if not reading.flag(data, "only_optimize_lora"):
        settings["modules_to_save"] = ("embed_tokens", "lm_head")
        reading.notes.append(
            "without --only_optimize_lora the embedding and the head are trained, counted with a frozen copy; trained "
            "norms and biases are left out: an estimate"
        )
    return settings


def _other_settings(reading: Reading, data: Table) -> dict[str, Any]:
    """Returns the run's settings that are not in the DeepSpeed config."""
    settings: dict[str, Any] = {"seq": reading.size(data, "max_seq_len", 512), "optimizer": "adamw"}
    if reading.flag(data, "gradient_checkpointing"):
        settings["recompute"] = "full-reentrant"
    if data.get("lora_dim") not in (None, 0):
        settings |= _adapters(reading, data)
    for name in ("compute_fp32_loss",):
        if reading.flag(data, name):
            reading.unknown[f"--{name}"] = "it is modelled without"
    return settings
