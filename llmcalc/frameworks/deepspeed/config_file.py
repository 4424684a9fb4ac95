"""Reads DeepSpeed's JSON config, in which Hugging Face's Trainer replaces values that are `auto`.

Sources: deepspeed/runtime/config.py, runtime/zero/config.py and runtime/constants.py for keys;
transformers/integrations/deepspeed.py (5.23), `trainer_config_process`, for "auto". Values that depend on the model's
width stay "auto" until
`DeepSpeedSettings.with_resolved_values`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ...errors import short_repr
from ...parallel.layout import Layout
from ..argument_names import argument_names
from ..launch.launch_types import (
    LARGEST_SIZE,
    Launch,
    LaunchReader,
    LaunchSettings,
    LaunchSource,
    Table,
    assume_default_attention,
    launch_reader,
    read_boolean,
    read_integer,
    record_unknown_keys,
)
from ..launch.trainer import is_trainer
from .settings import LAMB, ONE_BIT_ADAM, ONE_BIT_LAMB, UNMODELLED_SETTINGS, ZERO_ONE_ADAM, DeepSpeedSettings

AUTO = "auto"

ZERO_KEYS_IGNORED = argument_names(__file__, "ignored_of_zero")
"""Keys of `zero_optimization` that do not change the memory of a step."""

MODELLED_ZERO_VALUES: dict[str, tuple[Any, ...]] = {
    "mics_shard_size": (-1, 0),
    "mics_hierarchical_params_gather": (False,),
    "zenflow": (False, None),
    "cpu_offload": (False, None),
    "cpu_offload_param": (False, None),
    "cpu_offload_params": (False, None),
    "leaf_module": (None,),
    "allgather_partitions": (True,),
}
"""Keys of `zero_optimization` that are not fields of `DeepSpeedSettings` → the only values that are modelled."""

KEY_BY_OTHER_NAME = {
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "model_persistence_threshold": "stage3_model_persistence_threshold",
}
"""Alternative name of a key of `zero_optimization` → the key."""

KEYS_READ = argument_names(__file__, "read")

KEYS_IGNORED = argument_names(__file__, "ignored")
"""Keys that do not change the memory of a step."""


KEY_SHARED_WITH_TRAINER = "gradient_accumulation_steps"
"""The key that a DeepSpeed config and the Trainer's arguments have in common."""


def is_deepspeed(config: Table) -> bool:
    """Whether a parsed file is a DeepSpeed config."""
    if is_trainer(
        {
            config_key: config_value
            for config_key, config_value in config.items()
            if config_key != KEY_SHARED_WITH_TRAINER
        }
    ):
        return False
    zero_table = config.get("zero_optimization")
    return isinstance(zero_table, Mapping) or "train_micro_batch_size_per_gpu" in config or "train_batch_size" in config


def read_deepspeed(config: Table, source_file: LaunchSource, trainer_arguments: Table | None = None) -> Launch:
    """Returns the training run that a DeepSpeed config describes.

    trainer_arguments: the Trainer's values of "auto": batch, num_microbatches, bf16, fp16; its defaults by default.
    Raises `InputError`, which names file and key.
    """
    with launch_reader(source_file) as reader:
        launch_settings = read_deepspeed_section(reader, config, source_file.world_size, trainer_arguments or {})
        settings = assume_default_attention(reader) | launch_settings.settings
        return reader.create_launch("deepspeed", launch_settings._replace(settings=settings))


def read_deepspeed_section(
    reader: LaunchReader, config: Table, world_size: int | None, trainer_arguments: Table
) -> LaunchSettings:
    """Returns the settings of a DeepSpeed config that is part of another launch file."""
    for config_key in config:
        if config_key in KEYS_IGNORED or str(config_key).startswith("_"):
            reader.ignored_arguments.append(config_key)
    record_unknown_keys(reader, config, (*KEYS_READ, *reader.ignored_arguments), "")
    device_count = reader.device_count(world_size)
    zero_settings = _zero_settings(reader, config)
    command_settings: dict[str, Any] = {
        "phase": "training",
        **_batch_sizes(reader, config, device_count, trainer_arguments),
    }
    command_settings |= _number_formats(reader, config, trainer_arguments)
    command_settings |= _optimizer_settings(reader, config)
    for config_key, config_value in reader.table(config, "activation_checkpointing").items():
        if config_key in ("partition_activations", "cpu_checkpointing") and config_value not in (False, None):
            reader.refuse(f"activation_checkpointing.{config_key}", "it is modelled without")
    compilation = reader.table(config, "compile")
    if compilation and compilation.get("disable") in (False, None) and compilation.get("deepcompile") in (False, None):
        command_settings["compile"] = True
    elif compilation.get("deepcompile"):
        reader.refuse("compile.deepcompile", "DeepCompile is not modelled")
    if reader.table(config, "progressive_layer_drop").get("enabled"):
        reader.notes.append("progressive_layer_drop: all layers are counted, an upper bound")
    tp = reader.table(config, "tensor_parallel").get("autotp_size", 1)
    if tp not in (0, 1, None):
        reader.refuse("tensor_parallel.autotp_size", "layers divided by AutoTP: --allow-unknown counts whole ones")
    return LaunchSettings(Layout(dp=device_count, zero=zero_settings.stage or 0), command_settings, zero_settings)


