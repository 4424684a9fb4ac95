"""Reads the script of a SkyPilot task, with the variables that SkyPilot sets for it.

Source: SkyPilot's documentation, reference/yaml-spec and running-jobs/environment-variables (2026-08): `run` is the
script of every node, `num_nodes` is 1 by default, and `accelerators` are those of one node. Oumi's jobs are the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from .yaml_text import environment_variables

TASK_KEYS = frozenset(
    {"name", "resources", "num_nodes", "envs", "secrets", "setup", "workdir", "working_dir", "file_mounts", "service"}
)
"""Keys that a SkyPilot task may have beside its script; `working_dir` is Oumi's."""

TASK_SCRIPT = re.compile(r"^run:[ \t]*[^\s#]", re.MULTILINE)
"""Pattern of the key of a task's script, whose text follows on the same line or on the lines below."""

JOINED_NODES = re.compile(r"\boumi\s+distributed\b|host_?file", re.IGNORECASE)
"""Pattern of commands that join a task's nodes by SkyPilot's variables or a host file, without counting nodes.

Source: oumi/core/distributed.py; deepspeed/launcher/runner.py. Any other launcher starts a run of its own on each node.
"""

MAX_ALTERNATIVES = 20
"""Largest number of alternative accelerators that are read from a task."""

NAMES_WITH_MEMORY = {"A100": "A100-40GB", "V100": "V100-16GB"}
"""SkyPilot's name without memory size → accelerator; A100-80GB and V100-32GB have other names (`sky show-gpus`)."""


class TaskScript(NamedTuple):
    """The script that a SkyPilot task runs, with the task's variables, accelerators and nodes.

    text: the script.
    variables: environment variables → texts.
    accelerators: alternative accelerators of a node, as (name, number).
    accelerator_count: accelerators of a node; None if unknown, or if the alternatives have other numbers.
    node_count: number of nodes.
    first_line_number: the line of the file on which the script begins.
    """

    text: str
    variables: dict[str, str]
    accelerators: list[tuple[str, int]]
    accelerator_count: int | None
    node_count: int
    first_line_number: int

    @property
    def accelerator_name(self) -> str:
        """The accelerators' name with memory size; empty if none is stated, or if alternatives have different names."""
        stated_names = {stated_name for stated_name, _ in self.accelerators}
        accelerator_name = stated_names.pop() if len(stated_names) == 1 else ""
        return NAMES_WITH_MEMORY.get(accelerator_name.upper(), accelerator_name)

    @property
    def sbatch_options(self) -> list[str]:
        """Options of sbatch: the accelerators per node, and the number of nodes if a command runs on all nodes."""
        count_options = [] if self.accelerator_count is None else [f"--gpus-per-node={self.accelerator_count}"]
        node_options = [f"--nodes={self.node_count}"] if JOINED_NODES.search(self.text) is not None else []
        return [*count_options, *node_options]


def is_skypilot_task(config: Any) -> bool:
    """Whether parsed tables are a SkyPilot task, even with a script alone, rather than a GitHub workflow (`jobs`)."""
    return (
        isinstance(config, Mapping)
        and isinstance(config.get("run"), str)
        and "jobs" not in config
        and (bool(TASK_KEYS & set(config)) or len(config) == 1)
    )


def script_of_task(task: Mapping[str, Any], typed_variables: Mapping[str, str], file_text: str = "") -> TaskScript:
    """Returns the script that the first node of a SkyPilot task runs.

    typed_variables: variables that are typed beside the file, as with `sky launch --env`. They replace the file's.
    file_text: the text of the task's file, for the line on which the script begins; empty (default) for line 1.
    """
    resources = task.get("resources")
    accelerators = resource_accelerators(resources) if isinstance(resources, Mapping) else []
    alternative_counts = {alternative_count for _, alternative_count in accelerators}
    accelerator_count = alternative_counts.pop() if len(alternative_counts) == 1 else None
    written_count = task.get("num_nodes")
    node_count = written_count if type(written_count) is int and 0 < written_count < 10**6 else 1
    variables = {
        "SKYPILOT_NUM_NODES": str(node_count),
        "SKYPILOT_NODE_RANK": "0",
        **({} if accelerator_count is None else {"SKYPILOT_NUM_GPUS_PER_NODE": str(accelerator_count)}),
        **environment_variables(task.get("envs")),
        **environment_variables(task.get("secrets")),
        **typed_variables,
    }
    first_line_number = _first_line_of_script(task["run"], file_text)
    return TaskScript(task["run"], variables, accelerators, accelerator_count, node_count, first_line_number)


def _first_line_of_script(script_text: str, file_text: str) -> int:
    """Returns the line number in a file on which a task's script begins; 1 if the script is not found."""
    script_key = TASK_SCRIPT.search(file_text)
    blank_lines = len(script_text) - len(script_text.lstrip("\n"))
    first_command = script_text.lstrip().partition("\n")[0]
    position = -1 if script_key is None else file_text.find(first_command, script_key.start())
    return max(1, file_text.count("\n", 0, max(0, position)) + 1 - blank_lines)


def resource_accelerators(resources: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Returns the alternative accelerators of a task's resources as (name, number), without repetitions.

    Alternatives in `any_of` and `ordered` have the fields around them where they state no others.
    """
    shared_accelerators = resources.get("accelerators")
    resource_tables = [
        resource_table
        for alternatives_key in ("any_of", "ordered")
        if isinstance(resources.get(alternatives_key), list)
        for resource_table in resources[alternatives_key][:MAX_ALTERNATIVES]
        if isinstance(resource_table, Mapping)
    ]
    accelerators = [
        accelerator
        for resource_table in resource_tables or [resources]
        for accelerator in task_accelerators(resource_table.get("accelerators", shared_accelerators))
    ]
    return list(dict.fromkeys(accelerators))


def task_accelerators(accelerators: Any) -> list[tuple[str, int]]:
    """Returns the alternative accelerators of a task as (name, number), from texts such as `H100:8`.

    A table has numbers as values, or none: `{H100:8, H200:8}` is a set of texts.
    """
    if isinstance(accelerators, Mapping):
        accelerator_texts = [
            str(name) if stated_count is None else f"{name}:{stated_count}"
            for name, stated_count in accelerators.items()
        ]
    else:
        accelerator_texts = accelerators if isinstance(accelerators, list) else [accelerators]
    names_and_counts = [
        accelerator_text.partition(":")
        for accelerator_text in accelerator_texts[:MAX_ALTERNATIVES]
        if isinstance(accelerator_text, str)
    ]
    return [
        (accelerator_name.strip(), int(count_text) if re.fullmatch(r"[1-9][0-9]{0,3}", count_text) else 1)
        for accelerator_name, _, count_text in names_and_counts
    ]
