"""Training runs of Megatron-Core whose model is a named checkpoint (verl, Megatron-Bridge)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from ...parallel.layout import Layout
from ..launch.record import LaunchReader, LaunchSettings, Table, share_of
from ..launch.trainer import lora_settings


@dataclass(frozen=True)
class MegatronRun:
    """The parallel sizes, batch sizes and recomputation settings of a Megatron-Core run.

    tp, pp, cp, ep, etp, vpp: sizes of its groups; etp None for tp.
    end_stage_layers: layers of the pipeline's first and last rank; None for as many as every other rank.
    sequence_parallel: whether tokens are divided between tensor-parallel products.
    distributed_optimizer: whether optimizer states are divided over replicas.
    batch, seq, num_microbatches: sequences of a micro-batch, their tokens, and the micro-batches of a step.
    recompute_granularity, recompute_method, recompute_num_layers, recompute_modules: as in Megatron-LM; None for none.
    fuses_cross_entropy: whether the loss is fused.
    grad_dtype: the number format of main gradients.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    vpp: int = 1
    end_stage_layers: tuple[int | None, int | None] = (None, None)
    sequence_parallel: bool = False
    distributed_optimizer: bool = True
    batch: int = 1
    seq: int = 0
    num_microbatches: int = 1
    recompute_granularity: Any = None
    recompute_method: Any = None
    recompute_num_layers: Any = None
    recompute_modules: Any = None
    fuses_cross_entropy: bool = False
    grad_dtype: str = "fp32"


STAGE_ENDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
"""Megatron-Core's fields of the layers of a pipeline's first and last rank."""

HOST_OPTIMIZER = ("optimizer_cpu_offload", "optimizer_offload_fraction")
"""Megatron-Core's fields of an optimizer on the host, which `host_optimizer_settings` reads."""

BRIDGE_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""The layers that Megatron-Bridge adapts by default (megatron/bridge/peft/lora.py)."""


def bridge_adapter_settings(
    reader: LaunchReader, section_name: str, rank: Any, target_modules: Any, dropout_value: Any
) -> dict[str, Any]:
    """Returns the settings of Megatron-Bridge's low-rank adapters. section_name: the table's key.

    target_modules, dropout_value: None for the default.
    """
    settings = lora_settings(
        reader,
        rank=(f"{section_name}.rank", rank),
        target_pair=(
            f"{section_name}.target_modules",
            list(BRIDGE_TARGETS) if target_modules is None else target_modules,
        ),
        dropout_value=dropout_value,
    )
    return {**settings, "lora_library": "megatron-bridge", "lora_dtype": "bf16"}


def host_optimizer_settings(
    reader: LaunchReader, config: Table, name_prefix: str = "", default_fraction: float = 0.0
) -> dict[str, Any]:
    """Returns the setting of Adam's step on the host (core/optimizer/optimizer_config.py); none without it.

    name_prefix: what stands before the arguments' names. default_fraction: the share of states without an argument.
    """
    is_on_host, argument_name = (f"{name_prefix}{argument_name}" for argument_name in HOST_OPTIMIZER)
    if not reader.flag(config, is_on_host):
        return {}
    if share_of(reader, argument_name, config, default_fraction) != 1:
        reader.unknown[argument_name] = "states on the device beside those on the host are not modelled; 1 is"
    return {"optimizer_offload": True}


def end_stage_layers(
    reader: LaunchReader, config: Table, name_prefix: str = "", argument_names: tuple[str, str] = STAGE_ENDS
) -> tuple[int | None, int | None]:
    """Returns the numbers of layers on the pipeline's first and last rank; None where the file states none.

    name_prefix: what stands before the arguments' names. argument_names: the arguments.
    """
    first_stage_layers, last_stage_layers = (
        reader.optional_integer(config, f"{name_prefix}{argument_name}") for argument_name in argument_names
    )
    return first_stage_layers, last_stage_layers


def smallest_device_count(parallel_run: MegatronRun) -> int:
    """Returns the smallest number of devices that a run's layout can have."""
    expert_ranks = parallel_run.ep * (parallel_run.etp or parallel_run.tp)
    return parallel_run.pp * math.lcm(parallel_run.tp * parallel_run.cp, expert_ranks)


def megatron_run(
    reader: LaunchReader, parallel_run: MegatronRun, world_size: int | None, settings: dict[str, Any]
) -> LaunchSettings:
    """Returns the layout and settings of a Megatron-Core run. settings: the other settings.

    Raises `InputError` for a number of devices that the groups do not divide.
    """
    if world_size is None:
        world_size = smallest_device_count(parallel_run)
        reader.notes.append(f"{world_size} devices are assumed, as few as the layout can have")
    replica_devices = parallel_run.tp * parallel_run.pp * parallel_run.cp
    if world_size % replica_devices:
        raise InputError(f"--devices: {world_size}; expected a multiple of tp · pp · cp = {replica_devices}")
    reader.end_stage_layers = parallel_run.end_stage_layers
    layout = Layout(
        tp=parallel_run.tp,
        pp=parallel_run.pp,
        cp=parallel_run.cp,
        dp=world_size // replica_devices,
        ep=parallel_run.ep,
        etp=parallel_run.etp if parallel_run.ep > 1 else None,
        vpp=parallel_run.vpp,
        sequence_parallel=parallel_run.sequence_parallel and parallel_run.tp > 1,
        zero=1 if parallel_run.distributed_optimizer else 0,
        schedule="interleaved" if parallel_run.vpp > 1 else "1f1b",
    )
    run_settings: dict[str, Any] = {
        "phase": "training",
        "batch": parallel_run.batch,
        "seq": parallel_run.seq,
        "num_microbatches": parallel_run.num_microbatches,
        "dtype": "bf16",
        "grad_dtype": parallel_run.grad_dtype,
        "attn_implementation": "flash",
        "cross_entropy": "fused" if parallel_run.fuses_cross_entropy else "eager",
    }
    recompute_value = _recompute_setting(reader, parallel_run)
    if recompute_value is not None:
        run_settings["recompute"] = recompute_value
    return LaunchSettings(layout, {**run_settings, **settings})


def _recompute_setting(reader: LaunchReader, parallel_run: MegatronRun) -> str | None:
    """Returns the value of `--recompute`, and records a setting that is not modelled for a named model."""
    if parallel_run.recompute_granularity is None:
        return None
    if parallel_run.recompute_granularity == "selective":
        recomputed_modules = parallel_run.recompute_modules or ["core_attn"]
        if list(recomputed_modules) != ["core_attn"]:
            reader.unknown["recompute_modules"] = f"{', '.join(map(str, recomputed_modules))[:60]} is not modelled here"
        return "attention"
    if parallel_run.recompute_method in (None, "uniform") and parallel_run.recompute_num_layers in (None, 1):
        return "full"
    reader.unknown["recompute_method"] = "other than each layer by itself is not modelled for a model that is named"
    return "full"