def settings_of_generated_config(
    reader: LaunchReader, config: Table, world_size: int | None, settings: Mapping[str, Any]
) -> LaunchSettings:
    """Returns the settings of a training program whose code creates the DeepSpeed config.

    settings: the settings outside of the config.
    """
    launch_settings = read_deepspeed_section(reader, config, world_size, {})
    return launch_settings._replace(settings={**launch_settings.settings, **settings})


def _zero_settings(reader: LaunchReader, config: Table) -> DeepSpeedSettings:
    """Returns ZeRO's settings that affect memory; DeepSpeed's defaults stand for keys that the config lacks."""
    field_types = get_type_hints(DeepSpeedSettings)
    field_values = {"stage": 0} | _zero_values(reader, reader.table(config, "zero_optimization"), field_types)
    if field_values["stage"] != 3:  # the Trainer computes these for stage 3 alone; the other stages do not read them
        field_values = {
            zero_name: setting_value
            for zero_name, setting_value in field_values.items()
            if not (zero_name.startswith("stage3_") and setting_value == AUTO)
        }
    inner_tables = {
        "grad_accum_dtype": ("data_types", "grad_accum_dtype"),
        "check_grad_overflow": ("bf16", "check_grad_overflow"),
        "bf16_master_weights_and_grads": ("bf16", "bf16_master_weights_and_grads"),
        "fp16_master_weights_and_grads": ("fp16", "fp16_master_weights_and_grads"),
    }
    for setting_name, (section_name, section_key) in inner_tables.items():
        config_value = reader.table(config, section_name).get(section_key)
        if config_value not in (None, AUTO):
            field_values[setting_name] = _convert_value(
                reader, f"{section_name}.{section_key}", field_types[setting_name], config_value
            )
    for setting_name in ("communication_data_type", "gradient_clipping"):
        if config.get(setting_name) not in (None, AUTO):
            field_values[setting_name] = _convert_value(
                reader, setting_name, field_types[setting_name], config[setting_name]
            )
    optimizer_table = reader.table(config, "optimizer")
    field_values["optimizer"] = str(optimizer_table.get("type") or "")[:40]
    field_values["torch_adam"] = reader.table(optimizer_table, "params").get("torch_adam") is True
    settings = DeepSpeedSettings(**field_values)
    for zero_field in fields(settings):
        if zero_field.name in UNMODELLED_SETTINGS and getattr(settings, zero_field.name) != zero_field.default:
            reader.refuse(
                f"zero_optimization.{zero_field.name}",
                f"{short_repr(getattr(settings, zero_field.name))} is not modelled",
            )
    _refuse_partial_offload(reader, reader.table(config, "zero_optimization"), settings.stage)
    for setting_name in ("offload_optimizer", "offload_param"):
        if getattr(settings, setting_name) == "nvme":
            reader.refuse(f"zero_optimization.{setting_name}", "offloading to NVMe is not modelled")
    return settings


