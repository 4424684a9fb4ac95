"""Reads parallel layouts from the FSDP settings of the Trainer and of accelerate.

Source: accelerate 1.x, utils/dataclasses.py, `FullyShardedDataParallelPlugin` and `ParallelismConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from ...parallel.layout import Layout, Zero
from ...sources.huggingface.family import field_names
from ...workload.execution import LOSSES_WITH_HEAD
from ..launch.launch_types import (
    Launch,
    LaunchReader,
    LaunchSettings,
    Table,
    read_boolean,
    read_integer,
    record_unknown_keys,
)
from .settings import TitanSettings

FSDP_READ = field_names("""
    version sharding_strategy reshard_after_forward offload_params activation_checkpointing xla
    """)

FSDP_IGNORED = field_names("""
    auto_wrap_policy transformer_layer_cls_to_wrap transformer_cls_names_to_wrap min_num_params state_dict_type
    sync_module_states cpu_ram_efficient_loading use_orig_params backward_prefetch backward_prefetch_policy
    forward_prefetch limit_all_gathers activation_cpu_offload xla_fsdp_settings xla_fsdp_v2 xla_fsdp_grad_ckpt
    """)

SHARDING_STRATEGIES: dict[str, tuple[Zero, bool]] = {
    "FULL_SHARD": (3, True),
    "SHARD_GRAD_OP": (3, False),
    "HYBRID_SHARD": (3, True),
    "HYBRID_SHARD_ZERO2": (3, False),
    "1": (3, True),
    "2": (3, False),
    "4": (3, True),
    "5": (3, False),
}
"""Sharding strategy → ZeRO stage, and whether a layer's weights are freed after its forward pass."""

UNSHARDED_STRATEGIES = ("NO_SHARD", "3")
"""Sharding strategies without shards."""

GROUP_SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
"""Keys of accelerate's `parallelism_config` that state the size of a group of ranks."""

HARMLESS_GROUP_KEYS = ("cp_comm_strategy", "sp_backend", "sp_seq_length_is_variable", "sp_attn_implementation")
"""Other keys of accelerate's `parallelism_config`, which need no check here."""

DEVICES_PER_MACHINE = 8
"""Default number of devices per machine; a hybrid strategy shards weights over the devices of one machine."""


