"""What a run of torch's own operations uses, with the witness of each: parts, kernels, the optimizer."""

from __future__ import annotations

from ..components.evidence import evidence_of_parts
from ..evidence import Evidence
from ..model import ModelSpec
from ..simulator.choices import Choices
from ..simulator.evidence import evidence_of_kernels
from ..simulator.profiles.eager import Eager
from .optimizer_steps import evidence_of_optimizer


def evidence_of_run(
    spec: ModelSpec, choices: Choices, optimizer: str | None = None, include: frozenset[str] = frozenset()
) -> list[Evidence]:
    """What a run of torch's own operations uses.

    optimizer: that of training; None (default) without one. include: the names of optional parts that run too.
    """
    found = [*evidence_of_parts(spec, include), *evidence_of_kernels(Eager, spec.program(), choices)]
    return found if optimizer is None else [*found, evidence_of_optimizer(optimizer)]
