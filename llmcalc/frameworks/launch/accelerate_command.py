"""Reads the settings of `accelerate launch` from its config file and its command-line arguments.

Source: accelerate 1.x, commands/launch.py; utils/launch.py, which hands both over to the script in the environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InputError
from ..argument_names import keyword_of
from .command_line import parse_arguments, parsed_argument_value
from .deepspeed_auto_values import AUTO_BATCH, AUTO_FORMATS
from .launch_types import LaunchSource, ReadText, Table
from .unresolved import is_unresolved, printable_word, unresolved_reason
from .yaml_text import parse_yaml

OFFLOAD_DEVICE_KEYS = ("offload_optimizer_device", "offload_param_device")


def accelerate_config_table(launcher: Sequence[str], name_in_errors: str, read_text: ReadText | None) -> dict[str, Any]:
    """Returns the config of `accelerate launch` with the command's arguments; empty for other launchers."""
    launcher_index = next((i for i, word in enumerate(launcher[:-1]) if word.endswith("accelerate")), None)
    if launcher_index is None or launcher[launcher_index + 1] != "launch":
        return {}
    arguments = parse_arguments([word for word in launcher[launcher_index + 2 :] if word != "-m"], name_in_errors)
    launch_flags = {keyword_of(flag): flag_value for flag, flag_value in arguments.items()}
    file_name = launch_flags.pop("config_file", None)
    file_table: dict[str, Any] = {}
    if isinstance(file_name, str):
        if is_unresolved(file_name):
            raise InputError(f"{name_in_errors}: --config_file: {unresolved_reason(file_name)}")
        if read_text is None:
            raise InputError(
                f"{name_in_errors}: {printable_word(file_name)}: names a file, which is not read; expected its contents"
            )
        file_path, file_text = read_text(file_name)
        config = parse_yaml(file_text, file_path)
        if not isinstance(config, Mapping):
            raise InputError(f"{file_path}: expected a config of accelerate")
        file_table = dict(config)
    return _with_command_flags(
        file_table, {config_key: parsed_argument_value(flag_value) for config_key, flag_value in launch_flags.items()}
    )


def _with_command_flags(config: dict[str, Any], flags: Table) -> dict[str, Any]:
    """Returns an accelerate config in which arguments of the command replace values of the file."""
    for config_key in ("num_processes", "num_machines", "mixed_precision", "gradient_accumulation_steps"):
        if config_key in flags:
            config[config_key] = flags[config_key]
    if flags.get("use_fsdp"):
        config["distributed_type"] = "FSDP"
    if flags.get("use_deepspeed"):
        config["distributed_type"] = "DEEPSPEED"
    for section_name, flag_pattern in (
        ("fsdp_config", r"fsdp_\w+"),
        ("deepspeed_config", r"zero_stage|deepspeed_config_file|offload_\w+"),
        ("parallelism_config", r"parallelism_config_\w+"),
    ):
        section_flags = {key: flag_value for key, flag_value in flags.items() if re.fullmatch(flag_pattern, key)}
        if section_flags:
            section_table = config.get(section_name)
            config[section_name] = {**(section_table if isinstance(section_table, Mapping) else {}), **section_flags}
    return config


def stated_process_count(config: Table) -> int | None:
    """Returns the number of processes that an accelerate config states; None if it states none."""
    process_count = config.get("num_processes")
    if isinstance(process_count, int) and not isinstance(process_count, bool) and 0 < process_count < 10**7:
        return process_count
    return None


def trainer_arguments(source_file: LaunchSource) -> dict[str, Any]:
    """Returns the Trainer's arguments that mean the same as the config of `accelerate launch`.

    Raises `InputError` for a framework that the Trainer does not start.
    """
    accelerate_table = accelerate_config_table(source_file.launcher, source_file.name_in_errors, source_file.read_text)
    arguments: dict[str, Any] = {}
    precision = str(accelerate_table.get("mixed_precision") or "no").lower()
    if precision in ("bf16", "fp16"):
        arguments[precision] = True
    arguments |= {key: accelerate_table[key] for key in ("parallelism_config", "use_cpu") if accelerate_table.get(key)}
    distributed_type = str(accelerate_table.get("distributed_type", "NO")).upper()
    if distributed_type == "FSDP":
        config = accelerate_table.get("fsdp_config")
        arguments |= {"fsdp": "full_shard", "fsdp_config": dict(config) if isinstance(config, Mapping) else {}}
        sharding_strategy = arguments["fsdp_config"].pop("fsdp_sharding_strategy", None)
        if sharding_strategy is not None:
            arguments["fsdp_config"]["sharding_strategy"] = sharding_strategy
    elif distributed_type == "DEEPSPEED":
        arguments["deepspeed"] = _deepspeed_config(accelerate_table.get("deepspeed_config"))
    elif distributed_type == "MEGATRON_LM":
        raise InputError(
            f"{source_file.name_in_errors}: distributed_type: MEGATRON_LM with the Trainer; expected FSDP or DEEPSPEED"
        )
    return arguments


FRAMEWORK_KEYS = ("deepspeed", "fsdp", "fsdp_config")
"""Trainer arguments that select a framework. A program that states one of them replaces the launcher's."""

PRECISION_KEYS = ("bf16", "fp16")


def with_launcher_arguments(config: Table, source_file: LaunchSource, sets_precision: bool = True) -> dict[str, Any]:
    """Returns a program's Trainer arguments, completed by those of its `accelerate launch` command.

    The launcher hands its config over in the environment, where the Trainer reads what its own arguments leave open
    (transformers/training_args.py, `ACCELERATE_USE_DEEPSPEED`, `ACCELERATE_USE_FSDP`, `ACCELERATE_MIXED_PRECISION`).

    sets_precision: whether the program takes the launcher's number format; true by default.
    """
    launcher_arguments = trainer_arguments(source_file)
    for argument_group in (FRAMEWORK_KEYS, PRECISION_KEYS):
        is_stated = any(config.get(argument_name) not in (None, "", []) for argument_name in argument_group)
        if is_stated or (argument_group is PRECISION_KEYS and not sets_precision):
            launcher_arguments = {
                name: value for name, value in launcher_arguments.items() if name not in argument_group
            }
    return {
        **config,
        **{name: argument_value for name, argument_value in launcher_arguments.items() if config.get(name) is None},
    }


def _deepspeed_config(config: Any) -> Any:
    """Returns the DeepSpeed config of an accelerate config: the file it names, or a table of its own keys."""
    deepspeed_table = config if isinstance(config, Mapping) else {}
    if deepspeed_table.get("deepspeed_config_file") is not None:
        return deepspeed_table["deepspeed_config_file"]
    zero_table: dict[str, Any] = {"stage": deepspeed_table.get("zero_stage", 2)}
    for offload_key in OFFLOAD_DEVICE_KEYS:
        if deepspeed_table.get(offload_key) not in (None, "none", False):
            zero_table[offload_key.removesuffix("_device")] = {"device": deepspeed_table[offload_key]}
    return {"zero_optimization": zero_table, **AUTO_FORMATS, **AUTO_BATCH}
