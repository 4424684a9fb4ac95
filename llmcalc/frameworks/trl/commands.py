"""The commands of TRL that train, and the accelerate launcher that each command starts.

Source: TRL 1.10 (f2cd57710), trl/cli/commands/training.py, trl/cli/accelerate_{config,launcher}.py and
trl/accelerate_configs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..launch.launch_types import CommandLine, Table

COMMANDS: Mapping[str, Table] = {
    "trl sft": {},
    "trl dpo": {"loss_type": "sigmoid"},
    "trl kto": {"loss_type": "kto"},
    "trl grpo": {"num_generations": 8},
    "trl reward": {"center_rewards_coefficient": None},
}
"""Command → an argument that only its trainer has, and the default, by which the trainer is recognized."""

ACCELERATE_CONFIGS: Mapping[str, tuple[str, ...]] = {
    "single_gpu": ("--num_processes", "1"),
    "multi_gpu": ("--num_processes", "8"),
    **{f"zero{stage}": ("--num_processes", "8", "--use_deepspeed", "--zero_stage", str(stage)) for stage in (1, 2, 3)},
    **{f"fsdp{version}": ("--num_processes", "8", "--use_fsdp", "--fsdp_version", str(version)) for version in (1, 2)},
}
"""Name of an accelerate config that comes with TRL → the equivalent arguments of `accelerate launch`."""

LAUNCHER_OPTION = re.compile(r"--(accelerate[_-]config|num[_-](?:processes|machines))")
"""Pattern of the arguments of the command `trl` that are passed on to `accelerate launch`."""


def with_launcher(command_line: CommandLine) -> CommandLine:
    """Returns the launcher command that a TRL command runs, without arguments of the launcher alone."""
    launcher_words: list[str] = []
    other_words: list[str] = []
    word_iterator = iter(command_line.words)
    for word in word_iterator:
        option_name, equals_sign, option_value = word.partition("=")
        if not LAUNCHER_OPTION.fullmatch(option_name):
            other_words.append(word)
            continue
        option_value = option_value if equals_sign else next(word_iterator, "")
        if "config" not in option_name:
            launcher_words += [option_name, option_value]
        else:
            launcher_words = [*ACCELERATE_CONFIGS.get(option_value, ("--config_file", option_value)), *launcher_words]
    if not launcher_words:
        return command_line
    launcher = [*command_line.launcher, "accelerate", "launch", *launcher_words]
    return command_line._replace(launcher=launcher, words=other_words)
