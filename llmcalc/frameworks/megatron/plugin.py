"""Reads the Megatron-LM section of an accelerate config.

Source: accelerate 1.x, utils/dataclasses.py, `MegatronLMPlugin`.
"""

from __future__ import annotations

from typing import Any

from ...errors import InputError
from ...parallel.layout import Layout, Zero
from ...sources.huggingface.family import field_names
from ..launch.launch_types import LaunchReader, LaunchSettings, Table, read_boolean, read_integer, record_unknown_keys

READ_PLUGIN_KEYS = field_names("""
    tp_degree pp_degree num_micro_batches sequence_parallelism recompute_activations use_distributed_optimizer
    """)


def read_accelerate(
    reader: LaunchReader, config: Table, world_size: int, command_settings: dict[str, Any]
) -> LaunchSettings:
    """Returns the Megatron-LM run of an accelerate config. command_settings: the other settings."""
    reader.refuse_parallel_groups(config)
    section_name = "megatron_lm_config"
    plugin_options = {
        str(plugin_key).removeprefix("megatron_lm_"): plugin_value
        for plugin_key, plugin_value in reader.table(config, section_name).items()
    }
    record_unknown_keys(reader, plugin_options, (*READ_PLUGIN_KEYS, "gradient_clipping"), section_name)

    def plugin_size(argument_name: str) -> int:
        return read_integer(
            reader,
            f"{section_name}.megatron_lm_{argument_name}",
            1 if plugin_options.get(argument_name) is None else plugin_options[argument_name],
        )

    def plugin_flag(argument_name: str) -> bool:
        return plugin_options.get(argument_name) is not None and read_boolean(
            reader, f"{section_name}.megatron_lm_{argument_name}", plugin_options[argument_name]
        )

    tp, pp = plugin_size("tp_degree"), plugin_size("pp_degree")
    if world_size % (tp * pp):
        raise InputError(f"--devices: {world_size}; expected a multiple of {tp * pp}")
    command_settings["num_microbatches"] = plugin_size("num_micro_batches")
    if plugin_flag("recompute_activations"):
        command_settings["recompute"] = "attention"
    if command_settings.get("precision") == "autocast":
        del command_settings["precision"]
        command_settings |= {"dtype": "bf16", "master_weights": "fp32", "grad_dtype": "fp32"}
    zero_stage: Zero = 1 if plugin_flag("use_distributed_optimizer") else 0
    sequence_parallel = tp > 1 and plugin_flag("sequence_parallelism")
    layout = Layout(tp=tp, pp=pp, dp=world_size // (tp * pp), sequence_parallel=sequence_parallel, zero=zero_stage)
    return LaunchSettings(layout, command_settings)
