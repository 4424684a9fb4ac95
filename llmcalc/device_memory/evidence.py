"""The evidence for a run with torch's operations: the test or measurement behind each part, kernel and optimizer."""

from __future__ import annotations

from ..components.evidence import evidence_of_parts
from ..evidence import Evidence, Witness
from ..model import ModelSpec
from ..simulator.evidence import evidence_of_kernels
from ..simulator.kernel_choices import KernelChoices
from ..simulator.profiles.eager import EagerKernels
from .optimizers.registry import optimizer as optimizer_named

FAKE_QUANTIZATION_EVIDENCE = Evidence(
    "setting",
    "fake quantization",
    Witness("source", "torchao/quantization/quant_primitives.py, _fake_quantize_affine", ""),
)
"""The evidence for linear layers that round their operands (fake quantization)."""


def evidence_of_optimizer(optimizer_name: str) -> Evidence:
    """Returns the evidence (tests and measurements) for an optimizer. optimizer_name: its name or alias."""
    optimizer_record = optimizer_named(optimizer_name)
    return Evidence("optimizer", optimizer_record.name, optimizer_record.witness)


def evidence_of_run(
    spec: ModelSpec,
    kernel_choices: KernelChoices,
    optimizer: str | None = None,
    included_parts: frozenset[str] = frozenset(),
) -> list[Evidence]:
    """Returns the evidence (tests and measurements) for a run with PyTorch's operations.

    optimizer: that of training; None (default) without one. included_parts: the names of optional parts that run too.
    """
    evidence = [
        *evidence_of_parts(spec, included_parts),
        *evidence_of_kernels(EagerKernels, spec.shared_program, kernel_choices),
    ]
    if kernel_choices.fake_quantization is not None:
        evidence.append(FAKE_QUANTIZATION_EVIDENCE)
    return evidence if optimizer is None else [*evidence, evidence_of_optimizer(optimizer)]
