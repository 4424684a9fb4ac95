"""Reads the files that `accelerate config` writes, in YAML or JSON. They name no model and no size of a batch.

Source: accelerate 1.x, commands/config and utils/dataclasses.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError, shown
from ...parallel.layout import Layout, Zero
from ..deepspeed.config_file import Found, read_into
from ..deepspeed.settings import DeepSpeedSettings
from ..fsdp2.option_names import computing, fsdp_layout, summing
from ..fsdp2.settings import TitanSettings
from .record import Launch, Reading, flag_value, reading_of, size_of, unknown_keys
from .trainer import Fetch, Table, fetched

ACCELERATE_SIGNS = ("distributed_type", "compute_environment", "fsdp_config", "megatron_lm_config", "num_processes")

ACCELERATE_READ = frozenset(
    """
    distributed_type mixed_precision num_processes num_machines fsdp_config deepspeed_config megatron_lm_config
    parallelism_config dynamo_config gradient_accumulation_steps use_cpu fp8_config downcast_bf16
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
    """Whether a table is one of accelerate's configs."""
    return "distributed_type" in data or sum(name in data for name in ACCELERATE_SIGNS) > 1


def read_accelerate(
    data: Table, where: str, world_size: int | None = None, allow_unknown: bool = False, fetch: Fetch | None = None
) -> Launch:
    """Reads accelerate's config. fetch: reads a file that it names, such as `deepspeed_config_file`.

    Raises `InputError`, which names file and key.
    """
    with reading_of(where, allow_unknown) as reading:
        return _accelerate(reading, data, world_size, fetch)


def _accelerate(reading: Reading, data: Table, world_size: int | None, fetch: Fetch | None) -> Launch:
    reading.ignored += [name for name in data if name in ACCELERATE_IGNORED]
    unknown_keys(reading, data, (*ACCELERATE_READ, *ACCELERATE_IGNORED), "", "no key that is known")
    if data.get("num_processes") is not None:
        processes = size_of(reading, "num_processes", data["num_processes"])
        if world_size not in (None, processes):
            reading.notes.append(f"--devices {world_size} in the place of num_processes: {processes}")
        world_size = world_size or processes
    world = reading.devices(world_size)
    machines = size_of(reading, "num_machines", data["num_machines"]) if data.get("num_machines") else 1
    kind = str(data.get("distributed_type", "NO")).upper()[:40]
    words: dict[str, Any] = {"phase": "training", **_mixed(reading, data)}
    framework: str = "torch"
    layout = Layout(dp=world)
    own: DeepSpeedSettings | TitanSettings | None = None
    if data.get("gradient_accumulation_steps") is not None:
        steps = size_of(reading, "gradient_accumulation_steps", data["gradient_accumulation_steps"])
        words["num_microbatches"] = steps
    dynamo = _table(reading, data, "dynamo_config").get("dynamo_backend", "NO")
    if str(dynamo).upper() != "NO":
        words["compile"] = True
    if kind == "FSDP":
        table = {str(key).removeprefix("fsdp_"): value for key, value in _table(reading, data, "fsdp_config").items()}
        layout, more = fsdp_layout(reading, table, world, machines, _table(reading, data, "parallelism_config"))
        framework, own = "fsdp2", summing(reading, table, words)
        words = {**computing(words), **more}
    elif kind == "DEEPSPEED":
        inner = _accelerate_deepspeed(reading, data, world, words, fetch)
        words = {**{key: value for key, value in words.items() if key != "precision"}, **inner.settings}
        framework, layout, own = "deepspeed", inner.layout, inner.own
    elif kind == "MEGATRON_LM":
        layout = _megatron_layout(reading, _table(reading, data, "megatron_lm_config"), world, words)
        framework = "megatron"
    elif kind not in ("NO", "MULTI_GPU"):
        raise reading.wrong(
            "distributed_type", f"{shown(kind)}; expected NO, MULTI_GPU, FSDP, DEEPSPEED or MEGATRON_LM"
        )
    return reading.launch("accelerate", framework, layout=layout, settings=words, own=own)


def _table(reading: Reading, data: Table, name: str) -> Table:
    found = data.get(name)
    if found in (None, []):
        return {}
    if not isinstance(found, Mapping):
        raise reading.wrong(name, f"{shown(found)}; expected a table")
    return found