def _zero_values(reader: LaunchReader, zero_table: Table, field_types: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the table `zero_optimization`. field_types: the type of each setting by name."""
    field_values: dict[str, Any] = {}
    for zero_key, key_value in zero_table.items():
        field_name, dotted_key = KEY_BY_OTHER_NAME.get(zero_key, zero_key), f"zero_optimization.{zero_key}"[:80]
        if field_name in ("offload_optimizer", "offload_param"):
            device = key_value.get("device", "cpu") if isinstance(key_value, Mapping) else key_value
            is_on_device = device in (None, False)
            field_values[field_name] = (
                "none" if is_on_device else _convert_value(reader, dotted_key, field_types[field_name], device)
            )
            field_values[f"{field_name}_pin_memory"] = (
                isinstance(key_value, Mapping) and key_value.get("pin_memory") is True
            )
        elif field_name in field_types:
            if key_value is not None and not (key_value == AUTO and AUTO_TEXT not in str(field_types[field_name])):
                field_values[field_name] = _convert_value(reader, dotted_key, field_types[field_name], key_value)
        elif field_name in ZERO_KEYS_IGNORED:
            reader.ignored_arguments.append(dotted_key)
        elif field_name not in MODELLED_ZERO_VALUES:
            reader.refuse(dotted_key, "no key that is known")
        elif key_value not in MODELLED_ZERO_VALUES[field_name]:
            reader.refuse(dotted_key, f"{short_repr(key_value)} is not modelled")
    return field_values


def _refuse_partial_offload(reader: LaunchReader, zero_table: Table, zero_stage: int | None) -> None:
    """Reports the offloading of only a part of the optimizer as not modelled (zero/offload_config.py)."""
    offload_table = zero_table.get("offload_optimizer")
    if not isinstance(offload_table, Mapping):
        return
    host_share = offload_table.get("ratio", 1)
    if zero_stage == 3 and host_share not in (1, AUTO):  # the other stages do not read it
        reader.refuse(
            "zero_optimization.offload_optimizer.ratio",
            f"{short_repr(host_share)} is not modelled: all states are counted on the host",
        )
    if offload_table.get("super_offload"):
        reader.refuse("zero_optimization.offload_optimizer.super_offload", "it is modelled without")


AUTO_TEXT = "'auto'"


def _convert_value(reader: LaunchReader, dotted_key: str, field_type: Any, config_value: Any) -> Any:
    """Converts a value of the config to the type of its setting. Raises `InputError` with the key's name."""
    type_arguments = (
        [field_type]
        if get_origin(field_type) is Literal
        else [plain_type for plain_type in get_args(field_type) if plain_type is not NoneType] or [field_type]
    )
    literals = [
        value for plain_type in type_arguments if get_origin(plain_type) is Literal for value in get_args(plain_type)
    ]
    plain_types = [plain_type for plain_type in type_arguments if get_origin(plain_type) is not Literal]
    value_text = str(config_value)[:40].removesuffix(".0")
    if not isinstance(config_value, bool | Mapping | list) and value_text in map(str, literals):
        return next(allowed_value for allowed_value in literals if str(allowed_value) == value_text)
    for plain_type in plain_types:
        if plain_type is bool:
            return read_boolean(reader, dotted_key, config_value)
        if plain_type is int:
            return read_integer(reader, dotted_key, config_value, minimum=0)
        if (
            plain_type is float
            and isinstance(config_value, int | float)
            and not isinstance(config_value, bool)
            and abs(config_value) < LARGEST_SIZE
        ):
            return float(config_value)
        if plain_type is str and isinstance(config_value, str):
            return config_value[:40]
    raise reader.value_error(dotted_key, config_value, f"{' or '.join(map(_type_description, type_arguments))}")


def _type_description(field_type: Any) -> str:
    """Returns a description of a field's type for an error message."""
    if get_origin(field_type) is Literal:
        return " or ".join(map(str, get_args(field_type)))
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(
        field_type, str(field_type)
    )


def _batch_sizes(reader: LaunchReader, config: Table, world_size: int, trainer_arguments: Table) -> dict[str, int]:
    """Returns sequences per micro-batch and micro-batches per step, which follow from two of the three batch keys."""

    def read_size(config_key: str) -> int | None:
        """Returns a key's value as an integer; None if the key is missing or `auto`."""
        written_size = config.get(config_key)
        return None if written_size in (None, AUTO) else read_integer(reader, config_key, written_size)

    micro_batch_size = read_size("train_micro_batch_size_per_gpu")
    accumulation_steps = read_size("gradient_accumulation_steps")
    batch_size = read_size("train_batch_size")
    if config.get("train_micro_batch_size_per_gpu") == AUTO or trainer_arguments:
        if micro_batch_size is None and "batch" not in trainer_arguments:
            reader.assumed_defaults["per_device_train_batch_size"] = TRAINER_DEFAULT_BATCH
        micro_batch_size = micro_batch_size or trainer_arguments.get("batch", TRAINER_DEFAULT_BATCH)
        if accumulation_steps is None and "num_microbatches" not in trainer_arguments:
            reader.assumed_defaults["gradient_accumulation_steps"] = 1
        accumulation_steps = accumulation_steps or trainer_arguments.get("num_microbatches", 1)
    if micro_batch_size is None and batch_size is None:
        raise reader.argument_error("train_micro_batch_size_per_gpu", "missing; expected it or train_batch_size")
    if batch_size is not None:
        if micro_batch_size is None:
            micro_batch_divisor = world_size * (accumulation_steps or 1)
            if batch_size % micro_batch_divisor:
                raise reader.argument_error(
                    "train_batch_size", f"{batch_size}; expected a multiple of {micro_batch_divisor}, --devices · steps"
                )
            micro_batch_size = batch_size // micro_batch_divisor
        elif accumulation_steps is None:
            if batch_size % (micro_batch_size * world_size):
                raise reader.argument_error(
                    "train_batch_size", f"{batch_size}; expected a multiple of micro-batch · --devices"
                )
            accumulation_steps = batch_size // (micro_batch_size * world_size)
        if batch_size != micro_batch_size * world_size * (accumulation_steps or 1):
            raise reader.argument_error(
                "train_batch_size",
                f"{batch_size}; expected micro-batch · steps · devices = {micro_batch_size} · "
                f"{accumulation_steps or 1} · {world_size} (--devices)",
            )
    assert micro_batch_size is not None
    return {"batch": micro_batch_size, "num_microbatches": accumulation_steps or 1}


TRAINER_DEFAULT_BATCH = 8
"""The Trainer's default of `per_device_train_batch_size`."""


def _number_formats(reader: LaunchReader, config: Table, trainer_arguments: Table) -> dict[str, Any]:
    """Returns the run's number formats; bf16 and fp16 mean 16-bit weights with fp32 master weights."""
    format_settings = {}
    if not trainer_arguments and any(reader.table(config, dtype).get("enabled") == AUTO for dtype in ("bf16", "fp16")):
        reader.assumed_defaults["bf16"] = False
        stated_micro_batch = reader.assumed_defaults.get("per_device_train_batch_size")
        batch_text, batch_option = (
            ("", "")
            if stated_micro_batch is None
            else (f"batches of {stated_micro_batch} a device and ", "--batch and ")
        )
        reader.notes.append(
            f'"auto" is assumed to be the default of the Trainer: {batch_text}fp32; '
            f"{batch_option}--precision replace it here"
        )
    for dtype in ("bf16", "fp16"):
        format_table = reader.table(config, dtype) or (reader.table(config, "bfloat16") if dtype == "bf16" else {})
        is_enabled = format_table.get("enabled", False)
        if is_enabled == AUTO:
            format_settings[dtype] = bool(trainer_arguments.get(dtype))
        else:
            format_settings[dtype] = read_boolean(reader, f"{dtype}.enabled", is_enabled)
    if format_settings["bf16"] and format_settings["fp16"]:
        raise reader.argument_error("bf16, fp16", "both are enabled; expected one")
    if reader.table(config, "amp").get("enabled"):
        reader.refuse("amp", "Apex is not modelled")
    format_names = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", None: None, AUTO: None}
    accumulation_format = reader.table(config, "data_types").get("grad_accum_dtype")
    if not isinstance(accumulation_format, str | None) or accumulation_format not in format_names:
        raise reader.value_error("data_types.grad_accum_dtype", accumulation_format, "fp32, bf16 or fp16")
    gradient_format = (
        {} if format_names[accumulation_format] is None else {"grad_dtype": format_names[accumulation_format]}
    )
    if format_settings["bf16"] or format_settings["fp16"]:
        return {"dtype": "bf16" if format_settings["bf16"] else "fp16", "master_weights": "fp32", **gradient_format}
    return {"dtype": "fp32", "master_weights": "none", **gradient_format}


OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "fusedadam": "adamw", "muon": "muon", "lion": "lion"}

