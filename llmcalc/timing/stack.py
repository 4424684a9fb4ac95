"""Finds stacks: the software that runs a model's program, by name."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError, suggest
from .records import Stack, stacks

OVERLAPS = ("none", "dp", "tp", "all")
"""Values of `--overlap`: the messages that run beside products."""


def stack_names(phase: str = "") -> list[str]:
    """The names of all stacks, or of those that train or serve."""
    return [name for name, stack in stacks().items() if phase in ("", stack.phase)]


def find_stack(name: str, phase: str = "") -> Stack:
    """Returns a stack by its name. phase: `training` or `inference`, which it must run; default either.

    Raises `InputError` for an unknown name, and for a stack of another phase.
    """
    names = stack_names(phase)
    if name not in names:
        if name in stacks():
            raise InputError(f"--stack {name}: is for {stacks()[name].phase}; expected one of {', '.join(names)}")
        raise InputError(f"--stack: '{name}' is not known; expected one of {', '.join(names)}.{suggest(name, names)}")
    return stacks()[name]


@dataclass(frozen=True)
class Overlap:
    """The share of a group's messages that overlap hides where it is asked for. tp, dp: of these groups."""

    tp: float = 0.6
    dp: float = 0.9


WITH_OVERLAP = Overlap()
"""What Megatron-Core's options of overlap hide (the stack `megatron`)."""


def with_attention(stack: Stack, implementation: str | None) -> Stack:
    """Returns a stack whose attention keeps its scores in memory, if an option asks for such an implementation."""
    keeps_scores = implementation in ("eager", "sdpa-math") and stack.attention != "scores"
    return stack.model_copy(update={"attention": "scores"}) if keeps_scores else stack


def with_overlap(stack: Stack, overlap: str | None) -> Stack:
    """Returns a stack that hides the messages of these groups alone; None for its own.

    Raises `InputError` for an unknown value.
    """
    if overlap is None:
        return stack
    if overlap not in OVERLAPS:
        raise InputError(f"--overlap: '{overlap}' is not known; expected one of {', '.join(OVERLAPS)}")
    groups = {"none": (), "dp": ("dp",), "tp": ("tp",), "all": ("tp", "dp")}[overlap]
    return stack.model_copy(update={"hidden": {group: getattr(WITH_OVERLAP, group) for group in groups}})
