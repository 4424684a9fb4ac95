"""Reads DeepSpeed settings from accelerate configs and from Trainer arguments.

Sources: accelerate 1.x, utils/dataclasses.py, `DeepSpeedPlugin`; transformers/training_args.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...sources.huggingface.family import field_names
from ..launch.record import LaunchReader, LaunchSettings, Table, size_of, unknown_keys
from .config_file import read_into, without_chunked_loss

FILE = "a DeepSpeed JSON"

PLUGIN = field_names("""
    zero_stage gradient_accumulation_steps offload_optimizer_device offload_param_device deepspeed_config_file
    """)

PLUGIN_IGNORED = field_names("""
    zero3_init_flag zero3_save_16bit_model gradient_clipping deepspeed_multinode_launcher deepspeed_hostfile
    deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_moe_layer_cls_names offload_optimizer_nvme_path
    offload_param_nvme_path seq_parallel_communication_data_type
    """)


def read_accelerate(
    reader: LaunchReader, config: Table, world_size: int, command_settings: dict[str, Any]
) -> LaunchSettings:
    """Returns the DeepSpeed run of an accelerate config."""
    reader.refuse_groups(config)
    launch_settings = _plugin_run(reader, config, world_size)
    settings = {key: value for key, value in command_settings.items() if key != "precision"}
    return without_chunked_loss(reader, launch_settings._replace(settings={**settings, **launch_settings.settings}))


def _plugin_run(reader: LaunchReader, accelerate_config: Table, world_size: int) -> LaunchSettings:
    """Returns the run of an accelerate config with DeepSpeed's JSON file or the plugin's keys."""
    table = reader.table(accelerate_config, "deepspeed_config")
    section = "deepspeed_config"
    reader.ignored += [f"{section}.{key}"[:80] for key in table if key in PLUGIN_IGNORED]
    unknown_keys(reader, table, (*PLUGIN, *PLUGIN_IGNORED), section, "no key that is known")
    name = str(accelerate_config.get("mixed_precision") or "no").lower()
    precision = {"bf16": name == "bf16", "fp16": name == "fp16", "batch": 1}
    if table.get("deepspeed_config_file") is not None:
        config = reader.fetched(f"{section}.deepspeed_config_file", table["deepspeed_config_file"], FILE)
        return _without_batch_size(read_into(reader, config, world_size, precision), config)
    stage = size_of(reader, f"{section}.zero_stage", table.get("zero_stage", 2), least=0)
    zero: dict[str, Any] = {"stage": stage}
    for key in ("offload_optimizer_device", "offload_param_device"):
        if table.get(key) not in (None, "none", False):
            zero[key.removesuffix("_device")] = {"device": table[key]}
    deepspeed_config: dict[str, Any] = {"zero_optimization": zero, "train_micro_batch_size_per_gpu": "auto"}
    deepspeed_config |= {key: {"enabled": precision[key]} for key in ("bf16", "fp16")}
    if table.get("gradient_accumulation_steps") is not None:
        deepspeed_config["gradient_accumulation_steps"] = table["gradient_accumulation_steps"]
    return _without_batch_size(read_into(reader, deepspeed_config, world_size, precision), deepspeed_config)


def _without_batch_size(launch_settings: LaunchSettings, config: Table) -> LaunchSettings:
    """Returns the run without a micro-batch size if the config leaves the size to the script."""
    if config.get("train_micro_batch_size_per_gpu", "auto") != "auto":
        return launch_settings
    return launch_settings._replace(
        settings={key: value for key, value in launch_settings.settings.items() if key != "batch"}
    )


def read_trainer(
    reader: LaunchReader, config: Table, world_size: int, command_settings: dict[str, Any]
) -> LaunchSettings:
    """Returns the DeepSpeed run of the Trainer's arguments."""
    reader.refuse_groups(config)
    argument = config["deepspeed"]
    table = argument if isinstance(argument, Mapping) else reader.fetched("deepspeed", argument, FILE)
    precision = {name: bool(config.get(name)) for name in ("bf16", "fp16")}
    launch_settings = read_into(reader, table, world_size, {**command_settings, **precision})
    settings = {
        key: value for key, value in command_settings.items() if key not in ("precision", "dtype", "optimizer_impl")
    }
    return without_chunked_loss(reader, launch_settings._replace(settings={**settings, **launch_settings.settings}))