STAGE_0_OPTIMIZERS = (ONE_BIT_ADAM, ZERO_ONE_ADAM, ONE_BIT_LAMB, LAMB)
"""Optimizers that are modelled only in stage 0, with 16-bit weights."""


def _optimizer_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the optimizer's name and implementation; reports unmodelled optimizers as unknown arguments."""
    optimizer_table = reader.table(config, "optimizer")
    optimizer_type = optimizer_table.get("type")
    if optimizer_type is None:
        return {}
    if str(optimizer_type).lower() in STAGE_0_OPTIMIZERS:
        zero_stage = reader.table(config, "zero_optimization").get("stage", 0)
        is_half_precision = any(
            reader.table(config, table_name).get("enabled") for table_name in ("fp16", "bf16", "bfloat16")
        )
        if zero_stage or not is_half_precision:
            reader.refuse(
                "optimizer.type", f"{short_repr(optimizer_type)} is modelled in stage 0 with 16-bit weights alone"
            )
        return {"optimizer": "adamw", "optimizer_impl": "loop"}
    optimizer = OPTIMIZERS.get(str(optimizer_type).lower()[:40])
    if optimizer is None:
        reader.refuse("optimizer.type", f"{short_repr(optimizer_type)} is not modelled")
        return {}
    return {"optimizer": optimizer}