def _mixed(reading: Reading, data: Table) -> dict[str, Any]:
    name = str(data.get("mixed_precision") or "no").lower()[:20]
    if name in ("no", "false"):
        return {"precision": "fp32"}
    if name in ("bf16", "fp16"):
        return {"precision": "autocast"}
    if name == "fp8":
        reading.unknown["mixed_precision"] = "products in 8 bits are not modelled"
        return {}
    raise reading.wrong("mixed_precision", f"{shown(data['mixed_precision'])}; expected no, bf16 or fp16")


PLUGIN = frozenset(
    """
    zero_stage gradient_accumulation_steps offload_optimizer_device offload_param_device deepspeed_config_file
    """.split()  # noqa: SIM905
)

PLUGIN_IGNORED = frozenset(
    """
    zero3_init_flag zero3_save_16bit_model gradient_clipping deepspeed_multinode_launcher deepspeed_hostfile
    deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_moe_layer_cls_names offload_optimizer_nvme_path
    offload_param_nvme_path
    """.split()  # noqa: SIM905
)


def _accelerate_deepspeed(reading: Reading, data: Table, world: int, words: Table, fetch: Fetch | None) -> Found:
    table = _table(reading, data, "deepspeed_config")
    at = "deepspeed_config"
    reading.ignored += [f"{at}.{key}"[:80] for key in table if key in PLUGIN_IGNORED]
    unknown_keys(reading, table, (*PLUGIN, *PLUGIN_IGNORED), at, "no key that is known")
    name = str(data.get("mixed_precision") or "no").lower()
    half = {"bf16": name == "bf16", "fp16": name == "fp16", "batch": 1}
    if table.get("deepspeed_config_file") is not None:
        config = fetched(reading, f"{at}.deepspeed_config_file", table["deepspeed_config_file"], fetch)
        return _without_batch(read_into(reading, config, world, half), config)
    stage = size_of(reading, f"{at}.zero_stage", table.get("zero_stage", 2), least=0)
    zero: dict[str, Any] = {"stage": stage}
    for key in ("offload_optimizer_device", "offload_param_device"):
        if table.get(key) not in (None, "none", False):
            zero[key.removesuffix("_device")] = {"device": table[key]}
    made: dict[str, Any] = {"zero_optimization": zero, "train_micro_batch_size_per_gpu": "auto"}
    made |= {key: {"enabled": half[key]} for key in ("bf16", "fp16")}
    if table.get("gradient_accumulation_steps") is not None:
        made["gradient_accumulation_steps"] = table["gradient_accumulation_steps"]
    return _without_batch(read_into(reading, made, world, half), made)


def _without_batch(found: Found, config: Table) -> Found:
    """What a config says, without the size of a micro-batch where it leaves that to the script."""
    if config.get("train_micro_batch_size_per_gpu", "auto") != "auto":
        return found
    return found._replace(settings={key: value for key, value in found.settings.items() if key != "batch"})


MEGATRON_READ = frozenset(
    """
    tp_degree pp_degree num_micro_batches sequence_parallelism recompute_activations use_distributed_optimizer
    """.split()  # noqa: SIM905
)


def _megatron_layout(reading: Reading, table: Table, world: int, words: dict[str, Any]) -> Layout:
    """The layout of accelerate's Megatron-LM plugin."""
    short = {str(key).removeprefix("megatron_lm_"): value for key, value in table.items()}
    at = "megatron_lm_config"
    unknown_keys(reading, short, (*MEGATRON_READ, "gradient_clipping"), at, "no key that is known")

    def size(name: str) -> int:
        return size_of(reading, f"{at}.megatron_lm_{name}", 1 if short.get(name) is None else short[name])

    def flag(name: str) -> bool:
        return short.get(name) is not None and flag_value(reading, f"{at}.megatron_lm_{name}", short[name])

    tp, pp = size("tp_degree"), size("pp_degree")
    if world % (tp * pp):
        raise InputError(f"--devices: {world}; expected a multiple of {tp * pp}")
    words["num_microbatches"] = size("num_micro_batches")
    if flag("recompute_activations"):
        words["recompute"] = "attention"
    if words.get("precision") == "autocast":
        del words["precision"]
        words |= {"dtype": "bf16", "master_weights": "fp32", "grad_dtype": "fp32"}
    zero: Zero = 1 if flag("use_distributed_optimizer") else 0
    return Layout(
        tp=tp, pp=pp, dp=world // (tp * pp), sequence_parallel=tp > 1 and flag("sequence_parallelism"), zero=zero
    )
