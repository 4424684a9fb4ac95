"""The evidence for a run with torch's operations: its parts, kernels and optimizer, each with its witness."""

from __future__ import annotations

from ..components.evidence import evidence_of_parts
from ..evidence import Evidence
from ..model import ModelSpec
from ..simulator.choices import Choices
from ..simulator.evidence import evidence_of_kernels
from ..simulator.profiles.eager import Eager
from .optimizers.registry import optimizer as optimizer_named


def evidence_of_optimizer(name: str) -> Evidence:
    """Returns the evidence for an optimizer. name: its name, or an alias."""
    record = optimizer_named(name)
    return Evidence("optimizer", record.name, record.witness)


def evidence_of_run(
    spec: ModelSpec, kernel_choices: Choices, optimizer: str | None = None, include: frozenset[str] = frozenset()
) -> list[Evidence]:
    """Returns the evidence for a run with torch's operations.

    optimizer: that of training; None (default) without one. include: the names of optional parts that run too.
    """
    evidence = [*evidence_of_parts(spec, include), *evidence_of_kernels(Eager, spec.shared_program, kernel_choices)]
    return evidence if optimizer is None else [*evidence, evidence_of_optimizer(optimizer)]
