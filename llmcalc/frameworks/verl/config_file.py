"""Reads configs of verl and EasyR1 in YAML, as recipes have them or as a run has written them.

Source: verl at b178a3cd (2026-01-29), verl/trainer/config/{ppo_trainer,ppo_megatron_trainer,sft_trainer}.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..launch.launch_types import Launch, LaunchSource, Table, reader_of
from .command import config_names, launch_of_easy_r1, launch_of_overrides, values_of_config
from .easy_r1 import is_easy_r1


def is_verl(config: Table) -> bool:
    """Whether tables are a config of verl's reinforcement learning, or of EasyR1."""
    return isinstance(config.get("actor_rollout_ref"), Mapping) or is_easy_r1(config)


def read_verl(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of the actor. Raises `InputError`, which names file and key."""
    with reader_of(source_file) as reader:
        flat_values = values_of_config(config, {}, source_file.env)
        if is_easy_r1(config):
            return launch_of_easy_r1(reader, flat_values)
        return launch_of_overrides(reader, flat_values, config_names(config))
