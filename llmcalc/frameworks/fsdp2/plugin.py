"""Reads the FSDP settings of the Trainer and of accelerate into a layout.

Source: accelerate 1.x, utils/dataclasses.py, `FullyShardedDataParallelPlugin` and `ParallelismConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError, shown
from ...parallel.layout import Layout, Zero
from ..launch.record import Reading, RunUnder, Table, flag_value, size_of, unknown_keys
from .settings import TitanSettings

FSDP_READ = frozenset(
    """
    version sharding_strategy reshard_after_forward offload_params activation_checkpointing xla
    """.split()  # noqa: SIM905
)

FSDP_IGNORED = frozenset(
    """
    auto_wrap_policy transformer_layer_cls_to_wrap transformer_cls_names_to_wrap min_num_params state_dict_type
    sync_module_states cpu_ram_efficient_loading use_orig_params backward_prefetch backward_prefetch_policy
    forward_prefetch limit_all_gathers activation_cpu_offload xla_fsdp_settings xla_fsdp_v2 xla_fsdp_grad_ckpt
    """.split()  # noqa: SIM905
)

STRATEGIES: dict[str, tuple[Zero, bool]] = {
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

WHOLE = ("NO_SHARD", "3")
"""Sharding strategies without shards."""

PER_MACHINE = 8
"""Default number of devices of a machine, over which a hybrid strategy shards weights."""


def fsdp_layout(
    reading: Reading, table: Table, world: int, machines: int, parallel: Mapping[str, Any] | None = None
) -> tuple[Layout, dict[str, Any]]:
    """The layout of an FSDP configuration, and the settings that follow from it.

    table: FSDP's keys without the prefix `fsdp_`.
    world: devices.
    machines: machines.
    parallel: accelerate's `parallelism_config`.
    """
    at = "fsdp_config"
    reading.ignored += [f"{at}.{key}"[:80] for key in table if key in FSDP_IGNORED]
    unknown_keys(reading, table, (*FSDP_READ, *FSDP_IGNORED), at, "no key that is known")
    version = size_of(reading, f"{at}.fsdp_version", table.get("version", 1))
    if version == 1:
        reading.notes.append("FSDP version 1 is counted as version 2, which divides each tensor by itself")
    zero, reshard, hybrid = _strategy(reading, table)
    if table.get("offload_params") not in (None, False, "false"):
        reading.unknown[f"{at}.fsdp_offload_params"] = "offloading to the host is not modelled"
    if table.get("xla") not in (None, False):
        reading.unknown[f"{at}.xla"] = "XLA is not modelled"
    words: dict[str, Any] = {}
    if table.get("activation_checkpointing") in (True, "true"):
        words["recompute"] = "full"
    sizes = {str(key).removeprefix("parallelism_config_"): value for key, value in (parallel or {}).items()}
    known = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")
    harmless = ("cp_comm_strategy", "sp_size", "sp_backend", "sp_seq_length_is_variable", "sp_attn_implementation")
    unknown_keys(reading, sizes, (*known, *harmless), "parallelism_config", "no key that is known")
    tp, cp = (size_of(reading, f"parallelism_config.{name}", sizes.get(name, 1)) for name in ("tp_size", "cp_size"))
    replicas = size_of(reading, "parallelism_config.dp_replicate_size", sizes.get("dp_replicate_size", 1))
    if sizes.get("sp_size") not in (None, 1):
        reading.unknown["parallelism_config.sp_size"] = "Ulysses is not modelled"
    if hybrid:
        replicas = machines if machines > 1 else max(1, world // PER_MACHINE)
    if world % (tp * cp * replicas):
        raise InputError(f"--devices: {world}; expected a multiple of {tp * cp * replicas}")
    exchange = "allgather" if sizes.get("cp_comm_strategy", "allgather") == "allgather" else "p2p"
    dp = world // (tp * cp)
    layout = Layout(
        tp=tp,
        cp=cp,
        dp=dp,
        zero=zero if dp * cp > 1 else 0,
        hsdp_replicas=replicas,
        reshard=reshard,
        sequence_parallel=tp > 1,
        cp_comm="allgather" if exchange == "allgather" else "p2p",
    )
    return layout, words


def _strategy(reading: Reading, table: Table) -> tuple[Zero, bool, bool]:
    """The ZeRO stage, whether weights are freed after the forward pass, and whether the strategy is hybrid."""
    reshard_value = table.get("reshard_after_forward")
    name = str(table.get("sharding_strategy", "FULL_SHARD")).upper()[:40]
    if isinstance(reshard_value, str) and reshard_value.upper() in (
        *STRATEGIES,
        *WHOLE,
    ):  # version 1 wrote a strategy under this name
        name, reshard_value = reshard_value.upper(), None
    if name in WHOLE:
        raise reading.wrong(
            "fsdp_config.fsdp_sharding_strategy",
            "NO_SHARD divides nothing, and is not modelled; expected FULL_SHARD, or a run without FSDP (DDP), whose "
            "devices keep as much",
        )
    if name not in STRATEGIES:
        known = ", ".join(word for word in STRATEGIES if not word.isdigit())
        raise reading.wrong("fsdp_config.fsdp_sharding_strategy", f"{shown(name)}; expected one of {known}")
    zero, reshard = STRATEGIES[name]
    if reshard_value is not None:
        reshard = flag_value(reading, "fsdp_config.fsdp_reshard_after_forward", reshard_value)
    return zero, reshard, name in ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5")


def reduction_settings(reading: Reading, table: Table, words: Mapping[str, Any]) -> TitanSettings:
    """The settings of gradient reduction: in the format of the products (`set_mixed_precision`).

    Version 1 keeps whole gradients until the last micro-batch (`Accelerator.no_sync`); version 2 has no such method.
    table: FSDP's keys without the prefix `fsdp_`.
    words: the settings of a run without FSDP.
    """
    version = size_of(reading, "fsdp_config.fsdp_version", table.get("version", 1))
    half = words.get("precision") == "autocast" or words.get("dtype") in ("bf16", "fp16")
    return TitanSettings(reduced="bfloat16" if half else "", reduces_each=version > 1, flat=version == 1)


def mixed_precision_settings(words: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run under FSDP, whose mixed precision gathers weights in 16 bits from shards in fp32.

    words: the settings of the run without FSDP, with autocast.
    """
    out = dict(words)
    if out.get("precision") == "autocast":
        del out["precision"]
        out |= {"dtype": "bf16", "master_weights": "fp32"}
    return out