def fsdp_layout(
    reader: LaunchReader,
    fsdp_table: Table,
    world_size: int,
    machine_count: int,
    parallelism_table: Mapping[str, Any] | None = None,
) -> tuple[Layout, dict[str, Any]]:
    """Returns the layout that an FSDP configuration describes, and the settings that follow from it.

    fsdp_table: FSDP's keys without the prefix `fsdp_`.
    world_size: devices.
    machine_count: machines.
    parallelism_table: accelerate's `parallelism_config`.
    """
    section_name = "fsdp_config"
    reader.ignored_arguments += [
        f"{section_name}.{config_key}"[:80] for config_key in fsdp_table if config_key in FSDP_IGNORED
    ]
    record_unknown_keys(reader, fsdp_table, (*FSDP_READ, *FSDP_IGNORED), section_name)
    fsdp_version = read_integer(reader, f"{section_name}.fsdp_version", fsdp_table.get("version", 1))
    if fsdp_version == 1:
        reader.notes.append("FSDP version 1 is counted as version 2, which divides each tensor by itself")
    zero_stage, reshards_after_forward, is_hybrid_sharding = _sharding_strategy(reader, fsdp_table)
    if fsdp_table.get("xla") not in (None, False):
        reader.refuse(f"{section_name}.xla", "XLA is not modelled")
    command_settings: dict[str, Any] = {}
    if fsdp_table.get("activation_checkpointing") in (True, "true"):
        command_settings["recompute"] = "full"
    parallelism_settings = {
        str(config_key).removeprefix("parallelism_config_"): config_value
        for config_key, config_value in (parallelism_table or {}).items()
    }
    layout_sizes = {
        size_name: read_integer(reader, f"parallelism_config.{size_name}", parallelism_settings[size_name])
        for size_name in GROUP_SIZES
        if parallelism_settings.get(size_name) is not None
    }
    record_unknown_keys(reader, parallelism_settings, (*GROUP_SIZES, *HARMLESS_GROUP_KEYS), "parallelism_config")
    tp, cp, replica_count = (layout_sizes.get(size_key, 1) for size_key in ("tp_size", "cp_size", "dp_replicate_size"))
    if layout_sizes.get("sp_size", 1) > 1:
        reader.refuse("parallelism_config.sp_size", "Ulysses is not modelled")
    if is_hybrid_sharding:
        replica_count = machine_count if machine_count > 1 else max(1, world_size // DEVICES_PER_MACHINE)
    if world_size % (tp * cp * replica_count):
        raise InputError(f"--devices: {world_size}; expected a multiple of {tp * cp * replica_count}")
    dp = world_size // (tp * cp)
    if layout_sizes.get("dp_shard_size", dp // replica_count) != dp // replica_count:
        expected_ranks = tp * cp * replica_count * layout_sizes["dp_shard_size"]
        raise InputError(
            f"--devices: {world_size}; expected {expected_ranks}, the product of parallelism_config's sizes"
        )
    if tp > 1:
        reader.notes.append(
            "transformers' tensor parallelism keeps the embedding whole, of which each rank's part is counted"
        )
    layout = Layout(
        tp=tp,
        cp=cp,
        dp=dp,
        zero=zero_stage if dp * cp > 1 else 0,
        hsdp_replicas=replica_count,
        reshard=reshards_after_forward,
        cp_comm="allgather" if parallelism_settings.get("cp_comm_strategy", "allgather") == "allgather" else "p2p",
    )
    return layout, command_settings


def _sharding_strategy(reader: LaunchReader, fsdp_table: Table) -> tuple[Zero, bool, bool]:
    """Returns the ZeRO stage, whether weights are freed after the forward pass, and whether sharding is hybrid."""
    reshard_value = fsdp_table.get("reshard_after_forward")
    strategy = str(fsdp_table.get("sharding_strategy", "FULL_SHARD")).upper()[:40]
    if isinstance(reshard_value, str) and reshard_value.upper() in (
        *SHARDING_STRATEGIES,
        *UNSHARDED_STRATEGIES,
    ):  # version 1 wrote a strategy under this name
        strategy, reshard_value = reshard_value.upper(), None
    if strategy in UNSHARDED_STRATEGIES:
        raise reader.argument_error(
            "fsdp_config.fsdp_sharding_strategy",
            "NO_SHARD divides nothing, and is not modelled; expected FULL_SHARD, or a run without FSDP (DDP), whose "
            "devices keep as much",
        )
    if strategy not in SHARDING_STRATEGIES:
        strategies_text = ", ".join(
            known_strategy for known_strategy in SHARDING_STRATEGIES if not known_strategy.isdigit()
        )
        raise reader.value_error("fsdp_config.fsdp_sharding_strategy", strategy, f"one of {strategies_text}")
    zero_stage, reshards_after_forward = SHARDING_STRATEGIES[strategy]
    if reshard_value is not None:
        reshards_after_forward = read_boolean(reader, "fsdp_config.fsdp_reshard_after_forward", reshard_value)
    return zero_stage, reshards_after_forward, strategy in ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5")


def reduction_settings(
    reader: LaunchReader, fsdp_table: Table, command_settings: Mapping[str, Any], loss_parallel: bool = True
) -> TitanSettings:
    """Returns how gradients are reduced in the format of matrix products (`set_mixed_precision`).

    Version 1 keeps whole gradients until the last micro-batch (`Accelerator.no_sync`); version 2 has no such method.
    Version 1 wraps the layers and the model; for version 2 accelerate wraps the embedding, and the last norm with the
    head, too (utils/fsdp_utils.py at 16cb6eb, `fsdp2_prepare_model`).
    Beside adapters version 1 has a flat parameter for each adapter, and others for frozen weights, which have no
    gradients (peft/utils/other.py, `fsdp_auto_wrap_policy`, which transformers' Trainer sets).
    fsdp_table: FSDP's keys without the prefix `fsdp_`.
    command_settings: the settings of a run without FSDP.
    loss_parallel: whether the loss is computed on divided logits; true by default.
    """
    fsdp_version = read_integer(reader, "fsdp_config.fsdp_version", fsdp_table.get("version", 1))
    is_half_precision = command_settings.get("precision") == "autocast" or command_settings.get("dtype") in (
        "bf16",
        "fp16",
    )
    return TitanSettings(
        reduction_format="bfloat16" if is_half_precision else "",
        reduces_each_microbatch=fsdp_version > 1,
        has_flat_parameters=fsdp_version == 1 and "lora_rank" not in command_settings,
        fsdp_version=1 if fsdp_version == 1 else 2,
        uses_loss_parallel=loss_parallel,
        offloads_to_host=read_boolean(
            reader, "fsdp_config.fsdp_offload_params", fsdp_table.get("offload_params") or False
        ),
        outer_groups="together" if fsdp_version == 1 else "separate",
    )


def mixed_precision_settings(command_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of mixed precision, in which FSDP gathers 16-bit weights from fp32 shards.

    command_settings: the settings of the run without FSDP, with autocast.
    """
    changed_settings = dict(command_settings)
    if changed_settings.get("precision") == "autocast":
        del changed_settings["precision"]
        changed_settings |= {"dtype": "bf16", "master_weights": "fp32"}
    return changed_settings


def read_accelerate(
    reader: LaunchReader, config: Table, world_size: int, command_settings: dict[str, Any]
) -> LaunchSettings:
    """Returns the FSDP run that an accelerate config describes. command_settings: settings outside of FSDP."""
    machine_count = read_integer(reader, "num_machines", config["num_machines"]) if config.get("num_machines") else 1
    fsdp_table = {
        str(fsdp_key).removeprefix("fsdp_"): fsdp_value
        for fsdp_key, fsdp_value in reader.table(config, "fsdp_config").items()
    }
    return _fsdp_launch_settings(
        reader, fsdp_table, world_size, machine_count, reader.table(config, "parallelism_config"), command_settings
    )


def read_trainer(
    reader: LaunchReader, config: Table, world_size: int, command_settings: dict[str, Any]
) -> LaunchSettings:
    """Returns the FSDP run that the Trainer's arguments describe. command_settings: settings outside of FSDP.

    With `bf16` or `fp16`, accelerate casts trained parameters in 16 bits to fp32 before they are sharded.
    """
    has_mixed_precision = any(config.get(precision_argument) is True for precision_argument in ("bf16", "fp16"))
    trains_in_16_bit = command_settings.get("master_weights") == "none" and command_settings.get("dtype") != "fp32"
    if has_mixed_precision and trains_in_16_bit and "lora_rank" not in command_settings:
        command_settings = {**command_settings, "master_weights": "fp32"}
    parallelism_table = reader.table(config, "parallelism_config")
    return _fsdp_launch_settings(
        reader, _trainer_fsdp_table(reader, config), world_size, 1, parallelism_table, command_settings
    )


def _fsdp_launch_settings(
    reader: LaunchReader,
    fsdp_table: Table,
    world_size: int,
    machine_count: int,
    parallelism_table: Table,
    command_settings: dict[str, Any],
) -> LaunchSettings:
    """Returns the training run of an FSDP configuration."""
    layout, implied_settings = fsdp_layout(reader, fsdp_table, world_size, machine_count, parallelism_table)
    has_logits = command_settings.get("cross_entropy") not in LOSSES_WITH_HEAD
    gathers_logits = layout.tp > 1 and layout.zero > 0 and has_logits  # transformers' `colwise_gather_output`
    settings = reduction_settings(reader, fsdp_table, command_settings, not gathers_logits)
    return LaunchSettings(layout, {**mixed_precision_settings(command_settings), **implied_settings}, settings)


def _trainer_fsdp_table(reader: LaunchReader, trainer_arguments: Table) -> dict[str, Any]:
    """Returns the Trainer's FSDP arguments, renamed to the keys of accelerate's FSDP configuration."""
    config = trainer_arguments.get("fsdp_config") or {}
    if not isinstance(config, Mapping):
        raise reader.value_error("fsdp_config", config, "a table, or a file's contents")
    fsdp_table = {str(config_key).removeprefix("fsdp_"): config_value for config_key, config_value in config.items()}
    fsdp_argument = trainer_arguments.get("fsdp") or ""
    if isinstance(fsdp_argument, str):
        fsdp_options = fsdp_argument.split()
    elif isinstance(fsdp_argument, list):
        fsdp_options = fsdp_argument
    else:
        fsdp_options = []
    for fsdp_option in fsdp_options if fsdp_argument is not True else []:
        option_name = str(fsdp_option).upper()
        if option_name in SHARDING_STRATEGIES:
            fsdp_table.setdefault("sharding_strategy", option_name)
        elif option_name == "OFFLOAD":
            fsdp_table["offload_params"] = True
        elif option_name not in ("AUTO_WRAP", "TRUE"):
            raise reader.value_error("fsdp", fsdp_option, "full_shard, shard_grad_op or hybrid_shard")
    return fsdp_table


def fsdp_or_torch_launch(
    reader: LaunchReader,
    world_size: int,
    run_settings: dict[str, Any],
    run_titan_settings: TitanSettings | None,
    reshards_after_forward: bool = True,
    replica_count: int = 1,
    **layout_fields: Any,
) -> Launch:
    """Returns an FSDP2 run for several devices, or a run in plain PyTorch for one device.

    run_titan_settings: the settings of FSDP; None for replicas.
    reshards_after_forward: whether a layer's weights are freed after its forward pass; true by default.
    replica_count: replicas of all shards among the devices; 1 by default.
    layout_fields: further fields of `Launch`.
    """
    is_sharded = run_titan_settings is not None and world_size > 1
    layout = Layout(
        dp=world_size,
        zero=3 if is_sharded else 0,
        reshard=reshards_after_forward or not is_sharded,
        hsdp_replicas=replica_count if is_sharded else 1,
    )
    launch_settings = LaunchSettings(layout, run_settings, run_titan_settings if is_sharded else None)
    return reader.create_launch("fsdp2" if is_sharded else "torch", launch_settings, **layout_fields)
