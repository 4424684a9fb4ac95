"""Reads YAML configs of verl and EasyR1, from recipes or as written by a run.

Source: verl at b178a3cd (2026-01-29), verl/trainer/config/{ppo_trainer,ppo_megatron_trainer,sft_trainer}.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..launch.launch_types import Launch, LaunchSource, Table, launch_reader
from .command import config_names, launch_of_easy_r1, launch_of_fine_tuning, launch_of_overrides, values_of_config
from .easy_r1 import is_easy_r1


def is_verl(config: Table) -> bool:
    """Whether tables are a config of verl's reinforcement learning or fine-tuning by FSDP, or of EasyR1."""
    return isinstance(config.get("actor_rollout_ref"), Mapping) or _is_fine_tuning(config) or is_easy_r1(config)


def _is_fine_tuning(config: Table) -> bool:
    model_table = config.get("model")
    return isinstance(model_table, Mapping) and "partial_pretrain" in model_table


def read_verl(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of the actor or of fine-tuning. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        flat_values = values_of_config(config, {}, source_file.env)
        if is_easy_r1(config):
            return launch_of_easy_r1(reader, flat_values)
        if _is_fine_tuning(config):
            return launch_of_fine_tuning(
                reader,
                {
                    config_key: config_value
                    for config_key, config_value in flat_values.items()
                    if config_value is not None
                },
            )
        return launch_of_overrides(reader, flat_values, config_names(config))
