"""Refuses launch files of programs that llmcalc cannot read; their keys tell the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...errors import InputError
from .record import Table


class RefusedProgram(NamedTuple):
    """A program whose launch files are recognized and not read.

    name: the program's name.
    matches: whether tables are such a file.
    instead: what to do instead.
    """

    name: str
    matches: Callable[[Table], bool]
    instead: str


def _has_tables(config: Table, *names: str) -> bool:
    """Whether the file has a table under each of these keys."""
    return all(isinstance(config.get(name), Mapping) for name in names)


NEMO_RL_TABLES = {"policy", "grpo", "dpo", "loss_fn", "checkpointing", "data", "cluster", "env"}
"""Tables of which a config of NeMo-RL that builds on another one has some."""

REFUSED = (
    RefusedProgram(
        "verl",
        lambda data: "actor_rollout_ref" in data or _has_tables(data, "actor", "rollout"),
        "TARGET with --phase training --fsdp N for the actor, and --phase inference for the rollout",
    ),
    RefusedProgram(
        "ms-swift",
        lambda data: bool({"tuner_type", "train_type", "sft_type", "rlhf_type"} & set(data)),
        "TARGET with options such as --lora-rank, --base nf4, --recompute full and --seq",
    ),
    RefusedProgram(
        "NeMo-RL",
        lambda data: (
            (_has_tables(data, "policy", "cluster") and bool({"loss_fn", "grpo", "dpo", "sft"} & set(data)))
            or (str(data.get("defaults", "")).endswith(".yaml") and bool(NEMO_RL_TABLES & set(data)))
        ),
        "TARGET with --phase training and --fsdp N, or --tp N and --pp N, for the policy, and --phase inference for "
        "the rollout",
    ),
    RefusedProgram(
        "nanotron",
        lambda data: _has_tables(data, "general", "parallelism", "tokens"),
        "TARGET with options such as --tp, --pp and --devices",
    ),
)
"""Programs whose files are named in messages and not read."""


def refuse_program(config: Table, name_in_errors: str) -> None:
    """Raises `InputError` if these tables are a launch file of a program that is refused."""
    for program in REFUSED:
        if program.matches(config):
            raise InputError(
                f"{name_in_errors}: is a config of {program.name}, which is not read; expected {program.instead}"
            )
