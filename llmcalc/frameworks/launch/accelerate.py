"""Reads the files that `accelerate config` writes, in YAML or JSON. They name no model and no batch size.

Source: accelerate 1.x, commands/config and utils/dataclasses.py.
"""

from __future__ import annotations

from typing import Any

from ...errors import shown
from ...parallel.layout import Layout
from ..registry import WITHOUT_A_NAME, plugins
from .record import (
    FP16_NOTE,
    Launch,
    Reading,
    RunUnder,
    Source,
    Table,
    default_attention,
    reading_of,
    size_of,
    unknown_keys,
)

ACCELERATE_SIGNS = ("compute_environment", "num_processes")
"""Keys by which a config without `distributed_type` is recognized."""

WITHOUT_PLUGIN = ("NO", "MULTI_GPU")
"""Values of `distributed_type` for one device and for replicas, which need no plugin."""

OTHER_DEVICES = ("MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_MUSA", "MULTI_SDAA", "MULTI_HPU")
"""Values of `distributed_type` for replicas on accelerators whose kernels are not modelled."""

ACCELERATE_READ = frozenset(
    """
    distributed_type mixed_precision num_processes num_machines parallelism_config dynamo_config
    gradient_accumulation_steps use_cpu fp8_config downcast_bf16
    """.split()  # noqa: SIM905
)

ACCELERATE_IGNORED = frozenset(
    """
    compute_environment debug enable_cpu_affinity gpu_ids machine_rank main_process_ip main_process_port
    main_training_function rdzv_backend same_network tpu_env tpu_use_cluster tpu_use_sudo tpu_name tpu_zone commands
    command_file ipex_config mpirun_config main_process_port_ rdzv_conf max_restarts monitor_interval
    """.split()  # noqa: SIM905
)


def is_accelerate(data: Table) -> bool:
    """Whether a table of YAML or JSON is a config of accelerate."""
    return "distributed_type" in data or all(name in data for name in ACCELERATE_SIGNS)


def read_accelerate(data: Table, source: Source) -> Launch:
    """Returns the training run of an accelerate config. Raises `InputError`, which names file and key."""
    with reading_of(source) as reading:
        return _read_tables(reading, data, source.world_size)


def _read_tables(reading: Reading, data: Table, world_size: int | None) -> Launch:
    plugins_by_type = {plugin.distributed_type: (name, plugin) for name, plugin in plugins().items()}
    reading.ignored += [name for name in data if name in ACCELERATE_IGNORED]
    unknown_keys(
        reading,
        data,
        (*ACCELERATE_READ, *ACCELERATE_IGNORED, *(plugin.table for _, plugin in plugins_by_type.values())),
        "",
        "no key that is known",
    )
    if data.get("num_processes") is not None:
        processes = size_of(reading, "num_processes", data["num_processes"])
        if world_size not in (None, processes):
            reading.notes.append(f"--devices {world_size} in the place of num_processes: {processes}")
        world_size = world_size or processes
    device_count = reading.devices(world_size)
    if data.get("num_machines"):
        size_of(reading, "num_machines", data["num_machines"])
    kind = str(data.get("distributed_type", "NO")).upper()[:40]
    run_settings: dict[str, Any] = {"phase": "training", **_precision_settings(reading, data)}
    if data.get("gradient_accumulation_steps") is not None:
        steps = size_of(reading, "gradient_accumulation_steps", data["gradient_accumulation_steps"])
        run_settings["num_microbatches"] = steps
    dynamo = reading.table(data, "dynamo_config").get("dynamo_backend", "NO")
    if str(dynamo).upper() != "NO":
        run_settings["compile"] = True
    name, run = WITHOUT_A_NAME, RunUnder(Layout(dp=device_count), run_settings)
    if kind in plugins_by_type:
        name, plugin = plugins_by_type[kind]
        run = plugin.accelerate(reading, data, device_count, run_settings)
    elif kind in OTHER_DEVICES:
        reading.notes.append(f"distributed_type {kind}: the kernels and the runtime of CUDA are counted")
    elif kind not in WITHOUT_PLUGIN:
        raise reading.wrong(
            "distributed_type", f"{shown(kind)}; expected one of {', '.join((*WITHOUT_PLUGIN, *plugins_by_type))}"
        )
    settings = default_attention(reading) | run.settings
    return reading.launch("accelerate", name, layout=run.layout, settings=settings, own_settings=run.own_settings)


def _precision_settings(reading: Reading, data: Table) -> dict[str, Any]:
    name = str(data.get("mixed_precision") or "no").lower()[:20]
    if name in ("no", "false"):
        return {"precision": "fp32"}
    if name in ("bf16", "fp16"):
        reading.notes += [FP16_NOTE] * (name == "fp16")
        return {"precision": "autocast"}
    if name == "fp8":
        reading.unknown["mixed_precision"] = (
            "products in 8 bits, by Transformer Engine or torchao, are not modelled here"
        )
        return {}
    raise reading.wrong("mixed_precision", f"{shown(data['mixed_precision'])}; expected no, bf16 or fp16")
