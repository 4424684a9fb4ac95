"""What a run uses, with the witness of each: parts, kernels, the optimizer, the framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..components.evidence import evidence_of_parts
from ..evidence import ON_META, Evidence, names_of, weakest, witnesses_of
from ..kernels.choices import Choices
from ..kernels.evidence import evidence_of_kernels
from ..kernels.profiles.eager import Eager
from ..model import ModelSpec
from .answer import DeviceMemory, Term
from .optimizers import evidence_of_optimizer


def evidence_of_run(
    spec: ModelSpec, choices: Choices, optimizer: str | None = None, include: frozenset[str] = frozenset()
) -> list[Evidence]:
    """What a run of torch's own operations uses.

    optimizer: that of training; None (default) without one. include: the names of optional parts that run too.
    """
    found = [*evidence_of_parts(spec, include), *evidence_of_kernels(Eager, spec.program(), choices)]
    return found if optimizer is None else [*found, evidence_of_optimizer(optimizer)]


def known(term: Term, evidence: Sequence[Evidence]) -> Term:
    """A term of a run, known as well as the least known of what the run uses."""
    status = weakest([term.status, *(one.status for one in evidence)])
    if term.of_runtime or status == term.status:
        return term
    if status == "untested":
        return replace(term, status=status, witness=f"no measurement of {names_of(evidence, status)}")
    names = witnesses_of(evidence, status)
    if term.witness == ON_META:
        names = f"torch on meta, and {names}" if status == "source" else names
    else:
        names = f"{term.witness}; {names}"
    return replace(term, status=status, witness=names)


def known_memory(device: DeviceMemory, evidence: Sequence[Evidence]) -> DeviceMemory:
    """The memory of a device whose terms are known as well as the least known of what its run uses."""
    return replace(device, terms=tuple(known(term, evidence) for term in device.terms))