def read_accelerate(reading: Reading, data: Table, world: int, words: dict[str, Any]) -> RunUnder:
    """Reads FSDP in accelerate's config. words: the settings of the run without FSDP."""
    machines = size_of(reading, "num_machines", data["num_machines"]) if data.get("num_machines") else 1
    table = {str(key).removeprefix("fsdp_"): value for key, value in reading.table(data, "fsdp_config").items()}
    return _run(reading, table, world, machines, reading.table(data, "parallelism_config"), words)


def read_trainer(reading: Reading, data: Table, world: int, words: dict[str, Any]) -> RunUnder:
    """Reads FSDP in arguments of the Trainer. words: the settings of the run without FSDP.

    With `bf16` or `fp16`, accelerate casts trained parameters in 16 bits to fp32 before they are sharded.
    """
    is_mixed = any(data.get(name) is True for name in ("bf16", "fp16"))
    if is_mixed and words.get("master_weights") == "none" and words.get("dtype") != "fp32" and "lora_rank" not in words:
        words = {**words, "master_weights": "fp32"}
    return _run(reading, _trainer_fsdp(reading, data), world, 1, {}, words)


def _run(reading: Reading, table: Table, world: int, machines: int, parallel: Table, words: dict[str, Any]) -> RunUnder:
    layout, fsdp_words = fsdp_layout(reading, table, world, machines, parallel)
    settings = reduction_settings(reading, table, words)
    return RunUnder(layout, {**mixed_precision_settings(words), **fsdp_words}, settings)


def _trainer_fsdp(reading: Reading, data: Table) -> dict[str, Any]:
    """The Trainer's FSDP arguments as keys of accelerate's FSDP table."""
    config = data.get("fsdp_config") or {}
    if not isinstance(config, Mapping):
        raise reading.wrong("fsdp_config", f"{shown(config)}; expected a table, or a file's contents")
    out = {str(key).removeprefix("fsdp_"): value for key, value in config.items()}
    fsdp = data.get("fsdp") or ""
    words = fsdp.split() if isinstance(fsdp, str) else fsdp if isinstance(fsdp, list) else []
    for word in words if fsdp is not True else []:
        name = str(word).upper()
        if name in STRATEGIES:
            out.setdefault("sharding_strategy", name)
        elif name == "OFFLOAD":
            out["offload_params"] = True
        elif name not in ("AUTO_WRAP", "TRUE"):
            raise reading.wrong("fsdp", f"{shown(word)}; expected full_shard, shard_grad_op or hybrid_shard")
    return out
