"""Reads a config of open-instruct: arguments of finetune.py and of dpo_tune_cache.py.

Source: open-instruct e6c3044aa (2026-08-20), open_instruct/finetune.py. Weights are loaded in bf16, and accelerate runs
them under its own config, which is another file.
"""

from __future__ import annotations

from typing import Any

from ..argument_names import argument_names
from ..launch.accelerate_command import FRAMEWORK_KEYS, with_launcher_arguments
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, Table, launch_reader, read_integer
from ..launch.trainer import (
    IGNORED_TRAINER_ARGUMENTS,
    known_argument_names,
    launch_under_selected_framework,
    lora_settings,
    preference_pair_settings,
)

ARGUMENTS_READ = argument_names(__file__, "read")

ARGUMENTS_IGNORED = argument_names(__file__, "ignored")
"""Arguments that do not change the memory of a training step."""

IDENTIFYING_ARGUMENTS = (
    "use_slow_tokenizer",
    "with_tracking",
    "checkpointing_steps",
    "dataset_mixer_list",
    "use_flash_attn",
    "use_lora",
)
"""Arguments that open-instruct has and TRL lacks."""


def is_open_instruct(config: Table) -> bool:
    """Whether a table is a config of open-instruct."""
    return (
        "model_name_or_path" in config
        and any(argument_name in config for argument_name in IDENTIFYING_ARGUMENTS)
        and "finetuning_type" not in config
    )


def read_open_instruct(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of an open-instruct config. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        reader.record_argument_names(
            config, (*known_argument_names(), *ARGUMENTS_READ), IGNORED_TRAINER_ARGUMENTS | ARGUMENTS_IGNORED
        )
        if config.get("sequence_parallel_size") not in (None, 1):
            reader.refuse("sequence_parallel_size", "it is modelled as 1")
        run_settings: dict[str, Any] = {
            "phase": "training",
            "batch": reader.integer(config, "per_device_train_batch_size", 8),
            "num_microbatches": reader.integer(config, "gradient_accumulation_steps", 1),
            "dtype": "bf16",
            "master_weights": "none",
            "attn_implementation": "flash" if reader.flag(config, "use_flash_attn", True) else "eager",
        }
        if config.get("max_seq_length") is not None:
            run_settings["seq"] = read_integer(reader, "max_seq_length", config["max_seq_length"])
        run_settings |= _optimizer_settings(reader, config)
        if reader.flag(config, "gradient_checkpointing"):
            run_settings["recompute"] = "full"
        if reader.flag(config, "use_liger_kernel"):
            run_settings |= {"norm": "fused", "cross_entropy": "chunked"}
        if reader.flag(config, "use_lora") or reader.flag(config, "use_qlora"):
            run_settings |= _adapter_settings(reader, config)
        loss_type = config.get("loss_type", config.get("dpo_loss_type"))
        if loss_type is not None:
            run_settings |= preference_pair_settings(reader, str(loss_type), run_settings, has_cached_reference=True)
            reader.notes.append("the reference model's log-probabilities are computed before the training, and cached")
        config = with_launcher_arguments(config, source_file, sets_precision=False)
        if not any(config.get(framework_key) for framework_key in FRAMEWORK_KEYS):
            reader.notes.append(
                "accelerate's own config says how devices divide the run; --zero and --fsdp say it here"
            )
        arguments = {
            argument_name: argument_value
            for argument_name, argument_value in config.items()
            if argument_name in known_argument_names()
        }
        return launch_under_selected_framework(reader, {**arguments, "bf16": True}, run_settings)


def _optimizer_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    if reader.flag(config, "use_8bit_optimizer") or reader.flag(config, "use_qlora"):
        state_bits = 8 if reader.flag(config, "use_8bit_optimizer") else 32
        return {"optimizer": "adamw-8bit"} if state_bits == 8 else {"optimizer": "adamw", "optimizer_dtype": "fp32"}
    return {
        "optimizer": "adamw",
        "optimizer_impl": "fused" if reader.flag(config, "fused_optimizer", True) else "foreach",
    }


def _adapter_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    target_modules = ["q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj"]
    adapter_settings = lora_settings(
        reader,
        rank=("lora_rank", reader.value(config, "lora_rank", 64)),
        targets_argument=("lora_target_modules", target_modules),
        dropout_value=reader.value(config, "lora_dropout", 0.1),
    )
    return adapter_settings | ({"base": "nf4-dq"} if reader.flag(config, "use_qlora") else {})
