"""Reads DeepSpeed settings from accelerate configs and from Trainer arguments.

Sources: accelerate 1.x, utils/dataclasses.py, `DeepSpeedPlugin`; transformers/training_args.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...sources.huggingface.family import field_names
from ..launch.launch_types import LaunchReader, LaunchSettings, Table, read_integer, record_unknown_keys
from .config_file import read_deepspeed_section

FILE_DESCRIPTION = "a DeepSpeed JSON"

PLUGIN_KEYS = field_names("""
    zero_stage gradient_accumulation_steps offload_optimizer_device offload_param_device deepspeed_config_file
    """)

PLUGIN_KEYS_IGNORED = field_names("""
    zero3_init_flag zero3_save_16bit_model gradient_clipping deepspeed_multinode_launcher deepspeed_hostfile
    deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_moe_layer_cls_names offload_optimizer_nvme_path
    offload_param_nvme_path seq_parallel_communication_data_type
    """)


def read_accelerate(
    reader: LaunchReader, config: Table, world_size: int, command_settings: dict[str, Any]
) -> LaunchSettings:
    """Returns the DeepSpeed run that an accelerate config describes."""
    reader.refuse_parallel_groups(config)
    launch_settings = _settings_of_accelerate_config(reader, config, world_size)
    settings = {option: option_value for option, option_value in command_settings.items() if option != "precision"}
    return launch_settings._replace(settings={**settings, **launch_settings.settings})


def _settings_of_accelerate_config(reader: LaunchReader, accelerate_config: Table, world_size: int) -> LaunchSettings:
    """Returns the run of an accelerate config, from the DeepSpeed file that the config names or its keys."""
    plugin_table = reader.table(accelerate_config, "deepspeed_config")
    section_name = "deepspeed_config"
    reader.ignored_arguments += [
        f"{section_name}.{plugin_key}"[:80] for plugin_key in plugin_table if plugin_key in PLUGIN_KEYS_IGNORED
    ]
    record_unknown_keys(reader, plugin_table, (*PLUGIN_KEYS, *PLUGIN_KEYS_IGNORED), section_name)
    precision_name = str(accelerate_config.get("mixed_precision") or "no").lower()
    precision_flags = {"bf16": precision_name == "bf16", "fp16": precision_name == "fp16", "batch": 1}
    if plugin_table.get("deepspeed_config_file") is not None:
        config = reader.tables_of_named_file(
            f"{section_name}.deepspeed_config_file", plugin_table["deepspeed_config_file"], FILE_DESCRIPTION
        )
        return _without_batch_size(read_deepspeed_section(reader, config, world_size, precision_flags), config)
    zero_stage = read_integer(reader, f"{section_name}.zero_stage", plugin_table.get("zero_stage", 2), minimum=0)
    zero_table: dict[str, Any] = {"stage": zero_stage}
    for device_key in ("offload_optimizer_device", "offload_param_device"):
        if plugin_table.get(device_key) not in (None, "none", False):
            zero_table[device_key.removesuffix("_device")] = {"device": plugin_table[device_key]}
    deepspeed_config: dict[str, Any] = {"zero_optimization": zero_table, "train_micro_batch_size_per_gpu": "auto"}
    deepspeed_config |= {device_key: {"enabled": precision_flags[device_key]} for device_key in ("bf16", "fp16")}
    if plugin_table.get("gradient_accumulation_steps") is not None:
        deepspeed_config["gradient_accumulation_steps"] = plugin_table["gradient_accumulation_steps"]
    return _without_batch_size(
        read_deepspeed_section(reader, deepspeed_config, world_size, precision_flags), deepspeed_config
    )


def _without_batch_size(launch_settings: LaunchSettings, config: Table) -> LaunchSettings:
    """Returns the run without a micro-batch size if the accelerate config states none."""
    if config.get("train_micro_batch_size_per_gpu", "auto") != "auto":
        return launch_settings
    return launch_settings._replace(
        settings={
            option: option_value for option, option_value in launch_settings.settings.items() if option != "batch"
        }
    )


def read_trainer(
    reader: LaunchReader, config: Table, world_size: int, command_settings: dict[str, Any]
) -> LaunchSettings:
    """Returns the DeepSpeed run that the Trainer's arguments describe."""
    reader.refuse_parallel_groups(config)
    argument = config["deepspeed"]
    deepspeed_table = (
        argument
        if isinstance(argument, Mapping)
        else reader.tables_of_named_file("deepspeed", argument, FILE_DESCRIPTION)
    )
    format_flags = {format_name: bool(config.get(format_name)) for format_name in ("bf16", "fp16")}
    launch_settings = read_deepspeed_section(reader, deepspeed_table, world_size, {**command_settings, **format_flags})
    settings = {
        setting_name: setting_value
        for setting_name, setting_value in command_settings.items()
        if setting_name not in ("precision", "dtype", "optimizer_impl")
    }
    return launch_settings._replace(settings={**settings, **launch_settings.settings})
