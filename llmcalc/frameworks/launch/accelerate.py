"""Reads YAML or JSON configs written by `accelerate config`, which state neither a model nor a batch size.

Source: accelerate 1.x, commands/config and utils/dataclasses.py.
"""

from __future__ import annotations

from typing import Any

from ...parallel.layout import Layout
from ...sources.huggingface.family import field_names
from ..registry import DEFAULT_FRAMEWORK, plugin_by_framework
from .launch_types import (
    FP16_NOTE,
    Launch,
    LaunchReader,
    LaunchSettings,
    LaunchSource,
    Table,
    assume_default_attention,
    launch_reader,
    read_integer,
)

ACCELERATE_SIGNS = ("compute_environment", "num_processes")
"""Keys by which an accelerate config without `distributed_type` is recognized."""

TYPES_WITHOUT_PLUGIN = ("NO", "MULTI_GPU")
"""Values of `distributed_type` for one device and for replicas, which need no plugin."""

UNMODELLED_DEVICE_TYPES = ("MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_MUSA", "MULTI_SDAA", "MULTI_HPU")
"""Values of `distributed_type` for replicas on accelerators whose kernels are not modelled."""

READ_ACCELERATE_KEYS = field_names("""
    distributed_type mixed_precision num_processes num_machines parallelism_config dynamo_config dynamo_backend
    gradient_accumulation_steps use_cpu
    """)

IGNORED_ACCELERATE_KEYS = field_names("""
    compute_environment debug enable_cpu_affinity gpu_ids machine_rank main_process_ip main_process_port
    main_training_function rdzv_backend same_network tpu_env tpu_use_cluster tpu_use_sudo tpu_name tpu_zone commands
    command_file ipex_config mpirun_config main_process_port_ rdzv_conf max_restarts monitor_interval fp8_config
    downcast_bf16
    """)


def is_accelerate(config: Table) -> bool:
    """Whether a parsed file is a config of accelerate."""
    return "distributed_type" in config or all(accelerate_key in config for accelerate_key in ACCELERATE_SIGNS)


def read_accelerate(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run that an accelerate config describes. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        return _read_tables(reader, config, source_file.world_size)


def _read_tables(reader: LaunchReader, config: Table, world_size: int | None) -> Launch:
    """Returns the training run for the framework that an accelerate config selects, such as FSDP or DeepSpeed."""
    plugins_by_type = {
        plugin.distributed_type: (plugin_name, plugin) for plugin_name, plugin in plugin_by_framework().items()
    }
    plugin_tables = (plugin.section_name for _, plugin in plugins_by_type.values())
    reader.record_argument_names(
        config, (*READ_ACCELERATE_KEYS, *plugin_tables), IGNORED_ACCELERATE_KEYS, "no key that is known"
    )
    if config.get("num_processes") is not None:
        process_count = read_integer(reader, "num_processes", config["num_processes"])
        if world_size not in (None, process_count):
            reader.notes.append(f"--devices {world_size} in the place of num_processes: {process_count}")
        world_size = world_size or process_count
    if reader.flag(config, "use_cpu"):
        reader.refuse("use_cpu", "training on a CPU is not modelled")
    device_count = reader.device_count(world_size)
    if config.get("num_machines"):
        read_integer(reader, "num_machines", config["num_machines"])
    distributed_type = str(config.get("distributed_type", "NO")).upper()[:40]
    run_settings: dict[str, Any] = {"phase": "training", **_mixed_precision_settings(reader, config)}
    if config.get("gradient_accumulation_steps") is not None:
        accumulation_steps = read_integer(reader, "gradient_accumulation_steps", config["gradient_accumulation_steps"])
        run_settings["num_microbatches"] = accumulation_steps
    config_tables = config, reader.table(config, "dynamo_config")  # commands/config/config_args.py: both places
    if any(str(config_table.get("dynamo_backend") or "NO").upper() != "NO" for config_table in config_tables):
        run_settings["compile"] = True
    framework_name, launch_settings = DEFAULT_FRAMEWORK, LaunchSettings(Layout(dp=device_count), run_settings)
    if distributed_type in plugins_by_type:
        framework_name, plugin = plugins_by_type[distributed_type]
        launch_settings = plugin.read_accelerate(reader, config, device_count, run_settings)
    else:
        reader.refuse_parallel_groups(config)
    if distributed_type in UNMODELLED_DEVICE_TYPES:
        reader.notes.append(f"distributed_type {distributed_type}: the kernels and the runtime of CUDA are counted")
    elif distributed_type not in (*TYPES_WITHOUT_PLUGIN, *plugins_by_type):
        raise reader.value_error(
            "distributed_type", distributed_type, f"one of {', '.join((*TYPES_WITHOUT_PLUGIN, *plugins_by_type))}"
        )
    settings = assume_default_attention(reader) | launch_settings.settings
    return reader.create_launch(framework_name, launch_settings._replace(settings=settings))


def _mixed_precision_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    precision_name = str(config.get("mixed_precision") or "no").lower()[:20]
    if precision_name in ("no", "false"):
        return {"precision": "fp32"}
    if precision_name in ("bf16", "fp16"):
        reader.notes += [FP16_NOTE] * (precision_name == "fp16")
        return {"precision": "autocast"}
    if precision_name == "fp8":
        reader.refuse("mixed_precision", "products in 8 bits, by Transformer Engine or torchao, are not modelled here")
        return {}
    raise reader.value_error("mixed_precision", config["mixed_precision"], "no, bf16 or fp16")
