"""DeepSpeed as files of accelerate and arguments of the Trainer ask for it.

Sources: accelerate 1.x, utils/dataclasses.py, `DeepSpeedPlugin`; transformers/training_args.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..launch.record import Reading, RunUnder, Table, size_of, unknown_keys
from .config_file import read_into

FILE = "a DeepSpeed JSON"

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


def read_accelerate(reading: Reading, data: Table, world: int, words: dict[str, Any]) -> RunUnder:
    """DeepSpeed in accelerate's config. words: the settings of a run without it."""
    found = _plugin(reading, data, world)
    kept = {key: value for key, value in words.items() if key != "precision"}
    return found._replace(settings={**kept, **found.settings})


def _plugin(reading: Reading, data: Table, world: int) -> RunUnder:
    table = reading.table(data, "deepspeed_config")
    at = "deepspeed_config"
    reading.ignored += [f"{at}.{key}"[:80] for key in table if key in PLUGIN_IGNORED]
    unknown_keys(reading, table, (*PLUGIN, *PLUGIN_IGNORED), at, "no key that is known")
    name = str(data.get("mixed_precision") or "no").lower()
    half = {"bf16": name == "bf16", "fp16": name == "fp16", "batch": 1}
    if table.get("deepspeed_config_file") is not None:
        config = reading.fetched(f"{at}.deepspeed_config_file", table["deepspeed_config_file"], FILE)
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


def _without_batch(found: RunUnder, config: Table) -> RunUnder:
    """What a config says, without the size of a micro-batch where it leaves that to the script."""
    if config.get("train_micro_batch_size_per_gpu", "auto") != "auto":
        return found
    return found._replace(settings={key: value for key, value in found.settings.items() if key != "batch"})


def read_trainer(reading: Reading, data: Table, world: int, words: dict[str, Any]) -> RunUnder:
    """DeepSpeed in arguments of the Trainer. words: the settings of a run without it."""
    given = data["deepspeed"]
    table = given if isinstance(given, Mapping) else reading.fetched("deepspeed", given, FILE)
    half = {name: bool(data.get(name)) for name in ("bf16", "fp16")}
    found = read_into(reading, table, world, {**words, **half})
    kept = {key: value for key, value in words.items() if key not in ("precision", "dtype", "optimizer_impl")}
    return found._replace(settings={**kept, **found.settings})
