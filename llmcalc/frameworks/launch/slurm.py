"""Reads the variables that Slurm sets in a batch script from the script's `#SBATCH` lines.

Source: the manual page of sbatch, "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

SBATCH_LINE = re.compile(r"^#SBATCH[ \t]+(--?[A-Za-z][\w-]*)[ \t=]*([^\s#]*)", re.MULTILINE)
"""Pattern of an `#SBATCH` line with an option and its value."""

VARIABLES_BY_OPTION: dict[str, tuple[str, ...]] = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    "--cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "--gpus": ("SLURM_GPUS",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "--gpus-per-task": ("SLURM_GPUS_PER_TASK",),
    "--gres": ("SLURM_GPUS_ON_NODE",),
}
"""Option of sbatch → the environment variables that Slurm sets to the option's number."""

LONG_OPTIONS = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus"}
"""One-letter option of sbatch → its long form."""

NUMBER = re.compile(r"(?:gres/)?(?:gpu:)?(?:[A-Za-z][\w.-]*:)?([1-9][0-9]{0,5})")
"""Pattern of a whole number, also at the end of an accelerator request such as `gpu:a100:8`."""


def slurm_variables(script_text: str) -> dict[str, str]:
    """Returns the variables that Slurm sets for a batch script; empty for a script without `#SBATCH` lines."""
    slurm_variables_by_name: dict[str, str] = {}
    for option_word, option_value in SBATCH_LINE.findall(script_text):
        option_name = LONG_OPTIONS.get(option_word, option_word)
        task_number_match = NUMBER.fullmatch(option_value)
        if task_number_match is not None:
            slurm_variables_by_name |= dict.fromkeys(VARIABLES_BY_OPTION.get(option_name, ()), task_number_match[1])
    node_count_text, tasks_per_node_text = (
        slurm_variables_by_name.get("SLURM_NNODES"),
        slurm_variables_by_name.get("SLURM_NTASKS_PER_NODE"),
    )
    if node_count_text is not None and tasks_per_node_text is not None:
        task_count_text = str(int(node_count_text) * int(tasks_per_node_text))
        slurm_variables_by_name = {
            "SLURM_NTASKS": task_count_text,
            "SLURM_NPROCS": task_count_text,
            **slurm_variables_by_name,
        }
    return slurm_variables_by_name


def requested_devices_per_machine(option_words: Sequence[str]) -> int | None:
    """Returns the number of accelerators per machine that sbatch or srun options request, such as `--gres=gpu:4`."""
    for option, next_word in pairwise([*option_words, ""]):
        option_name, equals_sign, option_value = option.partition("=")
        if option_name in ("--gres", "--gpus-per-node"):
            number_match = NUMBER.fullmatch(option_value if equals_sign else next_word)
            if number_match is not None:
                return int(number_match[1])
    return None
